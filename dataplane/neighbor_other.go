//go:build !linux

package dataplane

import "context"

// Read tells that there are no neighbours to see here.
func (Neighbors) Read(context.Context, *Addresses, func(Entry)) error { return unsupported }

// Remove removes nothing.
func (Neighbors) Remove(_ context.Context, entries []Entry) []Outcome { return removeNothing(entries) }

// Restore restores nothing.
func (Neighbors) Restore(context.Context, []Entry) error { return unsupported }
