package dataplane

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// stale is evidence that leads to Remove; each row of the table differs from it in what the row is about.
func stale() Evidence {
	return Evidence{
		Entry: entryOf("t", "10.0.0.1"), Scope: ScopeNode, Grace: 10 * time.Second, Now: noon.Add(10 * time.Second), Asked: true,
		Release:    &Release{Pod: PodRef{"ns", "a", "A"}, Address: addr("10.0.0.1"), First: true, Reason: PodGone, Since: noon, NotBefore: noon},
		Interfaces: map[uint32]bool{1: true, 2: true},
	}
}

func TestDecide(t *testing.T) {
	other, elsewhere := &Claim{Reason: PodHasAddress, By: "ns/b"}, &Claim{Reason: UsedElsewhere, By: "ns/c"}
	release := func(e *Evidence, change func(*Release)) {
		r := *e.Release
		change(&r)
		e.Release = &r
	}
	for _, test := range []struct {
		name    string
		change  func(*Evidence)
		verdict Verdict
		reason  Reason
	}{
		{"nobody has the address", func(*Evidence) {}, Remove, PodGone},
		{"the pod lost it", func(e *Evidence) { release(e, func(r *Release) { r.Reason = AddressLost }) }, Remove, AddressLost},
		{"the pod has ended", func(e *Evidence) { release(e, func(r *Release) { r.Reason = PodFinished }) }, Remove, PodFinished},
		{"nobody is known to have lost it", func(e *Evidence) { e.Release = nil }, Keep, NotReleased},
		{"nobody is known to have lost it, a pod has it", func(e *Evidence) { e.Release, e.Claim = nil, other }, Keep, PodHasAddress},
		{"nobody is known to have lost it, the node has it", func(e *Evidence) { e.Release, e.Claim = nil, &Claim{Reason: HostAddress, By: "eth0"} }, Keep, HostAddress},
		{"the entry is protected", func(e *Evidence) { e.Entry.Protected = "flags say host" }, Keep, Protected},
		{"protected does not wait", func(e *Evidence) { e.Entry.Protected, e.Now = "flags say host", noon }, Keep, Protected},
		{"another's, who talked to the address", func(e *Evidence) { e.Entry.Peer = true }, Keep, PeerOnly},
		{"a lost sandbox", func(e *Evidence) { release(e, func(r *Release) { r.Reason = SandboxLost }) }, Keep, SandboxLost},
		{"a lost sandbox is told of at once", func(e *Evidence) {
			e.Now = noon
			release(e, func(r *Release) { r.Reason = SandboxLost })
		}, Keep, SandboxLost},
		{"a lost sandbox, where that counts", func(e *Evidence) {
			e.ScrubOnLoss = true
			release(e, func(r *Release) { r.Reason = SandboxLost })
		}, Remove, SandboxLost},
		{"a lost sandbox, where that counts, a moment before the grace ends", func(e *Evidence) {
			e.ScrubOnLoss, e.Now = true, noon.Add(10*time.Second-1)
			release(e, func(r *Release) { r.Reason = SandboxLost })
		}, Wait, SandboxLost},
		{"a moment before the grace ends", func(e *Evidence) { e.Now = noon.Add(10*time.Second - 1) }, Wait, Waiting},
		{"lost in the future: the clock was set back", func(e *Evidence) { e.Now = noon.Add(-time.Hour) }, Wait, MayStillRun},
		{"its containers may run", func(e *Evidence) { release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) }) }, Wait, MayStillRun},
		{"its containers may run a moment more", func(e *Evidence) {
			e.Now = noon.Add(time.Minute - 1)
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Wait, MayStillRun},
		{"its containers cannot run any more", func(e *Evidence) {
			e.Now = noon.Add(time.Minute)
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Remove, PodGone},
		{"its containers may run, and the runtime was not asked", func(e *Evidence) {
			e.Runtime, e.Asked = true, false
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Keep, Unconfirmed},
		{"its containers may run, and the runtime has no sandbox", func(e *Evidence) {
			e.Runtime = true
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Remove, PodGone},
		{"the runtime has no sandbox, a moment before the grace ends", func(e *Evidence) {
			e.Runtime, e.Now = true, noon.Add(10*time.Second-1)
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Wait, Waiting},
		{"the runtime has its sandbox", func(e *Evidence) {
			e.Runtime, e.Sandbox = true, true
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Wait, StillRuns},
		{"the runtime has its sandbox, and the interface is gone", func(e *Evidence) {
			e.Runtime, e.Sandbox, e.Claim, e.Entry.Interface = true, true, other, 9
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Wait, StillRuns},
		{"the runtime has its sandbox, without an address, for too long", func(e *Evidence) {
			e.Runtime, e.Sandbox, e.Now = true, true, noon.Add(time.Minute)
			release(e, func(r *Release) { r.NotBefore = noon.Add(time.Minute) })
		}, Remove, PodGone},
		{"the runtime has its sandbox, of a pod that lost the address and lives", func(e *Evidence) {
			e.Runtime, e.Sandbox = true, true
			release(e, func(r *Release) { r.Reason = AddressLost })
		}, Remove, AddressLost},
		{"a sandbox has the address", func(e *Evidence) { e.Runtime, e.Claim = true, &Claim{Reason: SandboxHas, By: "ns/b"} }, Keep, SandboxHas},
		{"a sandbox has the address, whose own is said to be lost", func(e *Evidence) {
			e.Runtime, e.ScrubOnLoss, e.Claim = true, true, &Claim{Reason: SandboxHas, By: "ns/a"}
			release(e, func(r *Release) { r.Reason = SandboxLost })
		}, Keep, SandboxHas},
		{"a sandbox has the address, the interface is gone", func(e *Evidence) {
			e.Runtime, e.Claim, e.Entry.Interface = true, &Claim{Reason: SandboxHas, By: "ns/b"}, 9
		}, Remove, InterfaceGone},
		{"a connection, and a sandbox has the address", func(e *Evidence) {
			e.Runtime, e.Claim, e.Entry.Connection = true, &Claim{SandboxHas, "ns/b", noon}, &Connection{Started: noon.Add(-time.Hour)}
		}, Keep, SandboxHas},
		{"a connection older than another node's pod, and an annotation has the address", func(e *Evidence) {
			e.Scope, e.Entry.Connection = ScopeCluster, &Connection{Started: noon.Add(-time.Hour)}
			e.Claim, e.Elsewhere = &Claim{Reason: Annotated, By: "ns/b"}, &Claim{UsedElsewhere, "ns/c", noon}
		}, Keep, Annotated},
		{"a connection older than another node's pod, and a sandbox has the address", func(e *Evidence) {
			e.Runtime, e.Scope, e.Entry.Connection = true, ScopeCluster, &Connection{Started: noon.Add(-time.Hour)}
			e.Claim, e.Elsewhere = &Claim{Reason: SandboxHas, By: "ns/b"}, &Claim{UsedElsewhere, "ns/c", noon}
		}, Keep, SandboxHas},
		{"the batch is full", func(e *Evidence) { e.Full = true }, Wait, BatchFull},
		{"the batch is full, so nobody was asked", func(e *Evidence) { e.Full, e.Asked = true, false }, Wait, BatchFull},
		{"nobody was asked", func(e *Evidence) { e.Asked = false }, Keep, Unconfirmed},
		{"asked in vain", func(e *Evidence) { e.AskedWhy = "on fire" }, Keep, Unconfirmed},
		{"asked in vain, the interface gone", func(e *Evidence) { e.AskedWhy, e.Entry.Interface = "on fire", 9 }, Keep, Unconfirmed},
		{"the node has the address", func(e *Evidence) { e.Claim = &Claim{Reason: HostAddress, By: "eth0"} }, Keep, HostAddress},
		{"the node has the address, the interface gone", func(e *Evidence) { e.Claim, e.Entry.Interface = &Claim{Reason: HostAddress, By: "eth0"}, 9 }, Keep, HostAddress},
		{"another pod has it", func(e *Evidence) { e.Claim = other }, Keep, PodHasAddress},
		{"another pod has it, the interface is there", func(e *Evidence) { e.Claim, e.Entry.Interface = other, 1 }, Keep, PodHasAddress},
		{"another pod has it, the interface is gone", func(e *Evidence) { e.Claim, e.Entry.Interface = other, 9 }, Remove, InterfaceGone},
		{"another pod has it, the interfaces are not known", func(e *Evidence) { e.Claim, e.Entry.Interface, e.Interfaces = other, 9, nil }, Keep, PodHasAddress},
		{"an annotation has it", func(e *Evidence) { e.Claim = &Claim{Reason: Annotated, By: "ns/b"} }, Keep, Annotated},
		{"an annotation has it, the interface is gone", func(e *Evidence) { e.Claim, e.Entry.Interface = &Claim{Reason: Annotated, By: "ns/b"}, 9 }, Remove, InterfaceGone},
		{"nobody has it, the interface is there", func(e *Evidence) { e.Entry.Interface = 2 }, Keep, InterfaceExists},
		{"nobody has it, the interfaces are not known", func(e *Evidence) { e.Entry.Interface, e.Interfaces = 9, nil }, Keep, InterfaceExists},
		{"nobody has it, the interface is gone", func(e *Evidence) { e.Entry.Interface = 9 }, Remove, PodGone},
		{"no interface is left on the node", func(e *Evidence) { e.Entry.Interface, e.Interfaces = 9, map[uint32]bool{} }, Remove, PodGone},
		{"the whole cluster's, and nobody has it", func(e *Evidence) { e.Scope = ScopeCluster }, Remove, PodGone},
		{"the whole cluster's, a pod of another node has it", func(e *Evidence) { e.Scope, e.Elsewhere = ScopeCluster, elsewhere }, Keep, UsedElsewhere},
		{"the whole cluster's, a pod of another node has it, the interface is gone", func(e *Evidence) {
			e.Scope, e.Elsewhere, e.Entry.Interface = ScopeCluster, elsewhere, 9
		}, Remove, InterfaceGone},
		{"the whole cluster's, a second address", func(e *Evidence) {
			e.Scope = ScopeCluster
			release(e, func(r *Release) { r.First = false })
		}, Keep, CannotAsk},
		{"this node's, a second address", func(e *Evidence) { release(e, func(r *Release) { r.First = false }) }, Remove, PodGone},
		{"the whole cluster's, a second address that a pod of this node has", func(e *Evidence) {
			e.Scope, e.Claim = ScopeCluster, other
			release(e, func(r *Release) { r.First = false })
		}, Keep, PodHasAddress},
		{"a connection", func(e *Evidence) { e.Entry.Connection = &Connection{TCP: true} }, Remove, PodGone},
		{"a connection, and a pod has the address, with no times", func(e *Evidence) { e.Claim, e.Entry.Connection = other, &Connection{} }, Keep, AgeUnknown},
		{"a connection, and another node's pod has the address, with no times", func(e *Evidence) {
			e.Scope, e.Elsewhere, e.Entry.Connection = ScopeCluster, elsewhere, &Connection{}
		}, Keep, AgeUnknown},
		{"a connection that began when the pod was not started", func(e *Evidence) { e.Claim, e.Entry.Connection = other, &Connection{Started: noon} }, Keep, PodHasAddress},
		{"a connection that began just before the pod", func(e *Evidence) {
			e.Claim, e.Entry.Connection = &Claim{PodHasAddress, "ns/b", noon}, &Connection{Started: noon.Add(-time.Second)}
		}, Keep, PodHasAddress},
		{"a connection that began long enough before the pod", func(e *Evidence) {
			e.Claim, e.Entry.Connection = &Claim{PodHasAddress, "ns/b", noon}, &Connection{Started: noon.Add(-time.Second - 1)}
		}, Remove, OlderThanPod},
		{"a connection that began long enough before another node's pod", func(e *Evidence) {
			e.Scope, e.Elsewhere, e.Entry.Connection = ScopeCluster, &Claim{UsedElsewhere, "ns/c", noon}, &Connection{Started: noon.Add(-time.Hour)}
		}, Remove, OlderThanPod},
		{"a connection that began just before another node's pod", func(e *Evidence) {
			e.Scope, e.Elsewhere, e.Entry.Connection = ScopeCluster, &Claim{UsedElsewhere, "ns/c", noon}, &Connection{Started: noon}
		}, Keep, UsedElsewhere},
		{"a connection, and an annotation has the address", func(e *Evidence) {
			e.Claim, e.Entry.Connection = &Claim{Annotated, "ns/b", noon}, &Connection{Started: noon.Add(-time.Hour)}
		}, Keep, Annotated},
		{"a connection, and the node has the address", func(e *Evidence) {
			e.Claim, e.Entry.Connection = &Claim{HostAddress, "eth0", noon}, &Connection{Started: noon.Add(-time.Hour)}
		}, Keep, HostAddress},
		{"a TCP connection of a pod that is ending", func(e *Evidence) { e.Ending, e.Entry.Connection = true, &Connection{TCP: true} }, Keep, Terminating},
		{"an old TCP connection of a pod that is ending, and a pod has the address", func(e *Evidence) {
			e.Ending, e.Claim, e.Entry.Connection = true, &Claim{PodHasAddress, "ns/b", noon}, &Connection{TCP: true, Started: noon.Add(-time.Hour)}
		}, Keep, Terminating},
		{"another connection of a pod that is ending", func(e *Evidence) { e.Ending, e.Entry.Connection = true, &Connection{} }, Remove, PodGone},
		{"what is no connection, of a pod that is ending", func(e *Evidence) { e.Ending = true }, Remove, PodGone},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := stale()
			test.change(&e)
			got := Decide(e)
			if got.Verdict != test.verdict || got.Reason != test.reason {
				t.Errorf("%s %s, want %s %s", got.Verdict, got.Reason, test.verdict, test.reason)
			}
			if got.Message == "" {
				t.Error("no message")
			}
			if _, settled := DecideUnasked(e); !settled && e.Asked && got.Reason == BatchFull {
				t.Error("a full batch needs nobody to be asked")
			}
		})
	}
}

// With all that speaks for each row at once the first one decides; without what speaks for that, the next.
func TestDecideOrder(t *testing.T) {
	e := stale()
	e.Entry.Protected, e.Entry.Peer, e.Entry.Interface = "flags", true, 1
	e.Now, e.Full, e.Asked, e.AskedWhy = noon.Add(5*time.Second), true, false, "on fire"
	e.Scope, e.Claim, e.Elsewhere = ScopeCluster, &Claim{Reason: HostAddress, By: "eth0"}, &Claim{Reason: UsedElsewhere, By: "ns/c"}
	r := *e.Release
	r.Reason, r.First, r.NotBefore = SandboxLost, false, noon.Add(time.Minute)
	released := &r
	e.Release = nil
	for _, row := range []struct {
		reason Reason // this row's
		next   func() // takes away what speaks for it
	}{
		{HostAddress, func() { e.Claim = nil }},
		{NotReleased, func() { e.Release, e.Claim = released, &Claim{Reason: HostAddress, By: "eth0"} }},
		{PeerOnly, func() { e.Entry.Peer = false }},
		{Protected, func() { e.Entry.Protected = "" }},
		{SandboxLost, func() { e.ScrubOnLoss = true }},
		{SandboxLost, func() { r.Reason = PodGone }},
		{MayStillRun, func() { e.Runtime, e.Sandbox = true, true }},
		{Waiting, func() { e.Now = noon.Add(10 * time.Second) }},
		{BatchFull, func() { e.Full = false }},
		{Unconfirmed, func() { e.Asked = true }},
		{Unconfirmed, func() { e.AskedWhy = "" }},
		{StillRuns, func() { r.NotBefore = noon }},
		{HostAddress, func() { e.Claim = &Claim{Reason: Annotated, By: "ns/b"}; e.Entry.Interface = 9 }},
		{InterfaceGone, func() { e.Entry.Interface = 1 }},
		{Annotated, func() { e.Claim = &Claim{Reason: SandboxHas, By: "ns/b"} }},
		{SandboxHas, func() { e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b"} }},
		{PodHasAddress, func() { e.Claim = nil }},
		{InterfaceExists, func() { e.Entry.Interface = 0 }},
		{CannotAsk, func() { r.First = true }},
		{UsedElsewhere, func() { e.Elsewhere = nil }},
		{PodGone, func() {}},
	} {
		if got := Decide(e); got.Reason != row.reason {
			t.Fatalf("%s %s (%s), want %s", got.Verdict, got.Reason, got.Message, row.reason)
		}
		row.next()
	}
}

// The sentences name who lost the address, who has it, and what went wrong.
func TestDecideSays(t *testing.T) {
	for _, test := range []struct {
		change func(*Evidence)
		words  string
	}{
		{func(e *Evidence) { e.Release.Reason = AddressLost }, "pod ns/a no longer has the address"},
		{func(e *Evidence) { e.Release.Reason = PodFinished }, "pod ns/a has ended"},
		{func(e *Evidence) { e.Release.Reason = PodGone }, "pod ns/a is gone"},
		{func(e *Evidence) { e.Release.Reason, e.ScrubOnLoss = SandboxLost, true }, "the sandbox of pod ns/a is gone, though its status still has the address"},
		{func(e *Evidence) { e.Release.Reason = SandboxLost }, "with onSandboxLoss: Scrub the entry would go"},
		{func(e *Evidence) { e.Now = noon.Add(4 * time.Second) }, "pod ns/a is gone, for 4s of 10s"},
		{func(e *Evidence) { e.Release.NotBefore = noon.Add(time.Minute) }, "they may run until 2026-07-01T12:01:00Z"},
		{func(e *Evidence) { e.AskedWhy = "the server was on fire" }, "the server was on fire"},
		{func(e *Evidence) { e.Claim = &Claim{Reason: HostAddress, By: "eth0"} }, "the node's own: eth0"},
		{func(e *Evidence) { e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b"} }, "pod ns/b has the address now"},
		{func(e *Evidence) { e.Claim = &Claim{Reason: Annotated, By: "ns/b"} }, "an annotation of pod ns/b"},
		{func(e *Evidence) { e.Claim = &Claim{Reason: SandboxHas, By: "a sandbox of pod ns/b"} }, "by the container runtime a sandbox of pod ns/b has the address"},
		{func(e *Evidence) { e.Runtime, e.Sandbox, e.Release.NotBefore = true, true, noon.Add(time.Hour) }, "by the container runtime its sandbox may still be there"},
		{func(e *Evidence) { e.Scope, e.Elsewhere = ScopeCluster, &Claim{Reason: UsedElsewhere, By: "ns/c"} }, "pod ns/c has the address now"},
		{func(e *Evidence) { e.Entry.Interface = 2 }, "interface 2 of the entry still exists"},
		{func(e *Evidence) { e.Entry.Interface, e.Claim = 9, &Claim{Reason: PodHasAddress, By: "ns/b"} }, "the entry is for interface 9, which is gone"},
		{func(e *Evidence) { e.Entry.Protected = "its flags say so" }, "its flags say so"},
		{func(e *Evidence) { e.Release, e.Claim = nil, &Claim{Reason: PodHasAddress, By: "ns/b"} }, "ns/b has the address"},
	} {
		e := stale()
		test.change(&e)
		if got := Decide(e).Message; !strings.Contains(got, test.words) {
			t.Errorf("%q does not say %q", got, test.words)
		}
	}
}

// slowRemove says when an entry may be removed, as one would tell it to an operator: only if all of this holds.
func slowRemove(e Evidence) bool {
	if e.Release == nil {
		return false
	}
	mayBeTouched := e.Entry.Protected == "" && !e.Entry.Peer
	reallyLost := e.Release.Reason != SandboxLost || e.ScrubOnLoss
	containersEnded := !e.Now.Before(e.Release.NotBefore) || (e.Runtime && !e.Sandbox)
	waited := !e.Now.Before(e.Release.Since.Add(e.Grace)) && containersEnded && !e.Full
	answered := e.Asked && e.AskedWhy == ""
	notTheNodes := e.Claim == nil || e.Claim.Reason != HostAddress
	namesNoInterface := e.Entry.Interface == 0
	interfaceIsGone := !namesNoInterface && e.Interfaces != nil && !e.Interfaces[e.Entry.Interface]
	somebodyHasIt := e.Claim != nil || e.Elsewhere != nil
	everyoneAsked := e.Scope == ScopeNode || e.Release.First
	provablyTheOldOnes := somebodyHasIt && interfaceIsGone
	nobodys := !somebodyHasIt && everyoneAsked && (namesNoInterface || interfaceIsGone)
	if c := e.Entry.Connection; c != nil && !provablyTheOldOnes {
		if c.TCP && e.Ending {
			return false
		}
		pod := e.Claim // that has the address, and of which it is known since when
		if pod == nil {
			pod = e.Elsewhere
		}
		if e.Claim != nil && e.Claim.Reason != PodHasAddress {
			pod = nil
		}
		timesAreKnown := pod != nil && !c.Started.IsZero() && !pod.Started.IsZero()
		provablyTheOldOnes = timesAreKnown && pod.Started.Sub(c.Started) > time.Second
	}
	return mayBeTouched && reallyLost && waited && answered && notTheNodes && (provablyTheOldOnes || nobodys)
}

func randomEvidence(r *rand.Rand) Evidence {
	rarely := func() bool { return r.IntN(8) == 0 }
	seconds := func(n int) time.Time { return noon.Add(time.Duration(r.IntN(n)) * time.Second) }
	e := Evidence{
		Entry: Entry{Table: "t", Text: "10.0.0.1", Address: netip.MustParseAddr("10.0.0.1"), Interface: []uint32{0, 1, 9}[r.IntN(3)]},
		Scope: []Scope{ScopeNode, ScopeCluster}[r.IntN(2)], ScrubOnLoss: r.IntN(2) == 0, Grace: 10 * time.Second, Now: seconds(60), Full: rarely(), Asked: !rarely(),
		Claim:      []*Claim{nil, nil, nil, {Reason: HostAddress, By: "h"}, {Reason: PodHasAddress, By: "b"}, {Reason: Annotated, By: "b"}, {Reason: SandboxHas, By: "b"}}[r.IntN(7)],
		Interfaces: []map[uint32]bool{nil, {}, {1: true}, {1: true}}[r.IntN(4)],
	}
	e.Runtime = r.IntN(2) == 0
	e.Sandbox = e.Runtime && r.IntN(2) == 0
	if rarely() {
		e.Entry.Protected = "protected"
	}
	e.Entry.Peer = rarely()
	if r.IntN(3) == 0 {
		e.Ending, e.Entry.Connection = rarely(), &Connection{TCP: r.IntN(2) == 0}
		if !rarely() {
			e.Entry.Connection.Started = seconds(5)
		}
	}
	if rarely() {
		e.AskedWhy = "on fire"
	}
	if e.Scope == ScopeCluster && r.IntN(3) == 0 {
		e.Elsewhere = &Claim{Reason: UsedElsewhere, By: "c"}
	}
	for _, c := range []*Claim{e.Claim, e.Elsewhere} {
		if c != nil && c.Reason != HostAddress && c.Reason != Annotated && !rarely() {
			c.Started = seconds(5)
		}
	}
	if !rarely() {
		e.Release = &Release{Since: seconds(50), NotBefore: seconds(60), First: !rarely(), Reason: []Reason{AddressLost, PodFinished, PodGone, SandboxLost}[r.IntN(4)]}
	}
	return e
}

func TestDecideAgreesWithPlainWords(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	removed := 0
	for range 200_000 {
		e := randomEvidence(r)
		got, want := Decide(e), slowRemove(e)
		if (got.Verdict == Remove) != want {
			t.Fatalf("Decide says %s %s, plain words say remove = %v: %+v, release %+v", got.Verdict, got.Reason, want, e, e.Release)
		}
		if want {
			removed++
		}
		// The first part of the table never settles on what only the second may say, and what it settles the answers do not change.
		d, settled := DecideUnasked(e)
		if settled && (d.Verdict == Remove || d != got) {
			t.Fatalf("unasked %+v, asked %+v: %+v", d, got, e)
		}
		// Nothing goes of which nobody was asked, whatever else is known.
		e.Asked = false
		if d := Decide(e); d.Verdict == Remove {
			t.Fatalf("removed without asking: %+v, release %+v", e, e.Release)
		}
	}
	if removed < 5000 {
		t.Errorf("only %d of the drawn entries could be removed: the test compares little", removed)
	}
}
