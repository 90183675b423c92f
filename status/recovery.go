package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The verdicts on Nodes, beside Keep.
const (
	Taint   Verdict = "Taint"   // the out-of-service taint is added
	Untaint Verdict = "Untaint" // it is taken off
	Prune   Verdict = "Prune"   // the Node is deleted
	Refuse  Verdict = "Refuse"  // it would be tainted or deleted, but something speaks against it
)

// The reasons for a verdict on a Node, beside KeptByAnnotation and MemberAlive (Refuse) and BeingDeleted (Keep); docs/reasons.md explains each to an operator.
const (
	NodeReady      Reason = "NodeReady"      // Keep: Ready is True
	NodeNotReady   Reason = "NodeNotReady"   // Keep: Ready is False, so its kubelet answers
	RecoveryOff    Reason = "RecoveryOff"    // Keep: neither taint nor deletion is on, or the one that is on is done
	BelowThreshold Reason = "BelowThreshold" // Keep: it has not been Unknown, or Ready again, for long enough
	LeaseWatched   Reason = "LeaseWatched"   // Keep: its Lease was not yet seen unchanged for a minute

	UnknownTooLong Reason = "UnknownTooLong" // Taint, Prune: Ready has been Unknown for long enough
	ReadyAgain     Reason = "ReadyAgain"     // Untaint: Ready for a minute

	NoReadyCondition   Reason = "NoReadyCondition"   // Refuse: nobody says how it fares
	AgentsOwnNode      Reason = "OwnNode"            // Refuse: this agent runs on it
	ControlPlane       Reason = "ControlPlane"       // Refuse: it has a control-plane or etcd role
	NotOptedIn         Reason = "NotOptedIn"         // Refuse: it lacks the labels
	GossipUnsure       Reason = "GossipUnsure"       // Refuse: this agent sees too few others for their absence to mean anything
	LeaseRenewed       Reason = "LeaseRenewed"       // Refuse: its kubelet renews its Lease
	LeaseUnread        Reason = "LeaseUnread"        // Refuse: its Lease cannot be read
	MachineExists      Reason = "MachineExists"      // Refuse: its infrastructure still exists
	MachineUnconfirmed Reason = "MachineUnconfirmed" // Refuse: whether it does cannot be confirmed
	NoInfrastructure   Reason = "NoInfrastructure"   // Refuse: nobody knows of any, and the taint wants it confirmed gone
	VolumeAttached     Reason = "VolumeAttached"     // Refuse: a VolumeAttachment names it
	VolumesUnread      Reason = "VolumesUnread"      // Refuse: VolumeAttachments cannot be read
	TooFewEtcdMembers  Reason = "TooFewEtcdMembers"  // Refuse: too few Ready Nodes with the etcd role
	TooManyUnhealthy   Reason = "TooManyUnhealthy"   // Refuse: so many at once are no dead machines
	NoNodeReady        Reason = "NoNodeReady"        // Refuse: every zone is down
	ZoneDown           Reason = "ZoneDown"           // Refuse: so is all of its zone, and its machine is not confirmed gone
	ReportUnread       Reason = "ReportUnread"       // Refuse: the SweepReport, which has what was deleted before, cannot be read or written
	DeletedRecently    Reason = "DeletedRecently"    // Refuse: another Node was deleted a moment ago
)

const (
	// outOfService lets volumes be attached elsewhere (https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-out-of-service), and
	// taintValue tells our taints from operators' own.
	outOfService = "node.kubernetes.io/out-of-service"
	taintValue   = "unstale"
	// leaseWatch is how long a Lease must not change: a kubelet renews it every 10 s, by default.
	leaseWatch = time.Minute
	// readyWatch is how long a Node must be Ready before the taint is taken off.
	readyWatch = time.Minute
	etcdRole   = "node-role.kubernetes.io/etcd"
)

// controlPlaneRoles are the labels of Nodes that are never touched. kubespray and RKE write the last one.
var controlPlaneRoles = []string{
	"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", etcdRole, "node-role.kubernetes.io/controlplane",
}

// A RecoveryPolicy says what becomes of Nodes that stay Unknown.
type RecoveryPolicy struct {
	TaintAfter, PruneAfter time.Duration     // whole seconds; 0: off
	ConfirmByLabel         bool              // Label is proof enough for the taint; otherwise only infrastructure that is confirmed gone
	TaintSelector          map[string]string // the labels that a Node has that is tainted; empty: every Node
	Label                  string            // the label whose value "true" opts a Node in to its deletion
	MinReadyEtcdMembers    int               // how many Ready Nodes with the etcd role there must be
	MaxUnhealthy           int               // percent of all Nodes
	PruneInterval          time.Duration     // the least time between two deletions
}

