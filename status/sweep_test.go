package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/test/apiserver"
)

const fourKeys = `{nodes: {KEEP0: {v: 1}, KEEP1: {v: 2}, gone-a: {v: 3, s: "<&>é"}, gone-b: {v: 1.5}}}`

func TestSweepRemovesOrphansAndNothingElse(t *testing.T) {
	s := newScene(t, 2, fourKeys, paths("status.nodes")...)
	report := s.sweep()
	s.state(report, OK)
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone KEEP0=Keep/NodeExists KEEP1=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":{"v":1},"KEEP1":{"v":2}}`)
	if report.Removed() != 2 || report.Resources[0].Entries != 4 {
		t.Errorf("%d of %d entries removed, want 2 of 4", report.Removed(), report.Resources[0].Entries)
	}
}

// What it costs: the two looks, a GET for each orphan and one for the proof, one write.
func TestSweepCost(t *testing.T) {
	s := newScene(t, 2, fourKeys, paths("status.nodes")...)
	s.target.Names = []string{s.name}
	s.restart()
	s.proxy.Reset()
	s.sweep()
	widgets := "widgets." + s.target.Resource.Group
	want := map[string]int{"GET " + widgets: 2, "GET nodes": 3, "PATCH " + widgets + "/status": 1}
	if got := s.proxy.Counts(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("requests %v, want %v", got, want)
	}
	// With nothing to do, one GET.
	s.proxy.Reset()
	s.sweeper.Sweep(t.Context())
	want = map[string]int{"GET " + widgets: 1}
	if got := s.proxy.Counts(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("idle: requests %v, want %v", got, want)
	}
	for _, r := range s.proxy.Requests() {
		if r.UserAgent != "unstale-test" {
			t.Errorf("user agent %q", r.UserAgent)
		}
	}
}

func TestSweepLayouts(t *testing.T) {
	for _, test := range []struct {
		name, status string
		at           []KeyPath
		left         []string
	}{
		{"items", `{nodes: [{name: gone-a}, {name: KEEP0, x: 1}, {name: gone-b}, {other: 1}, {name: gone-a, again: true}]}`,
			paths("status.nodes|name"), []string{`[{"name":"KEEP0","x":1},{"other":1}]`}},
		{"strings", `{nodes: [gone-a, KEEP0, gone-b, KEEP0, gone-a]}`,
			paths("status.nodes|."), []string{`["KEEP0","KEEP0"]`}},
		{"several places together", `{good: [KEEP0, gone-a], bad: {gone-a: 1, gone-b: 2}, "a.b/c~d": [{node: gone-b}, {node: KEEP0}]}`,
			paths("status.good|.", "status.bad", "status[a.b/c~d]|node", "status.absent"), []string{`["KEEP0"]`, `{}`, `[{"node":"KEEP0"}]`, `null`}},
		{"a number larger than a float holds, a null, and characters that JSON escapes", `{nodes: {KEEP0: 1, gone-a: {n: 9007199254740993, z: null, s: "\u2028<>&\"\\"}}}`,
			paths("status.nodes"), []string{`{"KEEP0":1}`}},
		{"a Node's name with dots", `{nodes: {KEEP0: 1, ip-10-0-0-1.eu.internal: 1}}`, paths("status.nodes"), []string{`{"KEEP0":1}`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t, 1, test.status, test.at...)
			report := s.sweep()
			s.state(report, OK)
			for i, at := range test.at {
				s.equal("left at "+at.Path.String(), s.leftAt(at), test.left[i])
			}
			if n := len(s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status")); n != 1 {
				t.Errorf("%d writes, want all in one", n)
			}
		})
	}
}

