package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// IPSets are the ipsets whose name a regular expression matches. The pod's address is the first one of an entry.
type IPSets struct {
	Match *regexp.Regexp
	// Types are the set types that are looked at, of ipsetTypes; sets of others are left alone, as are sets of networks (netmask, bitmask).
	Types []string
	// MaxElemNot leaves sets with this maxelem alone; 0: none.
	MaxElemNot uint32
}

// Numbers of the kernel's ipset messages: linux/netfilter/ipset/ip_set.h. package nl has the older ones only, and some of them wrong.
const (
	ipsetProtocol = 6 // the oldest that kernels still speak

	ipsetAttrProtocol = 1 // of a message
	ipsetAttrSetName  = 2
	ipsetAttrTypeName = 3
	ipsetAttrFamily   = 5
	ipsetAttrFlags    = 6
	ipsetAttrData     = 7
	ipsetAttrADT      = 8
	ipsetAttrLineNo   = 9

	ipsetAttrMaxElem = 19 // of a set's header
	ipsetAttrNetmask = 20
	ipsetAttrBitmask = 12

	ipsetAttrIP      = 1 // of an entry
	ipsetAttrCIDR    = 3
	ipsetAttrPort    = 4
	ipsetAttrTimeout = 6
	ipsetAttrProto   = 7
	ipsetAttrFlagsOf = 8
	ipsetAttrIP2     = 20
	ipsetAttrBytes   = 24 // from here on: what is kept beside an entry
	ipsetAttrPad     = 30

	ipsetAttrIPv4, ipsetAttrIPv6 = 1, 2 // of an address

	ipsetFlagListHeader = 1 << 2 // of a list request
	ipsetFlagNoMatch    = 1 << 2 // of an entry

	attrNested = 0x8000 // NLA_F_NESTED
	attrNet    = 0x4000 // NLA_F_NET_BYTEORDER
	attrType   = 0x3fff // NLA_TYPE_MASK
)

// sizeofNfgenmsg is the size of the header that netfilter's messages begin with: address family, version, resource (linux/netfilter/nfnetlink.h).
const sizeofNfgenmsg = 4

// errMalformed says that a message is none of the kernel's.
var errMalformed = errors.New("the kernel's answer cannot be understood")

// nextAttr cuts the first netlink attribute off b: a length with its header of 4 bytes, a type, the value, padding to 4 bytes.
func nextAttr(b []byte) (kind uint16, value, rest []byte, err error) {
	if len(b) < 4 {
		return 0, nil, nil, errMalformed
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < 4 || size > len(b) {
		return 0, nil, nil, errMalformed
	}
	return binary.NativeEndian.Uint16(b[2:]) & attrType, b[4:size], b[min(len(b), (size+3)&^3):], nil
}

// eachAttr calls do for each attribute in b: its type, its value, and all its bytes.
func eachAttr(b []byte, do func(kind uint16, value, whole []byte) error) error {
	for len(b) > 0 {
		kind, value, rest, err := nextAttr(b)
		if err == nil {
			err = do(kind, value, b[:len(b)-len(rest)])
		}
		if err != nil {
			return err
		}
		b = rest
	}
	return nil
}

// appendAttr adds an attribute. kind has its flags.
func appendAttr(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(value)&3)...)
}

// A setMessage is one message of a list: of a set's header, or of some of its entries.
type setMessage struct {
	name, kind string // kind is in the first message of a set only
	maxElem    uint32
	masked     bool   // its entries are networks
	entries    []byte // attributes, one for each
}

// parseSetMessage reads a message without its netlink headers.
func parseSetMessage(b []byte) (m setMessage, err error) {
	err = eachAttr(b, func(kind uint16, value, _ []byte) error {
		switch kind {
		case ipsetAttrSetName:
			m.name = cString(value)
		case ipsetAttrTypeName:
			m.kind = cString(value)
		case ipsetAttrData:
			return m.parseHeader(value)
		case ipsetAttrADT:
			m.entries = value
		}
		return nil
	})
	if err == nil && m.name == "" {
		err = errMalformed
	}
	return m, err
}

func (m *setMessage) parseHeader(b []byte) error {
	return eachAttr(b, func(kind uint16, value, _ []byte) error {
		switch kind {
		case ipsetAttrMaxElem:
			if len(value) < 4 {
				return errMalformed
			}
			m.maxElem = binary.BigEndian.Uint32(value)
		case ipsetAttrNetmask, ipsetAttrBitmask:
			m.masked = true
		}
		return nil
	})
}

func cString(b []byte) string {
	text, _, _ := strings.Cut(string(b), "\x00")
	return text
}

// eachEntry calls do for each entry in a message's entries.
func eachEntry(entries []byte, do func(data []byte) error) error {
	return eachAttr(entries, func(kind uint16, data, _ []byte) error {
		if kind != ipsetAttrData {
			return nil
		}
		return do(data)
	})
}

// A member is an entry as the kernel lists it. What is absent is nil.
type member struct {
	ip, ip2     []byte // of 4 or 16 bytes
	cidr        []byte
	port, proto []byte
	flags       uint32
}

// parseMember reads an entry, without copying.
func parseMember(data []byte) (m member, err error) {
	err = eachAttr(data, func(kind uint16, value, _ []byte) (err error) {
		switch kind {
		case ipsetAttrIP:
			m.ip, err = parseIP(value)
		case ipsetAttrIP2:
			m.ip2, err = parseIP(value)
		case ipsetAttrCIDR:
			m.cidr, err = sized(value, 1)
		case ipsetAttrPort:
			m.port, err = sized(value, 2)
		case ipsetAttrProto:
			m.proto, err = sized(value, 1)
		case ipsetAttrFlagsOf:
			if value, err = sized(value, 4); err == nil {
				m.flags = binary.BigEndian.Uint32(value)
			}
		}
		return err
	})
	if err == nil && m.ip == nil {
		err = errMalformed
	}
	return m, err
}

