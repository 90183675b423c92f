package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// A recoverScene is a cluster of real Nodes whose conditions the test writes, behind a proxy, and a Recovery whose clock the test sets. The API server's clock is
// the real one, so what it measures is written into the conditions.
type recoverScene struct {
	*testing.T
	server   *apiserver.Server
	proxy    *apiserver.Proxy
	options  RecoveryOptions
	recovery *Recovery
	members  *fakeMembers
	logs     *observer.ObservedLogs
	now      time.Time
	user     string // who the Recovery is to the API server; empty: an administrator
}

// fakeMembers are members as the test says; every Ready Node's agent lives, unless it is among the dead.
type fakeMembers struct {
	alive, answer map[string]bool
}

func (m *fakeMembers) Alive(name string) bool                   { return m.alive[name] }
func (m *fakeMembers) Ping(_ context.Context, name string) bool { return m.answer[name] }

const removable = "unstale.dev/removable"

// newRecoverScene makes a cluster of three Ready members of etcd, cp-0 to cp-2, and four Ready workers, worker-0 to worker-3, and a pruner on cp-0.
func newRecoverScene(t *testing.T) *recoverScene {
	t.Helper()
	s := &recoverScene{T: t, server: apiserver.Shared(t), members: &fakeMembers{map[string]bool{}, map[string]bool{}}, now: noon}
	definition, err := os.ReadFile("../deploy/crds/sweepreports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.server.Install(t, string(definition))
	s.server.Apply(t, nodeLeases, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+nodeLeases+"}\n")
	s.options = RecoveryOptions{
		Policy: RecoveryPolicy{
			PruneAfter: 10 * time.Minute, Label: removable, TaintSelector: map[string]string{removable: "true"}, MinReadyEtcdMembers: 3, MaxUnhealthy: 40,
			PruneInterval: time.Minute,
		},
		Mode: Enforce, Report: apiserver.Unique("report"), Self: "cp-0", Interval: 5 * time.Minute, Members: s.members,
	}
	s.server.Apply(t, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s}\n", s.options.Report))
	for i := range 3 {
		s.node(fmt.Sprint("cp-", i), "True", time.Hour, etcdRole+"=true", "node-role.kubernetes.io/control-plane=")
	}
	for i := range 4 {
		s.node(fmt.Sprint("worker-", i), "True", time.Hour)
	}
	s.proxy = s.server.Proxy(t)
	s.restart()
	return s
}

// restart makes a Recovery that knows nothing, as a new process does.
func (s *recoverScene) restart() {
	s.Helper()
	s.recovery = s.another()
}

func (s *recoverScene) another() *Recovery {
	s.Helper()
	config := s.proxy.Config()
	if s.user != "" {
		config = s.proxy.As(s.user)
	}
	client, err := NewClient(config, "unstale-test")
	if err != nil {
		s.Fatal(err)
	}
	client.wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	core, logs := observer.New(zapcore.InfoLevel)
	s.logs = logs
	r := NewRecovery(s.options, client, zap.New(core))
	r.Now = func() time.Time { return s.now }
	return r
}

// node makes a Node that has been as it is for so long; "" is without a Ready condition. Ready ones have a live agent.
func (s *recoverScene) node(name string, ready corev1.ConditionStatus, age time.Duration, labels ...string) {
	s.Helper()
	set := map[string]string{}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		set[key] = value
	}
	s.server.CreateNode(s, name, set)
	s.taints(name) // admission has tainted it
	if ready != "" {
		s.ready(name, ready, age)
	}
	s.members.alive[name] = ready == corev1.ConditionTrue
}

func (s *recoverScene) ready(name string, ready corev1.ConditionStatus, age time.Duration) {
	s.Helper()
	s.server.PatchStatus(s, apiserver.Nodes, "", name, fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": %q, "lastTransitionTime": %q}]}}`,
		ready, time.Now().Add(-age).UTC().Format(time.RFC3339)))
}

