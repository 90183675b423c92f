package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// The definition keeps all that agents write, and takes nothing else.
func TestCRDKeepsAndRefuses(t *testing.T) {
	printed := runProgram(t, "crd")
	printed.want(t, 0)
	definition, report, found := strings.Cut(printed.stdout, "\n---\n")
	if !found || strings.Contains(report, "---") {
		t.Fatalf("it prints no two documents:\n%s", printed.stdout)
	}
	server := apiserver.Shared(t)
	server.Install(t, definition)
	server.Apply(t, "", report)

	full := map[string]any{
		"nodes": map[string]any{"node-1": map[string]any{
			"status": "Failure", "generation": int64(2), "config": "0123456789ab", "errors": strings.Repeat("é", 100),
			"timestamp": "2026-07-01T12:00:00Z", "nodeUID": "u1",
		}},
		"targets": map[string]any{"nri": map[string]any{
			"state": "OK", "owner": "", "keys": int64(5), "candidates": int64(1), "removed": int64(2), "held": int64(0), "message": "",
			"lastSweep": "2026-07-01T12:00:00Z", "resources": map[string]any{"ns/default": map[string]any{
				"state": "OK", "owner": "node-1", "keys": int64(5), "candidates": int64(1), "removed": int64(2), "held": int64(0), "message": "",
				"lastSweep": "2026-07-01T12:00:00Z",
			}},
		}},
		"recovery": map[string]any{"highWaterMark": int64(12), "lastDeletion": "2026-07-01T12:00:00Z"},
		"conditions": []any{map[string]any{
			"type": "NodesComplete", "status": "True", "reason": "AllNodes", "message": "", "lastTransitionTime": "2026-07-01T12:00:00Z",
		}},
	}
	set := server.SetStatus(t, status.SweepReports, "", "unstale", full)
	if got, want := asYAML(t, set.Object["status"]), asYAML(t, full); got != want {
		t.Errorf("the status is not kept as it is written:\n%s\nwritten:\n%s", got, want)
	}

	for name, bad := range map[string]map[string]any{
		"a state of a node that is none": {"status": "Perhaps"},
		"errors without end":             {"status": "Failure", "errors": strings.Repeat("x", 300)},
		"no status":                      {"generation": int64(1)},
		"a time that is none":            {"status": "Success", "timestamp": "yesterday"},
	} {
		object := server.Get(t, status.SweepReports, "", "unstale")
		object.Object["status"] = map[string]any{"nodes": map[string]any{"node-1": bad}}
		if _, err := server.Dynamic().Resource(status.SweepReports).UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err == nil {
			t.Errorf("%s is taken", name)
		}
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
