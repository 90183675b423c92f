package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
)

// A pod runs, and then without its address: its entries go one grace later, and all else stays as it was.
func TestScrubAfterTheGrace(t *testing.T) {
	onScene(t, "t, other, report report", func(s *scene) {
		s.see("A run 10.0.0.1 fd00::1", "B run 10.0.0.2")
		for _, m := range s.tables {
			m.put("10.0.0.1", "10.0.0.1,tcp:80", "10.0.0.2", "10.0.0.3", "192.168.0.1", "fd00::1")
			m.networks["10.0.0.0/24"] = true
		}
		before := s.tables["report"].String()
		s.wait(time.Hour)
		s.holds("t", "10.0.0.1 10.0.0.1,tcp:80 10.0.0.2 10.0.0.3 192.168.0.1 fd00::1")

		s.see("A run fd00::1")
		s.passes()
		s.wait(10*time.Second - 1)
		s.holds("t", "10.0.0.1 10.0.0.1,tcp:80 10.0.0.2 10.0.0.3 192.168.0.1 fd00::1")
		s.wait(1)
		s.holds("t", "10.0.0.2 10.0.0.3 192.168.0.1 fd00::1")
		want := "t 10.0.0.2 = v1\nt 10.0.0.3 = v1\nt 192.168.0.1 = v1\nt fd00::1 = v1\nt 10.0.0.0/24 (a network)\n"
		if got := s.tables["t"].String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
		s.holds("other", "10.0.0.2 10.0.0.3 192.168.0.1 fd00::1")
		if got := s.tables["report"].String(); got != before {
			t.Errorf("got\n%swant\n%s", got, before)
		}
		f := s.said("t", "10.0.0.1", "Remove AddressLost, removed")
		if f.Pod.UID != "A" || !f.Since.Equal(time.Now().Add(-10*time.Second)) {
			t.Errorf("%+v", f)
		}
		s.said("report", "10.0.0.1,tcp:80", "Remove AddressLost")
		if got := s.removals(); got != "t 10.0.0.1, t 10.0.0.1,tcp:80, other 10.0.0.1, other 10.0.0.1,tcp:80" {
			t.Error(got)
		}
		if got := s.passes(); got != "1h0m10s" {
			t.Errorf("passes at %s", got)
		}
	})
}

// When nothing is left, nothing is looked at but now and then, whether the tables are there.
func TestScrubEnds(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.wait(time.Minute)
		s.gone("A")
		s.lost("A 10.0.0.1")
		s.passes()
		s.wait(time.Minute)
		s.holds("t", "")
		s.lost("A 10.0.0.1") // for as long as somebody may add it again
		s.wait(10 * time.Second)
		s.lost("")
		s.wait(30 * time.Minute)
		if got := s.passes(); got != "2m0s 2m10s 7m10s 12m10s 17m10s 22m10s 27m10s 32m10s" {
			t.Errorf("passes at %s", got)
		}
		s.asked()
		s.wait(time.Hour)
		if got := s.asked(); got != "" {
			t.Errorf("asked without need: %s", got)
		}
		if len(s.owners.pods) != 0 || len(s.agenda.entries) != 0 {
			t.Errorf("kept: %v, %v", s.owners.pods, s.agenda.entries)
		}
	})
}

// The address is empty for less than the grace: nothing happens.
func TestScrubAddressBackInTime(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		for range 20 {
			s.see("A run")
			s.wait(9 * time.Second)
			s.see("A run 10.0.0.1")
			s.wait(9 * time.Second)
		}
		s.holds("t", "10.0.0.1")
		s.lost("")
		if got := s.removals(); got != "" {
			t.Error(got)
		}
	})
}

// Deleted by force, a pod may run on: its entries stay for its grace period and 30 s, or until its containers were seen ended.
func TestScrubDeletedByForce(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run grace=45s 10.0.0.1", "B run grace=45s 10.0.0.2")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.see("B run stopped terminating grace=45s 10.0.0.2")
		s.gone("A", "B")
		s.wait(10 * time.Second)
		s.holds("t", "10.0.0.1")
		s.wait(65*time.Second - 1)
		s.holds("t", "10.0.0.1")
		s.wait(1)
		s.holds("t", "")
	})
}

// A lost sandbox is told of at once. Its entries go only where the target says so, and only if it stays lost.
func TestScrubSandboxLost(t *testing.T) {
	onScene(t, "t, scrub scrub, both scrub report", func(s *scene) {
		s.see("A run 10.0.0.1", "B run 10.0.0.2", "C run 10.0.0.3")
		for _, m := range s.tables {
			m.put("10.0.0.1", "10.0.0.2", "10.0.0.3")
		}
		s.wait(time.Minute)
		s.passes()
		s.see("A run sandboxlost 10.0.0.1", "B run sandboxlost 10.0.0.2", "C run sandboxlost 10.0.0.3")
		synctest.Wait()
		if got := s.passes(); got != "1m0s" {
			t.Errorf("passes at %s", got)
		}
		if got := s.asked(); got != "" {
			t.Errorf("asked without need: %s", got)
		}
		s.said("t", "10.0.0.1", "Keep SandboxLost")
		s.said("scrub", "10.0.0.1", "Wait SandboxLost")
		s.said("both", "10.0.0.1", "Wait SandboxLost")
		s.wait(5 * time.Second)
		s.see("B run 10.0.0.2")
		s.inAPI("C run 10.0.0.3") // it is back, and the news are late
		s.wait(5*time.Second - 1)
		s.holds("scrub", "10.0.0.1 10.0.0.2 10.0.0.3")
		s.wait(1)
		s.holds("scrub", "10.0.0.2 10.0.0.3")
		s.said("scrub", "10.0.0.1", "Remove SandboxLost, removed")
		s.said("scrub", "10.0.0.3", "Keep PodHasAddress")
		s.said("both", "10.0.0.1", "Remove SandboxLost")
		s.holds("t", "10.0.0.1 10.0.0.2 10.0.0.3")
		s.holds("both", "10.0.0.1 10.0.0.2 10.0.0.3")
		s.see("C run 10.0.0.3")
		s.wait(time.Hour)
		s.holds("scrub", "10.0.0.2 10.0.0.3")
		s.lost("A 10.0.0.1") // still in doubt
		s.see("A run 10.0.0.1")
		s.lost("")
	})
}

// A pod whose sandbox is lost does not speak against the word of another.
func TestScrubSandboxLostOfTwo(t *testing.T) {
	onScene(t, "t scrub", func(s *scene) {
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.see("A run sandboxlost 10.0.0.1", "C run sandboxlost 10.0.0.2", "D run sandboxlost 10.0.0.2")
		s.inAPI("B run sandboxlost 10.0.0.1") // not heard of yet
		s.wait(10 * time.Second)
		s.said("t", "10.0.0.1", "Keep PodHasAddress")
		s.said("t", "10.0.0.2", "Remove SandboxLost, removed") // of both it is known for long enough
		s.holds("t", "10.0.0.1")
	})
}

// In a table of the whole cluster the pod itself, which the API server finds by its address, does not keep its entries either.
func TestScrubSandboxLostInCluster(t *testing.T) {
	onScene(t, "t cluster scrub", func(s *scene) {
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.see("A run sandboxlost 10.0.0.1", "B run sandboxlost 10.0.0.2")
		s.there("X run sandboxlost 10.0.0.2")
		s.wait(10 * time.Second)
		s.said("t", "10.0.0.1", "Remove SandboxLost, removed")
		s.said("t", "10.0.0.2", "Keep UsedElsewhere")
		s.holds("t", "10.0.0.2")
	})
}

