package gossip

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

func TestMembersComeAndGo(t *testing.T) {
	s := newScene(t)
	var agents []*agent
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"} {
		agents = append(agents, s.start(s.config(name)))
	}
	sees(t, "n1 n2 n3 n4 n5 n6 n7", agents...)
	first := agents[0]
	if got := first.sub.Take(); len(got.Joined) != 7 {
		t.Errorf("joined: %v", got.Joined)
	}

	t.Run("metadata", func(t *testing.T) {
		agents[1].SetAble(true)
		agents[1].SetLeaving()
		for _, a := range agents {
			eventually(t, func() (bool, string) {
				m, ok := a.Member("n2")
				return ok && m.Able && m.Leaving, fmt.Sprintf("%s sees %+v", a.config.Name, m)
			})
		}
		m, _ := first.Member("n2")
		if m.Role != Agent || m.Version != "v1.2.3" || m.Incarnation != agents[1].metadata().Incarnation || m.Address != agents[1].Address() {
			t.Errorf("%+v", m)
		}
		if got := first.sub.Take(); !slices.Contains(got.Updated, "n2") {
			t.Errorf("updated: %v", got.Updated)
		}
	})
	t.Run("a leave", func(t *testing.T) {
		if err := agents[2].Leave(10 * time.Second); err != nil {
			t.Error(err)
		}
		if err := <-agents[2].run; err != nil {
			t.Error(err)
		}
		agents = slices.Delete(agents, 2, 3)
		sees(t, "n1 n2 n4 n5 n6 n7", agents...)
		if got := first.sub.Take(); !slices.Contains(got.Departed, "n3") {
			t.Errorf("departed: %v", got.Departed)
		}
	})
	t.Run("a kill", func(t *testing.T) {
		agents[2].Close()
		agents = slices.Delete(agents, 2, 3)
		sees(t, "n1 n2 n5 n6 n7", agents...)
		if got := first.sub.Take(); !slices.Contains(got.Departed, "n4") {
			t.Errorf("departed: %v", got.Departed)
		}
	})
	t.Run("a return", func(t *testing.T) {
		agents = append(agents, s.start(s.config("n4")))
		sees(t, "n1 n2 n4 n5 n6 n7", agents...)
		if got := first.sub.Take(); !slices.Contains(got.Joined, "n4") {
			t.Errorf("joined: %v", got.Joined)
		}
	})
	t.Run("the context ends", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c, err := New(s.config("n8"))
		if err != nil {
			t.Fatal(err)
		}
		run := make(chan error, 1)
		go func() { run <- c.Run(ctx) }()
		sees(t, "n1 n2 n4 n5 n6 n7 n8", agents...)
		cancel()
		if err := <-run; err != nil {
			t.Error(err)
		}
		sees(t, "n1 n2 n4 n5 n6 n7", agents...)
	})
}

// A leave is told, not found out: these members would not notice a death.
func TestLeaveIsTold(t *testing.T) {
	s := newScene(t)
	var agents []*agent
	for _, name := range []string{"a", "b", "c", "d"} {
		config := s.config(name)
		config.tune = func(m *memberlist.Config) {
			quick(m)
			m.ProbeInterval = time.Hour
		}
		agents = append(agents, s.start(config))
	}
	sees(t, "a b c d", agents...)
	if err := agents[3].Leave(10 * time.Second); err != nil {
		t.Error(err)
	}
	sees(t, "a b c", agents[:3]...)
}

// A node comes back under a new address before the others have found out that it was gone.
func TestReturnWithNewAddress(t *testing.T) {
	s := newScene(t)
	start := func(name string) *agent {
		config := s.config(name)
		// In a large cluster push/pull and rejoin take minutes. It must not depend on them.
		config.tune = func(m *memberlist.Config) {
			quick(m)
			m.PushPullInterval = time.Hour
		}
		config.RejoinInterval = time.Hour
		return s.start(config)
	}
	a, b, c := start("a"), start("b"), start("c")
	sees(t, "a b c", a, b, c)
	old := c.Address()
	c.Close()
	c = start("c")
	if c.Address() == old {
		t.Fatal("the same address again")
	}
	for _, other := range []*agent{a, b} {
		eventually(t, func() (bool, string) {
			m, _ := other.Member("c")
			return m.Address == c.Address(), fmt.Sprintf("%s sees c at %s, it is at %s", other.config.Name, m.Address, c.Address())
		})
	}
	sees(t, "a b c", a, b, c)
}

