//go:build linux && kernel

package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/test/bpffs"
)

// setBatches is for the time of a test.
func setBatches(t *testing.T, are bool) {
	hasBatches = are
	t.Cleanup(func() { hasBatches = true })
}

func newMap(t testing.TB, pin string, spec ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	if spec.MaxEntries == 0 {
		spec.MaxEntries = 1000
	}
	if spec.Type == ebpf.LPMTrie {
		spec.Flags |= unix.BPF_F_NO_PREALLOC
	}
	m, err := ebpf.NewMap(&spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	return m
}

func put(t testing.TB, m *ebpf.Map, key, value []byte) {
	t.Helper()
	if err := m.Put(key, value); err != nil {
		t.Fatal(err)
	}
}

// contents are a map's entries as "key=value" in hex, sorted.
func contents(t testing.TB, m *ebpf.Map) []string {
	t.Helper()
	var all []string
	var key, value []byte
	for entries := m.Iterate(); entries.Next(&key, &value); {
		all = append(all, fmt.Sprintf("%x=%x", key, value))
	}
	slices.Sort(all)
	return all
}

func u32(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// lxcKey is a key of cilium_lxc.
func lxcKey(address string, family byte) []byte {
	key := make([]byte, 20)
	a := addr(address)
	copy(key, a.AsSlice())
	key[16] = family
	return key
}

var lxc = Layout{
	Expect:    Expect{Type: MapHash, KeySize: 20, Name: "cilium_lxc"},
	Addresses: []AddressField{{Offset: 0, Size: 16, Family: &FamilyField{16, 1, 2}, Role: RoleOwner}},
	KeepIf:    []KeepBits{{InValue, 8, 4, 1, 1}}, OwnerInterface: &InterfaceField{0},
}

func TestHashMap(t *testing.T) {
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		for _, batches := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, batches), func(t *testing.T) {
				setBatches(t, batches)
				pin := filepath.Join(bpffs.New(t), "cilium_lxc")
				m := newMap(t, pin, ebpf.MapSpec{Name: "cilium_lxc", Type: kind, KeySize: 20, ValueSize: 16})
				value := slices.Concat(u32(7), make([]byte, 12))
				host := slices.Concat(u32(1), make([]byte, 4), u32(3), make([]byte, 4))
				put(t, m, lxcKey("10.0.0.1", 1), value)
				put(t, m, lxcKey("10.0.0.2", 1), host)
				put(t, m, lxcKey("10.0.0.3", 1), value)
				put(t, m, lxcKey("fd00::1", 2), value)
				put(t, m, lxcKey("10.0.0.1", 9), value)                                      // no family that is known
				put(t, m, append(lxcKey("10.0.0.1", 1)[:12], 1, 0, 0, 0, 1, 0, 0, 0), value) // more than an address
				maps := &BPFMaps{Pin: pin, Layout: lxc}
				if kind == ebpf.LRUHash {
					maps.Layout.Expect.Type = MapLRUHash
				}
				before := contents(t, m)
				all := readAll(t, maps, nil)
				if len(all) != 4 {
					t.Errorf("read %v", texts(all))
				}
				got := readAll(t, maps, addresses("10.0.0.1", "10.0.0.2", "fd00::1", "10.0.0.9"))
				if len(got) != 3 || got[0].Address != addr("10.0.0.1") || got[0].Interface != 7 || got[0].Protected != "" ||
					!strings.Contains(got[1].Protected, "keepIf") || got[2].Address != addr("fd00::1") {
					t.Fatalf("found %+v", got)
				}
				going := []Entry{got[0], got[2]}
				wantOutcomes(t, maps.Remove(t.Context(), going), Removed, Removed)
				if left := contents(t, m); len(left) != len(before)-2 {
					t.Errorf("left are %v of %v", left, before)
				}
				wantOutcomes(t, maps.Remove(t.Context(), going), AlreadyGone, AlreadyGone)
				if err := maps.Restore(t.Context(), going); err != nil {
					t.Fatal(err)
				}
				if back := contents(t, m); !slices.Equal(back, before) {
					t.Errorf("put back are %v, want %v", back, before)
				}
				// Written anew between the reading and the removal, and there again at the restoring.
				put(t, m, going[0].Key, slices.Concat(u32(8), make([]byte, 12)))
				changed := contents(t, m)
				wantOutcomes(t, maps.Remove(t.Context(), going[:1]), WasChanged)
				if err := maps.Restore(t.Context(), going[:1]); err != nil {
					t.Fatal(err)
				}
				if now := contents(t, m); !slices.Equal(now, changed) {
					t.Errorf("the new entry did not stay: %v, want %v", now, changed)
				}
			})
		}
	}
}

