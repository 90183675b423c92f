package status

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

func TestDecideIncarnation(t *testing.T) {
	node := OwnNode{Existence: Exists, UID: "new", Created: noon, FirstWritten: noon, ClockKnown: true}
	before := func(d time.Duration) []string { return []string{noon.Add(-d).Format(time.RFC3339)} }
	waited := Candidate{Since: noon, Looks: 2}
	old := before(time.Hour)
	with := func(change func(*OwnNode)) OwnNode {
		n := node
		change(&n)
		return n
	}
	for _, test := range []struct {
		name string
		e    IncarnationEvidence
		want string
	}{
		{"the Node cannot be read", IncarnationEvidence{Node: OwnNode{Existence: Unproved, Why: "down"}, UIDs: []string{"old"}}, "Keep Unconfirmed"},
		{"nobody asked", IncarnationEvidence{UIDs: []string{"old"}}, "Keep Unconfirmed"},
		{"the Node is gone", IncarnationEvidence{Node: OwnNode{Existence: Gone}, UIDs: []string{"old"}}, "Keep Unconfirmed"},
		{"its UID", IncarnationEvidence{Node: node, UIDs: []string{"new"}, Times: old, Candidate: waited}, "Keep SameIncarnation"},
		{"another UID, at once", IncarnationEvidence{Node: node, UIDs: []string{"old"}}, "Remove EarlierIncarnation"},
		{"another UID, with a fresh time", IncarnationEvidence{Node: node, UIDs: []string{"old"}, Times: before(-time.Hour)}, "Remove EarlierIncarnation"},
		{"another UID, kept", IncarnationEvidence{Node: node, UIDs: []string{"old"}, Kept: true}, "Keep KeptByAnnotation"},
		{"both UIDs", IncarnationEvidence{Node: node, UIDs: []string{"old", "new"}}, "Keep SameIncarnation"},
		{"another UID, and something strange", IncarnationEvidence{Node: node, UIDs: []string{"old"}, Problems: []string{"x"}}, "Keep AgeUnknown"},
		{"nothing", IncarnationEvidence{Node: node, Candidate: waited}, "Keep AgeUnknown"},
		{"a time that is none", IncarnationEvidence{Node: node, Times: []string{"yesterday"}, Candidate: waited}, "Keep AgeUnknown"},
		{"a time that was never set", IncarnationEvidence{Node: node, Times: []string{"0001-01-01T00:00:00Z"}, Candidate: waited}, "Keep AgeUnknown"},
		{"the time of a clock that was not set", IncarnationEvidence{Node: node, Times: []string{"1970-01-01T00:01:00Z"}, Candidate: waited}, "Keep AgeUnknown"},
		{"an old time and one never set", IncarnationEvidence{Node: node, Times: append([]string{"0001-01-01T00:00:00Z"}, old...), Candidate: waited}, "Keep AgeUnknown"},
		{"a time without a zone", IncarnationEvidence{Node: node, Times: []string{"2020-01-01 00:00:00"}, Candidate: waited}, "Keep AgeUnknown"},
		{"an old time and one that is none", IncarnationEvidence{Node: node, Times: append([]string{"?"}, old...), Candidate: waited}, "Keep AgeUnknown"},
		{"old, waited for", IncarnationEvidence{Node: node, Times: old, Candidate: waited}, "Remove EarlierIncarnation"},
		{"10 minutes and a second", IncarnationEvidence{Node: node, Times: before(10*time.Minute + time.Second), Candidate: waited}, "Remove EarlierIncarnation"},
		{"10 minutes", IncarnationEvidence{Node: node, Times: before(10 * time.Minute), Candidate: waited}, "Keep SameIncarnation"},
		{"one old, one fresh", IncarnationEvidence{Node: node, Times: append(before(0), old...), Candidate: waited}, "Keep SameIncarnation"},
		{"old, in another zone", IncarnationEvidence{Node: node, Times: []string{"2026-07-01T12:00:00+05:00"}, Candidate: waited}, "Remove EarlierIncarnation"},
		{"old, kept", IncarnationEvidence{Node: node, Times: old, Candidate: waited, Kept: true}, "Keep KeptByAnnotation"},
		{"old, first look", IncarnationEvidence{Node: node, Times: old, Candidate: Candidate{Since: noon.Add(time.Minute), Looks: 1}}, "Wait Waiting"},
		{"old, one look", IncarnationEvidence{Node: node, Times: old, Candidate: Candidate{Since: noon, Looks: 1}}, "Wait Waiting"},
		{"old, no look", IncarnationEvidence{Node: node, Times: old}, "Wait Waiting"},
		{"old, changed", IncarnationEvidence{Node: node, Times: old, Candidate: Candidate{Since: noon, Looks: 2, Changed: true}}, "Wait Changed"},
		{"the clock is unknown", IncarnationEvidence{Node: with(func(n *OwnNode) { n.ClockKnown = false }), Times: old, Candidate: waited}, "Keep ClockDoubtful"},
		{"the clock is behind", IncarnationEvidence{Node: with(func(n *OwnNode) { n.ClockOff = -6 * time.Minute }), Times: old, Candidate: waited}, "Keep ClockDoubtful"},
		{"the clock is ahead", IncarnationEvidence{Node: with(func(n *OwnNode) { n.ClockOff = 6 * time.Minute }), Times: old, Candidate: waited}, "Keep ClockDoubtful"},
		{"the clock is a little off", IncarnationEvidence{Node: with(func(n *OwnNode) { n.ClockOff = 5 * time.Minute }), Times: old, Candidate: waited}, "Remove EarlierIncarnation"},
		{"the clock was behind", IncarnationEvidence{Node: with(func(n *OwnNode) { n.FirstWritten = noon.Add(-6 * time.Minute) }), Times: old, Candidate: waited}, "Keep ClockDoubtful"},
		{"no conditions", IncarnationEvidence{Node: with(func(n *OwnNode) { n.FirstWritten = time.Time{} }), Times: old, Candidate: waited}, "Keep ClockDoubtful"},
		{"another UID, whatever the clock", IncarnationEvidence{Node: with(func(n *OwnNode) { n.ClockKnown = false }), UIDs: []string{"old"}}, "Remove EarlierIncarnation"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.e.Now, test.e.Grace = noon.Add(time.Minute), time.Minute
			d := DecideIncarnation(test.e)
			if got := fmt.Sprintf("%s %s", d.Verdict, d.Reason); got != test.want || d.Message == "" {
				t.Errorf("%s (%s), want %s", got, d.Message, test.want)
			}
		})
	}
}

