package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// An object that is refused, whatever the words, keeps no other from going: a webhook that gives no code answers 400, a policy with whatever it is told to.
func TestARefusedObjectKeepsNoOther(t *testing.T) {
	for _, code := range []int{400, 403, 409, 413, 422, 500} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-a", "gone-b")
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/gone-a") {
					return apiserver.Refuse(code, metav1.StatusReasonUnknown, "not this one")
				}
				return nil
			})
			report := s.sweep()
			s.equal("left", s.objects(), "KEEP0 gone-a")
			if code == 409 { // once, somebody may have written it; the same again is a refusal
				s.equal("verdicts", s.verdicts(report), "gone-a=Wait/Changed gone-b=Remove/NodeGone KEEP0=Keep/NodeExists")
				report = s.sweeper.Sweep(t.Context())
			}
			want := Forbidden
			if code == 500 {
				want = Unavailable
			}
			s.state(report, want, "not this one")
			if got := s.verdicts(report); !strings.Contains(got, "gone-a=Keep/Unconfirmed") {
				t.Error(got)
			}
		})
	}
}

// One that could not be deleted once has its turn, beside as many as end a pass that never can.
func TestRefusedObjectsTakeTurns(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0", "gone-z")
	for i := range maxDeleteFailures {
		s.object(fmt.Sprint("gone-refused-", i))
	}
	once := true
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		switch {
		case r.Method != http.MethodDelete:
			return nil
		case strings.Contains(r.URL.Path, "/gone-refused"):
			return apiserver.Refuse(403, metav1.StatusReasonForbidden, "a policy refuses")
		case once:
			once = false
			return apiserver.Refuse(500, metav1.StatusReasonInternalError, "etcd timed out")
		}
		return nil
	})
	for range 4 {
		s.sweep()
	}
	if got := s.objects(); strings.Contains(got, "gone-z") {
		t.Error(got)
	}
}

// Names that stay in any case are not asked for, so that they keep no other waiting, however many they are.
func TestUnknownNamesKeepNoOtherWaiting(t *testing.T) {
	gone := apiserver.Unique("zzz")
	var keys []string
	for i := range 600 {
		keys = append(keys, fmt.Sprintf("aaa-%03d: 1", i))
	}
	s := newScene(t, 1, "{nodes: {KEEP0: 1, "+gone+": 1, "+strings.Join(keys, ", ")+"}}", paths("status.nodes")...)
	s.target.UnknownKeys = KeepUnknown
	s.server.CreateNodes(t, gone)
	s.restart()
	s.server.DeleteNode(t, gone)
	s.nodes.Left(gone)
	s.proxy.Reset()
	report := s.sweep()
	s.state(report, OK)
	if strings.Contains(s.left(), gone) || report.Removed() != 1 {
		t.Errorf("%d removed", report.Removed())
	}
	if n := len(s.proxy.Matching("GET nodes")); n > 3 {
		t.Errorf("%d Nodes were asked for", n)
	}
	for f := range report.All() {
		if f.Key != gone && !strings.HasPrefix(f.Key, "aaa") && f.Reason != NodeExists || strings.HasPrefix(f.Key, "aaa") && f.Reason != UnknownName {
			t.Errorf("%+v", f)
		}
	}
}

// slowNodes answer one at a time, and remember nothing; those whose name begins with zzz are gone.
type slowNodes struct{ s *scene }

func (slowNodes) Known(string) Knowledge { return Knowledge{Seen: true} }

func (n slowNodes) Confirm(_ context.Context, names []string, _ time.Duration) map[string]NodeAnswer {
	answers := map[string]NodeAnswer{}
	for _, name := range names {
		n.s.now = n.s.now.Add(15 * time.Millisecond)
		answers[name] = NodeAnswer{Existence: Exists, At: n.s.now}
		if strings.HasPrefix(name, "zzz") {
			answers[name] = NodeAnswer{Existence: Gone, At: n.s.now}
		}
	}
	return answers
}

// Where the time of a pass does not suffice for all, the next begins with those that it did not reach.
func TestPassesGoOnWhereTheLastOneStopped(t *testing.T) {
	keys := []string{"zzz: 1"}
	for i := range 500 {
		keys = append(keys, fmt.Sprintf("aaa-%03d: 1", i))
	}
	s := newScene(t, 1, "{nodes: {"+strings.Join(keys, ", ")+"}}", paths("status.nodes")...)
	s.sweeper = NewSweeper(s.target, s.sweeper.client, slowNodes{s}, zap.NewNop())
	s.sweeper.Now = func() time.Time { return s.now }
	s.sweep()
	if !strings.Contains(s.left(), "zzz") {
		t.Fatal("one pass suffices, so this shows nothing")
	}
	for range 3 {
		s.sweeper.Sweep(t.Context())
	}
	if got := s.left(); strings.Contains(got, "zzz") || strings.Count(got, "aaa") != 500 {
		t.Errorf("%d are left: %s", strings.Count(got, "aaa"), got)
	}
}

