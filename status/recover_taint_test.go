package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/test/apiserver"
)

// tainting is a policy that taints by the label alone.
func (s *recoverScene) tainting(prune time.Duration) {
	s.options.Policy.TaintAfter, s.options.Policy.PruneAfter, s.options.Policy.ConfirmByLabel = 2*time.Minute, prune, true
	s.restart()
}

const ourTaint = "node.kubernetes.io/out-of-service=unstale:NoExecute"

// The taint is appended, and taken off when the Node has been Ready for a minute, also by one for whom tainting is off by now.
func TestTaintAndUntaint(t *testing.T) {
	s := newRecoverScene(t)
	s.tainting(0)
	for _, name := range []string{"dead", "operators", "bare"} {
		s.node(name, "Unknown", time.Hour, removable+"=true")
	}
	s.taints("dead", `{"key": "a", "effect": "NoSchedule"}`, `{"key": "b", "value": "c", "effect": "NoExecute"}`)
	s.taints("operators", `{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}`)
	report := s.pass(121 * time.Second)
	s.want(report, "dead", "Taint/UnknownTooLong")
	s.want(report, "operators", "Keep/RecoveryOff")
	if got, want := s.taintsOf("dead"), "a:NoSchedule b=c:NoExecute "+ourTaint; got != want {
		t.Errorf("dead: %s, want %s", got, want)
	}
	if got := s.taintsOf("bare"); got != ourTaint {
		t.Errorf("bare: %s", got)
	}
	s.want(s.pass(6*time.Minute), "dead", "Keep/RecoveryOff", "already")

	s.options.Policy.TaintAfter = 0
	s.restart()
	s.ready("dead", "True", time.Hour)
	s.ready("operators", "True", time.Hour)
	s.members.alive["dead"], s.members.alive["operators"] = true, true
	report = s.pass(time.Second)
	s.want(report, "dead", "Keep/BelowThreshold", "Ready again")
	report = s.pass(2 * time.Minute)
	s.want(report, "dead", "Keep/NodeReady")
	if got, want := s.taintsOf("dead"), "a:NoSchedule b=c:NoExecute"; got != want {
		t.Errorf("dead: %s, want %s", got, want)
	}
	if got := s.taintsOf("operators"); !strings.Contains(got, "nodeshutdown") {
		t.Errorf("operators: %s", got)
	}
	if got := s.taintsOf("bare"); got != ourTaint {
		t.Errorf("bare is Unknown still, and has %q", got)
	}
	if n := len(s.proxy.Matching("PATCH nodes")); n != 3 {
		t.Errorf("%d patches of Nodes", n)
	}
}

