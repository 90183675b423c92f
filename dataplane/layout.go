package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// A Layout says where the entries of a BPF map hold what counts here. Offsets and sizes are in bytes.
type Layout struct {
	Expect         Expect
	Addresses      []AddressField
	PrefixLength   *PrefixLengthField // of an LPM trie
	KeepIf         []KeepBits
	OwnerInterface *InterfaceField
}

// A MapType is a type of BPF map.
type MapType string

// The map types that can be cleaned.
const (
	MapHash    MapType = "Hash"
	MapLRUHash MapType = "LRUHash"
	MapLPMTrie MapType = "LPMTrie"
)

// Expect is what must be true of a map before it is touched; 0 and "" are any.
type Expect struct {
	Type               MapType
	KeySize, ValueSize int
	Name               string
}

// An AddressField is where a key holds an address, in network order: 4 bytes of IPv4, or 16.
type AddressField struct {
	Offset, Size int
	Family       *FamilyField
	Role         Role
}

// A Role says whose an address in an entry is.
type Role string

// The roles of addresses. Entries go only with their owner's address.
const (
	RoleOwner       Role = "owner"
	RoleSource      Role = "source"
	RoleDestination Role = "destination"
)

// A FamilyField is a byte of the key that tells what the 16 bytes of an address hold. IPv4 is in the first 4.
type FamilyField struct {
	Offset     int
	IPv4, IPv6 uint8
}

// A PrefixLengthField is where the key of an LPM trie holds its prefix length, a host-endian u32. BaseBits are those that a host entry has besides
// its address's.
type PrefixLengthField struct{ Offset, BaseBits int }

// KeepBits protects entries whose number at Offset, host-endian and masked, equals Equals.
type KeepBits struct {
	In           EntryPart
	Offset, Size int
	Mask, Equals uint64
}

// An EntryPart is one of the two parts of a map's entry.
type EntryPart string

// The parts of an entry.
const (
	InKey   EntryPart = "key"
	InValue EntryPart = "value"
)

// An InterfaceField is where the value holds an interface's index, a host-endian u32.
type InterfaceField struct{ Offset int }

// The sizes of addresses in bytes, and of the numbers whose size the kernel gives.
const (
	size4, size16 = 4, 16
	size32        = 4
)

// fits returns what does not fit into keys and values of those sizes.
func (l *Layout) fits(keySize, valueSize int) error {
	within := func(what string, offset, size int, part EntryPart) error {
		whole := keySize
		if part == InValue {
			whole = valueSize
		}
		if offset < 0 || size < 0 || offset > whole-size {
			return fmt.Errorf("%s is said to be at offset %d with %d bytes, but the map's %s has %d bytes", what, offset, size, part, whole)
		}
		return nil
	}
	for _, a := range l.Addresses {
		if a.Size != size4 && a.Size != size16 {
			return fmt.Errorf("an address cannot have %d bytes", a.Size)
		}
		if err := within("an address", a.Offset, a.Size, InKey); err != nil {
			return err
		}
		if a.Family != nil && a.Size != size16 {
			return fmt.Errorf("an address of %d bytes cannot have a family", a.Size)
		}
		if a.Family != nil {
			if err := within("the address family", a.Family.Offset, 1, InKey); err != nil {
				return err
			}
		}
	}
	if l.PrefixLength != nil {
		if err := within("the prefix length", l.PrefixLength.Offset, size32, InKey); err != nil {
			return err
		}
	}
	for _, k := range l.KeepIf {
		if k.Size != 1 && k.Size != 2 && k.Size != 4 && k.Size != 8 {
			return fmt.Errorf("a number of keepIf cannot have %d bytes", k.Size)
		}
		if err := within("a number of keepIf", k.Offset, k.Size, k.In); err != nil {
			return err
		}
	}
	if l.OwnerInterface != nil {
		return within("the interface", l.OwnerInterface.Offset, size32, InValue)
	}
	return nil
}