var withUID = IncarnationRule{NodeUIDPath: FieldPath{"nodeUID"}, TimestampPath: FieldPath{"at", "time"}, Grace: time.Minute, Mode: Enforce}

// looks checks one look's verdict.
func (s *ownScene) looks(c *IncarnationCheck, want string, words ...string) {
	s.Helper()
	d, err := c.Look(s.Context())
	if err != nil {
		s.Error(err)
	}
	if got := fmt.Sprintf("%s %s", d.Verdict, d.Reason); got != want {
		s.Errorf("%s (%s), want %s", got, d.Message, want)
	}
	for _, w := range words {
		if !strings.Contains(d.Message, w) {
			s.Errorf("the message %q does not say %q", d.Message, w)
		}
	}
}

// registered gives the Node the condition that a kubelet writes as it registers, off by the difference of the clocks.
func (s *ownScene) registered(off time.Duration) {
	s.Helper()
	created := s.server.Get(s, apiserver.Nodes, "", s.existing[0]).GetCreationTimestamp().Time
	s.server.SetStatus(s, apiserver.Nodes, "", s.existing[0], map[string]any{"conditions": []any{
		map[string]any{"type": "MemoryPressure", "status": "False", "lastTransitionTime": created.Add(off).Format(time.RFC3339)},
	}})
}

