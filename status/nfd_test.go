package status

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/unstale/unstale/test/apiserver"
)

// newNFDScene makes Nodes, and for each and for orphans an object of the resource with so many features; in a namespace of its own, if it has one.
func newNFDScene(t *testing.T, target Target, nodes, orphans, features int, object func(node string, features map[string]any) map[string]any) *scene {
	t.Helper()
	s := &scene{T: t, server: apiserver.Shared(t), now: noon, target: target}
	if s.target.Namespace == "own" {
		s.target.Namespace = s.server.Namespace(t)
	}
	for range nodes {
		s.existing = append(s.existing, apiserver.Unique("node"))
	}
	s.server.CreateNodes(t, s.existing...)
	elements := map[string]any{}
	for i := range features {
		elements[fmt.Sprintf("feature-%04d.example.com/of-this-node", i)] = strings.Repeat("x", 40)
	}
	all := slices.Clone(s.existing)
	for i := range orphans {
		all = append(all, fmt.Sprint("gone-", i))
	}
	for _, node := range all {
		o := &unstructured.Unstructured{Object: object(node, elements)}
		if _, err := s.server.Dynamic().Resource(target.Resource).Namespace(s.target.Namespace).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	s.proxy = s.server.Proxy(t)
	s.restart()
	return s
}

func objectTarget(resource Target, in NodeNameIn) Target {
	resource.Name, resource.Objects, resource.UnknownKeys, resource.Mode = "objects", &Objects{NodeName: in, DeletesPerSecond: 1000}, RemoveUnknown, Enforce
	resource.Grace, resource.MaxRemovals = time.Minute, 100
	return resource
}

// 300 orphaned NodeFeatures of 130 KB each, as Node Feature Discovery writes them: they go, the others stay. The API server sees pages, whose metadata is
// as large as the objects, with fewer and fewer objects.
func TestNodeFeatures(t *testing.T) {
	apiserver.Shared(t).Install(t, apiserver.NodeFeatureCRD)
	const nodes, orphans = 20, 300
	s := newNFDScene(t, objectTarget(Target{Resource: apiserver.NodeFeatures, Namespace: "own"}, NodeNameIn{Label: "nfd.node.kubernetes.io/node-name"}), nodes, orphans, 1300,
		func(node string, features map[string]any) map[string]any {
			return map[string]any{
				"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
				"metadata": map[string]any{
					"name": node, "labels": map[string]any{"nfd.node.kubernetes.io/node-name": node},
					"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nfd-worker", "uid": "1"}},
				},
				"spec": map[string]any{"features": map[string]any{"attributes": map[string]any{"all": map[string]any{"elements": features}}}},
			}
		})
	s.sweeper.client.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	report := s.sweep()
	s.state(report, OK)
	if report.Removed() != orphans || len(report.Resources) != nodes+orphans || report.Count(Keep) != nodes {
		t.Errorf("%d of %d removed, %d kept: %s", report.Removed(), len(report.Resources), report.Count(Keep), report.Message)
	}
	if left := len(strings.Fields(s.objects())); left != nodes {
		t.Errorf("%d are left", left)
	}
	var limits []int
	for _, r := range s.proxy.Matching("LIST nodefeatures.nfd.k8s-sigs.io") {
		limit, err := strconv.Atoi(r.Query.Get("limit"))
		if err != nil {
			t.Fatal(err)
		}
		limits = append(limits, limit)
	}
	if limits[0] != objectsPage || limits[1] != objectsPage/2 {
		t.Errorf("the pages asked for are %v", limits)
	}
	if _, received := s.proxy.Bytes(); received == 0 {
		t.Error("nothing was received")
	}
}

// NodeResourceTopologies are named after their nodes, and are in no namespace; nfd-topology-updater makes them belong to its own.
func TestNodeResourceTopologies(t *testing.T) {
	apiserver.Shared(t).Install(t, apiserver.NodeResourceTopologyCRD)
	namespace := apiserver.Shared(t).Get(t, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, "", "default")
	owner := []any{map[string]any{"apiVersion": "v1", "kind": "Namespace", "name": namespace.GetName(), "uid": string(namespace.GetUID())}}
	s := newNFDScene(t, objectTarget(Target{Resource: apiserver.NodeResourceTopologies}, NodeNameIn{Name: true}), 3, 5, 0, func(node string, _ map[string]any) map[string]any {
		return map[string]any{
			"apiVersion": "topology.node.k8s.io/v1alpha2", "kind": "NodeResourceTopology", "metadata": map[string]any{"name": node, "ownerReferences": owner},
			"topologyPolicies": []any{"SingleNUMANodeContainerLevel"},
			"zones":            []any{map[string]any{"name": "node-0", "type": "Node", "resources": []any{map[string]any{"name": "cpu", "capacity": "8", "allocatable": int64(8), "available": "4"}}}},
		}
	})
	report := s.sweep()
	s.state(report, OK)
	s.equal("left", s.objects(), "KEEP0 KEEP1 KEEP2")
	if report.Removed() != 5 {
		t.Errorf("%d removed", report.Removed())
	}
}
