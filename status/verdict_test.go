package status

import (
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// orphan is evidence that leads to Remove; each row of the table differs from it in what the row is about.
func orphan() Evidence {
	return Evidence{
		Key: "node-1", Candidate: Candidate{Since: noon.Add(-time.Minute), Looks: 2}, Node: NodeAnswer{Existence: Gone, At: noon},
		UnknownKeys: RemoveUnknown, Grace: time.Minute, Now: noon,
	}
}

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name    string
		change  func(*Evidence)
		verdict Verdict
		reason  Reason
	}{
		{"an orphan", func(*Evidence) {}, Remove, NodeGone},
		{"a live member", func(e *Evidence) { e.Known.Member = true }, Keep, MemberAlive},
		{"a live member whose Node is known to be gone and that does not answer", func(e *Evidence) { e.Known = Knowledge{Member: true, NodeGone: true} }, Remove, NodeGone},
		{"a live member whose Node is known to be gone, and that answers", func(e *Evidence) {
			e.Known, e.Node.Pinged = Knowledge{Member: true, NodeGone: true}, true
		}, Keep, MemberWithoutNode},
		{"listed", func(e *Evidence) { e.Known.Listed = true }, Keep, NodeExists},
		{"listed, then a member left: asked, gone", func(e *Evidence) { e.Known = Knowledge{Listed: true, Left: noon} }, Remove, NodeGone},
		{"listed, then a member left: asked, there", func(e *Evidence) {
			e.Known, e.Node = Knowledge{Listed: true, Left: noon}, NodeAnswer{Existence: Exists}
		}, Keep, NodeExists},
		{"listed, then proved to be gone", func(e *Evidence) { e.Known = Knowledge{Listed: true, NodeGone: true} }, Remove, NodeGone},
		{"never looked at", func(e *Evidence) { e.Candidate = Candidate{} }, Wait, Waiting},
		{"a moment before the grace ends", func(e *Evidence) { e.Candidate.Since = noon.Add(-time.Minute + 1) }, Wait, Waiting},
		{"one look only, however long ago", func(e *Evidence) { e.Candidate = Candidate{Since: noon.Add(-time.Hour), Looks: 1} }, Wait, Waiting},
		{"changed at this look", func(e *Evidence) { e.Candidate = Candidate{Since: noon, Looks: 1, Changed: true} }, Wait, Changed},
		{"first seen in the future: the clock was set back", func(e *Evidence) { e.Candidate.Since = noon.Add(time.Hour) }, Wait, Waiting},
		{"the Node exists", func(e *Evidence) { e.Node.Existence = Exists }, Keep, NodeExists},
		{"the Node cannot be read", func(e *Evidence) { e.Node = NodeAnswer{Existence: Unproved, Why: "500"} }, Keep, Unconfirmed},
		{"nobody asked for the Node", func(e *Evidence) { e.Node = NodeAnswer{} }, Keep, Unconfirmed},
		{"an answer that is none of the known ones", func(e *Evidence) { e.Node.Existence = 99 }, Keep, Unconfirmed},
		{"the proof is as old as it may be", func(e *Evidence) { e.Node.At = noon.Add(-maxAnswerAge) }, Remove, NodeGone},
		{"the proof is older", func(e *Evidence) { e.Node.At = noon.Add(-maxAnswerAge - 1) }, Keep, Unconfirmed},
		{"the proof has no time", func(e *Evidence) { e.Node.At = time.Time{} }, Keep, Unconfirmed},
		{"the agent answers", func(e *Evidence) { e.Node.Pinged = true }, Keep, MemberWithoutNode},
		{"no key of the target is a node's", func(e *Evidence) { e.Held = true }, Keep, Held},
		{"held, so not asked for", func(e *Evidence) { e.Held, e.Node = true, NodeAnswer{} }, Keep, Held},
		{"held does not hide that the Node exists", func(e *Evidence) { e.Held, e.Node.Existence = true, Exists }, Keep, NodeExists},
		{"unknown, and unknown keys are kept", func(e *Evidence) { e.UnknownKeys = KeepUnknown }, Keep, UnknownName},
		{"unknown, and the target does not say", func(e *Evidence) { e.UnknownKeys = "" }, Keep, UnknownName},
		{"seen, and unknown keys are kept", func(e *Evidence) { e.UnknownKeys, e.Known.Seen = KeepUnknown, true }, Remove, NodeGone},
		{"the resource is annotated", func(e *Evidence) { e.Kept = true }, Keep, KeptByAnnotation},
		{"annotated and not asked for", func(e *Evidence) { e.Kept, e.Node = true, NodeAnswer{} }, Keep, KeptByAnnotation},
		{"the batch is full", func(e *Evidence) { e.Full = true }, Wait, BatchFull},
		{"the batch is full, so not asked for", func(e *Evidence) { e.Full, e.Node = true, NodeAnswer{} }, Wait, BatchFull},
		{"a full batch does not hide that the Node exists", func(e *Evidence) { e.Full, e.Node.Existence = true, Exists }, Keep, NodeExists},
		{"no pod anywhere", func(e *Evidence) { e.LivesWith, e.NoPods = &PodSelector{}, true }, Keep, SelectorMatchesNothing},
		{"no pod anywhere, so not asked for", func(e *Evidence) { e.LivesWith, e.NoPods, e.Node, e.Full = &PodSelector{}, true, NodeAnswer{}, true }, Keep, SelectorMatchesNothing},
		{"cut, and never seen", func(e *Evidence) { e.Cut = true }, Keep, UnknownName},
		{"cut, and seen", func(e *Evidence) { e.Cut, e.Known.Seen = true, true }, Remove, NodeGone},
		{"no name", func(e *Evidence) { e.Key = "" }, Keep, NoNodeName},
		{"upper case", func(e *Evidence) { e.Key = "Node-1" }, Keep, UnknownName},
		{"a path", func(e *Evidence) { e.Key = "../pods" }, Keep, UnknownName},
		{"too long", func(e *Evidence) { e.Key = strings.Repeat("n", 254) }, Keep, UnknownName},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := orphan()
			test.change(&e)
			got := Decide(e)
			if got.Verdict != test.verdict || got.Reason != test.reason {
				t.Errorf("%s %s, want %s %s", got.Verdict, got.Reason, test.verdict, test.reason)
			}
			if got.Message == "" {
				t.Error("no message")
			}
		})
	}
}

