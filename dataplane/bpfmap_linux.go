package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// batchEntries and batchBytes bound how many entries are read at once.
	batchEntries, batchBytes = 4096, 1 << 20
	// maxBatchEntries is how far a batch grows where the kernel says that one bucket of a hash has more.
	maxBatchEntries = 1 << 18
	// scanTries is how often a scan begins anew that was disturbed.
	scanTries = 3
)

// hasBatches is false in tests of what happens on a kernel that has no batch operations.
var hasBatches = true

// mapTypes are those that can be cleaned.
var mapTypes = map[ebpf.MapType]MapType{ebpf.Hash: MapHash, ebpf.LRUHash: MapLRUHash, ebpf.LPMTrie: MapLPMTrie}

// Read reads the maps.
func (b *BPFMaps) Read(ctx context.Context, wanted *Addresses, found func(Entry)) error {
	pins, problem := b.pins()
	if problem != nil {
		return problem
	}
	var problems []*TableError
	for _, pin := range pins {
		if err := b.readMap(ctx, pin, wanted, found); err != nil {
			problems = append(problems, err)
		}
	}
	return joined(problems)
}

func (b *BPFMaps) readMap(ctx context.Context, pin string, wanted *Addresses, found func(Entry)) *TableError {
	m, locked, problem := b.openToRead(pin)
	if problem != nil {
		return problem
	}
	defer m.Close()
	if problem := b.check(pin, m); problem != nil {
		return problem
	}
	var err error
	switch keys, direct := b.directKeys(m, wanted); {
	case direct:
		err = b.lookup(m, pin, keys, found)
	case wanted.Empty():
	default:
		err = b.scan(ctx, m, pin, wanted, found)
	}
	if err != nil {
		return b.unreadable(pin, err)
	}
	if locked != nil {
		return locked
	}
	return cannotWrite(pin, m)
}

// openToRead opens a map that is only to be read. Where it can be read but not written, locked says why nothing can be removed from it.
func (b *BPFMaps) openToRead(pin string) (m *ebpf.Map, locked, problem *TableError) {
	m, problem = b.open(pin)
	if problem == nil || problem.State != StateForbidden {
		return m, nil, problem
	}
	m, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return nil, nil, problem
	}
	return m, problem, nil
}

// pins are the paths of the maps.
func (b *BPFMaps) pins() ([]string, *TableError) {
	if !b.isGlob() {
		if _, err := os.Stat(b.Pin); errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, b.nothingThere()
		}
		return []string{b.Pin}, nil // what else may be wrong, opening it tells
	}
	pins, err := filepath.Glob(b.Pin)
	if err != nil {
		return nil, &TableError{StateInvalid, fmt.Sprintf("find the maps %s: %v; correct pin", b.Pin, err)}
	}
	// A directory beside the maps is none of them.
	pins = slices.DeleteFunc(pins, isDirectory)
	if len(pins) == 0 {
		return nil, b.nothingThere()
	}
	return pins, nil
}

