package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/test/apiserver"
)

func TestTargetComesAndGoes(t *testing.T) {
	server := apiserver.Start(t) // its own: the answer to /apis names every group
	server.CreateNodes(t, "n1")
	crd := apiserver.CRD{Group: "later.example.com", Versions: []string{"v1", "v2"}}
	client := newTestClient(t, server.Config())
	nodes := NewNodes(client)
	if err := nodes.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	sweep := func(change func(*Target)) TargetReport {
		t.Helper()
		target := Target{Name: "t", Resource: crd.GVR(), Namespace: "default", Paths: paths("status.nodes"), UnknownKeys: RemoveUnknown, Mode: Enforce, MaxRemovals: 50}
		if change != nil {
			change(&target)
		}
		s := NewSweeper(target, client, nodes, nopLog)
		s.Look(t.Context())
		return s.Sweep(t.Context())
	}
	check := func(report TargetReport, state State, words ...string) {
		t.Helper()
		if report.State != state {
			t.Errorf("state %s (%s), want %s", report.State, report.Message, state)
		}
		for _, w := range words {
			if !strings.Contains(report.Message, w) {
				t.Errorf("the message %q does not say %q", report.Message, w)
			}
		}
		if report.Resources == nil {
			t.Error("resources is nil: it must be an empty list")
		}
	}
	named := func(target *Target) { target.Names = []string{"default"} }
	apply := func(status string) {
		t.Helper()
		server.Apply(t, "default", fmt.Sprintf("apiVersion: later.example.com/v1\nkind: Widget\nmetadata: {name: default}\n%s\n", status))
	}

	check(sweep(nil), NotInstalled, "the API group later.example.com is not installed")
	check(sweep(named), NotInstalled, "the API group later.example.com is not installed")

	server.Install(t, crd.YAML())
	check(sweep(nil), OK)
	check(sweep(named), OK, "default/default does not exist")

	apply("spec: {}")
	report := sweep(named)
	check(report, OK)
	if len(report.Resources) != 1 || report.Resources[0].Entries != 0 || report.Resources[0].Findings == nil {
		t.Errorf("without a status: %+v", report.Resources)
	}

	apply("status: {nodes: {n1: 1, gone: 2}}")
	check(sweep(nil), OK)
	if got := fmt.Sprint(server.Get(t, crd.GVR(), "default", "default").Object["status"]); got != "map[nodes:map[n1:1]]" {
		t.Errorf("left: %s", got)
	}

	check(sweep(func(target *Target) { target.Resource.Resource = "gadgets" }), NotInstalled, "gadgets is not among the resources of later.example.com/v1")
	check(sweep(func(target *Target) { target.Resource.Version = "v9" }), NotInstalled, "version v9 of later.example.com is not served, only", "v1", "v2", "set resource.version")
	check(sweep(func(target *Target) { target.Resource.Group, target.Resource.Version = "", "v1" }), NotInstalled, "widgets is not among the resources of the core group/v1")
	check(sweep(func(target *Target) { target.Paths = paths("status.nodes|name") }), Invalid, "status.nodes is not a list")

	server.Install(t, apiserver.CRD{Group: "later.example.com", Versions: []string{"v1"}, Unserved: []string{"v2"}}.YAML())
	check(sweep(func(target *Target) { target.Resource.Version = "v2" }), NotInstalled, "version v2 of later.example.com is not served, only v1")

	server.Delete(t, crd.GVR(), "default", "default")
	check(sweep(named), OK, "default/default does not exist")
	server.Uninstall(t, crd.GVR())
	check(sweep(nil), NotInstalled)

	bare := apiserver.CRD{Group: "bare.example.com", NoStatus: true}
	server.Install(t, bare.YAML())
	server.Apply(t, "default", "apiVersion: bare.example.com/v1\nkind: Widget\nmetadata: {name: default}\nstatus: {nodes: {n1: 1, gone: 1}}\n")
	check(sweep(func(target *Target) { target.Resource = bare.GVR() }), Invalid, "has no status subresource")

	wide := apiserver.CRD{Group: "wide.example.com", ClusterScoped: true}
	server.Install(t, wide.YAML())
	server.Apply(t, "", "apiVersion: wide.example.com/v1\nkind: Widget\nmetadata: {name: default}\nstatus: {nodes: {n1: 1, gone: 1}}\n")
	check(sweep(func(target *Target) { target.Resource = wide.GVR() }), Invalid, "is cluster-scoped; leave namespace empty")
	check(sweep(func(target *Target) { target.Resource, target.Namespace = wide.GVR(), "" }), OK)
	if got := fmt.Sprint(server.Get(t, wide.GVR(), "", "default").Object["status"]); got != "map[nodes:map[n1:1]]" {
		t.Errorf("left of the cluster-scoped one: %s", got)
	}
}

