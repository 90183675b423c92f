package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/test/apiserver"
)

// anyNumber of reads: which of the others comes first is left to chance.
const anyNumber = -1

const oneOrphan = `{"gone-a":1}`

// newOthersScene is a resource with orphans only. Its sweeper is told of others of the same target, which have the statuses given.
func newOthersScene(t *testing.T, nodes int, others ...string) *scene {
	t.Helper()
	s := newScene(t, nodes, `{nodes: `+oneOrphan+`}`, paths("status.nodes")...)
	s.target.Names = []string{s.name}
	s.restart()
	var names []types.NamespacedName
	s.sweeper.Others = func() []types.NamespacedName { return names }
	for i, text := range others {
		s.name = fmt.Sprintf("other-%d", i)
		s.create(text)
		names = append(names, types.NamespacedName{Namespace: s.target.Namespace, Name: s.name})
	}
	s.name = "default"
	s.proxy.Reset()
	return s
}

// readsOfOthers counts the reads of the target's other resources, and checks that nothing else was done to them.
func (s *scene) readsOfOthers() int {
	s.Helper()
	n := 0
	for _, r := range s.proxy.Requests() {
		if !strings.Contains(r.Path, "/other-") {
			continue
		}
		if r.Method != "GET" {
			s.Errorf("%s %s: the resource is somebody else's", r.Method, r.Path)
		}
		n++
	}
	return n
}

// Held is about the whole target also where each of its resources has an owner of its own: this sweeper cleans one, and reads the
// others to learn whether the target's keys are nodes' names.
func TestOthersTellWhetherKeysAreNodeNames(t *testing.T) {
	const orphans, alive = `{nodes: {gone-b: 1}}`, `{nodes: {KEEP0: 1, gone-b: 1}}`
	for _, test := range []struct {
		name   string
		others []string
		before func(*scene) // runs before the sweep
		held   bool
		reads  int // of the others
	}{
		{"none", nil, nil, true, 0},
		{"one with an existing node's key", []string{alive}, nil, false, 1},
		{"orphans too", []string{orphans, orphans}, nil, true, 2},
		{"no keys", []string{`{nodes: {}}`, `{}`}, nil, true, 2},
		{"another program's keys", []string{`{nodes: {team-a: 1, Team_B: 1}}`}, nil, true, 1},
		{"one of several cannot be read", []string{alive, alive}, func(s *scene) {
			s.server.Delete(s, s.target.Resource, s.target.Namespace, "other-1")
		}, false, anyNumber},
		{"gone", []string{alive}, func(s *scene) { s.server.Delete(s, s.target.Resource, s.target.Namespace, "other-0") }, true, 1},
		{"refused", []string{alive}, func(s *scene) {
			s.proxy.SetFault(onOthers(apiserver.Refuse(403, "Forbidden", "not that one")))
		}, true, 1},
		{"not of that layout", []string{`{nodes: [KEEP0]}`}, nil, true, 1},
		{"the answer is another resource", []string{alive}, func(s *scene) {
			body := s.server.GetJSON(s, fmt.Sprintf("/apis/%s/%s/namespaces/%s/widgets/other-0", s.target.Resource.Group, s.target.Resource.Version, s.target.Namespace))
			s.proxy.SetFault(onOthers(&apiserver.Fault{Status: 200, Body: strings.ReplaceAll(string(body), "other-0", "other-9")}))
		}, true, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOthersScene(t, 1, test.others...)
			report := s.sweep(func() {
				if test.before != nil {
					test.before(s)
				}
			})
			state, verdict, left := OK, "gone-a=Remove/NodeGone", `{}`
			if test.held {
				state, verdict, left = StateHeld, "gone-a=Keep/Held", oneOrphan
			}
			s.state(report, state) // whatever is wrong with the others, their own sweepers say it
			s.equal("verdicts", s.verdicts(report), verdict)
			s.equal("left", s.left(), left)
			if reads := s.readsOfOthers(); reads != test.reads && test.reads != anyNumber {
				t.Errorf("%d reads of the others, want %d", reads, test.reads)
			}
			if len(report.Resources) != 1 {
				t.Errorf("the report is about %d resources; the others are other sweepers'", len(report.Resources))
			}
		})
	}
}

