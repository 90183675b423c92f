package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unstale/unstale/test/apiserver"
)

// plainPlanMode, as the only argument before a kubeconfig, makes this program the plain client that the benchmark plan
// measures. It has to be a process of its own, and needs to be no program of its own.
const plainPlanMode = "plain-plan"

// plainPlan does what unstale plan does, in the way that comes to mind first: list all Nodes, get the resource, compare.
// It reads Nodes as client-go's typed client does, which is the REST client and the scheme that are used here; the typed
// client itself would bring modules that nothing else in this module needs.
func plainPlan(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("usage: " + plainPlanMode + " KUBECONFIG")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	policies, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a dynamic client: %w", err)
	}
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	core, err := rest.RESTClientFor(config)
	if err != nil {
		return fmt.Errorf("make a client for Nodes: %w", err)
	}

	var nodes corev1.NodeList
	if err := core.Get().Resource("nodes").VersionedParams(&metav1.ListOptions{}, scheme.ParameterCodec).Do(ctx).Into(&nodes); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	policy, err := policies.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace).Get(ctx, policyName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get policy %s: %w", policyName, err)
	}
	entries, _, err := unstructured.NestedMap(policy.Object, "status", "nodes")
	if err != nil {
		return fmt.Errorf("read policy %s: %w", policyName, err)
	}
	exists := map[string]bool{}
	for _, node := range nodes.Items {
		exists[node.Name] = true
	}
	var orphans []string
	for key := range entries {
		if !exists[key] {
			orphans = append(orphans, key)
		}
	}
	slices.Sort(orphans)
	_, err = io.WriteString(stdout, plainPlanResult(len(entries), orphans))
	return err
}

// plainPlanResult is what the plain client prints.
func plainPlanResult(entries int, orphans []string) string {
	return fmt.Sprintf("%d keys, orphans: %q\n", entries, orphans)
}