// A key that is nothing but the address is looked up; others are found by a scan.
func TestDirectKeys(t *testing.T) {
	pins := bpffs.New(t)
	m := newMap(t, filepath.Join(pins, "plain"), ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4})
	for i := range byte(100) {
		put(t, m, []byte{10, 0, 0, i}, u32(uint32(i)))
	}
	maps := &BPFMaps{Pin: filepath.Join(pins, "plain"), Layout: Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}}
	if keys, direct := maps.directKeys(m, addresses("10.0.0.1", "fd00::1")); !direct || len(keys) != 1 {
		t.Errorf("the keys are %x (%v)", keys, direct)
	}
	got := readAll(t, maps, addresses("10.0.0.1", "10.0.0.99", "10.0.0.200", "fd00::1"))
	if len(got) != 2 || got[0].Address != addr("10.0.0.1") || got[1].Address != addr("10.0.0.99") {
		t.Errorf("found %v", texts(got))
	}
	wantOutcomes(t, maps.Remove(t.Context(), got), Removed, Removed)
	if left := contents(t, m); len(left) != 98 {
		t.Errorf("%d are left", len(left))
	}
}

// Of a trie only host entries go, also below a network's that answers for them afterwards.
func TestTrie(t *testing.T) {
	for _, batches := range []bool{true, false} {
		t.Run(fmt.Sprint(batches), func(t *testing.T) {
			setBatches(t, batches)
			pin := filepath.Join(bpffs.New(t), "cilium_ipcache")
			m := newMap(t, pin, ebpf.MapSpec{Type: ebpf.LPMTrie, KeySize: 24, ValueSize: 8})
			key := func(bits uint32, family byte, address string) []byte {
				return slices.Concat(u32(32+bits), []byte{0, 0, 0, family}, lxcKey(address, 0)[:16])
			}
			put(t, m, key(32, 1, "10.0.0.1"), []byte("ten-0-1."))
			put(t, m, key(24, 1, "10.0.0.0"), []byte("network."))
			put(t, m, key(31, 1, "10.0.0.2"), []byte("two of 2"))
			put(t, m, key(32, 1, "10.0.0.9"), []byte("ten-0-9."))
			put(t, m, key(128, 2, "fd00::1"), []byte("fd00::1."))
			put(t, m, key(64, 2, "fd00::"), []byte("network6"))
			maps := &BPFMaps{Pin: pin, Layout: Layout{
				Expect:    Expect{Type: MapLPMTrie, KeySize: 24},
				Addresses: []AddressField{{Offset: 8, Size: 16, Family: &FamilyField{7, 1, 2}, Role: RoleOwner}}, PrefixLength: &PrefixLengthField{0, 32},
			}}
			got := readAll(t, maps, addresses("10.0.0.1", "10.0.0.0", "10.0.0.2", "10.0.0.3", "fd00::1", "fd00::"))
			if len(got) != 2 || got[0].Address != addr("10.0.0.1") || got[1].Address != addr("fd00::1") {
				t.Fatalf("found %v", texts(got))
			}
			before := contents(t, m)
			wantOutcomes(t, maps.Remove(t.Context(), got), Removed, Removed)
			if left := contents(t, m); len(left) != 4 {
				t.Errorf("left are %v", left)
			}
			// The network answers for the address now, and stays.
			if o := maps.Remove(t.Context(), got); o[0].Result != WasChanged || len(contents(t, m)) != 4 {
				t.Errorf("a second removal: %v", o)
			}
			if err := maps.Restore(t.Context(), got); err != nil {
				t.Fatal(err)
			}
			if back := contents(t, m); !slices.Equal(back, before) {
				t.Errorf("put back are %v, want %v", back, before)
			}
		})
	}
}

