//go:build linux && kernel

// The tests with the build tag kernel change the kernel's tables, each in a network namespace and below a pin directory of its own. They need root;
// `make test` runs them where it has that.

package dataplane

import (
	"bytes"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// newNetwork moves the test into a network namespace of its own. Nothing may be started in it on another goroutine that expects to be there too.
func newNetwork(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // never unlocked: the thread, and the namespace with it, ends with the test's goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v; tests with the tag kernel need root", err)
	}
}

// command runs a program in the test's network namespace, with that input.
func command(t testing.TB, input string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, complaints.String())
	}
	return out.String()
}

// readAll reads a table, sorted by what is told.
func readAll(t testing.TB, table Table, wanted *Addresses) []Entry {
	t.Helper()
	var entries []Entry
	if err := table.Read(t.Context(), wanted, func(e Entry) { entries = append(entries, e) }); err != nil {
		t.Fatalf("read: %v", err)
	}
	slices.SortFunc(entries, func(a, b Entry) int {
		return strings.Compare(a.Table+" "+a.Text, b.Table+" "+b.Text)
	})
	return entries
}

// texts are the entries as "table text".
func texts(entries []Entry) []string {
	var texts []string
	for _, e := range entries {
		texts = append(texts, e.Table+" "+e.Text)
	}
	return texts
}

func wantOutcomes(t testing.TB, got []Outcome, want ...Result) {
	t.Helper()
	var results []Result
	for _, o := range got {
		results = append(results, o.Result)
	}
	if !slices.Equal(results, want) {
		t.Errorf("the outcomes are %v, want %v (%v)", results, want, fmt.Sprint(got))
	}
}

// dropCapabilities takes all from this thread, for good: it must be one that ends with the test.
func dropCapabilities(t *testing.T) {
	t.Helper()
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&head, &none[0]); err != nil {
		t.Error(err)
	}
}

// newThreadWithoutCapabilities runs do on a thread that may do nothing, and that ends with it.
func newThreadWithoutCapabilities(t *testing.T, do func()) {
	t.Helper()
	var ended sync.WaitGroup
	ended.Go(func() {
		runtime.LockOSThread()
		dropCapabilities(t)
		if !t.Failed() {
			do()
		}
	})
	ended.Wait()
}
