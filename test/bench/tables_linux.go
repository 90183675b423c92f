package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/bpffs"
)

// kernelBenchmarks are those of kernel tables. They need root.
var kernelBenchmarks = []benchmark{ipsets, bpfMaps, conntrack, pods, connectionLoss}

const (
	setEntries  = 100_000
	setRemovals = 5_000
)

var ipsets = benchmark{
	name: "ipsets",
	about: fmt.Sprintf("list an ipset of %d entries, beside ipset save, and delete %d of them, beside ipset restore (goal of both: no slower); as root",
		setEntries, setRemovals),
	run: func(ctx context.Context, s *session) error {
		return onOwnNetwork(func() error { return measureIPSets(ctx, s) })
	},
}

// onOwnNetwork calls do in a network namespace that ends with it.
func onOwnNetwork(do func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err != nil {
			err = fmt.Errorf("make a network namespace: %w; this benchmark needs root", err)
		} else {
			err = do()
		}
		result <- err
	}()
	return <-result
}

func measureIPSets(ctx context.Context, s *session) error {
	sets := &dataplane.IPSets{Match: regexp.MustCompile("^bench$"), Types: []string{"hash:ip"}}
	var fill, del strings.Builder
	fmt.Fprintf(&fill, "create bench hash:ip hashsize 65536 maxelem %d\n", 2*setEntries)
	var going []netip.Addr
	for i := range setEntries {
		a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		fmt.Fprintf(&fill, "add bench %s\n", a)
		if i%(setEntries/setRemovals) == 0 {
			going = append(going, a)
			fmt.Fprintf(&del, "del bench %s\n", a)
		}
	}
	wanted := dataplane.NewAddresses(going...)
	var add strings.Builder
	for _, a := range going {
		fmt.Fprintf(&add, "add bench %s\n", a)
	}
	if err := ipset(ctx, fill.String(), "restore"); err != nil {
		return err
	}
	var list, save, remove, restore samples
	for run := range s.runs + 1 { // the first one warms up
		s.logf("run %d of %d", run, s.runs)
		start, n := time.Now(), 0
		if err := sets.Read(ctx, nil, func(dataplane.Entry) { n++ }); err != nil || n != setEntries {
			return fmt.Errorf("read %d entries: %w", n, err)
		}
		listed := time.Since(start)
		start = time.Now()
		if err := ipset(ctx, "", "save", "bench"); err != nil {
			return err
		}
		saved := time.Since(start)

		var entries []dataplane.Entry
		if err := sets.Read(ctx, wanted, func(e dataplane.Entry) { entries = append(entries, e) }); err != nil || len(entries) != setRemovals {
			return fmt.Errorf("found %d entries: %w", len(entries), err)
		}
		start = time.Now()
		for _, o := range sets.Remove(ctx, entries) {
			if o.Result != dataplane.Removed {
				return fmt.Errorf("a removal ended with %v", o)
			}
		}
		removed := time.Since(start)
		if err := ipset(ctx, add.String(), "restore"); err != nil {
			return err
		}
		start = time.Now()
		if err := ipset(ctx, del.String(), "restore"); err != nil {
			return err
		}
		restored := time.Since(start)
		if err := ipset(ctx, add.String(), "restore"); err != nil {
			return err
		}
		if run == 0 {
			continue
		}
		list, save = append(list, millis(listed)), append(save, millis(saved))
		remove, restore = append(remove, millis(removed)), append(restore, millis(restored))
	}
	s.goal("ipsets/list", "ms", list, "ipset save", save, 1)
	s.goal("ipsets/delete", "ms", remove, "ipset restore", restore, 1)
	return nil
}

func ipset(ctx context.Context, input string, args ...string) error {
	cmd := exec.CommandContext(ctx, "ipset", args...)
	cmd.Stdin, cmd.Stdout = strings.NewReader(input), io.Discard
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("ipset %s: %w %s; Debian has it in the package ipset", strings.Join(args, " "), err, complaints.String())
	}
	return nil
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

const (
	hashEntries, hashOfAddress = 1_000_000, 50
	trieEntries, trieOfAddress = 500_000, 10
	lostAddresses              = 100
)