// A limit of addresses, not of entries, and those that are due the longest first, a second between passes, so that somebody may stop it.
func TestScrubInBatches(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.limit = 3
		s.configure()
		for i := range 8 {
			p := fmt.Sprintf("P%d run 10.0.0.%d", i, i+1)
			s.see(p)
			s.tables["t"].put(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("10.0.0.%d,tcp:80", i+1))
		}
		s.wait(time.Minute)
		s.passes()
		for i := range 8 {
			s.see(fmt.Sprintf("P%d run", i))
		}
		s.wait(10 * time.Second)
		s.holds("t", "10.0.0.4 10.0.0.4,tcp:80 10.0.0.5 10.0.0.5,tcp:80 10.0.0.6 10.0.0.6,tcp:80 10.0.0.7 10.0.0.7,tcp:80 10.0.0.8 10.0.0.8,tcp:80")
		s.wait(time.Second - 1)
		s.holds("t", "10.0.0.4 10.0.0.4,tcp:80 10.0.0.5 10.0.0.5,tcp:80 10.0.0.6 10.0.0.6,tcp:80 10.0.0.7 10.0.0.7,tcp:80 10.0.0.8 10.0.0.8,tcp:80")
		s.wait(1)
		s.holds("t", "10.0.0.7 10.0.0.7,tcp:80 10.0.0.8 10.0.0.8,tcp:80")
		s.wait(time.Second)
		s.holds("t", "")
		s.wait(time.Minute)
		if got := s.passes(); got != "1m10s 1m11s 1m12s 1m20s 1m21s 1m22s" {
			t.Errorf("passes at %s", got)
		}
		s.lost("")
	})
}

// Report does all but the removal. Turning to Enforce removes, turning back stops.
func TestScrubModes(t *testing.T) {
	onScene(t, "t report", func(s *scene) {
		s.see("A run 10.0.0.1", "B run 10.0.0.2")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.gone("A")
		s.wait(2 * time.Minute)
		s.holds("t", "10.0.0.1 10.0.0.2")
		s.said("t", "10.0.0.1", "Remove PodGone")
		if got := s.removals(); got != "" {
			t.Errorf("logged as removed: %s", got)
		}
		s.passes()
		s.wait(15 * time.Minute)
		if got := strings.Count(s.passes(), " "); got != 2 {
			t.Errorf("%d passes", got+1)
		}
		s.targets[0].Enforce = true
		s.configure()
		synctest.Wait()
		s.holds("t", "10.0.0.2")
		s.gone("B")
		s.wait(59 * time.Second)
		s.targets = []Target{s.targets[0]}
		s.targets[0].Enforce = false
		s.configure()
		s.wait(time.Hour)
		s.holds("t", "10.0.0.2")
	})
}

// Whether the tables are there is looked at when the configuration is another, and now and then, whatever else there is to do.
func TestScrubChecks(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.wait(time.Minute)
		s.configure()
		s.wait(time.Second)
		if got := s.passes(); got != "0s 1m0s" {
			t.Errorf("passes at %s", got)
		}
		s.see("A run grace=1h 10.0.0.1")
		s.gone("A") // it may run for an hour more
		s.wait(11 * time.Minute)
		if got := s.passes(); got != "6m0s 11m0s" {
			t.Errorf("passes at %s", got)
		}
	})
}

// Another grace counts from now on, also for what has been lost; without targets nothing is looked at.
func TestScrubConfiguredAnew(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1", "B run 10.0.0.2", "C run 10.0.0.3")
		s.tables["t"].put("10.0.0.1", "10.0.0.2", "10.0.0.3")
		s.see("A run")
		s.wait(5 * time.Second)
		s.grace = 20 * time.Second
		s.configure()
		s.wait(15*time.Second - 1)
		s.holds("t", "10.0.0.1 10.0.0.2 10.0.0.3")
		s.wait(1)
		s.holds("t", "10.0.0.2 10.0.0.3")
		s.see("B run")
		s.wait(5 * time.Second)
		s.grace = 2 * time.Second
		s.configure()
		synctest.Wait()
		s.holds("t", "10.0.0.3")
		s.see("C run")
		s.Configure(nil, s.grace, s.limit, nil)
		s.passes()
		s.wait(time.Hour)
		s.holds("t", "10.0.0.3")
		if got := s.passes(); got != "" {
			t.Errorf("passes at %s", got)
		}
		s.configure()
		synctest.Wait()
		s.holds("t", "")
	})
}

