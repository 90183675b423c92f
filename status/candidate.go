package status

import (
	"crypto/sha256"
	"time"
)

// A Candidate is what is remembered of a key that nothing speaks for.
type Candidate struct {
	Since   time.Time // when it was first seen as it is now
	Looks   int       // how many looks have seen it as it is now, this one included
	Changed bool      // its entry was another one at the look before; waiting started again with this look
	print   fingerprint
}

type fingerprint [sha256.Size]byte

// Candidates are the candidates of one resource, by key. They are one owner's own: whoever takes a resource over starts
// with none, so it trusts only what it saw.
type Candidates struct {
	resource string // UID: a resource replaced by one of the same name has none of the old one's candidates
	byKey    map[string]Candidate
}

// Look returns the candidates after the resource was read: those that were there and are unchanged have been seen once
// more, a changed one starts again, a key that something speaks for (alive says so) or that is no longer there is forgotten.
// The receiver is unchanged.
func (c Candidates) Look(r *Resource, alive func(key string) bool, now time.Time) Candidates {
	before := c.byKey
	if c.resource != r.UID {
		before = nil
	}
	after := Candidates{resource: r.UID, byKey: map[string]Candidate{}}
	for key, print := range r.fingerprints() {
		if key == "" || alive(key) {
			continue
		}
		candidate, known := before[key]
		switch {
		case !known:
			candidate = Candidate{Since: now, Looks: 1, print: print}
		case candidate.print != print:
			candidate = Candidate{Since: now, Looks: 1, print: print, Changed: true}
		default:
			candidate.Looks++
			candidate.Changed = false
		}
		after.byKey[key] = candidate
	}
	return after
}

// Of returns the candidate of that key, the zero value where there is none.
func (c Candidates) Of(key string) Candidate { return c.byKey[key] }
