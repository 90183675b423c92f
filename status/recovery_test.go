package status

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// deadNode is evidence that leads to Prune; each row of the table differs from it in what the row is about.
func deadNode() RecoveryEvidence {
	return RecoveryEvidence{
		Policy: RecoveryPolicy{
			PruneAfter: 10 * time.Minute, Label: "unstale.dev/removable", TaintSelector: map[string]string{"unstale.dev/removable": "true"},
			MinReadyEtcdMembers: 3, MaxUnhealthy: 40, PruneInterval: time.Minute,
		},
		Node: NodeView{
			Name: "node-1", UID: "u", Version: "1", Labels: map[string]string{"unstale.dev/removable": "true"},
			Ready: corev1.ConditionUnknown, ReadySince: noon.Add(-time.Hour),
		},
		ServerNow: noon, Observed: time.Hour, Lease: LeaseStill,
		Counts: ClusterCounts{Total: 10, Unhealthy: 1, HighWaterMark: 10, ReadyEtcd: 3, ReadyMembers: 9},
	}
}

// tainting turns deletion off and the taint on.
func tainting(e *RecoveryEvidence) {
	e.Policy.PruneAfter, e.Policy.TaintAfter, e.Infrastructure = 0, 2*time.Minute, InfrastructureGone
}

func TestDecideNode(t *testing.T) {
	ours := corev1.Taint{Key: outOfService, Value: "unstale", Effect: corev1.TaintEffectNoExecute}
	operators := corev1.Taint{Key: outOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}
	var seen []string
	for _, test := range []struct {
		name    string
		change  func(*RecoveryEvidence)
		verdict Verdict
		reason  Reason
		words   string // of the message
	}{
		{"a dead Node", func(*RecoveryEvidence) {}, Prune, UnknownTooLong, "Unknown for 1h"},
		{"one whose machine is gone", func(e *RecoveryEvidence) { e.Infrastructure = InfrastructureGone }, Prune, UnknownTooLong, ""},
		{"tainting", tainting, Taint, UnknownTooLong, ""},
		{"tainted by its label", func(e *RecoveryEvidence) {
			tainting(e)
			e.Policy.ConfirmByLabel, e.Infrastructure = true, InfrastructureNone
		}, Taint, UnknownTooLong, ""},
		{"the taint comes first", func(e *RecoveryEvidence) {
			e.Policy.TaintAfter, e.Infrastructure = 2*time.Minute, InfrastructureGone
		}, Taint, UnknownTooLong, ""},
		{"tainted, so it is deleted", func(e *RecoveryEvidence) {
			e.Policy.TaintAfter, e.Node.Taints = 2*time.Minute, []corev1.Taint{ours}
		}, Prune, UnknownTooLong, ""},
		{"no proof for the taint, and too soon for the deletion", func(e *RecoveryEvidence) {
			e.Policy.TaintAfter, e.Observed = 2*time.Minute, 5*time.Minute
		}, Refuse, NoInfrastructure, "confirmed gone"},
		{"no proof for the taint, but the label suffices for the deletion", func(e *RecoveryEvidence) { e.Policy.TaintAfter = 2 * time.Minute }, Prune, UnknownTooLong, ""},
		{"every Node is tainted, this one is not vouched for", func(e *RecoveryEvidence) {
			tainting(e)
			e.Policy.TaintSelector, e.Policy.ConfirmByLabel, e.Infrastructure, e.Node.Labels = nil, true, InfrastructureNone, nil
		}, Refuse, NotOptedIn, "vouched"},
		{"every Node is tainted whose machine is gone", func(e *RecoveryEvidence) {
			tainting(e)
			e.Policy.TaintSelector, e.Node.Labels = nil, nil
		}, Taint, UnknownTooLong, ""},
		{"an operator's taint is there", func(e *RecoveryEvidence) { tainting(e); e.Node.Taints = []corev1.Taint{operators} }, Keep, RecoveryOff, "already"},

		{"Ready", func(e *RecoveryEvidence) { e.Node.Ready = corev1.ConditionTrue }, Keep, NodeReady, ""},
		{"NotReady", func(e *RecoveryEvidence) { e.Node.Ready = corev1.ConditionFalse }, Keep, NodeNotReady, "kubelet answers"},
		{"Ready again", func(e *RecoveryEvidence) {
			e.Node.Ready, e.Node.Taints = corev1.ConditionTrue, []corev1.Taint{operators, ours}
		}, Untaint, ReadyAgain, ""},
		{"Ready again, and all is off by now", func(e *RecoveryEvidence) {
			e.Node.Ready, e.Node.Taints, e.Policy = corev1.ConditionTrue, []corev1.Taint{ours}, RecoveryPolicy{}
		}, Untaint, ReadyAgain, ""},
		{"Ready again just now", func(e *RecoveryEvidence) {
			e.Node.Ready, e.Node.Taints, e.Observed = corev1.ConditionTrue, []corev1.Taint{ours}, 59*time.Second
		}, Keep, BelowThreshold, ""},
		{"Ready, with an operator's taint", func(e *RecoveryEvidence) {
			e.Node.Ready, e.Node.Taints = corev1.ConditionTrue, []corev1.Taint{operators}
		}, Keep, NodeReady, ""},
		{"NotReady with our taint", func(e *RecoveryEvidence) {
			e.Node.Ready, e.Node.Taints = corev1.ConditionFalse, []corev1.Taint{ours}
		}, Keep, NodeNotReady, ""},
		{"all is off", func(e *RecoveryEvidence) { e.Policy.PruneAfter = 0 }, Keep, RecoveryOff, "prune.after"},
		{"somebody has deleted it", func(e *RecoveryEvidence) { e.Node.Deleted = true }, Keep, BeingDeleted, ""},

		{"no Ready condition", func(e *RecoveryEvidence) { e.Node.Ready = "" }, Refuse, NoReadyCondition, ""},
		{"kept", func(e *RecoveryEvidence) { e.Node.Annotations = map[string]string{KeepAnnotation: "true"} }, Refuse, KeptByAnnotation, ""},
		{"its own", func(e *RecoveryEvidence) { e.Own = true }, Refuse, AgentsOwnNode, ""},
		{"control plane", func(e *RecoveryEvidence) { e.Node.Labels["node-role.kubernetes.io/control-plane"] = "" }, Refuse, ControlPlane, "control-plane"},
		{"master", func(e *RecoveryEvidence) { e.Node.Labels["node-role.kubernetes.io/master"] = "true" }, Refuse, ControlPlane, "master"},
		{"etcd", func(e *RecoveryEvidence) { e.Node.Labels["node-role.kubernetes.io/etcd"] = "true" }, Refuse, ControlPlane, "etcd"},
		{"not labelled", func(e *RecoveryEvidence) { delete(e.Node.Labels, "unstale.dev/removable") }, Refuse, NotOptedIn, "unstale.dev/removable=true"},
		{"labelled, but not true", func(e *RecoveryEvidence) { e.Node.Labels["unstale.dev/removable"] = "yes" }, Refuse, NotOptedIn, ""},
		{"not selected for the taint", func(e *RecoveryEvidence) { tainting(e); e.Policy.TaintSelector = map[string]string{"a": "b", "c": "d"} }, Refuse, NotOptedIn, "a=b,c=d"},
		{"its agent lives", func(e *RecoveryEvidence) { e.Member = true }, Refuse, MemberAlive, "kubelet is down"},
		{"few agents are seen", func(e *RecoveryEvidence) { e.Counts.ReadyMembers = 4 }, Refuse, GossipUnsure, "4 agents of 9"},
		{"half of the agents are seen", func(e *RecoveryEvidence) { e.Counts.Total, e.Counts.ReadyMembers = 11, 5 }, Refuse, GossipUnsure, ""},
		{"not long enough by the server's clock", func(e *RecoveryEvidence) { e.Node.ReadySince = noon.Add(-10*time.Minute + time.Second) }, Keep, BelowThreshold, "9m59s"},
		{"not long enough as far as it was seen", func(e *RecoveryEvidence) { e.Observed = 10*time.Minute - time.Second }, Keep, BelowThreshold, ""},
		{"Unknown since a time to come", func(e *RecoveryEvidence) { e.Node.ReadySince = noon.Add(time.Hour) }, Keep, BelowThreshold, ""},
		{"the server's time is not known", func(e *RecoveryEvidence) { e.ServerNow = time.Time{} }, Keep, BelowThreshold, ""},
		{"the Lease was seen once", func(e *RecoveryEvidence) { e.Lease = LeaseOnce }, Keep, LeaseWatched, ""},
		{"the Lease is renewed", func(e *RecoveryEvidence) { e.Lease = LeaseChanged }, Refuse, LeaseRenewed, ""},
		{"the Lease cannot be read", func(e *RecoveryEvidence) { e.Lease, e.LeaseWhy = LeaseUnknown, "on fire" }, Refuse, LeaseUnread, "on fire"},
		{"the machine exists", func(e *RecoveryEvidence) {
			e.Infrastructure, e.InfrastructureWhy = InfrastructureExists, "host x is there"
		}, Refuse, MachineExists, "host x"},
		{"the machine cannot be confirmed", func(e *RecoveryEvidence) { e.Infrastructure, e.InfrastructureWhy = InfrastructureUnknown, "on fire" }, Refuse, MachineUnconfirmed, "on fire"},
		{"a volume", func(e *RecoveryEvidence) { e.Volumes = []string{"csi-1"} }, Refuse, VolumeAttached, "csi-1"},
		{"a volume does not keep it from the taint", func(e *RecoveryEvidence) { tainting(e); e.Volumes = []string{"csi-1"} }, Taint, UnknownTooLong, ""},
		{"volumes cannot be read", func(e *RecoveryEvidence) { e.VolumesWhy = "on fire" }, Refuse, VolumesUnread, "on fire"},
		{"two etcd members", func(e *RecoveryEvidence) { e.Counts.ReadyEtcd = 2 }, Refuse, TooFewEtcdMembers, "2 Ready Nodes"},
		{"no etcd member, and none is wanted", func(e *RecoveryEvidence) { e.Counts.ReadyEtcd, e.Policy.MinReadyEtcdMembers = 0, 0 }, Prune, UnknownTooLong, ""},
		{"no etcd member", func(e *RecoveryEvidence) { e.Counts.ReadyEtcd = 0 }, Refuse, TooFewEtcdMembers, "minReadyEtcdMembers: 0"},
		{"the taint minds etcd too", func(e *RecoveryEvidence) { tainting(e); e.Counts.ReadyEtcd = 2 }, Refuse, TooFewEtcdMembers, ""},
		{"40 % unhealthy", func(e *RecoveryEvidence) { e.Counts.Unhealthy = 4 }, Prune, UnknownTooLong, ""},
		{"60 % unhealthy", func(e *RecoveryEvidence) { e.Counts.Unhealthy = 6 }, Refuse, TooManyUnhealthy, "6 of 10"},
		{"one after another", func(e *RecoveryEvidence) { e.Counts.HighWaterMark = 14 }, Prune, UnknownTooLong, ""},
		{"one after another under the floor", func(e *RecoveryEvidence) { e.Counts.HighWaterMark = 16 }, Refuse, TooManyUnhealthy, "7 of 16"},
		{"no Node is Ready", func(e *RecoveryEvidence) {
			e.Counts.Unhealthy, e.Policy.MaxUnhealthy, e.Policy.MinReadyEtcdMembers = 10, 100, 0
		}, Refuse, NoNodeReady, ""},
		{"its zone is down", func(e *RecoveryEvidence) { e.Counts.ZoneTotal, e.Counts.ZoneUnhealthy = 2, 2 }, Refuse, ZoneDown, "zone"},
		{"its zone is down, and its machine is gone", func(e *RecoveryEvidence) {
			e.Counts.ZoneTotal, e.Counts.ZoneUnhealthy, e.Infrastructure = 2, 2, InfrastructureGone
		}, Prune, UnknownTooLong, ""},
		{"it is all of its zone", func(e *RecoveryEvidence) { e.Counts.ZoneTotal, e.Counts.ZoneUnhealthy = 1, 1 }, Prune, UnknownTooLong, ""},
		{"some of its zone lives", func(e *RecoveryEvidence) { e.Counts.ZoneTotal, e.Counts.ZoneUnhealthy = 3, 2 }, Prune, UnknownTooLong, ""},
		{"no report", func(e *RecoveryEvidence) { e.ReportWhy = "on fire" }, Refuse, ReportUnread, "on fire"},
		{"another a moment ago", func(e *RecoveryEvidence) { e.LastDeletion = noon.Add(-59 * time.Second) }, Refuse, DeletedRecently, "between two deletions"},
		{"another a minute ago", func(e *RecoveryEvidence) { e.LastDeletion = noon.Add(-time.Minute) }, Prune, UnknownTooLong, ""},
		{"another in 400 years", func(e *RecoveryEvidence) { e.LastDeletion = noon.AddDate(400, 0, 0) }, Refuse, DeletedRecently, ""},
		{"that does not keep it from the taint", func(e *RecoveryEvidence) { tainting(e); e.LastDeletion = noon }, Taint, UnknownTooLong, ""},
	} {
		seen = append(seen, string(test.reason))
		t.Run(test.name, func(t *testing.T) {
			e := deadNode()
			test.change(&e)
			got := DecideNode(e)
			if got.Verdict != test.verdict || got.Reason != test.reason || !strings.Contains(got.Message, test.words) || got.Message == "" {
				t.Errorf("%s %s: %s; want %s %s: …%s…", got.Verdict, got.Reason, got.Message, test.verdict, test.reason, test.words)
			}
		})
	}
	for _, reason := range constants(t, "recovery.go", "Reason") {
		if !slices.Contains(seen, reason) {
			t.Errorf("no row has the reason %s", reason)
		}
	}
}

