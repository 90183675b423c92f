package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unstale/unstale/agent"
	"github.com/unstale/unstale/status"
)

// inputs are the flags of the commands that look at a cluster.
type inputs struct {
	config     string
	presets    []string
	kubeconfig string
	context    string
	logFormat  string
}

func (in *inputs) addTo(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&in.config, "config", "", "configuration `file`")
	f.StringSliceVar(&in.presets, "preset", nil, "built-in target `sets` instead of a configuration file; see 'unstale presets'")
	in.addCluster(cmd)
	f.StringVar(&in.logFormat, "log-format", "console", "log on standard error as console or json")
	cmd.Args = cobra.NoArgs
}

// addCluster adds the flags that find the cluster.
func (in *inputs) addCluster(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&in.kubeconfig, "kubeconfig", "", "kubeconfig `file`; default: $KUBECONFIG, ~/.kube/config, or the pod's service account")
	f.StringVar(&in.context, "context", "", "`context` of the kubeconfig; default: its current one")
}

// configuration loads what --config or --preset name.
func (in *inputs) configuration() (*agent.Configuration, error) {
	switch {
	case in.config != "" && len(in.presets) > 0:
		return nil, usageError(errors.New("--config and --preset exclude one another; name presets in the configuration file"))
	case in.config != "":
		c, err := agent.Load(in.config)
		if err != nil {
			return nil, usageError(err)
		}
		return c, nil
	case len(in.presets) > 0:
		for _, name := range in.presets {
			if _, err := findPreset(name); err != nil {
				return nil, usageError(fmt.Errorf("--preset: %w", err))
			}
		}
		// JSON strings are YAML strings, so no name can break out of the list.
		names, err := json.Marshal(in.presets)
		if err != nil {
			return nil, usageError(err)
		}
		c, err := agent.Parse(fmt.Appendf(nil, "apiVersion: %s\nkind: %s\npresets: %s\n", agent.APIVersion, agent.Kind, names))
		if err != nil {
			return nil, usageError(fmt.Errorf("--preset %s: %w", strings.Join(in.presets, ","), err))
		}
		return c, nil
	}
	return nil, usageError(errors.New("say what to keep clean: --config FILE, or --preset NAME (see 'unstale presets')"))
}

// restConfig finds the API server.
func (in *inputs) restConfig() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = in.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: in.context}).ClientConfig()
	if err != nil {
		return nil, usageError(fmt.Errorf("find the API server: %w; use --kubeconfig, --context, or run in a pod", err))
	}
	return config, nil
}

// A cluster is what the commands that look at one work with.
type cluster struct {
	nodes    *status.Nodes
	sweepers []*status.Sweeper
	targets  []status.Target
	recovery *status.Recovery // nil: Nodes are left alone
	log      *zap.Logger
}

// open reads the configuration and prepares one sweeper for each target. It sends no request.
func (in *inputs) open(cmd *cobra.Command) (*cluster, error) {
	configuration, err := in.configuration()
	if err != nil {
		return nil, err
	}
	logged := &checkedWriter{w: cmd.ErrOrStderr()}
	log, err := newLogger(logged, in.logFormat)
	if err != nil {
		return nil, err
	}
	rest, err := in.restConfig()
	if err != nil {
		return nil, err
	}
	client, err := status.NewClient(rest, userAgent())
	if err != nil {
		return nil, usageError(err)
	}
	c := &cluster{nodes: status.NewNodes(client), targets: configuration.StatusTargets(), log: log}
	for _, target := range c.targets {
		sweeper := status.NewSweeper(target, client, c.nodes, log)
		sweeper.Recorded = logged.recorder(log)
		c.sweepers = append(c.sweepers, sweeper)
	}
	if configuration.NodeRecovery != nil {
		c.recovery = status.NewRecovery(configuration.RecoveryOptions(userAgent()), client, log)
	}
	return c, nil
}

// checkOutput is for the flag -o.
func checkOutput(output string) error {
	if output != "text" && output != "json" {
		return usageError(fmt.Errorf("--output is %q; it must be text or json", output))
	}
	return nil
}
