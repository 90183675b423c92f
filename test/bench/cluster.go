package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/test/apiserver"
)

// namespace holds the resources of the benchmarks.
const namespace = "bench"

const (
	// nodeWriters is how many Nodes are made at once.
	nodeWriters = 16
	// installLimit is how long the server may take to serve a new definition.
	installLimit = time.Minute
)

// A cluster is a control plane with a proxy for each side of a comparison.
type cluster struct {
	server *apiserver.Server
	client dynamic.Interface // past the proxies
	ours   side
	beside side
}

// A side is how the programs of one side reach the server.
type side struct {
	proxy      *apiserver.Proxy
	kubeconfig string // file
}

// startCluster starts a control plane with the definition of TopologyAwarePolicy. The flags are
// kube-apiserver's. Whoever gets a cluster closes it.
func (s *session) startCluster(ctx context.Context, flags ...string) (*cluster, error) {
	s.logf("start the control plane")
	server, err := apiserver.Launch(flags...)
	if err != nil {
		return nil, err
	}
	c := &cluster{server: server, client: server.Dynamic()}
	if err := c.prepare(ctx, s.scratch); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) prepare(ctx context.Context, scratch string) (err error) {
	if c.ours, err = c.newSide(filepath.Join(scratch, "kubeconfig-unstale")); err != nil {
		return err
	}
	if c.beside, err = c.newSide(filepath.Join(scratch, "kubeconfig-beside")); err != nil {
		return err
	}
	ns := &unstructured.Unstructured{}
	ns.SetAPIVersion("v1")
	ns.SetKind("Namespace")
	ns.SetName(namespace)
	if _, err := c.client.Resource(apiserver.Namespaces).Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", namespace, err)
	}
	return c.install(ctx, apiserver.TopologyAwarePolicyCRD)
}

func (c *cluster) newSide(kubeconfig string) (side, error) {
	proxy, err := apiserver.NewProxy(c.server.Config())
	if err != nil {
		return side{}, err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["bench"] = &clientcmdapi.Cluster{Server: proxy.Config().Host}
	config.AuthInfos["bench"] = &clientcmdapi.AuthInfo{Token: "unused"} // without one kubectl asks the terminal
	config.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	config.CurrentContext = "bench"
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		proxy.Close()
		return side{}, fmt.Errorf("write kubeconfig: %w", err)
	}
	return side{proxy, kubeconfig}, nil
}

// closing ends the cluster when a benchmark returns and joins what that comes to with *err.
func (c *cluster) closing(err *error) { *err = errors.Join(*err, c.close()) }

func (c *cluster) close() error {
	for _, s := range []side{c.ours, c.beside} {
		if s.proxy != nil {
			s.proxy.Close()
		}
	}
	return c.server.Close()
}

// install makes a definition and waits until its resource can be listed.
func (c *cluster) install(ctx context.Context, definition string) error {
	crd := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(definition), &crd.Object); err != nil {
		return fmt.Errorf("decode the definition: %w", err)
	}
	if _, err := c.client.Resource(apiserver.CRDs).Create(ctx, crd, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create %s: %w", crd.GetName(), err)
	}
	ctx, cancel := context.WithTimeout(ctx, installLimit)
	defer cancel()
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		_, err := c.policies().List(ctx, metav1.ListOptions{})
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be served: %w", crd.GetName(), err)
		case <-retry.C:
		}
	}
}

// createNodes makes Nodes, several at a time.
func (c *cluster) createNodes(ctx context.Context, nodes []*corev1.Node) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan *corev1.Node)
	var writers sync.WaitGroup
	for range nodeWriters {
		writers.Go(func() {
			for node := range next {
				if err := c.createNode(ctx, node); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, node := range nodes {
		if ctx.Err() != nil {
			break
		}
		next <- node
	}
	close(next)
	writers.Wait()
	return context.Cause(ctx)
}

func (c *cluster) createNode(ctx context.Context, node *corev1.Node) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(node)
	if err != nil {
		return fmt.Errorf("encode node %s: %w", node.Name, err)
	}
	_, err = c.client.Resource(apiserver.Nodes).Create(ctx, &unstructured.Unstructured{Object: content}, metav1.CreateOptions{FieldManager: "kubelet"})
	if err != nil {
		return fmt.Errorf("create node %s: %w", node.Name, err)
	}
	return nil
}

func (c *cluster) policies() dynamic.ResourceInterface {
	return c.client.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace)
}

// createPolicy makes a TopologyAwarePolicy with an entry for each key, written as the plugin's agents write theirs: to the
// status subresource, so that the resource's managedFields grow with them.
func (c *cluster) createPolicy(ctx context.Context, name string, keys []string) error {
	policy := &unstructured.Unstructured{}
	if err := json.Unmarshal(fmt.Appendf(nil, `{"apiVersion": "config.nri/v1alpha1", "kind": "TopologyAwarePolicy",
		"metadata": {"name": %q}, "spec": {"reservedResources": {"cpu": "750m"}}}`, name), &policy.Object); err != nil {
		return fmt.Errorf("encode policy %s: %w", name, err)
	}
	if _, err := c.policies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create policy %s: %w", name, err)
	}
	entries := map[string]any{}
	for _, key := range keys {
		entries[key] = entry()
	}
	return c.patchPolicy(ctx, name, "nri-resource-policy-topology-aware", entries)
}

// An entry is what an agent of the plugin writes of itself.
func entry() map[string]any {
	return map[string]any{"status": "Success", "generation": 3, "errors": "", "timestamp": "2026-07-01T12:00:00Z"}
}

// removeEntries takes entries out past the proxies, all at once.
func (c *cluster) removeEntries(ctx context.Context, name string, keys []string) error {
	entries := map[string]any{}
	for _, key := range keys {
		entries[key] = nil
	}
	return c.patchPolicy(ctx, name, "bench", entries)
}

func (c *cluster) patchPolicy(ctx context.Context, name, manager string, entries map[string]any) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"nodes": entries}})
	if err != nil {
		return fmt.Errorf("encode the patch of policy %s: %w", name, err)
	}
	_, err = c.policies().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager}, "status")
	if err != nil {
		return fmt.Errorf("patch policy %s: %w", name, err)
	}
	return nil
}

// takePolicy deletes a policy after it has looked at the keys that are left.
func (c *cluster) takePolicy(ctx context.Context, name string) (keys map[string]bool, err error) {
	policy, err := c.policies().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get policy %s: %w", name, err)
	}
	nodes, _, err := unstructured.NestedMap(policy.Object, "status", "nodes")
	if err != nil {
		return nil, fmt.Errorf("read policy %s: %w", name, err)
	}
	keys = map[string]bool{}
	for key := range nodes {
		keys[key] = true
	}
	if err := c.policies().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return nil, fmt.Errorf("delete policy %s: %w", name, err)
	}
	return keys, nil
}