// Why an entry stays at the moment of acting, though the Scrubber was told of nothing that speaks for it. In each case pod A has lost 10.0.0.1.
func TestScrubKeeps(t *testing.T) {
	onFire := errors.New("on fire")
	for _, test := range []struct {
		name    string
		target  string
		with    func(*scene)
		said    string
		message string
		ends    func(*scene) // so that it goes; nil: the release ends, and the entry stays
	}{
		{"a pod has the address", "t", func(s *scene) { s.inAPI("B run 10.0.0.1") }, "Keep PodHasAddress", "ns/b", nil},
		{"a pod has it as its second", "t", func(s *scene) { s.inAPI("B run fd00::1 10.0.0.1") }, "Keep PodHasAddress", "ns/b", nil},
		{"a pod that has not started has it", "t", func(s *scene) { s.inAPI("B pending 10.0.0.1") }, "Keep PodHasAddress", "ns/b", nil},
		{"a pod with a lost sandbox has it", "t scrub", func(s *scene) { s.inAPI("B run sandboxlost 10.0.0.1") }, "Keep PodHasAddress", "ns/b", nil},
		{"the pod itself has it again", "t", func(s *scene) { s.inAPI("A run 10.0.0.1") }, "Keep PodHasAddress", "ns/a", nil},
		{"the pod itself has it again, and its sandbox is lost", "t scrub", func(s *scene) { s.inAPI("A run sandboxlost 10.0.0.1") }, "Keep PodHasAddress", "ns/a", nil},
		{"the pod was seen with it, though the API server does not have it", "t", func(s *scene) { s.Saw(podOfWords("B", strings.Fields("run 10.0.0.1"))) }, "Keep PodHasAddress", "ns/b", nil},
		{"an annotation has it", "t", func(s *scene) { s.inAPI("B run note=10.0.0.1") }, "Keep Annotated", "ns/b", func(s *scene) { s.inAPI("B run") }},
		{"its own annotation has it", "t", func(s *scene) { s.inAPI("A run note=10.0.0.1") }, "Keep Annotated", "ns/a", func(s *scene) { s.inAPI("A run") }},
		{"an annotation of a pod that was seen has it", "t", func(s *scene) { s.Saw(podOfWords("B", strings.Fields("pending note=10.0.0.1"))) }, "Keep Annotated", "ns/b", func(s *scene) { s.Gone("B") }},
		{"the node has it", "t", func(s *scene) { s.setHost(func(h *HostState) { h.Addresses[addr("10.0.0.1")] = "eth1" }, nil) }, "Keep HostAddress", "eth1", nil},
		{"the node has it, and the entry's interface is gone", "t", func(s *scene) {
			s.setHost(func(h *HostState) { h.Addresses[addr("10.0.0.1")] = "eth1" }, nil)
			s.tables["t"].add(withInterface(9))
		}, "Keep HostAddress", "eth1", nil},
		{"the entry's interface exists", "t", func(s *scene) { s.tables["t"].add(withInterface(2)) }, "Keep InterfaceExists", "interface 2", func(s *scene) {
			s.setHost(func(h *HostState) { delete(h.Interfaces, 2) }, nil)
		}},
		{"the entry's interface exists, and a pod has the address", "t", func(s *scene) {
			s.tables["t"].add(withInterface(2))
			s.inAPI("B run 10.0.0.1")
		}, "Keep PodHasAddress", "ns/b", nil},
		{"the entry is protected", "t", func(s *scene) {
			e := entryOf("t", "10.0.0.1")
			e.Protected = "its flags say host"
			s.tables["t"].add(e)
		}, "Keep Protected", "its flags say host", nil},
		{"the entry is another's, who talked to the address", "t", func(s *scene) {
			e := entryOf("t", "10.0.0.1")
			e.Peer = true
			s.tables["t"].add(e)
		}, "Keep PeerOnly", "", nil},
		{"a pod of another node has it", "t cluster", func(s *scene) { s.there("X run 10.0.0.1") }, "Keep UsedElsewhere", "ns/x", nil},
		{"a pod with another node's network has it", "t cluster", func(s *scene) { s.there("X host run 10.0.0.1") }, "Keep UsedElsewhere", "ns/x", nil},
		{"the API server does not answer", "t", func(s *scene) { s.fail(onFire) }, "Keep Unconfirmed", "on fire", func(s *scene) { s.fail(nil) }},
		{"the API server does not answer for a table of the whole cluster", "t cluster", func(s *scene) { s.fail(onFire) }, "Keep Unconfirmed", "on fire", func(s *scene) { s.fail(nil) }},
		{"the API server does not answer for that address", "t cluster", func(s *scene) { s.api.errWith[addr("10.0.0.1")] = onFire }, "Keep Unconfirmed", "on fire", func(s *scene) {
			delete(s.api.errWith, addr("10.0.0.1"))
		}},
		{"the node's network cannot be read", "t", func(s *scene) { s.setHost(func(*HostState) {}, onFire) }, "Keep Unconfirmed", "on fire", func(s *scene) {
			s.setHost(func(*HostState) {}, nil)
		}},
		{"what is removed cannot be logged", "t", func(s *scene) { s.record(func() (func() error, error) { return nil, onFire }) }, "Keep Unconfirmed", "not removed, because it cannot be logged: on fire", func(s *scene) {
			s.record(func() (func() error, error) { return func() error { return nil }, nil })
		}},
		{"what is removed was not written", "t", func(s *scene) {
			s.record(func() (func() error, error) { return func() error { return onFire }, nil })
		}, "Keep Unconfirmed", "not removed, because it cannot be logged: on fire", func(s *scene) {
			s.record(func() (func() error, error) { return func() error { return nil }, nil })
		}},
		{"the kernel does not remove it", "t", func(s *scene) { s.tables["t"].removals["10.0.0.1"] = onFire }, "Keep Unconfirmed", "not removed: on fire", func(s *scene) { delete(s.tables["t"].removals, "10.0.0.1") }},
		{"it changes in that moment", "t", func(s *scene) {
			s.tables["t"].removing = func(context.Context) error { s.tables["t"].change("10.0.0.1"); return nil }
		}, "Wait Changed", "", func(s *scene) { s.tables["t"].removing = nil }},
	} {
		t.Run(test.name, func(t *testing.T) {
			onScene(t, test.target, func(s *scene) {
				s.see("A run 10.0.0.1", "Z run 10.0.0.9")
				s.tables["t"].put("10.0.0.1", "10.0.0.9")
				s.see("A run")
				test.with(s)
				s.wait(10 * time.Second)
				s.holds("t", "10.0.0.1 10.0.0.9")
				f := s.said("t", "10.0.0.1", test.said)
				if !strings.Contains(f.Message, test.message) {
					t.Errorf("%q does not say %q", f.Message, test.message)
				}
				s.passes()
				s.wait(time.Minute)
				s.holds("t", "10.0.0.1 10.0.0.9")
				if n := len(strings.Fields(s.passes())); n > 5 { // after 2, 4, 8, 16, 32 s where something failed
					t.Errorf("%d passes in a minute", n)
				}
				if test.ends == nil {
					s.lost("")
					return
				}
				s.lost("A 10.0.0.1")
				test.ends(s)
				s.wait(recheck)
				s.holds("t", "10.0.0.9")
				s.wait(recheck)
				s.lost("")
			})
		})
	}
}

func withInterface(n uint32) Entry {
	e := entryOf("t", "10.0.0.1")
	e.Interface = n
	return e
}

// A table that takes its time is not read all the time.
func TestScrubRests(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.tables["t"].reading = func(context.Context) error { s.wait0(3 * time.Second); return nil }
		for i := range 60 {
			s.see(fmt.Sprintf("P%d run 10.0.0.%d", i, i+1))
			s.tables["t"].put(fmt.Sprintf("10.0.0.%d", i+1))
			s.see(fmt.Sprintf("P%d run", i))
			s.wait(time.Second)
		}
		s.wait(time.Minute)
		s.holds("t", "")
		if n := len(strings.Fields(s.passes())); n > 9 { // of 15 s each
			t.Errorf("%d passes", n)
		}
	})
}

// What is not said by anybody who counts does not keep an entry.
func TestScrubGoes(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		with   func(*scene)
		reason string
	}{
		"a pod that has ended had the address":                                    {"t", func(s *scene) { s.inAPI("B succeeded note=10.0.0.1 10.0.0.1") }, "AddressLost"},
		"a pod with the node's network shows it":                                  {"t", func(s *scene) { s.inAPI("B host run 10.0.0.1") }, "AddressLost"},
		"a pod of another node has it, in a table of this node":                   {"t", func(s *scene) { s.there("X run 10.0.0.1") }, "AddressLost"},
		"nobody has it, and what is removed goes into no log that could be asked": {"t", func(s *scene) { s.Recorded = nil }, "AddressLost"},
		"a pod of another node had it":                                            {"t cluster", func(s *scene) { s.there("X failed 10.0.0.1") }, "AddressLost"},
		"the interface of the entry is gone":                                      {"t", func(s *scene) { s.tables["t"].add(withInterface(9)) }, "AddressLost"},
		"another has it, and the interface of the entry is gone":                  {"t", func(s *scene) { s.tables["t"].add(withInterface(9)); s.inAPI("B run 10.0.0.1") }, "InterfaceGone"},
		"an annotation has it, and the interface of the entry is gone": {"t", func(s *scene) {
			s.tables["t"].add(withInterface(9))
			s.inAPI("B run note=10.0.0.1")
		}, "InterfaceGone"},
		"another node's pod has it, and the interface of the entry is gone": {"t cluster", func(s *scene) {
			s.tables["t"].add(withInterface(9))
			s.there("X run 10.0.0.1")
		}, "InterfaceGone"},
	} {
		t.Run(name, func(t *testing.T) {
			onScene(t, test.target, func(s *scene) {
				s.see("A run 10.0.0.1")
				s.tables["t"].put("10.0.0.1")
				s.see("A run")
				test.with(s)
				s.wait(10 * time.Second)
				s.holds("t", "")
				s.said("t", "10.0.0.1", "Remove "+test.reason+", removed")
			})
		})
	}
}

