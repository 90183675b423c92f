package status

import (
	"testing"
	"time"
)

// TestScheduleAtItsEdges plays what does not happen every day: a grace or an interval out of the ordinary, an outage of hours, findings
// that must not bring the next look forward. A next look that has passed already, time after time, would be a look without end.
func TestScheduleAtItsEdges(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	found := func(findings ...Finding) *TargetReport {
		return &TargetReport{State: OK, Resources: []ResourceReport{{Findings: findings}}}
	}
	waits := func(key string, since int) Finding {
		return Finding{Key: key, Verdict: Wait, Reason: Waiting, Since: at(since)}
	}
	kept := func(reason Reason) Finding {
		return Finding{Key: "a", Verdict: Keep, Reason: reason, Since: at(0)}
	}
	failed := &TargetReport{State: Unavailable}
	for _, test := range []struct {
		name            string
		interval, grace int
		play            func(*Schedule)
		want            int
	}{
		{"a short grace gathers for no longer than itself", 300, 4, func(s *Schedule) {
			s.Looked(found(), at(0), at(0), 0)
			s.Left("a", at(10))
			s.Left("b", at(17))
		}, 18},
		{"candidates of a short grace", 300, 4, func(s *Schedule) { s.Looked(found(waits("a", 0), waits("b", 5)), at(6), at(6), 0) }, 8},
		{"what has waited out a short grace is looked at a grace later", 300, 4, func(s *Schedule) { s.Looked(found(waits("a", 0)), at(50), at(50), 0) }, 54},
		{"what has waited out its grace at this very moment, too", 300, 60, func(s *Schedule) { s.Looked(found(waits("a", 0)), at(60), at(60), 0) }, 70},
		{"a pass that fails when candidates have waited", 300, 60, func(s *Schedule) {
			s.Looked(found(waits("a", 0)), at(0), at(0), 0)
			s.Looked(failed, at(60), at(60), 0)
		}, 65},
		{"an outage of a day", 300, 60, func(s *Schedule) {
			for i := range 300 {
				s.Looked(failed, at(300*i), at(300*i), 0)
				if next := s.Next(); next.Before(at(300*i + 5)) {
					t.Errorf("after %d failures the next look is at %v", i+1, next)
				}
			}
		}, 300 * 300},
		{"a retry is no later than the regular look", 300, 60, func(s *Schedule) {
			for range 10 {
				s.Looked(failed, at(0), at(0), -1)
			}
		}, 270},
		{"a retry is no later than an interval", 300, 60, func(s *Schedule) {
			for range 10 {
				s.Looked(failed, at(0), at(0), 1)
			}
		}, 300},
		{"unconfirmed, with a grace longer than the interval", 30, 60, func(s *Schedule) { s.Looked(found(kept(Unconfirmed)), at(0), at(0), 0) }, 30},
		{"kept although it has long been a candidate", 300, 60, func(s *Schedule) {
			s.Looked(found(kept(Held), kept(KeptByAnnotation), kept(MemberWithoutNode), kept(UnknownName)), at(200), at(200), 0)
		}, 500},
		{"waiting since nobody knows when", 300, 60, func(s *Schedule) { s.Looked(found(Finding{Key: "a", Verdict: Wait, Reason: Waiting}), at(0), at(0), 0) }, 300},
		{"one that left, came back and left again", 300, 60, func(s *Schedule) {
			s.Looked(found(), at(0), at(0), 0)
			s.Left("a", at(10))
			s.Left("a", at(40)) // its return was not heard of
		}, 100},
		{"one that left is waited for once", 300, 60, func(s *Schedule) {
			s.Looked(found(), at(0), at(0), 0)
			s.Left("a", at(100))
			s.Looked(found(waits("a", 100)), at(120), at(120), 0)
			s.Returned("a")
		}, 420},
		{"what waited before is forgotten when it no longer does", 300, 60, func(s *Schedule) {
			s.Looked(found(waits("a", 0)), at(0), at(0), 0)
			s.Looked(found(), at(30), at(30), 0)
		}, 330},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := &Schedule{Interval: time.Duration(test.interval) * time.Second, Grace: time.Duration(test.grace) * time.Second}
			test.play(s)
			if got := s.Next(); !got.Equal(at(test.want)) {
				t.Errorf("next look at %v s, want %d", got.Sub(noon).Seconds(), test.want)
			}
		})
	}
}

// How many have left decides whether the Nodes are listed, which costs as much as asking for many.
func TestScheduleCountsWhoIsLeaving(t *testing.T) {
	s := &Schedule{Interval: 5 * time.Minute, Grace: time.Minute}
	expect := func(what string, want int) {
		t.Helper()
		if got := s.Leaving(); got != want {
			t.Errorf("%s: %d are leaving, want %d", what, got, want)
		}
	}
	expect("at first", 0)
	s.Left("a", noon)
	s.Left("a", noon)
	s.Left("b", noon.Add(2*time.Second))
	expect("two", 2)
	s.Returned("b")
	s.Returned("stranger")
	expect("one came back", 1)
	s.Left("c", noon.Add(30*time.Second))
	s.Looked(&TargetReport{State: OK}, noon.Add(time.Minute), noon.Add(time.Minute), 0)
	expect("the look a grace after one left, before the other's", 1)
	s.Looked(&TargetReport{State: OK}, noon.Add(90*time.Second), noon.Add(90*time.Second), 0)
	expect("the other's look", 0)
}

// A change starts the waiting again, and no more than that: a key that changed once and then never again goes in its time.
func TestAChangeIsNotHeldAgainstAKeyForEver(t *testing.T) {
	entry := func(raw string) *Resource {
		return &Resource{UID: "u1", Entries: []Entry{{Key: "a", Index: -1, Raw: []byte(raw)}, {Index: 1, Raw: []byte("nameless")}}}
	}
	nobody := func(string) Knowledge { return Knowledge{} }
	var c Candidates
	for i, look := range []struct {
		raw     string
		looks   int
		changed bool
	}{{"1", 1, false}, {"2", 1, true}, {"2", 2, false}, {"3", 1, true}, {"3", 2, false}, {"3", 3, false}} {
		now := noon.Add(time.Duration(i) * time.Minute)
		c = c.Look(entry(look.raw), nobody, now)
		got := c.Of("a")
		if got.Looks != look.looks || got.Changed != look.changed || got.Since != now.Add(-time.Duration(look.looks-1)*time.Minute) {
			t.Errorf("look %d: %+v, want %+v", i, got, look)
		}
		e := orphan()
		e.Candidate, e.Now, e.Node.At = got, now, now
		if d := Decide(e); (d.Verdict == Remove) != (look.looks > 1) || (d.Reason == Changed) != look.changed {
			t.Errorf("look %d: %s %s", i, d.Verdict, d.Reason)
		}
	}
	if c.Has("") {
		t.Error("an item without a name counts as a key")
	}
}
