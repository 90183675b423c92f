package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// steps are the steps of the agent's stop that it has logged so far.
func (m *member) steps() []string {
	var steps []string
	for _, e := range m.logs.All() {
		if step, ok := e.ContextMap()["step"].(string); ok {
			steps = append(steps, step)
		}
	}
	return steps
}

// The order of a stop's steps is what keeps one from undoing another: while the node's keys are cleared nothing is swept or published any
// more, the others know that this agent leaves, and it is still one of them.
func TestTheStepsOfAStopAreInOrder(t *testing.T) {
	s := newScene(t)
	defer s.dump()
	s.withReport()
	name, other := s.node(), s.node()
	s.create(name, other)
	m := s.member(name)
	m.config("  onStop: Always", quick)
	m.start()
	s.awaitMembers(1)
	s.published(name)
	a := m.agent
	seen := make(chan string, 1) // at the write that clears the key
	m.proxy.SetFault(apiserver.On(s.class("PATCH")+"/status", &apiserver.Fault{Before: func(*http.Request) {
		self, member := a.cluster.Member(name)
		seen <- fmt.Sprintf("%q; member: %t, leaving: %t, ready: %t", m.steps(), member, self.Leaving, a.conditions()[0].OK)
	}}).Times(1))
	if err := m.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	want := `["say that this agent leaves" "end sweeps"]; member: true, leaving: true, ready: false`
	if got := <-seen; got != want {
		t.Errorf("while the key was cleared:\n got %s\nwant %s", got, want)
	}
	all := []string{"say that this agent leaves", "end sweeps", "clear this node's keys", "end publishing", "leave gossip", "save the journal of pod addresses", "send events", "close HTTP"}
	if got := m.steps(); !slices.Equal(got, all) {
		t.Errorf("the steps were %q, want %q", got, all)
	}
	if got := s.keys(); !sameKeys(got, []string{other}) {
		t.Errorf("the shared resource has %v", got)
	}
	if got := s.reported("nodes"); len(got) != 0 {
		t.Errorf("the SweepReport has %v", got)
	}
}

// What a stop does not clear: where the mode is Report it says what it would have done.
func TestAStopClearsOnlyWhatItIsToldTo(t *testing.T) {
	for name, test := range map[string]struct {
		config []string
		words  string // what it says
	}{
		"the mode is Report": {[]string{"  onStop: Always", "mode: Report"}, "would be cleared, but the mode is Report"},
		"the target's is":    {[]string{"  onStop: Always", "  mode: Report"}, "would be cleared, but the mode is Report"},
		"onStop is Never":    {[]string{"  onStop: Never"}, "this node's key stays"},
		"the node stays":     {[]string{"  onStop: NodeLeaving"}, "this node's key stays"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			defer s.dump()
			node := s.node()
			s.create(node)
			m := s.member(node)
			m.config(append(test.config, quick)...)
			m.start()
			s.awaitMembers(1)
			if strings.HasSuffix(name, "Never") {
				s.server.DeleteNode(t, node) // also then
			}
			if err := m.stop(); err != nil {
				t.Errorf("stop: %v", err)
			}
			if got := s.keys(); !sameKeys(got, []string{node}) {
				t.Errorf("the keys are %v", got)
			}
			if n := m.proxy.Counts()[s.class("PATCH")+"/status"]; n != 0 {
				t.Errorf("%d writes", n)
			}
			if m.logs.FilterMessageSnippet(test.words).Len() == 0 {
				t.Errorf("it does not say that %s", test.words)
			}
		})
	}
}

// An agent that never came to work leaves alone what is under its node's name: it is the work of the one that has its port.
func TestAnAgentThatNeverWorkedClearsNothing(t *testing.T) {
	s := newScene(t)
	defer s.dump()
	s.withReport()
	name := s.node()
	s.create(name)
	m := s.member(name)
	m.config("  onStop: Always", quick)
	m.start()
	s.awaitMembers(1)
	s.published(name)

	second := s.member(name)
	second.ip = m.ip
	second.config("  onStop: Always", quick)
	second.start()
	if err := second.wait(); err == nil || !strings.Contains(err.Error(), "the port is in use") {
		t.Errorf("it ended with %v", err)
	}
	second.agent = nil
	for _, r := range second.proxy.Requests() {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
	if got := s.keys(); !sameKeys(got, []string{name}) {
		t.Errorf("the keys are %v", got)
	}
	if got := s.reported("nodes"); len(got) != 1 {
		t.Errorf("the SweepReport has %v", got)
	}
	s.agents[name] = m
}

// The SweepReport is one resource that is named, so that nobody lists SweepReports to find it; and its keys are the agents', whose names
// are all nodes' names.
func TestTheSweepReportAsATarget(t *testing.T) {
	c := mustParse(t, "report: {name: all}\ngrace: 30s\nmode: Report")
	target := c.reportTarget()
	if !target.NamesAll() || target.UnknownKeys != status.RemoveUnknown || target.Mode != status.Report || target.Grace != 30*time.Second {
		t.Errorf("%+v", target)
	}
	units := unitsOf(target)
	if len(units) != 1 || units[0].key != "unstale.dev/sweepreports//all" || units[0].resource() != "" {
		t.Errorf("%+v", units)
	}
}