// A NodeView is what counts of a Node.
type NodeView struct {
	Name, UID, Version string
	Labels             map[string]string
	Annotations        map[string]string
	ProviderID         string
	Ready              corev1.ConditionStatus // "" without that condition
	ReadySince         time.Time              // its last transition, by the clock of who wrote it
	Taints             []corev1.Taint
	Deleted            bool // it has a deletion timestamp
}

// ours is the index of unstale's taint, -1 without one.
func (n *NodeView) ours() int {
	return slices.IndexFunc(n.Taints, func(t corev1.Taint) bool { return t.Key == outOfService && t.Value == taintValue })
}

// role is a label for which the Node is never touched, "" without one.
func (n *NodeView) role() string {
	for _, role := range controlPlaneRoles {
		if _, has := n.Labels[role]; has {
			return role
		}
	}
	return ""
}

// etcd tells whether it counts as a member of etcd.
func (n *NodeView) etcd() bool {
	value, has := n.Labels[etcdRole]
	return has && value != "false"
}

// LeaseState is what two looks at a Node's Lease showed.
type LeaseState int

// The states of a Lease.
const (
	LeaseOnce    LeaseState = iota // the looks are less than a minute apart
	LeaseStill                     // nobody renewed it for a minute, or there is none
	LeaseChanged                   // somebody did
	LeaseUnknown                   // it could not be read
)

// InfrastructureState is whether a Node's machine exists.
type InfrastructureState int

// The states of a machine.
const (
	InfrastructureNone    InfrastructureState = iota // nobody knows of any
	InfrastructureExists                             //
	InfrastructureGone                               // confirmed
	InfrastructureUnknown                            // cannot be confirmed
)

// ClusterCounts are about all Nodes.
type ClusterCounts struct {
	Total, Unhealthy int // unhealthy: Ready is not True
	HighWaterMark    int // the most that there were
	ReadyEtcd        int // Ready ones with the etcd role
	ZoneTotal        int // of the Node's zone, with it; 0 where it names none
	ZoneUnhealthy    int
	// ReadyMembers is how many of the Ready ones have an agent that this one sees alive.
	ReadyMembers int
}

// RecoveryEvidence is all that a verdict on one Node depends on.
type RecoveryEvidence struct {
	Policy RecoveryPolicy
	Node   NodeView
	Own    bool // this agent runs on it
	Member bool // a live member has its name

	ServerNow time.Time     // by the API server's clock
	Observed  time.Duration // how long this agent has seen Ready as it is, without an outage

	Lease             LeaseState
	Infrastructure    InfrastructureState
	InfrastructureWhy string   // what exists, or why it cannot be confirmed
	Volumes           []string // the VolumeAttachments that name it
	LeaseWhy          string   // why it could not be read
	VolumesWhy        string   // likewise; empty: they were
	ReportWhy         string   // likewise
	LastDeletion      time.Time
	Counts            ClusterCounts
}

// A NodeDecision is a verdict on a Node.
type NodeDecision struct {
	Decision
	// NotBefore is when what it waits for is over, by the API server's clock; zero: no time is known.
	NotBefore time.Time
}

// age is how long the Node has been as it is, as far as this agent may rely on it: by the server's clock, and by what it saw itself.
func (e *RecoveryEvidence) age() time.Duration {
	return max(min(e.ServerNow.Sub(e.Node.ReadySince), e.Observed), 0)
}

// DecideNode gives a Node its verdict. The first refusal that matches counts. It never says Taint and Prune of one Node for one look.
func DecideNode(e RecoveryEvidence) NodeDecision {
	if d, settled := DecideNodeUnasked(e); settled {
		return d
	}
	taint, prune := e.taint(), e.prune()
	switch {
	case taint.Verdict == Taint:
		return taint
	case prune.Verdict == "": // deletion is off
		return taint
	case taint.Verdict == "" || prune.Reason != BelowThreshold: // the deletion is what comes next
		return prune
	}
	return taint
}

