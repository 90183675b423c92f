package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"
)

// daemonEnv makes this test program a daemon that logs what the variable holds and goes on until it is killed.
const daemonEnv = "BENCH_TEST_DAEMON"

func TestMain(m *testing.M) {
	if log, ok := os.LookupEnv(daemonEnv); ok {
		fmt.Fprint(os.Stderr, log)
		end := make(chan os.Signal, 1)
		signal.Notify(end, os.Interrupt)
		<-end
		return
	}
	os.Exit(m.Run())
}

// startTestDaemon starts one and waits until it has logged all.
func startTestDaemon(t *testing.T, name, log string) *daemon {
	t.Helper()
	t.Setenv(daemonEnv, log)
	d, err := startDaemon(t.Context(), t.TempDir(), name, os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.kill)
	err = await(t.Context(), "the daemon has logged", time.Minute, 10*time.Millisecond, func() (bool, error) {
		text, err := os.ReadFile(d.log)
		return string(text) == log, errors.Join(err, d.running())
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

const ownsA = `{"msg":"owns","name":"a"}` + "\n"

func TestFleetOwner(t *testing.T) {
	a, idle := startTestDaemon(t, "one", ownsA), startTestDaemon(t, "two", `{"msg":"owns","name":"b"}`+"\n")
	second := startTestDaemon(t, "three", ownsA)
	for name, test := range map[string]struct {
		fleet fleet
		want  *daemon
	}{
		"one owner":   {fleet{idle, a}, a},
		"two owners":  {fleet{a, idle, second}, nil},
		"no owner":    {fleet{idle}, nil},
		"empty fleet": {nil, nil},
	} {
		if got, err := test.fleet.owner("a"); got != test.want || err != nil {
			t.Errorf("%s: %v, %v; want %v", name, got, err, test.want)
		}
	}
	f := fleet{a, idle}
	owners, err := f.awaitOwners(t.Context(), time.Millisecond, "a", "b")
	if err != nil || owners["a"] != a || owners["b"] != idle {
		t.Errorf("owners %v, %v", owners, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := (fleet{a, second}).awaitOwners(ended, time.Millisecond, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("two owners: error %v, want that waiting was interrupted", err)
	}
	f.kill()
	if _, err := f.owner("a"); err == nil || !strings.Contains(err.Error(), "one has ended") {
		t.Errorf("error %v, want that a daemon has ended", err)
	}
}

func TestDaemonEndsWithItsContext(t *testing.T) {
	t.Setenv(daemonEnv, "")
	ctx, cancel := context.WithCancel(t.Context())
	d, err := startDaemon(ctx, t.TempDir(), "one", os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	<-d.exited
}

func TestOwnsLast(t *testing.T) {
	for name, test := range map[string]struct {
		log  string
		want bool
	}{
		"empty":      {"", false},
		"owns":       {ownsA, true},
		"no longer":  {ownsA + `{"msg":"no longer owns","name":"a"}`, false},
		"again":      {ownsA + `{"msg":"no longer owns","name":"a"}` + "\n" + ownsA, true},
		"another":    {ownsA + `{"msg":"no longer owns","name":"b"}`, true},
		"other only": {`{"msg":"owns","name":"b"}`, false},
		"other line": {ownsA + "panic: x\n" + `{"msg":"removed","name":"a"}`, true},
		"cut":        {`{"msg":"owns","na`, false},
		"long line":  {`{"entry":"` + strings.Repeat("x", 200_000) + `"}` + "\n" + ownsA, true},
	} {
		if got, err := ownsLast(strings.NewReader(test.log), "a"); got != test.want || err != nil {
			t.Errorf("%s: %t, %v; want %t", name, got, err, test.want)
		}
	}
}

func TestAwait(t *testing.T) {
	calls := 0
	third := func() (bool, error) { calls++; return calls == 3, nil }
	if err := await(t.Context(), "x", time.Minute, time.Millisecond, third); err != nil || calls != 3 {
		t.Errorf("%v after %d calls, want none after 3", err, calls)
	}
	never := func() (bool, error) { return false, nil }
	if err := await(t.Context(), "it rains", time.Millisecond, time.Hour, never); err == nil || !strings.Contains(err.Error(), "it rains") {
		t.Errorf("error %v, want one that says what did not come", err)
	}
	broken := errors.New("broken")
	if err := await(t.Context(), "x", time.Minute, time.Hour, func() (bool, error) { return false, broken }); !errors.Is(err, broken) {
		t.Errorf("error %v, want the check's own", err)
	}
}