// realClock lets the key's clock run, s.waited() ahead: the incarnation check compares it with the API server's.
func (s *ownScene) realClock() {
	s.key.Now = func() time.Time { return time.Now().Add(s.waited()) }
}

func (s *ownScene) write(json string) {
	s.Helper()
	s.merge(fmt.Sprintf(`{"status":{"nodes":{%q:%s}}}`, s.existing[0], json))
}

// A Node is replaced by one of the same name: its agent clears the old entry, and no fresh one, whatever its clock says.
func TestSameNamedReplacement(t *testing.T) {
	s := newOwnScene(t, `{nodes: {other: 1}}`, paths("status.nodes")...)
	oldUID := s.nodeUID()
	s.write(fmt.Sprintf(`{"nodeUID":%q}`, oldUID))
	s.replaceNode()
	s.looks(NewIncarnationCheck(s.key, withUID), "Remove EarlierIncarnation", oldUID)
	s.equal("left", s.left(), `{"other":1}`)
	s.looks(NewIncarnationCheck(s.key, withUID), "Keep NoKey")
	for _, at := range []string{"1970-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "nonsense"} {
		fresh := fmt.Sprintf(`{"at":{"time":%q},"nodeUID":%q}`, at, s.nodeUID())
		s.write(fresh)
		check := NewIncarnationCheck(s.key, withUID)
		s.looks(check, "Keep SameIncarnation")
		s.clock.Add(int64(time.Hour))
		s.looks(check, "Keep SameIncarnation")
		s.equal("left", s.left(), `{"KEEP0":`+fresh+`,"other":1}`)
	}
}

// The fresh entry comes between look and write: it stays.
func TestFreshEntryBetweenLookAndWrite(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.write(`{"nodeUID":"old"}`)
	fresh := fmt.Sprintf(`{"nodeUID":%q}`, s.nodeUID())
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Before: func(*http.Request) { s.write(fresh) }}).Times(1))
	check := NewIncarnationCheck(s.key, withUID)
	s.looks(check, "Wait Changed")
	s.looks(check, "Keep SameIncarnation")
	s.equal("left", s.left(), `{"KEEP0":`+fresh+`}`)
}

// The Node is replaced while the old one's agent looks, and the new Node's entry comes before the old agent has asked for the Node:
// it is not taken for an earlier one's.
func TestLookOfAReplacedNodesAgent(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.write(fmt.Sprintf(`{"nodeUID":%q}`, s.nodeUID()))
	fresh := ""
	s.proxy.SetFault(apiserver.On(s.getClass(), &apiserver.Fault{Before: func(*http.Request) {
		s.replaceNode()
		fresh = fmt.Sprintf(`{"nodeUID":%q}`, s.nodeUID())
		s.write(fresh)
	}}).Times(1))
	s.looks(NewIncarnationCheck(s.key, withUID), "Keep SameIncarnation")
	s.equal("left", s.left(), `{"KEEP0":`+fresh+`}`)
}

