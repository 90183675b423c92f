package agent

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/deploy"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// withReport gives the scene a SweepReport of its own.
func (s *scene) withReport() {
	s.Helper()
	s.server.Install(s, deploy.SweepReportCRD)
	s.report = apiserver.Unique("report")
	s.server.Apply(s, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s}\n", s.report))
}

// reported is a map in the SweepReport's status.
func (s *scene) reported(field string) map[string]any {
	s.Helper()
	status, _ := s.server.Get(s, status.SweepReports, "", s.report).Object["status"].(map[string]any)
	found, _ := status[field].(map[string]any)
	return found
}

// published waits until the SweepReport has that agent's key, and returns its entry.
func (s *scene) published(name string) map[string]any {
	s.Helper()
	var entry map[string]any
	apiserver.Eventually(s.T, name+" publishes its key", func() error {
		var ok bool
		if entry, ok = s.reported("nodes")[name].(map[string]any); !ok {
			return errors.New("it has not")
		}
		return nil
	})
	return entry
}

// Where agents are pods, the key of one that is taken off a node that stays goes; one whose pod is still there, or that lives without one, keeps its key.
func TestAKeyGoesWithItsPod(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	s.pods = fmt.Sprintf(", pods: {namespace: %s, labelSelector: app=unstale}", s.namespace)
	names := []string{s.node(), s.node(), s.node(), s.node()}
	for _, name := range names[1:] { // the first has no pod
		s.server.CreatePod(t, s.namespace, "on-"+name, name, map[string]string{"app": "unstale"})
	}
	s.create(names...)
	members := s.startAll(names...)
	for _, name := range names {
		s.published(name)
	}
	taken, hangs := members[2], members[3]
	for _, m := range []*member{taken, hangs} {
		m.kill()
	}
	s.server.Delete(t, apiserver.Pods, s.namespace, "on-"+taken.name)
	apiserver.Eventually(t, "the key of the agent that was taken away goes", func() error {
		if s.reported("nodes")[taken.name] != nil {
			return errors.New("it is there")
		}
		return nil
	})
	s.awaitSweeps(2)
	for _, name := range []string{names[0], names[1], hangs.name} {
		s.published(name)
	}
	s.await("keys of other programs stay with their Nodes", names...)
}

func TestAgentsPublishAndClearTheirKeys(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	names := []string{s.node(), s.node()}
	s.create(append([]string{"gone"}, names...)...)
	members := s.startAll(names...)
	for _, name := range names {
		if e := s.published(name); e["status"] != "Success" || e["generation"] != int64(1) || len(fmt.Sprint(e["config"])) != 12 || e["nodeUID"] == nil {
			t.Errorf("%s published %v", name, e)
		}
	}
	s.await("the orphan is gone", names...)
	apiserver.Eventually(t, "the owner reports", func() error {
		if e, _ := s.reported("targets")["shared"].(map[string]any); e["removed"] != int64(1) || e["owner"] != s.owner().name || e["state"] != "OK" {
			return fmt.Errorf("the entry is %v", e)
		}
		return nil
	})

	// A bad file is told there.
	members[0].config("mode: Perhaps")
	apiserver.Eventually(t, "the failure is published", func() error {
		if e := s.published(names[0]); e["status"] != "Failure" || e["errors"] == "" {
			return fmt.Errorf("the entry is %v", e)
		}
		return nil
	})

	// Stopped while the API server refuses at first: in each way that passes.
	refusals := []*apiserver.Fault{
		apiserver.Refuse(http.StatusConflict, "Conflict", "changed"),
		apiserver.RefuseLater(http.StatusTooManyRequests, "TooManyRequests", "busy", "1"),
		apiserver.Refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "not now"),
	}
	members[1].proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) != "PATCH sweepreports.unstale.dev/status" || len(refusals) == 0 {
			return nil
		}
		f := refusals[0]
		refusals = refusals[1:]
		return f
	})
	begun := time.Now()
	if err := members[1].stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the stop took %s", took)
	}
	if len(refusals) > 0 {
		t.Errorf("%d refusals were not met", len(refusals))
	}
	if got := s.reported("nodes"); got[names[1]] != nil || got[names[0]] == nil {
		t.Errorf("after the stop the keys are %v", got)
	}
	// The node stays, so the key of the other program on it does too.
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("after the stop the shared resource has %v", got)
	}
}

