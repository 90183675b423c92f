package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// snapshot has pods of this node and of others, in the words of podOfWords.
func snapshot(here, elsewhere []string) *Snapshot {
	s := &Snapshot{}
	for _, line := range here {
		words := strings.Fields(line)
		s.Node = append(s.Node, podOfWords(words[0], words[1:]))
	}
	s.All = slices.Clone(s.Node)
	for _, line := range elsewhere {
		words := strings.Fields(line)
		s.All = append(s.All, podOfWords(words[0], words[1:]))
	}
	return s
}

func journalOf(pods ...string) Journal {
	o := NewOwners(Journal{})
	for _, line := range pods {
		words := strings.Fields(line)
		o.Saw(podOfWords(words[0], words[1:]), noon)
	}
	return o.Journal("boot")
}

func TestPlan(t *testing.T) {
	s := newScene(t, "", "t, all cluster, scrub scrub, bad report, away")
	for _, m := range s.tables {
		m.put("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "fd00::5", "10.0.0.6", "192.168.0.1")
		m.networks["10.0.0.0/24"] = true
	}
	protected := entryOf("t", "10.0.0.1,tcp:53")
	protected.Protected = "its flags say so"
	s.tables["t"].add(protected)
	s.tables["bad"].setReadErr(&TableError{StateForbidden, "needs CAP_BPF"})
	s.tables["away"].reading = func(context.Context) error { return &TableError{StateNotInstalled, "no such set"} }
	before := fmt.Sprint(s.tables)

	pods := snapshot([]string{"A run", "B run 10.0.0.2", "S run sandboxlost 10.0.0.3", "N pending note=10.0.0.4", "F failed 10.0.0.6"}, []string{"X run 10.0.0.1", "Y run 10.0.0.6"})
	journal := journalOf("A run 10.0.0.1", "D run grace=1h 10.0.0.4", "E run 10.0.0.5 fd00::5")
	host := func() (HostState, error) { return s.host, nil }
	reports := Plan(t.Context(), s.targets, journal, pods, host, 10*time.Second, noon)
	if after := fmt.Sprint(s.tables); after != before {
		t.Errorf("a plan changed the tables: %s", after)
	}
	var got strings.Builder
	for _, r := range reports {
		fmt.Fprintf(&got, "%s %s %s\n", r.Target, r.State, r.Message)
		for _, f := range r.Findings {
			fmt.Fprintf(&got, "  %s %s %s", f.Text, f.Verdict, f.Reason)
			if f.Pod.UID != "" {
				fmt.Fprintf(&got, " of %s", f.Pod.UID)
			}
			if f.Removed || (f.Pod.UID != "") != f.Since.Equal(noon) {
				fmt.Fprintf(&got, " removed %v, since %s", f.Removed, f.Since)
			}
			got.WriteByte('\n')
		}
	}
	want := `t OK 
  10.0.0.1 Remove AddressLost of A
  10.0.0.1,tcp:53 Keep Protected of A
  10.0.0.2 Keep PodHasAddress
  10.0.0.3 Keep SandboxLost of S
  10.0.0.4 Keep Annotated of D
  10.0.0.5 Remove PodGone of E
  10.0.0.6 Keep UsedElsewhere
  192.168.0.1 Keep HostAddress
  fd00::5 Remove PodGone of E
all OK 
  10.0.0.1 Keep UsedElsewhere of A
  10.0.0.2 Keep PodHasAddress
  10.0.0.3 Keep SandboxLost of S
  10.0.0.4 Keep Annotated of D
  10.0.0.5 Remove PodGone of E
  10.0.0.6 Keep UsedElsewhere
  192.168.0.1 Keep HostAddress
  fd00::5 Keep CannotAsk of E
scrub OK 
  10.0.0.1 Remove AddressLost of A
  10.0.0.2 Keep PodHasAddress
  10.0.0.3 Remove SandboxLost of S
  10.0.0.4 Keep Annotated of D
  10.0.0.5 Remove PodGone of E
  10.0.0.6 Keep UsedElsewhere
  192.168.0.1 Keep HostAddress
  fd00::5 Remove PodGone of E
bad Forbidden needs CAP_BPF
  10.0.0.1 Remove AddressLost of A
  10.0.0.2 Keep PodHasAddress
  10.0.0.3 Keep SandboxLost of S
  10.0.0.4 Keep Annotated of D
  10.0.0.5 Remove PodGone of E
  10.0.0.6 Keep UsedElsewhere
  192.168.0.1 Keep HostAddress
  fd00::5 Remove PodGone of E
away NotInstalled no such set
`
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", got.String(), want)
	}
}

