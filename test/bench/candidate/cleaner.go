package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

var topologyAwarePolicies = schema.GroupVersionResource{Group: "config.nri", Version: "v1alpha1", Resource: "topologyawarepolicies"}

// A cleaner takes the keys of nodes that are gone out of one policy.
type cleaner struct {
	options
	client   kubernetes.Interface
	policies dynamic.Interface
	log      *slog.Logger
	since    map[string]time.Time // by key, when its Node was first found missing
}

// run looks at once, after every interval, and whenever a key has waited long enough.
func (c *cleaner) run(ctx context.Context) {
	for {
		next := c.interval
		wait, err := c.look(ctx, time.Now())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			c.log.Error("the policy was not cleaned", "error", err)
			next = time.Second
		case wait > 0:
			next = min(next, wait)
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// look is one look at the policy. It returns after which time there is a key to look at again, 0 if there is none.
func (c *cleaner) look(ctx context.Context, now time.Time) (wait time.Duration, err error) {
	policies := c.policies.Resource(topologyAwarePolicies).Namespace(c.namespace)
	policy, err := policies.Get(ctx, c.policy, metav1.GetOptions{})
	if err != nil {
		return 0, fmt.Errorf("get policy %s: %w", c.policy, err)
	}
	entries, _, err := unstructured.NestedMap(policy.Object, "status", "nodes")
	if err != nil {
		return 0, fmt.Errorf("read policy %s: %w", c.policy, err)
	}
	for key := range entries {
		_, err := c.client.CoreV1().Nodes().Get(ctx, key, metav1.GetOptions{})
		if err == nil {
			delete(c.since, key)
			continue
		}
		if !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("get node %s: %w", key, err)
		}
		first, known := c.since[key]
		if !known {
			first = now
			c.since[key] = now
		}
		if left := c.grace - now.Sub(first); left > 0 {
			if wait == 0 || left < wait {
				wait = left
			}
			continue
		}
		patch := fmt.Appendf(nil, `{"status":{"nodes":{%q:null}}}`, key)
		if _, err := policies.Patch(ctx, c.policy, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			return 0, fmt.Errorf("remove %s from policy %s: %w", key, c.policy, err)
		}
		c.log.Info("removed", "name", c.policy, "key", key)
		delete(c.since, key)
	}
	return wait, nil
}
