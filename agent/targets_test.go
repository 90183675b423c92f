package agent

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/status"
)

func TestStatusTargets(t *testing.T) {
	c := mustParse(t, `
grace: 90s
maxRemovals: 7
statusKeys:
- name: policies
  resource: {group: config.nri, version: v1alpha1, resource: balloonspolicies}
  namespace: kube-system
  names: [default, node.a]
  paths:
  - path: status.nodes
  - path: status.groups[example.com/x].members
    listKey: name
  - path: status.names
    listKey: "."
  unknownKeys: Remove
`)
	compare(t, c.StatusTargets(), []status.Target{{
		Name:      "policies",
		Resource:  schema.GroupVersionResource{Group: "config.nri", Version: "v1alpha1", Resource: "balloonspolicies"},
		Namespace: "kube-system",
		Names:     []string{"default", "node.a"},
		Paths: []status.KeyPath{
			{Path: status.FieldPath{"status", "nodes"}},
			{Path: status.FieldPath{"status", "groups", "example.com/x", "members"}, ListKey: "name"},
			{Path: status.FieldPath{"status", "names"}, ListKey: status.ListOfStrings},
		},
		UnknownKeys: status.RemoveUnknown,
		Mode:        status.Enforce,
		Grace:       90 * time.Second,
		MaxRemovals: 7,
	}})
}

func TestTheMoreCautiousModeCounts(t *testing.T) {
	for _, test := range []struct{ top, target, want status.Mode }{
		{status.Enforce, status.Enforce, status.Enforce},
		{status.Enforce, status.Report, status.Report},
		{status.Report, status.Enforce, status.Report},
		{status.Report, status.Report, status.Report},
	} {
		c := mustParse(t, "mode: "+string(test.top)+"\npresets: [nfd]\nstatusKeys: [{name: a, resource: {version: v1, resource: things}, paths: [{path: status.nodes}], mode: "+string(test.target)+"}]")
		targets := c.StatusTargets()
		if got := targets[1].Mode; got != test.want {
			t.Errorf("%s above %s: got %s, want %s", test.top, test.target, got, test.want)
		}
		if got := targets[0].Mode; got != test.top {
			t.Errorf("%s above a preset's target: got %s", test.top, got)
		}
	}
}

// TestAnUnknownModeDoesNotWrite: what is neither mode must never write.
func TestAnUnknownModeDoesNotWrite(t *testing.T) {
	if got := moreCautious(status.Enforce, ""); got != status.Report {
		t.Errorf("got %s, want Report", got)
	}
}
