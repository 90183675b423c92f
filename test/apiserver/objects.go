package apiserver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

var serial atomic.Int64

// Unique is base with a number that no other call in this process got. The result is a valid name of an object where
// base is nearly one.
func Unique(base string) string {
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(base))
	clean = strings.Trim(clean[:min(len(clean), 50)], "-")
	return fmt.Sprintf("%s-%d", cmp.Or(clean, "x"), serial.Add(1))
}

// Namespace makes a namespace for this test, with the service account that pods need, and returns its name. It stays
// until the server ends: nothing here finishes the deletion of a namespace.
func (s *Server) Namespace(t testing.TB) string {
	t.Helper()
	name := Unique(t.Name())
	s.Apply(t, "", fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: %s}
`, name, name))
	return name
}

// Apply creates the objects in a YAML text, or makes them what it says, status included, and returns them as they are
// then. Namespaced objects that name no namespace go to namespace.
func (s *Server) Apply(t testing.TB, namespace, text string) []*unstructured.Unstructured {
	t.Helper()
	var applied []*unstructured.Unstructured
	for _, obj := range decodeYAML(t, text) {
		out, err := s.apply(namespace, obj)
		if err != nil {
			t.Fatalf("apply %s %s: %v", obj.GetKind(), obj.GetName(), err)
		}
		applied = append(applied, out)
	}
	return applied
}

func decodeYAML(t testing.TB, text string) []*unstructured.Unstructured {
	t.Helper()
	var objs []*unstructured.Unstructured
	for decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096); ; {
		obj := &unstructured.Unstructured{}
		err := decoder.Decode(&obj.Object)
		if err == io.EOF {
			return objs
		}
		if err != nil {
			t.Fatalf("decode YAML: %v", err)
		}
		if len(obj.Object) > 0 {
			objs = append(objs, obj)
		}
	}
}

func (s *Server) apply(namespace string, obj *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	gv, err := schema.ParseGroupVersion(obj.GetAPIVersion())
	if err != nil {
		return nil, err
	}
	served, err := s.served(gv)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(served, func(r metav1.APIResource) bool {
		return r.Kind == obj.GetKind() && !strings.Contains(r.Name, "/")
	})
	if i < 0 {
		return nil, fmt.Errorf("%s serves no such kind", gv)
	}
	resource := served[i]
	if resource.Namespaced && obj.GetNamespace() == "" {
		obj.SetNamespace(namespace)
	}
	client := s.resource(gv.WithResource(resource.Name), obj.GetNamespace())
	out, err := client.Apply(context.Background(), obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "test", Force: true})
	if err != nil {
		return nil, err
	}
	hasStatus := slices.ContainsFunc(served, func(r metav1.APIResource) bool { return r.Name == resource.Name+"/status" })
	if status, ok := obj.Object["status"]; ok && hasStatus {
		return replaceStatus(client, obj.GetName(), status)
	}
	return out, nil
}

// served lists the resources of a group and version.
func (s *Server) served(gv schema.GroupVersion) ([]metav1.APIResource, error) {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	status, body, err := s.get(path)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("get %s: status %d: %s", path, status, body)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("decode %s: %w", path, err)
	}
	return list.APIResources, nil
}

// get asks for a path as it is.
func (s *Server) get(path string) (status int, body []byte, err error) {
	req, err := http.NewRequest(http.MethodGet, s.config.Host+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// GetJSON is what the server answers at a path such as /apis/config.nri/v1alpha1/topologyawarepolicies.
func (s *Server) GetJSON(t testing.TB, path string) []byte {
	t.Helper()
	status, body, err := s.get(path)
	if err != nil {
		t.Fatalf("get %s: %v", path, err)
	}
	if status != http.StatusOK {
		t.Fatalf("get %s: status %d: %s", path, status, body)
	}
	return body
}

// resource is a client for a resource; an empty namespace means a cluster-scoped one, or all namespaces.
func (s *Server) resource(gvr schema.GroupVersionResource, namespace string) dynamic.ResourceInterface {
	if namespace == "" {
		return s.dynamic.Resource(gvr)
	}
	return s.dynamic.Resource(gvr).Namespace(namespace)
}

// Get reads an object.
func (s *Server) Get(t testing.TB, gvr schema.GroupVersionResource, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := s.resource(gvr, namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s %s/%s: %v", gvr.Resource, namespace, name, err)
	}
	return obj
}

// Exists tells whether the object is there.
func (s *Server) Exists(t testing.TB, gvr schema.GroupVersionResource, namespace, name string) bool {
	t.Helper()
	_, err := s.resource(gvr, namespace).Get(context.Background(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatalf("get %s %s/%s: %v", gvr.Resource, namespace, name, err)
	}
	return err == nil
}

// Delete deletes an object, at once and without grace, and waits until it is gone.
func (s *Server) Delete(t testing.TB, gvr schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	if err := s.delete(gvr, namespace, name); err != nil {
		t.Fatalf("delete %s %s/%s: %v", gvr.Resource, namespace, name, err)
	}
	Eventually(t, "the end of "+name, func() error {
		if s.Exists(t, gvr, namespace, name) {
			return errors.New("still there")
		}
		return nil
	})
}

func (s *Server) delete(gvr schema.GroupVersionResource, namespace, name string) error {
	atOnce := int64(0)
	return s.resource(gvr, namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &atOnce})
}

// SetStatus replaces the whole status of an object with status, which is what encoding/json makes of a JSON object.
func (s *Server) SetStatus(t testing.TB, gvr schema.GroupVersionResource, namespace, name string, status map[string]any) *unstructured.Unstructured {
	t.Helper()
	out, err := replaceStatus(s.resource(gvr, namespace), name, status)
	if err != nil {
		t.Fatalf("set the status of %s %s/%s: %v", gvr.Resource, namespace, name, err)
	}
	return out
}

func replaceStatus(client dynamic.ResourceInterface, name string, status any) (*unstructured.Unstructured, error) {
	// JSON turns int into the int64 and float64 that the client's deep copies insist on.
	text, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	for {
		obj, err := client.Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		holder := &unstructured.Unstructured{}
		whole := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"status":%s}`, obj.GetAPIVersion(), obj.GetKind(), text)
		if err := holder.UnmarshalJSON([]byte(whole)); err != nil {
			return nil, err
		}
		obj.Object["status"] = holder.Object["status"]
		out, err := client.UpdateStatus(context.Background(), obj, metav1.UpdateOptions{FieldManager: "test"})
		if !apierrors.IsConflict(err) {
			return out, err
		}
	}
}