func sized(value []byte, size int) ([]byte, error) {
	if len(value) != size {
		return nil, errMalformed
	}
	return value, nil
}

func parseIP(b []byte) ([]byte, error) {
	kind, value, _, err := nextAttr(b)
	switch {
	case err != nil:
		return nil, err
	case kind == ipsetAttrIPv4 && len(value) == size4, kind == ipsetAttrIPv6 && len(value) == size16:
		return value, nil
	}
	return nil, errMalformed
}

// hostOf is the address that the entry is about, if it is about one.
func (m *member) hostOf(wanted *Addresses) (netip.Addr, bool) {
	var a netip.Addr
	bits := 8 * len(m.ip)
	if m.cidr != nil && int(m.cidr[0]) != bits || m.flags&ipsetFlagNoMatch != 0 {
		return a, false
	}
	if len(m.ip) == size4 {
		four := [size4]byte(m.ip)
		if !wanted.has4(four) {
			return a, false
		}
		a = netip.AddrFrom4(four)
	} else {
		a = netip.AddrFrom16([size16]byte(m.ip)).Unmap()
		if !wanted.Has(a) {
			return a, false
		}
	}
	return a, !a.IsUnspecified()
}

// text is the entry as the ipset command prints it.
func (m *member) text() string {
	ip, _ := netip.AddrFromSlice(m.ip)
	text := ip.String()
	if m.cidr != nil && int(m.cidr[0]) != 8*len(m.ip) {
		text += "/" + strconv.Itoa(int(m.cidr[0]))
	}
	if m.port != nil {
		text += "," + m.portText(len(m.ip) == size16)
	}
	if m.ip2 != nil {
		ip2, _ := netip.AddrFromSlice(m.ip2)
		text += "," + ip2.String()
	}
	return text
}

// protocols are those with ports, by their numbers.
var protocols = map[byte]string{6: "tcp", 17: "udp", 132: "sctp", 136: "udplite"}

func (m *member) portText(ipv6 bool) string {
	port := binary.BigEndian.Uint16(m.port)
	var proto byte
	if m.proto != nil {
		proto = m.proto[0]
	}
	if name, has := protocols[proto]; has {
		return fmt.Sprintf("%s:%d", name, port)
	}
	switch {
	case m.proto == nil:
		return strconv.Itoa(int(port))
	case proto == 1 && !ipv6:
		return fmt.Sprintf("icmp:%d/%d", port>>8, port&0xff)
	case proto == 58 && ipv6:
		return fmt.Sprintf("icmpv6:%d/%d", port>>8, port&0xff)
	}
	return fmt.Sprintf("%d:%d", proto, port)
}

// parts splits an entry's attributes: key is those that name it, value those that are kept beside it.
func parts(data []byte) (key, value []byte) {
	_ = eachAttr(data, func(kind uint16, _, whole []byte) error { // no error: parseMember has read it before
		switch {
		case kind == ipsetAttrLineNo, kind == ipsetAttrPad, kind == ipsetAttrFlagsOf:
		case kind == ipsetAttrTimeout, kind >= ipsetAttrBytes:
			value = append(value, whole...)
		case kind == ipsetAttrIP, kind == ipsetAttrIP2:
			key = append(key, whole...)
			// Within its nest the kernel lists an address without the flag that it wants to see when it is given one.
			inner := key[len(key)-len(whole)+4:]
			binary.NativeEndian.PutUint16(inner[2:], binary.NativeEndian.Uint16(inner[2:])|attrNet)
		default:
			key = append(key, whole...)
		}
		return nil
	})
	return key, value
}

// request begins a request about a set: the netfilter header of 4 bytes, the protocol, and the set's name if there is one.
func request(set string) []byte {
	b := []byte{0, 0, 0, 0} // AF_UNSPEC, version 0, no resource
	b = appendAttr(b, ipsetAttrProtocol, []byte{ipsetProtocol})
	if set != "" {
		b = appendAttr(b, ipsetAttrSetName, append([]byte(set), 0))
	}
	return b
}

// entriesRequest adds or deletes entries of a set, given by their attributes. They are numbered from first, so that the kernel can say at which it
// stopped.
func entriesRequest(set string, entries [][]byte, first int) []byte {
	b := appendAttr(request(set), ipsetAttrLineNo, make([]byte, 4))
	var all []byte
	for i, data := range entries {
		numbered := appendAttr(data[:len(data):len(data)], ipsetAttrLineNo, binary.NativeEndian.AppendUint32(nil, uint32(first+i)))
		all = appendAttr(all, ipsetAttrData|attrNested, numbered)
	}
	return appendAttr(b, ipsetAttrADT|attrNested, all)
}

// stoppedAt is the number of the entry at which the kernel stopped, by its error message: an errno, and the request with the number filled in.
func stoppedAt(message []byte) (int, bool) {
	const headers = 4 + 16 + sizeofNfgenmsg // errno, nlmsghdr, nfgenmsg
	if len(message) < headers {
		return 0, false
	}
	for b := message[headers:]; len(b) > 0; {
		kind, value, rest, err := nextAttr(b)
		if err != nil {
			return 0, false
		}
		if kind == ipsetAttrLineNo && len(value) == 4 {
			n := binary.NativeEndian.Uint32(value)
			return int(n), n > 0
		}
		b = rest
	}
	return 0, false
}
