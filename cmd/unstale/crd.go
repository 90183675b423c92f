package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/deploy"
)

func newCRD() *cobra.Command {
	return &cobra.Command{
		Use:   "crd",
		Short: "Print the SweepReport, in which agents publish what they do, for kubectl apply",
		Long: `crd prints two objects: the CustomResourceDefinition of SweepReport, and the SweepReport that the agents use unless their
configuration names another (report.name).

The API server takes the second only when it has established the first, a moment later, so apply twice. Agents work without it, and say that
it is missing.`,
		Example: `  unstale crd | kubectl apply -f -
  kubectl wait --for condition=Established crd/sweepreports.unstale.dev
  unstale crd | kubectl apply -f -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s---\n%s", deploy.SweepReportCRD, deploy.SweepReport)
			return failed(err)
		},
	}
}
