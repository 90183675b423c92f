package agent

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// A keysScene is what an agent that owns the SweepReport knows after a pass over it. The agent itself does not run: it gossips, with
// nobody but itself, and that is all.
type keysScene struct {
	*scene
	agent  *Agent
	passes *passes
	proxy  *apiserver.Proxy
	name   string
}

func newKeysScene(t *testing.T) *keysScene {
	t.Helper()
	s := newScene(t)
	s.withReport()
	m := s.member(s.node())
	m.config()
	a, err := New(Options{ConfigFile: m.file, Node: m.name, Role: gossip.Agent, API: m.proxy.Config(), UserAgent: "unstale-test", Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	if a.cluster, err = gossip.New(gossip.Config{Name: m.name, Label: s.namespace, Role: gossip.Agent, BindAddress: m.ip, Insecure: true}); err != nil {
		t.Fatal(err)
	}
	running := begin("gossip", nil, a.cluster.Run)
	t.Cleanup(func() {
		a.cluster.Close()
		running.end(context.Background())
	})
	<-a.cluster.Ready()
	a.evidence = newEvidence(status.NewNodes(a.client), a.cluster, m.name)
	a.ownKeys = &ownKeys{node: m.name, client: a.client, log: a.log}
	a.publisher = newPublisher(a.ownKeys, func() int { return 1 }, a.log)
	a.report.use(s.report)
	return &keysScene{s, a, newPasses(a), m.proxy, m.name}
}

// joined tells the evidence since when the agent has been a member.
func (s *keysScene) joined(at time.Time) {
	s.agent.evidence.mu.Lock()
	defer s.agent.evidence.mu.Unlock()
	s.agent.evidence.joined[s.name] = at
}

// after plays a pass that found these keys, and tells whether the agent asked itself to publish its key.
func (s *keysScene) after(now time.Time, findings ...status.Finding) (asked bool) {
	s.Helper()
	report := &status.TargetReport{Target: reportTarget, State: status.OK, Resources: []status.ResourceReport{{Name: s.report, Findings: findings}}}
	s.passes.lookAfterKeys(s.Context(), report, now)
	p := s.agent.publisher
	p.mu.Lock()
	defer p.mu.Unlock()
	asked, p.forget = p.forget, false
	return asked
}

// configure configures targets of one resource each.
func (s *keysScene) configure(names ...string) {
	var targets []status.Target
	for _, name := range names {
		targets = append(targets, status.Target{Name: name, Resource: s.resource, Namespace: s.namespace, Names: []string{"shared"}})
	}
	s.passes.configure(targets, false)
}

func (s *keysScene) lost(want int) {
	s.Helper()
	expectSamples(s.T, s.agent.metrics, "unstale_lost_keys_total", fmt.Sprint("unstale_lost_keys_total ", want))
}

// Whose key is missing is asked to publish it: at once where it was there before, and otherwise when it has had the time to.
func TestWhoseKeyIsMissingIsAsked(t *testing.T) {
	s := newKeysScene(t)
	now := time.Now()
	there := status.Finding{Key: s.name, Verdict: status.Keep, Reason: status.MemberAlive}
	removed := status.Finding{Key: s.name, Verdict: status.Remove, Reason: status.NodeGone, Removed: true}
	expect := func(what string, asked, want bool, lost int) {
		t.Helper()
		if asked != want {
			t.Errorf("%s: asked to publish: %t", what, asked)
		}
		s.lost(lost)
	}
	s.joined(now)
	expect("it has just joined", s.after(now), false, 0)
	expect("it has had its time", s.after(now.Add(publishTime)), false, 0)
	expect("and more than that", s.after(now.Add(publishTime+1)), true, 0)
	expect("still missing", s.after(now.Add(2*publishTime)), true, 0)
	expect("it is there", s.after(now, there), false, 0)
	expect("it is not", s.after(now), true, 0) // it may be leaving, and the news of it on its way
	expect("it did as it was asked", s.after(now, there), false, 0)
	expect("it is not there again", s.after(now), true, 0)
	expect("nor is it soon after", s.after(now.Add(publishTime-1)), true, 0)
	expect("nor when it has had its time", s.after(now.Add(publishTime)), true, 1)
	expect("it is asked as one that is new", s.after(now), false, 1)
	expect("it is there again", s.after(now, there), false, 1)
	expect("this pass removed it", s.after(now, removed), true, 1)
	expect("and the next one again", s.after(now.Add(publishTime), removed), true, 2)

	// What was seen of another life of that agent says nothing of this one.
	s.after(now, there)
	s.passes.keyOf[s.name]++
	expect("it was restarted meanwhile", s.after(now), false, 2)
	s.after(now, there)
	expect("it is missing once", s.after(now), true, 2)
	s.passes.goneOf[s.name] = goneKey{s.passes.goneOf[s.name].incarnation + 1, now}
	expect("and restarted then", s.after(now), false, 2)

	// What cannot be read tells nothing; what was known stays.
	s.after(now, there)
	s.passes.lookAfterKeys(t.Context(), &status.TargetReport{State: status.Unavailable}, now)
	expect("a pass that failed came between", s.after(now), true, 2)
	s.passes.lookAfterKeys(t.Context(), &status.TargetReport{State: status.Unavailable}, now)
	expect("and once more", s.after(now.Add(publishTime)), true, 3)

	// Nor does what was seen before another agent owned the SweepReport.
	s.after(now, there)
	s.passes.ended(&unitsOf(s.agent.config.reportTarget())[0])
	expect("another owned it meanwhile", s.after(now), false, 3)
	s.after(now, there)
	s.after(now)
	s.passes.ended(&unitsOf(s.agent.config.reportTarget())[0])
	expect("after it was missing once", s.after(now), false, 3)

	// Who leaves takes its key away itself.
	s.after(now, there)
	expect("it has cleared its key, and nobody knows why", s.after(now), true, 3)
	s.agent.cluster.SetLeaving()
	apiserver.Eventually(t, "it is known to leave", func() error {
		if m, _ := s.agent.cluster.Member(s.name); !m.Leaving {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	expect("it leaves", s.after(now.Add(time.Hour)), false, 3)
}

// Beyond what a SweepReport holds, keys are missing on purpose; the report is trimmed after each pass, and once more when they are fewer.
func TestNobodyIsAskedWhereThereAreTooMany(t *testing.T) {
	s := newKeysScene(t)
	now := time.Now()
	s.joined(now.Add(-time.Hour))
	many := make([]status.Finding, status.MaxNodeKeys+1)
	for i := range many {
		many[i] = status.Finding{Key: fmt.Sprint("node-x", i), Verdict: status.Keep, Reason: status.MemberAlive}
	}
	requests := func(what string, findings []status.Finding, asked bool, most int) {
		t.Helper()
		s.proxy.Reset()
		if got := s.after(now, findings...); got != asked {
			t.Errorf("%s: asked to publish: %t", what, got)
		}
		if got := s.proxy.Counts()["GET sweepreports.unstale.dev"]; got > most || got == 0 && most > 0 {
			t.Errorf("%s: %d reads of the SweepReport, want %d at most", what, got, most)
		}
	}
	requests("as many as it holds", many[:status.MaxNodeKeys], true, 0)
	requests("too many", many, false, 1)
	requests("still too many", many, false, 1)
	requests("fewer", many[:10], true, 1) // trimmed once more
	requests("still fewer", many[:10], true, 0)
	s.lost(0)
}

// Entries of targets that are no more go once, after the first pass with a new configuration; when that fails, after the next.
func TestEntriesOfFormerTargetsGo(t *testing.T) {
	s := newKeysScene(t)
	now := time.Now()
	s.joined(now)
	s.server.PatchStatus(t, status.SweepReports, "", s.report, `{"status": {"targets": {"former": {"state": "OK"}, "present": {"state": "OK"}}}}`)
	left := func(what string, want int) {
		t.Helper()
		if got := s.reported("targets"); len(got) != want || got["present"] == nil {
			t.Errorf("%s: the targets are %v", what, got)
		}
	}
	s.after(now)
	left("no configuration yet", 2)
	s.configure("present")
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", apiserver.Refuse(403, "Forbidden", "no")))
	s.after(now)
	left("refused", 2)
	s.proxy.SetFault(nil)
	s.after(now)
	left("the pass after that", 1)
	s.proxy.Reset()
	s.after(now)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests although nothing is left", n)
	}
	// Another agent owned it for a while, with another configuration perhaps.
	s.passes.ended(&unitsOf(s.agent.config.reportTarget())[0])
	s.proxy.Reset()
	s.after(now)
	if n := s.proxy.Counts()["GET sweepreports.unstale.dev"]; n == 0 {
		t.Error("what the owner in between wrote was not looked at")
	}
}

// What another agent wrote that has a newer configuration stays at first. Until it is dropped, or is old, it is looked for every hour.
func TestEntriesThatAreNewStay(t *testing.T) {
	s := newKeysScene(t)
	now := time.Now()
	s.joined(now)
	s.server.PatchStatus(t, status.SweepReports, "", s.report, fmt.Sprintf(
		`{"status": {"targets": {"new": {"state": "OK", "lastSweep": %q}, "present": {"state": "OK"}}}}`, now.UTC().Format(time.RFC3339)))
	s.configure("present")
	looks := func(what string, at time.Time, want int) {
		t.Helper()
		s.proxy.Reset()
		s.after(at)
		if n := s.proxy.Counts()["GET sweepreports.unstale.dev"]; n != want {
			t.Errorf("%s: %d looks, want %d", what, n, want)
		}
		if s.reported("targets")["new"] == nil {
			t.Errorf("%s: it is gone", what)
		}
	}
	looks("the first pass", now, 2) // and one to trim
	looks("the next", now.Add(time.Minute), 0)
	looks("within the hour", now.Add(dropInterval-1), 0)
	looks("after an hour", now.Add(dropInterval), 1)
	looks("the next after that", now.Add(dropInterval+time.Minute), 0)
	s.configure("present")
	looks("the configuration is applied again", now.Add(dropInterval+time.Minute), 2)
	s.server.PatchStatus(t, status.SweepReports, "", s.report, fmt.Sprintf(
		`{"status": {"targets": {"new": {"lastSweep": %q}}}}`, now.Add(-2*time.Hour).UTC().Format(time.RFC3339)))
	s.after(now.Add(3 * dropInterval))
	if got := s.reported("targets"); got["new"] != nil || got["present"] == nil {
		t.Errorf("when it is old the targets are %v", got)
	}
	s.proxy.Reset()
	s.after(now.Add(9 * dropInterval))
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests although nothing is left to drop", n)
	}
}

// Entries of single resources go too, where these have owners of their own.
func TestEntriesOfFormerResourcesGo(t *testing.T) {
	s := newKeysScene(t)
	s.joined(time.Now())
	s.server.PatchStatus(t, status.SweepReports, "", s.report,
		`{"status": {"targets": {"several": {"keys": 7, "resources": {"ns/a": {"keys": 1}, "ns/b": {"keys": 2}, "ns/c": {"keys": 4}}}}}}`)
	s.passes.configure([]status.Target{{Name: "several", Resource: s.resource, Namespace: "ns", Names: []string{"a", "b"}}}, false)
	s.after(time.Now())
	entry, _ := s.reported("targets")["several"].(map[string]any)
	resources, _ := entry["resources"].(map[string]any)
	if entry["keys"] != int64(3) || len(resources) != 2 || resources["ns/c"] != nil {
		t.Errorf("the entry is %v", entry)
	}
}

// A SweepReport without keys is one that is new: nothing is wrong with unstale's own path.
func TestAReportWithoutKeysIsNoNews(t *testing.T) {
	s := newKeysScene(t)
	s.agent.health = newHealth(nil, func(bool) {}, zap.NewNop())
	for target, want := range map[string]int{reportTarget: 0, "other": 1} {
		core, logs := observer.New(zapcore.InfoLevel)
		s.passes.log = zap.New(core)
		u := unit{target: status.Target{Name: target, Resource: status.SweepReports, Names: []string{s.report}}}
		report := status.TargetReport{
			Target: target, State: status.OK, Message: "no resource has status.nodes; is the path right?",
			Resources: []status.ResourceReport{{Name: s.report}},
		}
		s.passes.told(t.Context(), &u, report, 0)
		if n := logs.FilterMessage("state").Len(); n != want {
			t.Errorf("%s: %d messages, want %d", target, n, want)
		}
		// What else there is to say is said.
		report.Message, report.Resources = "it does not exist", nil
		s.passes.told(t.Context(), &u, report, 0)
		if n := logs.FilterMessage("state").Len(); n != want+1 {
			t.Errorf("%s: %d messages, want %d", target, n, want+1)
		}
	}
}

// Somebody deletes the SweepReport and makes it anew: what the agents wrote to it comes back, though nothing of it has changed.
func TestAReportThatIsMadeAnew(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	names := []string{s.node(), s.node()}
	s.server.PatchStatus(t, status.SweepReports, "", s.report, `{"status": {"targets": {"shared": {"removed": 5}}}}`)
	s.create(names...)
	s.startAll(names...)
	entry := func(what string, removed int64) {
		t.Helper()
		apiserver.Eventually(t, what, func() error {
			if e, _ := s.reported("targets")["shared"].(map[string]any); e["state"] != "OK" || e["removed"] != removed {
				return fmt.Errorf("the entry is %v", e)
			}
			return nil
		})
	}
	entry("the owner reports", 5)
	for _, name := range names {
		s.published(name)
	}
	apiserver.Eventually(t, "the SweepReport's owner has seen the keys", func() error {
		for _, m := range s.agents {
			m.agent.passes.mu.Lock()
			n := len(m.agent.passes.keyOf)
			m.agent.passes.mu.Unlock()
			if n == len(names) {
				return nil
			}
		}
		return fmt.Errorf("it has not")
	})
	s.server.Delete(t, status.SweepReports, "", s.report)
	s.server.Apply(t, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s}\n", s.report))
	for _, name := range names {
		s.published(name)
	}
	entry("the owner reports again", 0)
}
