package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// Cluster is this agent's place among the others. New starts nothing; Run does.
type Cluster struct {
	config   Config
	log      *zap.Logger
	keys     Keys // at the start; the ring has the present ones
	ring     *memberlist.Keyring
	dir      *directory
	problems *problems
	handlers map[string]func(Message) // written before Run only

	ready   chan struct{} // closed when the first attempt to join has ended
	quit    chan struct{} // closed to end Run
	done    chan struct{} // closed when Run has ended
	dirty   chan struct{} // size 1: metadata changed
	later   chan func()   // what memberlist's callbacks leave to be done without its lock
	waiting chan Message  // for handlers
	replies chan struct{} // one element for each receipt on its way

	lastConflict atomic.Int64 // Unix nanoseconds: when another address last claimed this member's name
	stats        counters

	mu       sync.Mutex
	meta     Metadata               // guarded by mu
	keyError string                 // guarded by mu; why the key file was last not taken
	list     *memberlist.Memberlist // guarded by mu; nil unless running
	address  netip.AddrPort         // guarded by mu; where others find this member
	state    state                  // guarded by mu
	pending  map[uint64]sent        // guarded by mu; messages without a receipt yet
	nextID   uint64                 // guarded by mu
	workers  sync.WaitGroup         // Add is guarded by mu and allowed only while running
}

type state int

const (
	idle     state = iota
	running        // list is there
	stopping       // somebody has taken it on to stop
	stopped        // list must not be touched any more
)

// sent is a message that waits for its receipt.
type sent struct {
	to   string
	done chan result // size 1
}

type counters struct {
	sent, failed, received, unknown, invalid, refused, dropped, rejoins atomic.Int64
}

// Stats are counts since the start, for metrics.
type Stats struct {
	Members  int
	Sent     int64 // messages that their receivers took
	Failed   int64 // messages that ended in an error
	Received int64 // messages taken
	Unknown  int64 // messages of a type that this version does not know
	Invalid  int64 // messages that could not be read
	Refused  int64 // messages for another member, or too many
	Dropped  int64 // receipts and log lines dropped because too many were waiting
	Rejoins  int64 // joins of peers that were not members
	Health   int   // memberlist's own score: 0 is healthy, higher is slower
	Problems map[Problem]int64
	KeySet   uint32
	KeyError string // why the key file was not taken when it last changed; the earlier keys go on
}