func TestSweepWaitsForGraceAndSecondLook(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.equal("at once", s.verdicts(s.sweeper.Sweep(t.Context())), "gone-a=Wait/Waiting KEEP0=Keep/NodeExists")
	s.now = s.now.Add(s.target.Grace - 1)
	s.equal("a moment too early", s.verdicts(s.sweeper.Sweep(t.Context())), "gone-a=Wait/Waiting KEEP0=Keep/NodeExists")
	s.merge(`{"status":{"nodes":{"gone-a":2}}}`)
	s.now = s.now.Add(1)
	s.equal("it changed", s.verdicts(s.sweeper.Sweep(t.Context())), "gone-a=Wait/Changed KEEP0=Keep/NodeExists")
	s.now = s.now.Add(s.target.Grace - 1)
	s.equal("and waits from the start", s.verdicts(s.sweeper.Sweep(t.Context())), "gone-a=Wait/Waiting KEEP0=Keep/NodeExists")
	if n := len(s.proxy.Matching("GET nodes")); n != 0 {
		t.Errorf("%d Nodes were asked for although nothing was ripe", n)
	}
	s.now = s.now.Add(1)
	s.equal("then it goes", s.verdicts(s.sweeper.Sweep(t.Context())), "gone-a=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":1}`)
}

func TestPlanWritesNothingAndWaitsForNothing(t *testing.T) {
	s := newScene(t, 2, fourKeys, paths("status.nodes")...)
	report := s.sweeper.Plan(t.Context())
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone KEEP0=Keep/NodeExists KEEP1=Keep/NodeExists")
	for _, r := range s.proxy.Requests() {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
	if since := report.Resources[0].Findings[0].Since; !since.Equal(noon) {
		t.Errorf("since %s, want the time of the look", since)
	}
}

func TestModeReportWritesNothing(t *testing.T) {
	s := newScene(t, 2, fourKeys, paths("status.nodes")...)
	s.target.Mode = Report
	s.restart()
	report := s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone KEEP0=Keep/NodeExists KEEP1=Keep/NodeExists")
	if report.Removed() != 0 || len(s.proxy.Matching("PATCH widgets."+s.target.Resource.Group+"/status")) != 0 {
		t.Errorf("it wrote: %+v", report)
	}
}

// Whatever keeps a Node from being read keeps its key.
func TestNodeThatCannotBeRead(t *testing.T) {
	notFound := func(kind, name string) *apiserver.Fault {
		return refusal(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "not found",
			Details: &metav1.StatusDetails{Kind: kind, Name: name}})
	}
	for name, fault := range map[string]*apiserver.Fault{
		"500":                              apiserver.Refuse(500, metav1.StatusReasonInternalError, "etcd is unwell"),
		"403":                              apiserver.Refuse(403, metav1.StatusReasonForbidden, `nodes "x" is forbidden: User "u" cannot get resource "nodes"`),
		"401":                              apiserver.Refuse(401, metav1.StatusReasonUnauthorized, "who are you?"),
		"429":                              apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", "1"),
		"503 without a Status":             {Status: 503, Body: "upstream connect error"},
		"a dropped connection":             {Drop: true},
		"an answer cut short":              {Cut: true, CutAfter: 20},
		"a proxy's 404 in plain text":      apiserver.PlainNotFound,
		"a proxy's 404 in HTML":            apiserver.HTMLNotFound,
		"an empty 404":                     {Status: 404},
		"a 404 for another Node":           notFound("nodes", "another"),
		"a 404 for another kind":           notFound("pods", "gone-a"),
		"a 404 without details":            apiserver.Refuse(404, metav1.StatusReasonNotFound, "the server could not find the requested resource"),
		"a 500 that says not found":        {Status: 500, Body: `{"kind":"Status","apiVersion":"v1","code":404,"reason":"NotFound","details":{"kind":"nodes","name":"gone-a"}}`},
		"410":                              apiserver.Refuse(410, metav1.StatusReasonGone, "gone"),
		"200 with something else":          {Status: 200, Body: `{"kind":"PartialObjectMetadata","metadata":{"name":"another","uid":"1"}}`},
		"200 with a page":                  {Status: 200, Body: "<html>login</html>"},
		"a redirect that leads nowhere":    {Status: 302, Body: ""},
		"204 and no body":                  {Status: 204},
		"a Status that claims to be a 404": {Status: 200, Body: `{"kind":"Status","apiVersion":"v1","code":404,"reason":"NotFound","details":{"kind":"nodes","name":"gone-a"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
			report := s.sweep(func() {
				s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
					if r.URL.Path == nodeNamed("gone-a") {
						return fault
					}
					return nil
				})
			})
			s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Unconfirmed gone-b=Remove/NodeGone KEEP0=Keep/NodeExists")
			s.equal("left", s.left(), `{"KEEP0":1,"gone-a":1}`)
			// Twice at most for each attempt (net/http sends a GET again when a kept connection was dropped), and gone-b and the proof.
			if n := len(s.proxy.Matching("GET nodes")); n > 2*maxAttempts+2 {
				t.Errorf("%d requests for Nodes: retried without a bound", n)
			}
		})
	}
}

func TestNodeThatDoesNotAnswerInTime(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	ctx, cancel := context.WithCancel(t.Context())
	s.sweeper.Look(ctx)
	s.now = s.now.Add(s.target.Grace)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Path == nodeNamed("gone-a") {
			cancel() // stands for the request's time-out, which is the same context's end
			return &apiserver.Fault{Hang: true}
		}
		return nil
	})
	report := s.sweeper.Sweep(ctx)
	s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Unconfirmed KEEP0=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":1,"gone-a":1}`)
}

func TestNodeAppearsBetweenTwoLooks(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	late := apiserver.Unique("late")
	s.merge(`{"status":{"nodes":{"` + late + `":1}}}`)
	report := s.sweep(func() { s.server.CreateNode(t, late, nil) })
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone "+late+"=Keep/NodeExists KEEP0=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":1,"`+late+`":1}`)
}

