package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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
	create := func(name string) { s.gadget(crd, name) }
	for _, name := range append(slices.Clone(names), "long-gone") {
		create(name)
	}
	await := func(what string, names ...string) {
		t.Helper()
		s.awaitGadgets(crd, what, names...)
	}
	s.create(names...)
	s.startAll(names...)
	await("the object that nobody speaks for is gone", names...)
	owner := s.ownerOf("gadgets")
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

// gadget makes the object of a node.
func (s *scene) gadget(crd apiserver.CRD, node string) {
	s.Helper()
	s.server.Apply(s, "", fmt.Sprintf("apiVersion: %s/v1\nkind: Gadget\nmetadata: {name: of-%s, labels: {example.com/node: %s}}\n", crd.Group, node, node))
}

// awaitGadgets waits until there are objects of these nodes and no others.
func (s *scene) awaitGadgets(crd apiserver.CRD, what string, nodes ...string) {
	s.Helper()
	var want []string
	for _, node := range nodes {
		want = append(want, "of-"+node)
	}
	slices.Sort(want)
	apiserver.Eventually(s.T, what, func() error {
		list, err := s.server.Dynamic().Resource(crd.GVR()).List(s.Context(), metav1.ListOptions{})
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

// The objects of a node whose agent has died are looked for alone: also those that are younger than the last list of all, and once more an interval later
// what was written again.
func TestObjectsOfADepartedNodeAreLookedForAlone(t *testing.T) {
	s := newScene(t)
	crd := apiserver.CRD{Group: apiserver.Unique("alone") + ".example.com", Kind: "Gadget", Plural: "gadgets", ClusterScoped: true}
	s.server.Install(t, crd.YAML())
	s.options = "grace: 2s\nsweepInterval: 10s" + fmt.Sprintf("\nnodeObjects:\n- name: gadgets\n  resource: {group: %s, version: v1, resource: gadgets}\n  nodeName: {label: example.com/node}\n  unknownKeys: Remove\n", crd.Group)
	names := []string{s.node(), s.node(), s.node(), s.node()}
	for _, name := range names {
		s.gadget(crd, name)
	}
	s.create(names...)
	s.startAll(names...)
	s.awaitMembers(len(names))
	owner := s.ownerOf("gadgets")
	lists := func(selector string) (n int) {
		for _, r := range owner.proxy.Matching("LIST gadgets." + crd.Group) {
			if r.Query.Get("labelSelector") == selector && r.Done {
				n++
			}
		}
		return n
	}
	apiserver.Eventually(t, "the owner has listed all", func() error {
		if lists("") == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	whole, begun := lists(""), time.Now()
	var dying *member
	for _, m := range s.agents {
		if m != owner {
			dying = m
		}
	}
	left := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == dying.name })
	s.server.Delete(t, crd.GVR(), "", "of-"+dying.name)
	s.gadget(crd, dying.name)
	dying.kill()
	s.server.DeleteNode(t, dying.name)
	s.awaitGadgets(crd, "the object goes that no list of all has shown", left...)
	s.gadget(crd, dying.name)
	s.awaitGadgets(crd, "what was written again goes too", left...)
	if n := lists("example.com/node in (" + dying.name + ")"); n < 4 {
		t.Errorf("the dead node's objects were looked for %d times, not twice before each deletion", n)
	}
	if n := lists("") - whole; n > 0 && time.Since(begun) < wholeIntervals*9*time.Second {
		t.Errorf("all were listed %d times in %s", n, time.Since(begun))
	}
}
