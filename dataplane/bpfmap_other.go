//go:build !linux

package dataplane

import (
	"context"
	"runtime"
)

// unsupported is how kernel tables fare where there are none.
var unsupported = &TableError{StateNotInstalled, "kernel tables are not supported on " + runtime.GOOS}

func removeNothing(entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	for i := range outcomes {
		outcomes[i] = Outcome{Failed, unsupported}
	}
	return outcomes
}

// Read tells that there are no BPF maps here.
func (b *BPFMaps) Read(context.Context, *Addresses, func(Entry)) error { return unsupported }

// Remove removes nothing.
func (b *BPFMaps) Remove(_ context.Context, entries []Entry) []Outcome { return removeNothing(entries) }

// Restore restores nothing.
func (b *BPFMaps) Restore(context.Context, []Entry) error { return unsupported }