func (b *BPFMaps) isGlob() bool { return strings.ContainsAny(b.Pin, `*?[\`) }

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// isClosed tells whether a directory may not be read. filepath.Glob does not say so: it finds nothing there.
func isClosed(dir string) bool {
	f, err := os.Open(dir)
	if err == nil {
		f.Close()
	}
	return errors.Is(err, fs.ErrPermission)
}

// nothingThere says why there may be no map.
func (b *BPFMaps) nothingThere() *TableError {
	dir := filepath.Dir(b.Pin)
	for {
		var s unix.Statfs_t
		err := unix.Statfs(dir, &s)
		switch {
		case err == nil && s.Type != unix.BPF_FS_MAGIC:
			return &TableError{StateNotInstalled, fmt.Sprintf("there is no map %s, and no BPF file system: %s is on another one; mount it into the pod, or wait for the maps' writer", b.Pin, dir)}
		case err == nil && b.isGlob() && isClosed(dir):
			return &TableError{StateForbidden, fmt.Sprintf("find the maps %s: permission denied for %s; the agent must be allowed to read that directory", b.Pin, dir)}
		case err == nil, dir == "/", dir == ".":
			return &TableError{StateNotInstalled, fmt.Sprintf("there is no map %s; its writer may not run here", b.Pin)}
		}
		dir = filepath.Dir(dir)
	}
}

// open opens a pinned map for reading and writing. (Only so does the kernel tell a link from a map: opened otherwise, it is an invalid argument.)
func (b *BPFMaps) open(pin string) (*ebpf.Map, *TableError) {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	var s unix.Statfs_t
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, fs.ErrNotExist): // between the glob and now
		return nil, &TableError{StateNotInstalled, fmt.Sprintf("map %s is gone", pin)}
	case unix.Statfs(pin, &s) == nil && s.Type != unix.BPF_FS_MAGIC:
		return nil, &TableError{StateInvalid, fmt.Sprintf("open map %s: it is a file that is not on a BPF file system; correct pin", pin)}
	case isDirectory(pin):
		return nil, &TableError{StateInvalid, fmt.Sprintf("open map %s: it is a directory; correct pin", pin)}
	case errors.Is(err, unix.EROFS):
		return nil, &TableError{StateForbidden, fmt.Sprintf("open map %s for writing: %v; nothing can be removed from it unless its BPF file system is mounted for writing", pin, err)}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return nil, &TableError{StateForbidden, fmt.Sprintf("open map %s for writing: %v; the agent needs the capability CAP_BPF (CAP_SYS_ADMIN before Linux 5.8) and permission for the file", pin, err)}
	case strings.Contains(err.Error(), "is not a Map"):
		return nil, &TableError{StateInvalid, fmt.Sprintf("open map %s: another kind of BPF object is pinned there; correct pin", pin)}
	}
	return nil, &TableError{StateUnavailable, fmt.Sprintf("open map %s: %v", pin, err)}
}

// check tells whether the map is what the configuration expects. One that is not is left alone.
func (b *BPFMaps) check(pin string, m *ebpf.Map) *TableError {
	invalid := func(what string, got, want any) *TableError {
		return &TableError{StateInvalid, fmt.Sprintf("map %s is left alone: its %s is %v, expected %v; is the layout in the configuration that of another version?", pin, what, got, want)}
	}
	kind, known := mapTypes[m.Type()]
	want := b.Layout.Expect
	switch {
	case !known:
		return invalid("type", m.Type(), "Hash, LRUHash or LPMTrie")
	case want.Type != "" && want.Type != kind:
		return invalid("type", kind, want.Type)
	case kind == MapLPMTrie && b.Layout.PrefixLength == nil:
		return invalid("type", kind, "Hash or LRUHash, as no prefixLength is given")
	case want.KeySize != 0 && want.KeySize != int(m.KeySize()):
		return invalid("key size", m.KeySize(), want.KeySize)
	case want.ValueSize != 0 && want.ValueSize != int(m.ValueSize()):
		return invalid("value size", m.ValueSize(), want.ValueSize)
	}
	if want.Name != "" {
		info, err := m.Info()
		if err != nil {
			return b.unreadable(pin, err)
		}
		if info.Name != want.Name {
			return invalid("name", info.Name, want.Name)
		}
	}
	if err := b.Layout.fits(int(m.KeySize()), int(m.ValueSize())); err != nil {
		return &TableError{StateInvalid, fmt.Sprintf("map %s is left alone: %v", pin, err)}
	}
	return nil
}

// cannotWrite says why nothing can be removed from a map that can be read.
func cannotWrite(pin string, m *ebpf.Map) *TableError {
	info, err := m.Info()
	if err == nil && info.Frozen() {
		return &TableError{StateForbidden, fmt.Sprintf("map %s is frozen: nobody can remove entries from it", pin)}
	}
	return nil
}

func (b *BPFMaps) unreadable(pin string, err error) *TableError {
	state, advice := StateUnavailable, "it is read again later"
	if errors.Is(err, unix.EPERM) {
		state, advice = StateForbidden, "the agent needs the capability CAP_BPF, and a map that can be read"
	}
	return &TableError{state, fmt.Sprintf("read map %s: %v; %s", pin, err, advice)}
}

// directKeys are the only keys that the wanted addresses can have; false where there may be others, or there is no end of them. A trie's lookup
// finds the longest prefix instead, so it must be scanned.
func (b *BPFMaps) directKeys(m *ebpf.Map, wanted *Addresses) ([][]byte, bool) {
	size := int(m.KeySize())
	if wanted == nil || !b.Layout.knowsKey(size) {
		return nil, false
	}
	var keys [][]byte
	for a := range wanted.all() {
		if key := b.Layout.key(a, size); key != nil {
			keys = append(keys, key)
		}
	}
	return keys, true
}

func (b *BPFMaps) lookup(m *ebpf.Map, pin string, keys [][]byte, found func(Entry)) error {
	value := make([]byte, m.ValueSize())
	for _, key := range keys {
		err := m.Lookup(key, value)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if a, role, is := b.Layout.find(key, nil); is {
			found(b.Layout.entry(pin, a, role, key, value))
		}
	}
	return nil
}

var errDisturbed = errors.New("it changed so much meanwhile that it could not be read to its end")

// scan reads the whole map. A hash's batches have each entry once, so those are told as they come. All else is told when a scan has come to its end:
// one that is disturbed may miss or repeat entries, and begins anew.
func (b *BPFMaps) scan(ctx context.Context, m *ebpf.Map, pin string, wanted *Addresses, found func(Entry)) error {
	tell := func(do func(Entry)) func(key, value []byte) {
		return func(key, value []byte) {
			if !b.Layout.mayHold(key, wanted) {
				return
			}
			if a, role, is := b.Layout.find(key, wanted); is {
				do(b.Layout.entry(pin, a, role, key, value))
			}
		}
	}
	read := scanBatches
	if !hasBatches {
		read = scanKeys
	} else if m.Type() != ebpf.LPMTrie {
		if err := scanBatches(ctx, m, tell(found)); !errors.Is(err, ebpf.ErrNotSupported) {
			return err
		}
		read = scanKeys // before Linux 5.6
	}
	var err error
	for range scanTries {
		entries := map[string]Entry{}
		collect := tell(func(e Entry) { entries[string(e.Key)] = e })
		if err = read(ctx, m, collect); errors.Is(err, ebpf.ErrNotSupported) {
			err = scanKeys(ctx, m, collect)
		}
		if err == nil {
			for _, e := range entries {
				found(e)
			}
		}
		if !errors.Is(err, errDisturbed) {
			return err
		}
	}
	return err
}

// scanBatches reads a map in batches, without copying the entries.
func scanBatches(ctx context.Context, m *ebpf.Map, each func(key, value []byte)) error {
	keySize, valueSize := int(m.KeySize()), int(m.ValueSize())
	size := max(1, min(batchEntries, batchBytes/(keySize+valueSize)))
	keys, keyBytes := batchBuffer(size, keySize)
	values, valueBytes := batchBuffer(size, valueSize)
	var cursor ebpf.MapBatchCursor
	for read := 0; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		last := errors.Is(err, ebpf.ErrKeyNotExist)
		switch {
		case err == nil, last:
		case errors.Is(err, unix.ENOSPC) && size < maxBatchEntries:
			size *= 2
			keys, keyBytes = batchBuffer(size, keySize)
			values, valueBytes = batchBuffer(size, valueSize)
			continue
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
			return errDisturbed
		default:
			return err
		}
		for i := range n {
			each(keyBytes[i*keySize:(i+1)*keySize], valueBytes[i*valueSize:(i+1)*valueSize])
		}
		if read += n; last {
			return nil
		}
		if read > 2*int(m.MaxEntries()) { // a trie's scan begins anew by itself when the key that it stands at is deleted
			return errDisturbed
		}
	}
}

// batchBuffer makes room for n keys or values of a size that is known only now: as what the library takes, which then writes into it directly, and
// as its bytes.
func batchBuffer(n, size int) (slice any, memory []byte) {
	v := reflect.MakeSlice(reflect.SliceOf(reflect.ArrayOf(size, reflect.TypeFor[byte]())), n, n)
	return v.Interface(), unsafe.Slice((*byte)(v.UnsafePointer()), n*size)
}

// scanKeys reads a map key by key.
func scanKeys(ctx context.Context, m *ebpf.Map, each func(key, value []byte)) error {
	var key, value []byte
	entries := m.Iterate()
	for n := 0; entries.Next(&key, &value); n++ {
		if n%batchEntries == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		each(key, value)
	}
	if err := entries.Err(); !errors.Is(err, ebpf.ErrIterationAborted) {
		return err
	}
	return errDisturbed
}

// Remove deletes entries whose value is still what was read. The kernel's word that it deleted one is the proof that it is gone.
func (b *BPFMaps) Remove(_ context.Context, entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	b.eachMap(entries, func(m *ebpf.Map, i int, problem *TableError) {
		if problem != nil {
			outcomes[i] = Outcome{Failed, problem}
			return
		}
		outcomes[i] = b.remove(m, &entries[i])
	})
	return outcomes
}

// remove deletes one entry.
func (b *BPFMaps) remove(m *ebpf.Map, e *Entry) Outcome {
	value := make([]byte, m.ValueSize())
	// First a look that takes nothing out: what was written anew since it was read may be a live pod's, which must not be missing for a moment, and which
	// a map that is full by then would not take back. A trie's lookup finds the longest prefix: the entry itself if it is there, as it is a host's.
	err := m.Lookup(e.Key, value)
	switch {
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return Outcome{Result: AlreadyGone}
	case err != nil:
		return notDeleted(e, err)
	case !bytes.Equal(value, e.Value):
		return Outcome{Result: WasChanged}
	}
	if m.Type() == ebpf.LPMTrie {
		return deleted(e, m.Delete(e.Key))
	}
	// At once, so that a value that is written between that look and the deletion is seen.
	err = m.LookupAndDelete(e.Key, value)
	switch {
	case errors.Is(err, ebpf.ErrNotSupported): // before Linux 5.14
		return deleted(e, m.Delete(e.Key))
	case err != nil, bytes.Equal(value, e.Value):
		return deleted(e, err)
	}
	if err := m.Update(e.Key, value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		// Not Failed: the value that was read must not be put back in place of the newer one.
		return Outcome{WasChanged, fmt.Errorf("map %s: entry %s was changed to value %x in the moment of its removal, and could not be put back: %w", e.Table, e.Text, value, err)}
	}
	return Outcome{Result: WasChanged}
}

func notDeleted(e *Entry, err error) Outcome {
	return Outcome{Failed, fmt.Errorf("delete entry %s of map %s: %w", e.Text, e.Table, err)}
}

// deleted is the outcome of a deletion that ended with err.
func deleted(e *Entry, err error) Outcome {
	switch {
	case err == nil:
		return Outcome{Result: Removed}
	case errors.Is(err, ebpf.ErrKeyNotExist):
		return Outcome{Result: AlreadyGone}
	}
	return notDeleted(e, err)
}

// Restore puts entries back where there is none of their key.
func (b *BPFMaps) Restore(_ context.Context, entries []Entry) error {
	var errs []error
	b.eachMap(entries, func(m *ebpf.Map, i int, problem *TableError) {
		if problem != nil {
			errs = append(errs, problem)
			return
		}
		e := &entries[i]
		if err := m.Update(e.Key, e.Value, ebpf.UpdateNoExist); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			errs = append(errs, fmt.Errorf("put entry %s back into map %s: %w", e.Text, e.Table, err))
		}
	})
	return errors.Join(errs...)
}

// eachMap opens each map once, and calls do for each of its entries, by index.
func (b *BPFMaps) eachMap(entries []Entry, do func(m *ebpf.Map, i int, problem *TableError)) {
	byMap := map[string][]int{}
	for i := range entries {
		byMap[entries[i].Table] = append(byMap[entries[i].Table], i)
	}
	for pin, indexes := range byMap {
		m, problem := b.open(pin)
		if problem == nil {
			problem = b.check(pin, m)
		}
		slices.Sort(indexes)
		for _, i := range indexes {
			do(m, i, problem)
		}
		if m != nil {
			m.Close()
		}
	}
}

// key is the only key that an address can have, where the layout knows each of its bytes; nil where it does not, or the address cannot be in one.
func (l *Layout) key(a netip.Addr, keySize int) []byte {
	if !l.knowsKey(keySize) {
		return nil
	}
	f := &l.Addresses[0]
	key := make([]byte, keySize)
	switch {
	case f.Family != nil && a.Is4():
		four := a.As4()
		copy(key[f.Offset:], four[:])
		key[f.Family.Offset] = f.Family.IPv4
	case f.Family != nil:
		sixteen := a.As16()
		copy(key[f.Offset:], sixteen[:])
		key[f.Family.Offset] = f.Family.IPv6
	case f.Size == size4 && a.Is4():
		four := a.As4()
		copy(key[f.Offset:], four[:])
	default:
		return nil
	}
	return key
}

// knowsKey tells whether an address, with its family, is all that is in a key. Sixteen bytes without a family may hold IPv4 in two forms.
func (l *Layout) knowsKey(keySize int) bool {
	if len(l.Addresses) != 1 || l.PrefixLength != nil {
		return false
	}
	f := &l.Addresses[0]
	size := f.Size
	if f.Family != nil {
		size++
	}
	return size == keySize && (f.Size == size4 || f.Family != nil)
}
