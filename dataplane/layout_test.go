package dataplane

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestLayoutFind(t *testing.T) {
	owner := func(offset, size int) AddressField { return AddressField{Offset: offset, Size: size, Role: RoleOwner} }
	tagged := []AddressField{{Offset: 0, Size: 16, Family: &FamilyField{16, 1, 2}, Role: RoleOwner}}
	trie := func(fields ...AddressField) Layout {
		return Layout{Addresses: fields, PrefixLength: &PrefixLengthField{0, 32}}
	}
	prefix := func(n uint32) string { return hex.EncodeToString(binary.NativeEndian.AppendUint32(nil, n)) }
	for _, test := range []struct {
		name   string
		layout Layout
		key    string
		want   string // empty: none
	}{
		{"IPv4", Layout{Addresses: []AddressField{owner(1, 4)}}, "ff 0a000001", "10.0.0.1 owner"},
		{"nobody's", Layout{Addresses: []AddressField{owner(0, 4)}}, "00000000", ""},
		{"16 bytes", Layout{Addresses: []AddressField{owner(0, 16)}}, "fd000000000000000000000000000001", "fd00::1 owner"},
		{"IPv4 in IPv6", Layout{Addresses: []AddressField{owner(0, 16)}}, "00000000000000000000ffff0a000001", "10.0.0.1 owner"},
		{"tagged IPv4", Layout{Addresses: tagged}, "0a000001 000000000000000000000000 01", "10.0.0.1 owner"},
		{"tagged IPv4 and more", Layout{Addresses: tagged}, "0a000001 000000000000000000000001 01", ""},
		{"tagged IPv6", Layout{Addresses: tagged}, "fd000000000000000000000000000001 02", "fd00::1 owner"},
		{"IPv4 in what is tagged IPv6", Layout{Addresses: tagged}, "00000000000000000000ffff0a000001 02", ""},
		{"tagged otherwise", Layout{Addresses: tagged}, "0a000001 000000000000000000000000 03", ""},
		{"host entry", trie(owner(4, 4)), prefix(64) + "0a000001", "10.0.0.1 owner"},
		{"network", trie(owner(4, 4)), prefix(63) + "0a000000", ""},
		{"longer than a host", trie(owner(4, 4)), prefix(72) + "0a000001", ""},
		{"host entry of IPv4 in 16 bytes", trie(AddressField{4, 16, &FamilyField{20, 1, 2}, RoleOwner}), prefix(64) + "0a000001 000000000000000000000000 01", "10.0.0.1 owner"},
		{"IPv4 with the length of IPv6", trie(AddressField{4, 16, &FamilyField{20, 1, 2}, RoleOwner}), prefix(160) + "0a000001 000000000000000000000000 01", ""},
		{"host entry of IPv6", trie(AddressField{4, 16, &FamilyField{20, 1, 2}, RoleOwner}), prefix(160) + "fd000000000000000000000000000001 02", "fd00::1 owner"},
		{"IPv6 network, of which more is written than its bits", trie(AddressField{4, 16, &FamilyField{20, 1, 2}, RoleOwner}), prefix(64) + "00000000000000000000ffff0a000001 02", ""},
		{"host entry of IPv4 in IPv6", trie(owner(4, 16)), prefix(160) + "00000000000000000000ffff0a000001", "10.0.0.1 owner"},
		{"network of IPv4 in IPv6", trie(owner(4, 16)), prefix(64) + "00000000000000000000ffff0a000001", ""},
		{"the owner before the peer", Layout{Addresses: []AddressField{{0, 4, nil, RoleSource}, {4, 4, nil, RoleOwner}}}, "0a000001 0a000002", "10.0.0.2 owner"},
		{"the first of two owners", Layout{Addresses: []AddressField{owner(0, 4), owner(4, 4)}}, "0a000001 0a000002", "10.0.0.1 owner"},
		{"a peer only", Layout{Addresses: []AddressField{{0, 4, nil, RoleSource}, {4, 4, nil, RoleDestination}}}, "0a000001 0a000002", "10.0.0.1 source"},
	} {
		a, role, found := test.layout.find(unhex(t, test.key), nil)
		got := ""
		if found {
			got = a.String() + " " + string(role)
		}
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.name, got, test.want)
		}
	}
	both := Layout{Addresses: []AddressField{{0, 4, nil, RoleOwner}, {4, 4, nil, RoleSource}}}
	if a, role, found := both.find(unhex(t, "0a000001 0a000002"), addresses("10.0.0.2")); !found || a != addr("10.0.0.2") || role != RoleSource {
		t.Errorf("the peer that is wanted: %v %v %v", a, role, found)
	}
}