func TestMapStates(t *testing.T) {
	pins := bpffs.New(t)
	pin := func(name string) string { return filepath.Join(pins, name) }
	plain := Layout{Expect: Expect{Type: MapHash, KeySize: 4, ValueSize: 8, Name: "plain"}, Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}
	m := newMap(t, pin("good-1"), ebpf.MapSpec{Name: "plain", Type: ebpf.Hash, KeySize: 4, ValueSize: 8})
	put(t, m, []byte{10, 0, 0, 1}, make([]byte, 8))
	newMap(t, pin("key-size"), ebpf.MapSpec{Name: "plain", Type: ebpf.Hash, KeySize: 8, ValueSize: 8})
	newMap(t, pin("value-size"), ebpf.MapSpec{Name: "plain", Type: ebpf.Hash, KeySize: 4, ValueSize: 4})
	newMap(t, pin("name"), ebpf.MapSpec{Name: "other", Type: ebpf.Hash, KeySize: 4, ValueSize: 8})
	newMap(t, pin("type"), ebpf.MapSpec{Name: "plain", Type: ebpf.LRUHash, KeySize: 4, ValueSize: 8})
	newMap(t, pin("array"), ebpf.MapSpec{Name: "plain", Type: ebpf.Array, KeySize: 4, ValueSize: 8})
	newMap(t, pin("per-cpu"), ebpf.MapSpec{Name: "plain", Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 8})
	newMap(t, pin("map-in-map"), ebpf.MapSpec{Name: "plain", Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, InnerMap: &ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}})
	newMap(t, pin("trie"), ebpf.MapSpec{Name: "plain", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8})
	frozen := newMap(t, pin("frozen"), ebpf.MapSpec{Name: "plain", Type: ebpf.Hash, KeySize: 4, ValueSize: 8})
	put(t, frozen, []byte{10, 0, 0, 1}, make([]byte, 8))
	if err := frozen.Freeze(); err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(elsewhere, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	anyType := Layout{Addresses: plain.Addresses}
	for _, test := range []struct {
		name, pin string
		layout    Layout
		entries   int
		state     TableState
		message   string
	}{
		{"as expected", pin("good-1"), plain, 1, StateOK, ""},
		{"as expected, by a glob", pin("good-*"), plain, 1, StateOK, ""},
		{"not there", pin("none"), plain, 0, StateNotInstalled, "its writer may not run here"},
		{"not there, by a glob", pin("none*"), plain, 0, StateNotInstalled, "its writer may not run here"},
		{"below a file", elsewhere + "/x", plain, 0, StateNotInstalled, "no BPF file system"},
		{"no BPF file system", filepath.Join(t.TempDir(), "x", "y"), plain, 0, StateNotInstalled, "no BPF file system"},
		{"a file", elsewhere, plain, 0, StateInvalid, "not on a BPF file system"},
		{"key size", pin("key-size"), plain, 0, StateInvalid, "its key size is 8, expected 4"},
		{"value size", pin("value-size"), plain, 0, StateInvalid, "its value size is 4, expected 8"},
		{"name", pin("name"), plain, 0, StateInvalid, "its name is other, expected plain"},
		{"type", pin("type"), plain, 0, StateInvalid, "its type is LRUHash, expected Hash"},
		{"array", pin("array"), anyType, 0, StateInvalid, "its type is Array"},
		{"per-CPU values", pin("per-cpu"), anyType, 0, StateInvalid, "its type is PerCPUHash"},
		{"a map of maps", pin("map-in-map"), anyType, 0, StateInvalid, "its type is HashOfMaps"},
		{"a trie without a prefix length", pin("trie"), anyType, 0, StateInvalid, "no prefixLength is given"},
		{"a layout that does not fit", pin("good-1"), Layout{Addresses: []AddressField{{Offset: 1, Size: 4, Role: RoleOwner}}}, 0, StateInvalid, "offset 1 with 4 bytes"},
		{"a family in 4 bytes", pin("good-1"), Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Family: &FamilyField{3, 1, 2}, Role: RoleOwner}}}, 0, StateInvalid, "cannot have a family"},
		{"frozen", pin("frozen"), plain, 1, StateForbidden, "is frozen"},
		{"one of several", pin("[gk]*"), plain, 1, StateInvalid, "its key size is 8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			maps := &BPFMaps{Pin: test.pin, Layout: test.layout}
			var entries []Entry
			err := maps.Read(t.Context(), addresses("10.0.0.1"), func(e Entry) { entries = append(entries, e) })
			var problem *TableError
			state, message := StateOK, ""
			if errors.As(err, &problem) {
				state, message = problem.State, problem.Message
			} else if err != nil {
				t.Errorf("the error is %v, of another type", err)
			}
			if state != test.state || !strings.Contains(message, test.message) || len(entries) != test.entries {
				t.Errorf("got %d entries, %s: %s", len(entries), state, message)
			}
			if err := maps.Read(t.Context(), NewAddresses(), func(Entry) { t.Error("an entry was told") }); (err == nil) != (state == StateOK) {
				t.Errorf("only looked at it: %v", err)
			}
		})
	}
	maps := &BPFMaps{Pin: pin("frozen"), Layout: plain}
	entry := Entry{Table: pin("frozen"), Key: []byte{10, 0, 0, 1}, Value: make([]byte, 8)}
	if o := maps.Remove(t.Context(), []Entry{entry}); o[0].Result != Failed || o[0].Err == nil || len(contents(t, frozen)) != 1 {
		t.Errorf("a removal from a frozen map: %v", o)
	}

	if err := os.Chmod(pin("good-1"), 0); err != nil {
		t.Fatal(err)
	}
	newThreadWithoutCapabilities(t, func() {
		var problem *TableError
		err := (&BPFMaps{Pin: pin("good-1"), Layout: plain}).Read(t.Context(), nil, func(Entry) {})
		if !errors.As(err, &problem) || problem.State != StateForbidden || !strings.Contains(problem.Message, "CAP_BPF") {
			t.Errorf("without capabilities: %v", err)
		}
	})
}

