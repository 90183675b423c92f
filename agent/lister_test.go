package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// What lists have found is kept clean for its time, if the configuration has such a target and it may have such a resource.
func TestFound(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
	units := slices.Concat(
		unitsOf(status.Target{Name: "all", Resource: widgets}), unitsOf(status.Target{Name: "one-namespace", Resource: widgets, Namespace: "a"}),
		unitsOf(status.Target{Name: "one-name", Resource: widgets, Names: []string{"x"}}), unitsOf(status.Target{Name: "named", Resource: widgets, Namespace: "a", Names: []string{"x"}}),
		unitsOf(status.Target{Name: "objects", Resource: widgets, Objects: &status.Objects{}}),
	)
	if len(units) != 5 {
		t.Fatalf("%d units", len(units))
	}
	name := func(text string) types.NamespacedName {
		names, err := parseNames([]string{text})
		if err != nil {
			t.Fatal(err)
		}
		return names[0]
	}
	var f found
	warned, now := 0, time.Now()
	take := func(target string, d time.Duration, names ...string) bool {
		resources, err := parseNames(names)
		if err != nil {
			t.Fatal(err)
		}
		news, full := f.take(target, resources, resources, now.Add(d))
		if full {
			warned++
		}
		return news
	}
	have := func() string {
		all, next := f.with(units, now)
		var got []string
		for _, u := range all[len(units):] {
			if got = append(got, fmt.Sprint(u.target.Name, "=", u.name, " ", u.key, " ", u.resource())); !u.listed || u.lists() {
				t.Errorf("%+v", u)
			}
		}
		slices.Sort(got)
		if !next.IsZero() {
			got = append(got, next.Sub(now).String())
		}
		return strings.Join(got, "; ")
	}
	for _, target := range []string{"all", "one-namespace", "one-name", "named", "objects", "unknown"} {
		if !take(target, time.Minute, "a/x", "b/y") || take(target, 2*time.Minute, "a/x") {
			t.Errorf("%s: what is new is not told from what is not", target)
		}
	}
	const ax, by = "a/x example.com/widgets/a/x a/x", "b/y example.com/widgets/b/y b/y"
	if got, want := have(), "all="+ax+"; all="+by+"; one-name="+ax+"; one-namespace="+ax+"; 1m0s"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := f.others(&unit{target: units[0].target, name: name("a/x")}); fmt.Sprint(got) != "[]" {
		t.Errorf("others: %v", got) // the last message named only itself
	}
	now = now.Add(time.Minute)
	if got, want := have(), "all="+ax+"; one-name="+ax+"; one-namespace="+ax+"; 1m0s"; got != want {
		t.Errorf("later: got\n%s\nwant\n%s", got, want)
	}
	now = now.Add(time.Minute)
	if got := have(); got != "" || len(f.byName)+len(f.some) != 0 {
		t.Errorf("at the end: %s; %v", got, f.byName)
	}
	for i := range maxFound + 10 {
		take("all", time.Minute, fmt.Sprint("a/", i))
	}
	if n := len(f.byName["all"]); n != maxFound {
		t.Errorf("%d are remembered", n)
	}
	var known []string
	for i := range maxFound {
		known = append(known, fmt.Sprint("a/", i))
	}
	take("all", 2*time.Minute, append([]string{"a/new"}, known...)...)
	now = now.Add(time.Minute)
	have()
	if n := len(f.byName["all"]); n != maxFound {
		t.Errorf("%d are remembered after they were found again beside a new one", n)
	}
	if take("one-name", time.Minute, "a/x"); warned != 1 {
		t.Errorf("%d times it was said that there are too many", warned)
	}
}

// What is no name never becomes a part of a path.
func TestParseNames(t *testing.T) {
	for _, text := range []string{"a", "/", "a/", "../..", "../x", "ns/..", "/a?b", "a/b/c", "a b/c", "/.", "A/b", "/%2e%2e"} {
		if names, err := parseNames([]string{text}); err == nil {
			t.Errorf("%q gives %v", text, names)
		}
	}
	names, err := parseNames([]string{"/node.example.com", "/system:node", "ns/a"})
	if got := fmt.Sprint(names, err); got != `[/node.example.com ns/a] "/system:node" is no NAMESPACE/NAME` {
		t.Error(got)
	}
}

// Whatever a member sends, nothing panics, and only names are taken.
func FuzzOrder(f *testing.F) {
	f.Add(`{"target": "t", "resources": ["ns/a", "/b"], "others": ["ns/c"]}`)
	f.Add(`{"target": "t", "resources": ["a"], "others": null}`)
	f.Fuzz(func(t *testing.T, text string) {
		s := &sweeps{wake: make(chan struct{}, 1), log: zap.NewNop()}
		s.ordered(gossip.Message{Payload: json.RawMessage(text)})
		for _, names := range s.found.byName {
			for name := range names {
				if name.Name == "" || strings.ContainsAny(name.Name+name.Namespace, "/?#%") || strings.HasPrefix(name.Name, ".") {
					t.Errorf("took %v", name)
				}
			}
		}
	})
}

