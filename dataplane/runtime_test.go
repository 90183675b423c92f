package dataplane

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// onRuntimeScene plays a test of an agent that asks a container runtime.
func onRuntimeScene(t *testing.T, targets string, do func(s *scene, r *fakeRuntime)) {
	t.Helper()
	onScene(t, targets, func(s *scene) {
		s.runtime = &fakeRuntime{}
		s.runtime.has()
		s.see("Z host run 192.168.0.1") // so that the runtime is shown to be this node's
		s.configure()
		s.wait(time.Second)
		do(s, s.runtime)
	})
}

// A pod that was deleted by force is done with when its sandbox is, not when it surely must be.
func TestRuntimeTellsThatContainersEnded(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1")
		r.has("A 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.gone("A")
		s.wait(10 * time.Second)
		s.said("t", "10.0.0.1", "Wait StillRuns")
		r.has("B 10.0.0.2") // it ends 10 s after the deletion
		s.wait(2 * time.Second)
		s.said("t", "10.0.0.1", "Remove PodGone, removed")
		s.holds("t", "")
	})
}

// While containers of a pod that is gone may run, an entry of theirs may come: it is not forgotten before.
func TestRuntimeLateEntry(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1")
		r.has("A 10.0.0.1")
		s.gone("A")
		s.wait(15 * time.Second)
		s.tables["t"].put("10.0.0.1")
		r.has()
		s.wait(45 * time.Second)
		s.holds("t", "")
		s.lost("A 10.0.0.1")
		s.wait(10 * time.Second)
		s.lost("")
	})
}

// The questions become rarer while a sandbox is not gone, and its address protects its entries for as long as it has it.
func TestRuntimeHasTheAddress(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1")
		r.has("A 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.gone("A")
		s.wait(9 * time.Second)
		s.passes()
		s.wait(time.Minute)
		if got := s.passes(); got != "11s 13s 17s 25s 41s" {
			t.Errorf("passes at %s", got)
		}
		s.said("t", "10.0.0.1", "Wait StillRuns")
		s.wait(5 * time.Minute)
		f := s.said("t", "10.0.0.1", "Keep SandboxHas")
		if want := "by the container runtime a sandbox of pod ns/a has the address"; f.Message != want {
			t.Errorf("%q, want %q", f.Message, want)
		}
		s.holds("t", "10.0.0.1")
		r.has("A ended 10.0.0.1")
		s.wait(5 * time.Minute)
		f = s.said("t", "10.0.0.1", "Keep SandboxHas")
		if want := "by the container runtime a sandbox of pod ns/a, which has ended, but its network was not taken down, has the address"; f.Message != want {
			t.Errorf("%q, want %q", f.Message, want)
		}
		r.has()
		s.wait(5 * time.Minute)
		s.holds("t", "")
	})
}

// Who has an address by the runtime's word has it, whatever the API server says: its own pod, which shows no address for a while or whose sandbox is
// said to be lost, and another one, which the API server does not know yet.
func TestRuntimeClaims(t *testing.T) {
	for name, test := range map[string]struct{ then, sandbox string }{
		"the pod shows no address":              {"A run", "A 10.0.0.1"},
		"the pod's sandbox is said to be lost":  {"A run 10.0.0.1 sandboxlost", "A 10.0.0.1"},
		"the pod has ended, its sandbox not":    {"A succeeded 10.0.0.1", "A 10.0.0.1"},
		"another pod got it":                    {"A run", "B 10.0.0.1"},
		"another pod got it as a second one":    {"A run", "B fd00::9 10.0.0.1"},
		"a static pod, which has another's UID": {"", "0123 10.0.0.1"},
	} {
		t.Run(name, func(t *testing.T) {
			onRuntimeScene(t, "t scrub", func(s *scene, r *fakeRuntime) {
				s.see("A run 10.0.0.1")
				s.tables["t"].put("10.0.0.1")
				r.has(test.sandbox)
				if test.then == "" {
					s.gone("A")
				} else {
					s.see(test.then)
				}
				s.wait(time.Hour)
				s.said("t", "10.0.0.1", "Keep SandboxHas")
				r.has("C 10.0.0.3")
				s.wait(time.Hour)
				s.holds("t", "")
			})
		})
	}
}

// A runtime that does not answer means that nothing goes, and that the API server is not asked either. A look that needs no answer asks nobody.
func TestRuntimeDoesNotAnswer(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1", "B run 10.0.0.2")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		r.fail(errors.New("it sleeps"))
		s.asked()
		s.see("A run")
		s.wait(time.Hour)
		f := s.said("t", "10.0.0.1", "Keep Unconfirmed")
		if f.Message != "cannot confirm that nobody has the address: it sleeps" {
			t.Error(f.Message)
		}
		if got := s.asked(); got != "" {
			t.Errorf("the API server was asked: %s", got)
		}
		r.fail(nil)
		s.wait(10 * time.Minute)
		s.holds("t", "10.0.0.2")
		asked := r.asked
		s.wait(time.Hour)
		if r.asked != asked {
			t.Error("the runtime is asked though nothing is lost")
		}
	})
}

