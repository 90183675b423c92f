package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/status"
)

func newPlan() *cobra.Command {
	var in inputs
	var output string
	var all, exitCode bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be removed, and why the rest stays",
		Long: `plan looks once at each target, asks the API server for the Nodes of the keys that nothing speaks for, and shows what
would go if nothing changed for a grace. It writes nothing.

Exit status: 0, or 1 if a target could not be looked at in full; with --exit-code 3 if something would be removed.`,
		Example: `  unstale plan --preset nri-plugins
  unstale plan --config unstale.yaml -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			c, err := in.open(cmd)
			if err != nil {
				return err
			}
			reports := c.plan(cmd.Context())
			if err := printReports(cmd.OutOrStdout(), "Plan", reports, output, all); err != nil {
				return failure(err)
			}
			if err := failedIn(reports); err != nil {
				return failure(err)
			}
			if exitCode && count(reports, status.Remove) > 0 {
				return &exitError{code: exitWouldRemove}
			}
			return nil
		},
	}
	in.addTo(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&all, "all", false, "show the keys of existing nodes too (json always has them)")
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 3 if something would be removed")
	return cmd
}

func (c *cluster) plan(ctx context.Context) []status.TargetReport {
	return c.each(ctx, (*status.Sweeper).Plan)
}

// each lists the Nodes and takes one pass over every target.
func (c *cluster) each(ctx context.Context, pass func(*status.Sweeper, context.Context) status.TargetReport) []status.TargetReport {
	err := c.nodes.List(ctx)
	reports := []status.TargetReport{}
	for _, sweeper := range c.sweepers {
		if err != nil {
			reports = append(reports, sweeper.Failure(ctx, err))
			continue
		}
		reports = append(reports, pass(sweeper, ctx))
	}
	return reports
}