// A table with the whole cluster's addresses: A of this node loses its address, B of another gets it. The second address cannot be asked for.
func TestScrubClusterTable(t *testing.T) {
	onScene(t, "all cluster, here", func(s *scene) {
		s.see("A run 10.0.0.1 fd00::1", "C run 10.0.0.3 fd00::3")
		for _, m := range s.tables {
			m.put("10.0.0.1", "fd00::1", "10.0.0.3", "fd00::3")
		}
		s.there("B run 10.0.0.1 fd00::1")
		s.see("A run terminating stopped 10.0.0.1 fd00::1", "C run terminating stopped 10.0.0.3 fd00::3")
		s.gone("A", "C")
		s.asked()
		s.wait(10 * time.Second)
		s.said("all", "10.0.0.1", "Keep UsedElsewhere")
		s.said("all", "fd00::1", "Keep CannotAsk")
		s.said("all", "10.0.0.3", "Remove PodGone, removed")
		s.said("all", "fd00::3", "Keep CannotAsk")
		s.holds("all", "10.0.0.1 fd00::1 fd00::3")
		s.holds("here", "")
		// Before the removal, and after that in each table.
		if got := s.asked(); got != "node 10.0.0.1 10.0.0.3 node 10.0.0.3 node" && got != "node 10.0.0.3 10.0.0.1 node 10.0.0.3 node" {
			t.Errorf("asked %s", got)
		}
	})
}

// The whole cluster is asked about an address only where nobody here has it, and about a few at a time.
func TestScrubAsksTheClusterLittle(t *testing.T) {
	onScene(t, "all cluster, here", func(s *scene) {
		for i := range maxEverywhere*2 + 1 {
			uid, a := fmt.Sprint("P", i), fmt.Sprintf("10.0.0.%d", i+1)
			s.see(uid + " run " + a)
			s.tables["all"].put(a, a+",tcp:80")
			s.tables["here"].put(a)
			s.see(uid + " run")
		}
		s.see("Q run 10.0.1.1")
		s.tables["here"].put("10.0.1.1") // which the cluster is not asked about
		s.see("Q run")
		s.inAPI("B run 10.0.0.1")
		s.wait(time.Minute)
		s.asked()
		s.see("A run 10.0.0.1")
		s.see("A run")
		s.wait(10 * time.Second)
		s.holds("all", "10.0.0.1 10.0.0.1,tcp:80")
		s.holds("here", "10.0.0.1")
		if got := s.asked(); got != "node" {
			t.Errorf("asked %s", got)
		}
	})
	onScene(t, "here, all cluster, again cluster", func(s *scene) {
		for i := range maxEverywhere*2 + 1 {
			uid, a := fmt.Sprint("P", i), fmt.Sprintf("10.0.0.%d", i+1)
			s.see(uid + " run " + a)
			for _, m := range s.tables {
				m.put(a)
			}
			s.see(uid + " run")
		}
		for pass, left := range []int{maxEverywhere + 1, 1, 0} {
			s.asked()
			s.wait([]time.Duration{10 * time.Second, leastRest, leastRest}[pass])
			for name, m := range s.tables {
				if n := len(strings.Fields(m.texts())); n != left {
					t.Errorf("pass %d left %d in %s, want %d", pass, n, name, left)
				}
			}
			addresses := map[string]bool{}
			for q := range strings.FieldsSeq(s.asked()) {
				addresses[q] = true
			}
			if delete(addresses, "node"); len(addresses) > maxEverywhere {
				t.Errorf("asked about %v", addresses)
			}
		}
		s.wait(time.Minute)
		s.lost("")
	})
}

// What has lost an address twice is as sure as its most doubtful loss.
func TestScrubSeveralLosses(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.see("B run grace=10m 10.0.0.1")
		s.wait(5 * time.Second)
		s.gone("B")
		s.wait(5 * time.Second)
		s.said("t", "10.0.0.1", "Wait MayStillRun")
		s.passes()
		s.wait(10*time.Minute + 25*time.Second - 1)
		s.holds("t", "10.0.0.1")
		if n := len(strings.Fields(s.passes())); n > 3 {
			t.Errorf("%d passes, though it was known when the last loss counts", n)
		}
		s.wait(1)
		s.holds("t", "")
		s.wait(10 * time.Second)
		s.lost("")
	})
}

// The most cautious verdict of those on all who lost the address counts, whoever lost it first.
func TestScrubMostCautious(t *testing.T) {
	for _, second := range []string{"A", "B"} {
		onScene(t, "all cluster", func(s *scene) {
			s.there("X run 10.0.0.9 fd00::1") // not to be found by its second address
			s.tables["all"].put("fd00::1")
			for _, uid := range []string{"A", "B"} {
				if uid == second {
					s.see(uid + " run 10.0.0.8 fd00::1")
				} else {
					s.see(uid + " run fd00::1")
				}
			}
			s.see("A run", "B run")
			s.wait(10 * time.Second)
			s.said("all", "fd00::1", "Keep CannotAsk")
			s.wait(time.Hour)
			s.holds("all", "fd00::1")
			s.lost("")
		})
	}
	for _, doubtful := range []string{"A", "B"} { // one has lost its sandbox, the other was deleted by force
		onScene(t, "t", func(s *scene) {
			s.tables["t"].put("10.0.0.1")
			for _, uid := range []string{"A", "B"} {
				if s.see(uid + " run 10.0.0.1"); uid == doubtful {
					s.see(uid + " run sandboxlost 10.0.0.1")
				} else {
					s.gone(uid)
				}
			}
			s.wait(10 * time.Second)
			s.said("t", "10.0.0.1", "Keep SandboxLost")
			s.wait(2 * time.Minute)
			if n := len(s.Releases()); n != 2 {
				t.Errorf("%d losses: one was done with on the word of the other", n)
			}
		})
	}
}

