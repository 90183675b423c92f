// Command unstale removes what departed Kubernetes nodes leave behind in the API server.
//
// This package translates flags, signals and exit statuses; the work is done by the packages agent and status.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit statuses. They are stable.
const (
	exitDone        = 0
	exitFailed      = 1   // something failed
	exitUsage       = 2   // the command line or the configuration is wrong
	exitWouldRemove = 3   // plan --exit-code: something would be removed
	exitKeysLeft    = 4   // agent: a stop left a key behind
	exitSignal      = 128 // and the signal's number, as shells have it: a second signal ended it at once
)

// Set by the linker; see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
	date    = "unknown"
)

func main() { os.Exit(run(os.Args)) }

// run executes the command line and returns the exit status.
func run(args []string) int {
	root := newRoot(filepath.Base(args[0]))
	root.SetArgs(args[1:])
	err := root.ExecuteContext(untilSignal())
	var status *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &status):
		if status.err != nil {
			fmt.Fprintln(root.ErrOrStderr(), "unstale:", status.err)
		}
		return status.code
	}
	// All that is not an exitError comes from cobra: an unknown command or flag, a missing argument.
	fmt.Fprintf(root.ErrOrStderr(), "unstale: %v\nRun '%s --help' for usage.\n", err, root.CommandPath())
	return exitUsage
}

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. A second one ends the program at once. It does so itself:
// on process 1 of a container the default action of a signal has no effect.
func untilSignal() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		code := exitSignal
		if number, ok := (<-signals).(syscall.Signal); ok {
			code += int(number)
		}
		os.Exit(code)
	}()
	return ctx
}

// An exitError ends the program with code. Its err, if any, is printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

func usageError(err error) error { return &exitError{exitUsage, err} }
func failure(err error) error    { return &exitError{exitFailed, err} }

// failed is failure where there may be no error.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure(err)
}

// newRoot makes the command tree. Called kubectl-unstale, the program is a kubectl plugin and speaks of itself as one.
func newRoot(program string) *cobra.Command {
	root := &cobra.Command{
		Use:   "unstale",
		Short: "Remove what departed nodes left behind",
		Long: `unstale removes what departed Kubernetes nodes and pods left behind: keys named after nodes in the status of shared resources, and
entries of kernel tables with addresses that pods have lost. It removes nothing whose Node or pod exists, or cannot be shown to be gone.

Start with "unstale plan --preset nri-plugins": it only looks.`,
		Version:      version,
		SilenceUsage: true, SilenceErrors: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	program = strings.TrimSuffix(program, ".exe")
	if program == "kubectl-unstale" || program == "kubectl_unstale" {
		root.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl unstale"}
	}
	root.AddCommand(newPlan(), newSweep(), newUntaint(), newAgent(), newKernel(), newValidate(), newPresets(), newCRD(), newKeygen(), newVersion())
	return root
}
