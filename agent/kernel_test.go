package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/unstale/unstale/dataplane"
)

// The tables that a configuration has, each as cautious as the most cautious word about it.
func TestKernelTargets(t *testing.T) {
	const tables = "ipsets: [{name: sets, match: x, types: [\"hash:ip\"], scope: node, onSandboxLoss: Scrub}], " +
		"bpfMaps: [{name: maps, pin: /x, addresses: [{offset: 0, size: 4}], scope: cluster, mode: Report}]"
	for _, test := range []struct{ text, want string }{
		{"kernel: {}", "conntrack cluster report, neighbors cluster report"},
		{"kernel: {mode: Enforce, conntrack: {enabled: false}, neighbors: {enabled: false}}", ""},
		{"kernel: {mode: Enforce, conntrack: {mode: Report}}", "conntrack cluster report, neighbors cluster"},
		{"kernel: {mode: Enforce, " + tables + "}", "sets node scrub, maps cluster report, conntrack cluster, neighbors cluster"},
		{"mode: Report\nkernel: {mode: Enforce, " + tables + "}", "sets node scrub report, maps cluster report, conntrack cluster report, neighbors cluster report"},
		{"kernel: {" + tables + ", neighbors: {mode: Enforce}}", "sets node scrub report, maps cluster report, conntrack cluster report, neighbors cluster report"},
	} {
		c := mustParse(t, test.text)
		var got []string
		for _, target := range kernelTargets(c.Kernel, c.Mode) {
			line := fmt.Sprint(target.Name, " ", target.Scope)
			if target.ScrubOnLoss {
				line += " scrub"
			}
			if !target.Enforce {
				line += " report"
			}
			got = append(got, line)
		}
		if strings.Join(got, ", ") != test.want {
			t.Errorf("%s\ngot  %s\nwant %s", test.text, strings.Join(got, ", "), test.want)
		}
	}
}

// What the configuration says of a table reaches the table.
func TestKernelTables(t *testing.T) {
	c := mustParse(t, `kernel:
  ipsets: [{name: sets, match: "^x", types: ["hash:ip", "hash:net"], scope: node, maxElemNot: 7}]
  bpfMaps:
  - name: maps
    pin: /x/*
    expect: {type: LPMTrie, keySize: 24, valueSize: 12, name: n}
    addresses: [{offset: 8, size: 16, family: {offset: 7, ipv4: 1, ipv6: 2}, role: owner}]
    prefixLength: {offset: 0, baseBits: 32}
    keepIf: [{in: value, offset: 8, size: 4, mask: 0x1, equals: 0x1}, {in: key, offset: 4, size: 2, equals: 0x3}]
    ownerInterface: {offset: 4}
    scope: node
`)
	sets := c.Kernel.IPSets[0].table().(*dataplane.IPSets)
	compare(t, fmt.Sprint(sets.Match, sets.Types, sets.MaxElemNot), "^x [hash:ip hash:net] 7")
	maps := c.Kernel.BPFMaps[0].table().(*dataplane.BPFMaps)
	compare(t, maps.Layout, dataplane.Layout{
		Expect:       dataplane.Expect{Type: dataplane.MapLPMTrie, KeySize: 24, ValueSize: 12, Name: "n"},
		Addresses:    []dataplane.AddressField{{Offset: 8, Size: 16, Family: &dataplane.FamilyField{Offset: 7, IPv4: 1, IPv6: 2}, Role: dataplane.RoleOwner}},
		PrefixLength: &dataplane.PrefixLengthField{Offset: 0, BaseBits: 32},
		KeepIf: []dataplane.KeepBits{
			{In: dataplane.InValue, Offset: 8, Size: 4, Mask: 1, Equals: 1}, {In: dataplane.InKey, Offset: 4, Size: 2, Mask: 0xffff, Equals: 3},
		},
		OwnerInterface: &dataplane.InterfaceField{Offset: 4},
	})
	compare(t, maps.Pin, "/x/*")
}
