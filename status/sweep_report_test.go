package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

// That nothing was removed is said where something would have been, and only there: elsewhere it would alarm.
func TestModeReportIsSaidWhereItMatters(t *testing.T) {
	const words = "the mode is Report"
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.target.Mode = Report
	s.restart()
	report := s.sweep()
	s.state(report, OK, words)
	s.equal("verdicts", s.verdicts(report), "gone-a=Remove/NodeGone KEEP0=Keep/NodeExists")
	s.merge(`{"status": {"nodes": {"gone-a": null, "gone-b": 1}}}`)
	for range 2 { // first it waits, then it is alone with what exists
		report = s.sweeper.Sweep(t.Context())
		if report.State != OK || report.Message != "" {
			t.Errorf("%s: %q, although nothing would have been removed", s.verdicts(report), report.Message)
		}
		s.merge(`{"status": {"nodes": {"gone-b": null}}}`)
	}
	s.merge(`{"status": {"nodes": {"gone-c": 1}}}`)
	report = s.sweeper.Plan(t.Context())
	s.equal("verdicts", s.verdicts(report), "gone-c=Remove/NodeGone KEEP0=Keep/NodeExists")
	if report.Message != "" {
		t.Errorf("a plan says %q", report.Message)
	}
}

// It does not matter which of the resources shows that the target's keys are nodes' names.
func TestAnyResourceTellsThatKeysAreNodeNames(t *testing.T) {
	for _, first := range []string{`{nodes: {KEEP0: 1}}`, `{nodes: {gone-a: 1}}`} {
		s := newScene(t, 1, first, paths("status.nodes")...)
		for name, text := range map[string]string{"a": `{nodes: {gone-a: 1}}`, "m": `{nodes: {KEEP0: 1}}`, "z": `{nodes: {gone-a: 1}}`} {
			s.name = name
			s.create(text)
		}
		report := s.sweep()
		s.state(report, OK)
		for _, name := range []string{"a", "z"} {
			s.name = name
			s.equal(name+" has left", s.left(), `{}`)
		}
	}
}

// Has is what an agent's schedule goes by when another agent leaves: it is about the last pass, and about any of the resources.
func TestHasAKey(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}, peers: [{name: gone-a}, {}]}`, paths("status.nodes", "status.peers|name")...)
	expect := func(what string, want map[string]bool) {
		t.Helper()
		for key, has := range want {
			if s.sweeper.Has(key) != has {
				t.Errorf("%s: has %q: %t", what, key, !has)
			}
		}
	}
	node := s.existing[0]
	expect("before the first pass", map[string]bool{node: false, "gone-a": false})
	s.sweeper.Look(t.Context())
	expect("one resource", map[string]bool{node: true, "gone-a": true, "gone-b": false, "": false})
	s.name = "other"
	s.create(`{nodes: {gone-b: 1}}`)
	s.sweeper.Look(t.Context())
	expect("two", map[string]bool{node: true, "gone-a": true, "gone-b": true, "": false})
	s.server.Delete(t, s.target.Resource, s.target.Namespace, "other")
	s.sweeper.Look(t.Context())
	expect("one again", map[string]bool{node: true, "gone-a": true, "gone-b": false})
	s.name = "default"
	s.merge(`{"status": {"nodes": null}}`)
	s.sweeper.Look(t.Context())
	expect("without its keys", map[string]bool{node: false, "gone-a": true})
}

// The times that the proof of a Node's absence is bounded by, taken together: none may be changed without the others in mind.
func TestTimesOfAProofFitTogether(t *testing.T) {
	const asking = askAttempts*askTimeout + (askAttempts-1)*askPatience
	if asking >= maxAnswerAge {
		t.Errorf("one Node that hangs takes %s, and makes the others' answers older than %s", asking, maxAnswerAge)
	}
	if writeFresh >= maxAnswerAge/2 {
		t.Errorf("an answer that is %s old is not renewed; a write that takes as long again would be too late", writeFresh)
	}
	if confirmTime > writeFresh {
		t.Errorf("a batch asks for %s, and would have to renew its own first answers, which may be %s old", confirmTime, writeFresh)
	}
	if planFresh < time.Minute {
		t.Errorf("a plan asks again after %s, so that the same dead Nodes in many resources cost many requests", planFresh)
	}
}

// A pass that is told to stop ends with the request that is under way.
func TestAPassThatIsToldToStop(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	for _, name := range []string{"a", "b", "z"} {
		s.name = name
		s.create(`{nodes: {KEEP0: 1}}`)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.proxy.SetFault(apiserver.On("GET widgets."+s.target.Resource.Group, &apiserver.Fault{Hang: true, Before: func(*http.Request) { cancel() }}))
	report := s.sweeper.Sweep(ctx)
	s.state(report, Unavailable)
	if n := len(s.proxy.Matching("GET widgets." + s.target.Resource.Group)); n != 1 {
		t.Errorf("%d resources were read after the pass was told to stop", n-1)
	}
}

// Resources that are there and may not be read cost one request each, so however many there are the others are read too.
func TestManyResourcesThatMayNotBeRead(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	for i := range maxReadFailures + 1 {
		s.name = fmt.Sprintf("closed-%d", i) // they come before the one that may be read
		s.create(`{nodes: {KEEP0: 1}}`)
	}
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if strings.Contains(r.URL.Path, "/closed-") {
			return apiserver.Refuse(http.StatusForbidden, "Forbidden", "not that one")
		}
		return nil
	})
	s.state(s.sweep(), Forbidden, "not that one")
	s.name = "default"
	s.equal("left", s.left(), `{"KEEP0":1}`)
}

// The last of the resources that are tried in vain leaves none that is not tried.
func TestNoneIsSaidToBeLeftWhereNoneIs(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	s.target.Names = make([]string, maxReadFailures)
	for i := range s.target.Names {
		s.target.Names[i] = fmt.Sprintf("broken-%d", i)
	}
	s.restart()
	s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(http.StatusInternalServerError, "InternalError", "down")))
	report := s.sweeper.Sweep(t.Context())
	s.state(report, Unavailable, "down")
	if causes := fmt.Sprintf("; and %d more", maxReadFailures-maxMessages); !strings.HasSuffix(report.Message, causes) {
		t.Errorf("the message is %q; so many failed, and all were tried", report.Message)
	}
}

// Where the API server does not serve the resource, one of its objects tells as much as all.
func TestNotInstalledIsFoundOutOnce(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	s.target.Names = []string{"a", "b", "c"}
	s.target.Resource.Group = "not-installed.example.com"
	s.restart()
	s.proxy.Reset()
	s.state(s.sweeper.Sweep(t.Context()), NotInstalled)
	if n := len(s.proxy.Matching("GET widgets.not-installed.example.com")); n != 1 {
		t.Errorf("%d requests for its objects, want 1", n)
	}
}
