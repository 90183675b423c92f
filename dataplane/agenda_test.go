package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

const grace = 10 * time.Second

// aRelease of an address 10.0.0.n.
func aRelease(n int, reason Reason, since time.Duration) *Release {
	return &Release{
		Pod: PodRef{"ns", fmt.Sprint("p", n), fmt.Sprint("P", n)}, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), First: true,
		Reason: reason, Since: noon.Add(since), NotBefore: noon.Add(since),
	}
}

// checkNext checks when the next pass is due, counted from noon; a negative time is never.
func checkNext(t *testing.T, g *agenda, what string, want time.Duration) {
	t.Helper()
	at, any := g.next()
	if !any {
		at = noon.Add(-1)
	}
	if at.Sub(noon) != want {
		t.Errorf("%s: the next pass is at %s, want %s", what, at.Sub(noon), want)
	}
}

func dueAt(g *agenda, releases []*Release, after time.Duration, limit int) string {
	var due []string
	for a := range g.take(releases, noon.Add(after), limit) {
		due = append(due, a.String())
	}
	slices.Sort(due)
	return fmt.Sprint(due)
}

func TestAgendaFirstLook(t *testing.T) {
	g := newAgenda()
	checkNext(t, g, "nothing released", -1)
	gone := aRelease(1, PodGone, 0)
	gone.NotBefore = noon.Add(time.Minute)
	lost, sandbox := aRelease(2, AddressLost, 5*time.Second), aRelease(3, SandboxLost, 7*time.Second)

	g.update([]*Release{gone}, grace)
	checkNext(t, g, "when its containers cannot run any more", time.Minute)
	g.update([]*Release{gone, lost}, grace)
	checkNext(t, g, "when the grace is over", 15*time.Second)
	g.update([]*Release{gone, lost, sandbox}, grace)
	checkNext(t, g, "a lost sandbox is told of at once", 7*time.Second)
	all := []*Release{gone, lost, sandbox}
	if got := dueAt(g, all, 15*time.Second-1, 9); got != "[10.0.0.3]" {
		t.Error(got)
	}
	if got := dueAt(g, all, 15*time.Second, 9); got != "[10.0.0.2 10.0.0.3]" {
		t.Error(got)
	}
	g.update([]*Release{gone}, grace)
	checkNext(t, g, "the others ended", time.Minute)
	if got := dueAt(g, all, time.Hour, 9); got != "[10.0.0.1]" {
		t.Errorf("what is not on the agenda is not due: %s", got)
	}
	g.update(nil, grace)
	if g.update([]*Release{gone}, grace); len(g.entries) != 1 {
		t.Errorf("%d entries", len(g.entries))
	}
	checkNext(t, g, "it came back as a new one", time.Minute)
}

// Between passes lies a rest: the longer they take the longer it is, within bounds. It is longer where a pass could not take all that was due.
func TestAgendaRests(t *testing.T) {
	for limit, want := range map[int]time.Duration{2: nextWait, 3: leastRest} {
		g := newAgenda()
		all := []*Release{aRelease(1, AddressLost, 0), aRelease(2, AddressLost, 0), aRelease(2, PodGone, 0), aRelease(3, AddressLost, 0)}
		g.update(append(all, aRelease(4, AddressLost, time.Hour)), grace)
		g.take(all, noon.Add(grace), limit)
		g.passed(noon.Add(time.Hour), 0)
		checkNext(t, g, fmt.Sprint("a pass of ", limit), time.Hour+want)
		g.take(all, noon.Add(grace), 3)
		g.passed(noon.Add(time.Hour), 0)
		checkNext(t, g, "and then one of all", time.Hour+leastRest)
	}
	for took, want := range map[time.Duration]time.Duration{
		-time.Second: leastRest, 0: leastRest, 12 * time.Millisecond: leastRest, 13 * time.Millisecond: 52 * time.Millisecond,
		15*time.Second - 1: time.Minute - 4, time.Hour: mostRest,
	} {
		g := newAgenda()
		g.passed(noon.Add(time.Hour), took)
		checkNext(t, g, "nothing to do", -1)
		r := aRelease(1, AddressLost, 0)
		g.update([]*Release{r}, grace)
		checkNext(t, g, fmt.Sprint("due long ago, and the pass took ", took), time.Hour+want)
		later := aRelease(2, AddressLost, 2*time.Hour)
		g.update([]*Release{later}, grace)
		checkNext(t, g, "due after the rest", 2*time.Hour+grace)
	}
}

// Another configuration makes all due, also what waits for its grace, and forgets earlier failures.
func TestAgendaAgain(t *testing.T) {
	g := newAgenda()
	r := aRelease(1, AddressLost, 0)
	g.update([]*Release{r}, grace)
	for range 3 {
		g.passedBy(r, upshot{failed: true}, r.Ready(grace), noon, grace)
	}
	checkNext(t, g, "after three failures", 8*time.Second)
	g.again(noon.Add(3 * time.Second))
	checkNext(t, g, "again", 3*time.Second)
	g.passedBy(r, upshot{failed: true}, r.Ready(grace), noon, grace)
	checkNext(t, g, "failed for the first time", firstRetry)
}

