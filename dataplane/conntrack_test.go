package dataplane

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// tupleOf is a direction as the kernel lists it.
func tupleOf(kind uint16, protocol byte, source, destination string) []byte {
	a, b := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	from, to := uint16(ctaV4Source), uint16(ctaV4Destination)
	if a.Addr().Is6() {
		from, to = ctaV6Source, ctaV6Destination
	}
	ends := slices.Concat(attr(from, a.Addr().AsSlice()...), attr(to, b.Addr().AsSlice()...))
	proto := slices.Concat(attr(ctaProtoNumber, protocol),
		attr(ctaSourcePort, binary.BigEndian.AppendUint16(nil, a.Port())...), attr(ctaDestinationPort, binary.BigEndian.AppendUint16(nil, b.Port())...))
	return attr(kind|attrNested, slices.Concat(attr(ctaTupleIP|attrNested, ends...), attr(ctaTupleProto|attrNested, proto...))...)
}

func started(at time.Time) []byte {
	return attr(ctaTimestamp|attrNested, attr(ctaTimestampStart, binary.BigEndian.AppendUint64(nil, uint64(at.UnixNano()))...)...)
}

func TestParseFlow(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	message := slices.Concat(
		tupleOf(ctaTupleOrig, protocolTCP, "10.0.0.8:4000", "10.96.0.1:443"), tupleOf(ctaTupleReply, protocolTCP, "10.0.0.1:8443", "10.0.0.8:4000"),
		attr(3, 0, 0, 1, 0x8e), attr(ctaID, 1, 2, 3, 4), attr(ctaZone, 0, 7), started(at),
	)
	f, err := parseFlow(message, true)
	if err != nil {
		t.Fatal(err)
	}
	if text := f.text(); text != "tcp 10.0.0.8:4000 > 10.96.0.1:443 (10.0.0.1:8443)" || !f.started.Equal(at) {
		t.Errorf("got %s, begun %s", text, f.started)
	}
	if want := slices.Concat(tupleOf(ctaTupleOrig, protocolTCP, "10.0.0.8:4000", "10.96.0.1:443"), attr(ctaID, 1, 2, 3, 4), attr(ctaZone, 0, 7)); !slices.Equal(f.name, want) {
		t.Errorf("its name is %x, want %x", f.name, want)
	}
	for address, want := range map[string]bool{"10.0.0.8": true, "10.0.0.1": true, "10.96.0.1": false, "10.0.0.9": false, "fd00::1": false} {
		if a, is := f.endOf(addresses(address)); is != want || is && a != addr(address) {
			t.Errorf("%s is an end of it: %v, %s", address, is, a)
		}
	}
	for size := range len(message) {
		_, _ = parseFlow(message[:size], true) // must not panic
	}
	if _, err := parseFlow(tupleOf(ctaTupleOrig, protocolTCP, "10.0.0.8:4000", "10.96.0.1:443"), false); err == nil {
		t.Error("a connection with one direction was taken")
	}
}

func FuzzParseFlow(f *testing.F) {
	f.Add(slices.Concat(tupleOf(ctaTupleOrig, 17, "[fd00::1]:1", "[fd00::2]:2"), tupleOf(ctaTupleReply, 17, "[fd00::2]:2", "[fd00::1]:1"), started(time.Unix(1, 0))))
	f.Add(slices.Concat(tupleOf(ctaTupleOrig, 6, "10.0.0.1:1", "10.0.0.2:2"), tupleOf(ctaTupleReply, 6, "10.0.0.2:2", "10.0.0.1:1"), attr(ctaID, 1, 2, 3, 4)))
	f.Fuzz(func(t *testing.T, message []byte) {
		flow, err := parseFlow(message, true)
		if err != nil {
			return
		}
		_ = flow.text()
		if a, is := flow.endOf(nil); is {
			if !a.IsValid() || a.IsUnspecified() || a.Is4In6() {
				t.Errorf("an end is %s", a)
			}
			if b, again := flow.endOf(NewAddresses(a)); !again || b != a {
				t.Errorf("%s is found (%v), looked for %s", b, again, a)
			}
			_ = flow.entry(a, 2)
		}
	})
}

// Whose a connection is with an address that another pod has by now is told by its age, if the kernel keeps it.
func TestDecideOnConnections(t *testing.T) {
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	pod := PodRef{"ns", "a", "A"}
	for _, test := range []struct {
		name   string
		change func(*Evidence)
		want   Verdict
		reason Reason
	}{
		{"nobody has the address", func(*Evidence) {}, Remove, AddressLost},
		{"its pod is still ending", func(e *Evidence) { e.Ending = true }, Keep, Terminating},
		{"UDP of a pod that is still ending", func(e *Evidence) { e.Ending, e.Entry.Connection.TCP = true, false }, Remove, AddressLost},
		{"begun before the pod that has it now", func(e *Evidence) {
			e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b", Started: noon.Add(-5 * time.Second)}
		}, Remove, OlderThanPod},
		{"begun before the pod elsewhere that has it now", func(e *Evidence) {
			e.Elsewhere = &Claim{Reason: UsedElsewhere, By: "ns/b", Started: noon.Add(-5 * time.Second)}
		}, Remove, OlderThanPod},
		{"less than a second before it", func(e *Evidence) {
			e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b", Started: noon.Add(-19 * time.Second)}
		}, Keep, PodHasAddress},
		{"after it", func(e *Evidence) {
			e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b", Started: noon.Add(-time.Minute)}
		}, Keep, PodHasAddress},
		{"nobody knows when that pod began", func(e *Evidence) { e.Claim = &Claim{Reason: PodHasAddress, By: "ns/b"} }, Keep, PodHasAddress},
		{"nobody knows when it was begun", func(e *Evidence) {
			e.Claim, e.Entry.Connection.Started = &Claim{Reason: PodHasAddress, By: "ns/b", Started: noon}, time.Time{}
		}, Keep, AgeUnknown},
		{"an annotation has it", func(e *Evidence) { e.Claim = &Claim{Reason: Annotated, By: "ns/b", Started: noon} }, Keep, Annotated},
		{"the node has it", func(e *Evidence) { e.Claim = &Claim{Reason: HostAddress, By: "eth0", Started: noon} }, Keep, HostAddress},
		{"no connection", func(e *Evidence) {
			e.Claim, e.Entry.Connection = &Claim{Reason: PodHasAddress, By: "ns/b", Started: noon}, nil
		}, Keep, PodHasAddress},
	} {
		e := Evidence{
			Entry: Entry{Address: addr("10.0.0.1"), Connection: &Connection{TCP: true, Started: noon.Add(-20 * time.Second)}}, Scope: ScopeCluster,
			Grace: 10 * time.Second, Now: noon, Asked: true, Interfaces: map[uint32]bool{},
			Release: &Release{Pod: pod, Address: addr("10.0.0.1"), First: true, Reason: AddressLost, Since: noon.Add(-time.Minute), NotBefore: noon.Add(-time.Minute)},
		}
		test.change(&e)
		if d := Decide(e); d.Verdict != test.want || d.Reason != test.reason {
			t.Errorf("%s: %s %s (%s), want %s %s", test.name, d.Verdict, d.Reason, d.Message, test.want, test.reason)
		}
	}
}