var bpfMaps = benchmark{
	name: "bpf",
	about: fmt.Sprintf("find and delete the entries of %d addresses in a hash of %d entries with compound keys, and in a trie of %d, beside the bare batch system calls (goal: 1.2x) and bpftool; as root",
		lostAddresses, hashEntries, trieEntries),
	run: measureBPF,
}

// A bpfCase is a map to measure with.
type bpfCase struct {
	name      string
	spec      ebpf.MapSpec
	layout    dataplane.Layout
	entries   int
	of        int // entries of each address
	key       func(key []byte, address, n int)
	addressOf func(address int) netip.Addr
}

func measureBPF(ctx context.Context, s *session) error {
	pins := filepath.Join(s.scratch, "bpf")
	if err := os.Mkdir(pins, 0o700); err != nil {
		return err
	}
	unmount, err := bpffs.Mount(pins)
	if err != nil {
		return err
	}
	defer unmount()
	four := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}) }
	for _, c := range []bpfCase{
		{
			// As eBPF connection tables have it: address, peer, ports, protocol, flags.
			name: "hash", spec: ebpf.MapSpec{Type: ebpf.Hash, KeySize: 14, ValueSize: 56, MaxEntries: hashEntries}, entries: hashEntries, of: hashOfAddress,
			layout: dataplane.Layout{
				Expect:    dataplane.Expect{Type: dataplane.MapHash, KeySize: 14},
				Addresses: []dataplane.AddressField{{Offset: 0, Size: 4, Role: dataplane.RoleOwner}},
			},
			key: func(key []byte, address, n int) {
				copy(key, four(address).AsSlice())
				copy(key[4:], []byte{192, 0, 2, byte(n), 0, 80, byte(n), byte(address), 6, 0})
			},
			addressOf: four,
		},
		{
			// As cali_v4_ip_sets: prefix length, set, address, port, protocol.
			name: "trie", spec: ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 20, ValueSize: 4, MaxEntries: trieEntries, Flags: unix.BPF_F_NO_PREALLOC}, entries: trieEntries, of: trieOfAddress,
			layout: dataplane.Layout{
				Expect:       dataplane.Expect{Type: dataplane.MapLPMTrie, KeySize: 20},
				Addresses:    []dataplane.AddressField{{Offset: 12, Size: 4, Role: dataplane.RoleOwner}},
				PrefixLength: &dataplane.PrefixLengthField{Offset: 0, BaseBits: 64},
			},
			key: func(key []byte, address, n int) {
				binary.NativeEndian.PutUint32(key, 96)
				key[4] = byte(n)
				copy(key[12:], four(address).AsSlice())
			},
			addressOf: four,
		},
	} {
		if err := c.measure(ctx, s, filepath.Join(pins, c.name)); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

func (c *bpfCase) measure(ctx context.Context, s *session, pin string) error {
	m, err := ebpf.NewMap(&c.spec)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Pin(pin); err != nil {
		return err
	}
	keySize, valueSize := int(c.spec.KeySize), int(c.spec.ValueSize)
	all := make([]byte, c.entries*keySize)
	for i := range c.entries {
		c.key(all[i*keySize:(i+1)*keySize], i/c.of, i%c.of)
	}
	const batch = 4096
	if err := c.put(m, all); err != nil {
		return err
	}
	// The lost addresses lie apart.
	var going []byte
	var lost []netip.Addr
	for k := range lostAddresses {
		i := k * (c.entries / c.of / lostAddresses)
		lost = append(lost, c.addressOf(i))
		going = append(going, all[i*c.of*keySize:(i+1)*c.of*keySize]...)
	}
	wanted := dataplane.NewAddresses(lost...)
	table := &dataplane.BPFMaps{Pin: pin, Layout: c.layout}

	var ours, bare, tool samples
	for run := range s.runs + 1 { // the first one warms up
		s.logf("%s: run %d of %d", c.name, run, s.runs)
		start := time.Now()
		var entries []dataplane.Entry
		if err := table.Read(ctx, wanted, func(e dataplane.Entry) { entries = append(entries, e) }); err != nil {
			return err
		}
		if len(entries) != lostAddresses*c.of {
			return fmt.Errorf("found %d entries", len(entries))
		}
		for _, o := range table.Remove(ctx, entries) {
			if o.Result != dataplane.Removed {
				return fmt.Errorf("a removal ended with %v", o)
			}
		}
		took := time.Since(start)
		if err := c.put(m, going); err != nil {
			return err
		}
		bareTook, err := bareCalls(m, going, batch, keySize, valueSize)
		if err != nil {
			return err
		}
		if err := c.put(m, going); err != nil {
			return err
		}
		if run == 0 {
			continue
		}
		ours, bare = append(ours, millis(took)), append(bare, millis(bareTook))
		if run == 1 { // it takes minutes where it must
			toolTook, err := bpftool(ctx, s, pin, going, keySize)
			if err != nil {
				return err
			}
			tool = append(tool, millis(toolTook))
			if err := c.put(m, going); err != nil {
				return err
			}
		}
	}
	s.goal("bpf/"+c.name, "ms", ours, "BatchLookup of everything, BatchDelete of what is known to go", bare, 1.2)
	s.compare("bpf/"+c.name+"/tool", "ms", ours, "bpftool map dump, and a batch file of its deletes (one run)", tool)
	return nil
}

// put adds entries of those keys.
func (c *bpfCase) put(m *ebpf.Map, keys []byte) error {
	keySize := int(c.spec.KeySize)
	value := make([]byte, c.spec.ValueSize)
	for ; len(keys) > 0; keys = keys[keySize:] {
		if err := m.Put(keys[:keySize], value); err != nil {
			return err
		}
	}
	return nil
}

// bareCalls reads the whole map in batches and deletes the keys in batches, without looking at anything.
func bareCalls(m *ebpf.Map, going []byte, batch, keySize, valueSize int) (time.Duration, error) {
	keys, values := arrays(make([]byte, batch*keySize), keySize), arrays(make([]byte, batch*valueSize), valueSize)
	deleted := arrays(going, keySize)
	start := time.Now()
	var cursor ebpf.MapBatchCursor
	for {
		_, err := m.BatchLookup(&cursor, keys, values, nil)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return 0, err
		}
	}
	_, err := m.BatchDelete(deleted, nil)
	return time.Since(start), err
}