// A pass takes what is due the longest, and as many addresses as it may, each with all its releases.
func TestAgendaTakesTheLongestDue(t *testing.T) {
	g := newAgenda()
	var releases []*Release
	for i := range 5 {
		releases = append(releases, aRelease(i+1, AddressLost, time.Duration(i)*time.Second))
	}
	twin := aRelease(2, PodGone, 9*time.Second)
	releases = append(releases, twin)
	g.update(releases, grace)
	if got := dueAt(g, releases, 30*time.Second, 2); got != "[10.0.0.1 10.0.0.2]" {
		t.Error(got)
	}
	// What was lost first was looked at in vain, so it is due the last.
	g.passedBy(releases[0], upshot{failed: true}, releases[0].Ready(grace), noon.Add(30*time.Second), grace)
	g.passedBy(releases[1], upshot{waits: true}, releases[1].Ready(grace), noon.Add(30*time.Second), grace)
	g.passedBy(twin, upshot{waits: true}, twin.Ready(grace), noon.Add(30*time.Second), grace)
	if got := dueAt(g, releases, 40*time.Second, 3); got != "[10.0.0.3 10.0.0.4 10.0.0.5]" {
		t.Errorf("the same ones come first again: %s", got)
	}
	if got := dueAt(g, releases, 40*time.Second, 99); got != "[10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 10.0.0.5]" {
		t.Error(got)
	}
	if got := dueAt(g, releases, 40*time.Second, 0); got != "[]" {
		t.Error(got)
	}
}

func TestAgendaPassedBy(t *testing.T) {
	at := 20 * time.Second // the look; the grace is over
	for _, test := range []struct {
		name   string
		reason Reason
		upshot upshot
		want   time.Duration // of the next look, after this one; negative: done
	}{
		{"nothing found", AddressLost, upshot{}, -1},
		{"nothing found, and the sandbox may come back", SandboxLost, upshot{}, recheck},
		{"failed", AddressLost, upshot{failed: true}, firstRetry},
		{"failed in part", AddressLost, upshot{failed: true, removed: true, kept: true, waits: true}, firstRetry},
		{"removed: somebody may add it again", AddressLost, upshot{removed: true}, grace},
		{"removed in part", PodGone, upshot{removed: true, kept: true, waits: true}, grace},
		{"a lost sandbox's removed", SandboxLost, upshot{removed: true}, grace},
		{"waits", AddressLost, upshot{waits: true}, nextWait},
		{"waits in part", AddressLost, upshot{waits: true, kept: true}, nextWait},
		{"kept", AddressLost, upshot{kept: true}, recheck},
	} {
		g := newAgenda()
		r := aRelease(1, test.reason, 0)
		if g.passedBy(r, test.upshot, r.Ready(grace), noon.Add(at), grace) {
			t.Errorf("%s: done with what is not on the agenda", test.name)
		}
		g.update([]*Release{r}, grace)
		done := g.passedBy(r, test.upshot, r.Ready(grace), noon.Add(at), grace)
		if done != (test.want < 0) {
			t.Errorf("%s: done %v", test.name, done)
		}
		if !done {
			checkNext(t, g, test.name, at+test.want)
		}
	}
	// Before the grace is over all but a failure is looked at again when it is.
	for _, u := range []upshot{{}, {waits: true}, {kept: true}} {
		for _, reason := range []Reason{AddressLost, SandboxLost} {
			g := newAgenda()
			r := aRelease(1, reason, 0)
			r.NotBefore = noon.Add(time.Minute)
			g.update([]*Release{r}, grace)
			if g.passedBy(r, u, r.Ready(grace), noon.Add(time.Minute-1), grace) {
				t.Error("done before its time")
			}
			checkNext(t, g, fmt.Sprintf("%s %+v before its time", reason, u), time.Minute)
		}
	}
}

// What stays is looked at less and less often, until the configuration is another.
func TestAgendaKeeps(t *testing.T) {
	g := newAgenda()
	r := aRelease(1, AddressLost, 0)
	g.update([]*Release{r}, grace)
	now := time.Hour
	for _, want := range []time.Duration{5, 10, 20, 40, 60, 60} {
		if g.passedBy(r, upshot{kept: true}, r.Ready(grace), noon.Add(now), grace) {
			t.Error("done")
		}
		checkNext(t, g, "kept", now+want*time.Minute)
		now += want * time.Minute
	}
	g.again(noon.Add(now))
	g.passedBy(r, upshot{kept: true}, r.Ready(grace), noon.Add(now), grace)
	checkNext(t, g, "kept with another configuration", now+5*time.Minute)
}

// The pause after failures doubles up to five minutes, and a look that ends begins anew.
func TestAgendaBacksOff(t *testing.T) {
	g := newAgenda()
	r := aRelease(1, AddressLost, 0)
	g.update([]*Release{r}, grace)
	now := time.Minute
	for _, want := range []time.Duration{2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		if g.passedBy(r, upshot{failed: true}, r.Ready(grace), noon.Add(now), grace) {
			t.Error("done")
		}
		checkNext(t, g, "failed", now+want*time.Second)
		now += want * time.Second
	}
	g.passedBy(r, upshot{kept: true}, r.Ready(grace), noon.Add(now), grace)
	g.passedBy(r, upshot{failed: true}, r.Ready(grace), noon.Add(now), grace)
	checkNext(t, g, "failed after one that ended", now+firstRetry)
}
