package status

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// How the objects of certain nodes are listed.
func TestAim(t *testing.T) {
	names := func(n int) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("n%d", i))
		}
		return all
	}
	long := strings.Repeat("n", 64)
	for name, test := range map[string]struct {
		in    NodeNameIn
		nodes []string
		want  string
		can   bool
	}{
		"by a label":            {NodeNameIn{Label: "e/l"}, []string{"a", "b", long}, "e/l in (a,b) ", true},
		"by a label's path":     {NodeNameIn{Field: FieldPath{"metadata", "labels", "e/l"}}, []string{"a"}, "e/l in (a) ", true},
		"by their name":         {NodeNameIn{Name: true}, []string{"a", long}, " metadata.name=a;" + " metadata.name=" + long, true},
		"by their name's path":  {NodeNameIn{Field: FieldPath{"metadata", "name"}}, []string{"a"}, " metadata.name=a", true},
		"nothing":               {NodeNameIn{Label: "l"}, nil, "", true},
		"by an annotation":      {NodeNameIn{Field: FieldPath{"metadata", "annotations", "a"}}, []string{"a"}, "", false},
		"by a field":            {NodeNameIn{Field: FieldPath{"spec", "nodeName"}}, []string{"a"}, "", false},
		"by no label":           {NodeNameIn{Label: "-"}, []string{"a"}, "", false},
		"too many for names":    {NodeNameIn{Name: true}, names(maxAimed + 1), "", false},
		"too many for a label":  {NodeNameIn{Label: "l"}, names(maxAimed*aimedNodes + 1), "", false},
		"most for one selector": {NodeNameIn{Label: "l"}, names(aimedNodes), "l in (" + strings.Join(sorted(names(aimedNodes)), ",") + ") ", true},
	} {
		o := &Objects{NodeName: test.in}
		aimed, can := o.aim(listing{page: 7}, test.nodes)
		var got []string
		for _, l := range aimed {
			if got = append(got, l.selector+" "+l.fields); l.page != 7 {
				t.Errorf("%s: the listing is another one: %+v", name, l)
			}
		}
		if can != test.can || can && strings.Join(got, ";") != test.want {
			t.Errorf("%s: %q, %v", name, strings.Join(got, ";"), can)
		}
	}
	if aimed, can := (&Objects{NodeName: NodeNameIn{Label: "l"}}).aim(listing{}, names(maxAimed*aimedNodes)); !can || len(aimed) != maxAimed {
		t.Errorf("%d requests, %v", len(aimed), can)
	}
}

func sorted(names []string) []string { slices.Sort(names); return names }

// lists are the selectors of the lists of objects that were asked for, and forgets them.
func (s *scene) lists() string {
	s.Helper()
	var all []string
	for _, r := range s.proxy.Matching("LIST widgets." + s.target.Resource.Group) {
		text := "all"
		if at := r.Query.Get("labelSelector") + r.Query.Get("fieldSelector"); at != "" {
			text = at
		}
		all = append(all, text)
	}
	s.proxy.Reset()
	return strings.Join(all, "; ")
}

// Where a label or the name tells an object's node, nothing is listed while nothing is in doubt, and only a departed node's objects are when it is; also
// those that are younger than the last whole list. The whole list comes again in its time.
func TestObjectsOfCertainNodes(t *testing.T) {
	for name, test := range map[string]struct {
		in     NodeNameIn
		object string // of NODE
		at     string // the selector of NODE's
	}{
		"by a label":    {NodeNameIn{Label: "example.com/node"}, "of-NODE , labels: {example.com/node: NODE}}", "example.com/node in (NODE)"},
		"by their name": {NodeNameIn{Name: true}, "NODE ", "metadata.name=NODE"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newObjectScene(t, 3, test.in)
			of := func(text, node string) string { return strings.TrimSpace(strings.ReplaceAll(text, "NODE", node)) }
			object := func(node string) { s.object(of(test.object, node)) }
			a, b := s.existing[0], s.existing[1]
			object(a)
			object(b)
			object(s.existing[2])
			s.sweeper.WholeInterval = time.Hour
			step := func(want string, departed ...string) TargetReport {
				t.Helper()
				s.tick(s.target.Grace)
				report := s.sweeper.Sweep(t.Context(), departed...)
				s.state(report, OK)
				s.equal("lists", s.lists(), want)
				if report.FromMemory != (want == "") {
					t.Errorf("from memory: %v", report.FromMemory)
				}
				return report
			}
			s.proxy.Reset()
			step("all")
			s.equal("nothing to do", s.verdicts(step("")), "KEEP0=Keep/NodeExists KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")

			// One leaves; its object was seen as it is before, so it has waited since.
			s.tick(time.Second)
			s.nodes.Left(a)
			s.server.DeleteNode(t, a)
			s.equal("gone", s.verdicts(step(of(test.at, a), a)), "KEEP0=Remove/NodeGone KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")
			s.equal("and forgotten", s.verdicts(step("")), "KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")

			// It is written again, and one of a node that nobody has heard of; both are only found by a look at them.
			object(a)
			object("stranger")
			s.equal("unseen", s.verdicts(step("")), "KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")
			s.equal("written again", s.verdicts(step(of(test.at, a), a)), "KEEP0=Wait/Waiting KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")
			s.equal("gone again", s.verdicts(step(of(test.at, a))), "KEEP0=Remove/NodeGone KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")
			step(of(test.at, a), a)
			s.tick(time.Hour)
			s.equal("a whole list", s.verdicts(step("all")), "KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists stranger=Wait/Waiting")
			s.equal("gone", s.verdicts(step(of(test.at, "stranger"))), "KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists stranger=Remove/NodeGone")

			s.tick(time.Second)
			s.nodes.Left(b)
			s.equal("only its agent left", s.verdicts(step(of(test.at, b))), "KEEP1=Keep/NodeExists KEEP2=Keep/NodeExists")
		})
	}
}

