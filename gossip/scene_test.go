package gossip

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A scene is some agents that gossip over real sockets on loopback, each on an address of its own.
type scene struct {
	t     *testing.T
	label string
	net   *network

	mu    sync.Mutex
	peers []string // guarded by mu; what Peers returns
	asked atomic.Int64
}

func newScene(t *testing.T) *scene {
	return &scene{t: t, label: "cluster-1", net: &network{drop: make(map[link]bool)}}
}

func (s *scene) listPeers(context.Context) ([]string, error) {
	s.asked.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers), nil
}

func (s *scene) addPeer(address netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.peers, address.String()) {
		s.peers = append(s.peers, address.String())
	}
}

var (
	lastIP  atomic.Int32
	firstIP = os.Getpid() % 200 * 256 * 256 // other tests run on this machine too
)

// freeIP is an address in 127.0.0.0/8 that no other test has.
func freeIP() string {
	n := firstIP + int(lastIP.Add(1))
	return fmt.Sprintf("127.%d.%d.%d", 16+n>>16, n>>8&255, n&255)
}

// agent is a running member.
type agent struct {
	*Cluster
	t    *testing.T
	sub  *Subscription
	logs *observer.ObservedLogs
	run  chan error
}

// quick makes memberlist react within a second. The relations between its timings stay as they are in production.
func quick(m *memberlist.Config) {
	m.ProbeInterval = 200 * time.Millisecond
	m.ProbeTimeout = 100 * time.Millisecond
	m.GossipInterval = 20 * time.Millisecond
	m.PushPullInterval = time.Second
	m.GossipToTheDeadTime = 2 * time.Second
	m.DeadNodeReclaimTime = 500 * time.Millisecond
	m.TCPTimeout = time.Second
}

// config is a member's; without a look for peers after the start, so that a test says when.
func (s *scene) config(name string) Config {
	ip := freeIP()
	return Config{
		Name: name, Label: s.label, Role: Agent, Version: "v1.2.3", BindAddress: ip, Insecure: true,
		Peers: s.listPeers, RejoinInterval: 100 * time.Millisecond, RejoinProbability: 1,
		tune: quick, Loses: s.net.loses(ip), keyPoll: 10 * time.Millisecond,
	}
}

// start runs a member and waits until it has tried to join. Its address becomes a peer. It is closed when the test ends.
func (s *scene) start(config Config, before ...func(*Cluster)) *agent {
	s.t.Helper()
	a := s.startAlone(config, before...)
	s.addPeer(a.Address())
	return a
}

func (s *scene) startAlone(config Config, before ...func(*Cluster)) *agent {
	s.t.Helper()
	core, logs := observer.New(zapcore.DebugLevel)
	if config.Logger == nil {
		config.Logger = zap.New(core)
	}
	c, err := New(config)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range before {
		f(c)
	}
	a := &agent{Cluster: c, t: s.t, sub: c.Subscribe(), logs: logs, run: make(chan error, 1)}
	go func() { a.run <- c.Run(s.t.Context()) }()
	s.t.Cleanup(c.Close)
	select {
	case <-c.Ready():
	case err := <-a.run:
		s.t.Fatalf("%s: %v", config.Name, err)
	}
	return a
}

// restart is a new process of the same agent at the same address.
func (s *scene) restart(a *agent) *agent {
	s.t.Helper()
	config := a.config
	config.Port = int(a.Address().Port())
	config.Logger = nil
	return s.start(config)
}

func (a *agent) names() string {
	var names []string
	for _, m := range a.Members() {
		names = append(names, m.Name)
	}
	return strings.Join(names, " ")
}

// sees waits until every agent has exactly the members of that list.
func sees(t *testing.T, names string, agents ...*agent) {
	t.Helper()
	for _, a := range agents {
		eventually(t, func() (bool, string) {
			return a.names() == names, a.config.Name + " sees " + a.names() + ", want " + names
		})
	}
}

// patience is for machines that have much else to do.
const patience = 90 * time.Second

// eventually waits until check holds: the one place where tests wait for gossip.
func eventually(t *testing.T, check func() (bool, string)) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, what := check()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("after %v still: %s", patience, what)
		}
	}
}

// meets waits until the agent has met a problem and said so, and returns what it said.
func (a *agent) meets(p Problem) observer.LoggedEntry {
	a.t.Helper()
	var entries []observer.LoggedEntry
	eventually(a.t, func() (bool, string) {
		entries = a.logs.FilterField(zap.String("problem", string(p))).All()
		return len(entries) > 0 && a.Stats().Problems[p] > 0, a.config.Name + " does not tell of " + string(p)
	})
	if entries[0].Level != zapcore.WarnLevel || entries[0].Message != advice[p] {
		a.t.Errorf("%s: %v", p, entries[0])
	}
	return entries[0]
}

// network is what may be wrong between the agents of a scene.
type network struct {
	mu    sync.Mutex
	drop  map[link]bool // guarded by mu; what goes from one address to another is lost
	noUDP bool          // guarded by mu
	noTCP bool          // guarded by mu
}

type link struct{ from, to netip.Addr }

// cut loses what the one agent sends to the other, in that direction only.
func (n *network) cut(from, to *agent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.drop[link{from.Address().Addr(), to.Address().Addr()}] = true
}

// split loses everything between two groups.
func (n *network) split(left, right []*agent) {
	for _, a := range left {
		for _, b := range right {
			n.cut(a, b)
			n.cut(b, a)
		}
	}
}

func (n *network) set(noUDP, noTCP bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noUDP, n.noTCP = noUDP, noTCP
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.drop)
	n.noUDP, n.noTCP = false, false
}

// loses is what happens on the way from one address to others. A stream needs both ways.
func (n *network) loses(from string) func(string, netip.Addr) bool {
	self := netip.MustParseAddr(from)
	return func(network string, to netip.Addr) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		if network == "udp" {
			return n.noUDP || n.drop[link{self, to}]
		}
		return n.noTCP || n.drop[link{self, to}] || n.drop[link{to, self}]
	}
}

// keyFile is a key file that a test changes as Kubernetes does: as a whole.
func writeKeys(t *testing.T, path string, keys ...string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(strings.Join(keys, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// keyed is a member's configuration with a key file of its own.
func (s *scene) keyed(name string, keys ...string) Config {
	config := s.config(name)
	config.Insecure = false
	config.KeyFile = filepath.Join(s.t.TempDir(), "keys")
	writeKeys(s.t, config.KeyFile, keys...)
	return config
}
