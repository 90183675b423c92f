package status

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/test/apiserver"
)

func TestDecideLeaving(t *testing.T) {
	notReady := func(message string) OwnNode {
		return OwnNode{Existence: Exists, UID: "u", Ready: Condition{"False", "KubeletNotReady", message}}
	}
	for _, test := range []struct {
		name   string
		node   OwnNode
		leaves bool
		reason Reason
	}{
		{"nobody asked", OwnNode{}, false, Unconfirmed},
		{"cannot be read", OwnNode{Existence: Unproved, Why: "down"}, false, Unconfirmed},
		{"gone", OwnNode{Existence: Gone}, true, NodeGone},
		{"there", OwnNode{Existence: Exists, UID: "u", Ready: Condition{"True", "KubeletReady", "kubelet is posting ready status"}}, false, NodeStays},
		{"no condition", OwnNode{Existence: Exists, UID: "u"}, false, NodeStays},
		{"being deleted", OwnNode{Existence: Exists, UID: "u", Deleting: true}, true, NodeBeingDeleted},
		{"another one", OwnNode{Existence: Exists, UID: "v"}, false, NodeReplaced},
		{"another one, which is leaving", OwnNode{Existence: Exists, UID: "v", Deleting: true}, false, NodeReplaced},
		{"shutting down", notReady("node is shutting down"), true, NodeShutsDown},
		{"and more", notReady("[container runtime network not ready: NetworkReady=false, node is shutting down]"), true, NodeShutsDown},
		{"and more after it", notReady("[node is shutting down, missing node capacity for resources: cpu, memory]"), true, NodeShutsDown},
		{"and a warning", notReady("node is shutting down. WARNING: CPU hardcapping unsupported"), true, NodeShutsDown},
		{"not ready", notReady("container runtime is down"), false, NodeStays},
		{"a message about it", notReady("PLEG is not healthy: node is shutting down soon"), false, NodeStays},
		{"a part of a message", notReady("the node is shutting down"), false, NodeStays},
		{"a warning about it", notReady("x. WARNING: node is shutting down"), false, NodeStays},
		{"ready again", OwnNode{Existence: Exists, UID: "u", Ready: Condition{"True", "KubeletReady", "node is shutting down"}}, false, NodeStays},
		{"unknown since", OwnNode{Existence: Exists, UID: "u", Ready: Condition{"Unknown", "NodeStatusUnknown", "node is shutting down"}}, false, NodeStays},
		{"somebody else's words", OwnNode{Existence: Exists, UID: "u", Ready: Condition{"False", "Other", "node is shutting down"}}, false, NodeStays},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := DecideLeaving(test.node, "u")
			if got.Leaves != test.leaves || got.Reason != test.reason || got.Message == "" {
				t.Errorf("%+v", got)
			}
		})
	}
	if got := DecideLeaving(OwnNode{Existence: Exists, UID: "v"}, ""); got.Reason != NodeStays {
		t.Errorf("without a UID to compare: %+v", got)
	}
}

func TestDecideStop(t *testing.T) {
	going, staying := Leaving{true, NodeGone, "gone"}, Leaving{false, NodeStays, "stays"}
	for _, test := range []struct {
		onStop  OnStop
		leaving Leaving
		want    string
	}{
		{StopAlways, staying, "true OnStopAlways"},
		{StopAlways, Leaving{}, "true OnStopAlways"},
		{StopNodeLeaving, going, "true NodeGone"},
		{StopNodeLeaving, staying, "false NodeStays"},
		{StopNodeLeaving, Leaving{false, Unconfirmed, "why"}, "false Unconfirmed"},
		{StopNever, going, "false OnStopNever"},
		{"", going, "false Unconfirmed"},
		{"always", going, "false Unconfirmed"},
	} {
		d := DecideStop(test.onStop, test.leaving)
		if got := fmt.Sprintf("%t %s", d.Clear, d.Reason); got != test.want || d.Message == "" {
			t.Errorf("%q, %+v: %s (%s), want %s", test.onStop, test.leaving, got, d.Message, test.want)
		}
		if test.onStop.AsksForNode() != (test.onStop == StopNodeLeaving) {
			t.Errorf("%q asks for the Node: %t", test.onStop, test.onStop.AsksForNode())
		}
	}
}