// New checks the configuration and reads the keys. It starts nothing.
func New(config Config) (*Cluster, error) {
	if config.Logger == nil {
		config.Logger = zap.NewNop()
	}
	if config.RejoinInterval == 0 {
		config.RejoinInterval = defaultRejoinInterval
	}
	if config.keyPoll == 0 {
		config.keyPoll = defaultKeyPoll
	}
	if config.AdvertiseAddress == "" {
		config.AdvertiseAddress = config.BindAddress
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	c := &Cluster{
		config:   config,
		log:      config.Logger,
		dir:      newDirectory(),
		problems: newProblems(config.Logger),
		handlers: make(map[string]func(Message)),
		ready:    make(chan struct{}),
		quit:     make(chan struct{}),
		done:     make(chan struct{}),
		dirty:    make(chan struct{}, 1),
		later:    make(chan func(), 1024),
		waiting:  make(chan Message, maxWaiting),
		replies:  make(chan struct{}, maxReceipts),
		pending:  make(map[uint64]sent),
		meta: Metadata{
			Role: config.Role, Version: config.Version,
			Incarnation: uint64(time.Now().UnixNano()),
		},
	}
	// What is sent is what is compared later, so the version is cut here.
	c.meta.Version = c.meta.Version[:min(len(c.meta.Version), MaxMetadata-metadataFixed)]
	if config.KeyFile == "" {
		return c, nil
	}
	keys, err := LoadKeys(config.KeyFile)
	if err != nil {
		return nil, err
	}
	c.keys, c.meta.KeySet = keys, keys.Hash()
	c.ring, err = newKeyring(keys)
	return c, err
}

// Handle registers who takes messages of a type; it must be done before Run. Handlers are called one at a time, in the
// order in which the messages came, and must return soon: while one works, the next messages wait, and beyond some
// hundred are refused.
func (c *Cluster) Handle(messageType string, handler func(Message)) {
	if c.handlers[messageType] != nil || strings.HasPrefix(messageType, reservedTypes) {
		panic("gossip: message type " + messageType + " is taken")
	}
	c.handlers[messageType] = handler
}

// Run gossips until ctx ends (then it leaves the cluster, for LeaveTimeout at most), or Leave or Close is called. It can be
// run once. It fails only when it cannot start. Being alone is not an error.
func (c *Cluster) Run(ctx context.Context) error {
	list, reclaim, err := c.start()
	if err != nil {
		return err
	}
	work, cancel := context.WithCancel(ctx)
	for _, part := range []func(context.Context){
		c.dispatch,
		c.join,
		func(ctx context.Context) { c.announce(ctx, list, reclaim) },
		c.watchKeys,
	} {
		c.spawn(func() { part(work) })
	}
	drained := make(chan struct{})
	stopDraining := make(chan struct{})
	go func() {
		defer close(drained)
		c.drain(stopDraining)
	}()

	select {
	case <-ctx.Done():
		if err := c.stop(LeaveTimeout); err != nil {
			c.log.Warn("gossip ends before all members know; they will find out by themselves", zap.Error(err))
		}
	case <-c.quit:
	}
	<-c.quit // whoever took on to stop has left the cluster, or does not want to
	cancel()
	c.mu.Lock()
	c.state, c.list = stopped, nil
	c.mu.Unlock()
	err = list.Shutdown() // ends all streams, so that what waits for one returns
	c.workers.Wait()
	close(stopDraining)
	<-drained
	close(c.done)
	if err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

// start listens.
func (c *Cluster) start() (*memberlist.Memberlist, time.Duration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != idle {
		return nil, 0, fmt.Errorf("gossip cannot run twice: %w", ErrNotRunning)
	}
	config := c.memberlistConfig()
	fail := func(err error) (*memberlist.Memberlist, time.Duration, error) {
		c.state = stopped
		close(c.done)
		return nil, 0, err
	}
	inner, err := listen(config)
	if err != nil {
		return fail(whyNotStarted(net.JoinHostPort(config.BindAddr, strconv.Itoa(config.BindPort)), err))
	}
	config.BindPort = inner.GetAutoBindPort()
	config.AdvertisePort = config.BindPort
	config.Transport = newTransport(inner, c.config.Loses)
	c.address = netip.AddrPortFrom(netip.MustParseAddr(config.AdvertiseAddr).Unmap(), uint16(config.BindPort))
	// Create asks for the metadata, under no lock of its own but ours.
	c.mu.Unlock()
	list, err := memberlist.Create(config)
	c.mu.Lock()
	if err != nil {
		inner.Shutdown()
		return fail(fmt.Errorf("start gossip: %w", err))
	}
	if c.state != idle { // closed meanwhile
		return nil, 0, errors.Join(ErrNotRunning, list.Shutdown())
	}
	c.list, c.state = list, running
	c.log.Info("gossip is running", zap.Stringer("address", c.address), zap.Bool("encrypted", c.ring != nil))
	return list, config.DeadNodeReclaimTime, nil
}

// spawn runs f unless the cluster has stopped; Run waits for it.
func (c *Cluster) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != running && c.state != stopping {
		return false
	}
	c.workers.Go(f)
	return true
}

// memberlist returns memberlist while it may be used.
func (c *Cluster) memberlist() (*memberlist.Memberlist, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		return nil, ErrNotRunning
	}
	return c.list, nil
}

// stop takes it on to end Run, once: leave for at most that long (0: not at all, as a killed agent would), then quit.
// memberlist panics if somebody leaves after the end.
func (c *Cluster) stop(leave time.Duration) error {
	c.mu.Lock()
	switch c.state {
	case idle:
		c.state = stopped
		close(c.done)
	case running:
		c.state = stopping
		list := c.list
		c.mu.Unlock()
		var err error
		if leave > 0 {
			err = list.Leave(leave)
		}
		close(c.quit)
		return err
	}
	c.mu.Unlock()
	return nil
}

// Leave tells the other members that this one goes, for at most that long, and ends Run. An error says that perhaps not
// all have heard it; they will find out by themselves. It returns when Run has ended, and may be called again.
func (c *Cluster) Leave(timeout time.Duration) error {
	err := c.stop(max(timeout, time.Millisecond))
	<-c.done
	if err != nil {
		return fmt.Errorf("leave gossip: %w", err)
	}
	return nil
}

