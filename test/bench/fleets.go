package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/unstale/unstale/gossip"
)

const (
	gossipPort = 7947
	// gossipSeeds is how many of the agents the others look for. Some are enough: the rest is gossip.
	gossipSeeds = 5
)

// An agentsConfig is what the agents of a fleet do.
type agentsConfig struct {
	policies        []string // to keep clean, in namespace
	grace, interval time.Duration
}

// startAgents starts unstale agent for each of the nodes, on loopback addresses of their own.
func (s *session) startAgents(ctx context.Context, kubeconfig string, nodes []string, config agentsConfig) (f fleet, err error) {
	dir, err := os.MkdirTemp(s.scratch, "agents-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the agents: %w", err)
	}
	defer func() {
		if err != nil {
			f.kill()
		}
	}()
	key := filepath.Join(dir, "gossip-key")
	if err := os.WriteFile(key, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the gossip key: %w", err)
	}
	for i, node := range nodes {
		text, err := config.file(i, key)
		if err != nil {
			return f, fmt.Errorf("encode the configuration: %w", err)
		}
		path := filepath.Join(dir, node+".yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return f, fmt.Errorf("write the configuration: %w", err)
		}
		agent, err := startDaemon(ctx, dir, node, s.unstale, "agent", "--config", path, "--node", node, "--kubeconfig", kubeconfig)
		if err != nil {
			return f, err
		}
		f = append(f, agent)
	}
	return f, nil
}

// file is the configuration of the agent with number i.
func (c agentsConfig) file(i int, key string) ([]byte, error) {
	var peers []string
	for seed := range gossipSeeds {
		peers = append(peers, fmt.Sprintf("%s:%d", gossipAddress(seed), gossipPort))
	}
	// JSON is YAML.
	return json.Marshal(map[string]any{
		"apiVersion": "unstale.dev/v1alpha1", "kind": "AgentConfiguration",
		"grace": c.grace.String(), "sweepInterval": c.interval.String(),
		"gossip": map[string]any{"bindAddress": gossipAddress(i), "port": gossipPort, "keyFile": key, "peers": peers},
		"http":   map[string]any{"debugAddress": "", "metricsAddress": ""},
		"report": map[string]any{"name": ""},
		// Without timestampPath: these entries are older than their Nodes, and each agent would clear its own.
		"statusKeys": []any{map[string]any{
			"name":      "nri-topology-aware",
			"resource":  map[string]any{"group": "config.nri", "version": "v1alpha1", "resource": "topologyawarepolicies"},
			"namespace": namespace, "names": c.policies,
			"paths": []any{map[string]any{"path": "status.nodes"}}, "unknownKeys": "Remove",
		}},
	})
}

func gossipAddress(i int) string { return "127.0.1." + strconv.Itoa(i+1) }

// startCandidates starts a program with client-go's leader election for each of the nodes; see candidate. policy is what the
// leader keeps clean, "" for nothing.
func (s *session) startCandidates(ctx context.Context, kubeconfig string, nodes []string, lease, policy string, grace time.Duration) (f fleet, err error) {
	program, err := s.buildCandidate(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.scratch, "candidates-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the candidates: %w", err)
	}
	for _, node := range nodes {
		candidate, err := startDaemon(ctx, dir, node, program, "-kubeconfig", kubeconfig, "-identity", node, "-namespace", namespace,
			"-lease", lease, "-policy", policy, "-grace", grace.String())
		if err != nil {
			f.kill()
			return nil, err
		}
		f = append(f, candidate)
	}
	return f, nil
}

// buildCandidate builds what stands beside the agents and returns the program.
func (s *session) buildCandidate(ctx context.Context) (string, error) {
	return s.buildAsReleased(ctx, "candidate", filepath.Join("test", "bench", "candidate"))
}

// buildAsReleased builds the program in a folder of the checkout with the flags of `make build`. Done before, it takes a moment.
func (s *session) buildAsReleased(ctx context.Context, name, folder string) (string, error) {
	program := filepath.Join(s.scratch, name+"-as-released"+executableSuffix())
	cmd := exec.CommandContext(ctx, "go", "build", "-tags", "grpcnotrace", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", program, ".")
	cmd.Dir = filepath.Join(s.root, folder)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	endGently(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w", name, errors.Join(err, errors.New(strings.TrimSpace(string(out)))))
	}
	return program, nil
}
