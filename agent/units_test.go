package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/status"
)

func TestUnits(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	for _, test := range []struct {
		name   string
		target status.Target
		want   []string // key, name, names to look at, others
	}{
		{"all", status.Target{Resource: widgets}, []string{"example.com/widgets// / [] []"}},
		{"all of a namespace", status.Target{Resource: widgets, Namespace: "ns"}, []string{"example.com/widgets/ns/ / [] []"}},
		{"named, but perhaps in many namespaces", status.Target{Resource: widgets, Names: []string{"a"}}, []string{"example.com/widgets// / [a] []"}},
		{"one", status.Target{Resource: widgets, Namespace: "ns", Names: []string{"a"}}, []string{"example.com/widgets/ns/a ns/a [a] []"}},
		{"cluster-scoped", status.Target{Resource: widgets, Names: []string{"a"}, ClusterScoped: true}, []string{"example.com/widgets//a /a [a] []"}},
		{"several", status.Target{Resource: widgets, Namespace: "ns", Names: []string{"a", "b", "c"}}, []string{
			"example.com/widgets/ns/a ns/a [a] [ns/b ns/c]",
			"example.com/widgets/ns/b ns/b [b] [ns/a ns/c]",
			"example.com/widgets/ns/c ns/c [c] [ns/a ns/b]",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := slices.Clone(test.target.Names)
			var got []string
			ids := map[string]bool{}
			for _, u := range unitsOf(test.target) {
				got = append(got, fmt.Sprintf("%s %s %v %v", u.key, u.name, u.target.Names, u.others))
				ids[u.id()] = true
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			if len(ids) != len(got) {
				t.Errorf("units with the same id: %v", ids)
			}
			if !slices.Equal(before, test.target.Names) {
				t.Errorf("the target's names changed to %v", test.target.Names)
			}
		})
	}

	// The version is no part of the key: agents may be configured for different ones during an upgrade of the resource.
	newer := widgets
	newer.Version = "v2"
	if a, b := unitsOf(status.Target{Resource: widgets}), unitsOf(status.Target{Resource: newer}); a[0].key != b[0].key {
		t.Errorf("%s and %s have different owners", a[0].key, b[0].key)
	}
}
