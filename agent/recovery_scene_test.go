package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// newRecoveryScene is a scene on an API server of its own, because what is done to Nodes depends on all of them.
func newRecoveryScene(t *testing.T) *scene {
	t.Helper()
	t.Parallel()
	s := &scene{T: t, server: apiserver.Start(t), agents: map[string]*member{}, report: "unstale"}
	crd := apiserver.CRD{Group: "agents.example.com"}
	s.server.Install(t, crd.YAML())
	s.resource, s.namespace = crd.GVR(), s.server.Namespace(t)
	s.keyFile = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(s.keyFile, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	definition, err := os.ReadFile("../deploy/crds/sweepreports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.server.Install(t, string(definition))
	s.server.Apply(t, "", "apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: unstale}\n")
	s.create()
	return s
}

// nodeThatIs makes a Node that has been as it is for an hour.
func (s *scene) nodeThatIs(name, ready string) {
	s.Helper()
	s.server.CreateNode(s.T, name, map[string]string{RemovableLabel: "true"})
	s.ready(name, ready)
}

// awaitLeaseLooks waits until the member has looked at Leases so many more times.
func (m *member) awaitLeaseLooks(count int) {
	m.scene.Helper()
	looks := func() int { return len(m.proxy.Matching("GET leases.coordination.k8s.io")) }
	for range count {
		before := looks()
		apiserver.Eventually(m.scene.T, "the next look at Leases", func() error {
			if looks() == before {
				return errors.New("none yet")
			}
			return nil
		})
	}
}

// tainted tells whether a Node has our taint.
func (s *scene) tainted(name string) bool {
	text, err := json.Marshal(s.server.Get(s, apiserver.Nodes, "", name).Object["spec"])
	if err != nil {
		s.Fatal(err)
	}
	return strings.Contains(string(text), `"value":"unstale"`)
}

// eventsOn are the reasons of the events on a Node.
func (s *scene) eventsOn(name string) string {
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	list, err := s.server.Dynamic().Resource(events).Namespace("default").List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + name})
	if err != nil {
		s.Fatal(err)
	}
	var reasons []string
	for _, e := range list.Items {
		reason, _ := e.Object["reason"].(string)
		reasons = append(reasons, reason)
	}
	return strings.Join(reasons, " ")
}

// A Node that is Unknown and has no agent is tainted by one pruner and, when that dies, deleted by the next. One whose agent lives is neither, and somebody is
// told why. Agents without that role write no Node.
func TestNodesThatStayUnknown(t *testing.T) {
	s := newRecoveryScene(t)
	defer s.dump()
	s.options = quick + `
nodeRecovery:
  taint: {after: 1s, confirm: Label}
  prune: {after: 3s, minReadyEtcdMembers: 0, maxUnhealthy: 100%, interval: 1s}
`
	for name, ready := range map[string]string{"pruner-1": "True", "pruner-2": "True", "worker": "True", "cut-off": "Unknown", "dead": "Unknown"} {
		s.nodeThatIs(name, ready)
	}
	for _, name := range []string{"pruner-1", "pruner-2", "worker", "cut-off"} {
		s.member(name)
	}
	for name, m := range s.agents {
		m.start(func(o *Options) {
			if strings.HasPrefix(name, "pruner") {
				o.Role = gossip.Pruner
			}
		})
	}
	s.awaitMembers(4)
	var owner *member
	apiserver.Eventually(t, "one pruner owns the Nodes", func() error {
		var owners []string
		for name, m := range s.agents {
			says := m.logs.FilterMessage("owns the Nodes").Len() - m.logs.FilterMessage("no longer owns the Nodes").Len()
			if says > 0 {
				owner, owners = m, append(owners, name)
			}
		}
		if len(owners) != 1 {
			return fmt.Errorf("the owners are %v", owners)
		}
		return nil
	})
	owner.awaitLeaseLooks(4) // of the minute that a Lease is watched
	apiserver.Eventually(t, "the taint", func() error {
		if !s.tainted("dead") {
			return errors.New("none yet")
		}
		return nil
	})
	owner.kill()
	s.ready(owner.name, "False") // Unknown would be another dead Node
	other := s.agents[map[string]string{"pruner-1": "pruner-2", "pruner-2": "pruner-1"}[owner.name]]
	other.awaitLeaseLooks(4)
	apiserver.Eventually(t, "the deletion", func() error {
		if s.server.Exists(t, apiserver.Nodes, "", "dead") {
			return errors.New("it is there")
		}
		return nil
	})
	if !s.server.Exists(t, apiserver.Nodes, "", "cut-off") || s.tainted("cut-off") {
		t.Error("the Node whose agent lives was touched")
	}
	apiserver.Eventually(t, "the events", func() error {
		cutOff, dead := s.eventsOn("cut-off"), s.eventsOn("dead")
		if !strings.Contains(cutOff, "MemberAlive") || !strings.Contains(dead, "NodeTainted") || !strings.Contains(dead, "NodeDeleted") {
			return fmt.Errorf("on cut-off: %s; on dead: %s", cutOff, dead)
		}
		return nil
	})
	if owner.logs.FilterMessage("a Node is left alone").Len() == 0 {
		t.Error("the log does not say that cut-off is left alone")
	}
	apiserver.Eventually(t, "the SweepReport", func() error {
		text, err := json.Marshal(s.server.Get(t, status.SweepReports, "", "unstale").Object["status"])
		if err != nil {
			return err
		}
		for _, words := range []string{`"nodeRecovery":{`, `"highWaterMark":5`, `"lastDeletion":`, `"owner":"` + other.name} {
			if !strings.Contains(string(text), words) {
				return fmt.Errorf("it lacks %s: %s", words, text)
			}
		}
		return nil
	})
	for name, m := range s.agents {
		if n := len(m.proxy.Matching("PATCH nodes")) + len(m.proxy.Matching("DELETE nodes")); n > 0 != strings.HasPrefix(name, "pruner") {
			t.Errorf("%s wrote Nodes %d times", name, n)
		}
	}
}

