package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/test/apiserver"
)

var (
	living   = []string{"node-1", "node-2", "node-3", "node-4", "node-5"}
	departed = []string{"node-6", "node-7", "node-8"}
)

const (
	namespace = "kube-system"
	policy    = "default"
)

// A cluster is the API server with what the demo puts there.
type cluster struct {
	server *apiserver.Server
	client dynamic.Interface
	wrote  map[string]any // the entries as they were written
}

// populate makes the Nodes and the policy with everybody's keys.
func (c *cluster) populate(ctx context.Context) error {
	for _, name := range living {
		node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": name}}}
		if _, err := c.client.Resource(apiserver.Nodes).Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node %s: %w", name, err)
		}
	}
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(apiserver.TopologyAwarePolicyCRD), &definition.Object); err != nil {
		return err
	}
	if _, err := c.client.Resource(apiserver.CRDs).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("define the policy resource: %w", err)
	}

	c.wrote = map[string]any{}
	for i, name := range append(slices.Clone(living), departed...) {
		c.wrote[name] = map[string]any{
			"status": "Success", "generation": int64(i + 1), "errors": "", "timestamp": time.Now().UTC().Format(time.RFC3339),
		}
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy",
		"metadata": map[string]any{"name": policy, "namespace": namespace}, "spec": map[string]any{},
	}}
	if err := c.createPolicy(ctx, object); err != nil {
		return err
	}
	object.Object["status"] = map[string]any{"nodes": c.wrote}
	return retry(ctx, "write the keys", func() error {
		current, err := c.policy(ctx)
		if err != nil {
			return err
		}
		object.SetResourceVersion(current.GetResourceVersion())
		_, err = c.client.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
		return err
	})
}

// createPolicy waits until the API server serves what was defined a moment ago, and its own namespaces are made.
func (c *cluster) createPolicy(ctx context.Context, object *unstructured.Unstructured) error {
	return retry(ctx, "create the policy", func() error {
		_, err := c.client.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
}

// retry calls f until it succeeds, for a minute at most.
func retry(ctx context.Context, what string, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (c *cluster) policy(ctx context.Context) (*unstructured.Unstructured, error) {
	return c.client.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace).Get(ctx, policy, metav1.GetOptions{})
}

// keys are the policy's entries, read from the API server.
func (c *cluster) keys(ctx context.Context) (map[string]any, error) {
	object, err := c.policy(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the policy: %w", err)
	}
	keys, _, err := unstructured.NestedMap(object.Object, "status", "nodes")
	return keys, err
}

// show prints the Nodes beside the keys.
func (c *cluster) show(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	nodes, err := c.client.Resource(apiserver.Nodes).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	exists := map[string]bool{}
	for _, node := range nodes.Items {
		exists[node.GetName()] = true
	}
	fmt.Printf("\n    %-8s  %-8s  %s\n", "NAME", "NODE", "KEY IN "+namespace+"/"+policy+" status.nodes")
	for _, name := range append(slices.Clone(living), departed...) {
		node, key := "-", "-"
		if exists[name] {
			node = "exists"
		}
		if entry, ok := keys[name].(map[string]any); ok {
			key = fmt.Sprintf("%v, generation %v", entry["status"], entry["generation"])
			if !exists[name] {
				key += "   ← stale"
			}
		}
		fmt.Printf("    %-8s  %-8s  %s\n", name, node, key)
	}
	fmt.Println()
	return nil
}

// expect checks which keys there are.
func (c *cluster) expect(ctx context.Context, what string, want []string) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	if got := slices.Sorted(maps.Keys(keys)); !slices.Equal(got, want) {
		return fmt.Errorf("%s: the keys are %s, not %s", what, strings.Join(got, " "), strings.Join(want, " "))
	}
	fmt.Println("    ✓", what)
	return nil
}

// expectUntouched checks that the entries that are left are those that were written.
func (c *cluster) expectUntouched(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	for name, entry := range keys {
		if !reflect.DeepEqual(entry, c.wrote[name]) {
			return fmt.Errorf("the entry of %s changed from %v to %v", name, c.wrote[name], entry)
		}
	}
	fmt.Println("    ✓ what is left is what the nodes wrote")
	return nil
}
