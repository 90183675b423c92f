package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// The reasons of decisions on a node's own key.
const (
	OwnKeyCleared      Reason = "OwnKeyCleared"      // Remove: the node's own agent clears it, because it stops or publishes elsewhere
	EarlierIncarnation Reason = "EarlierIncarnation" // Remove: an earlier node of this name left it
	SameIncarnation    Reason = "SameIncarnation"    // Keep: this node's own
	AgeUnknown         Reason = "AgeUnknown"         // Keep: nothing in the entry tells whose it is
	ClockDoubtful      Reason = "ClockDoubtful"      // Keep: this node's clock is, or was, too far off to compare times
	NoKey              Reason = "NoKey"              // Keep: there is nothing
)

const (
	// olderThanNode is how much older than its Node an entry must be to be an earlier incarnation's.
	olderThanNode = 10 * time.Minute
	// clockTrust is how far off this node's clock may be, or have been, for the times it wrote to be compared: well below
	// olderThanNode, so that a fresh entry never looks that old.
	clockTrust = olderThanNode / 2
)

// firstKubernetes is when Kubernetes was made public. An earlier time in an entry was never set (year 1, 1970), or set by a clock that was not.
var firstKubernetes = time.Date(2014, time.June, 6, 0, 0, 0, 0, time.UTC)

// IncarnationEvidence is all that a decision on a node's own key depends on.
type IncarnationEvidence struct {
	Node OwnNode // read after the entry was
	// UIDs are what the entries of the key (one or more at each of a target's paths) hold at nodeUIDPath, Times what those without hold at
	// timestampPath. Problems are what cannot be read there.
	UIDs, Times, Problems []string
	Candidate             Candidate // as after this look
	Kept                  bool      // the resource carries unstale.dev/keep
	Grace                 time.Duration
	Now                   time.Time
}

// DecideIncarnation tells whether a node's own key was left by an earlier node of the same name. The first that applies decides:
//
//	the Node could not be read                     Keep    Unconfirmed
//	an entry has the Node's UID                    Keep    SameIncarnation
//	something cannot be read                       Keep    AgeUnknown
//	an entry has a UID, and none the Node's        Remove  EarlierIncarnation
//	no time, one that cannot be read or was not set Keep   AgeUnknown
//	a time less than 10 minutes before the Node    Keep    SameIncarnation
//	this node's clock is or was off                Keep    ClockDoubtful
//	not unchanged for a grace since the start      Wait    Waiting or Changed
//	otherwise                                      Remove  EarlierIncarnation
//
// What would be removed but for the keep annotation is kept (KeptByAnnotation).
//
// Times are compared only if the clock that wrote them was right. A fresh entry was written on this very node, between its Node's creation and
// now. So this node's clock is looked at at both ends: now, by the Date of the API server's answer; and then, by the times that its kubelet
// wrote into the Node's conditions, which cannot come before the Node by a clock that is right.
func DecideIncarnation(e IncarnationEvidence) Decision {
	if e.Node.Existence != Exists || e.Node.UID == "" {
		why := orNotAsked(e.Node.Why)
		if e.Node.Existence == Gone {
			why = "there is no Node of this name"
		}
		return Decision{Keep, Unconfirmed, "cannot tell which incarnation the entry is of: " + why}
	}
	remove := func(how string) Decision {
		if e.Kept {
			return keptByAnnotation
		}
		return Decision{Remove, EarlierIncarnation, "an earlier node of this name left it: " + how}
	}
	for _, uid := range e.UIDs {
		if uid == e.Node.UID {
			return Decision{Keep, SameIncarnation, "the entry has the Node's UID"}
		}
	}
	switch {
	case len(e.Problems) > 0:
		return Decision{Keep, AgeUnknown, "cannot tell whose the entry is: " + e.Problems[0]}
	case len(e.UIDs) > 0:
		return remove(fmt.Sprintf("the entry has the UID %s, the Node %s", e.UIDs[0], e.Node.UID))
	case len(e.Times) == 0:
		return Decision{Keep, AgeUnknown, "cannot tell whose the entry is: it has no UID and no time"}
	}
	var newest time.Time
	for _, text := range e.Times {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return Decision{Keep, AgeUnknown, fmt.Sprintf("cannot tell how old the entry is: its time %q is not RFC 3339", text)}
		}
		if at.Before(firstKubernetes) {
			return Decision{Keep, AgeUnknown, fmt.Sprintf("cannot tell how old the entry is: its time %q was never set", text)}
		}
		if at.After(newest) {
			newest = at
		}
	}
	older := e.Node.Created.Sub(newest)
	if older <= olderThanNode {
		return Decision{Keep, SameIncarnation, "the entry's time is not more than 10 minutes before the Node's"}
	}
	if why := e.Node.clockDoubt(); why != "" {
		return Decision{Keep, ClockDoubtful, "cannot tell how old the entry is: " + why}
	}
	if e.Kept {
		return keptByAnnotation
	}
	switch age := e.Now.Sub(e.Candidate.Since); {
	case e.Candidate.Looks == 0:
		return Decision{Wait, Waiting, "not looked at yet"}
	case e.Candidate.Changed:
		return Decision{Wait, Changed, "its entry changed since it was first seen"}
	case age < e.Grace:
		return Decision{Wait, Waiting, fmt.Sprintf("unchanged for %s of %s", age.Round(time.Second), e.Grace)}
	case e.Candidate.Looks < 2:
		return Decision{Wait, Waiting, "seen by one look only"}
	}
	return remove(fmt.Sprintf("its time is %s before the Node's, and it has not changed since this agent started", older.Round(time.Second)))
}