// What is pinned but no map is told as such, and a directory beside maps is not taken for one.
func TestPinsOfOthers(t *testing.T) {
	pins := bpffs.New(t)
	pin := func(name string) string { return filepath.Join(pins, name) }
	program := func(kind ebpf.ProgramType) *ebpf.Program {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: kind, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return p
	}
	attached, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sched_process_exit", Program: program(ebpf.RawTracepoint)})
	if err != nil {
		t.Fatal(err)
	}
	defer attached.Close()
	if err := errors.Join(program(ebpf.SocketFilter).Pin(pin("program")), attached.Pin(pin("link")), os.Mkdir(pin("map-directory"), 0o700)); err != nil {
		t.Fatal(err)
	}
	m := newMap(t, pin("map-1"), ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4})
	put(t, m, []byte{10, 0, 0, 1}, u32(1))
	layout := Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}
	for name, message := range map[string]string{"program": "another kind of BPF object", "link": "another kind of BPF object", "map-directory": "is a directory"} {
		var problem *TableError
		err := (&BPFMaps{Pin: pin(name), Layout: layout}).Read(t.Context(), nil, func(Entry) { t.Error("an entry was told") })
		if !errors.As(err, &problem) || problem.State != StateInvalid || !strings.Contains(problem.Message, message) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := readAll(t, &BPFMaps{Pin: pin("map-*"), Layout: layout}, nil); len(got) != 1 {
		t.Errorf("found %v", texts(got))
	}
}

// A map that may be read but not written is read, and it is told that nothing can be removed from it. What may not be read is told too.
func TestClosedMaps(t *testing.T) {
	pins := bpffs.New(t)
	layout := Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}
	one := &BPFMaps{Pin: filepath.Join(pins, "one"), Layout: layout}
	all := &BPFMaps{Pin: filepath.Join(pins, "*"), Layout: layout}
	m := newMap(t, one.Pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4})
	put(t, m, []byte{10, 0, 0, 1}, u32(1))
	check := func(maps *BPFMaps, entries int, message string) {
		t.Helper()
		var got []Entry
		err := maps.Read(t.Context(), nil, func(e Entry) { got = append(got, e) })
		var problem *TableError
		if !errors.As(err, &problem) || problem.State != StateForbidden || !strings.Contains(problem.Message, message) || len(got) != entries {
			t.Errorf("read %d entries: %v", len(got), err)
		}
		for _, o := range maps.Remove(t.Context(), got) {
			if o.Result != Failed || !strings.Contains(o.Err.Error(), message) {
				t.Errorf("a removal: %v", o)
			}
		}
		if len(contents(t, m)) != 1 {
			t.Error("the entry is gone")
		}
	}
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(one.Pin, 0o400)
	newThreadWithoutCapabilities(t, func() { check(one, 1, "permission denied") })
	chmod(pins, 0o300)
	newThreadWithoutCapabilities(t, func() { check(all, 0, "permission denied for "+pins) })
	chmod(pins, 0o700)
	if err := unix.Mount("", pins, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	check(one, 1, "read-only file system")
}

