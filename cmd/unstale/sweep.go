package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

func newSweep() *cobra.Command {
	var in inputs
	var output string
	var all bool
	cmd := &cobra.Command{
		Use:   "sweep",
		Short: "Remove what plan would, once, after waiting out the grace",
		Long: `sweep looks at each target, waits for the configured grace, looks again, and removes the keys that were there
both times, unchanged, and whose Nodes the API server then says are gone. It is for clusters that run no agents.

Each removal is logged on standard error with the whole entry and the command that puts it back. A target with mode: Report is
only reported. Killed at any moment, it can be run again: it finishes.

Exit status: 0, or 1 if a target could not be looked at or cleaned in full.`,
		Example: `  unstale sweep --preset nri-plugins 2> sweep.log    # keeps what puts each entry back
  unstale sweep --config unstale.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			c, err := in.open(cmd)
			if err != nil {
				return err
			}
			reports, err := c.sweep(cmd.Context(), cmd.ErrOrStderr())
			if printErr := printReports(cmd.OutOrStdout(), "Sweep", reports, output, all); printErr != nil {
				return failure(printErr)
			}
			if err != nil {
				return failure(err)
			}
			if err := failedIn(reports); err != nil {
				return failure(err)
			}
			return nil
		},
	}
	in.addTo(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&all, "all", false, "show the keys of existing nodes too (json always has them)")
	return cmd
}

// sweep looks, waits out the grace, and sweeps. What it tells the person who waits goes to progress.
func (c *cluster) sweep(ctx context.Context, progress io.Writer) ([]status.TargetReport, error) {
	reports := c.each(ctx, (*status.Sweeper).Look)
	candidates := count(reports, status.Wait)
	if candidates == 0 {
		return reports, nil
	}
	var grace time.Duration
	for i, target := range c.targets {
		if reports[i].Count(status.Wait) > 0 {
			grace = max(grace, target.Grace)
		}
	}
	fmt.Fprintf(progress, "%d keys may be stale. Looking again in %s; until then nothing is removed, and Ctrl-C ends this.\n", candidates, grace)
	select {
	case <-ctx.Done():
		return reports, fmt.Errorf("stopped before the second look: %w; nothing was removed", context.Cause(ctx))
	case <-time.After(grace):
	}
	for i, sweeper := range c.sweepers {
		if reports[i].Count(status.Wait) == 0 {
			continue // nothing to remove, or not readable: the first look says it all
		}
		sweeper.Progress = func(resource types.NamespacedName, removed, left int) {
			fmt.Fprintf(progress, "%s %s: %d entries removed, %d more keys to go.\n", reports[i].Target, resource, removed, left)
		}
		reports[i] = sweeper.Sweep(ctx)
	}
	return reports, nil
}
