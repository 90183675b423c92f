package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/status"
)

func newPlan() *cobra.Command {
	var in inputs
	var output, node string
	var all, exitCode, kernel bool
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Show what would be removed, and why the rest stays",
		Long: `plan looks once at each target, asks the API server for the Nodes of the keys that nothing speaks for, and shows what
would go if nothing changed for a grace. It writes nothing.

Of Nodes that are Unknown it shows what nodeRecovery would do, and when at the earliest: as though no agent of theirs lived and nobody renewed their
Leases, which only agents can tell.

With --kernel it looks at the kernel tables of the node that it runs on instead, as root.

Exit status: 0, or 1 if a target could not be looked at in full; with --exit-code 3 if something would be removed.`,
		Example: `  unstale plan --preset nri-plugins
  unstale plan --config unstale.yaml -o json
  unstale plan --kernel --preset calico --node node-1    # on node-1`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			reports, err := in.plan(cmd, kernel, node)
			if err != nil {
				return err
			}
			if err := printReports(cmd.OutOrStdout(), "Plan", reports, output, all); err != nil {
				return failure(err)
			}
			if err := failedIn(reports); err != nil {
				return failure(err)
			}
			if exitCode && count(reports, status.Remove)+count(reports, status.Taint)+count(reports, status.Prune) > 0 {
				return &exitError{code: exitWouldRemove}
			}
			return nil
		},
	}
	in.addTo(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	cmd.Flags().BoolVar(&all, "all", false, "show the keys of existing nodes, and addresses that their pods have, too (json always has them)")
	cmd.Flags().BoolVar(&kernel, "kernel", false, "plan for the kernel tables of this node, not for the cluster")
	addNode(cmd, &node)
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with status 3 if something would be removed")
	return cmd
}

// plan looks at the targets in the cluster, or at those in this node's kernel.
func (in *inputs) plan(cmd *cobra.Command, kernel bool, node string) ([]status.TargetReport, error) {
	if kernel {
		view, err := in.viewKernel(cmd.Context(), node)
		if err != nil {
			return nil, err
		}
		return view.Plan(cmd.Context()), nil
	}
	c, err := in.open(cmd)
	if err != nil {
		return nil, err
	}
	return c.plan(cmd.Context()), nil
}

func (c *cluster) plan(ctx context.Context) []status.TargetReport {
	reports := c.each(ctx, (*status.Sweeper).Plan)
	if c.recovery != nil {
		reports = append(reports, c.recovery.Plan(ctx))
	}
	return reports
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