// A list of certain nodes' objects that fails proves nothing, and the departed are looked for again; where the resource is gone, all is listed anew.
func TestObjectsOfCertainNodesFail(t *testing.T) {
	s := newObjectScene(t, 2, NodeNameIn{Name: true}, "KEEP0", "KEEP1")
	s.sweeper.WholeInterval = time.Hour
	s.sweeper.Sweep(t.Context())
	s.tick(time.Second)
	s.nodes.Left(s.existing[0])
	s.server.DeleteNode(t, s.existing[0])
	s.tick(s.target.Grace)
	for name, test := range map[string]struct {
		fault *apiserver.Fault
		want  State
	}{
		"cut short": {&apiserver.Fault{Cut: true, CutAfter: 100}, Unavailable}, "429": {apiserver.Refuse(429, metav1.StatusReasonTooManyRequests, "busy"), Unavailable},
		"500": {apiserver.Refuse(500, metav1.StatusReasonInternalError, "down"), Unavailable},
	} {
		s.proxy.SetFault(apiserver.On("LIST widgets."+s.target.Resource.Group, test.fault))
		if report := s.sweeper.Sweep(t.Context(), s.existing[0]); report.State != test.want || report.Removed() != 0 || len(report.Resources) != 0 {
			t.Errorf("%s: %s (%s)", name, report.State, report.Message)
		}
	}
	s.proxy.SetFault(apiserver.On("LIST widgets."+s.target.Resource.Group, apiserver.Refuse(403, metav1.StatusReasonForbidden, "no")))
	s.state(s.sweeper.Sweep(t.Context()), Forbidden)
	s.proxy.SetFault(nil)
	s.proxy.Reset()
	report := s.sweeper.Sweep(t.Context())
	s.equal("lists", s.lists(), "all")
	s.equal("verdicts", s.verdicts(report), "KEEP0=Remove/NodeGone KEEP1=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP1")
}

// Where no remembered object is of a node that lives, all are listed, or the target would count as held.
func TestObjectsOfCertainNodesAreNotAllThereIs(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "gone")
	s.sweeper.WholeInterval = time.Hour
	s.state(s.sweeper.Sweep(t.Context()), OK)
	s.object("KEEP0") // younger than the list
	s.tick(s.target.Grace)
	report := s.sweeper.Sweep(t.Context())
	s.state(report, OK)
	s.equal("verdicts", s.verdicts(report), "gone=Remove/NodeGone KEEP0=Keep/NodeExists")
}

// A node that something spoke for when its objects were not read, and nothing does any more when they are decided on: they wait for a look.
func TestAnObjectThatWasNotReadWaits(t *testing.T) {
	s := newObjectScene(t, 2, NodeNameIn{Name: true}, "KEEP0", "KEEP1")
	s.sweeper.WholeInterval = time.Hour
	s.sweeper.Sweep(t.Context())
	s.sweeper.Sweep(t.Context())
	s.server.DeleteNode(t, s.existing[0])
	s.tick(2 * s.target.Grace)
	fickle := &fickleEvidence{NodeEvidence: s.nodes, name: s.existing[0], times: 2} // for whether any lives, and for which to read
	s.sweeper.nodes = fickle
	s.equal("verdicts", s.verdicts(s.sweeper.Sweep(t.Context())), "KEEP0=Wait/Waiting KEEP1=Keep/NodeExists")
	s.equal("left", s.objects(), "KEEP0 KEEP1")
}

