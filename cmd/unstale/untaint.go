package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/status"
)

func newUntaint() *cobra.Command {
	var in inputs
	cmd := &cobra.Command{
		Use:   "untaint",
		Short: "Take the taint that nodeRecovery adds off all Nodes, whatever the configuration says",
		Long: `untaint takes node.kubernetes.io/out-of-service=unstale off every Node that has it, also off those that are still Unknown. Taints with another
value, which operators and others add, stay. It is for the end: when nodeRecovery or unstale as a whole is removed. Agents that still have nodeRecovery.taint
in their configuration add the taint again.

It needs get, list and patch on nodes. Exit status: 0, or 1 if a Node could not be written; run it again then.`,
		Example: `  unstale untaint`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			rest, err := in.restConfig()
			if err != nil {
				return err
			}
			client, err := status.NewClient(rest, userAgent())
			if err != nil {
				return usageError(err)
			}
			untainted, err := status.UntaintAll(cmd.Context(), client)
			for _, name := range untainted {
				fmt.Fprintf(cmd.OutOrStdout(), "node/%s untainted\n", name)
			}
			if err == nil && len(untainted) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no Node has the taint")
			}
			return failed(err)
		},
	}
	in.addCluster(cmd)
	return cmd
}
