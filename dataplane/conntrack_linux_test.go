//go:build linux && kernel

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// aFlow is a connection to be made up: as it was opened, and as the answers come.
type aFlow struct {
	protocol            uint8
	source, destination string // address:port
	answers, answersTo  string // empty: the same two
}

func (f aFlow) create(t testing.TB) {
	t.Helper()
	ends := func(source, destination string) netlink.IPTuple {
		a, b := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
		return netlink.IPTuple{SrcIP: a.Addr().AsSlice(), SrcPort: a.Port(), DstIP: b.Addr().AsSlice(), DstPort: b.Port(), Protocol: f.protocol}
	}
	flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, Forward: ends(f.source, f.destination), Reverse: ends(f.destination, f.source), TimeOut: 300}
	if f.answers != "" {
		flow.Reverse = ends(f.answers, f.answersTo)
	}
	if strings.Contains(f.source, "[") {
		flow.FamilyType = unix.AF_INET6
	}
	if f.protocol == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, netlink.InetFamily(flow.FamilyType), flow); err != nil {
		t.Fatalf("make the connection %+v: %v", f, err)
	}
}

// flows are all connections, by their texts, sorted.
func flows(t testing.TB) []string {
	t.Helper()
	var all []string
	for _, e := range readAll(t, Conntrack{}, nil) {
		all = append(all, e.Text)
	}
	return all
}