// Who takes an address in the moment in which its entries go finds them as they were.
func TestScrubClaimsInTheMiddle(t *testing.T) {
	take := map[string]func(*scene){
		"the API server has it": func(s *scene) { s.inAPI("B run 10.0.0.1") },
		"it was seen":           func(s *scene) { s.Saw(podOfWords("B", strings.Fields("run 10.0.0.1"))) },
		"both":                  func(s *scene) { s.see("B run 10.0.0.1") },
		"it was seen and is gone again, by force": func(s *scene) {
			s.Saw(podOfWords("B", strings.Fields("run 10.0.0.1")))
			s.Gone("B")
		},
		"the node has it": func(s *scene) { s.setHost(func(h *HostState) { h.Addresses[addr("10.0.0.1")] = "eth1" }, nil) },
	}
	when := map[string]func(*scene, func()){
		"while the table is read": func(s *scene, do func()) { s.tables["t"].reading = func(context.Context) error { do(); return nil } },
		"after the question":      func(s *scene, do func()) { s.onAnswer(func(string) { do() }) },
		"before it is removed":    func(s *scene, do func()) { s.tables["t"].removing = func(context.Context) error { do(); return nil } },
		"after it was removed":    func(s *scene, do func()) { s.tables["t"].removed = func(context.Context) error { do(); return nil } },
	}
	for who, take := range take {
		for moment, when := range when {
			t.Run(who+" "+moment, func(t *testing.T) {
				onScene(t, "", func(s *scene) {
					s.see("A run 10.0.0.1", "C run 10.0.0.3")
					s.tables["t"].put("10.0.0.1", "10.0.0.3")
					before := s.tables["t"].entries["10.0.0.1"]
					s.see("A run", "C run")
					done := false
					when(s, func() {
						if !done && time.Since(s.begun) >= s.grace {
							done = true
							take(s)
						}
					})
					s.wait(10 * time.Second)
					s.holds("t", "10.0.0.1")
					if after := s.tables["t"].entries["10.0.0.1"]; fmt.Sprint(after) != fmt.Sprint(before) {
						t.Errorf("before %+v, after %+v", before, after)
					}
					if f, found := s.last("t", "10.0.0.1"); !found || f.Removed || f.Verdict == Remove {
						t.Errorf("%+v", f)
					}
					s.said("t", "10.0.0.3", "Remove AddressLost, removed")
					// What was known in time was not even begun.
					known := moment == "while the table is read" || moment == "after the question" && who != "the API server has it" && who != "the node has it"
					if begun := strings.Contains(s.removals(), "t 10.0.0.1"); begun == known {
						t.Errorf("begun: %s", s.removals())
					}
				})
			})
		}
	}
}

// What was put back for somebody else's loss is looked at again, when it is seen what became of that.
func TestScrubPutBackAndAgain(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].add(withInterface(9))
		s.see("A run")
		s.see("B run 10.0.0.1")
		s.tables["t"].removing = func(context.Context) error { s.see("B run"); return nil }
		s.wait(10 * time.Second)
		s.said("t", "10.0.0.1", "Wait Waiting")
		s.holds("t", "10.0.0.1")
		s.tables["t"].removing = nil
		s.see("B run 10.0.0.1")
		s.wait(10 * time.Second)
		s.holds("t", "")
		s.said("t", "10.0.0.1", "Remove InterfaceGone, removed")
	})
}

// A removal that failed may have been done: it is reconsidered as one that was, and not begun again at once.
func TestScrubRemovalFails(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.see("A run")
		s.tables["t"].removals["10.0.0.1"] = errors.New("no answer")
		s.tables["t"].removed = func(context.Context) error { // it was done all the same
			s.tables["t"].remove("10.0.0.1")
			s.inAPI("B run 10.0.0.1")
			return nil
		}
		s.wait(10 * time.Second)
		f := s.said("t", "10.0.0.1", "Keep Unconfirmed")
		if f.Message != "not removed: no answer" {
			t.Error(f.Message)
		}
		s.holds("t", "10.0.0.1 10.0.0.2")
	})
}

// A table that lost a newer entry than the one that was to go.
type losingTable struct{ *memTable }

func (t losingTable) Remove(_ context.Context, entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	for i := range outcomes {
		outcomes[i] = Outcome{WasChanged, errors.New("a newer entry was taken out, and the map is full")}
	}
	return outcomes
}

// That is said loudly, nothing older is put in its place, and it is looked at again.
func TestScrubLosesANewerEntry(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.targets[0].Table = losingTable{s.tables["t"]}
		s.configure()
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.wait(10 * time.Second)
		f := s.said("t", "10.0.0.1", "Wait Changed")
		if f.Message != "a newer entry was taken out, and the map is full" {
			t.Error(f.Message)
		}
		if s.logs.FilterMessage("a newer entry was lost").FilterField(zap.String("target", "t")).Len() != 1 {
			t.Errorf("%v", s.logs.All())
		}
		s.targets[0].Table = s.tables["t"]
		s.configure()
		s.wait(2 * time.Second)
		s.holds("t", "")
	})
}

// What the kernel makes anew by itself is not put back.
func TestScrubMadeAnew(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.tables["t"].removed = func(context.Context) error { s.inAPI("B run 10.0.0.1"); return nil }
		s.tables["t"].restoring = func(context.Context) error { return fmt.Errorf("connection: %w", ErrMadeAnew) }
		s.wait(10 * time.Second)
		s.holds("t", "")
		f := s.said("t", "10.0.0.1", "Keep PodHasAddress, removed")
		if f.Message != "removed, though right after its removal pod ns/b has the address now, and the entry may be its own; connection: the kernel makes it anew when it is needed" {
			t.Error(f.Message)
		}
		if s.logs.FilterMessage("an entry could not be put back").Len() != 0 {
			t.Error("logged as an error")
		}
	})
}

// Connections of an address that others have by now: those that are older than all of them go.
func TestScrubConnections(t *testing.T) {
	for name, test := range map[string]struct {
		began time.Duration
		tcp   bool
		with  func(*scene)
		said  string
	}{
		"older than the pod": {-time.Hour, true, func(s *scene) { s.inAPI("B run started=0s 10.0.0.1") }, "Remove OlderThanPod, removed"},
		"younger":            {time.Second, true, func(s *scene) { s.inAPI("B run started=0s 10.0.0.1") }, "Keep PodHasAddress"},
		"older than the one, younger than the other":    {-time.Hour, true, func(s *scene) { s.inAPI("B run started=0s 10.0.0.1", "C run started=-2h 10.0.0.1") }, "Keep PodHasAddress"},
		"the same, seen in the other order":             {-time.Hour, true, func(s *scene) { s.inAPI("B run started=-2h 10.0.0.1", "C run started=0s 10.0.0.1") }, "Keep PodHasAddress"},
		"the start of the one is not known":             {-time.Hour, true, func(s *scene) { s.inAPI("B run started=0s 10.0.0.1", "C run 10.0.0.1") }, "Keep PodHasAddress"},
		"the start of the other is not known":           {-time.Hour, true, func(s *scene) { s.inAPI("B run 10.0.0.1", "C run started=0s 10.0.0.1") }, "Keep PodHasAddress"},
		"the pod is ending":                             {-time.Hour, true, func(s *scene) { s.inAPI("A run terminating") }, "Keep Terminating"},
		"the pod is ending, and it is no TCP":           {-time.Hour, false, func(s *scene) { s.inAPI("A run terminating") }, "Remove AddressLost, removed"},
		"the pod was ending, and has ended":             {-time.Hour, true, func(s *scene) { s.inAPI("A failed terminating") }, "Remove AddressLost, removed"},
		"another pod is ending":                         {-time.Hour, true, func(s *scene) { s.inAPI("Z run terminating") }, "Remove AddressLost, removed"},
		"older than one of another node, not the other": {-time.Hour, true, func(s *scene) { s.there("X run started=0s 10.0.0.1"); s.there("Y run started=-2h 10.0.0.1") }, "Keep UsedElsewhere"},
		"older than those of another node":              {-3 * time.Hour, true, func(s *scene) { s.there("X run started=0s 10.0.0.1"); s.there("Y run started=-2h 10.0.0.1") }, "Remove OlderThanPod, removed"},
	} {
		t.Run(name, func(t *testing.T) {
			onScene(t, "t cluster", func(s *scene) {
				e := entryOf("t", "10.0.0.1")
				e.Connection = &Connection{TCP: test.tcp, Started: noon.Add(test.began)}
				s.tables["t"].add(e)
				s.see("A run 10.0.0.1")
				s.see("A run")
				test.with(s)
				s.wait(10 * time.Second)
				s.said("t", "10.0.0.1", test.said)
				s.wait(time.Minute)
				if kept := !strings.Contains(test.said, "removed"); kept != s.tables["t"].has("10.0.0.1") {
					t.Errorf("kept: %v", !kept)
				}
				if test.said == "Keep Terminating" { // until it has ended
					s.see("A succeeded terminating")
					s.wait(time.Second)
					s.holds("t", "")
				}
			})
		})
	}
}