// What cannot be proved is said with its cause.
func TestDecideSaysWhyUnconfirmed(t *testing.T) {
	e := orphan()
	e.Node = NodeAnswer{Existence: Unproved, Why: "the server was on fire"}
	if got := Decide(e).Message; !strings.Contains(got, "the server was on fire") {
		t.Errorf("the message does not say why: %q", got)
	}
}

// slowRemove says when a key may be removed, as one would tell it to an operator: only if all of this holds.
func slowRemove(e Evidence) bool {
	nameIsOne := e.Key == "node-1" // the only valid name that randomEvidence draws
	nothingSpeaksForIt := !(e.Known.Member && !e.Known.NodeGone) && !(e.Known.Listed && e.Known.Left.IsZero() && !e.Known.NodeGone)
	waited := e.Candidate.Looks >= 2 && !e.Candidate.Changed && !e.Now.Before(e.Candidate.Since.Add(e.Grace))
	proved := e.Node.Existence == Gone && !e.Node.Pinged && !e.Now.After(e.Node.At.Add(5*time.Second))
	isANodeName := !e.Held && !e.NoPods && (e.UnknownKeys == RemoveUnknown && !e.Cut || e.Known.Seen)
	mayGo := !e.Kept && e.Stays == (Decision{}) // whether it lives with a Node or with pods makes no difference but in the reason
	return nameIsOne && nothingSpeaksForIt && waited && proved && isANodeName && mayGo && !e.Full
}

