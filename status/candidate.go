package status

import (
	"crypto/sha256"
	"time"
)

// A Candidate is what is remembered of a key that nothing speaks for.
type Candidate struct {
	Since   time.Time // when it was first seen as it is now, or its node's agent left after it had been
	Looks   int       // how many looks have seen it as it is now, this one included
	Changed bool      // its entry was another one at the look before; waiting started again with this look
	print   fingerprint
}

type fingerprint [sha256.Size]byte

// Candidates are the candidates of one resource, by key. They are one owner's own: whoever takes a resource over starts
// with none, so it trusts only what it saw.
type Candidates struct {
	resource string // UID: a resource replaced by one of the same name has none of the old one's candidates
	at       time.Time
	byKey    map[string]Candidate
	prints   map[string]fingerprint // of all keys at the last look, candidates or not
}

// Look returns the candidates after the resource was read: those that were there and are unchanged have been seen once
// more, a changed one starts again, a key that something speaks for or that is no longer there is forgotten. A key that
// was seen, unchanged, before its node's agent left is a candidate since then. The receiver is unchanged.
func (c Candidates) Look(r *Resource, known func(key string) Knowledge, now time.Time) Candidates {
	if c.resource != r.UID {
		c = Candidates{}
	}
	after := c.look(r.fingerprints(), known, now)
	after.resource = r.UID
	return after
}

// look is Look for anything that has prints, by whatever id.
func (c Candidates) look(prints map[string]fingerprint, known func(id string) Knowledge, now time.Time) Candidates {
	after := Candidates{at: now, byKey: map[string]Candidate{}, prints: prints}
	for key, print := range after.prints {
		if key == "" {
			continue
		}
		k := known(key)
		if _, alive := k.alive(); alive {
			continue
		}
		candidate, was := c.byKey[key]
		before, seen := c.prints[key]
		switch {
		case was && candidate.print != print:
			candidate = Candidate{Since: now, Looks: 1, print: print, Changed: true}
		case was:
			candidate.Looks++
			candidate.Changed = false
		case seen && before == print && k.Left.After(c.at):
			candidate = Candidate{Since: k.Left, Looks: 2, print: print}
		default:
			candidate = Candidate{Since: now, Looks: 1, print: print}
		}
		after.byKey[key] = candidate
	}
	return after
}

// Of returns the candidate of that key, the zero value where there is none.
func (c Candidates) Of(key string) Candidate { return c.byKey[key] }

// Has tells whether the last look saw that key.
func (c Candidates) Has(key string) bool {
	_, has := c.prints[key]
	return has && key != ""
}