// What a pod keeps while it ends goes when it is gone, also one that never says that it has ended.
func TestScrubConnectionsOfOneThatIsGone(t *testing.T) {
	onScene(t, "t cluster", func(s *scene) {
		e := entryOf("t", "10.0.0.1")
		e.Connection = &Connection{TCP: true}
		s.tables["t"].add(e)
		s.see("A run 10.0.0.1")
		s.see("A run terminating stopped")
		s.wait(time.Minute)
		s.said("t", "10.0.0.1", "Keep Terminating")
		s.gone("A")
		s.wait(time.Second)
		s.said("t", "10.0.0.1", "Remove AddressLost, removed")
		s.holds("t", "")
	})
}

// While a table takes its time, what the others wait for grows old: it is asked for again.
func TestScrubAsksAgain(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		asked string
	}{
		"quick": {time.Second, "node node node"},
		"slow":  {time.Second + 1, "node node node node"},
	} {
		t.Run(name, func(t *testing.T) {
			onScene(t, "t, u", func(s *scene) {
				s.see("A run 10.0.0.1", "B run 10.0.0.2")
				s.tables["t"].put("10.0.0.1", "10.0.0.2")
				s.tables["u"].put("10.0.0.1", "10.0.0.2")
				s.see("A run", "B run")
				s.tables["t"].removed = func(context.Context) error {
					s.wait0(test.takes)
					if test.takes > time.Second {
						s.inAPI("C run 10.0.0.1")
					}
					return nil
				}
				s.asked()
				s.wait(15 * time.Second)
				if got := s.asked(); got != test.asked {
					t.Errorf("asked %s, want %s", got, test.asked)
				}
				if test.takes > time.Second { // C has it since the removal from the first table
					s.holds("t", "10.0.0.1")
					s.holds("u", "10.0.0.1")
					s.said("u", "10.0.0.1", "Keep PodHasAddress")
				} else {
					s.holds("t", "")
					s.holds("u", "")
				}
			})
		})
	}
}

// wait0 lets time pass for a goroutine of the scene's.
func (s *scene) wait0(d time.Duration) { time.Sleep(d) }

// Right after the removal nobody can tell who has the address, or the entry cannot be put back.
func TestScrubPutsBack(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.tables["t"].removed = func(context.Context) error { s.fail(errors.New("on fire")); return nil }
		s.wait(10 * time.Second)
		s.holds("t", "10.0.0.1")
		f := s.said("t", "10.0.0.1", "Keep Unconfirmed")
		if !strings.HasPrefix(f.Message, "put back, because right after its removal cannot confirm that nobody has the address: on fire") {
			t.Error(f.Message)
		}
		s.fail(nil)
		s.tables["t"].removed = func(context.Context) error { s.inAPI("B run 10.0.0.1"); return nil }
		s.tables["t"].restoring = func(context.Context) error { return errors.New("full") }
		s.wait(2 * time.Second)
		s.holds("t", "")
		f = s.said("t", "10.0.0.1", "Keep PodHasAddress")
		if !strings.HasSuffix(f.Message, ", but that failed: full") || s.logs.FilterMessage("an entry could not be put back").Len() != 1 {
			t.Error(f.Message)
		}
	})
	// What its writer added again meanwhile is left alone.
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.tables["t"].removed = func(context.Context) error {
			s.inAPI("B run 10.0.0.1")
			s.tables["t"].put("10.0.0.1")
			s.tables["t"].change("10.0.0.1")
			return nil
		}
		s.wait(10 * time.Second)
		if got := s.tables["t"].String(); got != "t 10.0.0.1 = v1'\n" {
			t.Error(got)
		}
	})
}

// A table that fares badly says how, keeps its losses on the agenda, and does not keep the others from being cleaned.
func TestScrubTableStates(t *testing.T) {
	for name, test := range map[string]struct {
		err   error
		state TableState
		words string
		ends  bool // the release, though this table cannot be looked at
	}{
		"not there":   {&TableError{StateNotInstalled, "no set matches"}, StateNotInstalled, "no set matches", true},
		"forbidden":   {&TableError{StateForbidden, "needs CAP_NET_ADMIN"}, StateForbidden, "needs CAP_NET_ADMIN", false},
		"unavailable": {fmt.Errorf("read: %w", &TableError{StateUnavailable, "interrupted"}), StateUnavailable, "interrupted", false},
		"invalid":     {&TableError{StateInvalid, "key size 8"}, StateInvalid, "key size 8", false},
		"whatever":    {errors.New("on fire"), StateUnavailable, "on fire", false},
	} {
		t.Run(name, func(t *testing.T) {
			onScene(t, "bad, t", func(s *scene) {
				s.see("A run 10.0.0.1", "B run 10.0.0.2")
				s.tables["t"].put("10.0.0.1", "10.0.0.2")
				s.tables["bad"].put("10.0.0.1", "10.0.0.2")
				s.tables["bad"].setReadErr(test.err)
				synctest.Wait()
				s.wait(recheck)
				s.state("bad", test.state, test.words)
				s.state("t", StateOK, "")
				s.see("A run")
				s.wait(10 * time.Second)
				s.holds("t", "10.0.0.2")
				s.holds("bad", "10.0.0.2") // what was found is true
				s.tables["bad"].put("10.0.0.1")
				s.wait(14 * time.Second)
				s.holds("bad", "10.0.0.2") // at the next look
				s.wait(time.Hour)
				if test.ends {
					s.lost("")
					return
				}
				s.lost("A 10.0.0.1")
				s.tables["bad"].reading = func(context.Context) error { return test.err }
				s.tables["bad"].put("10.0.0.1")
				s.passes()
				s.wait(time.Hour)
				s.holds("bad", "10.0.0.1 10.0.0.2")
				if n := len(strings.Fields(s.passes())); n > 13 {
					t.Errorf("%d passes in an hour", n)
				}
				s.tables["bad"].reading = nil
				s.tables["bad"].setReadErr(nil)
				s.wait(recheck)
				s.state("bad", StateOK, "")
				s.holds("bad", "10.0.0.2")
				s.wait(time.Minute)
				s.lost("")
			})
		})
	}
}

// A writer that is late adds an entry again: it goes too.
func TestScrubLateWriter(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.wait(10 * time.Second)
		s.holds("t", "")
		for range 5 {
			s.wait(time.Second)
			s.tables["t"].put("10.0.0.1", "10.0.0.1,tcp:80")
			s.wait(9*time.Second - 1)
			s.holds("t", "10.0.0.1 10.0.0.1,tcp:80")
			s.wait(1)
			s.holds("t", "")
		}
		s.wait(10 * time.Second)
		s.lost("")
		s.tables["t"].put("10.0.0.1") // long after that nobody knows whose it is
		s.wait(time.Hour)
		s.holds("t", "10.0.0.1")
	})
}

