package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNodeEntry(t *testing.T) {
	text := func(e NodeEntry) string {
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	if got, want := text(NewNodeEntry(nil, 3, "0123456789ab", noon, "u1")),
		`{"status":"Success","generation":3,"config":"0123456789ab","errors":"","timestamp":"`+noon.UTC().Format(time.RFC3339)+`","nodeUID":"u1"}`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got := text(NewNodeEntry(errors.New("on fire"), 3, "c", noon, "")); !strings.Contains(got, `"status":"Failure"`) ||
		!strings.Contains(got, `"errors":"on fire"`) || strings.Contains(got, "nodeUID") {
		t.Errorf("a failure is %s", got)
	}
	for _, long := range []string{strings.Repeat("x", 201), strings.Repeat("é", 150), strings.Repeat("世", 100), "a" + strings.Repeat("é", 150), strings.Repeat("a\xff", 150)} {
		got := NewNodeEntry(errors.New(long), 1, "c", noon, "").Errors
		if len(got) > 200 || len(got) < 195 || !utf8.ValidString(got) || !strings.HasSuffix(got, "…") {
			t.Errorf("%d bytes were cut to %d: %q", len(long), len(got), got)
		}
	}
	if fits := strings.Repeat("x", 200); NewNodeEntry(errors.New(fits), 1, "c", noon, "").Errors != fits {
		t.Error("what fits was cut")
	}
}

func TestSummary(t *testing.T) {
	finding := func(v Verdict, r Reason, removed bool) Finding {
		return Finding{Key: "k", Verdict: v, Reason: r, Removed: removed}
	}
	report := TargetReport{State: StateHeld, Message: "nothing is removed", Resources: []ResourceReport{
		{Removed: 2, Findings: []Finding{
			finding(Remove, NodeGone, true), finding(Remove, NodeGone, true), finding(Keep, MemberAlive, false), finding(Wait, Waiting, false),
		}},
		{Findings: []Finding{finding(Keep, Held, false), finding(Remove, NodeGone, false)}},
	}}
	got := Summary(&report, "node-1", noon)
	want := TargetStatus{
		State: StateHeld, Owner: "node-1", Keys: 4, Candidates: 2, Removed: 2, Held: 1, Message: "nothing is removed", LastSweep: metav1.NewTime(noon.UTC()),
	}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestSum(t *testing.T) {
	got := sum(map[string]TargetStatus{
		"ns/a": {State: OK, Owner: "node-1", Keys: 1, Candidates: 2, Removed: 3, Held: 4, LastSweep: metav1.NewTime(noon)},
		"ns/b": {State: Forbidden, Owner: "node-2", Keys: 10, Candidates: 20, Removed: 30, Held: 40, Message: "not allowed", LastSweep: metav1.NewTime(noon.Add(time.Hour))},
		"ns/c": {State: NotInstalled},
	})
	want := TargetStatus{State: Forbidden, Keys: 11, Candidates: 22, Removed: 33, Held: 44, Message: "not allowed", LastSweep: metav1.NewTime(noon.Add(time.Hour))}
	if got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestWhenATargetsEntryIsDue(t *testing.T) {
	written := TargetStatus{State: OK, Keys: 5, LastSweep: metav1.NewTime(noon)}
	later := written
	later.LastSweep = metav1.NewTime(noon.Add(time.Hour))
	more := written
	more.Keys = 6
	look := noon.Add(100 * time.Second)
	for _, test := range []struct {
		name  string
		entry targetEntry
		want  string // seconds after noon; at once
	}{
		{"never written", targetEntry{next: written}, "at once"},
		{"the same", targetEntry{next: written, written: &written, writtenAt: noon, lookAt: look}, "100"},
		{"only the time", targetEntry{next: later, written: &written, writtenAt: noon, lookAt: look}, "100"},
		{"a change", targetEntry{next: more, written: &written, writtenAt: noon, lookAt: look}, "60"},
		{"a removal that leaves the counts", targetEntry{next: later, removed: 1, written: &written, writtenAt: noon, lookAt: look}, "60"},
		{"somebody saw that it is not there", targetEntry{next: written, written: &written, writtenAt: noon, lookAt: look, anew: true}, "at once"},
		{"it could not be written", targetEntry{next: written, notBefore: noon.Add(5 * time.Second)}, "5"},
		{"nor changed", targetEntry{next: more, written: &written, writtenAt: noon, lookAt: look, notBefore: noon.Add(5 * time.Second)}, "60"},
	} {
		at := test.entry.due(time.Minute)
		got := fmt.Sprint(at.Sub(noon).Seconds())
		if at.Before(noon) {
			got = "at once"
		}
		if got != test.want {
			t.Errorf("%s: due %s, want %s", test.name, got, test.want)
		}
	}
}

func TestSurplus(t *testing.T) {
	entries := func(success, failure int) []Entry {
		var all []Entry
		for i := range success + failure {
			status := NodeSuccess
			if i >= success {
				status = NodeFailure
			}
			all = append(all, Entry{Key: fmt.Sprint("n", i), Index: -1, Raw: fmt.Appendf(nil, `{"status":%q}`, status)})
		}
		return append(all, Entry{Key: "odd", Index: -1, Raw: []byte(`"what is this?"`)})
	}
	for _, test := range []struct{ success, failure, agents, want int }{
		{3999, 0, 4000, 0},
		{3999, 0, 4001, 3999}, // one agent more has no room: those that succeeded go, all alike
		{4000, 0, 100, 4000},
		{100, 3900, 4001, 100},
		{10, 10, 20, 0},
	} {
		if got := len(surplus(entries(test.success, test.failure), test.agents)); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestNodesCompleteCondition(t *testing.T) {
	other := metav1.Condition{Type: "Other", Status: metav1.ConditionTrue}
	now := metav1.NewTime(noon)
	few, changed := nodesComplete([]metav1.Condition{other}, 10, now)
	if changed || len(few) != 1 {
		t.Errorf("few agents: %v", few)
	}
	many, changed := nodesComplete(few, 4001, now)
	if !changed || len(many) != 2 || many[0] != other || many[1].Status != metav1.ConditionFalse || many[1].Reason != "TooManyNodes" {
		t.Errorf("many agents: %v", many)
	}
	if _, changed := nodesComplete(many, 5000, now); changed {
		t.Error("the same again is a change")
	}
	fewer, changed := nodesComplete(many, 10, now)
	if !changed || len(fewer) != 2 || fewer[1].Status != metav1.ConditionTrue || many[1].Status != metav1.ConditionFalse {
		t.Errorf("fewer agents: %v, before %v", fewer, many)
	}
}
