package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/unstale/unstale/gossip"
)

func newKeygen() *cobra.Command {
	return &cobra.Command{
		Use:   "keygen",
		Short: "Print a new key for gossip.keyFile",
		Long: `keygen prints a key file (gossip.keyFile): a comment that says when, and 32 random bytes in base64. All agents of a cluster need the
same file.

The first key encrypts, all decrypt, and agents read the file again when it changes. So a key is replaced in three steps, each when
all agents have taken the one before (they show a hash of their keys): add the new key as the last line (unstale keygen >> gossip.key); make
it the first; remove the old one.`,
		Example: `  unstale keygen > gossip.key
  kubectl create secret generic unstale-gossip --namespace kube-system --from-file gossip.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "# made by unstale keygen, %s\n%s\n", time.Now().UTC().Format(time.DateOnly), gossip.GenerateKey())
			return failed(err)
		},
	}
}