// DecideNodeUnasked is the part of DecideNode that needs neither the Node's Lease nor its volumes, infrastructure or the cluster's counts. Its second result
// is false when those count: then the Node's Lease is to be looked at twice.
func DecideNodeUnasked(e RecoveryEvidence) (NodeDecision, bool) {
	n := &e.Node
	settled := func(v Verdict, r Reason, message string) (NodeDecision, bool) {
		return NodeDecision{Decision: Decision{v, r, message}}, true
	}
	switch {
	case n.Deleted:
		return settled(Keep, BeingDeleted, "somebody has deleted the Node")
	case n.Ready == corev1.ConditionTrue && n.ours() >= 0:
		if left := readyWatch - e.age(); left > 0 {
			return NodeDecision{Decision{Keep, BelowThreshold, fmt.Sprintf("Ready again; our taint is taken off after %s of that", readyWatch)}, e.ServerNow.Add(left)}, true
		}
		return settled(Untaint, ReadyAgain, "Ready for a minute, so our taint is taken off")
	case n.Ready == corev1.ConditionTrue:
		return settled(Keep, NodeReady, "Ready")
	case n.Ready == corev1.ConditionFalse:
		return settled(Keep, NodeNotReady, "Ready is False: its kubelet answers, so the machine runs")
	case e.Policy.TaintAfter == 0 && e.Policy.PruneAfter == 0:
		return settled(Keep, RecoveryOff, "neither taint.after nor prune.after is set")
	case n.Ready != corev1.ConditionUnknown:
		return settled(Refuse, NoReadyCondition, "the Node has no Ready condition, so nobody says how it fares")
	case n.Annotations[KeepAnnotation] == "true":
		return settled(Refuse, KeptByAnnotation, "the Node carries "+KeepAnnotation+": \"true\"")
	case e.Own:
		return settled(Refuse, AgentsOwnNode, "this agent runs on the Node")
	case n.role() != "":
		return settled(Refuse, ControlPlane, "the Node has the label "+n.role())
	case !e.mayTaint() && !e.mayPrune():
		return settled(Refuse, NotOptedIn, e.notOptedIn())
	case e.Member:
		return settled(Refuse, MemberAlive, "its agent is alive in gossip, so the machine runs: its kubelet is down, or its way to the API server is")
	}
	return NodeDecision{}, false
}

// mayTaint tells whether tainting is on and meant for such a Node.
func (e *RecoveryEvidence) mayTaint() bool {
	for key, value := range e.Policy.TaintSelector {
		if got, has := e.Node.Labels[key]; !has || got != value {
			return false
		}
	}
	return e.Policy.TaintAfter > 0
}

// mayPrune tells whether deleting is on and meant for such a Node.
func (e *RecoveryEvidence) mayPrune() bool { return e.Policy.PruneAfter > 0 && e.optedIn() }

func (e *RecoveryEvidence) optedIn() bool { return e.Node.Labels[e.Policy.Label] == "true" }

func (e *RecoveryEvidence) notOptedIn() string {
	if e.Policy.PruneAfter > 0 {
		return fmt.Sprintf("the Node lacks the label %s=true", e.Policy.Label)
	}
	var wanted []string
	for _, key := range slices.Sorted(maps.Keys(e.Policy.TaintSelector)) {
		wanted = append(wanted, key+"="+e.Policy.TaintSelector[key])
	}
	return "the Node lacks the labels of taint.nodeSelector, " + strings.Join(wanted, ",")
}

// taint decides on the taint; no verdict where there is none to decide on.
func (e *RecoveryEvidence) taint() NodeDecision {
	switch {
	case !e.mayTaint():
		return NodeDecision{}
	case slices.ContainsFunc(e.Node.Taints, func(t corev1.Taint) bool { return t.Key == outOfService }):
		if e.mayPrune() {
			return NodeDecision{}
		}
		return NodeDecision{Decision: Decision{Keep, RecoveryOff, "the Node has the taint " + outOfService + " already"}}
	}
	if d, refused := e.refuse("tainted", e.Policy.TaintAfter); refused {
		return d
	}
	if !e.Policy.ConfirmByLabel && e.Infrastructure == InfrastructureNone {
		return NodeDecision{Decision: Decision{Refuse, NoInfrastructure, "nobody knows of the Node's infrastructure, and taint.confirm wants it confirmed gone"}}
	}
	if e.Policy.ConfirmByLabel && e.Infrastructure == InfrastructureNone && !e.optedIn() {
		return NodeDecision{Decision: Decision{Refuse, NotOptedIn, fmt.Sprintf("the Node lacks the label %s=true, with which taint.confirm: Label wants it vouched for", e.Policy.Label)}}
	}
	return NodeDecision{Decision: Decision{Taint, UnknownTooLong, fmt.Sprintf("Unknown for %s", e.age().Round(time.Second))}}
}