// Its writer removes the entry first.
func TestScrubWriterIsFirst(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		s.tables["t"].removing = func(context.Context) error { s.tables["t"].remove("10.0.0.1"); return nil }
		s.asked()
		s.wait(10 * time.Second)
		f := s.said("t", "10.0.0.1", "Remove AddressLost")
		if !strings.HasSuffix(f.Message, "; its writer removed it first") || s.asked() != "node" {
			t.Error(f.Message)
		}
		s.wait(recheck)
		s.lost("")
	})
}

// What goes is logged with its bytes, after it is known that the log can be written, and it goes after it was written.
func TestScrubLogs(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1")
		s.see("A run")
		var order []string
		s.record(func() (func() error, error) {
			order = append(order, fmt.Sprint("asked, logged ", s.logs.FilterMessage("removing").Len()))
			return func() error {
				order = append(order, fmt.Sprint("written, logged ", s.logs.FilterMessage("removing").Len()))
				return nil
			}, nil
		})
		s.tables["t"].removing = func(context.Context) error { order = append(order, "removed"); return nil }
		s.wait(10 * time.Second)
		if got := strings.Join(order, ", "); got != "asked, logged 0, written, logged 1, removed" {
			t.Error(got)
		}
		fields := s.logs.FilterMessage("removing").All()[0].ContextMap()
		if got := fmt.Sprint(fields); got != "map[address:10.0.0.1 entry:10.0.0.1 key:31302e302e302e31 pod:ns/a reason:AddressLost table:t target:t uid:A value:7631]" {
			t.Error(got)
		}
	})
}

// Told to stop in the middle of a pass, the Scrubber begins nothing new and ends what it began.
func TestScrubStops(t *testing.T) {
	onScene(t, "t, u", func(s *scene) {
		prepare := func() {
			s.see("A run 10.0.0.1")
			s.tables["t"].put("10.0.0.1")
			s.tables["u"].put("10.0.0.1")
			s.see("A run")
		}
		prepare()
		s.tables["t"].reading = func(ctx context.Context) error { s.stop(); return ctx.Err() }
		s.wait(10 * time.Second)
		s.holds("t", "10.0.0.1")
		s.holds("u", "10.0.0.1")
		s.end()
		if got := s.asked(); got != "" {
			t.Errorf("asked for nothing: %s", got)
		}
		if _, told := s.last("u", "10.0.0.1"); told {
			t.Error("told of a pass that did not come to its end")
		}
		s.tables["t"].reading = nil

		s.start()
		s.Saw(podOfWords("A", []string{"run"}))
		s.Synced()
		s.configure()
		s.lost("A 10.0.0.1") // by the journal
		s.tables["t"].removed = func(context.Context) error { s.stop(); s.inAPI("B run 10.0.0.1"); return nil }
		s.wait(10 * time.Second)
		s.holds("t", "10.0.0.1") // put back
		s.holds("u", "10.0.0.1") // not begun
		s.end()
		s.outOfAPI("B")

		s.start()
		s.Saw(podOfWords("A", []string{"run"}))
		s.Synced()
		s.configure()
		s.tables["t"].removed = func(context.Context) error { s.stop(); return nil }
		s.wait(10 * time.Second)
		s.holds("t", "")
		s.holds("u", "10.0.0.1")
		s.end()

		s.start()
		s.tables["t"].put("10.0.0.1")
		s.Saw(podOfWords("A", []string{"run"}))
		s.Synced()
		s.configure()
		s.tables["t"].removing = func(ctx context.Context) error { s.stop(); return ctx.Err() }
		s.tables["t"].removed = nil
		s.wait(10 * time.Second)
		s.holds("t", "") // a removal that was begun is known to its end
		s.holds("u", "10.0.0.1")
		s.end()

		s.start() // the rest, by the next agent
		s.Saw(podOfWords("A", []string{"run"}))
		s.Synced()
		s.configure()
		s.wait(10 * time.Second)
		s.holds("u", "")
	})
}

// A table that does not answer keeps nobody waiting who tells of pods, and the journal is written meanwhile.
func TestScrubTableBlocks(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.tables["t"].reading = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		s.see("A run")
		s.wait(15 * time.Second)
		s.see("B run 10.0.0.2")
		s.gone("B")
		s.configure()
		s.lost("A 10.0.0.1, B 10.0.0.2")
		s.wait(time.Second)
		if j, err := JournalDir(s.dir).Load(); err != nil || len(j.Pods) != 2 {
			t.Errorf("%v, %+v", err, j)
		}
		s.end()
		s.tables["t"].reading = nil
		s.start()
		s.Saw(podOfWords("A", []string{"run"}))
		s.Synced()
		s.configure()
		s.wait(time.Minute)
		s.holds("t", "")
	})
}

// Until all pods are seen nothing goes and nothing is written: what is not seen yet is not lost.
func TestScrubBeforeAllIsSeen(t *testing.T) {
	dir := t.TempDir()
	before := Journal{Boot: "boot", Pods: []JournalPod{{PodRef: PodRef{"ns", "a", "A"}, Addresses: podOfWords("A", []string{"10.0.0.1"}).Addresses}}}
	if err := JournalDir(dir).Save(before); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, dir, "")
		s.tables["t"].put("10.0.0.1", "10.0.0.2")
		s.start()
		s.configure()
		s.see("B run 10.0.0.2")
		s.see("B run")
		s.wait(time.Hour)
		s.end()
		s.holds("t", "10.0.0.1 10.0.0.2")
		if got := s.passes() + s.asked(); got != "" {
			t.Error(got)
		}
		if j, err := JournalDir(dir).Load(); err != nil || fmt.Sprint(j) != fmt.Sprint(before) {
			t.Errorf("%v, %+v", err, j)
		}
		s.start()
		s.configure()
		s.Saw(podOfWords("B", []string{"run"}))
		s.Synced()
		s.wait(30 * time.Second)
		s.holds("t", "10.0.0.2") // that B had it nobody wrote down
		s.end()
	})
}

