package dataplane

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"time"
)

// A Table is one configured group of kernel tables that hold pod addresses: the ipsets that a regular expression matches, the BPF maps of a
// glob. Its methods are called by one goroutine at a time. Their errors are of type *TableError where the operator can do something.
type Table interface {
	// Read calls found for each entry that holds one of those addresses; nil: any; with none it only looks how the table fares. What is not one address's alone (a network, a nomatch, a
	// set's member) is not told. After an error what was found is still true, and what was not found proves nothing.
	Read(ctx context.Context, wanted *Addresses, found func(Entry)) error
	// Remove deletes entries that Read found, unless they have changed since, and looks whether they are gone. The outcomes are in the
	// entries' order.
	Remove(ctx context.Context, entries []Entry) []Outcome
	// Restore puts back entries that Remove removed, unless the table has such an entry again. ErrMadeAnew: the kernel makes such entries by itself.
	Restore(ctx context.Context, entries []Entry) error
}

// ErrMadeAnew is why nothing is put back into tables that the kernel fills by itself, when the next packet comes.
var ErrMadeAnew = errors.New("the kernel makes it anew when it is needed")

// An Entry is one entry of a kernel table that holds the address of a pod.
type Entry struct {
	// Table is the name of the ipset, or the path of the BPF map's pin.
	Table string
	// Address is the pod's: never IPv4 in IPv6, never with a zone.
	Address netip.Addr
	// Peer tells that the entry is another's, who only talked to the address.
	Peer bool
	// Text is the entry as people write it, such as 10.0.0.1,tcp:80.
	Text string
	// Key and Value are its bytes as the kernel has them. Key finds it; Value is all else that is needed to put it back.
	Key, Value []byte
	// Protected says why the entry must stay whatever its address is; empty if nothing protects it.
	Protected string
	// Interface is the index of the pod's host interface by the entry's own word; 0 where it does not tell.
	Interface uint32
	// Connection is set for entries that are connections.
	Connection *Connection
}

// A Connection is what an entry tells of itself that is one.
type Connection struct {
	TCP     bool
	Started time.Time // zero where the kernel does not keep it
}

// An Outcome is what became of the removal of an entry.
type Outcome struct {
	Result Result
	Err    error // for Failed; for WasChanged where the newer entry was lost
}

// A Result is a way for the removal of an entry to end.
type Result string

// How the removal of an entry ends.
const (
	Removed     Result = "Removed"     // and seen to be gone
	AlreadyGone Result = "AlreadyGone" // somebody else removed it before
	WasChanged  Result = "WasChanged"  // it is not the entry that was read; left alone
	Failed      Result = "Failed"      // it is probably still there
)

// A TableError says that a table, or a part of it, cannot be read or cleaned, in a way that the operator may be able to mend.
type TableError struct {
	State   TableState
	Message string // what was being done, to what, why it failed, what to do
}

func (e *TableError) Error() string { return string(e.State) + ": " + e.Message }

// A TableState says how a table fares. The words are those of all targets.
type TableState string

// The states of a table.
const (
	StateOK           TableState = "OK"
	StateNotInstalled TableState = "NotInstalled" // there is no such table here; it may come later
	StateForbidden    TableState = "Forbidden"    // the kernel refuses it to this process
	StateUnavailable  TableState = "Unavailable"  // it cannot be read now
	StateInvalid      TableState = "Invalid"      // it is not what the configuration says
)

// Addresses is a set of addresses, made for asking often. Nil holds all.
type Addresses struct {
	v4 map[[4]byte]struct{}
	v6 map[[16]byte]struct{}
	// ends has a bit for each two bytes that an address in the set ends with: millions of others are told apart by it, without a look at the maps.
	ends [1 << 16 / 64]uint64
}

// NewAddresses makes the set of those addresses. IPv4 in IPv6 is taken for IPv4; zones do not count.
func NewAddresses(addresses ...netip.Addr) *Addresses {
	s := &Addresses{v4: map[[4]byte]struct{}{}, v6: map[[16]byte]struct{}{}}
	for _, a := range addresses {
		s.add(a)
	}
	return s
}

func (s *Addresses) add(a netip.Addr) {
	if a = a.Unmap(); a.Is4() {
		four := a.As4()
		s.v4[four] = struct{}{}
		word, bit := end(four[2], four[3])
		s.ends[word] |= bit
	} else if a.IsValid() {
		sixteen := a.As16()
		s.v6[sixteen] = struct{}{}
		word, bit := end(sixteen[14], sixteen[15])
		s.ends[word] |= bit
	}
}

// end is where ends has the bit for those last two bytes.
func end(a, b byte) (word int, bit uint64) {
	n := int(a)<<8 | int(b)
	return n / 64, 1 << (n % 64)
}

// mayEnd tells whether an address in the set may end with those two bytes.
func (s *Addresses) mayEnd(a, b byte) bool {
	word, bit := end(a, b)
	return s.ends[word]&bit != 0
}

// Has tells whether the set has the address.
func (s *Addresses) Has(a netip.Addr) bool {
	if a = a.Unmap(); a.Is4() {
		return s.has4(a.As4())
	}
	return a.IsValid() && s.has6(a.As16())
}

// Empty tells whether the set has none.
func (s *Addresses) Empty() bool { return s != nil && len(s.v4)+len(s.v6) == 0 }

// all are the addresses of a set that is not nil.
func (s *Addresses) all() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for a := range s.v4 {
			if !yield(netip.AddrFrom4(a)) {
				return
			}
		}
		for a := range s.v6 {
			if !yield(netip.AddrFrom16(a)) {
				return
			}
		}
	}
}

func (s *Addresses) has4(a [4]byte) bool {
	if s == nil {
		return true
	}
	if word, bit := end(a[2], a[3]); s.ends[word]&bit == 0 {
		return false
	}
	_, has := s.v4[a]
	return has
}

func (s *Addresses) has6(a [16]byte) bool {
	if s == nil {
		return true
	}
	if word, bit := end(a[14], a[15]); s.ends[word]&bit == 0 {
		return false
	}
	_, has := s.v6[a]
	return has
}

// maxMessages is how many causes an error of a table names.
const maxMessages = 3

// joined is the errors of a table's parts as one: the most severe state, and what the first few say.
func joined(errs []*TableError) error {
	if len(errs) == 0 {
		return nil
	}
	whole := TableError{State: StateOK}
	for i, e := range errs {
		if severity[e.State] > severity[whole.State] {
			whole.State = e.State
		}
		switch {
		case i == 0:
			whole.Message = e.Message
		case i < maxMessages:
			whole.Message += "; " + e.Message
		case i == maxMessages:
			whole.Message += fmt.Sprintf("; and %d more", len(errs)-maxMessages)
		}
	}
	return &whole
}

// severity orders the states of tables.
var severity = map[TableState]int{StateOK: 0, StateNotInstalled: 1, StateInvalid: 2, StateUnavailable: 3, StateForbidden: 4}