// A 404 counts only beside a Node that can be read.
func TestProofOfAbsence(t *testing.T) {
	all404 := apiserver.FaultFunc(func(r *http.Request) *apiserver.Fault {
		name, isNode := strings.CutPrefix(r.URL.Path, nodeNamed(""))
		if !isNode {
			return nil
		}
		// The real API server's words, for every Node: one that was restored empty.
		return refusal(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "not found",
			Details: &metav1.StatusDetails{Kind: "nodes", Name: name}})
	})
	for name, fault := range map[string]apiserver.FaultFunc{
		"an API server restored empty":           all404,
		"a proxy that answers 404 to everything": apiserver.OnEach(apiserver.HTMLNotFound),
		"an API server that fails":               apiserver.OnEach(apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")),
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
			report := s.sweep(func() { s.proxy.SetFault(fault) })
			s.proxy.SetFault(nil)
			s.equal("left", s.left(), `{"KEEP0":1,"gone-a":1}`)
			if name == "an API server restored empty" {
				s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Unconfirmed KEEP0=Keep/NodeExists")
				if message := report.Resources[0].Findings[0].Message; !strings.Contains(message, "known to exist cannot be read") {
					t.Errorf("message %q", message)
				}
				return
			}
			s.state(report, Unavailable)
		})
	}
}

// Restored empty before this process started, the server lists no Node, so nothing can ever be proved.
func TestEmptyListOfNodesProvesNothing(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Path == "/api/v1/nodes" {
			return &apiserver.Fault{Status: 200, Body: `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`}
		}
		return nil
	})
	s.restart()
	report := s.sweep()
	// The Node that exists was asked for and proves that the server answers; the other one is gone indeed.
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone KEEP0=Keep/NodeExists")

	s = newScene(t, 0, `{nodes: {gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Path == "/api/v1/nodes" {
			return &apiserver.Fault{Status: 200, Body: `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[]}`}
		}
		return nil
	})
	s.restart()
	report = s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Unconfirmed gone-b=Keep/Unconfirmed")
	if message := report.Resources[0].Findings[0].Message; !strings.Contains(message, "no Node is known to exist") {
		t.Errorf("message %q", message)
	}
}

func TestKeysThatAreNoNodeNames(t *testing.T) {
	t.Run("none of them", func(t *testing.T) {
		s := newScene(t, 0, `{nodes: {team-a: 1, team-b: 1, Team_C: 1}}`, paths("status.nodes")...)
		s.server.CreateNode(t, apiserver.Unique("node"), nil)
		s.restart()
		report := s.sweep()
		s.state(report, StateHeld, "no key of this target belongs to an existing node")
		s.equal("verdicts", s.verdicts(report), "Team_C=Keep/UnknownName team-a=Keep/Held team-b=Keep/Held")
		s.equal("left", s.left(), `{"Team_C":1,"team-a":1,"team-b":1}`)
	})
	t.Run("default among node names", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, default: 1}}`, paths("status.nodes")...)
		s.target.UnknownKeys = KeepUnknown
		s.restart()
		report := s.sweep()
		s.state(report, OK)
		s.equal("verdicts", s.verdicts(report), "default=Keep/UnknownName KEEP0=Keep/NodeExists")
		s.equal("left", s.left(), `{"KEEP0":1,"default":1}`)
	})
	t.Run("unknown keys are kept, but this one was seen as a Node", func(t *testing.T) {
		s := newScene(t, 2, `{nodes: {KEEP0: 1, KEEP1: 1}}`, paths("status.nodes")...)
		s.target.UnknownKeys = KeepUnknown
		s.restart()
		s.server.DeleteNode(t, s.existing[1])
		if err := s.nodes.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		report := s.sweep()
		s.equal("verdicts", s.verdicts(report), "KEEP0=Keep/NodeExists KEEP1=Remove/NodeGone")
	})
}

// Keys that stay whatever is asked take no room in the batch, so those behind them are reached.
func TestKeptKeysDoNotStarveTheBatch(t *testing.T) {
	s := newScene(t, 2, `{nodes: {a-unknown: 1, b-unknown: 1, c-unknown: 1, KEEP0: 1, KEEP1: 1}}`, paths("status.nodes")...)
	s.target.UnknownKeys, s.target.MaxRemovals = KeepUnknown, 1
	s.restart()
	s.server.DeleteNode(t, s.existing[1])
	if err := s.nodes.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sweep()
	s.equal("left", s.left(), `{"KEEP0":1,"a-unknown":1,"b-unknown":1,"c-unknown":1}`)
}

