package status

import (
	"testing"
	"time"
)

func TestCandidates(t *testing.T) {
	nobody := func(string) bool { return false }
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
		alive func(string) bool
		want  Candidate // of a; the zero value: none
	}{
		{"unchanged", resource("u1", entry("a", "1")), nobody, Candidate{Since: at(0), Looks: 2}},
		{"changed", resource("u1", entry("a", "2")), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"another entry at a second place", resource("u1", entry("a", "1"), Entry{Key: "a", Place: 1, Index: -1, Raw: []byte("1")}), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"moved to another place", resource("u1", Entry{Key: "a", Place: 1, Index: -1, Raw: []byte("1")}), nobody, Candidate{Since: at(9), Looks: 1, Changed: true}},
		{"another position in the list", resource("u1", Entry{Key: "a", Index: 7, Raw: []byte("1")}), nobody, Candidate{Since: at(0), Looks: 2}},
		{"gone", resource("u1", entry("b", "1")), nobody, Candidate{}},
		{"something speaks for it", resource("u1", entry("a", "1")), func(key string) bool { return key == "a" }, Candidate{}},
		{"another resource of the same name", resource("u2", entry("a", "1")), nobody, Candidate{Since: at(9), Looks: 1}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := first.Look(test.r, test.alive, at(9)).Of("a")
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
}
