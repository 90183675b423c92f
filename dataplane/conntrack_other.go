//go:build !linux

package dataplane

import "context"

// Read tells that there are no connections to see here.
func (Conntrack) Read(context.Context, *Addresses, func(Entry)) error { return unsupported }

// Remove removes nothing.
func (Conntrack) Remove(_ context.Context, entries []Entry) []Outcome { return removeNothing(entries) }

// Restore restores nothing.
func (Conntrack) Restore(context.Context, []Entry) error { return unsupported }

// EnableTimestamps does nothing here.
func EnableTimestamps() (changed bool, err error) { return false, errUnsupported }
