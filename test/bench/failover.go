package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	failoverAgents = 5
	failoverGrace  = 5 * time.Second
	// failoverInterval is the default. A successor looks at once, so it plays no part.
	failoverInterval = 5 * time.Minute
	// failoverSettled is how long one owner must have been the owner before it is killed.
	failoverSettled = 5 * time.Second
	// failoverPhase is the longest that is waited then, by chance, so that the kill comes at any moment of whatever goes round:
	// gossip asks every second, a leader renews every two.
	failoverPhase = 2 * time.Second
	// failoverLimit is how long the orphan may stay, and failoverPause how often it is looked for.
	failoverLimit = 3 * time.Minute
	failoverPause = 20 * time.Millisecond
)

var failover = benchmark{
	name: "failover",
	about: fmt.Sprintf("%d unstale agents, from SIGKILL of a resource's owner to the removal of an orphan by its successor, less grace, beside leader election",
		failoverAgents),
	run: measureFailover,
}

func measureFailover(ctx context.Context, s *session) (err error) {
	c, err := s.startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.closing(&err)
	names := nodeNames(failoverAgents + 1)
	k := failoverRun{session: s, cluster: c, nodes: names[:failoverAgents], orphan: names[failoverAgents]}
	if err := c.createNodes(ctx, newNodes(k.nodes)); err != nil {
		return err
	}
	var ours, theirs samples
	for run := range s.runs {
		s.logf("run %d of %d: unstale agents", run+1, s.runs)
		took, err := k.measure(ctx, policyName, func() (fleet, error) {
			config := agentsConfig{policies: []string{policyName}, grace: failoverGrace, interval: failoverInterval}
			return s.startAgents(ctx, c.server.Kubeconfig, k.nodes, config)
		})
		if err != nil {
			return err
		}
		ours = append(ours, took.Seconds())
		s.logf("run %d of %d: leader election", run+1, s.runs)
		lease := fmt.Sprintf("election-%d", run) // each its own, or the first leader would wait for the end of the last one's
		took, err = k.measure(ctx, lease, func() (fleet, error) {
			return s.startCandidates(ctx, c.server.Kubeconfig, k.nodes, lease, policyName, failoverGrace)
		})
		if err != nil {
			return err
		}
		theirs = append(theirs, took.Seconds())
	}
	s.compare("failover/time", "s", ours, "client-go leader election at its defaults", theirs)
	return nil
}

// A failoverRun is what the runs of this benchmark work with.
type failoverRun struct {
	*session
	*cluster
	nodes  []string
	orphan string // a key whose Node there never was
}

// measure kills the fleet's owner of the name owned when an orphan has come that it cannot have removed yet.
func (k *failoverRun) measure(ctx context.Context, owned string, start func() (fleet, error)) (took time.Duration, err error) {
	if err := k.createPolicy(ctx, policyName, k.nodes); err != nil {
		return 0, err
	}
	f, err := start()
	if err != nil {
		return 0, err
	}
	defer f.kill()
	owners, err := f.awaitOwners(ctx, failoverSettled, owned)
	if err != nil {
		return 0, err
	}
	if err := pause(ctx, rand.N(failoverPhase)); err != nil {
		return 0, err
	}
	if err := k.patchPolicy(ctx, policyName, "bench", map[string]any{k.orphan: entry()}); err != nil {
		return 0, err
	}
	killed := time.Now()
	owners[owned].kill()
	err = await(ctx, "the orphan is gone", failoverLimit, failoverPause, func() (bool, error) {
		has, err := k.hasOrphan(ctx)
		return !has, err
	})
	took = time.Since(killed) - failoverGrace
	if err != nil {
		return 0, err
	}
	return took, k.check(ctx)
}

func (k *failoverRun) hasOrphan(ctx context.Context) (bool, error) {
	policy, err := k.policies().Get(ctx, policyName, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("look for the orphan: %w", err)
	}
	_, has, err := unstructured.NestedFieldNoCopy(policy.Object, "status", "nodes", k.orphan)
	if err != nil {
		return false, fmt.Errorf("look for the orphan: %w", err)
	}
	return has, nil
}

// check takes the resource away and fails unless exactly the orphan has gone from it.
func (k *failoverRun) check(ctx context.Context) error {
	left, err := k.takePolicy(ctx, policyName)
	if err != nil {
		return err
	}
	for _, node := range k.nodes {
		if !left[node] {
			return fmt.Errorf("check what is left: the key %s of a Node that exists is gone", node)
		}
	}
	if len(left) != len(k.nodes) {
		return errors.New("check what is left: a key that was not there before")
	}
	return nil
}