// memberlist#311: after a restart of all at once, some stayed dead for the others.
func TestAllRestartAtOnce(t *testing.T) {
	s := newScene(t)
	var agents []*agent
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5"} {
		agents = append(agents, s.start(s.config(name)))
	}
	sees(t, "n1 n2 n3 n4 n5", agents...)
	var wg sync.WaitGroup
	restarted := make([]*agent, len(agents))
	for i, a := range agents {
		wg.Go(func() {
			a.Close()
			restarted[i] = s.restart(a)
		})
	}
	wg.Wait()
	sees(t, "n1 n2 n3 n4 n5", restarted...)
	for _, a := range restarted {
		for _, b := range restarted {
			eventually(t, func() (bool, string) {
				m, _ := a.Member(b.config.Name)
				return m.Incarnation == b.metadata().Incarnation, a.config.Name + " still sees the earlier life of " + b.config.Name
			})
		}
	}
}

func TestPartition(t *testing.T) {
	s := newScene(t)
	var agents []*agent
	for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6"} {
		agents = append(agents, s.start(s.config(name)))
	}
	sees(t, "n1 n2 n3 n4 n5 n6", agents...)
	s.net.split(agents[:4], agents[4:])
	sees(t, "n1 n2 n3 n4", agents[:4]...)
	sees(t, "n5 n6", agents[4:]...)
	// Long enough that memberlist has forgotten the others and would never find them again.
	tick := time.NewTimer(3 * time.Second)
	<-tick.C
	s.net.heal()
	sees(t, "n1 n2 n3 n4 n5 n6", agents...)
}

// What one agent sends to another is lost, the other direction works: the rest vouch for both.
func TestOneWayLoss(t *testing.T) {
	s := newScene(t)
	a, b, c, d := s.start(s.config("a")), s.start(s.config("b")), s.start(s.config("c")), s.start(s.config("d"))
	agents := []*agent{a, b, c, d}
	sees(t, "a b c d", agents...)
	s.net.cut(a, b)
	for _, x := range agents {
		x.sub.Take()
	}
	// Some rounds of probes.
	tick := time.NewTimer(3 * time.Second)
	<-tick.C
	sees(t, "a b c d", agents...)
	for _, x := range agents {
		if gone := x.sub.Take().Departed; len(gone) > 0 {
			t.Errorf("for %s departed: %v", x.config.Name, gone)
		}
	}
}

func TestUDPBlocked(t *testing.T) {
	s := newScene(t)
	s.net.set(true, false)
	a, b := s.start(s.config("a")), s.start(s.config("b"))
	sees(t, "a b", a, b)
	if who := a.meets(UDPBlocked).ContextMap()["peer"]; who != "b" {
		t.Errorf("peer %v", who)
	}
	if !a.Ping(t.Context(), "b") {
		t.Error("no ping over TCP")
	}
	sees(t, "a b", a, b)
}

func TestTCPBlocked(t *testing.T) {
	s := newScene(t)
	a, b := s.start(s.config("a")), s.start(s.config("b"))
	sees(t, "a b", a, b)
	s.net.set(false, true)
	if who := a.meets(TCPBlocked).ContextMap()["peer"]; who != "b" {
		t.Errorf("peer %v", who)
	}
	if !a.Ping(t.Context(), "b") {
		t.Error("no ping over UDP")
	}
	c := s.start(s.config("c"))
	if entry := c.meets(Unreachable); !strings.Contains(fmt.Sprint(entry.ContextMap()["error"]), "nothing answers there over TCP") {
		t.Error(entry.ContextMap())
	}
}