func TestAStopWithoutTheAPIServerEndsAndTells(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	name := s.node()
	s.create(name)
	m := s.startAll(name)[0]
	s.published(name)
	m.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true}))
	m.proxy.CutConnections()
	begun := time.Now()
	err := m.stop()
	var left *KeysLeftError
	if !errors.As(err, &left) {
		t.Errorf("it ended with %v", err)
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the stop took %s", took)
	}
}

// A live agent's key that somebody removed is published again, and counted.
func TestALostKeyIsPublishedAgain(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	names := []string{s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	for _, name := range names {
		s.published(name)
	}
	seen := func() {
		t.Helper()
		apiserver.Eventually(t, "the owner has seen the keys", func() error {
			for _, m := range members {
				m.agent.passes.mu.Lock()
				n := len(m.agent.passes.keyOf)
				m.agent.passes.mu.Unlock()
				if n == len(names) {
					return nil
				}
			}
			return errors.New("it has not")
		})
	}
	for _, name := range names {
		seen()
		s.server.PatchStatus(t, status.SweepReports, "", s.report, fmt.Sprintf(`{"status": {"nodes": {%q: null}}}`, name))
		s.published(name)
	}
}

// A node is replaced by one of the same name: what the earlier one left is cleared by the new one's agent, what is fresh stays.
func TestASameNamedReplacement(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name, other := s.node(), s.node()
	s.create(other)
	uid := s.server.Get(t, apiserver.Nodes, "", name).GetUID()
	s.server.PatchStatus(t, s.resource, s.namespace, "shared", fmt.Sprintf(
		`{"status": {"nodes": {%q: {"uid": "of-the-earlier-node"}}}}`, name))
	m := s.member(name)
	s.options = ""
	m.config("  nodeUIDPath: uid", quick)
	m.start()
	s.await("the earlier node's entry is gone", other)
	s.server.PatchStatus(t, s.resource, s.namespace, "shared", fmt.Sprintf(`{"status": {"nodes": {%q: {"uid": %q}}}}`, name, uid))
	if err := m.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	m.start()
	s.awaitMembers(1)
	s.awaitSweeps(3)
	s.await("the fresh entry stays", name, other)
}

// A stop that cannot find out at first whether its node is leaving asks on; where it never can, it says that the key is left.
func TestAStopAsksWhetherTheNodeLeaves(t *testing.T) {
	for name, patient := range map[string]bool{"an answer after a while": true, "none": false} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, quick)
			defer s.dump()
			leaver, other := s.node(), s.node()
			s.create(leaver, other)
			m := s.startAll(leaver)[0]
			s.server.DeleteNode(t, leaver)
			down := apiserver.On("GET nodes", apiserver.Refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "not now"))
			if patient {
				down = down.Times(7)
			}
			m.proxy.SetFault(down)
			err := m.stop()
			var left *KeysLeftError
			if errors.As(err, &left) == patient || !patient && !strings.Contains(err.Error(), "could not be found out") {
				t.Errorf("it ended with %v", err)
			}
			want := []string{other}
			if !patient {
				want = append(want, leaver)
			}
			if got := s.keys(); !sameKeys(got, want) {
				t.Errorf("the keys are %v, want %v", got, want)
			}
		})
	}
}

// A target that comes with a new configuration is looked at for an earlier node's entry as those at the start are.
func TestAnEarlierNodesEntryInANewTarget(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name, other := s.node(), s.node()
	s.create(other)
	s.server.PatchStatus(t, s.resource, s.namespace, "shared", fmt.Sprintf(`{"status": {"nodes": {%q: {"uid": "of-the-earlier-node"}}}}`, name))
	m := s.startAll(name)[0]
	s.awaitSweeps(2)
	s.options = ""
	m.config("  nodeUIDPath: uid", quick)
	s.await("the earlier node's entry is gone", other)
}