// When what a Node waits for is over is said by the server's clock.
func TestDecideNodeSaysWhen(t *testing.T) {
	e := deadNode()
	e.Observed = 4 * time.Minute
	if d := DecideNode(e); !d.NotBefore.Equal(noon.Add(6 * time.Minute)) {
		t.Error(d)
	}
	e = deadNode()
	e.LastDeletion = noon.Add(-20 * time.Second)
	if d := DecideNode(e); !d.NotBefore.Equal(noon.Add(40 * time.Second)) {
		t.Error(d)
	}
}

// Since when a Node is as it is counts only while it was watched; a Lease must not change for a minute.
func TestSightings(t *testing.T) {
	var s sightings
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }
	node := NodeView{Name: "a", UID: "u", Ready: corev1.ConditionUnknown, ReadySince: noon}
	saw := func(seconds int, n NodeView) { s.saw([]NodeView{n}, at(seconds)) }
	observed := func(seconds, want int) {
		t.Helper()
		if got := s.observed("a", at(seconds)); got != time.Duration(want)*time.Second {
			t.Errorf("at %d s: observed for %s, want %d s", seconds, got, want)
		}
	}
	lease := func(seconds int, want LeaseState) {
		t.Helper()
		if got := s.leaseState("a", at(seconds)); got != want {
			t.Errorf("at %d s: Lease %d, want %d", seconds, got, want)
		}
	}
	observed(0, 0)
	lease(0, LeaseOnce)
	saw(0, node)
	saw(100, node)
	observed(100, 100)
	s.sawLease("a", "1", at(100))
	lease(159, LeaseOnce)
	lease(160, LeaseStill)
	s.sawLease("a", "2", at(170))
	lease(229, LeaseChanged)
	s.sawLease("a", "2", at(229))
	lease(230, LeaseStill)
	s.sawLease("stranger", "1", at(230))
	s.outage()
	observed(240, 0)
	lease(240, LeaseOnce)
	saw(240, node)
	observed(250, 10)
	node.ReadySince = at(245) // it was Ready in between
	saw(260, node)
	observed(270, 10)
	node.UID = "another"
	saw(280, node)
	observed(290, 10)
	s.saw(nil, at(300))
	observed(310, 0)
}