func TestNameConflict(t *testing.T) {
	s := newScene(t)
	a := s.start(s.config("a"))
	twin := s.start(s.config("twin"))
	sees(t, "a twin", a, twin)
	other := s.start(s.config("twin"))
	entry := a.meets(NameConflict).ContextMap()
	if entry["peer"] != "twin" || entry["address"] != twin.Address().String() || entry["otherAddress"] != other.Address().String() {
		t.Error(entry)
	}
	other.meets(NameConflict)
}

func TestPortInUse(t *testing.T) {
	s := newScene(t)
	a := s.start(s.config("a"))
	for _, network := range []string{"tcp", "udp"} {
		config := s.config("b")
		if network == "tcp" {
			config.BindAddress, config.Port = a.config.BindAddress, int(a.Address().Port())
		} else {
			taken, err := net.ListenPacket("udp", config.BindAddress+":0")
			if err != nil {
				t.Fatal(err)
			}
			defer taken.Close()
			config.Port = taken.LocalAddr().(*net.UDPAddr).Port
		}
		c, err := New(config)
		if err != nil {
			t.Fatal(err)
		}
		err = c.Run(t.Context())
		want := fmt.Sprintf("gossip cannot listen on %s:%d: the port is in use", config.BindAddress, config.Port)
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "set gossip.port") {
			t.Errorf("%s: %v", network, err)
		}
		c.Close()
	}
	config := s.config("c")
	config.BindAddress = "192.0.2.1"
	c, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "set gossip.bindAddress") {
		t.Error(err)
	}
}

func TestWrongKey(t *testing.T) {
	one, two := GenerateKey(), GenerateKey()
	for _, test := range []struct {
		name string
		a, b func(*scene, string) Config
	}{
		{"two keys", func(s *scene, n string) Config { return s.keyed(n, one) }, func(s *scene, n string) Config { return s.keyed(n, two) }},
		{"the newcomer has none", func(s *scene, n string) Config { return s.keyed(n, one) }, (*scene).config},
		{"the newcomer has one", (*scene).config, func(s *scene, n string) Config { return s.keyed(n, two) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newScene(t)
			a := s.start(test.a(s, "a"))
			b := s.start(test.b(s, "b"))
			if who := fmt.Sprint(a.meets(WrongKey).ContextMap()["peer"]); !strings.HasPrefix(who, "127.") {
				t.Errorf("peer %v", who)
			}
			entry := b.meets(Unreachable).ContextMap()
			if text := fmt.Sprint(entry["error"]); !strings.Contains(text, a.Address().String()) || !strings.Contains(text, "its encryption keys differ") {
				t.Error(entry)
			}
			sees(t, "a", a)
			sees(t, "b", b)
		})
	}
	t.Run("a member changes its key, so packets cannot be read", func(t *testing.T) {
		s := newScene(t)
		a, b := s.start(s.keyed("a", one)), s.start(s.keyed("b", one))
		sees(t, "a b", a, b)
		writeKeys(t, b.config.KeyFile, two)
		eventually(t, func() (bool, string) {
			for _, entry := range a.logs.FilterField(zap.String("problem", string(WrongKey))).All() {
				if entry.ContextMap()["peer"] == b.Address().String() {
					return true, ""
				}
			}
			return false, "no warning with b's address"
		})
	})
}

func TestWrongLabel(t *testing.T) {
	s := newScene(t)
	a := s.start(s.config("a"))
	config := s.config("b")
	config.Label = "cluster-2"
	b := s.start(config)
	if who := fmt.Sprint(a.meets(WrongLabel).ContextMap()["peer"]); !strings.HasPrefix(who, "127.") {
		t.Errorf("peer %v", who)
	}
	if text := fmt.Sprint(b.meets(Unreachable).ContextMap()["error"]); !strings.Contains(text, "its label differs") {
		t.Error(text)
	}
}

