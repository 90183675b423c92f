package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/unstale/unstale/agent"
	"github.com/unstale/unstale/gossip"
)

func newAgent() *cobra.Command {
	var config, node, role, kubeconfig, kubeContext, logFormat string
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run on a node and keep the configured targets clean, together with the other nodes' agents",
		Long: `agent runs on every node until it is told to stop. The agents find one another by gossip and agree, without a Lease, which of
them keeps which resource clean. Its own node's key in the SweepReport is published at the start and cleared at the stop.

The configuration file is read again when it changes; a bad one changes nothing and is reported. SIGTERM or SIGINT stops the agent
in good order, within 20 seconds; a second one ends it at once.

Exit status: 0 after a stop that left nothing behind; 1 if it cannot start or go on; 2 if the command line or the configuration is
wrong; 4 if a stop left a key of this node behind; 128 and the signal's number if a second signal ended it.`,
		Example: `  unstale agent --config /etc/unstale/unstale.yaml            # in a pod, with NODE_NAME in its environment
  unstale agent --config unstale.yaml --node node-1 --log-format console`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if config == "" {
				return usageError(errors.New("say what to keep clean: --config FILE"))
			}
			if node == "" {
				node = os.Getenv("NODE_NAME")
			}
			if node == "" {
				return usageError(errors.New("say which Node this is: --node NAME, or NODE_NAME in the environment (in a pod: fieldRef spec.nodeName)"))
			}
			as, known := map[string]gossip.Role{"agent": gossip.Agent, "pruner": gossip.Pruner}[role]
			if !known {
				return usageError(fmt.Errorf("--role is %q; it must be agent or pruner", role))
			}
			logged := &checkedWriter{w: cmd.ErrOrStderr()}
			log, err := newLogger(logged, logFormat)
			if err != nil {
				return err
			}
			in := inputs{kubeconfig: kubeconfig, context: kubeContext}
			api, err := in.restConfig()
			if err != nil {
				return err
			}
			a, err := agent.New(agent.Options{
				ConfigFile: config, Node: node, Role: as, Version: version,
				API: api, UserAgent: userAgent(), Log: log, Recorded: logged.recorder(log), LogFailed: logged.failure,
			})
			if err != nil {
				return usageError(err)
			}
			context.AfterFunc(cmd.Context(), func() {
				// A stop takes less, unless its log cannot be written because nobody reads the pipe it goes to.
				time.AfterFunc(agent.StopTimeout, func() { os.Exit(exitKeysLeft) })
			})
			err = a.Run(cmd.Context())
			var left *agent.KeysLeftError
			switch {
			case errors.As(err, &left):
				log.Error("stopped", zap.Error(err))
				return &exitError{exitKeysLeft, nil}
			case err != nil:
				return &exitError{exitFailed, nil} // it is logged
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&config, "config", "", "configuration `file`")
	f.StringVar(&node, "node", "", "`name` of the Node that this agent runs on; default: $NODE_NAME")
	f.StringVar(&role, "role", "agent", "agent, or pruner on control-plane nodes")
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: the pod's service account, $KUBECONFIG or ~/.kube/config")
	f.StringVar(&kubeContext, "context", "", "`context` of the kubeconfig; default: its current one")
	f.StringVar(&logFormat, "log-format", "json", "log on standard error as json or console")
	return cmd
}