// taints replaces a Node's taints.
func (s *recoverScene) taints(name string, taints ...string) {
	s.Helper()
	patch := fmt.Appendf(nil, `{"spec": {"taints": [%s]}}`, strings.Join(taints, ","))
	if _, err := s.server.Dynamic().Resource(apiserver.Nodes).Patch(s.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// taintsOf are a Node's taints, each as key=value:effect.
func (s *recoverScene) taintsOf(name string) string {
	s.Helper()
	n := s.view(name)
	var all []string
	for _, t := range n.Taints {
		all = append(all, t.ToString())
	}
	return strings.Join(all, " ")
}

func (s *recoverScene) view(name string) NodeView {
	s.Helper()
	n, err := readNodeView(json.NewDecoder(strings.NewReader(string(s.server.GetJSON(s, "/api/v1/nodes/"+name)))))
	if err != nil {
		s.Fatal(err)
	}
	return n
}

func (s *recoverScene) exists(name string) bool { return s.server.Exists(s, apiserver.Nodes, "", name) }

// pass lets time pass, with every look that is due, and returns what the last list found.
func (s *recoverScene) pass(d time.Duration) TargetReport {
	s.Helper()
	return passOf(s, s.recovery, d)
}

func passOf(s *recoverScene, r *Recovery, d time.Duration) (last TargetReport) {
	end := s.now.Add(d)
	for {
		if report, told := r.Look(s.Context()); told {
			last = report
		}
		next := r.Next()
		if !next.After(s.now) {
			s.Fatalf("the next look is at %v, not after %v", next, s.now)
		}
		if next.After(end) {
			s.now = end
			return last
		}
		s.now = next
	}
}

// said is the finding on a Node, as Verdict/Reason.
func said(report TargetReport, name string) string {
	for f := range report.All() {
		if f.Key == name {
			return fmt.Sprintf("%s/%s", f.Verdict, f.Reason)
		}
	}
	return "none"
}

func message(report TargetReport, name string) string {
	for f := range report.All() {
		if f.Key == name {
			return f.Message
		}
	}
	return ""
}

func (s *recoverScene) want(report TargetReport, name, want string, words ...string) {
	s.Helper()
	if got := said(report, name); got != want {
		s.Errorf("%s: %s (%s), want %s; %s %s", name, got, message(report, name), want, report.State, report.Message)
	}
	for _, w := range words {
		if got := message(report, name); !strings.Contains(got, w) {
			s.Errorf("%s: the message %q does not say %q", name, got, w)
		}
	}
}

// marksNow are the marks in the SweepReport.
func (s *recoverScene) marksNow() recoveryMarks {
	s.Helper()
	m, err := s.recovery.readMarks(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return m.recoveryMarks
}

// The Nodes that are to go, and those that are not, next to one another.
func TestNodesGo(t *testing.T) {
	s := newRecoverScene(t)
	s.options.Policy.MaxUnhealthy = 100
	s.restart()
	for _, n := range []struct {
		name   string
		ready  corev1.ConditionStatus
		age    time.Duration
		labels []string
	}{
		{"dead", "Unknown", time.Hour, []string{removable + "=true"}},
		{"not-labelled", "Unknown", time.Hour, nil},
		{"labelled-no", "Unknown", time.Hour, []string{removable + "=no"}},
		{"not-yet", "Unknown", 9 * time.Minute, []string{removable + "=true"}},
		{"ready", "True", time.Hour, []string{removable + "=true"}},
		{"not-ready", "False", time.Hour, []string{removable + "=true"}},
		{"no-condition", "", 0, []string{removable + "=true"}},
		{"control-plane", "Unknown", 2 * time.Hour, []string{removable + "=true", "node-role.kubernetes.io/control-plane="}},
		{"etcd", "Unknown", 2 * time.Hour, []string{removable + "=true", etcdRole + "=true"}},
	} {
		s.node(n.name, n.ready, n.age, n.labels...)
	}
	report := s.pass(9 * time.Minute)
	s.want(report, "dead", "Keep/BelowThreshold")
	if !s.exists("dead") {
		t.Error("it went before this pruner had seen it for long enough")
	}
	report = s.pass(90 * time.Second)
	for name, want := range map[string]string{
		"not-labelled": "Refuse/NotOptedIn", "labelled-no": "Refuse/NotOptedIn", "not-yet": "Keep/BelowThreshold", "ready": "Keep/NodeReady",
		"not-ready": "Keep/NodeNotReady", "no-condition": "Refuse/NoReadyCondition", "control-plane": "Refuse/ControlPlane", "etcd": "Refuse/ControlPlane", "cp-0": "Keep/NodeReady",
	} {
		s.want(report, name, want)
		if !s.exists(name) {
			t.Errorf("%s is gone", name)
		}
	}
	if s.exists("dead") {
		t.Error("dead is still there: ", message(report, "dead"))
	}
	if m := s.marksNow(); m.HighWaterMark != 16 || time.Since(m.lastDeletion()) > time.Minute {
		t.Errorf("the marks are %+v", m)
	}
	deletes := s.proxy.Matching("DELETE nodes")
	if len(deletes) != 1 || !strings.Contains(string(deletes[0].Body), `"resourceVersion"`) || !strings.Contains(string(deletes[0].Body), `"uid"`) {
		t.Errorf("%d deletions", len(deletes))
	}
	// One that comes back registers anew, and begins anew.
	s.node("dead", "True", time.Minute, removable+"=true")
	s.want(s.pass(6*time.Minute), "dead", "Keep/NodeReady")
	// Its own is never touched.
	s.ready("worker-0", "Unknown", time.Hour)
	s.server.Apply(t, "", "apiVersion: v1\nkind: Node\nmetadata: {name: worker-0, labels: {"+removable+": \"true\"}}\n")
	s.options.Self = "worker-0"
	s.restart()
	s.want(s.pass(11*time.Minute), "worker-0", "Refuse/OwnNode")
}

// What keeps a Node that is Unknown, labelled, and past its time.
func TestNodesStay(t *testing.T) {
	lease := func(s *recoverScene, value string) {
		s.server.Apply(s, nodeLeases, "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: {name: dead, namespace: "+nodeLeases+"}\nspec: {holderIdentity: dead, renewTime: "+value+"}\n")
	}
	unknown := func(s *recoverScene, names ...string) {
		for _, name := range names {
			s.ready(name, "Unknown", time.Hour)
		}
	}
	for name, test := range map[string]struct {
		change func(*recoverScene) // once the Node is there
		late   func(*recoverScene) // right before its time is over
		want   string
		words  string
	}{
		"nothing":               {nil, nil, "", ""},
		"its agent lives":       {func(s *recoverScene) { s.members.alive["dead"] = true }, nil, "Refuse/MemberAlive", "its kubelet is down, or its way to the API server is"},
		"its agent answers now": {func(s *recoverScene) { s.members.answer["dead"] = true }, nil, "Refuse/MemberAlive", "answers"},
		"its Lease is renewed": {func(s *recoverScene) { lease(s, `"2026-01-01T00:00:00.000000Z"`) }, func(s *recoverScene) {
			lease(s, `"2026-01-01T00:10:00.000000Z"`)
		}, "Refuse/LeaseRenewed", ""},
		"its Lease stands still": {func(s *recoverScene) { lease(s, `"2026-01-01T00:00:00.000000Z"`) }, nil, "", ""},
		"its Leases are refused": {func(s *recoverScene) {
			s.proxy.SetFault(apiserver.On("GET leases.coordination.k8s.io", apiserver.Refuse(403, metav1.StatusReasonForbidden, `User "u" cannot get resource "leases"`)))
		}, nil, "Refuse/LeaseUnread", "cannot get resource"},
		"a volume": {func(s *recoverScene) {
			name := apiserver.Unique("csi")
			s.server.Apply(s, "", "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: "+name+"}\nspec: {attacher: a, nodeName: dead, source: {persistentVolumeName: pv}}\n")
			s.Cleanup(func() { s.server.Delete(s, volumeAttachments, "", name) })
		}, nil, "Refuse/VolumeAttached", "csi"},
		"a volume of another": {func(s *recoverScene) {
			name := apiserver.Unique("csi")
			s.server.Apply(s, "", "apiVersion: storage.k8s.io/v1\nkind: VolumeAttachment\nmetadata: {name: "+name+"}\nspec: {attacher: a, nodeName: worker-0, source: {persistentVolumeName: pv}}\n")
			s.Cleanup(func() { s.server.Delete(s, volumeAttachments, "", name) })
		}, nil, "", ""},
		"volumes are refused": {func(s *recoverScene) {
			s.proxy.SetFault(apiserver.On("LIST volumeattachments.storage.k8s.io", apiserver.Refuse(403, metav1.StatusReasonForbidden, "no")))
		}, nil, "Refuse/VolumesUnread", ""},
		"two members of etcd":     {func(s *recoverScene) { s.server.DeleteNode(s, "cp-2") }, nil, "Refuse/TooFewEtcdMembers", "2 Ready"},
		"one member is not Ready": {func(s *recoverScene) { s.ready("cp-2", "False", time.Hour) }, nil, "Refuse/TooFewEtcdMembers", ""},
		"no member of etcd": {func(s *recoverScene) {
			for i := range 3 {
				s.server.DeleteNode(s, fmt.Sprint("cp-", i))
			}
			s.node("cp-3", "True", time.Hour, "node-role.kubernetes.io/control-plane=")
		}, nil, "Refuse/TooFewEtcdMembers", "minReadyEtcdMembers: 0"},
		"agents that pose as members of etcd": {func(s *recoverScene) {
			s.server.DeleteNode(s, "cp-2")
			s.node("poser", "True", time.Hour, etcdRole+"=false")
		}, nil, "Refuse/TooFewEtcdMembers", "2 Ready"},
		"the clocks are five minutes apart": {func(s *recoverScene) { s.ready("dead", "Unknown", -5*time.Minute) }, nil, "Keep/BelowThreshold", ""},
		"60 % are Unknown at once":          {func(s *recoverScene) { unknown(s, "worker-0", "worker-1", "worker-2", "worker-3") }, nil, "Refuse/TooManyUnhealthy", "5 of 8"},
		"all of a zone": {func(s *recoverScene) {
			for _, n := range []string{"dead", "worker-0"} {
				s.server.Apply(s, "", "apiVersion: v1\nkind: Node\nmetadata: {name: "+n+", labels: {"+removable+": \"true\", topology.kubernetes.io/zone: a}}\n")
			}
			unknown(s, "worker-0")
		}, nil, "Refuse/ZoneDown", ""},
		"few agents are seen": {func(s *recoverScene) { s.members.alive = map[string]bool{"cp-0": true, "cp-1": true} }, nil, "Refuse/GossipUnsure", ""},
		"an annotation": {func(s *recoverScene) {
			s.server.Apply(s, "", "apiVersion: v1\nkind: Node\nmetadata: {name: dead, labels: {"+removable+": \"true\"}, annotations: {"+KeepAnnotation+": \"true\"}}\n")
		}, nil, "Refuse/KeptByAnnotation", ""},
		"no SweepReport": {func(s *recoverScene) { s.server.Delete(s, SweepReports, "", s.options.Report) }, nil, "Refuse/ReportUnread", "unstale crd"},
		"the SweepReport is refused": {func(s *recoverScene) {
			s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", apiserver.Refuse(403, metav1.StatusReasonForbidden, "no")))
		}, nil, "Refuse/ReportUnread", ""},
		"many have gone before": {func(s *recoverScene) {
			s.server.PatchStatus(s, SweepReports, "", s.options.Report, `{"status": {"recovery": {"highWaterMark": 14}}}`)
		}, nil, "Refuse/TooManyUnhealthy", "7 of 14"},
		"another a moment ago": {func(s *recoverScene) {
			s.server.PatchStatus(s, SweepReports, "", s.options.Report, fmt.Sprintf(`{"status": {"recovery": {"highWaterMark": 8, "lastDeletion": %q}}}`, time.Now().UTC().Format(time.RFC3339)))
		}, nil, "Refuse/DeletedRecently", ""},
		"it recovers between the list and the deletion": {nil, func(s *recoverScene) {
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if apiserver.Class(r) == "GET nodes" && strings.HasSuffix(r.URL.Path, "/dead") {
					s.ready("dead", "True", 0)
				}
				return nil
			})
		}, "Keep/Changed", ""},
		"it recovers between the look and the deletion": {nil, func(s *recoverScene) {
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if apiserver.Class(r) == "DELETE nodes" {
					s.ready("dead", "True", 0)
				}
				return nil
			})
		}, "Keep/Changed", "written meanwhile"},
		"somebody else deletes it": {nil, func(s *recoverScene) {
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if apiserver.Class(r) == "DELETE nodes" {
					s.server.DeleteNode(s, "dead")
				}
				return nil
			})
		}, "Keep/BeingDeleted", ""},
		"a policy refuses": {func(s *recoverScene) {
			s.proxy.SetFault(apiserver.On("DELETE nodes", apiserver.Refuse(403, metav1.StatusReasonForbidden, "not on my watch")))
		}, nil, "Keep/Unconfirmed", "not on my watch"},
		"the API server was away": {nil, func(s *recoverScene) {
			s.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Drop: true}))
			s.pass(watchPause)
			s.proxy.SetFault(nil)
		}, "Keep/BelowThreshold", ""},
		"gossip was away": {nil, func(s *recoverScene) {
			alive := s.members.alive
			s.members.alive = map[string]bool{}
			s.pass(watchPause)
			s.members.alive = alive
		}, "Keep/BelowThreshold", ""},
		"this process stood still": {nil, func(s *recoverScene) { s.now = s.now.Add(2 * time.Minute) }, "Keep/BelowThreshold", ""},
		"another pruner begins":    {nil, func(s *recoverScene) { s.restart() }, "Keep/BelowThreshold", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRecoverScene(t)
			t.Cleanup(func() {
				_ = s.server.Dynamic().Resource(leases).Namespace(nodeLeases).Delete(context.Background(), "dead", metav1.DeleteOptions{})
			})
			s.node("dead", "Unknown", time.Hour, removable+"=true")
			if test.change != nil {
				test.change(s)
			}
			s.pass(590 * time.Second)
			if test.late != nil {
				test.late(s)
			}
			report := s.pass(time.Minute)
			if len(report.Resources) == 0 { // no list was due
				report = s.pass(6 * time.Minute)
			}
			if test.want == "" {
				if s.exists("dead") {
					t.Errorf("it stays: %s: %s; %s", said(report, "dead"), message(report, "dead"), report.Message)
				}
				return
			}
			s.want(report, "dead", test.want, test.words)
			if name != "somebody else deletes it" && !s.exists("dead") {
				t.Error("it is gone")
			}
		})
	}
}