var keptByAnnotation = Decision{Keep, KeptByAnnotation, "the resource carries " + KeepAnnotation + ": \"true\""}

// clockDoubt says why the times that this node wrote cannot be compared with the API server's, "" if they can.
func (n OwnNode) clockDoubt() string {
	switch {
	case !n.ClockKnown:
		return "the API server did not say what time it is"
	case n.ClockOff.Abs() > clockTrust:
		return fmt.Sprintf("this node's clock is %s off the API server's; is time synchronisation running?", n.ClockOff.Round(time.Second))
	case n.FirstWritten.IsZero():
		return "the Node has no conditions that show its clock when it registered"
	case n.Created.Sub(n.FirstWritten) > clockTrust:
		return fmt.Sprintf("the Node has a condition from %s before it was created, so this node's clock was behind", n.Created.Sub(n.FirstWritten).Round(time.Second))
	}
	return ""
}

// An IncarnationRule says how the entries of a key tell whose they are.
type IncarnationRule struct {
	NodeUIDPath   FieldPath // in an entry; empty: it has none
	TimestampPath FieldPath // likewise
	Grace         time.Duration
	Mode          Mode // Report: decide, and remove nothing
}

// An IncarnationCheck looks whether a node's own key was left by an earlier node of the same name, and clears it then. It is
// for a new process of the node's own agent, and not safe for concurrent use.
type IncarnationCheck struct {
	key        *OwnKey
	rule       IncarnationRule
	candidates Candidates
}

// NewIncarnationCheck makes an IncarnationCheck that has not looked yet.
func NewIncarnationCheck(key *OwnKey, rule IncarnationRule) *IncarnationCheck {
	return &IncarnationCheck{key: key, rule: rule}
}

// Look looks once. Where the verdict is Wait it wants to be called again, after a grace at the latest; Keep and Remove are final, but
// that an error or Unconfirmed may be tried again.
func (c *IncarnationCheck) Look(ctx context.Context) (Decision, error) {
	k := c.key
	if k.take(ctx) != nil {
		return Decision{Keep, Unconfirmed, ""}, k.outOfTime("look at", ctx.Err(), nil)
	}
	defer k.give()
	// Not from memory: what the agent publishes itself tests what it replaces, and others write here too.
	k.view = nil
	if err := k.look(ctx, requestTimeout); err != nil {
		var failure *RequestError
		if errors.As(err, &failure) && k.namesResource(failure) {
			return Decision{Keep, NoKey, "the resource does not exist"}, nil
		}
		return Decision{Keep, Unconfirmed, err.Error()}, k.failed(ctx, "look at", err)
	}
	view := k.view
	nothing := func(string) Knowledge { return Knowledge{} }
	c.candidates = c.candidates.Look(view.Resource, nothing, k.Now())
	if len(view.Entries) == 0 {
		return Decision{Keep, NoKey, "there is no entry"}, nil
	}
	if found := view.published(); found != nil && sameJSON(found, k.stored) {
		return Decision{Keep, SameIncarnation, "this agent published it"}, nil
	}

	e := IncarnationEvidence{Candidate: c.candidates.Of(k.node), Kept: view.Kept(), Grace: c.rule.Grace, Now: k.Now()}
	for _, entry := range view.Entries {
		if k.target.Paths[entry.Place].ListKey != ListOfStrings { // a name alone tells nothing
			e.read(entry.Raw, c.rule)
		}
	}
	// After the entry, never before: then an entry with another UID than the Node's is of an earlier Node, and not of a later one.
	e.Node = ReadOwnNode(ctx, k.client, k.node, k.Now)
	d := DecideIncarnation(e)
	if d.Verdict != Remove || c.rule.Mode == Report {
		return d, nil
	}
	err := k.remove(ctx, EarlierIncarnation)
	switch {
	case err == nil, errors.Is(err, errSettling):
		return d, nil
	case errors.Is(err, errMoved):
		return Decision{Wait, Changed, "its entry changed between look and write"}, nil
	}
	return Decision{Keep, Unconfirmed, err.Error()}, k.failed(ctx, "clear an earlier node's entry under", err)
}

// read takes what an entry tells of its incarnation.
func (e *IncarnationEvidence) read(entry json.RawMessage, rule IncarnationRule) {
	text := func(path FieldPath) (string, bool) {
		if len(path) == 0 {
			return "", false
		}
		value, err := lookUp(entry, path)
		if err == nil && isNull(value) {
			return "", false
		}
		var s string
		if err != nil || json.Unmarshal(value, &s) != nil {
			e.Problems = append(e.Problems, fmt.Sprintf("what the entry has at %s is no string", path))
			return "", false
		}
		return s, s != ""
	}
	if uid, ok := text(rule.NodeUIDPath); ok {
		e.UIDs = append(e.UIDs, uid)
	} else if at, ok := text(rule.TimestampPath); ok {
		e.Times = append(e.Times, at)
	}
}