// A fickleEvidence knows of a node some times, and then no more.
type fickleEvidence struct {
	NodeEvidence
	name  string
	times int
}

func (f *fickleEvidence) Known(name string) Knowledge {
	if name != f.name {
		return f.NodeEvidence.Known(name)
	}
	if f.times--; f.times >= 0 {
		return Knowledge{Listed: true, Seen: true}
	}
	return Knowledge{Seen: true, Left: noon.Add(time.Second)}
}

func (f *fickleEvidence) Confirm(ctx context.Context, names []string, fresh time.Duration) map[string]NodeAnswer {
	return f.NodeEvidence.Confirm(ctx, names, fresh)
}

// Random histories: with lists of certain nodes' objects no object of an existing node ever goes, and in the end the same are gone as with whole lists
// only.
func TestAimedAndWholeListsEndAlike(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 6))
		s := newObjectScene(t, 1, NodeNameIn{Label: "example.com/node"})
		s.sweeper.WholeInterval = time.Hour
		names := make([]string, 5)
		exists := map[string]bool{s.existing[0]: true}
		for i := range names {
			names[i] = apiserver.Unique("random")
		}
		made, departed, nodeOf := 0, map[string]bool{}, map[string]string{}
		write := func(name, node string) {
			s.server.Apply(t, s.target.Namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: %s, labels: {example.com/node: %s}}\nspec: {n: %d}\n",
				s.target.Resource.Group, name, node, made))
			nodeOf[name], made = node, made+1
		}
		there := func() []string { return strings.Fields(s.objects()) }
		sweep := func() {
			before := there()
			report := s.sweeper.Sweep(t.Context(), slices.Collect(maps.Keys(departed))...)
			s.state(report, OK)
			after := there()
			for _, name := range before {
				if exists[nodeOf[name]] && !slices.Contains(after, name) {
					t.Fatalf("seed %d: %s of %s is gone, and its Node exists", seed, name, nodeOf[name])
				}
			}
		}
		write("anchor", s.existing[0])
		for range 60 {
			switch node := names[random.IntN(len(names))]; random.IntN(6) {
			case 0:
				if !exists[node] {
					s.server.CreateNodes(t, node)
					exists[node] = true
					delete(departed, node)
				}
			case 1:
				if exists[node] {
					s.server.DeleteNode(t, node)
					s.nodes.Left(node)
					delete(exists, node)
					departed[node] = true
				}
			case 2, 3:
				write(fmt.Sprint("o", random.IntN(8)), node) // also one that moves from node to node
			case 4:
				s.tick(time.Duration(random.IntN(90)) * time.Second)
				sweep()
			case 5:
				s.nodes.Left(node)
				sweep()
			}
		}
		s.tick(time.Hour)
		if err := s.nodes.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			sweep()
			s.tick(s.target.Grace)
		}
		for _, name := range there() {
			if !exists[nodeOf[name]] {
				t.Errorf("seed %d: %s of %s is left", seed, name, nodeOf[name])
			}
		}
		for node := range exists {
			if node != s.existing[0] {
				s.server.DeleteNode(t, node)
			}
		}
	}
}

// An API group that disappears in the middle: of the list, so that nothing is decided; of the deletions, so that the pass ends.
func TestAnAPIGroupDisappears(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-a", "gone-b", "gone-c")
	deleted := 0
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if strings.HasPrefix(apiserver.Class(r), "DELETE widgets.") {
			if deleted++; deleted == 2 {
				s.server.Uninstall(t, s.target.Resource)
			}
		}
		return nil
	})
	report := s.sweep()
	s.state(report, NotInstalled)
	if deleted != 2 || report.Removed() != 1 {
		t.Errorf("%d deletions tried, %d removed", deleted, report.Removed())
	}
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Keep/Unconfirmed gone-c=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.state(s.sweep(), NotInstalled)

	s = newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone")
	for i := range objectsPage {
		s.object(fmt.Sprint("gone-", i))
	}
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Query().Has("continue") && strings.HasPrefix(apiserver.Class(r), "LIST widgets") {
			s.server.Uninstall(t, s.target.Resource)
		}
		return nil
	})
	report = s.sweeper.Look(t.Context())
	s.state(report, NotInstalled)
	if len(report.Resources) != 0 {
		t.Errorf("decided on %d", len(report.Resources))
	}
}
