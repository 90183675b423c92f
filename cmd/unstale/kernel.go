package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/agent"
	"github.com/unstale/unstale/status"
)

func newKernel() *cobra.Command {
	cmd := &cobra.Command{
		Use: "kernel", Short: "Look at the kernel tables of the node that it runs on", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDump())
	return cmd
}

func newDump() *cobra.Command {
	var in inputs
	var output, node string
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Show what each configured kernel table holds, per address, with its owner",
		Long: `dump shows the entries of the configured ipsets and BPF maps that hold one address, as far as they are understood, and who has that
address. It runs on the node itself, as root, and changes nothing. With -o json each line is one entry, with its bytes in hex.

Exit status: 0, or 1 if a table could not be read in full.`,
		Example: "  unstale kernel dump --config unstale.yaml --node node-1\n  unstale kernel dump --preset calico --node node-1 -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output); err != nil {
				return err
			}
			view, err := in.viewKernel(cmd.Context(), node)
			if err != nil {
				return err
			}
			reports, err := dump(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), view, output)
			if err != nil {
				return failure(err)
			}
			return failed(failedIn(reports))
		},
	}
	in.addTo(cmd)
	addNode(cmd, &node)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// dump prints the entries to out, and how each target fares to out as text or, so as not to disturb who reads JSON, to errors.
func dump(ctx context.Context, out, errors io.Writer, view *agent.KernelView, output string) ([]status.TargetReport, error) {
	buffered := bufio.NewWriter(out)
	table := tabwriter.NewWriter(buffered, 0, 0, 2, ' ', 0)
	write := func(e agent.KernelEntry) {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Target, e.Table, e.Address, shown(e.Entry), e.Owner)
	}
	if output == "json" {
		encoder := json.NewEncoder(buffered)
		write = func(e agent.KernelEntry) { _ = encoder.Encode(e) } // the writer keeps its error for Flush
	} else {
		fmt.Fprintln(table, "TARGET\tTABLE\tADDRESS\tENTRY\tOWNER")
	}
	reports, err := view.Dump(ctx, write)
	if err != nil {
		return nil, err
	}
	if err := table.Flush(); err != nil {
		return nil, err
	}
	states := io.Writer(buffered)
	if output == "json" {
		states = errors
	} else {
		fmt.Fprintln(buffered)
	}
	for _, r := range reports {
		text := fmt.Sprintf("%s: %s", r.Target, r.State)
		if r.Message != "" {
			text += ": " + r.Message
		}
		fmt.Fprintln(states, text)
	}
	return reports, buffered.Flush()
}

// addNode adds the flag for the name of this node.
func addNode(cmd *cobra.Command, node *string) {
	cmd.Flags().StringVar(node, "node", "", "`name` of the Node that this runs on, for kernel tables; default: $NODE_NAME")
}

// viewKernel prepares a look at this node's kernel tables.
func (in *inputs) viewKernel(ctx context.Context, node string) (*agent.KernelView, error) {
	if node == "" {
		node = os.Getenv("NODE_NAME")
	}
	if node == "" {
		return nil, usageError(errors.New("say which Node this is: --node NAME, or NODE_NAME in the environment; the pods of that Node own its addresses"))
	}
	configuration, err := in.configuration()
	if err != nil {
		return nil, err
	}
	if configuration.Kernel == nil {
		return nil, usageError(errors.New("the configuration has no kernel tables; see kernel in docs/configuration.md, or a preset that has some"))
	}
	rest, err := in.restConfig()
	if err != nil {
		return nil, err
	}
	view, err := agent.ViewKernel(ctx, configuration, rest, userAgent(), node)
	if err != nil {
		return nil, failure(err)
	}
	return view, nil
}
