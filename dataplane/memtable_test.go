package dataplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// A memTable is a kernel table in memory that works as the interface says. Its String is all it holds, a line for each entry.
type memTable struct {
	t    failer
	name string
	busy atomic.Int32 // methods that run now

	mu       sync.Mutex
	entries  map[string]Entry // by Text
	networks map[string]bool  // what is no single address's: never told by Read; guarded by mu
	readErr  error            // after what was found
	removals map[string]error // entries whose removal fails
	// What happens during the calls. They run without mu, so they may change the table.
	reading, removing, removed, restoring func(context.Context) error
}

// A failer is what it needs of a test.
type failer interface{ Errorf(string, ...any) }

func newMemTable(t failer, name string, entries ...Entry) *memTable {
	m := &memTable{t: t, name: name, entries: map[string]Entry{}, networks: map[string]bool{}, removals: map[string]error{}}
	m.add(entries...)
	return m
}

// entryOf is an entry as an ipset has it: text is its address, or starts with its address and a comma.
func entryOf(table, text string) Entry {
	address, _, _ := strings.Cut(text, ",")
	return Entry{Table: table, Address: netip.MustParseAddr(address), Text: text, Key: []byte(text), Value: []byte("v1")}
}

func (m *memTable) add(entries ...Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		m.entries[e.Text] = e
	}
}

// put adds entries by their text.
func (m *memTable) put(texts ...string) {
	for _, text := range texts {
		m.add(entryOf(m.name, text))
	}
}

func (m *memTable) remove(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.entries, text)
}

// change gives an entry another value, as its writer does.
func (m *memTable) change(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if e, has := m.entries[text]; has {
		e.Value = append(slices.Clone(e.Value), '\'')
		m.entries[text] = e
	}
}

func (m *memTable) setReadErr(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readErr = err
}

func (m *memTable) has(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, has := m.entries[text]
	return has
}

// texts are its entries, sorted, separated by spaces.
func (m *memTable) texts() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(m.entries)), " ")
}

func (m *memTable) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	for _, text := range slices.Sorted(maps.Keys(m.entries)) {
		e := m.entries[text]
		fmt.Fprintf(&b, "%s %s = %s", m.name, text, e.Value)
		if e.Interface != 0 {
			fmt.Fprintf(&b, " interface %d", e.Interface)
		}
		if e.Protected != "" {
			fmt.Fprintf(&b, " protected: %s", e.Protected)
		}
		b.WriteByte('\n')
	}
	for _, n := range slices.Sorted(maps.Keys(m.networks)) {
		fmt.Fprintf(&b, "%s %s (a network)\n", m.name, n)
	}
	return b.String()
}

// call marks that a method runs, and complains if another one does.
func (m *memTable) call(ctx context.Context, during func(context.Context) error) (func(), error) {
	if m.busy.Add(1) > 1 {
		m.t.Errorf("%s: its methods are called at the same time", m.name)
	}
	done := func() { m.busy.Add(-1) }
	if during == nil {
		return done, nil
	}
	return done, during(ctx)
}

func (m *memTable) Read(ctx context.Context, wanted *Addresses, found func(Entry)) error {
	done, err := m.call(ctx, m.reading)
	defer done()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, text := range slices.Sorted(maps.Keys(m.entries)) {
		if e := m.entries[text]; wanted.Has(e.Address) {
			found(e)
		}
	}
	return m.readErr
}

func (m *memTable) Remove(ctx context.Context, entries []Entry) []Outcome {
	done, err := m.call(ctx, m.removing)
	defer done()
	m.mu.Lock()
	var outcomes []Outcome
	for _, e := range entries {
		now, has := m.entries[e.Text]
		failure := m.removals[e.Text]
		switch {
		case err != nil:
			outcomes = append(outcomes, Outcome{Failed, err})
		case failure != nil:
			outcomes = append(outcomes, Outcome{Failed, failure})
		case !has:
			outcomes = append(outcomes, Outcome{Result: AlreadyGone})
		case !bytes.Equal(now.Value, e.Value):
			outcomes = append(outcomes, Outcome{Result: WasChanged})
		default:
			delete(m.entries, e.Text)
			outcomes = append(outcomes, Outcome{Result: Removed})
		}
	}
	m.mu.Unlock()
	if m.removed != nil {
		_ = m.removed(ctx)
	}
	return outcomes
}

func (m *memTable) Restore(ctx context.Context, entries []Entry) error {
	done, err := m.call(ctx, m.restoring)
	defer done()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range entries {
		if _, has := m.entries[e.Text]; !has {
			m.entries[e.Text] = e
		}
	}
	return nil
}

// The table that other tests lean on does what the interface says.
func TestMemTable(t *testing.T) {
	m := newMemTable(t, "t")
	m.put("10.0.0.1", "10.0.0.1,tcp:80", "10.0.0.2", "fd00::1")
	m.networks["10.0.0.0/24"] = true
	read := func(wanted *Addresses) (texts []string) {
		if err := m.Read(t.Context(), wanted, func(e Entry) { texts = append(texts, e.Text) }); err != nil {
			t.Error(err)
		}
		return texts
	}
	if got := fmt.Sprint(read(nil), read(NewAddresses()), read(NewAddresses(netip.MustParseAddr("10.0.0.1")))); got != "[10.0.0.1 10.0.0.1,tcp:80 10.0.0.2 fd00::1] [] [10.0.0.1 10.0.0.1,tcp:80]" {
		t.Error(got)
	}
	entries := []Entry{entryOf("t", "10.0.0.1"), entryOf("t", "10.0.0.1,tcp:80"), entryOf("t", "10.0.0.2"), entryOf("t", "10.0.0.9")}
	m.change("10.0.0.1,tcp:80")
	m.removals["10.0.0.2"] = errors.New("busy")
	if got := fmt.Sprint(m.Remove(t.Context(), entries)); got != "[{Removed <nil>} {WasChanged <nil>} {Failed busy} {AlreadyGone <nil>}]" {
		t.Error(got)
	}
	if err := m.Restore(t.Context(), entries); err != nil {
		t.Error(err)
	}
	want := "t 10.0.0.1 = v1\nt 10.0.0.1,tcp:80 = v1'\nt 10.0.0.2 = v1\nt 10.0.0.9 = v1\nt fd00::1 = v1\nt 10.0.0.0/24 (a network)\n"
	if got := m.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
