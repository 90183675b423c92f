package status

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A subject is what one decision is about: all that a key has in a resource, or an object.
type subject struct {
	id        string // among the pass's others: the key, or the object's namespace and name
	node      string // the name of its node; a key's is the key itself
	size      int    // how many entries its removal takes
	kept      bool   // what it is in, or itself, carries the keep annotation
	candidate Candidate
	stays     Decision // what keeps it whatever becomes of its node; zero: nothing
	cut       bool     // node may be the first part of the name only
	where     string   // what it is in, for messages
}

// A batch is what one decision about several subjects came to.
type batch struct {
	decisions map[string]Decision // by id
	going     []string            // the ids of those to remove
	proved    time.Time           // when the first of their Nodes was asked for
	waiting   int                 // subjects that only the batch's size keeps; 0 also where going on would be wrong
}

// decide gives each subject of a resource its verdict, and asks for the Nodes of those that need it: as many as may be removed at once. room is for how many
// that is.
func (p *pass) decide(ctx context.Context, of types.NamespacedName, subjects []subject, room int) batch {
	b := batch{decisions: map[string]Decision{}}
	var open, strangers []subject
	for _, s := range subjects {
		e := p.evidence(s)
		switch d, settled := DecideUnasked(e); {
		case settled:
			b.decisions[s.id] = d
		case p.kind == enforce && e.stranger():
			strangers = append(strangers, s) // no answer would let them go
		default:
			open = append(open, s)
		}
	}
	// Where time did not suffice for all, those come first that were not reached: those before them may be kept for ever.
	if at := slices.IndexFunc(open, func(s subject) bool { return s.id == p.cursor[of] }); at >= 0 {
		open = slices.Concat(open[at+1:], open[:at+1])
	}
	delete(p.cursor, of)

	if len(open) > 0 && !p.alive && !p.noPods && p.kind != lookOnly {
		p.alive = p.aliveElsewhere(ctx)
	}
	left, entriesLeft := p.room(len(open), room), MaxRemovalsLimit
	answers := map[string]NodeAnswer{} // by node
	broken := false                    // some Node could not be asked for: nothing is decided on the others' account
	begun := p.Now()
	for i := 0; i < len(open); {
		chunk := open[i:min(len(open), i+min(left, confirmChunk))]
		late := p.kind == enforce && p.Now().Sub(begun) >= confirmTime
		if late && i > 0 {
			p.cursor[of] = open[i-1].id
		}
		if len(chunk) == 0 || broken || late || (i > 0 || p.target.listsPods()) && !p.alive || p.noPods {
			break
		}
		i += len(chunk)
		for node, answer := range p.nodes.Confirm(ctx, nodesOf(chunk), p.fresh()) {
			answers[node] = answer
			p.alive = p.alive || answer.Existence == Exists
			broken = broken || answer.Existence == Unproved
		}
		for _, s := range chunk { // what is not removed, whatever the reason, takes no room
			e := p.evidence(s)
			if e.Node = answers[s.node]; Decide(e).Verdict == Remove {
				left--
			}
		}
	}
	p.refresh(ctx, answers)
	for _, s := range strangers {
		e := p.evidence(s)
		e.Held = !p.alive
		b.decisions[s.id] = Decide(e)
		p.held = p.held || b.decisions[s.id].Reason == Held || b.decisions[s.id].Reason == SelectorMatchesNothing
	}
	for _, s := range open {
		e := p.evidence(s)
		e.Node, e.Held = answers[s.node], !p.alive
		if p.kind != enforce {
			e.Node.At = e.Now // nothing is done about it, so it does not grow old
		}
		e.Full = e.Node.Existence == NotAsked || p.kind == enforce && s.size > entriesLeft
		if broken && e.Node.Existence == NotAsked {
			e.Node = NodeAnswer{Existence: Unproved, Why: notAskedFor}
		}
		d := Decide(e)
		b.decisions[s.id] = d
		switch {
		case d.Verdict == Remove:
			b.going = append(b.going, s.id)
			if at := e.Node.At; b.proved.IsZero() || at.Before(b.proved) {
				b.proved = at
			}
			entriesLeft -= s.size
		case s.size > MaxRemovalsLimit:
			p.report.worsen(Invalid, fmt.Sprintf("%s has %d entries of %s, more than one write can remove; remove them by hand", s.where, s.size, s.node))
		case d.Reason == BatchFull:
			b.waiting++
		case d.Reason == Held || d.Reason == SelectorMatchesNothing:
			p.held = true
		}
	}
	return b
}

// nodesOf are the names of the subjects' nodes, each once.
func nodesOf(subjects []subject) []string {
	names := make([]string, len(subjects))
	for i, s := range subjects {
		names[i] = s.node
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// refresh asks once more for the Nodes whose proof grew old while others were asked for: a Node may have come back.
func (p *pass) refresh(ctx context.Context, answers map[string]NodeAnswer) {
	if p.kind != enforce {
		return
	}
	var old []string
	for node, answer := range answers {
		if answer.Existence == Gone && p.Now().Sub(answer.At) > writeFresh {
			old = append(old, node)
		}
	}
	if len(old) == 0 {
		return
	}
	for node, answer := range p.nodes.Confirm(ctx, old, writeFresh) {
		answers[node] = answer
		p.alive = p.alive || answer.Existence == Exists
	}
}

// fresh is how old an answer about a Node may be that is not asked for again.
func (p *pass) fresh() time.Duration {
	switch p.kind {
	case enforce:
		return writeFresh
	case reportOnly:
		return reportFresh
	}
	return planFresh
}

// room is how many subjects may be asked for at once: most of those that are open, where nothing is done about them.
func (p *pass) room(open, most int) int {
	switch p.kind {
	case lookOnly:
		return 0
	case enforce:
		return most
	}
	return open
}

func (p *pass) evidence(s subject) Evidence {
	e := Evidence{
		Key: s.node, Known: p.nodes.Known(s.node), Candidate: s.candidate, Kept: s.kept, Stays: s.stays, Cut: s.cut,
		UnknownKeys: p.target.UnknownKeys, LivesWith: p.target.LivesWith, NoPods: p.noPods, Grace: p.target.Grace, Now: p.Now(),
	}
	if p.kind == planOnly { // as though a grace had passed and nothing had changed
		e.Candidate = Candidate{Since: e.Now.Add(-e.Grace), Looks: 2}
	}
	return e
}