// Two clusters on one network, each with the other's agents among its peers, keep apart.
func TestTwoClustersNeverMerge(t *testing.T) {
	s := newScene(t)
	var left, right []*agent
	for _, name := range []string{"n1", "n2", "n3"} {
		s.label = "cluster-1"
		left = append(left, s.start(s.config(name)))
		s.label = "cluster-2"
		right = append(right, s.start(s.config("other-"+name)))
	}
	sees(t, "n1 n2 n3", left...)
	sees(t, "other-n1 other-n2 other-n3", right...)
	asked := s.asked.Load()
	eventually(t, func() (bool, string) { return s.asked.Load() > asked+60, "they do not look for peers" })
	for _, a := range append(left, right...) {
		joined := a.sub.Take().Joined
		for _, name := range joined {
			if strings.HasPrefix(name, "other-") != strings.HasPrefix(a.config.Name, "other-") {
				t.Errorf("%s met %s", a.config.Name, name)
			}
		}
	}
}

func TestKeyRotation(t *testing.T) {
	s := newScene(t)
	old, next := GenerateKey(), GenerateKey()
	var agents []*agent
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		agents = append(agents, s.start(s.keyed(name, old), func(c *Cluster) { c.Handle("test", func(Message) {}) }))
	}
	sees(t, "n1 n2 n3 n4", agents...)
	for _, a := range agents {
		a.sub.Take()
	}
	// Everybody talks to everybody all the while.
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var sent atomic.Int64
	for i, a := range agents {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				to := agents[n%len(agents)].config.Name
				if err := a.Send(context.WithoutCancel(ctx), to, "test", nil); err != nil {
					t.Error(err)
				}
				sent.Add(1)
			}
		})
	}
	for _, step := range [][]string{{old, next}, {next, old}, {next}} {
		keys, err := ParseKeys([]byte(strings.Join(step, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range agents { // one after another
			before := sent.Load()
			writeKeys(t, a.config.KeyFile, step...)
			for _, other := range agents {
				eventually(t, func() (bool, string) {
					m, _ := other.Member(a.config.Name)
					return m.KeySet == keys.Hash() && sent.Load() > before+20, "no new key set of " + a.config.Name
				})
			}
		}
	}
	// The old key is gone for good: what it encrypts nobody reads any more.
	for _, a := range agents {
		if ring := a.ring.GetKeys(); len(ring) != 1 || base64.StdEncoding.EncodeToString(ring[0]) != next {
			t.Errorf("%s has %d keys", a.config.Name, len(ring))
		}
	}
	t.Run("a bad file", func(t *testing.T) {
		a := agents[0]
		writeKeys(t, a.config.KeyFile, "not a key")
		eventually(t, func() (bool, string) {
			said := a.logs.FilterMessage("gossip goes on with the earlier keys").All()
			return len(said) == 1 && strings.Contains(a.Stats().KeyError, "line 1: not base64"), "not reported"
		})
		os.Remove(a.config.KeyFile)
		eventually(t, func() (bool, string) {
			return errors.Is(errNotThere(a.Stats().KeyError), os.ErrNotExist), a.Stats().KeyError
		})
		writeKeys(t, a.config.KeyFile, next)
		eventually(t, func() (bool, string) { return a.Stats().KeyError == "", a.Stats().KeyError })
	})
	stop()
	wg.Wait()
	for _, a := range agents {
		if n := a.Stats().Problems[WrongKey]; n > 0 {
			t.Errorf("%s could not read %d messages", a.config.Name, n)
		}
		if gone := a.sub.Take().Departed; len(gone) > 0 {
			t.Errorf("for %s departed: %v", a.config.Name, gone)
		}
	}
}

func errNotThere(text string) error {
	if strings.Contains(text, "no such file") {
		return os.ErrNotExist
	}
	return nil
}

// 1,000 members come and go; nothing of them stays.
func TestNoGoroutineStays(t *testing.T) {
	s := newScene(t)
	hub := s.start(s.config("hub"))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for n := range 50 {
				// The names come again, as nodes do: memberlist takes minutes to forget each of a thousand that it never met before.
				config := s.config(fmt.Sprintf("n%d", i))
				config.BindAddress = hub.config.BindAddress // as many addresses as this need not be
				a := s.startAlone(config)
				if n%5 == 0 {
					a.Close()
				} else {
					a.Leave(10 * time.Second) // that not all heard it is not what this is about
				}
				if err := <-a.run; err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	sees(t, "hub", hub)
	hub.Close()
	eventually(t, func() (bool, string) {
		stacks := make([]byte, 4<<20)
		var left []string
		for _, stack := range strings.Split(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
			if strings.Contains(stack, "hashicorp/memberlist.") || strings.Contains(stack, "gossip.(*") {
				left = append(left, stack)
			}
		}
		return len(left) == 0, strings.Join(left, "\n\n")
	})
}

// Neither a subscriber that does not look, nor a handler or a log that does not return, delays gossip.
func TestNobodyDelaysGossip(t *testing.T) {
	s := newScene(t)
	release := make(chan struct{})
	config := s.config("slow")
	config.Logger = zap.New(blockingCore{release})
	slow := s.start(config, func(c *Cluster) { c.Handle("test", func(Message) { <-release }) })
	t.Cleanup(func() { close(release) }) // before Close, which waits for the handler
	a := s.start(s.config("a"))
	sees(t, "a slow", a, slow)
	slow.postpone(func() { <-release })
	for len(slow.later) < cap(slow.later) {
		slow.postpone(func() {})
	}
	busy := false
	for range maxWaiting + 2 {
		err := a.Send(t.Context(), "slow", "test", nil)
		if busy = errors.Is(err, ErrBusy); busy {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !busy {
		t.Error("never busy")
	}
	for range 3 {
		b := s.start(s.config("b"))
		sees(t, "a b slow", a, slow)
		if err := b.Leave(10 * time.Second); err != nil {
			t.Error(err)
		}
		sees(t, "a slow", a, slow)
	}
	if gone := a.sub.Take().Departed; !slices.Equal(gone, []string{"b"}) {
		t.Errorf("departed: %v", gone)
	}
	if got := slow.sub.Take(); !slices.Equal(got.Departed, []string{"b"}) || !slices.Equal(got.Joined, []string{"a", "b", "slow"}) {
		t.Errorf("%+v", got)
	}
	select {
	case <-slow.sub.C:
	default:
		t.Error("no signal")
	}
}

type blockingCore struct{ release <-chan struct{} }

func (c blockingCore) Enabled(zapcore.Level) bool        { return true }
func (c blockingCore) With([]zapcore.Field) zapcore.Core { return c }
func (c blockingCore) Sync() error                       { return nil }
func (c blockingCore) Write(zapcore.Entry, []zapcore.Field) error {
	<-c.release
	return nil
}
func (c blockingCore) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if e.LoggerName == "" && strings.HasPrefix(e.Message, "gossip is running") {
		return ce // said before there is any gossip
	}
	return ce.AddCore(e, c)
}

func TestStops(t *testing.T) {
	s := newScene(t)
	for _, test := range []struct {
		name string
		stop func(*Cluster)
	}{
		{"Close", func(c *Cluster) { c.Close() }},
		{"Leave, then all of it again", func(c *Cluster) { c.Leave(time.Second); c.Close(); c.Leave(time.Second); c.Close() }},
		{"Close, then Leave", func(c *Cluster) { c.Close(); c.Leave(time.Second) }},
		{"many at once", func(c *Cluster) {
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					if i%2 == 0 {
						c.Close()
					} else {
						c.Leave(time.Second)
					}
				})
			}
			wg.Wait()
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := s.start(s.config("a")), s.start(s.config("b"))
			sees(t, "a b", a, b)
			test.stop(b.Cluster)
			if err := <-b.run; err != nil {
				t.Error(err)
			}
			sees(t, "a", a)
			if err := b.Run(t.Context()); !errors.Is(err, ErrNotRunning) {
				t.Errorf("run again: %v", err)
			}
			if err := b.Send(t.Context(), "a", "test", nil); !errors.Is(err, ErrNotRunning) {
				t.Errorf("send: %v", err)
			}
			if b.Ping(t.Context(), "a") {
				t.Error("it pings")
			}
			b.SetAble(true)
			b.Members()
			b.Stats()
			a.Close()
		})
	}
	t.Run("before it runs", func(t *testing.T) {
		c, err := New(s.config("c"))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Send(t.Context(), "c", "test", nil); !errors.Is(err, ErrNotRunning) {
			t.Error(err)
		}
		c.Close()
		if err := c.Run(t.Context()); !errors.Is(err, ErrNotRunning) {
			t.Error(err)
		}
	})
}

func TestPing(t *testing.T) {
	s := newScene(t)
	a, b, c := s.start(s.config("a")), s.start(s.config("b")), s.start(s.config("c"))
	sees(t, "a b c", a, b, c)
	if !a.Ping(t.Context(), "b") || !a.Ping(t.Context(), "a") {
		t.Error("a living member does not answer")
	}
	if a.Ping(t.Context(), "nobody") {
		t.Error("nobody answers")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if a.Ping(ctx, "b") {
		t.Error("an answer after the end of the context")
	}
	b.Close()
	if a.Ping(t.Context(), "b") {
		t.Error("a killed member answers")
	}
	sees(t, "a c", a, c)
	if a.Ping(t.Context(), "b") {
		t.Error("a departed member answers")
	}
	// Somebody else has its address now.
	config := s.config("d")
	config.BindAddress, config.Port = b.config.BindAddress, int(b.Address().Port())
	d := s.start(config)
	sees(t, "a c d", a, c, d)
	if a.Ping(t.Context(), "b") {
		t.Error("somebody else answers for b")
	}
	// A member that is alive, but not for the others.
	s.mu.Lock()
	s.peers = nil // nobody finds anybody again
	s.mu.Unlock()
	s.net.split([]*agent{a, d}, []*agent{c})
	sees(t, "a d", a, d)
	s.net.heal()
	eventually(t, func() (bool, string) { return a.Ping(t.Context(), "c"), "c does not answer" })
}

func TestConfig(t *testing.T) {
	good := newScene(t).config("a")
	for _, test := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"good", func(*Config) {}, ""},
		{"no name", func(c *Config) { c.Name = "" }, "the member's name"},
		{"no label", func(c *Config) { c.Label = "" }, "the label has 0 bytes"},
		{"a long label", func(c *Config) { c.Label = strings.Repeat("x", 256) }, "the label has 256 bytes"},
		{"no role", func(c *Config) { c.Role = 0 }, "no role"},
		{"a host name to bind to", func(c *Config) { c.BindAddress = "localhost" }, `bindAddress: "localhost" is not an IP address`},
		{"all addresses", func(c *Config) { c.BindAddress = "0.0.0.0" }, "others cannot reach 0.0.0.0"},
		{"a bad port", func(c *Config) { c.Port = 65536 }, "65536 is not a port"},
		{"no key", func(c *Config) { c.Insecure = false }, "unstale keygen"},
		{"no key file", func(c *Config) { c.KeyFile = "/nonexistent/keys" }, "read the gossip keys: open /nonexistent/keys"},
		{"all at once", func(c *Config) { c.Name, c.Role = "", 0 }, "no role"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := good
			test.change(&config)
			_, err := New(config)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestRejoinProbability(t *testing.T) {
	for members, want := range map[int]float64{0: 1, 1: 1, 3: 1, 6: 0.5, 3000: 0.001} {
		if got := (&Cluster{}).rejoinProbability(members); got != want {
			t.Errorf("%d members: %v, want %v", members, got, want)
		}
	}
}