func TestLayoutEntry(t *testing.T) {
	l := Layout{
		Addresses: []AddressField{{0, 4, nil, RoleOwner}}, OwnerInterface: &InterfaceField{4},
		KeepIf: []KeepBits{{InKey, 4, 1, 0xff, 7}, {InValue, 0, 4, 0x10, 0x10}},
	}
	value := slices.Concat(binary.NativeEndian.AppendUint32(nil, 0x31), binary.NativeEndian.AppendUint32(nil, 42))
	e := l.entry("map", addr("10.0.0.1"), RoleOwner, unhex(t, "0a000001 06"), value)
	if e.Interface != 42 || e.Peer || !strings.Contains(e.Protected, "the value has 0x31 at offset 0") || e.Text != "10.0.0.1 key hex 0a 00 00 01 06" {
		t.Errorf("got %+v", e)
	}
	value[0], value[1], value[2], value[3] = 0, 0, 0, 0
	if e := l.entry("map", addr("10.0.0.1"), RoleSource, unhex(t, "0a000001 06"), value); e.Protected != "" || !e.Peer {
		t.Errorf("got %+v", e)
	}
	if e := l.entry("map", addr("10.0.0.1"), RoleOwner, unhex(t, "0a000001 07"), value); !strings.Contains(e.Protected, "key") {
		t.Errorf("got %+v", e)
	}
}

// obvious is find in plain words, for the fuzz target.
func obvious(l *Layout, key []byte) (owners, others []string) {
	for _, f := range l.Addresses {
		part := key[f.Offset : f.Offset+f.Size]
		text := ""
		switch {
		case f.Size == 4:
			text = netip.AddrFrom4([4]byte(part)).String()
		case f.Family == nil:
			text = netip.AddrFrom16([16]byte(part)).Unmap().String()
		case key[f.Family.Offset] == f.Family.IPv4 && strings.Trim(string(part[4:]), "\x00") == "":
			text = netip.AddrFrom4([4]byte(part[:4])).String()
		case key[f.Family.Offset] == f.Family.IPv4:
		case key[f.Family.Offset] == f.Family.IPv6 && !netip.AddrFrom16([16]byte(part)).Is4In6():
			text = netip.AddrFrom16([16]byte(part)).String()
		}
		if text == "" || text == "0.0.0.0" || text == "::" {
			continue
		}
		if l.PrefixLength != nil {
			bits := 128
			if f.Size == 4 || f.Family != nil && key[f.Family.Offset] == f.Family.IPv4 {
				bits = 32
			}
			if binary.NativeEndian.Uint32(key[l.PrefixLength.Offset:]) != uint32(l.PrefixLength.BaseBits+bits) {
				continue
			}
		}
		if f.Role == RoleOwner {
			owners = append(owners, text)
		} else {
			others = append(others, text)
		}
	}
	return owners, others
}

// A layout that fits never panics, and finds what the words say, whatever the bytes are.
func FuzzLayout(f *testing.F) {
	f.Add(0, 4, -1, 4, 16, 20, -1, 0, []byte("\x0a\x00\x00\x01\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x02"), []byte{1, 2, 3, 4})
	f.Add(8, 16, 7, 8, 16, 7, 0, 32, []byte("\x40\x00\x00\x00\x00\x00\x00\x01\x0a\x01\x02\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12})
	f.Fuzz(func(t *testing.T, offset1, size1, family1, offset2, size2, family2, prefix, base int, key, value []byte) {
		field := func(offset, size, family int, role Role) AddressField {
			a := AddressField{Offset: offset, Size: size, Role: role}
			if family >= 0 && size == 16 {
				a.Family = &FamilyField{family, 1, 2}
			}
			return a
		}
		l := Layout{
			Addresses: []AddressField{field(offset1, size1, family1, RoleSource), field(offset2, size2, family2, RoleOwner)},
			KeepIf:    []KeepBits{{InKey, offset1, size2, 0xff, 1}, {InValue, offset2, size1, 0xff, 1}}, OwnerInterface: &InterfaceField{offset1},
		}
		if size1 == 16 || size2 == 16 {
			l.KeepIf = nil
		}
		if prefix >= 0 {
			l.PrefixLength = &PrefixLengthField{prefix, base & 0xffff}
		}
		if l.fits(len(key), len(value)) != nil {
			return
		}
		owners, others := obvious(&l, key)
		a, role, found := l.find(key, nil)
		want := append(slices.Clone(owners), others...)
		if found != (len(want) > 0) || found && (a.String() != want[0] || (role == RoleOwner) != (len(owners) > 0)) {
			t.Fatalf("%+v %x: found %v %v %v, want of %v, %v", l, key, a, role, found, owners, others)
		}
		if !found {
			return
		}
		for _, text := range want {
			a, wanted := addr(text), addresses(text)
			if b, _, again := l.find(key, wanted); !again || b != a || !l.mayHold(key, wanted) {
				t.Errorf("%s is not found when it is wanted", a)
			}
		}
		_ = l.entry("map", a, role, key, value)
	})
}