// What others do between the look and the write never costs more than a second look.
func TestChangesBetweenLookAndWrite(t *testing.T) {
	for _, test := range []struct {
		name      string
		status    string
		at        []KeyPath
		meanwhile func(*scene)
		left      string
		writes    int
	}{
		{"rewritten", `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes"),
			func(s *scene) { s.merge(`{"status":{"nodes":{"gone-a":2}}}`) }, `{"KEEP0":1,"gone-a":2}`, 2},
		{"removed", `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes"),
			func(s *scene) { s.merge(`{"status":{"nodes":{"gone-a":null}}}`) }, `{"KEEP0":1}`, 2},
		{"another one added", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) { s.merge(`{"status":{"nodes":{"new":1}}}`) }, `{"KEEP0":1,"new":1}`, 1},
		{"another status field written", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) { s.merge(`{"status":{"phase":"x"}}`) }, `{"KEEP0":1}`, 1},
		{"the list's order changed", `{nodes: [gone-a, KEEP0, gone-b]}`, paths("status.nodes|."),
			func(s *scene) { s.merge(`{"status":{"nodes":["` + s.existing[0] + `","gone-b","gone-a"]}}`) }, `["KEEP0"]`, 2},
		{"an item put in front", `{nodes: [{name: gone-a}, {name: KEEP0}]}`, paths("status.nodes|name"),
			func(s *scene) {
				s.merge(`{"status":{"nodes":[{"name":"new"},{"name":"gone-a"},{"name":"` + s.existing[0] + `"}]}}`)
			}, `[{"name":"new"},{"name":"KEEP0"}]`, 2},
		{"the same place in the list taken by another", `{nodes: [KEEP0, gone-a]}`, paths("status.nodes|."),
			func(s *scene) { s.merge(`{"status":{"nodes":["` + s.existing[0] + `","new"]}}`) }, `["KEEP0","new"]`, 1},
		{"replaced by one of the same name with the same entries", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) {
				s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name)
				s.create(`{nodes: {KEEP0: 1, gone-a: 1}}`)
			}, `{"KEEP0":1,"gone-a":1}`, 1},
		{"annotated for the first time", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) { s.annotate("true") }, `{"KEEP0":1,"gone-a":1}`, 1},
		{"deleted", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) { s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name) }, ``, 1},
		{"its status emptied", `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes"),
			func(s *scene) { s.merge(`{"status":null}`) }, `null`, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t, 1, test.status, test.at...)
			write := "PATCH widgets." + s.target.Resource.Group + "/status"
			report := s.sweep(func() {
				s.proxy.SetFault(apiserver.On(write, &apiserver.Fault{Before: func(*http.Request) { test.meanwhile(s) }}).Times(1))
			})
			s.state(report, OK)
			if test.left != "" {
				s.equal("left", s.left(), test.left)
			} else if !strings.Contains(report.Message, "was deleted between look and write") {
				t.Errorf("message %q", report.Message)
			}
			if n := len(s.proxy.Matching(write)); n != test.writes {
				t.Errorf("%d writes, want %d", n, test.writes)
			}
		})
	}
}

func (s *scene) annotate(value string) {
	s.Helper()
	_, err := s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).Patch(s.Context(), s.name,
		types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, KeepAnnotation, value), metav1.PatchOptions{})
	if err != nil {
		s.Fatal(err)
	}
}

func TestKeepAnnotation(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.annotate("true")
	report := s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-a=Keep/KeptByAnnotation KEEP0=Keep/NodeExists")
	if n := len(s.proxy.Matching("GET nodes")); n != 0 {
		t.Errorf("%d Nodes were asked for in vain", n)
	}
	s.annotate("false")
	s.sweep()
	s.equal("left", s.left(), `{"KEEP0":1}`)
}

// A resource that changes at each try is left for the next sweep.
func TestResourceThatNeverHoldsStill(t *testing.T) {
	s := newScene(t, 1, `{nodes: [gone-a, gone-b, KEEP0]}`, paths("status.nodes|.")...)
	write := "PATCH widgets." + s.target.Resource.Group + "/status"
	n := 0
	s.proxy.SetFault(apiserver.On(write, &apiserver.Fault{Before: func(*http.Request) {
		n++
		order := []string{`"gone-b","gone-a"`, `"gone-a","gone-b"`}[n%2]
		s.merge(fmt.Sprintf(`{"status":{"nodes":["%s",%s]}}`, s.existing[0], order))
	}}))
	report := s.sweep()
	s.state(report, Unavailable, "3 writes in a row failed", "it had changed between look and write")
	if got := len(s.proxy.Matching(write)); got != maxTries {
		t.Errorf("%d writes, want %d", got, maxTries)
	}
}

// Faults of the write itself: whether or not it was done, the sweep ends with the orphan gone and nothing else.
func TestWriteFails(t *testing.T) {
	for _, test := range []struct {
		name  string
		fault apiserver.FaultFunc
		state State
		left  string
	}{
		{"409 once", once(apiserver.Refuse(409, metav1.StatusReasonConflict, "conflict")), OK, `{"KEEP0":1}`},
		{"429 once", once(apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", "1")), OK, `{"KEEP0":1}`},
		{"503 twice", apiserver.OnEach(apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")).Times(2), OK, `{"KEEP0":1}`},
		{"503 for ever", apiserver.OnEach(apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")), Unavailable, `{"KEEP0":1,"gone-a":1}`},
		{"dropped once", once(&apiserver.Fault{Drop: true}), OK, `{"KEEP0":1}`},
		{"done, but the answer lost", once(&apiserver.Fault{Lose: true}), OK, `{"KEEP0":1}`},
		{"done, but all answers lost", apiserver.OnEach(&apiserver.Fault{Lose: true}), OK, `{"KEEP0":1}`},
		{"done, but the answer cut short", once(&apiserver.Fault{Cut: true, CutAfter: 10}), OK, `{"KEEP0":1}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
			report := s.sweep(func() {
				s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
					if r.Method != http.MethodPatch {
						return nil
					}
					return test.fault(r)
				})
			})
			s.state(report, test.state)
			s.equal("left", s.left(), test.left)
			if n := len(s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status")); n > maxAttempts {
				t.Errorf("%d writes, want at most %d", n, maxAttempts)
			}
			if test.state == OK {
				// What was done is reported as done, whatever became of the answer.
				if report.Removed() != 1 || s.verdicts(report) != "gone-a=Remove/NodeGone KEEP0=Keep/NodeExists" {
					t.Errorf("%d removed: %s", report.Removed(), s.verdicts(report))
				}
				return
			}
			// The fault over, the next sweep finishes.
			s.proxy.SetFault(nil)
			s.state(s.sweeper.Sweep(t.Context()), OK)
			s.equal("left at last", s.left(), `{"KEEP0":1}`)
		})
	}
}

