package dataplane

import (
	"fmt"
	"time"
)

// A Verdict says what is to be done with an entry.
type Verdict string

// The verdicts.
const (
	Keep   Verdict = "Keep"
	Wait   Verdict = "Wait"
	Remove Verdict = "Remove"
)

// A Reason says why. The words are stable.
type Reason string

// Why an address counts as released, and why its entry goes.
const (
	AddressLost   Reason = "AddressLost"   // the pod lives, and no longer has it
	PodFinished   Reason = "PodFinished"   // the pod has ended
	PodGone       Reason = "PodGone"       // the API server no longer has the pod
	SandboxLost   Reason = "SandboxLost"   // the pod's status has the address, but its sandbox is gone
	InterfaceGone Reason = "InterfaceGone" // another has the address, but this entry names an interface that is gone
	OlderThanPod  Reason = "OlderThanPod"  // another has the address, but this connection is older than that pod
)

// Why an entry stays.
const (
	Waiting         Reason = "Waiting"         // the grace is not over
	MayStillRun     Reason = "MayStillRun"     // the pod was deleted, and nobody saw its containers end
	StillRuns       Reason = "StillRuns"       // the pod was deleted, and the container runtime has its sandbox, or has no pod of this node
	BatchFull       Reason = "BatchFull"       // the next pass takes it
	Changed         Reason = "Changed"         // it is not the entry that was read
	PodHasAddress   Reason = "PodHasAddress"   // a pod of this node has it
	UsedElsewhere   Reason = "UsedElsewhere"   // a pod of another node has it
	SandboxHas      Reason = "SandboxHas"      // the container runtime has a sandbox with it
	Annotated       Reason = "Annotated"       // a pod's annotation has it
	HostAddress     Reason = "HostAddress"     // the node itself has it
	InterfaceExists Reason = "InterfaceExists" // the entry names an interface that exists
	PeerOnly        Reason = "PeerOnly"        // the entry is another's, who talked to the address
	AgeUnknown      Reason = "AgeUnknown"      // another has the address, and the kernel does not keep how old the connection is
	Terminating     Reason = "Terminating"     // a TCP connection of a pod that is still ending
	Protected       Reason = "Protected"       // the configuration's keepIf, or the entry's own nature
	CannotAsk       Reason = "CannotAsk"       // the API server cannot tell who has it
	Unconfirmed     Reason = "Unconfirmed"     // who has it could not be asked
	NotReleased     Reason = "NotReleased"     // nobody has it, and nobody saw who lost it
)

// A Scope says whose addresses a table holds.
type Scope string

// Whose addresses a table holds.
const (
	ScopeNode    Scope = "node"    // this node's pods'
	ScopeCluster Scope = "cluster" // any node's pods'
)

// A Claim says who has an address.
type Claim struct {
	Reason  Reason    // PodHasAddress, SandboxHas, Annotated, HostAddress, UsedElsewhere
	By      string    // pod, interface or sandbox, for people
	Started time.Time // of the pod; zero where that is not known
}

// Evidence is all that a decision on an entry depends on.
type Evidence struct {
	Entry       Entry
	Scope       Scope
	ScrubOnLoss bool // the target's onSandboxLoss is Scrub
	Grace       time.Duration
	Now         time.Time

	Release *Release // of the entry's address; nil: nobody is known to have lost it
	Full    bool     // this pass has enough addresses without it
	Runtime bool     // a container runtime can be asked

	// What was asked just now.
	Asked      bool   // whether anybody was
	AskedWhy   string // why the answer cannot be had, empty if it is had
	Claim      *Claim // on this node; of the release's own pod only if its sandbox is not what was lost
	Elsewhere  *Claim // in the rest of the cluster; asked for only where Scope is ScopeCluster
	Interfaces map[uint32]bool
	Ending     bool // the release's pod is there, and terminating
	Sandbox    bool // the container runtime has one of the release's pod, or is not shown to be this node's
}

// A Decision is a verdict with its reason and a sentence for people.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Message string
}

