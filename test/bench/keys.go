package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/unstale/unstale/status"
)

const (
	keysEntries = 6000            // in the resource
	keysOrphans = 3000            // of them without a Node: every second one
	keysGrace   = 1 * time.Second // the least that a configuration may say
	keysSample  = 100             // removals by kubectl that stand for all
	policyName  = "default"       // of the resource, each time it is made anew
	// With the version, or kubectl asks the server each time anew which version there is: two more requests a key.
	keysKind = "topologyawarepolicies.v1alpha1.config.nri"
)

// keysBatches are the values of maxRemovals that are measured.
var keysBatches = []int{3000, 1000}

var keys = benchmark{
	name:  "keys",
	about: "unstale sweep of 6,000 keys, 3,000 of them orphans, beside kubectl patch for each key (a sample of 100)",
	run: func(ctx context.Context, s *session) error {
		return measureKeys(ctx, s, "keys", s.runs, keysBatches, keysSample)
	},
}

var keysFull = benchmark{
	name:  "keys-kubectl-full",
	about: "unstale sweep of 6,000 keys, 3,000 of them orphans, beside kubectl patch for each of the 3,000; once",
	slow:  true,
	run: func(ctx context.Context, s *session) error {
		return measureKeys(ctx, s, "keys-kubectl-full", 1, keysBatches[:1], keysOrphans)
	},
}

// measureKeys removes the orphans with unstale, once for each size of a batch, and sample of them with kubectl; each time
// from a fresh copy of the same resource, the only one of its kind.
func measureKeys(ctx context.Context, s *session, name string, runs int, batches []int, sample int) (err error) {
	if err := s.needKubectl(ctx); err != nil {
		return err
	}
	c, err := s.startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.closing(&err)
	k := keysRun{session: s, cluster: c}
	for i, key := range nodeNames(keysEntries) {
		if i%2 == 0 {
			k.alive = append(k.alive, key)
		} else {
			k.orphans = append(k.orphans, key)
		}
	}
	s.logf("create %d Nodes", len(k.alive))
	if err := c.createNodes(ctx, newNodes(k.alive)); err != nil {
		return err
	}

	s.logf("warm up")
	if _, err := k.sweep(ctx, keysOrphans); err != nil {
		return err
	}
	if _, err := k.patch(ctx, 4); err != nil {
		return err
	}
	ours, theirs := map[int][]measurement{}, []measurement{}
	for run := range runs {
		for _, size := range batches {
			s.logf("run %d of %d: unstale sweep with maxRemovals %d", run+1, runs, size)
			m, err := k.sweep(ctx, size)
			if err != nil {
				return err
			}
			ours[size] = append(ours[size], m)
		}
		s.logf("run %d of %d: kubectl patch for %d keys", run+1, runs, sample)
		m, err := k.patch(ctx, sample)
		if err != nil {
			return err
		}
		theirs = append(theirs, m)
	}
	what := fmt.Sprintf("kubectl patch for each key (%d of %d)", sample, keysOrphans)
	for _, size := range batches {
		s.reportKeys(fmt.Sprintf("%s/batch%d", name, size), ours[size], what, theirs, sample)
	}
	return nil
}

// reportKeys gives the figures of one size of batch.
func (s *session) reportKeys(name string, ours []measurement, what string, theirs []measurement, sample int) {
	s.add(name+"/time", "s", per(1, ours, wallSeconds))
	s.add(name+"/batches", "batches", per(1, ours, func(m measurement) float64 { return float64(m.batches) }))
	s.add(name+"/pauses", "s", per(1, ours, func(m measurement) float64 { return pauses(m).Seconds() }))
	s.add(name+"/requests", "requests", per(1, ours, requestCount))
	s.addRequests(name+"/requests", ours)
	s.add(name+"/sent", "bytes", per(1, ours, bytesOut))
	s.add(name+"/received", "bytes", per(1, ours, bytesIn))
	perKey := func(figure, unit string, value func(measurement) float64) {
		s.compare(name+"/"+figure+"PerKey", unit, per(keysOrphans, ours, value), what, per(sample, theirs, value))
	}
	perKey("time", "ms", wallMillis)
	perKey("cpu", "ms", cpuMillis)
	perKey("requests", "requests", requestCount)
	perKey("sent", "bytes", bytesOut)
	perKey("received", "bytes", bytesIn)
	if knowsMemory(ours) && knowsMemory(theirs) {
		s.compare(name+"/peakMemory", "bytes", per(1, ours, peakBytes), what, per(1, theirs, peakBytes))
	}
}