func once(f *apiserver.Fault) apiserver.FaultFunc { return apiserver.OnEach(f).Times(1) }

func refusal(status metav1.Status) *apiserver.Fault {
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	status.Status = metav1.StatusFailure
	body, err := json.Marshal(status)
	if err != nil {
		panic(err)
	}
	return &apiserver.Fault{Status: int(status.Code), Header: http.Header{"Content-Type": {"application/json"}}, Body: string(body)}
}

func TestBatches(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1, gone-c: 1, gone-d: 1, gone-e: 1}}`, paths("status.nodes")...)
	s.target.MaxRemovals = 2
	s.restart()
	write := "PATCH widgets." + s.target.Resource.Group + "/status"
	var waits []string
	s.onWait = func() {
		waits = append(waits, fmt.Sprintf("%d written, %s left", len(s.proxy.Matching(write)), s.left()))
	}
	var progress []string
	s.sweeper.Progress = func(_ types.NamespacedName, removed, left int) {
		progress = append(progress, fmt.Sprintf("%d/%d", removed, left))
	}
	start := s.now
	report := s.sweep()
	s.state(report, OK)
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Remove/NodeGone gone-c=Remove/NodeGone gone-d=Remove/NodeGone gone-e=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":1}`)
	s.equal("waits", strings.Join(waits, "; "), `1 written, {"KEEP0":1,"gone-c":1,"gone-d":1,"gone-e":1} left; 2 written, {"KEEP0":1,"gone-e":1} left`)
	s.equal("progress", strings.Join(progress, " "), "2/3 4/1 5/0")
	if waited := s.now.Sub(start) - s.target.Grace; waited != 2*BatchPause {
		t.Errorf("waited %s between batches, want %s", waited, 2*BatchPause)
	}
	if report.Removed() != 5 {
		t.Errorf("%d removed", report.Removed())
	}
	// Each orphan was asked for once: batches do not ask again for what they do not remove.
	if n := len(s.proxy.Matching("GET nodes")); n != 5+3 {
		t.Errorf("%d requests for Nodes, want 5 and a proof for each of 3 batches", n)
	}
}

// While batches go on, the world does too: a Node that comes back keeps its key, and a failure ends the batches.
func TestBatchesStopWhenConfirmationsFail(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1, gone-c: 1}}`, paths("status.nodes")...)
	s.target.MaxRemovals = 1
	s.restart()
	s.onWait = func() {
		s.onWait = nil
		s.proxy.SetFault(apiserver.On("GET nodes", apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")))
	}
	report := s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone gone-b=Keep/Unconfirmed gone-c=Keep/Unconfirmed KEEP0=Keep/NodeExists")
	s.equal("left", s.left(), `{"KEEP0":1,"gone-b":1,"gone-c":1}`)
	if n := len(s.proxy.Matching("GET nodes")); n != 2+askAttempts {
		t.Errorf("%d requests for Nodes: one failed, so the others need no asking", n)
	}
}

func TestStoppedBetweenBatches(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
	s.target.MaxRemovals = 1
	s.restart()
	ctx, cancel := context.WithCancel(t.Context())
	s.onWait = cancel
	s.sweeper.Look(ctx)
	s.now = s.now.Add(s.target.Grace)
	s.state(s.sweeper.Sweep(ctx), Unavailable, "stopped with 1 still to remove")
	s.equal("left", s.left(), `{"KEEP0":1,"gone-b":1}`)
	s.restart()
	s.onWait = nil
	s.state(s.sweep(), OK)
	s.equal("left at last", s.left(), `{"KEEP0":1}`)
}

// Whatever is removed can be put back by what was logged before the write.
func TestRemovalIsLoggedWithWhatPutsItBack(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: {v: 1}, gone-a: {s: "it's <é> \"q\"", n: 9007199254740993, z: null}}, list: [{name: gone-a, x: 1}, {name: KEEP0}]}`,
		paths("status.nodes", "status.list|name")...)
	before := s.left()
	s.sweep()
	removing := s.logs.FilterMessage("removing").All()
	if len(removing) != 2 {
		t.Fatalf("%d removals logged, want 2", len(removing))
	}
	command := regexp.MustCompile(`^kubectl patch widgets\.v1\.\S+ default --namespace \S+ --subresource status --type json --patch '(.*)'$`)
	for _, entry := range removing {
		fields := entry.ContextMap()
		if fields["reason"] != string(NodeGone) || fields["key"] != "gone-a" || fields["target"] != "scene" || fields["name"] != "default" {
			t.Errorf("logged: %v", fields)
		}
		found := command.FindStringSubmatch(fields["putBack"].(string))
		if found == nil {
			t.Fatalf("no command: %s", fields["putBack"])
		}
		patch := strings.ReplaceAll(found[1], `'\''`, `'`)
		_, err := s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).
			Patch(t.Context(), s.name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatalf("%s: %v", patch, err)
		}
	}
	s.equal("the map, put back", s.left(), before)
	s.equal("the list, put back", s.leftAt(s.target.Paths[1]), `[{"name":"KEEP0"},{"name":"gone-a","x":1}]`)
}