// onOthers gives the fault to requests for the target's other resources.
func onOthers(f *apiserver.Fault) apiserver.FaultFunc {
	return func(r *http.Request) *apiserver.Fault {
		if strings.Contains(r.URL.Path, "/other-") {
			return f
		}
		return nil
	}
}

// The others are read where they can change something, and only there.
func TestOthersAreReadWhenNeeded(t *testing.T) {
	const alive = `{nodes: {KEEP0: 1}}`
	for _, test := range []struct {
		name string
		pass func(*scene) TargetReport
		want string // verdicts
		read bool
	}{
		{"a sweep", func(s *scene) TargetReport { return s.sweep() }, "gone-a=Remove/NodeGone", true},
		{"a sweep that only reports", func(s *scene) TargetReport {
			s.sweeper.target.Mode = Report
			return s.sweep()
		}, "gone-a=Remove/NodeGone", true},
		{"a plan", func(s *scene) TargetReport { return s.sweeper.Plan(s.Context()) }, "gone-a=Remove/NodeGone", true},
		{"nothing has waited long enough", func(s *scene) TargetReport { return s.sweeper.Sweep(s.Context()) }, "gone-a=Wait/Waiting", false},
		{"a look, which decides nothing", func(s *scene) TargetReport {
			s.sweeper.Look(s.Context())
			s.tick(s.target.Grace)
			return s.sweeper.Look(s.Context())
		}, "gone-a=Keep/Held", false},
		{"an existing node's key is here", func(s *scene) TargetReport {
			s.merge(fmt.Sprintf(`{"status": {"nodes": {%q: 1}}}`, s.existing[0]))
			return s.sweep()
		}, "gone-a=Remove/NodeGone KEEP0=Keep/NodeExists", false},
		{"the keep annotation keeps all", func(s *scene) TargetReport {
			s.annotate("true")
			return s.sweep()
		}, "gone-a=Keep/KeptByAnnotation", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOthersScene(t, 1, alive)
			report := test.pass(s)
			s.equal("verdicts", s.verdicts(report), test.want)
			if n := s.readsOfOthers(); n > 1 || (n == 1) != test.read {
				t.Errorf("%d reads of the other", n)
			}
		})
	}
}

// A target of very many resources costs a bounded number of reads, once a pass, however many batches that has.
func TestReadsOfOthersAreBounded(t *testing.T) {
	var others []string
	for range MaxOthers + 3 {
		others = append(others, `{nodes: {gone-b: 1}}`)
	}
	s := newOthersScene(t, 1, others...)
	s.name = "second"
	s.create(`{nodes: {gone-c: 1}}`)
	s.sweeper.target.Names = []string{"default", "second"}
	s.state(s.sweep(), StateHeld)
	if n := s.readsOfOthers(); n != MaxOthers {
		t.Errorf("%d reads for a pass over two resources, want %d", n, MaxOthers)
	}
	s.proxy.Reset()
	s.state(s.sweeper.Sweep(t.Context()), StateHeld)
	if n := s.readsOfOthers(); n != MaxOthers {
		t.Errorf("%d reads for the next pass, want %d", n, MaxOthers)
	}

	// What one of them showed holds for the whole pass.
	s = newOthersScene(t, 1, `{nodes: {KEEP0: 1}}`)
	s.name = "second"
	s.create(`{nodes: {gone-c: 1}}`)
	s.sweeper.target.Names, s.sweeper.target.MaxRemovals = []string{"default", "second"}, 1
	s.name = "default"
	s.merge(`{"status": {"nodes": {"gone-d": 1}}}`)
	if report := s.sweep(); report.State != OK || report.Removed() != 3 {
		t.Errorf("%s (%s), %d removed, want 3", report.State, report.Message, report.Removed())
	}
	if n := s.readsOfOthers(); n != 1 {
		t.Errorf("%d reads of the other for three batches, want 1", n)
	}
}