// A keysRun is what the runs of this benchmark work with.
type keysRun struct {
	*session
	*cluster
	alive, orphans []string // keys
}

// sweep measures unstale. The wall time is without the grace and the pauses between batches, which are waited for whatever
// the work is.
func (k *keysRun) sweep(ctx context.Context, maxRemovals int) (measurement, error) {
	var m measurement
	if err := k.freshPolicy(ctx); err != nil {
		return m, err
	}
	config, err := k.writeConfig(maxRemovals)
	if err != nil {
		return m, err
	}
	k.ours.proxy.Reset()
	m.usage, _, err = k.execute(ctx, k.unstale, "sweep", "--kubeconfig", k.ours.kubeconfig, "--config", config)
	if err != nil {
		return m, err
	}
	m.traffic(k.ours.proxy)
	m.wall -= keysGrace + pauses(m)
	return m, k.check(ctx)
}

// pauses is what a sweep waits between its batches.
func pauses(m measurement) time.Duration { return time.Duration(m.batches-1) * status.BatchPause }

// patch measures kubectl over a sample of the orphans. What a patch costs grows with the resource, so half of the sample
// goes while the resource is full and half when nearly all orphans have gone: the mean is what a patch costs over the whole
// way. Those in between are taken out past the proxy and the clock.
func (k *keysRun) patch(ctx context.Context, sample int) (measurement, error) {
	var m measurement
	if err := k.freshPolicy(ctx); err != nil {
		return m, err
	}
	k.beside.proxy.Reset()
	first, between, last := k.orphans[:sample/2], k.orphans[sample/2:keysOrphans-sample/2], k.orphans[keysOrphans-sample/2:]
	if err := k.patchEach(ctx, first, &m.usage); err != nil {
		return m, err
	}
	if len(between) > 0 {
		if err := k.removeEntries(ctx, policyName, between); err != nil {
			return m, err
		}
	}
	if err := k.patchEach(ctx, last, &m.usage); err != nil {
		return m, err
	}
	m.traffic(k.beside.proxy)
	return m, k.check(ctx)
}

func (k *keysRun) patchEach(ctx context.Context, keys []string, sum *usage) error {
	for _, key := range keys {
		u, _, err := k.execute(ctx, k.kubectl, "patch", keysKind, policyName, "--namespace", namespace,
			"--kubeconfig", k.beside.kubeconfig, "--cache-dir", filepath.Join(k.scratch, "kubectl-cache"),
			"--subresource", "status", "--type", "merge", "--patch", fmt.Sprintf(`{"status":{"nodes":{%q:null}}}`, key))
		if err != nil {
			return err
		}
		*sum = sum.plus(u)
	}
	return nil
}

func (k *keysRun) freshPolicy(ctx context.Context) error {
	return k.createPolicy(ctx, policyName, append(append([]string{}, k.alive...), k.orphans...))
}

// check takes the resource away and fails unless exactly the orphans have gone from it.
func (k *keysRun) check(ctx context.Context) error {
	left, err := k.takePolicy(ctx, policyName)
	if err != nil {
		return err
	}
	for _, key := range k.alive {
		if !left[key] {
			return fmt.Errorf("check what is left: the key %s of a Node that exists is gone", key)
		}
	}
	if want := keysEntries - keysOrphans; len(left) != want {
		return fmt.Errorf("check what is left: %d keys, want %d", len(left), want)
	}
	return nil
}

// writeConfig writes unstale's configuration and returns the file.
func (s *session) writeConfig(maxRemovals int) (string, error) {
	// JSON is YAML.
	text, err := json.Marshal(map[string]any{
		"apiVersion": "unstale.dev/v1alpha1", "kind": "AgentConfiguration",
		"grace": keysGrace.String(), "maxRemovals": maxRemovals,
		"statusKeys": []any{map[string]any{
			"name":     "nri-topology-aware",
			"resource": map[string]any{"group": "config.nri", "version": "v1alpha1", "resource": "topologyawarepolicies"},
			"paths":    []any{map[string]any{"path": "status.nodes"}}, "timestampPath": "timestamp",
			"unknownKeys": "Remove",
		}},
	})
	if err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	path := filepath.Join(s.scratch, "config.yaml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration: %w", err)
	}
	return path, nil
}
