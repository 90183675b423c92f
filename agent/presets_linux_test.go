//go:build linux && kernel

package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/bpffs"
)

// The presets find in maps of the layouts that their writers use what they may remove, and nothing else.
func TestPresetLayouts(t *testing.T) {
	pins := bpffs.New(t)
	u32 := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	ip := func(text string, size int) []byte {
		return append(netip.MustParseAddr(text).AsSlice(), make([]byte, size)...)[:size]
	}
	lpm := func(bits uint32, rest ...[]byte) []byte { return slices.Concat(u32(bits), slices.Concat(rest...)) }
	type entry struct{ key, value []byte }
	c := mustParse(t, "presets: [calico, cilium, aws-network-policy]")
	for _, test := range []struct {
		target, name string
		kind         ebpf.MapType
		values       int
		entries      []entry
		want         []string // "address", "address interface N", "address kept"
	}{
		{"cilium-lxc", "cilium_lxc", ebpf.Hash, 24, []entry{
			{slices.Concat(ip("10.0.0.1", 16), []byte{1, 0, 0, 0}), slices.Concat(u32(7), make([]byte, 20))},
			{slices.Concat(ip("10.0.0.2", 16), []byte{1, 0, 0, 0}), slices.Concat(u32(1), make([]byte, 4), u32(1), make([]byte, 12))}, // the host
			{slices.Concat(ip("fd00::1", 16), []byte{2, 0, 0, 0}), slices.Concat(u32(8), make([]byte, 20))},
		}, []string{"10.0.0.1 interface 7", "10.0.0.2 interface 1 kept", "fd00::1 interface 8"}},
		{"cilium-ipcache", "cilium_ipcache", ebpf.LPMTrie, 12, []entry{
			{lpm(64, []byte{0, 0, 0, 1}, ip("10.0.0.1", 16)), make([]byte, 12)},
			{lpm(56, []byte{0, 0, 0, 1}, ip("10.0.0.0", 16)), make([]byte, 12)},
			{lpm(160, []byte{0, 0, 0, 2}, ip("fd00::1", 16)), make([]byte, 12)},
			{lpm(32, []byte{0, 0, 0, 1}, ip("0.0.0.0", 16)), make([]byte, 12)},
		}, []string{"10.0.0.1", "fd00::1"}},
		{"calico-routes", "cali_v4_routes", ebpf.LPMTrie, 8, []entry{
			{lpm(32, ip("10.0.0.1", 4)), slices.Concat(u32(0x4|0x8), u32(9))},           // a pod of this node
			{lpm(32, ip("10.0.0.2", 4)), slices.Concat(u32(0x4), ip("192.168.0.2", 4))}, // of another: a next hop, no interface
			{lpm(32, ip("192.168.0.1", 4)), slices.Concat(u32(0x8|0x10), u32(2))},       // this node
			{lpm(26, ip("10.0.1.0", 4)), slices.Concat(u32(0x4), ip("192.168.0.2", 4))}, // another node's block
			{lpm(32, ip("10.0.0.3", 4)), slices.Concat(u32(0x4|0x8|0x10), u32(9))},      // a host's
		}, []string{"10.0.0.1 interface 9", "10.0.0.2 interface kept", "10.0.0.3 interface 9 kept", "192.168.0.1 interface 2 kept"}},
		{"calico-ip-sets", "cali_v4_ip_sets", ebpf.LPMTrie, 4, []entry{
			{lpm(96, make([]byte, 8), ip("10.0.0.1", 4), make([]byte, 4)), u32(1)},
			{lpm(88, make([]byte, 8), ip("10.0.0.0", 4), make([]byte, 4)), u32(1)},
			{lpm(120, make([]byte, 8), ip("10.0.0.2", 4), []byte{0, 80, 6, 0}), u32(1)}, // a named port
		}, []string{"10.0.0.1"}},
		{"calico-named-ports", "cali_v4_ip_sets_2", ebpf.LPMTrie, 4, []entry{
			{lpm(96, make([]byte, 8), ip("10.0.0.1", 4), make([]byte, 4)), u32(1)},
			{lpm(120, make([]byte, 8), ip("10.0.0.2", 4), []byte{0, 80, 6, 0}), u32(1)},
		}, []string{"10.0.0.2"}},
		{"aws-policy-ingress", "x@default_ingress_map", ebpf.LPMTrie, 32, []entry{
			{lpm(32, ip("10.0.0.1", 4)), make([]byte, 32)},
			{lpm(16, ip("10.0.0.0", 4)), make([]byte, 32)},
		}, []string{"10.0.0.1"}},
		{"aws-policy-connections", "global_aws_conntrack_map", ebpf.LRUHash, 4, []entry{
			{slices.Concat(ip("10.0.0.1", 4), []byte{1, 2, 0, 0}, ip("10.0.0.2", 4), []byte{0, 80, 6, 0}, ip("10.0.0.1", 4), u32(0)), u32(1)},
			{slices.Concat(ip("10.0.0.3", 4), []byte{1, 2, 0, 0}, ip("10.0.0.4", 4), []byte{0, 80, 6, 0}, ip("10.0.0.4", 4), u32(0)), u32(1)},
		}, []string{"10.0.0.1", "10.0.0.4"}},
	} {
		t.Run(test.target, func(t *testing.T) {
			i := slices.IndexFunc(c.Kernel.BPFMaps, func(m BPFMapConfig) bool { return m.Name == test.target })
			config := c.Kernel.BPFMaps[i]
			spec := ebpf.MapSpec{Type: test.kind, KeySize: uint32(len(test.entries[0].key)), ValueSize: uint32(test.values), MaxEntries: 10}
			if test.kind == ebpf.LPMTrie {
				spec.Flags = unix.BPF_F_NO_PREALLOC
			}
			if len(test.name) < unix.BPF_OBJ_NAME_LEN { // longer ones, and those with other characters, the kernel does not take
				spec.Name = test.name
			}
			m, err := ebpf.NewMap(&spec)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if ok, err := filepath.Match(filepath.Base(config.Pin), test.name); !ok || err != nil {
				t.Errorf("the preset looks for %s, not for %s", config.Pin, test.name)
			}
			config.Pin = filepath.Join(pins, fmt.Sprint(test.target))
			if err := m.Pin(config.Pin); err != nil {
				t.Fatal(err)
			}
			for _, e := range test.entries {
				if err := m.Put(e.key, e.value); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			err = config.table().Read(t.Context(), nil, func(e dataplane.Entry) {
				line := e.Address.String()
				if e.Interface != 0 && e.Interface < 100 {
					line += fmt.Sprint(" interface ", e.Interface)
				} else if e.Interface != 0 {
					line += " interface"
				}
				if e.Protected != "" {
					line += " kept"
				}
				got = append(got, line)
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
