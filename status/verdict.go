package status

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A Verdict says what becomes of a key.
type Verdict string

// The verdicts on keys.
const (
	Keep   Verdict = "Keep"
	Wait   Verdict = "Wait"
	Remove Verdict = "Remove"
)

// A Reason names the row of the table that gave a verdict. Logs, metrics, JSON and documents use these same words; they are stable.
type Reason string

// The reasons for a verdict on a key; docs/reasons.md explains each to an operator.
const (
	MemberAlive       Reason = "MemberAlive"       // Keep: a live agent has that name
	NodeExists        Reason = "NodeExists"        // Keep: its Node exists
	NoNodeName        Reason = "NoNodeName"        // Keep: an item of a list that names no node
	Waiting           Reason = "Waiting"           // Wait: the grace has not passed, or only one look saw it
	Changed           Reason = "Changed"           // Wait: its entry changed, so somebody still writes it
	Unconfirmed       Reason = "Unconfirmed"       // Keep: whether its Node is gone could not be proved
	MemberWithoutNode Reason = "MemberWithoutNode" // Keep: its Node is gone, but its agent answers
	Held              Reason = "Held"              // Keep: no key of the target belongs to an existing node
	UnknownName       Reason = "UnknownName"       // Keep: never seen as a Node, so perhaps no node name
	KeptByAnnotation  Reason = "KeptByAnnotation"  // Keep: the resource carries unstale.dev/keep
	BatchFull         Reason = "BatchFull"         // Wait: comes in the next batch
	NodeGone          Reason = "NodeGone"          // Remove: its Node is gone

	// Of what lives with pods, the first two instead of NodeExists and NodeGone.
	PodExists              Reason = "PodExists"              // Keep: one of the pods that it lives with is bound to the node
	PodGone                Reason = "PodGone"                // Remove: none is
	SelectorMatchesNothing Reason = "SelectorMatchesNothing" // Keep: no such pod is on any node

	// Of objects only.
	BeingDeleted Reason = "BeingDeleted" // Keep: somebody has deleted it, and something holds it
	Finalizers   Reason = "Finalizers"   // Keep: others have to see to it before
	KeptByOwner  Reason = "KeptByOwner"  // Keep: it carries the annotation of the target's keepIf
	OwnerExists  Reason = "OwnerExists"  // Keep: an object that it belongs to exists
)

// Knowledge is what is known about a node name without asking the API server. The zero value knows nothing.
type Knowledge struct {
	Member   bool      // a live member has this name
	NodeGone bool      // its Node is known to be gone: by an earlier proof, or not in a list of Nodes that is younger than the member
	Listed   bool      // its Node was there at the last complete list of Nodes, or was read since
	Left     time.Time // when a member of this name left or died; zero if none did since that list or read
	Seen     bool      // this process has seen it as a Node or as a member
}

// alive tells whether what is known is enough to keep a key without any request.
func (k Knowledge) alive() (Reason, bool) {
	switch {
	case k.Member && !k.NodeGone:
		return MemberAlive, true
	case k.Listed && k.Left.IsZero() && !k.NodeGone:
		return NodeExists, true
	}
	return "", false
}

// A NodeAnswer is what came back when a Node was asked for.
type NodeAnswer struct {
	Existence Existence
	Why       string    // for Unproved: what went wrong
	At        time.Time // when it was asked for; a proof grows old
	Pinged    bool      // a member of that name answered a direct ping just now
}

// maxAnswerAge is how old the proof that a Node is gone may be when the removal of its key is decided; the write has until writeTime later. Asking for one Node takes 3.5 s at most
// (see askTimeout), so one that hangs does not make the others' answers too old.
const maxAnswerAge = 5 * time.Second

// Existence is whether a Node exists.
type Existence int

// Whether a Node exists. The zero value says that nobody asked.
const (
	NotAsked Existence = iota
	Exists
	Unproved // the request failed in any way but the API server's own 404 for this Node, or that 404 proves nothing
	Gone
)

// Evidence is all that a verdict on one key depends on.
type Evidence struct {
	Key       string
	Known     Knowledge
	Candidate Candidate // as after this look; the zero value was never a candidate
	Node      NodeAnswer
	Held      bool     // no key of the whole target, over all its resources, belongs to a member or an existing Node
	Kept      bool     // the resource carries unstale.dev/keep
	Full      bool     // the batch has no room left
	Stays     Decision // what keeps an object whatever becomes of its node; zero: nothing
	Cut       bool     // the name may be the first part of a node's name only

	UnknownKeys UnknownKeys
	LivesWith   *PodSelector // nil: its Node; what is said of a Node is said of such a pod on the node otherwise
	NoPods      bool         // of LivesWith: none is anywhere
	Grace       time.Duration
	Now         time.Time
}

// A Decision is a verdict with its reason and a sentence for people.
type Decision struct {
	Verdict Verdict
	Reason  Reason
	Message string
}

// Decide is the table: the first row that matches gives the verdict. It never says Remove unless the Node was asked for
// (Node.Existence is Gone).
func Decide(e Evidence) Decision {
	if d, settled := DecideUnasked(e); settled {
		return d
	}
	return e.ofPods(decideAsked(e))
}

