package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// Objects of a node go when its agent has left and its Node is gone, also at the next owner's hands; those of living nodes, and of a node whose agent only
// stops, stay. The SweepReport has the target.
func TestObjectsOfDepartedNodes(t *testing.T) {
	s := newScene(t)
	crd := apiserver.CRD{Group: apiserver.Unique("objects") + ".example.com", Kind: "Gadget", Plural: "gadgets", ClusterScoped: true}
	s.server.Install(t, crd.YAML())
	s.options = quick + fmt.Sprintf("\nnodeObjects:\n- name: gadgets\n  resource: {group: %s, version: v1, resource: gadgets}\n  nodeName: {label: example.com/node}\n  unknownKeys: Remove\n", crd.Group)
	names := []string{s.node(), s.node(), s.node()}
	create := func(name string) {
		s.server.Apply(t, "", fmt.Sprintf("apiVersion: %s/v1\nkind: Gadget\nmetadata: {name: of-%s, labels: {example.com/node: %s}}\n", crd.Group, name, name))
	}
	for _, name := range append(slices.Clone(names), "long-gone") {
		create(name)
	}
	await := func(what string, names ...string) {
		t.Helper()
		var want []string
		for _, name := range names {
			want = append(want, "of-"+name)
		}
		slices.Sort(want)
		apiserver.Eventually(t, what, func() error {
			list, err := s.server.Dynamic().Resource(crd.GVR()).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, o := range list.Items {
				got = append(got, o.GetName())
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				var said []string
				for _, m := range s.agents {
					if m.agent != nil {
						said = append(said, m.said()...)
					}
				}
				return fmt.Errorf("there are %v, want %v; the agents said:\n%s", got, want, strings.Join(said, "\n"))
			}
			return nil
		})
	}
	s.create(names...)
	s.startAll(names...)
	await("the object that nobody speaks for is gone", names...)
	owner := s.agents[names[0]]
	for _, m := range s.agents {
		for _, e := range m.logs.FilterMessage("owns").All() {
			if e.ContextMap()["target"] == "gadgets" {
				owner = m
			}
		}
	}
	owner.kill()
	s.server.DeleteNode(t, owner.name)
	left := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == owner.name })
	await("the killed owner's object is gone", left...)
	if err := s.agents[left[0]].stop(); err != nil {
		t.Error(err)
	}
	create("gone-later")
	await("an agent that only stops keeps its node's object, also when another one goes", left...)
}