// Decide is the table: the first row that matches gives the verdict. It says Remove only of what was asked for.
func Decide(e Evidence) Decision {
	if d, settled := DecideUnasked(e); settled {
		return d
	}
	interfaceGone := e.Entry.Interface != 0 && e.Interfaces != nil && !e.Interfaces[e.Entry.Interface]
	switch {
	case !e.Asked:
		return Decision{Keep, Unconfirmed, "not asked yet who has the address"}
	case e.AskedWhy != "":
		return Decision{Keep, Unconfirmed, "cannot confirm that nobody has the address: " + e.AskedWhy}
	case e.Sandbox && e.Now.Before(e.Release.NotBefore):
		return Decision{Wait, StillRuns, e.Release.says() + ", and by the container runtime its sandbox may still be there"}
	case e.Claim != nil && e.Claim.Reason == HostAddress:
		return Decision{Keep, HostAddress, "the address is the node's own: " + e.Claim.By}
	case (e.Claim != nil || e.Elsewhere != nil) && interfaceGone:
		return Decision{Remove, InterfaceGone, fmt.Sprintf("another has the address now, but the entry is for interface %d, which is gone", e.Entry.Interface)}
	case e.Ending && e.Entry.Connection != nil && e.Entry.Connection.TCP:
		return Decision{Keep, Terminating, e.Release.says() + ", but is still ending, and TCP connections may be closing"}
	case e.Entry.Connection != nil && e.taken() != nil:
		return decideByAge(*e.Entry.Connection, *e.taken())
	case e.Claim != nil && e.Claim.Reason == SandboxHas:
		return Decision{Keep, SandboxHas, "by the container runtime " + e.Claim.By + " has the address"}
	case e.Claim != nil && e.Claim.Reason == Annotated:
		return Decision{Keep, Annotated, "an annotation of pod " + e.Claim.By + " has the address"}
	case e.Claim != nil:
		return Decision{Keep, PodHasAddress, "pod " + e.Claim.By + " has the address now, and the entry may be its own"}
	case e.Entry.Interface != 0 && !interfaceGone:
		return Decision{Keep, InterfaceExists, fmt.Sprintf("interface %d of the entry still exists", e.Entry.Interface)}
	case e.Scope == ScopeCluster && !e.Release.First:
		return Decision{Keep, CannotAsk, "the table holds addresses of the whole cluster, and the API server finds pods by their first address only"}
	case e.Elsewhere != nil:
		return Decision{Keep, UsedElsewhere, "pod " + e.Elsewhere.By + " has the address now"}
	}
	return Decision{Remove, e.Release.Reason, e.Release.says()}
}

// taken is the claim of another pod on the address, if one is known by the pod itself. Since when an annotation or a sandbox counts is not known.
func (e *Evidence) taken() *Claim {
	switch {
	case e.Claim == nil:
		return e.Elsewhere
	case e.Claim.Reason == PodHasAddress:
		return e.Claim
	}
	return nil
}

// startMargin is how much older than a pod's start a connection must be to be none of its own: starts are kept to the second.
const startMargin = time.Second

// decideByAge decides on a connection with an address that another pod has by now.
func decideByAge(c Connection, by Claim) Decision {
	switch {
	case c.Started.IsZero():
		return Decision{Keep, AgeUnknown, "pod " + by.By + " has the address now, and how old the connection is the kernel does not keep; see conntrack.enableTimestamps"}
	case by.Started.IsZero() || !c.Started.Before(by.Started.Add(-startMargin)):
		return Decision{Keep, by.Reason, "pod " + by.By + " has the address now, and the connection may be its own"}
	}
	return Decision{Remove, OlderThanPod, fmt.Sprintf("pod %s has the address now, but the connection is older: it began at %s", by.By, c.Started.UTC().Format(time.RFC3339))}
}

// DecideUnasked is the part of the table that needs nobody to be asked. Its second result is false where somebody must be.
func DecideUnasked(e Evidence) (Decision, bool) {
	r := e.Release
	switch {
	case r == nil && e.Claim != nil:
		return Decision{Keep, e.Claim.Reason, e.Claim.By + " has the address"}, true
	case r == nil:
		return Decision{Keep, NotReleased, "nobody is known to have lost the address; what is older than the journal is only reported"}, true
	case e.Entry.Peer:
		return Decision{Keep, PeerOnly, "the entry is another's, who talked to the address"}, true
	case e.Entry.Protected != "":
		return Decision{Keep, Protected, e.Entry.Protected}, true
	case r.Reason == SandboxLost && !e.ScrubOnLoss:
		return Decision{Keep, SandboxLost, r.says() + "; with onSandboxLoss: Scrub the entry would go"}, true
	case r.Reason == SandboxLost && e.Now.Before(r.Due(e.Grace, e.Runtime)):
		return Decision{Wait, SandboxLost, fmt.Sprintf("%s, for %s of %s", r.says(), e.Now.Sub(r.Since).Round(time.Second), e.Grace)}, true
	case e.Now.Before(r.NotBefore) && !e.Runtime:
		return Decision{Wait, MayStillRun, fmt.Sprintf("%s, and its containers were not seen to end; they may run until %s", r.says(), r.NotBefore.UTC().Format(time.RFC3339))}, true
	case e.Now.Before(r.Due(e.Grace, e.Runtime)):
		return Decision{Wait, Waiting, fmt.Sprintf("%s, for %s of %s", r.says(), e.Now.Sub(r.Since).Round(time.Second), e.Grace)}, true
	case e.Full:
		return Decision{Wait, BatchFull, "the next pass takes the address"}, true
	}
	return Decision{}, false
}

// says is the release in words.
func (r *Release) says() string {
	switch r.Reason {
	case AddressLost:
		return "pod " + r.Pod.String() + " no longer has the address"
	case PodFinished:
		return "pod " + r.Pod.String() + " has ended"
	case PodGone:
		return "pod " + r.Pod.String() + " is gone"
	}
	return "the sandbox of pod " + r.Pod.String() + " is gone, though its status still has the address"
}
