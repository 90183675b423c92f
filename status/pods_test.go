package status

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// A podScene is a scene whose keys live with pods of a namespace of its own; KEEP0… are names of nodes, and nodes need not exist.
type podScene struct {
	*scene
	labels map[string]string
}

func newPodScene(t *testing.T, text string) *podScene {
	t.Helper()
	p := &podScene{newScene(t, 3, text, paths("status.nodes")...), map[string]string{"app": "writer"}}
	p.target.LivesWith = &PodSelector{Namespace: p.target.Namespace, Labels: "app=writer"}
	p.restart()
	return p
}

func (p *podScene) pod(name, node, phase string) {
	p.Helper()
	p.server.CreatePod(p, p.target.Namespace, name, node, p.labels)
	p.server.PatchStatus(p, apiserver.Pods, p.target.Namespace, name, fmt.Sprintf(`{"status": {"phase": %q}}`, phase))
}

// The writer is taken off a node that stays: its key goes. Where it only restarts, waits, or is being ended, the key stays, and so does that of one that runs
// on a node without a Node.
func TestKeysThatLiveWithPods(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1, KEEP2: 1, no-node: 1, pending: 1, finished: 1, failed: 1}}`)
	p.pod("zero", p.existing[0], "Running")
	p.pod("one", p.existing[1], "Running")
	p.pod("no-node", "no-node", "Running")
	p.pod("pending", "pending", "Pending")
	p.pod("finished", "finished", "Succeeded")
	p.pod("failed", "failed", "Failed")
	p.labels = map[string]string{"app": "other"}
	p.pod("other", p.existing[2], "Running")
	grace := int64(100)
	if err := p.server.Dynamic().Resource(apiserver.Pods).Namespace(p.target.Namespace).Delete(t.Context(), "one", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Fatal(err)
	}
	report := p.sweep()
	p.state(report, OK)
	p.equal("verdicts", p.verdicts(report), "failed=Remove/PodGone finished=Remove/PodGone no-node=Keep/PodExists KEEP0=Keep/PodExists KEEP1=Keep/PodExists KEEP2=Remove/PodGone pending=Keep/PodExists")
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1,"no-node":1,"pending":1}`)
	if n := len(p.proxy.Matching("GET nodes")); n != 0 {
		t.Errorf("%d Nodes were asked for", n)
	}
	p.server.Delete(t, apiserver.Pods, p.target.Namespace, "zero")
	p.state(p.sweep(), OK)
	p.equal("left", p.left(), `{"KEEP1":1,"no-node":1,"pending":1}`)
}

// A selector that matches nothing holds the target, also when that happens between the list and the question.
func TestPodsOfARenamedLabel(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1}}`)
	report := p.sweep()
	p.state(report, StateHeld, "the selector app=writer matches no pod anywhere", "renamed")
	p.equal("verdicts", p.verdicts(report), "KEEP0=Keep/Held KEEP1=Keep/Held")
	p.pod("zero", p.existing[0], "Running")
	p.sweeper.Look(t.Context())
	p.now = p.now.Add(p.target.Grace)
	p.proxy.SetFault(func() apiserver.FaultFunc {
		all := apiserver.On("LIST pods", &apiserver.Fault{Status: 200, Body: `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": []}`})
		return all
	}())
	report = p.sweeper.Sweep(t.Context())
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1}`)
	if report.Removed() != 0 {
		t.Errorf("%+v", report)
	}
	p.proxy.SetFault(nil)
	p.state(p.sweeper.Sweep(t.Context()), OK)
	p.equal("left", p.left(), `{"KEEP0":1}`)
}

// What is not answered means that nothing goes, and says which permission is missing.
func TestPodsUnconfirmed(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1}}`)
	p.pod("zero", p.existing[0], "Running")
	p.sweeper.Look(t.Context())
	p.now = p.now.Add(p.target.Grace)
	refuse := apiserver.Refuse(403, metav1.StatusReasonForbidden, `pods is forbidden: User "u" cannot list resource "pods"`)
	p.proxy.SetFault(apiserver.On("LIST pods", refuse))
	p.state(p.sweeper.Sweep(t.Context()), Forbidden, `{apiGroups: [""], resources: ["pods"], verbs: ["list"]} in a Role in namespace `+p.target.Namespace)
	times := 0
	p.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) != "LIST pods" || !strings.Contains(r.URL.Query().Get("fieldSelector"), "spec.nodeName") {
			return nil
		}
		times++
		return apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")
	})
	report := p.sweeper.Sweep(t.Context())
	p.equal("verdicts", p.verdicts(report), "KEEP0=Keep/PodExists KEEP1=Keep/Unconfirmed")
	if times == 0 {
		t.Error("nobody was asked")
	}
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1}`)
	// Objects do likewise.
	s := newObjectScene(t, 2, NodeNameIn{Name: true}, "KEEP0", "KEEP1")
	s.target.LivesWith = &PodSelector{Namespace: s.target.Namespace, Labels: "app=writer"}
	s.restart()
	s.server.CreatePod(t, s.target.Namespace, "zero", s.existing[0], map[string]string{"app": "writer"})
	s.equal("verdicts", s.verdicts(s.sweep()), "KEEP0=Keep/PodExists KEEP1=Remove/PodGone")
	s.equal("left", s.objects(), "KEEP0")
}

// membersOf are those who live, as gossip knows.
type membersOf struct {
	NodeEvidence
	alive []string
}

func (m *membersOf) Known(name string) Knowledge {
	return Knowledge{Member: slices.Contains(m.alive, name), Listed: true, Seen: true}
}

// Where a live member speaks for a key as well as a pod does, only the pods of the others are asked for, and that a Node exists keeps nothing.
func TestKeysThatLiveWithPodsOrMembers(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1, KEEP2: 1}}`)
	p.pod("one", p.existing[1], "Running")
	p.target.LivesWith.OrMember = true
	p.restart()
	members := &membersOf{p.nodes, p.existing}
	p.sweeper.pods.members = members
	p.proxy.Reset()
	p.equal("all live", p.verdicts(p.sweep()), "KEEP0=Keep/MemberAlive KEEP1=Keep/MemberAlive KEEP2=Keep/MemberAlive")
	if n := len(p.proxy.Matching("LIST pods")); n != 0 {
		t.Errorf("pods were listed %d times", n)
	}
	members.alive = p.existing[:1]
	p.proxy.Reset()
	report := p.sweep()
	p.state(report, OK)
	p.equal("two are gone", p.verdicts(report), "KEEP0=Keep/MemberAlive KEEP1=Keep/PodExists KEEP2=Remove/PodGone")
	for _, r := range p.proxy.Matching("LIST pods") {
		if !strings.Contains(r.Query.Get("fieldSelector"), "spec.nodeName=") {
			t.Errorf("pods of all nodes were listed: %v", r.Query)
		}
	}
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1}`)

	// The other side of a split, and no pod of that label anywhere.
	p.server.Delete(t, apiserver.Pods, p.target.Namespace, "one")
	report = p.sweep()
	p.equal("no pod anywhere", p.verdicts(report), "KEEP0=Keep/MemberAlive KEEP1=Keep/Unconfirmed")
	members.alive = nil
	p.equal("nobody is known", p.verdicts(p.sweep()), "KEEP0=Keep/Unconfirmed KEEP1=Keep/Unconfirmed")
}
