package dataplane

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// firstRetry is the pause after a look that could not be finished; it doubles up to recheck.
	firstRetry = 2 * time.Second
	// recheck is how long after a look that kept an entry the next one follows: its keeper may be gone. It doubles up to mostRecheck: what stays
	// for long, as with mode Report, must not cost the API server questions all the time.
	recheck, mostRecheck = 5 * time.Minute, time.Hour
	// nextWait is the pause where an entry waits for what has no time of its own.
	nextWait = time.Second
	// A stream of releases must not have the tables read all the time: between two passes lie some of a pass's times, but this at least.
	restOfPass, leastRest, mostRest = 4, 50 * time.Millisecond, time.Minute
)

// An agenda says when to look at which release. It is pure, and not safe for concurrent use.
type agenda struct {
	entries map[*Release]*agendaEntry
	rest    time.Time // no pass before
	full    bool      // the pass leaves some for the next one
	runtime bool      // a container runtime is asked
}

type agendaEntry struct {
	at    time.Time
	pause time.Duration // after a failure
	kept  time.Duration // after a look that kept an entry
}

func newAgenda() *agenda { return &agenda{entries: map[*Release]*agendaEntry{}} }

// update takes in which releases there are. New ones are looked at when their grace is over, and a lost sandbox at once too, to tell of it.
func (g *agenda) update(releases []*Release, grace time.Duration) {
	there := make(map[*Release]bool, len(releases))
	for _, r := range releases {
		there[r] = true
		if g.entries[r] == nil {
			at := r.Due(grace, g.runtime)
			if r.Reason == SandboxLost {
				at = r.Since
			}
			g.entries[r] = &agendaEntry{at: at}
		}
	}
	for r := range g.entries {
		if !there[r] {
			delete(g.entries, r)
		}
	}
}

// again makes all releases due: the configuration is another.
func (g *agenda) again(now time.Time) {
	for _, e := range g.entries {
		e.at, e.pause, e.kept = now, 0, 0
	}
}

// next is when the next pass is due, if one is.
func (g *agenda) next() (time.Time, bool) {
	var next time.Time
	for _, e := range g.entries {
		if next.IsZero() || e.at.Before(next) {
			next = e.at
		}
	}
	if next.Before(g.rest) {
		next = g.rest
	}
	return next, len(g.entries) > 0
}

// take returns the addresses to look at now, the longest due first, limit at most.
func (g *agenda) take(releases []*Release, now time.Time, limit int) map[netip.Addr]bool {
	var waiting []*Release
	for _, r := range releases {
		if e := g.entries[r]; e != nil && !e.at.After(now) {
			waiting = append(waiting, r)
		}
	}
	slices.SortStableFunc(waiting, func(a, b *Release) int { return g.entries[a].at.Compare(g.entries[b].at) })
	due := map[netip.Addr]bool{}
	for _, r := range waiting {
		if len(due) < limit {
			due[r.Address] = true
		}
	}
	g.full = slices.ContainsFunc(waiting, func(r *Release) bool { return !due[r.Address] })
	return due
}

// passed takes in that a pass has ended now, and how long it took.
func (g *agenda) passed(now time.Time, took time.Duration) {
	least := leastRest
	if g.full { // what goes in batches goes slowly, so that somebody may stop it
		least = nextWait
	}
	g.rest = now.Add(min(max(restOfPass*took, least), mostRest))
}

// An upshot is what a pass found of a release.
type upshot struct {
	failed  bool // something could not be read, asked or removed, or a sandbox is about to go
	removed bool
	waits   bool
	kept    bool // by something that may end
}

// passedBy says when to look at a release next; done tells that there is nothing left to do for it. ready is when the last of all releases of its
// address is: until then none of its entries goes.
func (g *agenda) passedBy(r *Release, u upshot, ready, now time.Time, grace time.Duration) (done bool) {
	e := g.entries[r]
	if e == nil {
		return false
	}
	if !u.failed {
		e.pause = 0
	}
	switch {
	case u.failed:
		e.pause = min(max(firstRetry, 2*e.pause), recheck)
		e.at = now.Add(e.pause)
	case u.removed: // whether somebody adds it again
		e.at = now.Add(grace)
	case now.Before(ready):
		e.at = ready
	case u.waits:
		e.at = now.Add(nextWait)
	case u.kept, r.Reason == SandboxLost:
		e.kept = min(max(recheck, 2*e.kept), mostRecheck)
		e.at = now.Add(e.kept)
	case now.Before(r.NotBefore): // its containers may still run, and an entry of theirs come
		e.at = r.NotBefore
	default:
		return true
	}
	return false
}