// Without a journal nothing is planned but for what the pods themselves show; without the node's network nothing at all.
func TestPlanKnowsLittle(t *testing.T) {
	s := newScene(t, "", "t")
	s.tables["t"].put("10.0.0.1", "10.0.0.2")
	host := func() (HostState, error) { return s.host, nil }
	for name, test := range map[string]struct {
		journal Journal
		host    func() (HostState, error)
		want    string
	}{
		"no journal": {Journal{}, host, "[Keep NotReleased Keep PodHasAddress]"},
		"no network": {journalOf("A run 10.0.0.1"), func() (HostState, error) { return HostState{}, errors.New("on fire") }, "[Keep Unconfirmed Keep NotReleased]"},
	} {
		var got []string
		for _, f := range Plan(t.Context(), s.targets, test.journal, snapshot([]string{"B run 10.0.0.2"}, nil), test.host, time.Second, noon)[0].Findings {
			got = append(got, fmt.Sprint(f.Verdict, " ", f.Reason))
		}
		if fmt.Sprint(got) != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

func TestDump(t *testing.T) {
	s := newScene(t, "", "t, bad")
	s.tables["t"].put("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "192.168.0.1", "fd00::2")
	s.tables["bad"].put("10.0.0.2")
	s.tables["bad"].setReadErr(errors.New("on fire"))
	pods := snapshot([]string{"B run 10.0.0.2 fd00::2", "F failed 10.0.0.3", "H host run 192.168.0.1"}, []string{"X run 10.0.0.4"})
	pods.All = append(pods.All, podOfWords("Z", strings.Fields("run 10.0.0.2")))
	var got []string
	reports := Dump(t.Context(), s.targets, journalOf("A run 10.0.0.1 10.0.0.5", "C run 10.0.0.2"), pods, s.host, func(target string, e Entry, owner string) {
		got = append(got, fmt.Sprintf("%s %s: %s", target, e.Text, owner))
	})
	want := `t 10.0.0.1: nobody; pod ns/a had it
t 10.0.0.2: pod ns/b
t 10.0.0.3: nobody
t 10.0.0.4: pod ns/x
t 10.0.0.5: nobody; pod ns/a had it
t 10.0.0.6: nobody
t 192.168.0.1: this node, interface eth0
t fd00::2: pod ns/b
bad 10.0.0.2: pod ns/b`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if len(reports) != 2 || reports[0].State != StateOK || reports[1].State != StateUnavailable || reports[1].Message != "on fire" || reports[0].Target != "t" || len(reports[0].Findings) != 0 {
		t.Errorf("%+v", reports)
	}
}

func TestSnapshot(t *testing.T) {
	s := snapshot([]string{"A run 10.0.0.1 fd00::1", "N run"}, []string{"X run 10.0.0.1", "Y run fd00::1 10.0.0.1"})
	node, err := s.NodePods(t.Context())
	if err != nil || len(node) != 2 {
		t.Errorf("%v, %v", node, err)
	}
	pods, err := s.PodsWith(t.Context(), addr("10.0.0.1"))
	if err != nil || len(pods) != 2 || pods[0].UID != "A" || pods[1].UID != "X" {
		t.Errorf("%v, %v", pods, err)
	}
}

func TestAddresses(t *testing.T) {
	s := NewAddresses(addr("10.0.0.1"), addr("::ffff:10.0.0.2"), addr("fd00::1"), addr("fe80::1%eth0"), netip.Addr{})
	for text, want := range map[string]bool{
		"10.0.0.1": true, "::ffff:10.0.0.1": true, "10.0.0.2": true, "fd00::1": true, "fe80::1": true, "fe80::1%eth1": true,
		"10.0.0.3": false, "::10.0.0.1": false, "fd00::2": false,
	} {
		if got := s.Has(addr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if s.Has(netip.Addr{}) || s.Empty() || !NewAddresses().Empty() || !NewAddresses(netip.Addr{}).Empty() || NewAddresses().Has(addr("10.0.0.1")) {
		t.Error("no address is one")
	}
	var all []string
	for a := range s.all() {
		all = append(all, a.String())
	}
	if slices.Sort(all); fmt.Sprint(all) != "[10.0.0.1 10.0.0.2 fd00::1 fe80::1]" {
		t.Error(all)
	}
	for range s.all() {
		break
	}
	var any *Addresses
	if !any.Has(addr("10.0.0.1")) || !any.Has(addr("fd00::1")) || any.Empty() {
		t.Error("nil is not all")
	}
}

func TestJoinedErrors(t *testing.T) {
	if err := joined(nil); err != nil {
		t.Error(err)
	}
	var errs []*TableError
	for i, want := range []string{
		"NotInstalled: m0", "Unavailable: m0; m1", "Unavailable: m0; m1; m2", "Forbidden: m0; m1; m2; and 1 more", "Forbidden: m0; m1; m2; and 2 more",
	} {
		errs = append(errs, &TableError{[]TableState{StateNotInstalled, StateUnavailable, StateInvalid, StateForbidden, StateInvalid}[i], fmt.Sprint("m", i)})
		if got := joined(errs).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