func randomEvidence(r *rand.Rand) Evidence {
	coin := func() bool { return r.IntN(2) == 0 }
	rarely := func() bool { return r.IntN(8) == 0 }
	var stays Decision
	if rarely() {
		stays = []Decision{{Keep, Finalizers, "f"}, {Keep, BeingDeleted, "d"}, {Keep, KeptByOwner, "a"}}[r.IntN(3)]
	}
	livesWith := []*PodSelector{nil, nil, {Labels: "a=b"}, {Labels: "a=b", OrMember: true}}[r.IntN(4)]
	return Evidence{
		Stays: stays, LivesWith: livesWith, NoPods: livesWith != nil && rarely(),
		Key:       []string{"", "node-1", "node-1", "node-1", "Not_a_node"}[r.IntN(5)],
		Known:     Knowledge{Member: rarely(), NodeGone: coin(), Listed: rarely(), Left: []time.Time{{}, noon}[r.IntN(2)], Seen: coin()},
		Candidate: Candidate{Since: noon.Add(-time.Duration(r.IntN(121)) * time.Second), Looks: r.IntN(4), Changed: rarely()},
		Node:      NodeAnswer{Existence: Existence(r.IntN(4)), Pinged: rarely(), At: noon.Add(-time.Duration(r.IntN(12)) * time.Second)},
		Held:      rarely(), Kept: rarely(), Full: rarely(), Cut: rarely(),
		UnknownKeys: []UnknownKeys{KeepUnknown, RemoveUnknown}[r.IntN(2)],
		Grace:       time.Minute, Now: noon,
	}
}

func TestDecideAgreesWithPlainWords(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	removed := 0
	for range 200_000 {
		e := randomEvidence(r)
		got, want := Decide(e), slowRemove(e)
		if (got.Verdict == Remove) != want {
			t.Fatalf("Decide says %s %s, plain words say remove = %v: %+v", got.Verdict, got.Reason, want, e)
		}
		if want {
			removed++
		}
		// The first part of the table must never settle on what only the second may say.
		if d, settled := DecideUnasked(e); settled && d.Verdict == Remove {
			t.Fatalf("removed without asking: %+v", e)
		}
		if gone := map[bool]Reason{true: NodeGone, false: PodGone}[e.LivesWith == nil]; want && got.Reason != gone {
			t.Fatalf("removed as %s, want %s: %+v", got.Reason, gone, e)
		}
	}
	if removed < 1000 {
		t.Errorf("only %d of the drawn keys could be removed: the test compares little", removed)
	}
}

// docs/reasons.md has the rows in the order in which they apply: with all that speaks for each row at once the first one decides, without what
// speaks for that the second, and so on.
func TestTheFirstReasonThatAppliesIsTheFirstInTheDocument(t *testing.T) {
	e := Evidence{
		Key: "gone", Known: Knowledge{Seen: true}, Candidate: Candidate{Since: noon.Add(-time.Hour), Looks: 2}, Node: NodeAnswer{Existence: Gone, At: noon},
		Grace: time.Minute, Now: noon,
	}
	want := []Reason{Decide(e).Reason}
	for _, speak := range []func(){ // for one row after the other, from the last
		func() { e.Full = true },
		func() { e.Known.Seen = false },
		func() { e.Held = true },
		func() { e.Node.Pinged = true },
		func() { e.Node.At = noon.Add(-time.Hour) },
		func() { e.Candidate.Since = noon },
		func() { e.Candidate.Changed = true },
		func() { e.Kept = true },
		func() { e.Known.Listed = true },
		func() { e.Known.Member = true },
		func() { e.Key = "No_Node" },
		func() { e.Key = "" },
	} {
		speak()
		want = append([]Reason{Decide(e).Reason}, want...)
	}
	text, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	keys, _, _ := strings.Cut(string(text), "## Nodes")
	var documented []Reason
	for _, row := range regexp.MustCompile("(?m)^\\| (?:Keep|Wait|Remove) \\| `(\\w+)` \\|").FindAllStringSubmatch(keys, -1) {
		documented = append(documented, Reason(row[1]))
	}
	if !slices.Equal(documented, want) {
		t.Errorf("documented %v\nin the code %v", documented, want)
	}
}
