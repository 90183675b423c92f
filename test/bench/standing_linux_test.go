package main

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " S 1 10 10 0 -1 4194560 1000 0 3 0 120 35 0 0 20 0 9 0 5000 1300000000 6000 18446744073709551615 1 1 0 0 0\n"
	for name, test := range map[string]struct {
		stat string
		want usage
		ok   bool
	}{
		"plain":         {"10 (unstale)" + rest, usage{cpu: 1550 * time.Millisecond, memory: 6000 * 4096}, true},
		"odd name":      {"10 (a) S (b c)" + rest, usage{cpu: 1550 * time.Millisecond, memory: 6000 * 4096}, true},
		"cut":           {"10 (unstale) S 1 10", usage{}, false},
		"not a process": {"", usage{}, false},
		"not a number":  {"10 (unstale) S 1 10 10 0 -1 4194560 1000 0 3 0 x 35 0 0 20 0 9 0 5000 1300000000 6000\n", usage{}, false},
	} {
		if got, ok := parseStat([]byte(test.stat), 4096); got != test.want || ok != test.ok {
			t.Errorf("%s: %+v, %t; want %+v, %t", name, got, ok, test.want, test.ok)
		}
	}
}

func TestStandingOfThisProcess(t *testing.T) {
	u, ok := standing(os.Getpid())
	if !ok || u.memory < 1<<20 || u.cpu < 0 {
		t.Errorf("%+v, %t", u, ok)
	}
	if _, ok := standing(1 << 30); ok {
		t.Error("a process that there is not has a usage")
	}
}
