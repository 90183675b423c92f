package dataplane

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

func addresses(texts ...string) *Addresses {
	s := NewAddresses()
	for _, text := range texts {
		s.add(netip.MustParseAddr(text))
	}
	return s
}

// listed is an entry as the kernel lists it: its address within a nest, without the flag of the byte order there.
func listed(address string, more ...byte) []byte {
	a := addr(address)
	kind := uint16(ipsetAttrIPv4)
	if a.Is6() {
		kind = ipsetAttrIPv6
	}
	return append(appendAttr(nil, ipsetAttrIP|attrNested, appendAttr(nil, kind, a.AsSlice())), more...)
}

func attr(kind uint16, value ...byte) []byte { return appendAttr(nil, kind, value) }

func TestMember(t *testing.T) {
	port := func(proto byte, port uint16) []byte {
		return append(attr(ipsetAttrPort|attrNet, binary.BigEndian.AppendUint16(nil, port)...), attr(ipsetAttrProto, proto)...)
	}
	second := attr(ipsetAttrIP2|attrNested, attr(ipsetAttrIPv4, 10, 0, 0, 2)...)
	for _, test := range []struct {
		data []byte
		text string
		host bool
	}{
		{listed("10.0.0.1"), "10.0.0.1", true},
		{listed("10.0.0.1", attr(ipsetAttrCIDR, 32)...), "10.0.0.1", true},
		{listed("10.0.0.0", attr(ipsetAttrCIDR, 24)...), "10.0.0.0/24", false},
		{listed("10.0.0.1", attr(ipsetAttrFlagsOf|attrNet, 0, 0, 0, ipsetFlagNoMatch)...), "10.0.0.1", false},
		{listed("0.0.0.0"), "0.0.0.0", false},
		{listed("fd00::1", attr(ipsetAttrCIDR, 128)...), "fd00::1", true},
		{listed("fd00::", attr(ipsetAttrCIDR, 64)...), "fd00::/64", false},
		{listed("10.0.0.1", port(6, 80)...), "10.0.0.1,tcp:80", true},
		{listed("10.0.0.1", port(1, 0x0800)...), "10.0.0.1,icmp:8/0", true},
		{listed("fd00::1", port(58, 0x8000)...), "fd00::1,icmpv6:128/0", true},
		{listed("fd00::1", port(1, 0x0800)...), "fd00::1,1:2048", true},
		{listed("10.0.0.1", append(port(17, 53), second...)...), "10.0.0.1,udp:53,10.0.0.2", true},
	} {
		m, err := parseMember(test.data)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		a, host := m.hostOf(nil)
		if m.text() != test.text || host != test.host {
			t.Errorf("got %s (%v), want %s (%v)", m.text(), host, test.text, test.host)
		}
		if host && !addresses(a.String()).Has(a) {
			t.Errorf("%s: the address is %s", test.text, a)
		}
		if _, wanted := m.hostOf(addresses("10.9.9.9", "fd99::9")); wanted {
			t.Errorf("%s was taken for another address", test.text)
		}
	}
}

func TestMemberParts(t *testing.T) {
	data := listed("10.0.0.1")
	for _, more := range [][]byte{
		attr(ipsetAttrCIDR, 32), attr(ipsetAttrTimeout|attrNet, 0, 0, 0, 9), attr(ipsetAttrLineNo, 1, 0, 0, 0),
		attr(ipsetAttrBytes|attrNet, 0, 0, 0, 0, 0, 0, 0, 7), attr(ipsetAttrPad), attr(26, 'c', 0),
	} {
		data = append(data, more...)
	}
	key, value := parts(data)
	// Given to the kernel, an address needs the flag.
	wantKey := append(attr(ipsetAttrIP|attrNested, attr(ipsetAttrIPv4|attrNet, 10, 0, 0, 1)...), attr(ipsetAttrCIDR, 32)...)
	wantValue := append(append(attr(ipsetAttrTimeout|attrNet, 0, 0, 0, 9), attr(ipsetAttrBytes|attrNet, 0, 0, 0, 0, 0, 0, 0, 7)...), attr(26, 'c', 0)...)
	if !bytes.Equal(key, wantKey) || !bytes.Equal(value, wantValue) {
		t.Errorf("the key is %x, want %x\nthe value is %x, want %x", key, wantKey, value, wantValue)
	}
}

