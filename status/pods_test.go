package status

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	p.end("one")
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
	p.state(report, StateHeld, "the selector app=writer matches no pod", "renamed")
	p.equal("verdicts", p.verdicts(report), "KEEP0=Keep/SelectorMatchesNothing KEEP1=Keep/SelectorMatchesNothing")
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

// end deletes a pod that takes its time to end.
func (p *podScene) end(name string) {
	p.Helper()
	grace := int64(100)
	if err := p.server.Dynamic().Resource(apiserver.Pods).Namespace(p.target.Namespace).Delete(p.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		p.Fatal(err)
	}
}

// unbound makes a pod that waits for a node, as a DaemonSet makes them.
func (p *podScene) unbound(name, node string) {
	p.Helper()
	p.server.Apply(p, p.target.Namespace, fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, labels: {app: writer}}, spec: {containers: [{name: c, image: none}],
		affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [%s]}]}]}}}}}`, name, node))
}

// A DaemonSet's pod that no scheduler has bound yet keeps its node's key, and shows nothing of the selector: nor does one that is being deleted.
func TestPodsThatWaitForTheirNode(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1, KEEP2: 1}}`)
	p.unbound("new-0", p.existing[0])
	p.unbound("new-1", p.existing[1])
	report := p.sweep()
	p.state(report, StateHeld, "matches no pod that is on a node and stays")
	p.equal("verdicts", p.verdicts(report), "KEEP0=Keep/PodExists KEEP1=Keep/PodExists KEEP2=Keep/SelectorMatchesNothing")
	for _, r := range p.proxy.Matching("LIST pods") {
		if strings.Contains(r.Query.Get("fieldSelector"), "spec.nodeName=") {
			t.Errorf("what is held was asked for: %v", r.Query)
		}
	}
	p.pod("ending", p.existing[0], "Running")
	p.end("ending")
	p.state(p.sweep(), StateHeld)
	p.pod("zero", p.existing[0], "Running")
	p.state(p.sweep(), OK)
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1}`)
}

// Keys of which none is a node with such a pod are probably no node names, whatever pods there are.
func TestPodsOfKeysThatAreNoNodeNames(t *testing.T) {
	p := newPodScene(t, `{nodes: {default: 1, zone-a: 1}}`)
	p.pod("zero", p.existing[0], "Running")
	report := p.sweep()
	p.state(report, StateHeld, "no key of this target belongs to a node with a pod of app=writer")
	p.equal("verdicts", p.verdicts(report), "default=Keep/Held zone-a=Keep/Held")
	p.equal("left", p.left(), `{"default":1,"zone-a":1}`)
}

// That a key is a node's name shows its Node as well as a pod that was seen there.
func TestPodsOfUnknownNames(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1, stranger: 1}}`)
	p.target.UnknownKeys = KeepUnknown
	p.restart()
	p.pod("zero", p.existing[0], "Running")
	p.equal("verdicts", p.verdicts(p.sweep()), "KEEP0=Keep/PodExists KEEP1=Remove/PodGone stranger=Keep/UnknownName")
	p.equal("left", p.left(), `{"KEEP0":1,"stranger":1}`)
}

// A page may be empty and not be the last.
func TestPodsAfterAnEmptyPage(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1}}`)
	p.pod("zero", p.existing[0], "Running")
	p.sweeper.Look(t.Context())
	p.now = p.now.Add(p.target.Grace)
	p.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		q := r.URL.Query()
		if apiserver.Class(r) != "LIST pods" || !strings.Contains(q.Get("fieldSelector"), "spec.nodeName="+p.existing[1]) {
			return nil
		}
		token, items := "more", "[]"
		if q.Get("continue") == token {
			token, items = "", `[{"metadata": {"name": "one", "uid": "u"}}]`
		}
		return &apiserver.Fault{Status: 200, Body: fmt.Sprintf(
			`{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"resourceVersion": "1", "continue": %q}, "items": %s}`, token, items)}
	})
	report := p.sweeper.Sweep(t.Context())
	p.equal("verdicts", p.verdicts(report), "KEEP0=Keep/PodExists KEEP1=Keep/PodExists")
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP1":1}`)
}

// Nodes are asked for several at once: one after the other, slow answers would be too old before the last.
func TestPodsAreAskedForAtOnce(t *testing.T) {
	var keys []string
	for i := range 3 * confirmParallel {
		keys = append(keys, fmt.Sprintf("gone-%d: 1", i))
	}
	p := newPodScene(t, "{nodes: {KEEP0: 1, "+strings.Join(keys, ", ")+"}}")
	p.pod("zero", p.existing[0], "Running")
	var mu sync.Mutex
	waiting, all := 0, make(chan struct{})
	p.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) != "LIST pods" || !strings.Contains(r.URL.Query().Get("fieldSelector"), "spec.nodeName=gone") {
			return nil
		}
		mu.Lock()
		if waiting++; waiting == confirmParallel {
			close(all)
		}
		mu.Unlock()
		select {
		case <-all: // the first few are answered when all of them were asked
		case <-r.Context().Done():
		}
		return nil
	})
	p.state(p.sweep(), OK)
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