// A server that fails for every Node is not asked for all of them; one Node that cannot be read does not keep the others.
func TestAskingStopsWhenAllFails(t *testing.T) {
	names := make([]string, 100)
	for i := range names {
		names[i] = fmt.Sprintf("gone-%d", i)
	}
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	s.proxy.Reset()
	s.proxy.SetFault(apiserver.On("GET nodes", apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")))
	for name, answer := range s.nodes.Confirm(t.Context(), names, 0) {
		if answer.Existence != Unproved || answer.Why == "" {
			t.Errorf("%s: %+v", name, answer)
		}
	}
	if n := len(s.proxy.Matching("GET nodes")); n > (maxFailures+confirmParallel)*maxAttempts {
		t.Errorf("%d requests", n)
	}

	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Path == nodeNamed("gone-3") {
			return apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")
		}
		return nil
	})
	for name, answer := range s.nodes.Confirm(t.Context(), names, 0) {
		want := Gone
		if name == "gone-3" {
			want = Unproved
		}
		if answer.Existence != want {
			t.Errorf("%s: %+v", name, answer)
		}
	}
}

// fixedNodes knows one Node that exists; every other one is gone.
type fixedNodes struct {
	name string
	now  func() time.Time
}

func (n fixedNodes) Known(name string) Knowledge { return Knowledge{Listed: name == n.name} }

func (n fixedNodes) Confirm(_ context.Context, names []string, _ time.Duration) map[string]NodeAnswer {
	answers := map[string]NodeAnswer{}
	for _, name := range names {
		answers[name] = NodeAnswer{Existence: Gone, At: n.now()}
	}
	return answers
}

// countingNodes counts how many Nodes are asked for.
type countingNodes struct {
	fixedNodes
	asked int
}

func (n *countingNodes) Confirm(ctx context.Context, names []string, fresh time.Duration) map[string]NodeAnswer {
	n.asked += len(names)
	return n.fixedNodes.Confirm(ctx, names, fresh)
}

// A target that is held costs a batch of questions at each sweep, not one for each key.
func TestHeldTargetAsksForOneBatchOnly(t *testing.T) {
	var keys strings.Builder
	for i := range 600 {
		fmt.Fprintf(&keys, "gone-%d, ", i)
	}
	s := newScene(t, 0, "{nodes: ["+keys.String()+"]}", paths("status.nodes|.")...)
	nodes := &countingNodes{fixedNodes: fixedNodes{"elsewhere", s.sweeper.Now}}
	s.sweeper.nodes = nodes
	s.state(s.sweep(), StateHeld)
	if nodes.asked != s.target.MaxRemovals {
		t.Errorf("a sweep asked for %d Nodes, want %d", nodes.asked, s.target.MaxRemovals)
	}
	nodes.asked = 0
	report := s.sweeper.Plan(t.Context())
	s.state(report, StateHeld)
	if nodes.asked != confirmChunk || report.Count(Keep) != 600 {
		t.Errorf("a plan asked for %d Nodes, want %d, and kept %d", nodes.asked, confirmChunk, report.Count(Keep))
	}
}

// A key with many entries: a patch stays below the server's limit all the same, and a key's entries go by one write.
func TestBatchesOfKeysWithManyEntries(t *testing.T) {
	var places []string
	var keys []string
	for i := range 2000 {
		keys = append(keys, fmt.Sprintf(`"gone-%d"`, i))
	}
	for i := range 3 {
		places = append(places, fmt.Sprintf("p%d: [%s]", i, strings.Join(keys, ",")))
	}
	s := newScene(t, 1, "{p: [KEEP0], "+strings.Join(places, ", ")+"}", paths("status.p|.", "status.p0|.", "status.p1|.", "status.p2|.")...)
	s.target.MaxRemovals = MaxRemovalsLimit
	s.restart()
	s.sweeper.nodes = fixedNodes{s.existing[0], s.sweeper.Now}
	report := s.sweep()
	s.state(report, OK)
	for _, at := range s.target.Paths[1:] {
		s.equal("left at "+at.Path.String(), s.leftAt(at), "[]")
	}
	if report.Removed() != 6000 {
		t.Errorf("%d entries removed, want 6,000", report.Removed())
	}
	const maxOperations = 2*MaxRemovalsLimit + 2 // two for each entry, and the guards
	for _, r := range s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status") {
		if ops := strings.Count(r.Body, `"op":`); r.Status != http.StatusOK || ops > maxOperations {
			t.Errorf("a patch of %d operations was answered with %d", ops, r.Status)
		}
	}
}