// A voter that says "false", or is not Ready, or is being deleted, is none; one zone of two regions is two.
func TestCensus(t *testing.T) {
	node := func(ready corev1.ConditionStatus, labels ...string) NodeView {
		n := NodeView{Ready: ready, Labels: map[string]string{}}
		for _, l := range labels {
			key, value, _ := strings.Cut(l, "=")
			n.Labels[key] = value
		}
		return n
	}
	leaving := node(corev1.ConditionTrue, etcdRole+"=true")
	leaving.Deleted = true
	dead := node(corev1.ConditionUnknown, corev1.LabelTopologyZone+"=a", corev1.LabelTopologyRegion+"=r")
	c := takeCensus([]NodeView{
		node(corev1.ConditionTrue, etcdRole+"=true"), node(corev1.ConditionTrue, etcdRole), node(corev1.ConditionTrue, etcdRole+"=false"),
		node(corev1.ConditionFalse, etcdRole+"=true"), node("", etcdRole+"=true"), node(corev1.ConditionTrue), leaving, dead,
		node(corev1.ConditionTrue, corev1.LabelTopologyZone+"=a"),
	})
	if got, want := c.of(&dead), (ClusterCounts{Total: 9, Unhealthy: 3, ReadyEtcd: 2, ZoneTotal: 1, ZoneUnhealthy: 1}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	c.deleted(&dead)
	if got, want := c.of(&dead), (ClusterCounts{Total: 8, Unhealthy: 2, ReadyEtcd: 2}); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}
