//go:build !linux

package dataplane

import "context"

// Read tells that there are no ipsets here.
func (s *IPSets) Read(context.Context, *Addresses, func(Entry)) error { return unsupported }

// Remove removes nothing.
func (s *IPSets) Remove(_ context.Context, entries []Entry) []Outcome { return removeNothing(entries) }

// Restore restores nothing.
func (s *IPSets) Restore(context.Context, []Entry) error { return unsupported }