func TestSetMessage(t *testing.T) {
	entries := append(attr(ipsetAttrData|attrNested, listed("10.0.0.1")...), attr(ipsetAttrData|attrNested, listed("10.0.0.2")...)...)
	message := attr(ipsetAttrProtocol, ipsetProtocol)
	message = appendAttr(message, ipsetAttrSetName, []byte("name\x00"))
	message = appendAttr(message, ipsetAttrTypeName, []byte("hash:ip\x00"))
	message = appendAttr(message, ipsetAttrData|attrNested, append(attr(ipsetAttrMaxElem|attrNet, 0, 1, 0, 0), attr(ipsetAttrNetmask, 24)...))
	message = appendAttr(message, ipsetAttrADT|attrNested, entries)
	m, err := parseSetMessage(message)
	if err != nil || m.name != "name" || m.kind != "hash:ip" || m.maxElem != 65536 || !m.masked {
		t.Errorf("got %+v, %v", m, err)
	}
	n := 0
	if err := eachEntry(m.entries, func([]byte) error { n++; return nil }); err != nil || n != 2 {
		t.Errorf("%d entries, %v", n, err)
	}
	// Cut anywhere, it is an error or a message without what was cut off.
	for size := range len(message) {
		cut, err := parseSetMessage(message[:size])
		if err == nil && cut.name != "name" {
			t.Errorf("cut to %d bytes: %+v", size, cut)
		}
	}
	if _, err := parseSetMessage(attr(ipsetAttrProtocol, 6)); err == nil {
		t.Error("a message without a name was taken")
	}
}

func TestEntriesRequest(t *testing.T) {
	keys := [][]byte{listed("10.0.0.1"), listed("10.0.0.2")}
	b := entriesRequest("name", keys, 1)
	var numbers []uint32
	for rest := b[4:]; len(rest) > 0; {
		kind, value, next, err := nextAttr(rest)
		if err != nil {
			t.Fatal(err)
		}
		if kind == ipsetAttrADT {
			err = eachEntry(value, func(data []byte) error {
				for len(data) > 0 {
					kind, value, rest, err := nextAttr(data)
					if err != nil {
						return err
					}
					if kind == ipsetAttrLineNo {
						numbers = append(numbers, binary.NativeEndian.Uint32(value))
					}
					data = rest
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		rest = next
	}
	if len(numbers) != 2 || numbers[0] != 1 || numbers[1] != 2 {
		t.Errorf("the entries' numbers are %v", numbers)
	}
	if string(keys[0]) != string(listed("10.0.0.1")) {
		t.Error("the request changed the key that it was made of")
	}

	// The kernel's error has the request, with the number filled in: errno, nlmsghdr, nfgenmsg, attributes.
	answer := append(append(make([]byte, 20), request("name")...), attr(ipsetAttrLineNo, 7, 0, 0, 0)...)
	if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		if at, numbered := stoppedAt(answer); at != 7 || !numbered {
			t.Errorf("stopped at %d (%v)", at, numbered)
		}
	}
	for size := range len(answer) {
		stoppedAt(answer[:size]) // must not panic
	}
}

// Whatever bytes come, nothing panics, and what is told of an entry can be given back to the kernel.
func FuzzParseSetMessage(f *testing.F) {
	f.Add(appendAttr(appendAttr(nil, ipsetAttrSetName, []byte("a\x00")), ipsetAttrADT|attrNested, attr(ipsetAttrData|attrNested, listed("10.0.0.1", attr(ipsetAttrCIDR, 32)...)...)))
	f.Add(appendAttr(appendAttr(nil, ipsetAttrSetName, []byte("a\x00")), ipsetAttrData|attrNested, attr(ipsetAttrMaxElem|attrNet, 0, 0, 1, 0)))
	f.Add([]byte{4, 0, 1, 0, 3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, message []byte) {
		m, err := parseSetMessage(message)
		if err != nil {
			return
		}
		_ = eachEntry(m.entries, func(data []byte) error {
			member, err := parseMember(data)
			if err != nil {
				return err
			}
			a, host := member.hostOf(nil)
			if host && (!a.IsValid() || a.Is4In6()) {
				t.Errorf("the address is %v", a)
			}
			if wanted := (NewAddresses(netip.MustParseAddr("10.0.0.1"))); host {
				if _, is := member.hostOf(wanted); is != (a == netip.MustParseAddr("10.0.0.1")) {
					t.Errorf("%s is wanted: %v", a, is)
				}
			}
			_ = member.text()
			key, _ := parts(data)
			again, err := parseMember(key)
			if err != nil || !bytes.Equal(again.ip, member.ip) || !bytes.Equal(again.port, member.port) {
				t.Errorf("the key %x of %x reads as %+v: %v", key, data, again, err)
			}
			return nil
		})
	})
}