// What the API server's answers come to, over the wire.
func TestReadOwnNode(t *testing.T) {
	s := newOwnScene(t, `{}`, paths("status.nodes")...)
	node := s.existing[0]
	read := func() (OwnNode, Leaving) {
		n := ReadOwnNode(t.Context(), s.sweeper.client, node, time.Now)
		return n, DecideLeaving(n, s.key.NodeUID)
	}
	check := func(want Reason, words ...string) {
		t.Helper()
		_, got := read()
		if got.Reason != want {
			t.Errorf("%+v, want %s", got, want)
		}
		for _, w := range words {
			if !strings.Contains(got.Message, w) {
				t.Errorf("the message %q does not say %q", got.Message, w)
			}
		}
	}
	s.key.NodeUID = s.nodeUID()
	check(NodeStays)
	for _, fault := range []*apiserver.Fault{
		apiserver.HTMLNotFound, apiserver.PlainNotFound, {Drop: true}, {Status: 200, Body: "<html>"}, {Status: 200, Body: `{"kind":"Node","metadata":{"name":"x"}}`},
		apiserver.Refuse(404, metav1.StatusReasonNotFound, "not found"), apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later"),
		apiserver.Refuse(403, metav1.StatusReasonForbidden, "no"),
		refusal(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Details: &metav1.StatusDetails{Kind: "nodes", Name: "another"}}),
	} {
		s.proxy.SetFault(apiserver.OnEach(fault))
		check(Unconfirmed, "get nodes "+node)
	}
	s.proxy.SetFault(nil)

	at := func(d time.Duration) string { return noon.Add(d).Format(time.RFC3339) }
	s.server.SetStatus(t, apiserver.Nodes, "", node, map[string]any{"conditions": []any{
		map[string]any{"type": "MemoryPressure", "status": "False", "lastTransitionTime": at(-time.Hour)},
		map[string]any{"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message": "node is shutting down", "lastTransitionTime": at(time.Hour)},
	}})
	check(NodeShutsDown)
	n, _ := read()
	if !n.FirstWritten.Equal(noon.Add(-time.Hour)) || n.UID != s.key.NodeUID || !n.ClockKnown || n.ClockOff.Abs() > time.Minute || time.Since(n.Created) > time.Hour {
		t.Errorf("%+v", n)
	}
	ahead := ReadOwnNode(t.Context(), s.sweeper.client, node, func() time.Time { return time.Now().Add(time.Hour) })
	if off := ahead.ClockOff - time.Hour; off.Abs() > time.Minute {
		t.Errorf("a clock an hour ahead is found to be %s off", ahead.ClockOff)
	}
	s.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n := ReadOwnNode(ctx, s.sweeper.client, node, time.Now); n.Existence != Unproved {
		t.Errorf("%+v", n)
	}
	s.proxy.SetFault(nil)

	// Being deleted: a finalizer keeps it.
	finalizers := func(list string) {
		t.Helper()
		_, err := s.server.Dynamic().Resource(apiserver.Nodes).Patch(context.Background(), node, types.MergePatchType,
			[]byte(`{"metadata":{"finalizers":`+list+`}}`), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	finalizers(`["unstale.dev/test"]`)
	if err := s.server.Dynamic().Resource(apiserver.Nodes).Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	check(NodeBeingDeleted)
	finalizers(`null`)
	apiserver.Eventually(t, "the Node's end", func() error {
		if s.server.Exists(t, apiserver.Nodes, "", node) {
			return fmt.Errorf("there")
		}
		return nil
	})
	check(NodeGone)
	s.server.CreateNode(t, node, nil)
	check(NodeReplaced)
}

func FuzzParseOwnNode(f *testing.F) {
	f.Add([]byte(`{"kind":"Node","metadata":{"name":"n","uid":"u","creationTimestamp":"2026-07-01T12:00:00Z"},"status":{"conditions":[{"type":"Ready","status":"False","lastTransitionTime":"2026-07-01T12:00:00Z"}]}}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if n, err := parseOwnNode(data, "n"); err == nil && (n.UID == "" || n.Created.IsZero()) {
			t.Errorf("%s: %+v", data, n)
		}
	})
}