// A pod that begins to wait for its node while the pass goes on keeps what is there.
func TestPodsThatBeginToWait(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1, KEEP2: 1}}`)
	p.target.MaxRemovals = 1
	p.restart()
	p.pod("zero", p.existing[0], "Running")
	p.onWait = func() { p.onWait = nil; p.unbound("new-2", p.existing[2]) }
	p.equal("verdicts", p.verdicts(p.sweep()), "KEEP0=Keep/PodExists KEEP1=Remove/PodGone KEEP2=Keep/PodExists")
	p.equal("left", p.left(), `{"KEEP0":1,"KEEP2":1}`)

	s := newObjectScene(t, 3, NodeNameIn{Name: true}, "KEEP0", "KEEP1", "KEEP2")
	s.target.LivesWith, s.target.MaxRemovals = &PodSelector{Namespace: s.target.Namespace, Labels: "app=writer"}, 1
	s.restart()
	s.server.CreatePod(t, s.target.Namespace, "zero", s.existing[0], map[string]string{"app": "writer"})
	s.onWait = func() { s.onWait = nil; (&podScene{scene: s}).unbound("new-2", s.existing[2]) }
	s.sweep()
	s.equal("left", s.objects(), "KEEP0 KEEP2")

	// What cannot be asked for proves nothing.
	p.pod("two", p.existing[2], "Running")
	p.merge(fmt.Sprintf(`{"status": {"nodes": {%q: 1}}}`, p.existing[1]))
	p.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) == "LIST pods" && strings.HasSuffix(r.URL.Query().Get("fieldSelector"), "spec.nodeName=") {
			return apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")
		}
		return nil
	})
	p.server.Delete(t, apiserver.Pods, p.target.Namespace, "new-2")
	p.equal("verdicts", p.verdicts(p.sweep()), "KEEP0=Keep/PodExists KEEP1=Keep/Unconfirmed KEEP2=Keep/PodExists")
}

// Pods that are being deleted do not hide one that stays.
func TestPodsThatEndBeforeOneThatStays(t *testing.T) {
	p := newPodScene(t, `{nodes: {KEEP0: 1, KEEP1: 1}}`)
	for i := range boundPage + 1 {
		name := fmt.Sprintf("a-%03d", i)
		p.server.CreatePod(t, p.target.Namespace, name, "elsewhere", p.labels)
		p.end(name)
	}
	p.pod("zero", p.existing[0], "Running")
	p.state(p.sweep(), OK)
	p.equal("left", p.left(), `{"KEEP0":1}`)
}

// What is only told, or kept by an owner, costs little from sweep to sweep.
func TestWhatStaysCostsLittle(t *testing.T) {
	s := newObjectScene(t, 1, NodeNameIn{Name: true}, "KEEP0")
	s.server.Apply(t, s.target.Namespace, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner}\n")
	configMaps := s.target.Resource
	configMaps.Group, configMaps.Version, configMaps.Resource = "", "v1", "configmaps"
	uid := s.server.Get(t, configMaps, s.target.Namespace, "owner").GetUID()
	for i := range 5 {
		s.object(fmt.Sprintf("gone-owned-%d , ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: %s}]}", i, uid),
			fmt.Sprintf("gone-%d , ownerReferences: [{apiVersion: v1, kind: Pod, name: p%d, uid: u}]}", i, i))
	}
	s.target.Mode = Report
	s.restart()
	verdicts := s.verdicts(s.sweep())
	s.proxy.Reset()
	s.now = s.now.Add(5 * time.Minute)
	s.equal("the same again", s.verdicts(s.sweeper.Sweep(t.Context())), verdicts)
	for _, r := range s.proxy.Requests() {
		if r.Method != "GET" || !strings.Contains(r.Path, "/widgets") {
			t.Errorf("a sweep that only tells asks %s %s again", r.Method, r.Path)
		}
	}
	s.now = s.now.Add(time.Hour)
	s.server.CreateNodes(t, "gone-1")
	if got := s.verdicts(s.sweeper.Sweep(t.Context())); !strings.Contains(got, "gone-1=Keep/NodeExists") {
		t.Errorf("an hour later: %s", got)
	}
	s.target.Mode = Enforce
	s.restart()
	s.sweep()
	left := "KEEP0 gone-1 gone-owned-0 gone-owned-1 gone-owned-2 gone-owned-3 gone-owned-4"
	s.equal("left", s.objects(), left)
	s.proxy.Reset()
	s.now = s.now.Add(5 * time.Minute)
	s.sweeper.Sweep(t.Context())
	for _, class := range []string{"GET nodes", "GET configmaps"} {
		if n := len(s.proxy.Matching(class)); n > 0 {
			t.Errorf("%s: %d times, for what belongs to something that exists", class, n)
		}
	}
	s.server.Delete(t, configMaps, s.target.Namespace, "owner")
	s.now = s.now.Add(ownerFresh)
	s.sweep()
	s.equal("left when the owner is gone", s.objects(), "KEEP0 gone-1")
}
