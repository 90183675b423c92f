package gossip

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"
)

func TestDirectory(t *testing.T) {
	d := newDirectory()
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	member := func(name string, port uint16, able bool) Member {
		return Member{Name: name, Address: netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), port), Metadata: Metadata{Role: Agent, Able: able}}
	}
	early := d.subscribe()
	d.update(member("a", 1, true)) // has not joined
	d.leave("a", now)
	if len(d.members()) != 0 || len(early.C) != 0 {
		t.Error("what never joined is there")
	}
	d.join(member("b", 2, false))
	d.join(member("a", 1, false))
	late := d.subscribe()
	d.update(member("a", 1, true))
	d.leave("b", now)
	d.join(member("b", 3, false))
	d.leave("a", now)
	for name, test := range map[string]struct {
		s    *Subscription
		want Changes
	}{
		"early": {early, Changes{Joined: []string{"a", "b"}, Departed: []string{"a", "b"}, Updated: []string{"a"}}},
		"late":  {late, Changes{Joined: []string{"a", "b"}, Departed: []string{"a", "b"}, Updated: []string{"a"}}},
	} {
		if len(test.s.C) != 1 {
			t.Errorf("%s: %d signals", name, len(test.s.C))
		}
		got := test.s.Take()
		if !slices.Equal(got.Joined, test.want.Joined) || !slices.Equal(got.Departed, test.want.Departed) || !slices.Equal(got.Updated, test.want.Updated) {
			t.Errorf("%s: %+v", name, got)
		}
		if again := test.s.Take(); len(again.Joined)+len(again.Departed)+len(again.Updated) != 0 {
			t.Errorf("%s: twice: %+v", name, again)
		}
	}
	if got := fmt.Sprint(d.members()); got != fmt.Sprint([]Member{member("b", 3, false)}) {
		t.Errorf("members: %s", got)
	}
	if !d.addresses()[netip.MustParseAddrPort("10.0.0.1:3")] || len(d.addresses()) != 1 {
		t.Errorf("addresses: %v", d.addresses())
	}
	// A departed member is found where it was, for a day.
	for _, test := range []struct {
		later time.Duration
		found bool
	}{{0, true}, {keepDeparted, true}, {keepDeparted + 1, false}} {
		d.forget(now.Add(test.later))
		if address, found := d.lastAddress("a"); found != test.found || found && address.Port() != 1 {
			t.Errorf("after %v: %v %v", test.later, address, found)
		}
	}
	if address, found := d.lastAddress("b"); !found || address.Port() != 3 {
		t.Errorf("b at %v", address)
	}
	<-early.C
	early.Close()
	d.leave("b", now)
	if len(early.C) != 0 || len(early.Take().Departed) != 0 {
		t.Error("a closed subscription gets changes")
	}
}