// The runtime of somebody else, as of a Docker beside, has none of the node's pods: that it has no sandbox means nothing.
func TestRuntimeOfSomebodyElse(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1", "B run 10.0.0.2")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		r.mu.Lock()
		r.sandboxes = nil
		r.mu.Unlock()
		s.gone("A")
		s.wait(10 * time.Second)
		f := s.said("t", "10.0.0.1", "Keep Unconfirmed")
		if want := "cannot confirm that nobody has the address: the container runtime has none of the 2 pods that run on this node; is kernel.runtimeEndpoint that of the kubelet?"; f.Message != want {
			t.Errorf("%q, want %q", f.Message, want)
		}
		s.gone("B", "Z") // nothing runs here: nothing shows whose runtime it is
		s.wait(40 * time.Second)
		s.holds("t", "10.0.0.1 10.0.0.2")
		s.wait(2 * time.Minute)
		s.holds("t", "")
	})
}

// The runtime is asked again after a removal, and what it then says counts.
func TestRuntimeIsAskedAgain(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.tables["t"].removed = func(context.Context) error { r.has("B 10.0.0.1"); return nil }
		s.see("A run")
		s.wait(10 * time.Second)
		s.said("t", "10.0.0.1", "Keep SandboxHas")
		s.holds("t", "10.0.0.1")
	})
}

// A configuration without a runtime is as before: the time that containers may take counts.
func TestRuntimeIsConfiguredAway(t *testing.T) {
	onRuntimeScene(t, "", func(s *scene, r *fakeRuntime) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.gone("A")
		s.wait(5 * time.Second)
		s.runtime = nil
		s.configure()
		s.wait(24 * time.Second)
		s.said("t", "10.0.0.1", "Wait MayStillRun")
		s.runtime = r
		s.configure()
		s.wait(time.Second)
		s.holds("t", "")
	})
}

// A plan asks the runtime as the agent does.
func TestPlanAsksTheRuntime(t *testing.T) {
	r := &fakeRuntime{}
	table := newMemTable(t, "t")
	table.put("10.0.0.1", "10.0.0.2")
	journal := Journal{Pods: []JournalPod{{PodRef: PodRef{"ns", "a", "A"}, Addresses: []netip.Addr{addr("10.0.0.1"), addr("10.0.0.2")}}}}
	host := func() (HostState, error) { return HostState{}, nil }
	plan := func() (reasons []Reason) {
		reports := Plan(t.Context(), []Target{{Name: "t", Table: table, Scope: ScopeNode}}, journal, &Snapshot{Node: []Pod{podOfWords("Z", []string{"host", "run"})}, Runtime: r}, host, time.Second, noon)
		for _, f := range reports[0].Findings {
			reasons = append(reasons, f.Reason)
		}
		return reasons
	}
	r.has("B 10.0.0.1")
	if got := plan(); len(got) != 2 || got[0] != SandboxHas || got[1] != PodGone {
		t.Errorf("%v", got)
	}
	r.fail(errors.New("it sleeps"))
	if got := plan(); len(got) != 2 || got[0] != Unconfirmed || got[1] != Unconfirmed {
		t.Errorf("%v", got)
	}
}

// A dump tells what the runtime knows better, and that it did not answer.
func TestDumpAsksTheRuntime(t *testing.T) {
	r := &fakeRuntime{}
	r.has("A 10.0.0.1", "B 10.0.0.2", "C 10.0.0.3")
	table := newMemTable(t, "t")
	table.put("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
	journal := Journal{Pods: []JournalPod{{PodRef: PodRef{"ns", "x", "X"}, Addresses: []netip.Addr{addr("10.0.0.2"), addr("10.0.0.4")}}}}
	pods := &Snapshot{Node: []Pod{podOfWords("A", []string{"run", "10.0.0.1"})}, Runtime: r}
	host := HostState{Addresses: map[netip.Addr]string{addr("10.0.0.3"): "eth0"}}
	dump := func() (owners string, reports []TargetReport) {
		reports = Dump(t.Context(), []Target{{Name: "t", Table: table}}, journal, pods, host, func(_ string, e Entry, owner string) {
			owners += e.Text + ": " + owner + "\n"
		})
		return owners, reports
	}
	owners, reports := dump()
	want := "10.0.0.1: pod ns/a\n10.0.0.2: pod ns/b, by the container runtime\n10.0.0.3: this node, interface eth0\n10.0.0.4: nobody; pod ns/x had it\n"
	if owners != want || len(reports) != 1 {
		t.Errorf("got\n%s%v", owners, reports)
	}
	r.fail(errors.New("it sleeps"))
	owners, reports = dump()
	if len(reports) != 2 || reports[0].Target != "container runtime" || reports[0].State != StateUnavailable || reports[0].Message != "it sleeps" {
		t.Errorf("%v", reports)
	}
	if want := strings.Replace(want, "pod ns/b, by the container runtime", "nobody; pod ns/x had it", 1); owners != want {
		t.Errorf("got\n%s", owners)
	}
}