func decideAsked(e Evidence) Decision {
	switch {
	case e.NoPods:
		return Decision{Keep, SelectorMatchesNothing, "the selector " + e.LivesWith.Labels + " matches no pod that is on a node and stays"}
	// What is held anyhow, or does not fit anyhow, is not asked for.
	case e.Held && e.Node.Existence == NotAsked:
		return held
	case e.stranger() && e.Node.Existence == NotAsked:
		return e.unknownName()
	case e.Full && e.Node.Existence == NotAsked:
		return batchFull
	case e.Node.Existence == Exists:
		return Decision{Keep, NodeExists, "the Node exists"}
	case e.Node.Existence != Gone:
		return Decision{Keep, Unconfirmed, "cannot prove that the Node is gone: " + orNotAsked(e.Node.Why)}
	case e.Now.Sub(e.Node.At) > maxAnswerAge:
		return Decision{Keep, Unconfirmed, fmt.Sprintf("the Node was found to be gone %s ago, too long to act on", e.Now.Sub(e.Node.At).Round(time.Second))}
	case e.Node.Pinged:
		return Decision{Keep, MemberWithoutNode, "the Node is gone, but its agent still answers: is the Node's kubelet running without its Node?"}
	case e.Held:
		return held
	case e.stranger():
		return e.unknownName()
	case e.Full:
		return batchFull
	}
	return Decision{Remove, NodeGone, "the Node is gone"}
}

// stranger tells whether the name may be no node's, so that it stays in any case.
func (e *Evidence) stranger() bool { return !e.Known.Seen && (e.Cut || e.UnknownKeys != RemoveUnknown) }

func (e *Evidence) unknownName() Decision {
	if e.Cut {
		return Decision{Keep, UnknownName, "never seen as a Node, and as long as a label can be: perhaps it is the first part of a longer name only"}
	}
	return Decision{Keep, UnknownName, "never seen as a Node; if every key here is a node name, set unknownKeys: Remove"}
}

// DecideUnasked is the part of the table that needs no request: the rows before the Node is asked for. Its second result
// is false when the Node must be asked for.
func DecideUnasked(e Evidence) (Decision, bool) {
	if e.Key == "" {
		return Decision{Keep, NoNodeName, "it names no node"}, true
	}
	if len(validation.IsDNS1123Subdomain(e.Key)) > 0 {
		// Not a question of unknownKeys: no Node can ever have had this name, so no departed node left it.
		return Decision{Keep, UnknownName, "no Node can have this name"}, true
	}
	if reason, alive := e.Known.alive(); alive {
		if reason == MemberAlive {
			return Decision{Keep, MemberAlive, "its agent is alive"}, true
		}
		return e.ofPods(Decision{Keep, NodeExists, "the Node exists"}), true
	}
	// Before the waiting rows, unlike in the design's table: where nothing is ever removed, nothing needs waiting or asking.
	if e.Kept {
		return Decision{Keep, KeptByAnnotation, "it carries " + KeepAnnotation + ": \"true\""}, true
	}
	if e.Stays.Verdict != "" {
		return e.Stays, true
	}
	switch age := e.Now.Sub(e.Candidate.Since); {
	case e.Candidate.Looks == 0:
		return Decision{Wait, Waiting, "not looked at yet"}, true
	case e.Candidate.Changed: // a change starts the waiting again, so this row must stand before the next to be seen at all
		return Decision{Wait, Changed, "its entry changed since it was first seen"}, true
	case age < e.Grace:
		return Decision{Wait, Waiting, fmt.Sprintf("a candidate for %s of %s", age.Round(time.Second), e.Grace)}, true
	case e.Candidate.Looks < 2:
		return Decision{Wait, Waiting, "seen by one look only"}, true
	}
	return Decision{}, false
}

// ofPods says of pods what was said of a Node, where that is what the key or object lives with.
func (e *Evidence) ofPods(d Decision) Decision {
	if e.LivesWith == nil {
		return d
	}
	switch d.Reason {
	case NodeExists:
		return Decision{d.Verdict, PodExists, "a pod of " + e.LivesWith.Labels + " is on the node"}
	case NodeGone:
		return Decision{d.Verdict, PodGone, "no pod of " + e.LivesWith.Labels + " is on the node"}
	case Unconfirmed:
		if e.Node.Existence != Gone {
			return Decision{d.Verdict, Unconfirmed, "cannot prove that no pod of " + e.LivesWith.Labels + " is on the node: " + orNotAsked(e.Node.Why)}
		}
	case Held:
		if e.LivesWith.OrMember {
			return d
		}
		return Decision{d.Verdict, Held, "no key of this target belongs to a node with a pod of " + e.LivesWith.Labels + ": the keys are probably not node names"}
	case UnknownName:
		if e.Cut {
			return d
		}
		return Decision{d.Verdict, UnknownName, "never seen as a Node, nor with a pod of " + e.LivesWith.Labels + "; if every key here is a node name, set unknownKeys: Remove"}
	}
	return d
}

var (
	batchFull = Decision{Wait, BatchFull, "this batch is full; the key comes in the next one"}
	held      = Decision{Keep, Held, "no key of this target belongs to an existing node: the keys are probably not node names"}
)

func orNotAsked(why string) string {
	if why == "" {
		return "not asked"
	}
	return why
}
