package status

import (
	"maps"
	"slices"
	"time"
)

const (
	// gatherTime is how long after a departure others are waited for, so that one look serves all.
	gatherTime = 10 * time.Second
	// firstRetry is the pause after a pass that failed; it doubles up to the interval.
	firstRetry = 5 * time.Second
)

// A Schedule says when resources want to be looked at next: regularly; when candidates will have waited out their grace; and after the agents of nodes
// with keys there have left. It is pure: whoever keeps it tells it what happened and what time it is. The zero value with its two durations is due at
// once.
type Schedule struct {
	Interval, Grace time.Duration
	// Aimed tells that what is there of certain nodes can be looked at alone. After a departure this is done soon, so that the grace begins for
	// what was written since the last look, and not, as otherwise, a grace later; and once more an interval after that, for what a dying agent has written
	// again.
	Aimed bool

	regular  time.Time            // the next look if nothing happens
	waiting  time.Time            // the look that candidates wait for; zero: none do
	left     map[string]time.Time // nodes with a key whose agents have left since the last look
	again    map[string]time.Time // nodes to look at once more, and when; with Aimed
	failures int                  // passes in a row that read nothing
	troubles int                  // passes in a row in which something failed
	doubts   int                  // passes in a row in which something could not be proved
}

// Next is when to look.
func (s *Schedule) Next() time.Time {
	next := s.regular
	times := []time.Time{s.waiting, s.departed()}
	if s.failures == 0 { // otherwise the next try sees to them
		times = slices.AppendSeq(times, maps.Values(s.again))
	}
	for _, at := range times {
		if !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	return next
}

// departed is when to look on account of those that have left; zero: there is no such time.
func (s *Schedule) departed() time.Time {
	times := slices.Collect(maps.Values(s.left))
	if !s.Aimed {
		return s.gathered(times)
	}
	if len(times) == 0 || s.failures > 0 {
		return time.Time{}
	}
	return slices.MinFunc(times, time.Time.Compare).Add(s.soon())
}

// soon is how long after a departure the first look follows, with Aimed. An agent that is restarted is mostly back by then, and costs nothing.
func (s *Schedule) soon() time.Duration { return min(gatherTime, s.Grace/2) }

// Departed are the nodes to look at whether or not anything of theirs is known, with Aimed.
func (s *Schedule) Departed(now time.Time) []string {
	if !s.Aimed {
		return nil
	}
	nodes := slices.Collect(maps.Keys(s.left))
	for node, at := range s.again {
		if _, left := s.left[node]; !left && !at.After(now) {
			nodes = append(nodes, node)
		}
	}
	slices.Sort(nodes)
	return nodes
}

// gathered is when one look serves all that began to wait at these times: a grace after the last, unless that would keep the first too long.
func (s *Schedule) gathered(times []time.Time) time.Time {
	if len(times) == 0 {
		return time.Time{}
	}
	first, last := times[0], times[0]
	for _, at := range times {
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	if latest := first.Add(min(gatherTime, s.Grace)); last.After(latest) {
		last = latest
	}
	return last.Add(s.Grace)
}

// Left tells that the agent of a node with a key there has left or died.
func (s *Schedule) Left(node string, now time.Time) {
	if s.left == nil {
		s.left = map[string]time.Time{}
	}
	s.left[node] = now
}

// Returned tells that it is back: nothing needs to be looked at on its account.
func (s *Schedule) Returned(node string) {
	delete(s.left, node)
	delete(s.again, node)
}

// Leaving is how many Nodes the next look will want to know of because their agents have left since the last one. With Aimed none: those first wait.
func (s *Schedule) Leaving() int {
	if s.Aimed {
		return 0
	}
	return len(s.left)
}

// Looked tells what a pass found that began when Departed was asked. spread, from -1 to 1, is how the next regular look is shifted, by a tenth of the
// interval at most, so that not all owners look at the same time.
func (s *Schedule) Looked(report *TargetReport, begun, now time.Time, spread float64) {
	if s.Aimed {
		s.lookedAt(report, begun)
	} else {
		maps.DeleteFunc(s.left, func(_ string, at time.Time) bool {
			return begun.Sub(at) >= s.Grace // the pass took it into account; a younger one it saw only begin to wait, which the report says too
		})
	}
	s.regular = now.Add(s.Interval + time.Duration(spread*float64(s.Interval)/10))
	s.waiting = time.Time{}
	failed := report.State == Unavailable
	if !failed {
		s.troubles = 0
	} else {
		s.troubles++
		if retry := now.Add(min(firstRetry<<min(s.troubles-1, 16), s.Interval)); retry.Before(s.regular) {
			s.regular = retry
		}
	}
	if unread(report) {
		s.failures++
		return
	}
	s.failures = 0
	var since []time.Time
	doubtful := false
	for f := range report.All() {
		_, left := s.left[f.Key] // that one is waited for already, unless it returns
		if f.Verdict == Wait && !f.Since.IsZero() && !left {
			since = append(since, f.Since)
		}
		doubtful = doubtful || f.Reason == Unconfirmed
	}
	if !doubtful {
		s.doubts = 0
	} else if again := now.Add(s.Grace << min(s.doubts, 16)); again.Before(s.regular) {
		s.regular = again // what can never be proved must not make it look so often for ever
		s.doubts++
	}
	if s.waiting = s.gathered(since); !s.waiting.IsZero() && !s.waiting.After(now) {
		// What has waited long enough and waits still, for room in a batch say, must not make it look without end; after a failure the next try sees to it.
		s.waiting = now.Add(min(s.Grace, BatchPause))
		if failed {
			s.waiting = time.Time{}
		}
	}
}

// unread tells whether a pass saw nothing.
func unread(report *TargetReport) bool {
	return report.State == Unavailable && len(report.Resources) == 0
}

// lookedAt notes which departed nodes a pass has looked at, with Aimed.
func (s *Schedule) lookedAt(report *TargetReport, begun time.Time) {
	if unread(report) {
		return // they are looked at when it can be read again
	}
	maps.DeleteFunc(s.again, func(_ string, at time.Time) bool { return !at.After(begun) })
	for node, at := range s.left {
		if begun.Sub(at) < s.soon() {
			continue
		}
		delete(s.left, node)
		if s.again == nil {
			s.again = map[string]time.Time{}
		}
		s.again[node] = at.Add(s.Grace + s.Interval) // an interval after what is there now has gone
	}
}
