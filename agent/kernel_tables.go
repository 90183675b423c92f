package agent

import (
	"regexp"

	"github.com/unstale/unstale/dataplane"
)

// table is the ipsets of a configuration that was validated.
func (c *IPSetConfig) table() dataplane.Table {
	return &dataplane.IPSets{Match: regexp.MustCompile(c.Match), Types: c.Types, MaxElemNot: c.MaxElemNot}
}

// table is the BPF maps of a configuration that was validated.
func (c *BPFMapConfig) table() dataplane.Table {
	l := dataplane.Layout{
		Expect: dataplane.Expect{Type: c.Expect.Type, KeySize: c.Expect.KeySize, ValueSize: c.Expect.ValueSize, Name: c.Expect.Name},
	}
	for _, a := range c.Addresses {
		field := dataplane.AddressField{Offset: a.Offset, Size: a.Size, Role: a.Role}
		if a.Family != nil {
			field.Family = &dataplane.FamilyField{Offset: a.Family.Offset, IPv4: a.Family.IPv4, IPv6: a.Family.IPv6}
		}
		l.Addresses = append(l.Addresses, field)
	}
	if c.PrefixLength != nil {
		l.PrefixLength = &dataplane.PrefixLengthField{Offset: c.PrefixLength.Offset, BaseBits: c.PrefixLength.BaseBits}
	}
	for _, k := range c.KeepIf {
		bits := dataplane.KeepBits{In: k.In, Offset: k.Offset, Size: k.Size, Mask: ^uint64(0) >> (64 - 8*k.Size), Equals: k.Equals}
		if k.Mask != nil {
			bits.Mask = *k.Mask
		}
		l.KeepIf = append(l.KeepIf, bits)
	}
	if c.OwnerInterface != nil {
		l.OwnerInterface = &dataplane.InterfaceField{Offset: c.OwnerInterface.Offset}
	}
	return &dataplane.BPFMaps{Pin: c.Pin, Layout: l}
}
