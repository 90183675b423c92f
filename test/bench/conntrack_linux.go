package main

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/dataplane"
)

const (
	connections     = 100_000
	connectionsOf   = 5 // of each address
	lostConnections = 1000
)

var conntrack = benchmark{
	name: "conntrack",
	about: fmt.Sprintf("find and delete the connections of %d addresses among %d, beside the netlink library's delete by filter (goal: no slower, half the memory); as root",
		lostConnections, connections),
	run: func(ctx context.Context, s *session) error {
		return onOwnNetwork(func() error { return measureConntrack(ctx, s) })
	},
}

// A lostFilter is how the library is told which connections to delete.
type lostFilter map[netip.Addr]bool

// MatchConntrackFlow is what the library calls for each connection.
func (l lostFilter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	for _, ip := range [][]byte{flow.Forward.SrcIP, flow.Reverse.SrcIP} {
		if a, ok := netip.AddrFromSlice(ip); ok && l[a.Unmap()] {
			return true
		}
	}
	return false
}

func measureConntrack(ctx context.Context, s *session) error {
	var lost []netip.Addr
	filter := lostFilter{}
	for i := range lostConnections {
		a := connectionAddress(i * (connections / connectionsOf / lostConnections))
		lost, filter[a] = append(lost, a), true
	}
	wanted := dataplane.NewAddresses(lost...)
	s.logf("make %d connections", connections)
	for i := range connections {
		if err := makeConnection(i); err != nil {
			return err
		}
	}
	const going = lostConnections * connectionsOf
	var ours, library, ourBytes, libraryBytes samples
	for run := range s.runs + 1 { // the first one warms up
		s.logf("run %d of %d", run, s.runs)
		took, bytes, err := timed(func() error {
			var entries []dataplane.Entry
			if err := (dataplane.Conntrack{}).Read(ctx, wanted, func(e dataplane.Entry) { entries = append(entries, e) }); err != nil {
				return err
			}
			if len(entries) != going {
				return fmt.Errorf("found %d connections", len(entries))
			}
			for _, o := range (dataplane.Conntrack{}).Remove(ctx, entries) {
				if o.Result != dataplane.Removed {
					return fmt.Errorf("a removal ended with %v", o)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := makeLost(); err != nil {
			return err
		}
		libraryTook, libraryTookBytes, err := timed(func() error {
			n, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, filter)
			if err == nil && n != going {
				err = fmt.Errorf("the library deleted %d connections", n)
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := makeLost(); err != nil {
			return err
		}
		if run == 0 {
			continue
		}
		ours, library = append(ours, millis(took)), append(library, millis(libraryTook))
		ourBytes, libraryBytes = append(ourBytes, bytes), append(libraryBytes, libraryTookBytes)
	}
	const what = "netlink.ConntrackDeleteFilters"
	s.goal("conntrack/delete", "ms", ours, what, library, 1)
	s.goal("conntrack/allocated", "bytes", ourBytes, what, libraryBytes, 0.5)
	return nil
}

// timed is how long do takes, and how much memory it asks for.
func timed(do func() error) (time.Duration, float64, error) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	err := do()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return took, float64(after.TotalAlloc - before.TotalAlloc), err
}

func connectionAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
}

// makeConnection makes the one with number i: of each address there are several.
func makeConnection(i int) error {
	return makeConnectionOf(connectionAddress(i/connectionsOf).AsSlice(), uint16(4000+i%connectionsOf))
}

// makeConnectionOf makes one from an address and port.
func makeConnectionOf(source []byte, port uint16) error {
	destination := []byte{192, 0, 2, 1}
	flow := &netlink.ConntrackFlow{
		FamilyType: unix.AF_INET, TimeOut: 3600,
		Forward: netlink.IPTuple{SrcIP: source, SrcPort: port, DstIP: destination, DstPort: 53, Protocol: unix.IPPROTO_UDP},
		Reverse: netlink.IPTuple{SrcIP: destination, SrcPort: 53, DstIP: source, DstPort: port, Protocol: unix.IPPROTO_UDP},
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
		return fmt.Errorf("make a connection: %w", err)
	}
	return nil
}

func makeLost() error {
	for k := range lostConnections {
		for n := range connectionsOf {
			if err := makeConnection(k*(connections/connectionsOf/lostConnections)*connectionsOf + n); err != nil {
				return err
			}
		}
	}
	return nil
}
