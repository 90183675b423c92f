//go:build linux && kernel

package dataplane

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestNeighbors(t *testing.T) {
	newNetwork(t)
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"}); err != nil {
		t.Fatal(err)
	}
	link, err := netlink.LinkByName("a")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	add := func(address string, state, flags int, mac byte) {
		t.Helper()
		n := &netlink.Neigh{
			LinkIndex: link.Attrs().Index, IP: addr(address).AsSlice(), State: state, Flags: flags, HardwareAddr: []byte{2, 0, 0, 0, 0, mac},
		}
		if err := netlink.NeighSet(n); err != nil {
			t.Fatalf("%s: %v", address, err)
		}
	}
	add("10.0.0.1", unix.NUD_REACHABLE, 0, 1)
	add("10.0.0.2", unix.NUD_STALE, 0, 2)
	add("10.0.0.3", unix.NUD_PERMANENT, 0, 3)
	add("10.0.0.4", unix.NUD_NOARP, 0, 4)
	add("10.0.0.5", unix.NUD_REACHABLE, netlink.NTF_EXT_LEARNED, 5)
	add("10.0.0.6", unix.NUD_FAILED, 0, 6)
	add("fd00::1", unix.NUD_STALE, 0, 6)
	add("fd00::2", unix.NUD_STALE, netlink.NTF_ROUTER, 7)
	var there []string
	for _, e := range readAll(t, Neighbors{}, nil) {
		if !e.Address.IsLinkLocalUnicast() {
			there = append(there, e.Address.String())
		}
	}
	slices.Sort(there)
	if !slices.Equal(there, []string{"10.0.0.1", "10.0.0.2", "fd00::1"}) {
		t.Errorf("read %v", there)
	}
	got := readAll(t, Neighbors{}, addresses("10.0.0.1", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::2"))
	if len(got) != 3 || !strings.Contains(got[0].Text, "02:00:00:00:00:01") {
		t.Fatalf("found %v", texts(got))
	}
	add("10.0.0.2", unix.NUD_STALE, 0, 9) // another pod has it by now
	wantOutcomes(t, Neighbors{}.Remove(t.Context(), got), Removed, WasChanged, Removed)
	wantOutcomes(t, Neighbors{}.Remove(t.Context(), got[:1]), AlreadyGone)
	add("10.0.0.1", unix.NUD_PERMANENT, 0, 1)
	wantOutcomes(t, Neighbors{}.Remove(t.Context(), got[:1]), AlreadyGone)
	all, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, n := range all {
		if n.IP.IsPrivate() && n.State != unix.NUD_FAILED {
			left = append(left, n.IP.String())
		}
	}
	slices.Sort(left)
	if !slices.Equal(left, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "fd00::2"}) {
		t.Errorf("left are %v", left)
	}
	if err := (Neighbors{}).Restore(t.Context(), got); !errors.Is(err, ErrMadeAnew) {
		t.Errorf("restore: %v", err)
	}
	entries := readAll(t, Neighbors{}, addresses("10.0.0.2"))
	dropCapabilities(t)
	if o := (Neighbors{}).Remove(t.Context(), entries); o[0].Result != Failed || !strings.Contains(o[0].Err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("without the capability: %v", o)
	}
}