// Tainted in one look, deleted in a later one; the pruner that did the first need not do the second.
func TestTaintThenPrune(t *testing.T) {
	s := newRecoverScene(t)
	s.tainting(3 * time.Minute)
	s.node("dead", "Unknown", time.Hour, removable+"=true")
	s.want(s.pass(2*time.Minute), "dead", "Taint/UnknownTooLong")
	if !s.exists("dead") || s.taintsOf("dead") != ourTaint {
		t.Fatal("not tainted only")
	}
	s.restart()
	s.pass(179 * time.Second)
	if !s.exists("dead") {
		t.Error("the next pruner trusts what it did not see")
	}
	s.pass(time.Minute)
	if s.exists("dead") {
		t.Error("not deleted")
	}
	// Past both at once: two looks all the same.
	s.server.PatchStatus(t, SweepReports, "", s.options.Report, `{"status": {"recovery": {"lastDeletion": null}}}`)
	s.node("both", "Unknown", time.Hour, removable+"=true")
	s.restart()
	s.proxy.SetFault(apiserver.On("PATCH nodes", apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")))
	s.pass(4 * time.Minute)
	s.proxy.SetFault(nil)
	s.proxy.Reset()
	at := s.now
	for s.exists("both") && s.now.Sub(at) < 10*time.Minute {
		s.pass(time.Second)
		if n := len(s.proxy.Matching("PATCH nodes")); n > 0 && s.exists("both") {
			s.proxy.SetFault(nil)
		}
	}
	order := ""
	for _, r := range s.proxy.Requests() {
		if r.Method == http.MethodDelete || strings.HasPrefix(r.Path, "/api/v1/nodes/") && r.Method == http.MethodPatch {
			order += r.Method + " "
		} else if r.Path == "/api/v1/nodes" {
			order += "LIST "
		}
	}
	if at, del := strings.Index(order, "PATCH"), strings.Index(order, "DELETE"); at < 0 || del < at || !strings.Contains(order[at:del], "LIST") {
		t.Errorf("the requests are %s", order)
	}
}

// A taint that is written between look and patch, or a Node that is Ready by then, is left for the next look.
func TestTaintInTheMiddle(t *testing.T) {
	for name, meanwhile := range map[string]func(*recoverScene){
		"it recovers":   func(s *recoverScene) { s.ready("dead", "True", 0) },
		"another taint": func(s *recoverScene) { s.taints("dead", `{"key": "x", "effect": "NoSchedule"}`) },
		"it is deleted": func(s *recoverScene) { s.server.DeleteNode(s, "dead") },
		"the same taint is": func(s *recoverScene) {
			s.taints("dead", `{"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRecoverScene(t)
			s.tainting(0)
			s.node("dead", "Unknown", time.Hour, removable+"=true")
			first := true
			s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
				if apiserver.Class(r) == "PATCH nodes" && first {
					first = false
					meanwhile(s)
				}
				return nil
			})
			report := s.pass(125 * time.Second)
			if first {
				t.Fatal("nothing was tried")
			}
			if got := said(report, "dead"); got != "Keep/Changed" && got != "Keep/BeingDeleted" {
				t.Errorf("%s: %s", got, message(report, "dead"))
			}
			if s.exists("dead") && strings.Contains(s.taintsOf("dead"), "unstale") {
				t.Errorf("tainted: %s", s.taintsOf("dead"))
			}
			s.pass(5 * time.Minute)
			if got := name == "another taint" && s.taintsOf("dead") != "x:NoSchedule "+ourTaint; got {
				t.Errorf("later: %s", s.taintsOf("dead"))
			}
		})
	}
}

// Nodes go one at a time, and never so many that the cluster walks under the floor; a restart does not forget that.
func TestNodesGoOneAfterAnother(t *testing.T) {
	s := newRecoverScene(t)
	for i := range 3 {
		s.node(fmt.Sprint("dead-", i), "Unknown", time.Hour, removable+"=true") // 3 of 10
	}
	left := func() (n int) {
		for i := range 3 {
			if s.exists(fmt.Sprint("dead-", i)) {
				n++
			}
		}
		return n
	}
	report := s.pass(11 * time.Minute)
	if left() != 2 {
		t.Fatalf("%d are left after the first", left())
	}
	refused := 0
	for f := range report.All() {
		if f.Reason == DeletedRecently && !f.NotBefore.IsZero() {
			refused++
		}
	}
	if refused != 2 {
		t.Errorf("%d are told of as waiting for the first: %+v", refused, report)
	}
	minuteAgo := func() {
		s.server.PatchStatus(t, SweepReports, "", s.options.Report, fmt.Sprintf(`{"status": {"recovery": {"lastDeletion": %q}}}`, time.Now().Add(-time.Minute).UTC().Format(time.RFC3339)))
	}
	minuteAgo()
	s.restart()
	s.pass(11 * time.Minute)
	if left() != 1 {
		t.Errorf("%d are left after the second", left())
	}
	// Two more go down: with the two that went, that is 5 of 10.
	s.server.Apply(t, "", "apiVersion: v1\nkind: Node\nmetadata: {name: worker-1, labels: {"+removable+": \"true\"}}\n")
	for _, name := range []string{"worker-0", "worker-1"} {
		s.ready(name, "Unknown", time.Hour)
		s.members.alive[name] = false
	}
	minuteAgo()
	s.restart()
	report = s.pass(11 * time.Minute)
	if left() != 1 || !s.exists("worker-1") {
		t.Error("it walked under the floor")
	}
	s.want(report, "worker-1", "Refuse/TooManyUnhealthy", "5 of 10")
	// When all has been calm for an hour, the cluster is one of its present size.
	for _, name := range []string{"dead-0", "dead-1", "dead-2"} {
		if s.exists(name) {
			s.server.DeleteNode(t, name)
		}
	}
	for _, name := range []string{"worker-0", "worker-1"} {
		s.ready(name, "True", time.Hour)
		s.members.alive[name] = true
	}
	s.pass(59 * time.Minute)
	if m := s.marksNow(); m.HighWaterMark != 10 {
		t.Errorf("before an hour: %+v", m)
	}
	s.pass(10 * time.Minute)
	if m := s.marksNow(); m.HighWaterMark != 7 {
		t.Errorf("after an hour: %+v", m)
	}
}

// Two pruners that do not know of one another do no more than one would.
func TestTwoPruners(t *testing.T) {
	s := newRecoverScene(t)
	s.tainting(5 * time.Minute)
	for i := range 3 {
		s.node(fmt.Sprint("dead-", i), "Unknown", time.Hour, removable+"=true")
	}
	other := s.another()
	begun := s.now
	for step := time.Duration(0); step <= 8*time.Minute; step += watchPause {
		for _, r := range []*Recovery{s.recovery, other} {
			s.now = begun.Add(step)
			r.Look(t.Context())
		}
	}
	gone := 0
	for i := range 3 {
		name := fmt.Sprint("dead-", i)
		if !s.exists(name) {
			gone++
		} else if got := s.taintsOf(name); got != ourTaint {
			t.Errorf("%s has %s", name, got)
		}
	}
	if gone != 1 {
		t.Errorf("%d Nodes were deleted within a minute", gone)
	}
	// Also when both have looked before either writes.
	s.server.PatchStatus(t, SweepReports, "", s.options.Report, `{"status": {"recovery": {"lastDeletion": null}}}`)
	s.recovery.listBefore(s.now)
	other.listBefore(s.now)
	s.now = s.now.Add(watchPause)
	raced := false
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if !raced && apiserver.Class(r) == "PATCH sweepreports.unstale.dev/status" {
			raced = true
			other.Look(t.Context())
		}
		return nil
	})
	report, _ := s.recovery.Look(t.Context())
	if !raced {
		t.Fatal("they did not race")
	}
	s.proxy.SetFault(nil)
	gone = 0
	for i := range 3 {
		if !s.exists(fmt.Sprint("dead-", i)) {
			gone++
		}
	}
	if gone != 2 || report.Removed() != 0 {
		t.Errorf("%d are gone, and the one that came second says it removed %d", gone, report.Removed())
	}
	for f := range report.All() {
		if f.Reason == ReportUnread && strings.Contains(f.Message, "another pruner") {
			return
		}
	}
	t.Errorf("nothing tells of another pruner: %s %s", report.State, report.Message)
}

// With mode Report, and in a plan, nothing is written and all is told.
func TestRecoveryReportAndPlan(t *testing.T) {
	s := newRecoverScene(t)
	s.options.Mode = Report
	s.tainting(10 * time.Minute)
	s.node("dead", "Unknown", 5*time.Minute, removable+"=true")
	s.node("long-dead", "Unknown", time.Hour, removable+"=true")
	s.node("back", "True", time.Hour)
	s.taints("back", `{"key": "node.kubernetes.io/out-of-service", "value": "unstale", "effect": "NoExecute"}`)
	report := s.pass(11 * time.Minute)
	s.want(report, "dead", "Taint/UnknownTooLong")
	s.want(report, "back", "Untaint/ReadyAgain")
	if !strings.Contains(report.Message, "the mode is Report") {
		t.Error(report.Message)
	}
	s.options.Members = nil
	plan := s.another().Plan(t.Context())
	s.want(plan, "long-dead", "Taint/UnknownTooLong")
	s.want(plan, "back", "Untaint/ReadyAgain")
	s.options.Policy.TaintAfter = 0
	plan = s.another().Plan(t.Context())
	s.want(plan, "long-dead", "Prune/UnknownTooLong")
	s.want(plan, "dead", "Keep/BelowThreshold")
	for f := range plan.All() {
		if f.Key == "dead" {
			if in := time.Until(f.NotBefore); in < 4*time.Minute || in > 6*time.Minute {
				t.Errorf("not before %v", f.NotBefore)
			}
		}
	}
	for _, r := range s.proxy.Requests() {
		if r.Method != http.MethodGet {
			t.Errorf("%s %s", r.Method, r.Path)
		}
	}
}

// UntaintAll takes off every taint of ours and nothing else, also while others write the Nodes.
func TestUntaintAll(t *testing.T) {
	s := newRecoverScene(t)
	ours := `{"key": "node.kubernetes.io/out-of-service", "value": "unstale", "effect": "NoExecute"}`
	s.taints("worker-0", ours)
	s.taints("worker-1", `{"key": "a", "effect": "NoSchedule"}`, ours, `{"key": "b", "effect": "NoSchedule"}`)
	s.taints("worker-2", `{"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}`)
	s.ready("worker-0", "Unknown", time.Hour)
	raced := false
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) == "PATCH nodes" && !raced {
			raced = true
			s.ready("worker-0", "Unknown", time.Minute)
		}
		return nil
	})
	untainted, err := UntaintAll(t.Context(), s.recovery.client)
	if err != nil || fmt.Sprint(untainted) != "[worker-0 worker-1]" {
		t.Error(untainted, err)
	}
	for name, want := range map[string]string{"worker-0": "", "worker-1": "a:NoSchedule b:NoSchedule", "worker-2": "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"} {
		if got := s.taintsOf(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	s.taints("worker-0", ours)
	s.taints("worker-3", ours)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) == "PATCH nodes" && strings.HasSuffix(r.URL.Path, "/worker-0") {
			return apiserver.Refuse(403, metav1.StatusReasonForbidden, "not on my watch")
		}
		return nil
	})
	untainted, err = UntaintAll(t.Context(), s.recovery.client)
	if err == nil || !strings.Contains(err.Error(), "Node worker-0: ") || !strings.Contains(err.Error(), "not on my watch") || fmt.Sprint(untainted) != "[worker-3]" {
		t.Error(untainted, err)
	}
}

// What a pruner may is what RecoveryRules say, and no more is needed; deleting Nodes only while that is on.
func TestRecoveryRules(t *testing.T) {
	s := newCAPIScene(t, "v1beta2").recoverScene
	s.tainting(5 * time.Minute)
	s.node("plain", "Unknown", 2*time.Hour, removable+"=true")
	user := apiserver.Unique("pruner")
	var rules []rbacv1.PolicyRule
	for _, r := range append(append(RecoveryRules(&s.options), NodeRules()...), Rule{PolicyRule: rbacv1.PolicyRule{
		APIGroups: []string{SweepReports.Group}, Resources: []string{"sweepreports", "sweepreports/status"}, Verbs: []string{"get", "patch"},
	}}) {
		rules = append(rules, r.PolicyRule)
	}
	s.server.Grant(t, user, rules...)
	s.user = user
	s.restart()
	report := s.pass(130 * time.Second)
	s.want(report, "plain", "Taint/UnknownTooLong")
	s.want(report, "dead", "Refuse/MachineExists")
	s.pass(6 * time.Minute)
	if s.exists("plain") {
		t.Errorf("it stays: %s: %s", said(report, "plain"), report.Message)
	}
	if report.State != OK {
		t.Errorf("%s: %s", report.State, report.Message)
	}

	words := func(o RecoveryOptions) string {
		var all []string
		for _, r := range RecoveryRules(&o) {
			all = append(all, fmt.Sprint(r.Namespace, r.APIGroups, r.Resources, r.Verbs))
		}
		return strings.Join(all, " ")
	}
	hosts := schema.GroupVersionResource{Group: "metal3.io", Version: "v1", Resource: "hosts"}
	elsewhere := func() (*Client, error) { return nil, nil }
	for name, test := range map[string]struct {
		options RecoveryOptions
		want    string
	}{
		"off":  {RecoveryOptions{}, "[] [nodes] [patch]"},
		"told": {RecoveryOptions{Mode: Report}, ""},
		"taint": {
			RecoveryOptions{Policy: RecoveryPolicy{TaintAfter: 1}},
			"[] [nodes] [patch] kube-node-lease[coordination.k8s.io] [leases] [get] [cluster.x-k8s.io] [machines] [get] [infrastructure.cluster.x-k8s.io] [*] [get]",
		},
		"prune": {
			RecoveryOptions{
				Policy: RecoveryPolicy{PruneAfter: 1}, Machines: elsewhere,
				Infrastructure: []InfrastructureSource{{Resource: hosts, Namespace: "a"}, {Resource: hosts, Open: elsewhere}},
			},
			"[] [nodes] [patch delete] kube-node-lease[coordination.k8s.io] [leases] [get] [storage.k8s.io] [volumeattachments] [list] a[metal3.io] [hosts] [get list]",
		},
	} {
		got := words(test.options)
		if got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
	s.user = apiserver.Unique("nobody")
	s.restart()
	if report := s.pass(time.Second); report.State != Forbidden || !strings.Contains(report.Message, `resources: ["nodes"], verbs: ["get", "list"]`) {
		t.Errorf("%s: %s", report.State, report.Message)
	}
}
