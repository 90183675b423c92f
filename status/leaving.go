package status

import (
	"fmt"
	"strings"
)

// OnStop says when an agent that stops clears its own node's key in a shared resource.
type OnStop string

// When an agent that stops clears its own node's key.
const (
	StopAlways      OnStop = "Always"
	StopNodeLeaving OnStop = "NodeLeaving" // only when the node itself is going
	StopNever       OnStop = "Never"
)

// The reasons of decisions on a node's own key at a stop.
const (
	OnStopAlways     Reason = "OnStopAlways"     // cleared: onStop says so
	OnStopNever      Reason = "OnStopNever"      // left: onStop says so
	NodeBeingDeleted Reason = "NodeBeingDeleted" // cleared: the Node has a deletion timestamp
	NodeShutsDown    Reason = "NodeShutsDown"    // cleared: the kubelet says that the node is shutting down
	NodeStays        Reason = "NodeStays"        // left: only the agent stops
	NodeReplaced     Reason = "NodeReplaced"     // left: the Node is another one of this name, and the key its agent's
)

// A Leaving tells whether a node is going, with a reason and a sentence for people.
type Leaving struct {
	Leaves  bool
	Reason  Reason
	Message string
}

// DecideLeaving tells from its Node whether a node is going. uid is the UID that the Node had while the agent ran, "" if it is not
// known. Anything unknown is not leaving.
func DecideLeaving(n OwnNode, uid string) Leaving {
	switch {
	case n.Existence == Gone:
		return Leaving{true, NodeGone, "the Node is gone"}
	case n.Existence != Exists:
		return Leaving{false, Unconfirmed, "whether the node is leaving could not be found out: " + orNotAsked(n.Why)}
	case uid != "" && n.UID != uid:
		return Leaving{false, NodeReplaced, fmt.Sprintf("the Node of this name is another one now (UID %s, it was %s); its own agent sees to the key", n.UID, uid)}
	case n.Deleting:
		return Leaving{true, NodeBeingDeleted, "the Node is being deleted"}
	case saysShutdown(n.Ready):
		return Leaving{true, NodeShutsDown, "the kubelet says that the node is shutting down: " + n.Ready.Message}
	}
	return Leaving{false, NodeStays, "the Node stays"}
}

// saysShutdown tells whether the kubelet's Ready condition says that the node is shutting down (graceful node shutdown).
//
// The kubelet's shutdown manager then returns an error "node is shutting down" (ShutdownStatus in
// pkg/kubelet/nodeshutdown/nodeshutdown_manager_{linux,windows}.go), which ReadyCondition in
// pkg/kubelet/nodestatus/setters.go gathers with those of the runtime, the network and the storage into the message of
// Ready=False with reason KubeletNotReady: alone as it is, several as "[a, b, node is shutting down]". What the container manager has to
// complain of comes after it, as ". WARNING: …". The shutdown manager's error is the last of them but for missing capacities. (As of Kubernetes 1.37.)
// A shutdown that is called off makes the kubelet write Ready again.
func saysShutdown(ready Condition) bool {
	if ready.Status != "False" || ready.Reason != "KubeletNotReady" {
		return false
	}
	message, _, _ := strings.Cut(ready.Message, ". WARNING: ")
	message = strings.TrimSuffix(strings.TrimPrefix(message, "["), "]")
	for part := range strings.SplitSeq(message, ", ") {
		if part == "node is shutting down" {
			return true
		}
	}
	return false
}

// A StopDecision says whether an agent that stops clears its node's key in a target's resources.
type StopDecision struct {
	Clear   bool
	Reason  Reason
	Message string
}

// AsksForNode tells whether DecideStop depends on the Node, so that it must be read first.
func (o OnStop) AsksForNode() bool { return o == StopNodeLeaving }

// DecideStop applies a target's onStop. leaving matters to NodeLeaving only.
func DecideStop(onStop OnStop, leaving Leaving) StopDecision {
	switch onStop {
	case StopAlways:
		return StopDecision{true, OnStopAlways, "onStop is Always"}
	case StopNodeLeaving:
		return StopDecision{leaving.Leaves, leaving.Reason, leaving.Message}
	case StopNever:
		return StopDecision{false, OnStopNever, "onStop is Never"}
	}
	return StopDecision{false, Unconfirmed, fmt.Sprintf("onStop is %q, which is none of Always, NodeLeaving, Never", onStop)}
}