// Batches grow where one bucket of a hash has more entries than a batch: with such values a batch has one.
func TestBucketLargerThanABatch(t *testing.T) {
	pin := filepath.Join(bpffs.New(t), "large")
	const valueSize, all = batchBytes/2 + 1, 60
	m := newMap(t, pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: valueSize, MaxEntries: 64, Flags: unix.BPF_F_NO_PREALLOC})
	for i := range byte(all) {
		put(t, m, []byte{10, 0, 0, i + 1}, make([]byte, valueSize))
	}
	seen := map[string]bool{}
	maps := &BPFMaps{Pin: pin, Layout: Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}}
	if got := readAll(t, maps, nil); len(got) != all {
		t.Errorf("read %d entries of %d", len(got), all)
	} else {
		for _, e := range got {
			seen[e.Text] = true
		}
		if len(seen) != all {
			t.Errorf("read %d different entries of %d", len(seen), all)
		}
	}
}

// An entry that was written anew since it was read stays where it is: whoever looks it up meanwhile always finds it.
func TestNewerEntryIsNeverMissing(t *testing.T) {
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			pin := filepath.Join(bpffs.New(t), "m")
			m := newMap(t, pin, ebpf.MapSpec{Type: kind, KeySize: 4, ValueSize: 4})
			key := []byte{10, 0, 0, 1}
			put(t, m, key, u32(2))
			maps := &BPFMaps{Pin: pin, Layout: Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}}
			stale := slices.Repeat([]Entry{{Table: pin, Text: "10.0.0.1", Key: key, Value: u32(1)}}, 100)
			missed := make(chan error)
			go func() {
				value := make([]byte, 4)
				for range 100000 {
					if err := m.Lookup(key, value); err != nil {
						missed <- err
						return
					}
				}
				missed <- nil
			}()
			for {
				select {
				case err := <-missed:
					if err != nil {
						t.Errorf("it was missing: %v", err)
					}
					return
				default:
				}
				for _, o := range maps.Remove(t.Context(), stale) {
					if o.Result != WasChanged {
						t.Errorf("the outcome is %v", o)
					}
				}
			}
		})
	}
}

// A value that is written in the moment of the removal is not lost: what is removed is what was read, whatever the writer does.
func TestValueChangesInTheMomentOfRemoval(t *testing.T) {
	pin := filepath.Join(bpffs.New(t), "m")
	m := newMap(t, pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4})
	maps := &BPFMaps{Pin: pin, Layout: Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}}
	e := Entry{Table: pin, Text: "10.0.0.1", Key: []byte{10, 0, 0, 1}, Value: u32(1)}
	for range 500 {
		put(t, m, e.Key, u32(0))
		stop, last := make(chan struct{}), make(chan uint32)
		go func() {
			var wrote uint32
			for n := uint32(0); ; n++ {
				select {
				case <-stop:
					last <- wrote
					return
				default:
				}
				if m.Update(e.Key, u32(n%2), ebpf.UpdateExist) == nil { // never makes an entry
					wrote = n % 2
				}
			}
		}()
		var o Outcome
		for o = maps.remove(m, &e); o.Result == WasChanged; o = maps.remove(m, &e) {
		}
		close(stop)
		if wrote := <-last; o.Result != Removed || wrote != 1 {
			t.Fatalf("the outcome is %v, after value %d was written", o, wrote)
		}
	}
}

// Between reading and removing another map may have been pinned there.
func TestMapOfOtherSizesInItsPlace(t *testing.T) {
	pin := filepath.Join(bpffs.New(t), "m")
	newMap(t, pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8})
	maps := &BPFMaps{Pin: pin, Layout: Layout{Addresses: []AddressField{{Offset: 0, Size: 4, Role: RoleOwner}}}}
	entries := []Entry{{Table: pin, Text: "10.0.0.1", Key: []byte{10, 0, 0, 1}, Value: u32(1)}}
	if o := maps.Remove(t.Context(), entries); o[0].Result != Failed || o[0].Err == nil {
		t.Errorf("a removal: %v", o)
	}
	if err := maps.Restore(t.Context(), entries); err == nil {
		t.Error("an entry of other sizes was put back")
	}
}