// Entries without a UID: by their time, if the clocks can be trusted.
func TestEarlierIncarnationByTime(t *testing.T) {
	rule := withUID
	rule.NodeUIDPath = nil
	old := fmt.Sprintf(`{"at":{"time":%q}}`, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))

	t.Run("waits a grace", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {other: 1}}`, paths("status.nodes")...)
		s.realClock()
		s.registered(0)
		s.write(old)
		check := NewIncarnationCheck(s.key, rule)
		s.looks(check, "Wait Waiting")
		s.clock.Add(int64(time.Minute))
		s.looks(check, "Remove EarlierIncarnation", "an earlier node of this name left it")
		s.equal("left", s.left(), `{"other":1}`)
	})
	t.Run("changes", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
		s.realClock()
		s.registered(0)
		s.write(old)
		check := NewIncarnationCheck(s.key, rule)
		s.looks(check, "Wait Waiting")
		s.write(`{"x":1}`)
		s.clock.Add(int64(time.Minute))
		s.looks(check, "Wait Changed")
	})
	// The new node's clock is behind, or was when it wrote its entry, so the entry looks old.
	t.Run("a fresh entry of a node whose clock is behind", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
		s.realClock()
		s.registered(0)
		s.write(old)
		s.clock.Add(-int64(time.Hour))
		check := NewIncarnationCheck(s.key, rule)
		s.looks(check, "Keep ClockDoubtful", "off the API server's")
		s.clock.Add(int64(time.Minute))
		s.looks(check, "Keep ClockDoubtful")
	})
	t.Run("a fresh entry of a node whose clock was behind", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
		s.realClock()
		s.registered(-time.Hour)
		s.write(old)
		check := NewIncarnationCheck(s.key, rule)
		s.looks(check, "Keep ClockDoubtful", "clock was behind")
		s.clock.Add(int64(time.Minute))
		s.looks(check, "Keep ClockDoubtful")
		s.equal("left", s.left(), `{"KEEP0":`+old+`}`)
	})
}

func TestIncarnationLookFails(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.write(`{"nodeUID":"old","at":{"time":7}}`)
	left := `{"KEEP0":{"at":{"time":7},"nodeUID":"old"}}`
	check := NewIncarnationCheck(s.key, withUID)

	s.proxy.SetFault(apiserver.On("GET nodes", apiserver.Refuse(403, metav1.StatusReasonForbidden, "no")))
	s.looks(check, "Keep Unconfirmed", "get nodes")
	s.proxy.SetFault(apiserver.On(s.getClass(), apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")))
	if d, err := check.Look(t.Context()); err == nil || d.Verdict != Keep {
		t.Errorf("%+v, %v", d, err)
	}
	s.proxy.SetFault(apiserver.On(s.patchClass(), apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")))
	if d, err := check.Look(t.Context()); err == nil || d.Verdict != Keep {
		t.Errorf("%+v, %v", d, err)
	}
	s.proxy.SetFault(nil)
	s.equal("left", s.left(), left)

	report := withUID
	report.Mode = Report
	s.looks(NewIncarnationCheck(s.key, report), "Remove EarlierIncarnation")
	s.equal("left by mode Report", s.left(), left)
	s.key.Recorded = func() (func() error, error) { return func() error { return errors.New("the disk is full") }, nil }
	if d, err := check.Look(t.Context()); err == nil || d.Verdict != Keep || !strings.Contains(err.Error(), "the disk is full") {
		t.Errorf("%+v, %v", d, err)
	}
	s.equal("left", s.left(), left)
	s.key.Recorded = nil
	s.annotate("true")
	s.looks(check, "Keep KeptByAnnotation")
	s.annotate("no")
	strange := withUID
	strange.NodeUIDPath = FieldPath{"at"}
	s.looks(NewIncarnationCheck(s.key, strange), "Keep AgeUnknown", "at is no string")
	s.looks(check, "Remove EarlierIncarnation")
	s.equal("left", s.left(), `{}`)
	s.server.Delete(t, s.target.Resource, s.target.Namespace, s.name)
	s.looks(check, "Keep NoKey", "does not exist")
}

// Beside an agent that publishes its own entry: that one is not an earlier Node's, whatever it says.
func TestIncarnationOfWhatWasPublished(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	if err := s.key.Publish(t.Context(), map[string]any{"nodeUID": "unheard of"}); err != nil {
		t.Fatal(err)
	}
	s.looks(NewIncarnationCheck(s.key, withUID), "Keep SameIncarnation", "published it")
}

// Places that hold names only do not keep an earlier Node's entry from being told; all places are cleared together.
func TestIncarnationInSeveralPlaces(t *testing.T) {
	s := newOwnScene(t, `{items: [{name: KEEP0, uid: old}, {name: other}], names: [other, KEEP0]}`, paths("status.items|name", "status.names|.")...)
	s.looks(NewIncarnationCheck(s.key, IncarnationRule{NodeUIDPath: FieldPath{"uid"}}), "Remove EarlierIncarnation")
	s.equal("items", s.left(), `[{"name":"other"}]`)
	s.equal("names", s.leftAt(s.target.Paths[1]), `["other"]`)
}