// mayHold is a quick look before find, of which a scan of a large map needs millions: false where no wanted address ends as one of the key's does.
// The layout must fit.
func (l *Layout) mayHold(key []byte, wanted *Addresses) bool {
	if wanted == nil {
		return true
	}
	for i := range l.Addresses {
		f := &l.Addresses[i]
		last := f.Offset + f.Size - 2 // also of IPv4 in IPv6
		if wanted.mayEnd(key[last], key[last+1]) {
			return true
		}
		if f.Family != nil && wanted.mayEnd(key[f.Offset+2], key[f.Offset+3]) { // IPv4 in the first 4 bytes
			return true
		}
	}
	return false
}

// find returns the first wanted address that a key holds, its owner's before others'. Keys of networks hold none. The layout must fit.
func (l *Layout) find(key []byte, wanted *Addresses) (a netip.Addr, role Role, found bool) {
	for i := range l.Addresses {
		f := &l.Addresses[i]
		if f.Role != RoleOwner && found {
			continue
		}
		if address, is := l.address(f, key, wanted); is {
			if f.Role == RoleOwner {
				return address, f.Role, true
			}
			a, role, found = address, f.Role, true
		}
	}
	return a, role, found
}

// address is the one in the field, if it is wanted and the whole key is about it alone.
func (l *Layout) address(f *AddressField, key []byte, wanted *Addresses) (netip.Addr, bool) {
	var a netip.Addr
	switch is4 := f.Size == size4; {
	case !is4 && f.Family != nil && key[f.Family.Offset] != f.Family.IPv4 && key[f.Family.Offset] != f.Family.IPv6:
		return a, false
	case is4, f.Family != nil && key[f.Family.Offset] == f.Family.IPv4:
		four := [size4]byte(key[f.Offset:])
		if !wanted.has4(four) || !isZero(key[f.Offset+size4:f.Offset+f.Size]) {
			return a, false
		}
		a = netip.AddrFrom4(four)
	default:
		sixteen := [size16]byte(key[f.Offset:])
		a = netip.AddrFrom16(sixteen)
		if a.Is4In6() {
			if f.Family != nil {
				return a, false // said to be IPv6, and no pod has such an address
			}
			a = a.Unmap()
		}
		if !wanted.Has(a) {
			return a, false
		}
	}
	if l.PrefixLength != nil {
		bits := l.PrefixLength.BaseBits + a.BitLen()
		if f.Size == size16 && f.Family == nil {
			bits = l.PrefixLength.BaseBits + 8*size16 // also of IPv4 in IPv6
		}
		if int64(binary.NativeEndian.Uint32(key[l.PrefixLength.Offset:])) != int64(bits) {
			return a, false
		}
	}
	return a, !a.IsUnspecified()
}

func isZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// entry is what is told of an entry in which find found an address.
func (l *Layout) entry(table string, a netip.Addr, role Role, key, value []byte) Entry {
	e := Entry{
		Table: table, Address: a, Peer: role != RoleOwner, Text: fmt.Sprintf("%s key hex % x", a, key), // as bpftool wants it
		Key: append([]byte(nil), key...), Value: append([]byte(nil), value...),
	}
	for _, k := range l.KeepIf {
		if number, kept := k.holds(key, value); kept {
			e.Protected = fmt.Sprintf("keepIf protects it: the %s has %#x at offset %d", k.In, number, k.Offset)
			break
		}
	}
	if l.OwnerInterface != nil {
		e.Interface = binary.NativeEndian.Uint32(value[l.OwnerInterface.Offset:])
	}
	return e
}

func (k *KeepBits) holds(key, value []byte) (number uint64, holds bool) {
	part := key
	if k.In == InValue {
		part = value
	}
	switch part = part[k.Offset:]; k.Size {
	case 1:
		number = uint64(part[0])
	case 2:
		number = uint64(binary.NativeEndian.Uint16(part))
	case 4:
		number = uint64(binary.NativeEndian.Uint32(part))
	default:
		number = binary.NativeEndian.Uint64(part)
	}
	return number, number&k.Mask == k.Equals
}
