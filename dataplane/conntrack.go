package dataplane

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"time"
)

// Conntrack is the kernel's table of connections. An entry is a pod's where the pod is the one that opened the connection or the one that answers,
// behind whatever addresses the two see of each other.
type Conntrack struct{}

// ConntrackTarget is the name of the target.
const ConntrackTarget = "conntrack"

// Numbers of the kernel's messages about connections: linux/netfilter/nfnetlink_conntrack.h.
const (
	ctaTupleOrig  = 1 // of a connection
	ctaTupleReply = 2
	ctaID         = 12
	ctaZone       = 18
	ctaTimestamp  = 20

	ctaTupleIP    = 1 // of a direction
	ctaTupleProto = 2

	ctaV4Source, ctaV4Destination, ctaV6Source, ctaV6Destination = 1, 2, 3, 4

	ctaProtoNumber, ctaSourcePort, ctaDestinationPort = 1, 2, 3

	ctaTimestampStart = 1

	protocolTCP = 6
)

// A tuple is one direction of a connection.
type tuple struct {
	source, destination         []byte // addresses, of 4 or 16 bytes
	protocol                    byte
	sourcePort, destinationPort []byte // of 2 bytes; nil without ports
}

// A flow is a connection as the kernel lists it.
type flow struct {
	original, reply tuple
	started         time.Time // zero where the kernel does not keep it
	// name are the attributes that say which one it is: its addresses, its zone, its number.
	name []byte
}

// parseFlow reads a message without its netlink headers, without copying. name is only filled in when it is asked for.
func parseFlow(b []byte, withName bool) (f flow, err error) {
	err = eachAttr(b, func(kind uint16, value, whole []byte) (err error) {
		switch kind {
		case ctaTupleOrig:
			err = f.original.parse(value)
		case ctaTupleReply:
			err = f.reply.parse(value)
		case ctaTimestamp:
			f.started, err = parseStart(value)
		}
		if withName && (kind == ctaTupleOrig || kind == ctaID || kind == ctaZone) {
			f.name = append(f.name, whole...)
		}
		return err
	})
	if err == nil && (f.original.source == nil || f.reply.source == nil) {
		err = errMalformed
	}
	return f, err
}

func (t *tuple) parse(b []byte) error {
	err := eachAttr(b, func(kind uint16, value, _ []byte) error {
		switch kind {
		case ctaTupleIP:
			return eachAttr(value, t.parseAddress)
		case ctaTupleProto:
			return eachAttr(value, t.parseProtocol)
		}
		return nil
	})
	if err == nil && (t.source == nil || len(t.source) != len(t.destination)) {
		err = errMalformed
	}
	return err
}

func (t *tuple) parseAddress(kind uint16, value, _ []byte) (err error) {
	switch kind {
	case ctaV4Source:
		t.source, err = sized(value, size4)
	case ctaV4Destination:
		t.destination, err = sized(value, size4)
	case ctaV6Source:
		t.source, err = sized(value, size16)
	case ctaV6Destination:
		t.destination, err = sized(value, size16)
	}
	return err
}

func (t *tuple) parseProtocol(kind uint16, value, _ []byte) (err error) {
	switch kind {
	case ctaProtoNumber:
		if value, err = sized(value, 1); err == nil {
			t.protocol = value[0]
		}
	case ctaSourcePort:
		t.sourcePort, err = sized(value, 2)
	case ctaDestinationPort:
		t.destinationPort, err = sized(value, 2)
	}
	return err
}

// parseStart reads when a connection began, in nanoseconds since 1970.
func parseStart(b []byte) (start time.Time, err error) {
	err = eachAttr(b, func(kind uint16, value, _ []byte) (err error) {
		if kind == ctaTimestampStart {
			if value, err = sized(value, 8); err == nil {
				start = time.Unix(0, int64(binary.BigEndian.Uint64(value)))
			}
		}
		return err
	})
	return start, err
}

// endOf is the wanted address at one of the connection's two ends: the one that opened it, or the one that answers.
func (f *flow) endOf(wanted *Addresses) (netip.Addr, bool) {
	for _, end := range [][]byte{f.original.source, f.reply.source} {
		if len(end) == size4 {
			if four := [size4]byte(end); !wanted.has4(four) {
				continue
			}
		}
		a, _ := netip.AddrFromSlice(end)
		if a = a.Unmap(); !a.IsUnspecified() && wanted.Has(a) {
			return a, true
		}
	}
	return netip.Addr{}, false
}

// text is the connection for people: as it was opened, and who answers where that is another.
func (f *flow) text() string {
	text := protocolText(f.original.protocol) + " " + endText(f.original.source, f.original.sourcePort) + " > " + endText(f.original.destination, f.original.destinationPort)
	if answers := endText(f.reply.source, f.reply.sourcePort); answers != endText(f.original.destination, f.original.destinationPort) {
		text += " (" + answers + ")"
	}
	return text
}

func endText(address, port []byte) string {
	a, _ := netip.AddrFromSlice(address)
	if port == nil {
		return a.String()
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(port)).String()
}

// protocolNames are those of conntrack's own entries, by their numbers.
var protocolNames = map[byte]string{1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp", 136: "udplite"}

func protocolText(n byte) string {
	if name, has := protocolNames[n]; has {
		return name
	}
	return "protocol " + strconv.Itoa(int(n))
}

// entry is what is told of a connection at one end of which an address was found.
func (f *flow) entry(a netip.Addr, family byte) Entry {
	return Entry{
		Table: ConntrackTarget, Address: a, Text: f.text(), Key: append([]byte{family}, f.name...),
		Connection: &Connection{TCP: f.original.protocol == protocolTCP, Started: f.started},
	}
}