// PatchStatus sends a merge patch to the status subresource, such as {"status":{"nodes":{"a":null}}}.
func (s *Server) PatchStatus(t testing.TB, gvr schema.GroupVersionResource, namespace, name, patch string) *unstructured.Unstructured {
	t.Helper()
	out, err := s.resource(gvr, namespace).Patch(context.Background(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "test"}, "status")
	if err != nil {
		t.Fatalf("patch the status of %s %s/%s: %v", gvr.Resource, namespace, name, err)
	}
	return out
}

// CreateNode makes a Node, which is deleted when the test ends.
func (s *Server) CreateNode(t testing.TB, name string, labels map[string]string) *unstructured.Unstructured {
	t.Helper()
	out, err := s.createNode(name, labels)
	if err != nil {
		t.Fatal(err)
	}
	s.deleteNodesAtEnd(t, name)
	return out
}

// CreateNodes makes plain Nodes, several at a time, which are deleted when the test ends.
func (s *Server) CreateNodes(t testing.TB, names ...string) {
	t.Helper()
	s.deleteNodesAtEnd(t, names...)
	err := inParallel(names, func(name string) error {
		_, err := s.createNode(name, nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (s *Server) createNode(name string, labels map[string]string) (*unstructured.Unstructured, error) {
	node := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Node"}}
	node.SetName(name)
	node.SetLabels(labels)
	out, err := s.resource(Nodes, "").Create(context.Background(), node, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create node %s: %w", name, err)
	}
	return out, nil
}

func (s *Server) deleteNodesAtEnd(t testing.TB, names ...string) {
	t.Cleanup(func() {
		err := inParallel(names, func(name string) error {
			if err := s.delete(Nodes, "", name); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete node %s: %w", name, err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// inParallel calls f for each name and returns what failed when all calls have ended.
func inParallel(names []string, f func(string) error) error {
	next := make(chan string)
	errs := make([]error, min(16, len(names)))
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for name := range next {
				errs[i] = errors.Join(errs[i], f(name))
			}
		})
	}
	for _, name := range names {
		next <- name
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}

// DeleteNode deletes a Node.
func (s *Server) DeleteNode(t testing.TB, name string) {
	t.Helper()
	s.Delete(t, Nodes, "", name)
}

// CreatePod makes a pod that is bound to a node, which need not exist. Nothing runs it: its phase is what SetStatus says.
func (s *Server) CreatePod(t testing.TB, namespace, name, node string, labels map[string]string) *unstructured.Unstructured {
	t.Helper()
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"spec": map[string]any{
			"nodeName":   node,
			"containers": []any{map[string]any{"name": "c", "image": "none"}},
		},
	}}
	pod.SetName(name)
	pod.SetLabels(labels)
	out, err := s.resource(Pods, namespace).Create(context.Background(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod %s/%s: %v", namespace, name, err)
	}
	return out
}

// Install applies a CustomResourceDefinition and waits until it is established, each of its served versions answers a
// list, and each other one no longer does. Tests may install the same definition again and at the same time.
func (s *Server) Install(t testing.TB, text string) {
	t.Helper()
	for _, crd := range s.Apply(t, "", text) {
		name := crd.GetName()
		group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
		plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
		Eventually(t, name+" to be established", func() error {
			conditions, _, _ := unstructured.NestedSlice(s.Get(t, CRDs, "", name).Object, "status", "conditions")
			for _, c := range conditions {
				if c := c.(map[string]any); c["type"] == "Established" && c["status"] == "True" {
					return nil
				}
			}
			return fmt.Errorf("conditions: %v", conditions)
		})
		for _, v := range versions {
			v := v.(map[string]any)
			gvr := schema.GroupVersionResource{Group: group, Version: v["name"].(string), Resource: plural}
			want := http.StatusOK
			if v["served"] != true {
				want = http.StatusNotFound
			}
			s.waitServed(t, gvr, want)
		}
	}
}

// Uninstall deletes a CustomResourceDefinition with all its objects and waits until the server no longer knows the resource.
func (s *Server) Uninstall(t testing.TB, gvr schema.GroupVersionResource) {
	t.Helper()
	s.Delete(t, CRDs, "", gvr.GroupResource().String())
	s.waitServed(t, gvr, http.StatusNotFound)
}

// waitServed waits until a list of the resource is answered with the status, and discovery agrees.
func (s *Server) waitServed(t testing.TB, gvr schema.GroupVersionResource, want int) {
	t.Helper()
	path := "/apis/" + gvr.GroupVersion().String() + "/" + gvr.Resource + "?limit=1"
	Eventually(t, fmt.Sprintf("%s to answer %d", path, want), func() error {
		status, body, err := s.get(path)
		if err != nil {
			return err
		}
		if status != want {
			return fmt.Errorf("status %d: %s", status, body)
		}
		resources, err := s.served(gvr.GroupVersion())
		listed := slices.ContainsFunc(resources, func(r metav1.APIResource) bool { return r.Name == gvr.Resource })
		if want == http.StatusOK && !listed {
			return fmt.Errorf("not in the list of resources: %w", err)
		}
		if want != http.StatusOK && listed {
			return errors.New("still in the list of resources")
		}
		return nil
	})
}
