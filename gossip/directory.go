package gossip

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// directory is this package's own copy of who is alive. memberlist calls back under its own lock, where asking it anything
// deadlocks and taking long stalls the whole cluster's gossip; so callbacks only change this copy and signal.
// Nothing is called with mu held.
type directory struct {
	mu          sync.Mutex
	alive       map[string]Member          // guarded by mu
	departed    map[string]departure       // guarded by mu; names in it are not in alive
	subscribers map[*Subscription]struct{} // guarded by mu
}

// departure is where a member that left or died was last seen.
type departure struct {
	address netip.AddrPort
	when    time.Time
}

// keepDeparted is how long the last address of a departed member is remembered, for a last ping before its state is removed.
const keepDeparted = 24 * time.Hour

func newDirectory() *directory {
	return &directory{
		alive:       make(map[string]Member),
		departed:    make(map[string]departure),
		subscribers: make(map[*Subscription]struct{}),
	}
}

func (d *directory) join(m Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alive[m.Name] = m
	delete(d.departed, m.Name)
	for s := range d.subscribers {
		s.pending.joined[m.Name] = struct{}{}
		s.signal()
	}
}

func (d *directory) update(m Member) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.alive[m.Name]; !ok {
		return // only what has joined can change
	}
	d.alive[m.Name] = m
	for s := range d.subscribers {
		s.pending.updated[m.Name] = struct{}{}
		s.signal()
	}
}

func (d *directory) leave(name string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.alive[name]
	if !ok {
		return
	}
	delete(d.alive, name)
	d.departed[name] = departure{m.Address, now}
	for s := range d.subscribers {
		s.pending.departed[name] = struct{}{}
		s.signal()
	}
}

// forget drops departures that are long past.
func (d *directory) forget(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.departed, func(_ string, gone departure) bool { return now.Sub(gone.when) > keepDeparted })
}

func (d *directory) member(name string) (Member, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m, ok := d.alive[name]
	return m, ok
}

// lastAddress is where a member of that name is, or was when it left or died.
func (d *directory) lastAddress(name string) (netip.AddrPort, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.alive[name]; ok {
		return m.Address, true
	}
	gone, ok := d.departed[name]
	return gone.address, ok
}

func (d *directory) members() []Member {
	d.mu.Lock()
	members := slices.Collect(maps.Values(d.alive))
	d.mu.Unlock()
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	return members
}

func (d *directory) size() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.alive)
}

// addresses are where the live members are.
func (d *directory) addresses() map[netip.AddrPort]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[netip.AddrPort]bool, len(d.alive))
	for _, m := range d.alive {
		all[m.Address] = true
	}
	return all
}

// A Subscription tells that something changed, and what. Signals coalesce, facts do not get lost: a member that died and
// came back between two looks stands under both Joined and Departed. It holds a set of names, so a subscriber that is slow
// costs memory for each name once, and never delays gossip.
type Subscription struct {
	// C has room for one signal, which stands for all changes since the last Take.
	C <-chan struct{}

	c       chan struct{}
	dir     *directory
	pending changes // guarded by dir.mu
}

type changes struct{ joined, departed, updated map[string]struct{} }

func newChanges() changes {
	return changes{make(map[string]struct{}), make(map[string]struct{}), make(map[string]struct{})}
}

// Changes are the names of members that changed between two calls of Take, each sorted. How the members stand now is
// Cluster.Members' to say.
type Changes struct {
	Joined   []string // joined at least once
	Departed []string // left or died at least once
	Updated  []string // said something new of themselves, or restarted so quickly that nobody missed them
}

// subscribe makes a subscription whose first signal tells of all present members.
func (d *directory) subscribe() *Subscription {
	c := make(chan struct{}, 1)
	s := &Subscription{C: c, c: c, dir: d, pending: newChanges()}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.subscribers[s] = struct{}{}
	for name := range d.alive {
		s.pending.joined[name] = struct{}{}
		s.signal()
	}
	return s
}

func (s *Subscription) signal() {
	select {
	case s.c <- struct{}{}:
	default: // one is waiting already
	}
}

// Take returns what changed since the last call.
func (s *Subscription) Take() Changes {
	s.dir.mu.Lock()
	pending := s.pending
	s.pending = newChanges()
	s.dir.mu.Unlock()
	return Changes{
		Joined:   slices.Sorted(maps.Keys(pending.joined)),
		Departed: slices.Sorted(maps.Keys(pending.departed)),
		Updated:  slices.Sorted(maps.Keys(pending.updated)),
	}
}

// Close ends the subscription; no signal comes after it.
func (s *Subscription) Close() {
	s.dir.mu.Lock()
	defer s.dir.mu.Unlock()
	delete(s.dir.subscribers, s)
}
