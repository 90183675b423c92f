package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/agent"
)

func newValidate() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:     "validate --config FILE",
		Short:   "Check a configuration file",
		Long:    "validate checks a configuration file and prints everything that is wrong with it, each with its field. It needs no cluster.\n\nExit status: 0, or 2 if the file is not valid.",
		Example: "  unstale validate --config unstale.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usageError(errors.New("say which file: --config FILE"))
			}
			c, err := agent.Load(file)
			if err != nil {
				return usageError(err)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid: %s, configuration %s\n",
				file, plural(len(c.TargetNames()), "target", "targets"), c.Hash())
			return failed(err)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	return cmd
}
