package status

import (
	"testing"
	"time"
)

func TestCandidates(t *testing.T) {
	nobody := func(string) Knowledge { return Knowledge{} }
	member := func(string) Knowledge { return Knowledge{Member: true} }
	left := func(at time.Time) func(string) Knowledge {
		return func(string) Knowledge { return Knowledge{Left: at} }
	}
	resource := func(uid string, entries ...Entry) *Resource { return &Resource{UID: uid, Entries: entries} }
	entry := func(key, raw string) Entry { return Entry{Key: key, Index: -1, Raw: []byte(raw)} }
	at := func(seconds int) time.Time { return noon.Add(time.Duration(seconds) * time.Second) }

	var none Candidates
	first := none.Look(resource("u1", entry("a", "1"), entry("b", "1"), entry("", "1")), nobody, at(0))
	if got := first.Of("a"); got.Looks != 1 || got.Since != at(0) || got.Changed {
		t.Errorf("first look: %+v", got)
	}
	if len(first.byKey) != 2 {
		t.Errorf("an item without a name became a candidate: %+v", first.byKey)
	}

	for _, test := range []struct {
		name  string
		r     *Resource
		known func(string) Knowledge
		want  Candidate // of a; the zero value: none
	}{
		{"unchanged", resource("u1", entry("a", "1")), nobody, Candidate{Since: at(0), Looks: 2}},
		{"changed", resource("u1", entry("a", "2")), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"another entry at a second place", resource("u1", entry("a", "1"), Entry{Key: "a", Place: 1, Index: -1, Raw: []byte("1")}), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"moved to another place", resource("u1", Entry{Key: "a", Place: 1, Index: -1, Raw: []byte("1")}), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"another position in the list", resource("u1", Entry{Key: "a", Index: 7, Raw: []byte("1")}), nobody, Candidate{Since: at(0), Looks: 2}},
		{"gone", resource("u1", entry("b", "1")), nobody, Candidate{}},
		{"something speaks for it", resource("u1", entry("a", "1")), member, Candidate{}},
		{"another resource of the same name", resource("u2", entry("a", "1")), nobody, Candidate{Since: at(9), Looks: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := first.Look(test.r, test.known, at(9)).Of("a")
			got.print = fingerprint{}
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
	if got := first.Of("a"); got.Looks != 1 {
		t.Errorf("the earlier candidates changed: %+v", got)
	}
	// Seen, gone, and there again: it waits from the start.
	again := first.Look(resource("u1"), nobody, at(9)).Look(resource("u1", entry("a", "1")), nobody, at(18))
	if got := again.Of("a"); got.Looks != 1 || got.Since != at(18) {
		t.Errorf("a key that came back: %+v", got)
	}

	// Seen while something spoke for it, and then its agent left: it has been a candidate since then.
	alive := none.Look(resource("u1", entry("a", "1")), member, at(0))
	if !alive.Has("a") || alive.Has("b") || alive.Has("") {
		t.Error("the keys of the last look are not known")
	}
	for _, test := range []struct {
		name  string
		r     *Resource
		known func(string) Knowledge
		want  Candidate
	}{
		{"left since", resource("u1", entry("a", "1")), left(at(4)), Candidate{Since: at(4), Looks: 2}},
		{"left before that look", resource("u1", entry("a", "1")), left(at(-4)), Candidate{Since: at(9), Looks: 1}},
		{"nobody knows when", resource("u1", entry("a", "1")), nobody, Candidate{Since: at(9), Looks: 1}},
		{"and changed", resource("u1", entry("a", "2")), left(at(4)), Candidate{Since: at(9), Looks: 1}},
		{"another resource of the same name", resource("u2", entry("a", "1")), left(at(4)), Candidate{Since: at(9), Looks: 1}},
		{"a key that was not there", resource("u1", entry("b", "1")), left(at(4)), Candidate{}},
		{"it came back", resource("u1", entry("a", "1")), member, Candidate{}},
	} {
		t.Run("agent: "+test.name, func(t *testing.T) {
			got := alive.Look(test.r, test.known, at(9)).Of("a")
			got.print = fingerprint{}
			if got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}
