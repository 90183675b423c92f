package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// A benchmark measures one piece of work.
type benchmark struct {
	name  string
	about string // one line
	slow  bool   // it runs only when it is asked for
	// run measures and gives the session its figures. It starts the servers that it needs and ends them.
	run func(context.Context, *session) error
}

// benchmarks are all there are. Each has a file of its own.
var benchmarks = append([]benchmark{
	keys,
	keysFull,
	plan,
	idle,
	failover,
	owners,
	size,
	objectsDeparture,
	objectsIdle,
	objectsMemory,
}, kernelBenchmarks...)

// choose returns the benchmarks of those names, or all but the slow ones where there are no names.
func choose(all []benchmark, names []string) ([]benchmark, error) {
	var chosen []benchmark
	if len(names) == 0 {
		for _, b := range all {
			if !b.slow {
				chosen = append(chosen, b)
			}
		}
		return chosen, nil
	}
	for _, name := range names {
		i := slices.IndexFunc(all, func(b benchmark) bool { return b.name == name })
		if i < 0 {
			var known []string
			for _, b := range all {
				known = append(known, b.name)
			}
			return nil, fmt.Errorf("there is no benchmark %q; there are %s", name, strings.Join(known, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func printList(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, b := range benchmarks {
		about := b.about
		if b.slow {
			about += " (slow: only when asked for)"
		}
		fmt.Fprintf(table, "%s\t%s\n", b.name, about)
	}
	table.Flush()
}
