package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

func TestMedian(t *testing.T) {
	for _, test := range []struct {
		values samples
		want   float64
	}{
		{nil, 0},
		{samples{7}, 7},
		{samples{9, 1, 5}, 5},
		{samples{4, 1, 3, 2}, 2.5},
	} {
		before := append(samples{}, test.values...)
		if got := test.values.median(); got != test.want {
			t.Errorf("median of %v: %v, want %v", before, got, test.want)
		}
		for i := range before {
			if before[i] != test.values[i] {
				t.Fatalf("the median reordered %v to %v", before, test.values)
			}
		}
	}
}

func TestRatioAndGoal(t *testing.T) {
	beside := func(v ...float64) *contrast { return &contrast{"another", v} }
	for name, test := range map[string]struct {
		figure figure
		ratio  float64 // 0: none
		goal   string
		met    bool
	}{
		"nothing beside":                {figure{values: samples{3}}, 0, "", false},
		"zero beside":                   {figure{values: samples{3}, beside: beside(0)}, 0, "", false},
		"medians":                       {figure{values: samples{1, 3, 100}, beside: beside(12, 1, 99)}, 0.25, "", false},
		"a goal that is met":            {figure{values: samples{6}, beside: beside(5), atMost: 1.2}, 1.2, "<= 1.2x", true},
		"a goal that is missed":         {figure{values: samples{7}, beside: beside(5), atMost: 1.2}, 1.4, "<= 1.2x", false},
		"a goal with nothing beside it": {figure{values: samples{7}, atMost: 2}, 0, "<= 2x", false},
	} {
		t.Run(name, func(t *testing.T) {
			ratio, ok := test.figure.ratio()
			if ok != (test.ratio != 0) || math.Abs(ratio-test.ratio) > 1e-9 {
				t.Errorf("ratio %v, %t; want %v", ratio, ok, test.ratio)
			}
			if goal, met := test.figure.goal(); goal != test.goal || met != test.met {
				t.Errorf("goal %q, met %t; want %q, %t", goal, met, test.goal, test.met)
			}
		})
	}
}

func TestPer(t *testing.T) {
	runs := []measurement{
		{usage: usage{wall: 3 * time.Second}},
		{usage: usage{wall: 6 * time.Second}},
	}
	if got := per(3000, runs, wallMillis); len(got) != 2 || got[0] != 1 || got[1] != 2 {
		t.Errorf("%v, want [1 2]", got)
	}
}

func TestUsageOfSeveralProcesses(t *testing.T) {
	got := usage{wall: 1, cpu: 2, memory: 3}.plus(usage{wall: 10, cpu: 20, memory: 2})
	if want := (usage{wall: 11, cpu: 22, memory: 3}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestSignificant(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 5000: "5000", 12345: "12345", 1234.5: "1230", 12.345: "12.3", 0.012345: "0.0123", 0.9996: "1", 2.5: "2.5",
	} {
		if got := significant(v); got != want {
			t.Errorf("significant(%v): %s, want %s", v, got, want)
		}
	}
}

var someFigures = []figure{
	{name: "a/requests/GET nodes", unit: "requests", values: samples{3006, 3006, 3006}},
	{name: "a/time", unit: "ms", values: samples{9.5, 9.123456789, 11}, beside: &contrast{"kubectl <patch>", samples{190}}},
	{name: "a/memory", unit: "bytes", values: samples{41_234_567}, beside: &contrast{"another", samples{40_000_000}}, atMost: 1.2},
}

func TestJSON(t *testing.T) {
	got, err := encodeJSON(someFigures)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "figures.json", got)
	if got, err = encodeJSON(nil); err != nil || strings.TrimSpace(string(got)) != "[]" {
		t.Errorf("no figures: %s, %v; want an empty list", got, err)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := printTable(&b, someFigures); err != nil {
		t.Fatal(err)
	}
	golden(t, "table.txt", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s\n(go test -update writes it)", got, want)
	}
}

func TestChoose(t *testing.T) {
	all := []benchmark{{name: "one"}, {name: "long", slow: true}, {name: "two"}}
	for _, test := range []struct {
		names     []string
		want, err string
	}{
		{nil, "one two", ""},
		{[]string{"long"}, "long", ""},
		{[]string{"two", "one"}, "two one", ""},
		{[]string{"one", "three"}, "", `there is no benchmark "three"; there are one, long, two`},
	} {
		chosen, err := choose(all, test.names)
		var names []string
		for _, b := range chosen {
			names = append(names, b.name)
		}
		if got := strings.Join(names, " "); got != test.want {
			t.Errorf("%q: %s, want %s", test.names, got, test.want)
		}
		if (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
			t.Errorf("%q: error %v, want %q", test.names, err, test.err)
		}
	}
}

func TestCommandLine(t *testing.T) {
	for name, test := range map[string]struct {
		b      string // environment
		args   []string
		code   int
		output string // part of it
	}{
		"list":                  {"", []string{"-list"}, exitDone, "keys-kubectl-full"},
		"unknown argument":      {"", []string{"nonsense"}, exitUsage, `"nonsense"; there are keys, `},
		"unknown in -run":       {"", []string{"-run", "plan,nonsense"}, exitUsage, `"nonsense"`},
		"unknown in B":          {"nonsense", nil, exitUsage, `"nonsense"`},
		"unknown flag":          {"", []string{"-nonsense"}, exitUsage, "-nonsense"},
		"too few runs":          {"", []string{"-runs", "0"}, exitUsage, "-runs is 0"},
		"no program to measure": {"", []string{"-unstale", "/nonexistent/unstale"}, exitFailed, "find the unstale to measure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("B", test.b)
			var b bytes.Buffer
			if code := run(t.Context(), test.args, &b, &b); code != test.code || !strings.Contains(b.String(), test.output) {
				t.Errorf("exit status %d, output %q; want %d and %q", code, b.String(), test.code, test.output)
			}
		})
	}
}

// An entry takes about 126 bytes of the resource, as was seen of the plugin's.
func TestEntriesHaveTheRightSize(t *testing.T) {
	text, err := json.Marshal(map[string]any{nodeName(0): entry(), nodeName(keysEntries): entry()})
	if err != nil {
		t.Fatal(err)
	}
	if each := (len(text) - 1) / 2; each != 126 {
		t.Errorf("an entry takes %d bytes, want 126", each)
	}
}

func TestNodesHaveTheRightSize(t *testing.T) {
	for _, i := range []int{0, planNodes - 1} {
		text, err := json.Marshal(newNode(i, nodeName(i)))
		if err != nil {
			t.Fatal(err)
		}
		if len(text) < 5_000 || len(text) > 8_000 {
			t.Errorf("Node %d takes %d bytes, want 5 to 8 KB", i, len(text))
		}
	}
}