// Close ends Run without a word to the others, and returns when it has ended. It may be called at any time, again too.
func (c *Cluster) Close() {
	c.stop(0)
	<-c.done
}

// Ready is closed when this member listens and has tried to join the others once, whether or not any answered.
func (c *Cluster) Ready() <-chan struct{} { return c.ready }

// Address is where others find this member. It is known while running.
func (c *Cluster) Address() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.address
}

// Members are the live members, this one too, sorted by name. The slice is the caller's.
func (c *Cluster) Members() []Member { return c.dir.members() }

// Member is the live member of that name.
func (c *Cluster) Member(name string) (Member, bool) { return c.dir.member(name) }

// Subscribe makes a subscription to changes among the members. Its first signal tells of all that are there already.
func (c *Cluster) Subscribe() *Subscription { return c.dir.subscribe() }

// SetLeaving tells the others that this member is about to stop. There is no way back.
func (c *Cluster) SetLeaving() { c.change(func(m *Metadata) { m.Leaving = true }) }

// SetAble tells the others whether this member can do its work. At first it cannot.
func (c *Cluster) SetAble(able bool) { c.change(func(m *Metadata) { m.Able = able }) }

func (c *Cluster) change(change func(*Metadata)) {
	c.mu.Lock()
	before := c.meta
	change(&c.meta)
	changed := c.meta != before
	c.mu.Unlock()
	if changed {
		signal(c.dirty)
	}
}

func (c *Cluster) metadata() Metadata {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.meta
}

// Stats are the present counts.
func (c *Cluster) Stats() Stats {
	s := Stats{
		Members: c.dir.size(),
		Sent:    c.stats.sent.Load(), Failed: c.stats.failed.Load(), Received: c.stats.received.Load(),
		Unknown: c.stats.unknown.Load(), Invalid: c.stats.invalid.Load(), Refused: c.stats.refused.Load(),
		Dropped: c.stats.dropped.Load(), Rejoins: c.stats.rejoins.Load(),
		Problems: make(map[Problem]int64),
	}
	for problem := range advice {
		s.Problems[problem] = c.problems.count(problem)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s.KeySet, s.KeyError = c.meta.KeySet, c.keyError
	if c.list != nil {
		s.Health = c.list.GetHealthScore() // has a lock of its own only
	}
	return s
}

// announce sends changed metadata to the others. It also repeats where this member is while another address claims its
// name: the others take a new address only when the old one has been dead for a while, and nobody asks again then.
func (c *Cluster) announce(ctx context.Context, list *memberlist.Memberlist, reclaim time.Duration) {
	ticker := time.NewTicker(reclaim)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.dirty:
			c.publish(ctx, list)
		case <-ticker.C:
			if time.Since(time.Unix(0, c.lastConflict.Load())) < announceFor*reclaim {
				c.update(list)
			}
		}
	}
}

// publish sends the metadata until memberlist has it: it drops an update that meets a refutation of this member's death.
func (c *Cluster) publish(ctx context.Context, list *memberlist.Memberlist) {
	for {
		c.update(list)
		if own, ok := c.dir.member(c.config.Name); ok && own.Metadata == c.metadata() {
			return
		}
		if sleep(ctx, 50*time.Millisecond) != nil {
			return
		}
	}
}

func (c *Cluster) update(list *memberlist.Memberlist) {
	// Its error says that within this time the update was not sent to enough members; it goes out all the same.
	_ = list.UpdateNode(time.Millisecond)
}

// watchKeys reads the key file again and again, and takes what is new and right.
func (c *Cluster) watchKeys(ctx context.Context) {
	if c.ring == nil {
		return
	}
	present := c.keys
	said := ""
	for sleep(ctx, c.config.keyPoll) == nil {
		keys, err := LoadKeys(c.config.KeyFile)
		if err == nil && !keys.same(present) {
			if err = install(c.ring, keys); err == nil {
				present = keys
				c.log.Info("gossip has new keys", zap.Int("keys", len(keys.list)), zap.String("keySet", fmt.Sprintf("%08x", keys.Hash())))
				c.change(func(m *Metadata) { m.KeySet = keys.Hash() })
			}
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != said && err != nil {
			c.log.Warn("gossip goes on with the earlier keys", zap.Error(err))
		}
		said = text
		c.mu.Lock()
		c.keyError = text
		c.mu.Unlock()
	}
}

func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep returns after d, or with the context's error when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