// The agent is killed first, then the pod loses its address, then the agent starts: scrubbed. Without the journal nothing is, on a guess.
func TestScrubAfterAKill(t *testing.T) {
	for name, test := range map[string]struct {
		journal func(t *testing.T, file string)
		holds   string
	}{
		"with the journal":         {func(*testing.T, string) {}, "10.0.0.2 10.0.0.3"},
		"the journal is lost":      {func(t *testing.T, file string) { check(t, os.Remove(file)) }, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"},
		"the journal is damaged":   {func(t *testing.T, file string) { check(t, os.Truncate(file, 200)) }, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"},
		"the node was started new": {func(t *testing.T, file string) { changeBoot(t, file) }, "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4"},
	} {
		t.Run(name, func(t *testing.T) {
			onScene(t, "", func(s *scene) {
				s.see("A run 10.0.0.1", "B run 10.0.0.2", "D run 10.0.0.4")
				s.tables["t"].put("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
				s.wait(time.Second)
				kept := must(os.ReadFile(filepath.Join(s.dir, journalName)))
				s.end()
				check(t, os.WriteFile(filepath.Join(s.dir, journalName), kept, 0o600)) // what a stop adds a kill does not
				test.journal(t, filepath.Join(s.dir, journalName))
				s.outOfAPI("D")
				s.start()
				s.see("A run", "B run 10.0.0.2")
				s.Synced()
				s.configure()
				s.wait(time.Hour)
				s.holds("t", test.holds)
			})
		})
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func changeBoot(t *testing.T, file string) {
	d := JournalDir(filepath.Dir(file))
	j, err := d.Load()
	check(t, err)
	j.Boot = "another"
	check(t, d.Save(j))
}

// The journal follows what happens, but is not written all the time; what it could not be written for is tried again and said once.
func TestScrubWritesItsJournal(t *testing.T) {
	onScene(t, "", func(s *scene) {
		written := func() string {
			j, err := JournalDir(s.dir).Load()
			check(t, err)
			var uids []string
			for _, p := range j.Pods {
				uids = append(uids, p.UID)
			}
			return strings.Join(uids, " ")
		}
		s.wait(time.Minute)
		s.see("A run 10.0.0.1")
		synctest.Wait()
		if got := written(); got != "A" {
			t.Errorf("at once: %s", got)
		}
		s.see("B run 10.0.0.2")
		s.wait(saveInterval - 1)
		s.see("C run 10.0.0.3")
		if got := written(); got != "A" {
			t.Errorf("too early: %s", got)
		}
		s.wait(1)
		if got := written(); got != "A B C" {
			t.Errorf("late: %s", got)
		}
		s.wait(time.Minute)
		check(t, os.Mkdir(filepath.Join(s.dir, "journal.new"), 0o700)) // in the way
		s.see("D run 10.0.0.4")
		s.wait(time.Minute)
		s.see("E run 10.0.0.5")
		s.wait(time.Minute)
		if got := written(); got != "A B C" {
			t.Errorf("in spite of what is in the way: %s", got)
		}
		if n := s.logs.FilterMessage("what pods lose while this agent is down will not be seen").Len(); n != 1 {
			t.Errorf("said %d times", n)
		}
		check(t, os.Remove(filepath.Join(s.dir, "journal.new")))
		s.wait(recheck)
		if got := written(); got != "A B C D E" {
			t.Errorf("tried again: %s", got)
		}
		check(t, os.Mkdir(filepath.Join(s.dir, "journal.new"), 0o700))
		s.see("F run 10.0.0.6")
		s.wait(time.Second)
		if n := s.logs.FilterMessage("what pods lose while this agent is down will not be seen").Len(); n != 2 {
			t.Errorf("said %d times", n)
		}
		check(t, os.Remove(filepath.Join(s.dir, "journal.new")))
		s.see("G run 10.0.0.7")
		synctest.Wait()
		s.see("H run 10.0.0.8")
		s.end() // a stop writes it
		if got := written(); got != "A B C D E F G H" {
			t.Errorf("at the end: %s", got)
		}
		check(t, os.Remove(filepath.Join(s.dir, journalName)))
		s.start() // nothing is new
		s.Synced()
		s.configure()
		s.wait(time.Minute)
		s.end()
		if names := journalFiles(t, s.dir); len(names) != 0 {
			t.Errorf("written without need: %v", names)
		}
	})
}

// What could not be written is written at the end, if it can be then.
func TestScrubWritesItsJournalAtTheEnd(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.wait(time.Minute)
		check(t, os.Mkdir(filepath.Join(s.dir, "journal.new"), 0o700))
		s.see("A run 10.0.0.1")
		s.wait(time.Second)
		check(t, os.Remove(filepath.Join(s.dir, "journal.new")))
		s.end()
		if j, err := JournalDir(s.dir).Load(); err != nil || len(j.Pods) != 1 {
			t.Errorf("%v, %+v", err, j)
		}
	})
}

// What ended a release is written down: the next agent does not begin with it again.
func TestScrubWritesWhatHasEnded(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.see("A run terminating stopped 10.0.0.1")
		s.gone("A")
		s.wait(20 * time.Second)
		s.lost("")
		s.wait(time.Second)
		if j, err := JournalDir(s.dir).Load(); err != nil || len(j.Pods) != 0 {
			t.Errorf("%v, %+v", err, j)
		}
	})
}

// Where more is lost than can be remembered the oldest is given up, with a word.
func TestScrubTooManyLosses(t *testing.T) {
	onScene(t, "t report", func(s *scene) {
		a := addr("10.0.0.0")
		for i := range maxReleases + 2 {
			a = a.Next()
			uid := fmt.Sprint("P", i)
			s.Saw(podOfWords(uid, []string{"run", a.String()}))
			s.Gone(uid)
		}
		s.tables["t"].put("10.0.0.1", "10.0.0.2", "10.0.0.3")
		s.wait(recheck)
		if all := s.logs.FilterMessageSnippet("too many addresses were lost").All(); len(all) != 2 || all[0].ContextMap()["address"] != "10.0.0.1" || all[1].ContextMap()["pod"] != "ns/p1" {
			t.Errorf("%v", all)
		}
		if n := len(s.Releases()); n > maxReleases {
			t.Errorf("%d", n)
		}
	})
}

// Many pods come, move and go while their tables are written by others: nobody waits for anybody, and in the end the tables are right.
func TestScrubUnderLoad(t *testing.T) {
	onScene(t, "t, u cluster, v scrub", func(s *scene) {
		ctx, stop := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { // a writer as fast as it can be, of a live pod's entry and others
			defer close(done)
			for i := 0; ctx.Err() == nil; i++ {
				for _, m := range s.tables {
					m.put("10.0.9.9", fmt.Sprintf("10.0.9.9,tcp:%d", i%5))
					if !m.has("10.0.9.9") {
						s.Error("a live pod's entry is missing")
					}
					m.remove(fmt.Sprintf("10.0.9.9,tcp:%d", (i+2)%5))
				}
				s.wait0(7 * time.Millisecond)
			}
		}()
		s.see("Z run 10.0.9.9")
		workers := make(chan struct{})
		for w := range 4 {
			go func() {
				for i := range 50 {
					uid, a := fmt.Sprintf("P%d-%d", w, i), fmt.Sprintf("10.0.%d.%d", w, i%10+1)
					s.see(uid + " run grace=1s " + a)
					for _, m := range s.tables {
						m.put(a, a+",tcp:80")
					}
					s.wait0(time.Duration(w+1) * 90 * time.Millisecond)
					if i%3 == 0 {
						s.see(uid + " run grace=1s")
					}
					s.Releases()
					s.gone(uid)
				}
				workers <- struct{}{}
			}()
		}
		for range 4 {
			<-workers
		}
		s.wait(2 * time.Minute)
		stop()
		<-done
		for name, m := range s.tables {
			for text := range strings.FieldsSeq(m.texts()) {
				if !strings.HasPrefix(text, "10.0.9.9") {
					t.Errorf("left in %s: %s", name, text)
				}
			}
			if !m.has("10.0.9.9") {
				t.Errorf("%s has lost a live pod's entry", name)
			}
		}
		s.lost("")
	})
}

// Run writes to no log of its own while nothing happens.
func TestScrubIsQuiet(t *testing.T) {
	onScene(t, "", func(s *scene) {
		s.see("A run 10.0.0.1")
		s.wait(time.Hour)
		if all := s.logs.All(); len(all) != 0 {
			t.Errorf("%v", all)
		}
	})
}