func TestProxyThatAnswers404IsNotTakenForNotInstalled(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1}}`, paths("status.nodes")...)
	for _, fault := range []*apiserver.Fault{apiserver.PlainNotFound, apiserver.HTMLNotFound} {
		s.proxy.SetFault(apiserver.OnEach(fault))
		s.state(s.sweeper.Sweep(t.Context()), Unavailable, "is this address an API server's?")
		if err := s.nodes.List(t.Context()); err == nil {
			t.Error("the list of Nodes succeeded")
		}
	}
}

// Each rule that is missing is named, and with the rules that Rules gives nothing is missing.
func TestForbidden(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	user := apiserver.Unique("operator")
	client := newTestClient(t, s.proxy.As(user))
	nodes := NewNodes(client)
	sweeper := NewSweeper(s.target, client, nodes, nopLog)
	group := s.target.Resource.Group

	err := nodes.List(t.Context())
	if err == nil {
		t.Fatal("a user without rights listed the Nodes")
	}
	s.state(sweeper.Failure(t.Context(), err), Forbidden, `{apiGroups: [""], resources: ["nodes"], verbs: ["get", "list"]} in a ClusterRole`)
	s.server.Grant(t, user, NodeRules()[0].PolicyRule)
	if err := nodes.List(t.Context()); err != nil {
		t.Fatal(err)
	}

	rules := Rules(&s.target)
	s.state(sweeper.Sweep(t.Context()), Forbidden, "not allowed to list widgets."+group+" in namespace "+s.target.Namespace,
		fmt.Sprintf(`{apiGroups: [%q], resources: ["widgets"], verbs: ["get", "list"]} in a Role in namespace %s`, group, s.target.Namespace))
	s.server.Grant(t, user, rules[0].PolicyRule)

	sweeper.target.Grace = 0
	sweeper.Look(t.Context())
	report := sweeper.Sweep(t.Context())
	s.state(report, Forbidden, fmt.Sprintf(`{apiGroups: [%q], resources: ["widgets/status"], verbs: ["patch"]}`, group))
	if report.Removed() != 0 {
		t.Errorf("%d removed", report.Removed())
	}
	s.equal("left", s.left(), `{"KEEP0":1,"gone-a":1}`)

	s.server.Grant(t, user, rules[1].PolicyRule)
	s.state(sweeper.Sweep(t.Context()), OK)
	s.equal("left", s.left(), `{"KEEP0":1}`)
}

// Without the right to read Nodes one by one nothing is removed, and the rule is named.
func TestForbiddenToGetNodes(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	user := apiserver.Unique("operator")
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}}}
	for _, rule := range Rules(&s.target) {
		rules = append(rules, rule.PolicyRule)
	}
	s.server.Grant(t, user, rules...)
	client := newTestClient(t, s.proxy.As(user))
	nodes := NewNodes(client)
	if err := nodes.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.sweeper.client, s.sweeper.nodes = client, nodes
	report := s.sweep()
	s.equal("verdicts", s.verdicts(report), "gone-a=Keep/Unconfirmed KEEP0=Keep/NodeExists")
	if message := report.Resources[0].Findings[0].Message; !strings.Contains(message, `cannot get resource "nodes"`) {
		t.Errorf("message %q", message)
	}
}

// A policy's refusal is not taken for a failed guard: it is not tried again, and the policy's words are passed on.
func TestRefusedByPolicy(t *testing.T) {
	for _, reason := range []string{"", "reason: Forbidden, "} {
		name := "422"
		if reason != "" {
			name = "403"
		}
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
			policy := apiserver.Unique("policy")
			s.server.Apply(t, "", fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [%[2]s], apiVersions: ["*"], operations: [UPDATE], resources: ["*/status"]}
  validations:
  - {expression: "false", %[3]smessage: "the operator says no"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, policy, s.target.Resource.Group, reason))
			probe := []byte(`[{"op":"add","path":"/status/probe","value":1}]`)
			apiserver.Eventually(t, "the policy to be in force", func() error {
				_, err := s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).
					Patch(t.Context(), s.name, "application/json-patch+json", probe, metav1.PatchOptions{DryRun: []string{"All"}}, "status")
				if err == nil || !strings.Contains(err.Error(), "the operator says no") {
					return fmt.Errorf("answered %v", err)
				}
				return nil
			})
			report := s.sweep()
			s.state(report, Forbidden, "the operator says no")
			if strings.Contains(report.Message, "rule is missing") {
				t.Errorf("taken for a missing rule: %s", report.Message)
			}
			if n := len(s.proxy.Matching("PATCH widgets." + s.target.Resource.Group + "/status")); n != 1 {
				t.Errorf("%d writes, want 1", n)
			}
		})
	}
}

// One resource that cannot be read does not keep the others from being cleaned.
func TestOneResourceFailsTheOthersGoOn(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	s.name = "other"
	s.create(`{nodes: {KEEP0: 1, gone-a: 1}}`)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if strings.HasSuffix(r.URL.Path, "/default") {
			return apiserver.Refuse(500, metav1.StatusReasonInternalError, "this one is broken")
		}
		return nil
	})
	report := s.sweep()
	s.state(report, Unavailable, "this one is broken")
	s.equal("the other", s.left(), `{"KEEP0":1}`)
}

// Held is about the whole target: a resource with orphans only is cleaned when another one shows that keys are node names.
func TestHeldLooksAtAllResources(t *testing.T) {
	s := newScene(t, 1, `{nodes: {gone-a: 1}}`, paths("status.nodes")...)
	report := s.sweep()
	s.state(report, StateHeld)
	s.equal("left", s.left(), `{"gone-a":1}`)
	s.name = "other"
	s.create(`{nodes: {KEEP0: 1}}`)
	s.state(s.sweeper.Sweep(t.Context()), OK)
	s.name = "default"
	s.equal("left", s.left(), `{}`)
}

// The list of Nodes is taken whole or not at all.
func TestListOfNodes(t *testing.T) {
	s := newScene(t, 0, `{nodes: {}}`, paths("status.nodes")...)
	names := make([]string, namesPage+20)
	for i := range names {
		names[i] = apiserver.Unique("many")
	}
	s.server.CreateNodes(t, names...)
	client := newTestClient(t, s.proxy.Config())
	client.wait = func(context.Context, time.Duration) error { return nil }
	nodes := NewNodes(client)
	known := func() int {
		n := 0
		for _, name := range names {
			if nodes.Known(name).Listed {
				n++
			}
		}
		return n
	}

	secondPage := func(f *apiserver.Fault) apiserver.FaultFunc {
		return func(r *http.Request) *apiserver.Fault {
			if r.URL.Query().Has("continue") {
				return f
			}
			return nil
		}
	}
	expired := apiserver.Refuse(410, metav1.StatusReasonExpired, "the continue token is too old")
	for name, fault := range map[string]apiserver.FaultFunc{
		"expired for ever":       secondPage(expired),
		"a page cut short":       secondPage(&apiserver.Fault{Cut: true, CutAfter: 100}),
		"500 on one page":        secondPage(apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")),
		"a page of nothing":      secondPage(&apiserver.Fault{Status: 200, Body: "{}"}),
		"the same page for ever": apiserver.OnEach(&apiserver.Fault{Status: 200, Body: `{"kind":"PartialObjectMetadataList","metadata":{"continue":"again"},"items":[{"metadata":{"name":"` + names[0] + `","uid":"1"}}]}`}),
		"HTML":                   apiserver.OnEach(apiserver.HTMLNotFound),
	} {
		s.proxy.Reset()
		s.proxy.SetFault(fault)
		if err := nodes.List(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
		if n := known(); n != 0 {
			t.Errorf("%s: %d Nodes were believed of a list that failed", name, n)
		}
		if n := len(s.proxy.Requests()); n > 2*maxListStarts*maxAttempts {
			t.Errorf("%s: %d requests: retried without a bound", name, n)
		}
	}

	// Expired once, in the middle: it starts again.
	s.proxy.Reset()
	s.proxy.SetFault(secondPage(expired).Times(1))
	if err := nodes.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if known() != len(names) {
		t.Errorf("%d Nodes known, want %d", known(), len(names))
	}
	lists := s.proxy.Matching("LIST nodes")
	if len(lists) != 4 || lists[2].Query.Has("continue") {
		t.Errorf("%d pages, want two, then two from the start", len(lists))
	}
	// A later list that fails leaves what was known.
	s.proxy.SetFault(secondPage(expired))
	if err := nodes.List(t.Context()); err == nil {
		t.Error("no error")
	}
	if known() != len(names) {
		t.Errorf("%d Nodes known after a list that failed, want %d", known(), len(names))
	}
}

var nopLog = zap.NewNop()

func newTestClient(t *testing.T, config *rest.Config) *Client {
	t.Helper()
	client, err := NewClient(config, "unstale-test")
	if err != nil {
		t.Fatal(err)
	}
	return client
}
