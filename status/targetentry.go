package status

import "time"

const (
	// writeInterval is how long after a target's entry was written it may be written again: sweeps may be frequent, their news is not.
	writeInterval = time.Minute
	// entryTime bounds the write of one entry.
	entryTime = 30 * time.Second
	// settleInterval is how long after an entry was first written it is looked at: a write that its former owner began before that is over.
	settleInterval = writeInterval
	// lookInterval is how long after a look the next one follows at most, at least half of it: where agents could not hear one another both
	// may have written, and an entry that somebody removed is nobody's news.
	lookInterval = 2 * time.Hour
	// The pauses after a write that failed, doubled each time.
	firstWriteRetry, maxWriteRetry = 5 * time.Second, 5 * time.Minute
)

// A targetEntry is one entry of a SweepReport that this process writes. The TargetWriter's mu guards it.
type targetEntry struct {
	target, resource string        // resource is empty where the target has one owner for all
	next             TargetStatus  // what is to be written, without Removed
	removed          int64         // since it was written last
	written          *TargetStatus // as it was written last, without Removed; nil: to be written in any case
	writtenAt        time.Time     // or seen to be there
	known            bool          // total is
	total            int64         // Removed as it was written last, or before this process wrote
	lookAt           time.Time     // when to look whether it is still there; zero before it was
	anew             bool          // to be looked at now, and total is not to be relied on

	notBefore time.Time // after a failure that is its own
	pause     time.Duration
	said      string
}

// due is when the entry is to be written, if anything but the time of the last sweep has changed, or else to be looked at.
func (e *targetEntry) due(interval time.Duration) time.Time {
	at := e.lookAt
	switch {
	case e.anew:
		at = time.Time{}
	case e.changed():
		at = e.writtenAt.Add(interval)
	}
	if at.Before(e.notBefore) {
		return e.notBefore
	}
	return at
}

func (e *targetEntry) changed() bool {
	return e.written == nil || e.removed > 0 || !e.next.sameBut(*e.written)
}

// unsure tells whether the report must be read before the entry is written.
func (e *targetEntry) unsure(now time.Time) bool {
	return !e.known || e.anew || e.written != nil && !now.Before(e.lookAt)
}

// look compares the entry with what the report has, and tells whether there is nothing to write.
func (e *targetEntry) look(there map[string]targetInReport, now time.Time, settle time.Duration) bool {
	target := there[e.target]
	found, whole := target.TargetStatus, len(target.Resources) == 0
	if e.resource != "" {
		found, whole = target.Resources[e.resource], sum(target.Resources).sameBut(target.TargetStatus)
	}
	if e.anew {
		e.total = 0
	}
	// Only at a look, and not again when the write that follows fails: it may have been done all the same, and would then count twice.
	// Two that took over at once do not know what the other removed; the larger count is the nearer one.
	e.total, e.known, e.anew = max(e.total, found.Removed), true, false
	if !e.lookAt.IsZero() {
		e.lookAt = now.Add(jitter(lookInterval))
	}
	want := e.next
	want.Removed = e.total
	if whole && e.removed == 0 && found.sameBut(want) {
		e.isThere(want, now, settle)
		return true
	}
	e.written = nil
	return false
}

// isThere remembers that the report has the entry.
func (e *targetEntry) isThere(s TargetStatus, now time.Time, settle time.Duration) {
	e.total = s.Removed
	s.Removed = 0
	e.written, e.writtenAt = &s, now
	if e.lookAt.IsZero() {
		e.lookAt = now.Add(settle)
	}
	e.pause, e.said = 0, ""
}

// putOff makes the entry wait after a failure, and tells whether the failure is news.
func (e *targetEntry) putOff(why error, now time.Time) (news bool) {
	e.pause = max(firstWriteRetry, min(2*e.pause, maxWriteRetry))
	e.notBefore = now.Add(jitter(e.pause))
	news = e.said != why.Error()
	e.said = why.Error()
	return news
}
