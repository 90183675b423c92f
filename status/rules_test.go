package status

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRules(t *testing.T) {
	things := schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "things"}
	for _, test := range []struct {
		name   string
		target Target
		want   string
	}{
		{"everywhere", Target{Resource: things}, `
{apiGroups: ["g.io"], resources: ["things"], verbs: ["get", "list"]} in a ClusterRole
{apiGroups: ["g.io"], resources: ["things/status"], verbs: ["patch"]} in a ClusterRole`},
		{"one namespace", Target{Resource: things, Namespace: "ns"}, `
{apiGroups: ["g.io"], resources: ["things"], verbs: ["get", "list"]} in a Role in namespace ns
{apiGroups: ["g.io"], resources: ["things/status"], verbs: ["patch"]} in a Role in namespace ns`},
		{"names in a namespace need no list", Target{Resource: things, Namespace: "ns", Names: []string{"a"}}, `
{apiGroups: ["g.io"], resources: ["things"], verbs: ["get"], resourceNames: ["a"]} in a Role in namespace ns
{apiGroups: ["g.io"], resources: ["things/status"], verbs: ["patch"], resourceNames: ["a"]} in a Role in namespace ns`},
		{"names anywhere", Target{Resource: things, Names: []string{"a"}}, `
{apiGroups: ["g.io"], resources: ["things"], verbs: ["get"], resourceNames: ["a"]} in a ClusterRole
{apiGroups: ["g.io"], resources: ["things"], verbs: ["list"]} in a ClusterRole
{apiGroups: ["g.io"], resources: ["things/status"], verbs: ["patch"], resourceNames: ["a"]} in a ClusterRole`},
		{"only reported", Target{Resource: things, Mode: Report}, `
{apiGroups: ["g.io"], resources: ["things"], verbs: ["get", "list"]} in a ClusterRole`},
	} {
		t.Run(test.name, func(t *testing.T) {
			var got strings.Builder
			for _, rule := range Rules(&test.target) {
				got.WriteString("\n" + rule.String())
			}
			if got.String() != test.want {
				t.Errorf("got %s\nwant %s", got.String(), test.want)
			}
		})
	}
}
