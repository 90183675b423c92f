package main

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/deploy"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// installCRD creates what the program prints, in two steps as its help says.
func installCRD(t *testing.T) *apiserver.Server {
	t.Helper()
	printed := runProgram(t, "crd")
	printed.want(t, 0)
	definition, report, found := strings.Cut(printed.stdout, "\n---\n")
	if !found || strings.Contains(report, "---") {
		t.Fatalf("it prints no two documents:\n%s", printed.stdout)
	}
	server := apiserver.Shared(t)
	server.Install(t, definition)
	server.Apply(t, "", report)
	return server
}

// The definition keeps all that agents write, and takes nothing else.
func TestCRDKeepsAndRefuses(t *testing.T) {
	server := installCRD(t)
	const many = int64(1) << 40 // more than 32 bits hold
	full := map[string]any{
		"nodes": map[string]any{"node-1": map[string]any{
			"status": "Failure", "generation": many, "config": "0123456789ab", "errors": strings.Repeat("é", 100),
			"timestamp": "2026-07-01T12:00:00Z", "nodeUID": "u1",
		}},
		"targets": map[string]any{"nri": map[string]any{
			"state": "OK", "owner": "", "keys": many, "candidates": many, "removed": many, "held": many, "message": "",
			"lastSweep": "2026-07-01T12:00:00Z", "resources": map[string]any{"ns/default": map[string]any{
				"state": "OK", "owner": "node-1", "keys": many, "candidates": many, "removed": many, "held": many, "message": "",
				"lastSweep": "2026-07-01T12:00:00Z",
			}},
		}},
		"recovery": map[string]any{"highWaterMark": many, "lastDeletion": "2026-07-01T12:00:00Z"},
		"conditions": []any{map[string]any{
			"type": "NodesComplete", "status": "True", "reason": "AllNodes", "message": "", "lastTransitionTime": "2026-07-01T12:00:00Z",
			"observedGeneration": many,
		}},
	}
	set := server.SetStatus(t, status.SweepReports, "", "unstale", full)
	if got, want := asYAML(t, set.Object["status"]), asYAML(t, full); got != want {
		t.Errorf("the status is not kept as it is written:\n%s\nwritten:\n%s", got, want)
	}

	node := func(entry map[string]any) map[string]any {
		return map[string]any{"nodes": map[string]any{"node-1": entry}}
	}
	condition := func(is, at string) map[string]any {
		return map[string]any{"type": "NodesComplete", "status": is, "reason": "AllNodes", "message": "", "lastTransitionTime": at}
	}
	for name, bad := range map[string]map[string]any{
		"a state of a node that is none":     node(map[string]any{"status": "Perhaps"}),
		"errors without end":                 node(map[string]any{"status": "Failure", "errors": strings.Repeat("x", 257)}),
		"no status":                          node(map[string]any{"generation": int64(1)}),
		"a time that is none":                node(map[string]any{"status": "Success", "timestamp": "yesterday"}),
		"a sweep at a time that is none":     {"targets": map[string]any{"nri": map[string]any{"lastSweep": "yesterday"}}},
		"a deletion at a time that is none":  {"recovery": map[string]any{"lastDeletion": "yesterday"}},
		"a condition that is perhaps so":     {"conditions": []any{condition("Perhaps", "2026-07-01T12:00:00Z")}},
		"a condition at a time that is none": {"conditions": []any{condition("True", "yesterday")}},
		"two conditions of one type": {"conditions": []any{
			condition("True", "2026-07-01T12:00:00Z"), condition("False", "2026-07-01T12:00:00Z"),
		}},
	} {
		object := server.Get(t, status.SweepReports, "", "unstale")
		object.Object["status"] = bad
		_, err := server.Dynamic().Resource(status.SweepReports).UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
		if !apierrors.IsInvalid(err) {
			t.Errorf("%s is taken: %v", name, err)
		}
	}
}

// Thousands of nodes would otherwise stand in managedFields once more.
func TestCRDKeepsNodesOutOfManagedFields(t *testing.T) {
	server := installCRD(t)
	// The server keeps managedFields only for objects whose creator set a field. kubectl apply does: it adds an annotation.
	server.Apply(t, "", deploy.SweepReport+"  annotations: {applied: by-a-person}\n")
	server.SetStatus(t, status.SweepReports, "", "unstale", map[string]any{
		"nodes": map[string]any{"node-1": map[string]any{"status": "Success"}},
	})
	written, err := server.Dynamic().Resource(status.SweepReports).Get(t.Context(), "unstale", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fields := asYAML(t, written.GetManagedFields())
	if !strings.Contains(fields, "f:nodes: {}") || strings.Contains(fields, "node-1") {
		t.Errorf("managedFields name each node:\n%s", fields)
	}
}

// kubectl get shows whether all agents' keys are there.
func TestCRDShowsWhetherAllNodesAreThere(t *testing.T) {
	server := installCRD(t)
	server.SetStatus(t, status.SweepReports, "", "unstale", map[string]any{"conditions": []any{map[string]any{
		"type": "NodesComplete", "status": "False", "reason": "TooManyNodes", "message": "", "lastTransitionTime": "2026-07-01T12:00:00Z",
	}}})
	client, err := rest.HTTPClientFor(server.Config())
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.Config().Host+"/apis/unstale.dev/v1alpha1/sweepreports/unstale", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var table metav1.Table
	if err := json.NewDecoder(response.Body).Decode(&table); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, column := range table.ColumnDefinitions {
		names = append(names, column.Name)
	}
	if !slices.Equal(names, []string{"Name", "Complete", "Age"}) || len(table.Rows) != 1 {
		t.Fatalf("columns %v, %d rows", names, len(table.Rows))
	}
	if got := table.Rows[0].Cells[1]; got != "False" {
		t.Errorf("Complete is %v, want False", got)
	}
}

func asYAML(t *testing.T, value any) string {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// kubectl explain has a word for each field.
func TestCRDDescribesEachField(t *testing.T) {
	definition, _, _ := strings.Cut(runProgram(t, "crd").stdout, "\n---\n")
	var crd struct {
		Spec struct {
			Versions []struct {
				Schema struct {
					OpenAPIV3Schema map[string]any `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(definition), &crd); err != nil || len(crd.Spec.Versions) != 1 {
		t.Fatalf("%d versions, %v", len(crd.Spec.Versions), err)
	}
	fields := 0
	var look func(at string, schema map[string]any)
	look = func(at string, schema map[string]any) {
		for _, inner := range []string{"additionalProperties", "items"} {
			if s, ok := schema[inner].(map[string]any); ok {
				look(at+"[]", s)
			}
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, value := range properties {
			field, _ := value.(map[string]any)
			path := at + "." + name
			switch path { // kubectl has the same words for these of all objects
			case ".apiVersion", ".kind", ".metadata":
				continue
			}
			if fields++; field["description"] == nil {
				t.Errorf("%s has no description", path)
			}
			look(path, field)
		}
	}
	look("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
	if fields < 30 {
		t.Errorf("only %d fields were looked at", fields)
	}
}

func TestCRDSaysThatItTakesTwoSteps(t *testing.T) {
	runProgram(t, "crd", "--help").want(t, 0, "kubectl wait", "apply twice")
	runProgram(t, "crd", "unstale").want(t, exitUsage)
}