func TestAnswerThatIsAnotherResource(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.On("GET widgets."+s.target.Resource.Group, &apiserver.Fault{
		Status: 200, Body: `{"metadata":{"name":"another","namespace":"x","uid":"u"},"status":{"nodes":{"gone-a":1}}}`}))
	s.state(s.sweep(), Unavailable, "the answer is x/another")
}

// What is remembered of resources goes with them.
func TestCandidatesOfDeletedResourcesAreForgotten(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.sweeper.Look(t.Context())
	if len(s.sweeper.candidates) != 1 {
		t.Fatalf("%d resources are remembered", len(s.sweeper.candidates))
	}
	s.server.Delete(t, s.target.Resource, s.target.Namespace, s.name)
	s.sweeper.Look(t.Context())
	if len(s.sweeper.candidates) != 0 {
		t.Errorf("%d resources are remembered that are no more", len(s.sweeper.candidates))
	}
}

// Between tries it waits longer each time, and as long as the server says within reason.
func TestBackoff(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	var waits []time.Duration
	s.sweeper.client.wait = func(_ context.Context, d time.Duration) error {
		waits = append(waits, d)
		return nil
	}
	for _, test := range []struct {
		name     string
		fault    *apiserver.Fault
		min, max []time.Duration
	}{
		{"500", apiserver.Refuse(500, metav1.StatusReasonInternalError, "down"),
			[]time.Duration{firstBackoff / 2, firstBackoff}, []time.Duration{firstBackoff, 2 * firstBackoff}},
		{"429 with a time", apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", "3"),
			[]time.Duration{3 * time.Second, 3 * time.Second}, []time.Duration{3 * time.Second, 3 * time.Second}},
		{"429 with an unreasonable time", apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", "86400"),
			[]time.Duration{maxRetryAfter, maxRetryAfter}, []time.Duration{maxRetryAfter, maxRetryAfter}},
	} {
		waits = nil
		s.proxy.SetFault(apiserver.OnEach(test.fault))
		if err := s.nodes.List(t.Context()); err == nil {
			t.Errorf("%s: no error", test.name)
		}
		if len(waits) != maxAttempts-1 {
			t.Errorf("%s: waited %v", test.name, waits)
			continue
		}
		for i, wait := range waits {
			if wait < test.min[i] || wait > test.max[i] {
				t.Errorf("%s: wait %d was %s, want %s to %s", test.name, i, wait, test.min[i], test.max[i])
			}
		}
	}
}

// The proof that a Node is gone is young when the write goes out, whatever happens in between.
func TestProofIsYoungAtTheWrite(t *testing.T) {
	const write = "PATCH widgets."
	t.Run("another Node hangs", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, back: 1, slow: 1}}`, paths("status.nodes")...)
		s.sweep(func() {
			slow := apiserver.FaultFunc(func(r *http.Request) *apiserver.Fault {
				if r.URL.Path != nodeNamed("slow") {
					return nil
				}
				// back's 404 is there when slow is asked for: the proof comes back later than that.
				return &apiserver.Fault{Before: func(*http.Request) {
					apiserver.Eventually(t, "back to be asked for", func() error {
						for _, r := range s.proxy.Matching("GET nodes") {
							if r.Path == nodeNamed("back") && r.Done {
								return nil
							}
						}
						return errors.New("not yet")
					})
					s.server.CreateNode(t, "back", nil)
					s.tick(writeFresh + 1)
				}}
			})
			s.proxy.SetFault(slow.Times(1))
		})
		s.equal("left", s.left(), `{"KEEP0":1,"back":1}`)
	})
	t.Run("the write is refused for a while", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, back2: 1}}`, paths("status.nodes")...)
		s.sweeper.client.wait = func(_ context.Context, d time.Duration) error { s.tick(d); return nil }
		report := s.sweep(func() {
			s.proxy.SetFault(apiserver.On(write+s.target.Resource.Group+"/status", &apiserver.Fault{
				Before: func(*http.Request) { s.server.CreateNode(t, "back2", nil) }, Status: 429,
				Header: http.Header{"Retry-After": {"10"}}, Body: "{}",
			}).Times(1))
		})
		s.state(report, OK)
		s.equal("verdicts", s.verdicts(report), "back2=Keep/NodeExists KEEP0=Keep/NodeExists")
		s.equal("left", s.left(), `{"KEEP0":1,"back2":1}`)
	})
	t.Run("it cannot be renewed", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, old: 1, slow: 1}}`, paths("status.nodes")...)
		s.sweep(func() {
			s.proxy.SetFault(apiserver.On("GET nodes", &apiserver.Fault{Before: func(*http.Request) { s.tick(maxAnswerAge + 1) }}))
		})
		s.equal("left", s.left(), `{"KEEP0":1,"old":1,"slow":1}`)
	})
	t.Run("asking takes long", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {}}`, paths("status.nodes")...)
		s.mergeKeys(keysOf(1, 3*confirmChunk))
		s.target.MaxRemovals = MaxRemovalsLimit
		s.restart()
		s.proxy.SetFault(apiserver.On("GET nodes", &apiserver.Fault{Before: func(*http.Request) { s.tick(confirmTime / confirmChunk) }}))
		s.state(s.sweep(), OK)
		if n := len(s.proxy.Matching(write + s.target.Resource.Group + "/status")); n != 3 {
			t.Errorf("%d writes, want one for each chunk, as asking for more would make the first proofs old", n)
		}
		if left := s.left(); strings.Contains(left, "gone-") {
			t.Errorf("left %s", left)
		}
	})
}