// ready writes a Node's condition as it is since an hour.
func (s *scene) ready(name, ready string) {
	s.Helper()
	s.server.PatchStatus(s, apiserver.Nodes, "", name, fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": %q, "lastTransitionTime": %q}]}}`,
		ready, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)))
}

// The configuration says what the Recovery does, and a kubeconfig that is not there is told of when it is needed, not before.
func TestRecoveryOptions(t *testing.T) {
	c := mustParse(t, `nodeRecovery:
  taint: {after: 2m, confirm: Label, nodeSelector: {a: b}}
  prune: {after: 10m, label: x/y, minReadyEtcdMembers: 0, maxUnhealthy: 25%, interval: 2m}
  clusterAPI: {kubeconfig: /nonexistent/management}
  infrastructure:
  - {name: hosts, resource: {group: metal3.io, version: v1, resource: hosts}, namespace: n, match: {providerID: spec.id}}
  - {name: others, resource: {version: v1, resource: others}, match: {annotation: a/b}, kubeconfig: /nonexistent/other}`)
	o := c.RecoveryOptions("test")
	compare(t, o.Policy, status.RecoveryPolicy{
		TaintAfter: 2 * time.Minute, PruneAfter: 10 * time.Minute, ConfirmByLabel: true, TaintSelector: map[string]string{"a": "b"}, Label: "x/y",
		MaxUnhealthy: 25, PruneInterval: 2 * time.Minute,
	})
	if o.Report != "unstale" || o.Interval != 5*time.Minute || o.Mode != status.Enforce || len(o.Infrastructure) != 2 {
		t.Errorf("%+v", o)
	}
	if i := o.Infrastructure[0]; i.Open != nil || i.Name != "hosts" || i.Namespace != "n" || i.ProviderID.String() != "spec.id" || i.Resource.Resource != "hosts" {
		t.Errorf("%+v", i)
	}
	for _, open := range []func() (*status.Client, error){o.Machines, o.Infrastructure[1].Open} {
		if _, err := open(); err == nil || !strings.Contains(err.Error(), "/nonexistent/") {
			t.Error(err)
		}
	}
	if off := mustParse(t, "nodeRecovery: {}").RecoveryOptions(""); off.Policy.TaintAfter != 0 || off.Policy.PruneAfter != 0 || off.Machines != nil {
		t.Errorf("%+v", off)
	}
}