// bpftool dumps the map and deletes the keys, as a script would.
func bpftool(ctx context.Context, s *session, pin string, going []byte, keySize int) (time.Duration, error) {
	var script strings.Builder
	for ; len(going) > 0; going = going[keySize:] {
		fmt.Fprintf(&script, "map delete pinned %s key", pin)
		for _, b := range going[:keySize] {
			fmt.Fprintf(&script, " %d", b)
		}
		script.WriteByte('\n')
	}
	file := filepath.Join(s.scratch, "bpftool")
	if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
		return 0, err
	}
	start := time.Now()
	for _, args := range [][]string{{"map", "dump", "pinned", pin}, {"batch", "file", file}} {
		cmd := exec.CommandContext(ctx, "bpftool", args...)
		cmd.Stdout = io.Discard
		var complaints bytes.Buffer
		cmd.Stderr = &complaints
		if err := cmd.Run(); err != nil {
			return 0, fmt.Errorf("bpftool %s: %w %s; Debian has it in the package bpftool", strings.Join(args[:2], " "), err, complaints.String())
		}
	}
	return time.Since(start), nil
}

// arrays is memory as a slice of arrays of that size, which the library takes without copying.
func arrays(memory []byte, size int) any {
	n := len(memory) / size
	array := reflect.ArrayOf(n, reflect.ArrayOf(size, reflect.TypeFor[byte]()))
	return reflect.NewAt(array, unsafe.Pointer(unsafe.SliceData(memory))).Elem().Slice(0, n).Interface()
}

// goal is compare with a goal for the ratio.
func (s *session) goal(name, unit string, values samples, what string, beside samples, atMost float64) {
	s.figures = append(s.figures, figure{name: name, unit: unit, values: values, beside: &contrast{what, beside}, atMost: atMost})
}