// prune decides on the deletion; no verdict where there is none to decide on.
func (e *RecoveryEvidence) prune() NodeDecision {
	if !e.mayPrune() {
		return NodeDecision{}
	}
	if d, refused := e.refuse("deleted", e.Policy.PruneAfter); refused {
		return d
	}
	switch {
	case e.VolumesWhy != "":
		return NodeDecision{Decision: Decision{Refuse, VolumesUnread, "cannot tell whether volumes are attached to it: " + e.VolumesWhy}}
	case len(e.Volumes) > 0:
		return NodeDecision{Decision: Decision{Refuse, VolumeAttached, "volumes are attached to it: " + strings.Join(e.Volumes, ", ")}}
	}
	// One that lies in the future was written by a clock that went wrong since; nothing is deleted until it has passed.
	if again := e.LastDeletion.Add(e.Policy.PruneInterval); !e.LastDeletion.IsZero() && e.ServerNow.Before(again) {
		return NodeDecision{
			Decision{Refuse, DeletedRecently, fmt.Sprintf("another Node was deleted at %s, and there are %s between two deletions", e.LastDeletion.UTC().Format(time.RFC3339), e.Policy.PruneInterval)},
			again,
		}
	}
	return NodeDecision{Decision: Decision{Prune, UnknownTooLong, fmt.Sprintf("Unknown for %s", e.age().Round(time.Second))}}
}

// refuse is what taint and deletion are refused for alike.
func (e *RecoveryEvidence) refuse(what string, after time.Duration) (NodeDecision, bool) {
	because := func(v Verdict, r Reason, format string, args ...any) (NodeDecision, bool) {
		return NodeDecision{Decision: Decision{v, r, fmt.Sprintf(format, args...)}}, true
	}
	c := &e.Counts
	ready := c.Total - c.Unhealthy
	most := max(c.HighWaterMark, c.Total)
	lost := c.Unhealthy + most - c.Total // what is no longer there was unhealthy before
	switch left := after - e.age(); {
	case ready > 0 && 2*c.ReadyMembers <= ready:
		return because(Refuse, GossipUnsure, "this agent sees only %d agents of %d Ready Nodes, so it says nothing that it does not see this one's", c.ReadyMembers, ready)
	case left > 0:
		return NodeDecision{Decision{Keep, BelowThreshold, fmt.Sprintf("Unknown for %s, as far as this agent saw; it is %s after %s", e.age().Round(time.Second), what, after)}, e.ServerNow.Add(left)}, true
	case e.ReportWhy != "":
		return because(Refuse, ReportUnread, "the SweepReport has how many Nodes there were and when one was deleted, and cannot be used: %s", e.ReportWhy)
	case c.ReadyEtcd < e.Policy.MinReadyEtcdMembers:
		return because(Refuse, TooFewEtcdMembers, "%d Ready Nodes have the label %s, fewer than %d; where no Node carries it, as with kubeadm or a managed control plane, set prune.minReadyEtcdMembers: 0",
			c.ReadyEtcd, etcdRole, e.Policy.MinReadyEtcdMembers)
	case ready == 0:
		return because(Refuse, NoNodeReady, "no Node is Ready: it is not the Nodes")
	case 100*lost > e.Policy.MaxUnhealthy*most:
		return because(Refuse, TooManyUnhealthy, "%d of %d Nodes are unhealthy or gone, more than %d%%: so many at once are no dead machines", lost, most, e.Policy.MaxUnhealthy)
	case e.Lease == LeaseUnknown:
		return because(Refuse, LeaseUnread, "cannot tell whether its kubelet renews its Lease: %s", e.LeaseWhy)
	case e.Lease == LeaseChanged:
		return because(Refuse, LeaseRenewed, "its kubelet renews its Lease, so the machine runs, although the Node is Unknown")
	case e.Lease == LeaseOnce:
		return because(Keep, LeaseWatched, "its Lease was not yet seen unchanged for %s", leaseWatch)
	case e.Infrastructure == InfrastructureExists:
		return because(Refuse, MachineExists, "its machine exists: %s", e.InfrastructureWhy)
	case e.Infrastructure == InfrastructureUnknown:
		return because(Refuse, MachineUnconfirmed, "cannot confirm that its machine is gone: %s", e.InfrastructureWhy)
	case e.Infrastructure != InfrastructureGone && c.ZoneTotal > 1 && c.ZoneUnhealthy == c.ZoneTotal:
		return because(Refuse, ZoneDown, "none of the %d Nodes of its zone is Ready, so it may be the zone's network", c.ZoneTotal)
	}
	return NodeDecision{}, false
}