// A write that is held up, on its way or by the server, is given up before the proof is too old: a Node may be back by then.
func TestAWriteTakesEffectInTimeOrNotAtAll(t *testing.T) {
	t.Run("held up on its way", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, back: 1}}`, paths("status.nodes")...)
		patch := "PATCH widgets." + s.target.Resource.Group + "/status"
		begun := time.Now()
		report := s.sweep(func() {
			s.proxy.SetFault(apiserver.On(patch, &apiserver.Fault{Before: func(*http.Request) {
				s.server.CreateNode(t, "back", nil)
				s.tick(maxAnswerAge + writeTime)
			}, Hang: true}).Times(1))
		})
		if took := time.Since(begun); took >= requestTimeout {
			t.Errorf("it took %s", took)
		}
		s.equal("verdicts", s.verdicts(report), "back=Keep/NodeExists KEEP0=Keep/NodeExists")
		s.equal("left", s.left(), `{"KEEP0":1,"back":1}`)
		sent := s.proxy.Matching(patch)
		if limit, err := time.ParseDuration(sent[0].Query.Get("timeout")); err != nil || limit <= 0 || limit > maxAnswerAge+writeTime {
			t.Errorf("the server may take %q, %v", sent[0].Query.Get("timeout"), err)
		}
	})
	t.Run("held up here", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, old: 1}}`, paths("status.nodes")...)
		s.sweeper.Recorded = func() (func() error, error) {
			return func() error { s.tick(maxAnswerAge + writeTime); return nil }, nil
		}
		s.state(s.sweep(), Unavailable, "grew too old before the write")
		s.equal("left", s.left(), `{"KEEP0":1,"old":1}`)
		if n := len(s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status")); n != 0 {
			t.Errorf("%d writes", n)
		}
	})
	t.Run("the oldest proof counts", func(t *testing.T) {
		s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
		s.sweep(func() {
			s.proxy.SetFault(apiserver.On("GET nodes", &apiserver.Fault{Before: func(*http.Request) { s.tick(500 * time.Millisecond) }}))
		})
		s.equal("left", s.left(), `{"KEEP0":1}`)
		limit, _ := time.ParseDuration(s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status")[0].Query.Get("timeout"))
		if limit > maxAnswerAge {
			t.Errorf("the server may take %s, as though the proof were younger than a second", limit)
		}
	})
}

// Many resources with keys of the same Nodes cost as many requests for Nodes as one.
func TestNodesAreAskedForOnceForManyResources(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
	for i := range 20 {
		s.name = fmt.Sprintf("more-%d", i)
		s.create(`{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`)
	}
	s.proxy.Reset()
	report := s.sweeper.Plan(t.Context())
	if n := len(s.proxy.Matching("GET nodes")); n != 3 || report.Count(Remove) != 42 {
		t.Errorf("a plan asked for %d Nodes, want 2 and a proof; %d findings to remove, want 42", n, report.Count(Remove))
	}
	s.proxy.Reset()
	s.now = s.now.Add(time.Hour)
	if report = s.sweep(); report.Removed() != 42 {
		t.Errorf("%d removed, want 42", report.Removed())
	}
	if n := len(s.proxy.Matching("GET nodes")); n != 3 {
		t.Errorf("a sweep asked for %d Nodes, want 2 and a proof", n)
	}
}

func TestPathThatNoResourceHas(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.node", "status.nodes")...)
	s.state(s.sweep(), OK, "no resource has status.node; is the path right?")
}

func TestKeyWithMoreEntriesThanOneWriteTakes(t *testing.T) {
	s := newScene(t, 1, "{nodes: [KEEP0"+strings.Repeat(", gone-a", MaxRemovalsLimit+1)+", gone-b]}", paths("status.nodes|.")...)
	report := s.sweep()
	s.state(report, Invalid, "has 4501 entries of gone-a, more than one write can remove")
	if report.Removed() != 1 {
		t.Errorf("%d removed, want gone-b's one", report.Removed())
	}
}

// A hundred resources that fail for one cause do not make a hundred messages, nor are they all tried.
func TestManyResourcesThatCannotBeRead(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	for i := range 20 {
		s.name = fmt.Sprintf("more-%d", i)
		s.create(`{nodes: {KEEP0: 1}}`)
	}
	get := "GET widgets." + s.target.Resource.Group
	s.proxy.SetFault(apiserver.On(get, apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "down")))
	report := s.sweeper.Plan(t.Context())
	s.state(report, Unavailable, "; and 3 more")
	if n := len(s.proxy.Matching(get)); n != maxReadFailures*maxAttempts {
		t.Errorf("%d requests, want %d", n, maxReadFailures*maxAttempts)
	}
	if len(report.Message) > 1000 {
		t.Errorf("the message has %d bytes: %s", len(report.Message), report.Message)
	}
}
