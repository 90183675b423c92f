package main

import (
	"context"
	"fmt"
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
			reports, err := c.sweep(cmd.Context())
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

// sweep looks, waits out the grace, and sweeps.
func (c *cluster) sweep(ctx context.Context) ([]status.TargetReport, error) {
	reports := c.each(ctx, firstLook)
	keys := map[string]bool{}
	var grace time.Duration
	for i, target := range c.targets {
		waiting := reports[i].Waiting()
		if len(waiting) > 0 {
			grace = max(grace, target.Grace)
		}
		for _, key := range waiting {
			keys[key] = true
		}
	}
	if len(keys) == 0 {
		return reports, nil
	}
	c.log.Info(fmt.Sprintf("%s may be stale. Looking again in %s; until then nothing is removed, and Ctrl-C ends this.",
		plural(len(keys), "key", "keys"), grace))
	select {
	case <-ctx.Done():
		return reports, fmt.Errorf("stopped before the second look: %w; nothing was removed", context.Cause(ctx))
	case <-time.After(grace):
	}
	for i, sweeper := range c.sweepers {
		if len(reports[i].Waiting()) == 0 {
			continue // nothing to remove, or not readable: the first look says it all
		}
		sweeper.Progress = func(resource types.NamespacedName, removed, left int) {
			c.log.Info(fmt.Sprintf("%s %s: %s removed, %s to go", reports[i].Target, resource,
				plural(removed, "entry", "entries"), plural(left, "key", "keys")))
		}
		reports[i] = sweeper.Sweep(ctx)
	}
	return reports, nil
}

// firstLook remembers the candidates. With unknownKeys: Keep a single run can remove nothing, as it has not seen the Nodes that
// were gone before it began, so there it only asks and says so.
func firstLook(s *status.Sweeper, ctx context.Context) status.TargetReport {
	if s.Target().UnknownKeys == status.RemoveUnknown {
		return s.Look(ctx)
	}
	return s.Plan(ctx)
}