// A large map is read in batches, and grows them where the kernel wants that.
func TestLargeMap(t *testing.T) {
	pin := filepath.Join(bpffs.New(t), "ct")
	const all = 100000
	m := newMap(t, pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 14, ValueSize: 56, MaxEntries: all})
	keys, bytes := batchBuffer(all, 14)
	for i := range all {
		copy(bytes[i*14:], []byte{10, 0, byte(i % 200), byte(i / 200 % 2), 10, 1, byte(i >> 8), byte(i), 0, 80, byte(i >> 16), 0, 6, 0})
	}
	values, _ := batchBuffer(all, 56)
	if _, err := m.BatchUpdate(keys, values, nil); err != nil {
		t.Fatal(err)
	}
	maps := &BPFMaps{Pin: pin, Layout: Layout{Addresses: []AddressField{{Offset: 4, Size: 4, Role: RoleSource}, {Offset: 0, Size: 4, Role: RoleOwner}}}}
	got := readAll(t, maps, addresses("10.0.7.0", "10.0.8.1", "10.1.0.3"))
	var going []Entry
	peers := 0
	for _, e := range got {
		if e.Peer {
			peers++
			continue
		}
		going = append(going, e)
	}
	if len(going) != 500 || peers == 0 {
		t.Fatalf("found %d entries and %d of peers", len(going), peers)
	}
	for _, o := range maps.Remove(t.Context(), going) {
		if o.Result != Removed {
			t.Fatal(o)
		}
	}
	if left := readAll(t, maps, nil); len(left) != all-500 {
		t.Errorf("%d are left", len(left))
	}
}

// While a writer changes other entries as fast as it can, none of those that it leaves there is ever missing.
func TestMapWithABusyWriter(t *testing.T) {
	for _, kind := range []ebpf.MapType{ebpf.Hash, ebpf.LPMTrie} {
		for _, batches := range []bool{true, false} {
			t.Run(fmt.Sprint(kind, batches), func(t *testing.T) {
				setBatches(t, batches)
				pin := filepath.Join(bpffs.New(t), "m")
				m := newMap(t, pin, ebpf.MapSpec{Type: kind, KeySize: 12, ValueSize: 4, MaxEntries: 20000})
				key := func(c, d byte) []byte {
					return slices.Concat(u32(32), []byte{10, 1, c, d}, []byte{0, 0, 0, 0})
				}
				for i := range 5000 {
					put(t, m, key(byte(10+i>>8), byte(i)), u32(1))
				}
				put(t, m, key(0, 1), u32(1))
				layout := Layout{Addresses: []AddressField{{Offset: 4, Size: 4, Role: RoleOwner}}}
				if kind == ebpf.LPMTrie {
					layout.PrefixLength = &PrefixLengthField{0, 0}
				}
				maps := &BPFMaps{Pin: pin, Layout: layout}
				stop, stopped := make(chan struct{}), make(chan error, 1)
				go func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							stopped <- nil
							return
						default:
						}
						k := key(byte(10+i>>8&15), byte(i))
						if err := errors.Join(m.Delete(k), m.Put(k, u32(1))); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
							stopped <- err
							return
						}
					}
				}()
				looks, disturbed := 0, 0
				for end := time.Now().Add(time.Second); time.Now().Before(end); looks++ {
					put(t, m, key(0, 2), u32(1))
					var entries []Entry
					err := maps.Read(t.Context(), addresses("10.1.0.1", "10.1.0.2"), func(e Entry) { entries = append(entries, e) })
					var problem *TableError
					if errors.As(err, &problem) && problem.State == StateUnavailable && len(entries) == 0 {
						disturbed++
						continue
					}
					if err != nil || len(entries) != 2 {
						t.Fatalf("found %v: %v", texts(entries), err)
					}
					going := slices.DeleteFunc(entries, func(e Entry) bool { return e.Address != addr("10.1.0.2") })
					wantOutcomes(t, maps.Remove(t.Context(), going), Removed)
				}
				if disturbed == looks {
					t.Errorf("all %d looks were disturbed", looks)
				}
				close(stop)
				if err := <-stopped; err != nil {
					t.Errorf("the writer: %v", err)
				}
			})
		}
	}
}

// A scan key by key that finds its place taken away again and again is not believed, and is tried again.
func TestScanKeysDisturbed(t *testing.T) {
	pin := filepath.Join(bpffs.New(t), "m")
	m := newMap(t, pin, ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 20})
	at := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	put(t, m, at(1), at(0))
	n, disturbed := uint32(1), true
	disturb := func([]byte, []byte) {
		if disturbed {
			if err := m.Delete(at(n)); err != nil {
				t.Error(err)
			}
			n++
			put(t, m, at(n), at(0))
		}
	}
	if err := scanKeys(t.Context(), m, disturb); !errors.Is(err, errDisturbed) {
		t.Errorf("%v", err)
	}
	disturbed = false
	if err := scanKeys(t.Context(), m, disturb); err != nil {
		t.Errorf("at rest: %v", err)
	}
}
