// Command bench measures what unstale costs on a real control plane, beside what does the same work otherwise.
//
//	make bench              all benchmarks but the slow ones
//	make bench B=plan       only that one
//	go run ./test/bench [flags] [NAME...]
//
//	-list            list the benchmarks and end
//	-run NAME,...    which to run; the same as naming them as arguments. Default: $B, else all but the slow ones
//	-runs N          how often to measure each side, after a warm-up (3)
//	-unstale FILE    the program to measure. Default: $UNSTALE, else it is built from the checkout
//	-kubectl FILE    the kubectl to compare with. Default: the one that test/controlplane/program.sh builds
//	-o FILE          where the figures go as JSON. Default: bench.json at the root of the checkout
//
// The control plane's program must have been built: `make controlplane`. Exit status: 0 done; 1 something failed; 2 usage.
//
// Both sides run as processes of their own, in turn (A B A B), against the same server. keys and plan run through an HTTP proxy that
// counts requests and bytes (those of bodies as they were sent, compressed if they were, without headers); idle counts in the API server's
// audit log, by user agent; objects-idle and objects-memory through a proxy for each side; failover, owners, size and objects-departure
// need no count. Server, proxies and fleets share the machine with what is measured, so times depend on the machine and its load more than
// all else; requests and bytes do not. A figure is the median of its runs; the table shows the least and the greatest too.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// The exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes the command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == plainPlanMode {
		return exitStatus(plainPlan(ctx, args[1:], stdout), stderr)
	}

	if len(args) > 0 && args[0] == connectionLossMode {
		return exitStatus(connectionLosses(ctx, args[1:], stdout, stderr), stderr)
	}

	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list := flags.Bool("list", false, "list the benchmarks and end")
	names := flags.String("run", "", "which to run, comma-separated; default: $B, else all but the slow ones")
	runs := flags.Int("runs", 3, "how often to measure each side")
	unstale := flags.String("unstale", os.Getenv("UNSTALE"), "the unstale to measure; default: $UNSTALE, else it is built")
	kubectl := flags.String("kubectl", "", "the kubectl to compare with; default: the one that test/controlplane/program.sh builds")
	output := flags.String("o", "", "where the figures go as JSON; default: bench.json at the root of the checkout")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return exitDone
	case err != nil:
		return exitUsage
	}
	if *list {
		printList(stdout)
		return exitDone
	}
	wanted := flags.Args()
	if len(wanted) == 0 {
		wanted = strings.FieldsFunc(cmp.Or(*names, os.Getenv("B")), func(r rune) bool { return r == ',' || r == ' ' })
	}
	chosen, err := choose(benchmarks, wanted)
	if err == nil && *runs < 1 {
		err = fmt.Errorf("-runs is %d; it must be 1 or more", *runs)
	}
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	return exitStatus(measure(ctx, chosen, options{*runs, *unstale, *kubectl, *output}, stdout, stderr), stderr)
}

func exitStatus(err error, stderr io.Writer) int {
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return exitFailed
	}
	return exitDone
}