func TestConntrack(t *testing.T) {
	newNetwork(t)
	const tcp, udp = unix.IPPROTO_TCP, unix.IPPROTO_UDP
	if got := flows(t); len(got) != 0 {
		t.Fatalf("a new namespace has %v", got)
	}
	for _, f := range []aFlow{
		{protocol: tcp, source: "10.0.0.1:4000", destination: "10.0.0.9:80"},
		{protocol: udp, source: "10.0.0.9:4000", destination: "10.0.0.1:53"},
		{protocol: tcp, source: "10.0.0.8:4000", destination: "10.96.0.1:443", answers: "10.0.0.1:8443", answersTo: "10.0.0.8:4000"},     // to a service that the pod answers for
		{protocol: tcp, source: "10.0.0.1:4001", destination: "192.0.2.1:443", answers: "192.0.2.1:443", answersTo: "192.168.0.1:61000"}, // out, behind the node's address
		{protocol: tcp, source: "10.0.0.8:4001", destination: "10.96.0.1:443", answers: "10.0.0.2:8443", answersTo: "10.0.0.8:4001"},     // another pod's
		{protocol: tcp, source: "192.168.0.1:4000", destination: "192.168.0.2:6443"},                                                     // the node's
		{protocol: tcp, source: "[fd00::1]:4000", destination: "[fd00::9]:80"},
		{protocol: udp, source: "[fd00::9]:4000", destination: "[fd00::2]:53"},
	} {
		f.create(t)
	}
	before := flows(t)
	if len(before) != 8 {
		t.Fatalf("there are %v", before)
	}
	got := readAll(t, Conntrack{}, addresses("10.0.0.1", "fd00::1"))
	want := []string{
		"tcp 10.0.0.1:4000 > 10.0.0.9:80", "tcp 10.0.0.1:4001 > 192.0.2.1:443",
		"tcp 10.0.0.8:4000 > 10.96.0.1:443 (10.0.0.1:8443)", "tcp [fd00::1]:4000 > [fd00::9]:80", "udp 10.0.0.9:4000 > 10.0.0.1:53",
	}
	var found []string
	for _, e := range got {
		found = append(found, e.Text)
		if e.Connection == nil || e.Connection.TCP != strings.HasPrefix(e.Text, "tcp") || !e.Connection.Started.IsZero() {
			t.Errorf("%s: %+v", e.Text, e.Connection)
		}
	}
	if !slices.Equal(found, want) {
		t.Errorf("found %s\nwant %s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	for i, o := range (Conntrack{}).Remove(t.Context(), got) {
		if o.Result != Removed {
			t.Errorf("%s: %v", got[i].Text, o)
		}
	}
	left := flows(t)
	if len(left) != 3 || slices.ContainsFunc(left, func(f string) bool { return slices.Contains(want, f) }) {
		t.Errorf("left are %s", strings.Join(left, "\n"))
	}
	// The same connection, opened again, is another.
	aFlow{protocol: tcp, source: "10.0.0.1:4000", destination: "10.0.0.9:80"}.create(t)
	wantOutcomes(t, Conntrack{}.Remove(t.Context(), got[:1]), AlreadyGone)
	if again := flows(t); len(again) != 4 {
		t.Errorf("the new connection went: %v", again)
	}
	if err := (Conntrack{}).Restore(t.Context(), got); !errors.Is(err, ErrMadeAnew) {
		t.Errorf("restore: %v", err)
	}
}

func TestConntrackTimestamps(t *testing.T) {
	newNetwork(t)
	if changed, err := EnableTimestamps(); err != nil || !changed {
		t.Fatalf("%v, %v", changed, err)
	}
	if changed, err := EnableTimestamps(); err != nil || changed {
		t.Errorf("again: %v, %v", changed, err)
	}
	aFlow{protocol: unix.IPPROTO_TCP, source: "10.0.0.1:4000", destination: "10.0.0.9:80"}.create(t)
	got := readAll(t, Conntrack{}, addresses("10.0.0.9"))
	if len(got) != 1 || got[0].Connection == nil || time.Since(got[0].Connection.Started).Abs() > time.Minute {
		t.Errorf("got %+v", got)
	}
}

func TestConntrackStates(t *testing.T) {
	newNetwork(t)
	if err := (Conntrack{}).Read(t.Context(), NewAddresses(), func(Entry) {}); err != nil {
		t.Error(err)
	}
	aFlow{protocol: unix.IPPROTO_TCP, source: "10.0.0.1:4000", destination: "10.0.0.9:80"}.create(t)
	entries := readAll(t, Conntrack{}, nil)
	dropCapabilities(t)
	for _, wanted := range []*Addresses{nil, NewAddresses()} {
		var problem *TableError
		if err := (Conntrack{}).Read(t.Context(), wanted, func(Entry) {}); !errors.As(err, &problem) || problem.State != StateForbidden || !strings.Contains(problem.Message, "CAP_NET_ADMIN") {
			t.Errorf("without the capability: %v", err)
		}
	}
	if o := (Conntrack{}).Remove(t.Context(), entries); o[0].Result != Failed || !strings.Contains(o[0].Err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without the capability: %v", o)
	}
}

// Many connections go in several requests, also where some have ended before.
func TestManyConnections(t *testing.T) {
	newNetwork(t)
	const all = 1050
	for i := range all {
		aFlow{protocol: unix.IPPROTO_UDP, source: fmt.Sprintf("10.0.%d.%d:4000", i>>8, i&255), destination: "10.1.0.1:53"}.create(t)
	}
	entries := readAll(t, Conntrack{}, nil)
	wantOutcomes(t, Conntrack{}.Remove(t.Context(), entries[100:101]), Removed)
	for i, o := range (Conntrack{}).Remove(t.Context(), entries[:1000]) {
		if want := map[bool]Result{true: AlreadyGone, false: Removed}[i == 100]; o.Result != want {
			t.Errorf("%d: %v", i, o)
		}
	}
	if left := flows(t); len(left) != all-1000 {
		t.Errorf("%d are left", len(left))
	}
}

// While others add and delete connections as fast as they can, all of an address are found and deleted, and none of another.
func TestBusyConntrack(t *testing.T) {
	newNetwork(t)
	const lost, live = 200, 2000
	for i := range live {
		aFlow{protocol: unix.IPPROTO_UDP, source: fmt.Sprintf("10.0.1.%d:%d", i%250, 4000+i/250), destination: "10.0.0.9:53"}.create(t)
	}
	stop := busyConnections(t)
	for range 20 {
		for i := range lost {
			aFlow{protocol: unix.IPPROTO_UDP, source: fmt.Sprintf("10.0.0.1:%d", 4000+i), destination: "10.0.0.9:53"}.create(t)
		}
		entries := readAll(t, Conntrack{}, addresses("10.0.0.1"))
		entries = slices.CompactFunc(entries, func(a, b Entry) bool { return a.Text == b.Text }) // one at which a list was cut may come twice
		if len(entries) != lost {
			t.Fatalf("%d of %d connections were found", len(entries), lost)
		}
		for i, o := range (Conntrack{}).Remove(t.Context(), entries) {
			if o.Result != Removed {
				t.Fatalf("%s: %v", entries[i].Text, o)
			}
		}
		if left := readAll(t, Conntrack{}, addresses("10.0.0.1")); len(left) != 0 {
			t.Fatalf("%d are left", len(left))
		}
	}
	if rounds := stop(); rounds < 20 {
		t.Errorf("the others made only %d rounds", rounds)
	}
	left := 0
	for _, f := range slices.Compact(flows(t)) {
		if strings.HasPrefix(f, "udp 10.0.1.") {
			left++
		}
	}
	if left != live {
		t.Errorf("%d of the %d others are left", left, live)
	}
}

// busyConnections adds and deletes connections in the test's network until it is stopped, and then tells how often it has done so.
func busyConnections(t *testing.T) (stop func() (rounds int)) {
	t.Helper()
	network, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	rounds := 0
	working.Go(func() {
		defer network.Close()
		runtime.LockOSThread() // never unlocked: its network is another than the process's
		if err := unix.Setns(int(network.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		for ; ctx.Err() == nil; rounds++ {
			for i := range 100 {
				aFlow{protocol: unix.IPPROTO_UDP, source: fmt.Sprintf("10.0.2.1:%d", 4000+i), destination: "10.0.0.9:53"}.create(t)
			}
			for _, o := range (Conntrack{}).Remove(context.Background(), readAll(t, Conntrack{}, addresses("10.0.2.1"))) {
				if o.Result == Failed {
					t.Error(o)
				}
			}
		}
	})
	return func() int {
		cancel()
		working.Wait()
		return rounds
	}
}