// A target that does not name its resources: one agent lists them, each one's owner keeps it clean, whoever comes and goes.
func TestEachFoundResourceHasAnOwner(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	crd := apiserver.CRD{Group: apiserver.Unique("found") + ".example.com"}
	s.server.Install(t, crd.YAML())
	s.found = fmt.Sprintf("\n- name: found\n  resource: {group: %s, version: v1, resource: widgets}\n  paths: [{path: status.nodes}]\n  unknownKeys: Remove", crd.Group)
	names := []string{s.node(), s.node(), s.node(), s.node()}
	create := func(resource string, keys ...string) {
		var entries []string
		for _, key := range keys {
			entries = append(entries, fmt.Sprintf("%q: %s", key, entryOf(key)))
		}
		s.server.Apply(t, s.namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: %s}\nstatus: {nodes: {%s}}\n", crd.Group, resource, strings.Join(entries, ", ")))
	}
	await := func(what, resource string, want ...string) {
		t.Helper()
		slices.Sort(want)
		apiserver.Eventually(t, what, func() error {
			status, _ := s.server.Get(t, crd.GVR(), s.namespace, resource).Object["status"].(map[string]any)
			nodes, _ := status["nodes"].(map[string]any)
			var got []string
			for key := range nodes {
				got = append(got, key)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fmt.Errorf("%s has %v, want %v", resource, got, want)
			}
			return nil
		})
	}
	resources := []string{"a", "b", "c", "d", "e", "f"}
	for _, r := range resources {
		create(r, append([]string{"gone-" + r}, names...)...)
	}
	s.create(names...)
	members := s.startAll(names...)
	for _, r := range resources {
		await("the orphan of each is gone", r, names...)
	}
	owners := map[string]bool{}
	apiserver.Eventually(t, "each resource has one owner, and the report its entry", func() error {
		clear(owners)
		reported, _ := s.reported("targets")["found"].(map[string]any)
		entries, _ := reported["resources"].(map[string]any)
		for _, r := range resources {
			owner := s.ownersOfResource(r)
			if len(owner) != 1 {
				return fmt.Errorf("%s is owned by %v", r, owner)
			}
			owners[owner[0]] = true
			if entry, _ := entries[s.namespace+"/"+r].(map[string]any); entry["owner"] != owner[0] || entry["keys"] != int64(len(names)) {
				return fmt.Errorf("the entry of %s is %v", r, entry)
			}
		}
		if reported["keys"] != int64(len(names)*len(resources)) {
			return fmt.Errorf("the target's entry is %v", reported)
		}
		return nil
	})
	if len(owners) < 2 {
		t.Errorf("all are owned by %v", owners)
	}
	// One that has just come, after the owner of another has died, and its Node with it.
	var dying *member
	for _, m := range members {
		if owners[m.name] {
			dying = m
		}
	}
	dying.kill()
	s.server.DeleteNode(t, dying.name)
	create("new", append([]string{"gone-new"}, names...)...)
	left := but(names, dying.name)
	for _, r := range append(resources, "new") {
		await("the dead owner's key is gone everywhere", r, left...)
	}
	// A resource that is deleted is left alone after a while.
	s.server.Delete(t, crd.GVR(), s.namespace, "a")
	apiserver.Eventually(t, "nobody owns what is no longer there", func() error {
		if owners := s.ownersOfResource("a"); len(owners) != 0 {
			return fmt.Errorf("it is owned by %v", owners)
		}
		return nil
	})
	listers := 0
	for _, m := range s.agents {
		if m.proxy.Counts()["LIST widgets."+crd.Group] > 0 {
			listers++
		}
	}
	if listers == len(s.agents) {
		t.Error("all agents have listed")
	}
}

// ownersOfResource are the running agents that own a resource of the target found, by their own words.
func (s *scene) ownersOfResource(resource string) []string {
	var owners []string
	for _, m := range s.agents {
		owns := false
		if m.agent == nil {
			continue
		}
		for _, e := range m.logs.All() {
			if c := e.ContextMap(); c["target"] == "found" && c["name"] == resource {
				owns = e.Message == "owns" || owns && e.Message != "no longer owns"
			}
		}
		if owns {
			owners = append(owners, m.name)
		}
	}
	return owners
}

// What keeps a list from being made is the target's state.
func TestAListThatFails(t *testing.T) {
	s := newWorkerScene(t, apiserver.Unique("node"))
	cluster := newKeysScene(t).agent.cluster
	client, err := status.NewClient(s.proxy.Config(), "unstale-test")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		target status.Target
		fault  apiserver.FaultFunc
		want   status.State
		words  string
		kept   int // names of the last list
	}{
		"not installed": {status.Target{Name: "t", Resource: schema.GroupVersionResource{Group: "nobody.example.com", Version: "v1", Resource: "widgets"}}, nil, status.NotInstalled, "nobody.example.com", 0},
		"forbidden":     {s.unit.target, apiserver.On("LIST widgets."+s.unit.target.Resource.Group, apiserver.Refuse(403, "Forbidden", "no")), status.Forbidden, "list", 1},
	} {
		test.target.Names = nil
		u := unitsOf(test.target)[0]
		var told []status.TargetReport
		w := &worker{
			unit: u, log: zap.NewNop(),
			list: &lister{
				unit:   &u,
				sweeps: &sweeps{cluster: cluster, client: client, listed: func(context.Context, *unit, []types.NamespacedName) {}},
				names:  []types.NamespacedName{{Name: "found before"}},
			},
			told: func(_ context.Context, _ *unit, report status.TargetReport, _ time.Duration) {
				told = append(told, report)
			},
		}
		s.proxy.SetFault(test.fault)
		if report, ok := w.listPass(t.Context()); !ok || report.State != test.want || len(told) != 1 || told[0].State != test.want || !strings.Contains(told[0].Message, test.words) {
			t.Errorf("%s: %+v, told %+v", name, report, told)
		}
		if len(w.list.names) != test.kept {
			t.Errorf("%s: %d names of the last list are kept, want %d", name, len(w.list.names), test.kept)
		}
	}
}
