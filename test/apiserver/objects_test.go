package apiserver_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/test/apiserver"
)

func TestSharedIsTheSameServer(t *testing.T) {
	t.Parallel()
	first := apiserver.Shared(t)
	if apiserver.Shared(t) != first {
		t.Error("two calls gave two servers")
	}
}

func TestServerIsTheKubernetesThatTheProjectNames(t *testing.T) {
	t.Parallel()
	var version struct{ GitVersion string }
	if err := json.Unmarshal(apiserver.Shared(t).GetJSON(t, "/version"), &version); err != nil {
		t.Fatal(err)
	}
	if want := "v1.37.2"; version.GitVersion != want {
		t.Errorf("version %s, want %s", version.GitVersion, want)
	}
}

func TestConfigIsACopyWithoutALimit(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	c := s.Config()
	if c.QPS >= 0 {
		t.Errorf("QPS %v, want none", c.QPS)
	}
	c.Host = "elsewhere"
	if s.Config().Host == "elsewhere" {
		t.Error("a change of one Config shows in the next")
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	s.Install(t, apiserver.TopologyAwarePolicyCRD)
	ns := s.Namespace(t)
	const text = `
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec: {pinCPU: true}
status:
  nodes:
    a: {status: Success, generation: 1, errors: "", timestamp: "2026-01-02T03:04:05Z"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {k: v}
`
	objs := s.Apply(t, ns, text)
	if len(objs) != 2 || objs[0].GetNamespace() != ns || objs[1].GetKind() != "ConfigMap" {
		t.Fatalf("applied %v", objs)
	}
	got := s.Get(t, apiserver.TopologyAwarePolicies, ns, "default")
	if nodes := statusNodes(got); !reflect.DeepEqual(nodes, []string{"a"}) {
		t.Errorf("status.nodes has %v, want a", nodes)
	}
	s.Apply(t, ns, strings.Replace(text, "    a:", "    b:", 1))
	got = s.Get(t, apiserver.TopologyAwarePolicies, ns, "default")
	if nodes := statusNodes(got); !reflect.DeepEqual(nodes, []string{"b"}) {
		t.Errorf("applied again, status.nodes has %v, want b alone", nodes)
	}
}

func TestSetStatusReplacesAndPatchStatusMerges(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	s.Install(t, apiserver.TopologyAwarePolicyCRD)
	ns := s.Namespace(t)
	s.Apply(t, ns, "{apiVersion: config.nri/v1alpha1, kind: TopologyAwarePolicy, metadata: {name: p}, spec: {}}")
	entry := map[string]any{"status": "Success", "generation": 1}
	for _, names := range [][]string{{"a", "b"}, {"c", "d"}} {
		nodes := map[string]any{}
		for _, name := range names {
			nodes[name] = entry
		}
		got := statusNodes(s.SetStatus(t, apiserver.TopologyAwarePolicies, ns, "p", map[string]any{"nodes": nodes}))
		if !sameNames(got, names) {
			t.Errorf("status.nodes has %v, want %v", got, names)
		}
	}
	got := statusNodes(s.PatchStatus(t, apiserver.TopologyAwarePolicies, ns, "p", `{"status":{"nodes":{"c":null}}}`))
	if !sameNames(got, []string{"d"}) {
		t.Errorf("after the patch status.nodes has %v, want d", got)
	}
}

func statusNodes(obj *unstructured.Unstructured) []string {
	nodes, _, _ := unstructured.NestedMap(obj.Object, "status", "nodes")
	var names []string
	for name := range nodes {
		names = append(names, name)
	}
	return names
}

func sameNames(a, b []string) bool {
	set := map[string]bool{}
	for _, name := range a {
		set[name] = true
	}
	for _, name := range b {
		if !set[name] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestCRDsRejectWhatTheirFieldsDoNotAllow(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	s.Install(t, apiserver.TopologyAwarePolicyCRD)
	s.Install(t, apiserver.NodeFeatureGroupCRD)
	ns := s.Namespace(t)
	s.Apply(t, ns, `
{apiVersion: config.nri/v1alpha1, kind: TopologyAwarePolicy, metadata: {name: x}, spec: {}}
---
{apiVersion: nfd.k8s-sigs.io/v1alpha1, kind: NodeFeatureGroup, metadata: {name: x}, status: {nodes: [{name: a}]}}
`)
	for _, c := range []struct {
		name   string
		gvr    schema.GroupVersionResource
		status any
	}{
		{"no nodes", apiserver.TopologyAwarePolicies, map[string]any{}},
		{"unknown status", apiserver.TopologyAwarePolicies, map[string]any{
			"nodes": map[string]any{"a": map[string]any{"status": "Maybe", "generation": int64(1)}},
		}},
		{"an item without a name", apiserver.NodeFeatureGroups, map[string]any{"nodes": []any{map[string]any{}}}},
	} {
		obj := s.Get(t, c.gvr, ns, "x")
		obj.Object["status"] = c.status
		_, err := s.Dynamic().Resource(c.gvr).Namespace(ns).UpdateStatus(t.Context(), obj, metav1.UpdateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s: error %v, want Invalid", c.name, err)
		}
	}
}

func TestCRDOfATestsOwn(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	crd := apiserver.CRD{
		Group: apiserver.Unique("own") + ".example.com", Plural: "gadgets", Kind: "Gadget",
		Versions: []string{"v1", "v1beta1"}, ClusterScoped: true,
	}
	list := "/apis/" + crd.Group + "/%s/gadgets"
	s.Install(t, crd.YAML())
	s.Apply(t, "", fmt.Sprintf("{apiVersion: %s/v1beta1, kind: Gadget, metadata: {name: g}, status: {names: [a, b]}}", crd.Group))
	s.GetJSON(t, fmt.Sprintf(list, "v1beta1"))
	names, _, _ := unstructured.NestedStringSlice(s.Get(t, crd.GVR(), "", "g").Object, "status", "names")
	if !reflect.DeepEqual(names, []string{"a", "b"}) {
		t.Errorf("status.names %v, want a and b", names)
	}

	crd.Versions, crd.Unserved = []string{"v1"}, []string{"v1beta1"}
	s.Install(t, crd.YAML())
	beta := crd.GVR()
	beta.Version = "v1beta1"
	if _, err := s.Dynamic().Resource(beta).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list in the version that is gone: error %v, want NotFound", err)
	}

	s.Uninstall(t, crd.GVR())
	if _, err := s.Dynamic().Resource(crd.GVR()).List(t.Context(), metav1.ListOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("list after Uninstall: error %v, want NotFound", err)
	}
}

func TestCRDWithoutStatusSubresource(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	crd := apiserver.CRD{Group: apiserver.Unique("plain") + ".example.com", NoStatus: true}
	s.Install(t, crd.YAML())
	ns := s.Namespace(t)
	s.Apply(t, ns, fmt.Sprintf("{apiVersion: %s/v1, kind: Widget, metadata: {name: w}, status: {nodes: {a: {}}}}", crd.Group))
	obj := s.Get(t, crd.GVR(), ns, "w")
	if names := statusNodes(obj); !sameNames(names, []string{"a"}) {
		t.Errorf("status.nodes has %v, want a", names)
	}
	_, err := s.Dynamic().Resource(crd.GVR()).Namespace(ns).UpdateStatus(t.Context(), obj, metav1.UpdateOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("update of the status subresource: error %v, want NotFound", err)
	}
}

func TestNodesGoWithTheirTest(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	labelled, gone := apiserver.Unique("node"), apiserver.Unique("node")
	var many []string
	for range 40 {
		many = append(many, apiserver.Unique("many"))
	}
	t.Run("inner", func(t *testing.T) {
		s.CreateNode(t, labelled, map[string]string{"a": "b"})
		s.CreateNodes(t, append(many, gone)...)
		s.DeleteNode(t, gone)
		if got := s.Get(t, apiserver.Nodes, "", labelled).GetLabels()["a"]; got != "b" {
			t.Errorf("label %q, want b", got)
		}
		if s.Exists(t, apiserver.Nodes, "", gone) {
			t.Errorf("%s exists after DeleteNode", gone)
		}
		for _, name := range many {
			if !s.Exists(t, apiserver.Nodes, "", name) {
				t.Errorf("%s does not exist", name)
			}
		}
	})
	for _, name := range append(many, labelled, gone) {
		if s.Exists(t, apiserver.Nodes, "", name) {
			t.Errorf("%s exists after its test", name)
		}
	}
}

func TestPod(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	ns := s.Namespace(t)
	s.CreatePod(t, ns, "p", "no-such-node", map[string]string{"app": "x"})
	s.SetStatus(t, apiserver.Pods, ns, "p", map[string]any{"phase": "Running", "podIP": "10.0.0.1"})
	list, err := s.Dynamic().Resource(apiserver.Pods).Namespace(ns).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app=x", FieldSelector: "spec.nodeName=no-such-node,status.podIP=10.0.0.1,status.phase=Running",
	})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("found %d pods, error %v", len(list.Items), err)
	}
	s.Delete(t, apiserver.Pods, ns, "p")
}

func TestUniqueIsAName(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, base := range []string{"a", "a", "Test/With spaces,_", strings.Repeat("x", 200), "_"} {
		name := apiserver.Unique(base)
		if seen[name] || len(name) > 63 || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || name[0] == '-' {
			t.Errorf("Unique(%q) = %q", base, name)
		}
		seen[name] = true
	}
}
