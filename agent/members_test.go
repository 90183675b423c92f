package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/test/apiserver"
)

// All agents die and are back within a second (memberlist#311): nothing is removed, nothing written, and they find one another again.
func TestAllAgentsRestartAtOnce(t *testing.T) {
	s := newScene(t, "grace: 20s\nsweepInterval: 1s")
	defer s.dump()
	names := []string{s.node(), s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	s.owner()
	s.resetCounts()
	for _, m := range members {
		m.kill()
	}
	for _, m := range members {
		m.proxy.SetFault(nil)
		m.start()
	}
	s.awaitMembers(len(names))
	s.owner()
	s.awaitSweeps(3)
	s.await("nothing is removed", names...)
	if got := s.counts(s.class("PATCH") + "/status"); got != 0 {
		t.Errorf("%d writes", got)
	}
	noErrors(t, s)
}

// A node's agent comes back under a new address before anybody noticed that it was gone: the others see it there, its key stays.
func TestAnAgentWithANewAddress(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	owner := s.owner()
	moved := members[0]
	if moved == owner {
		moved = members[1]
	}
	moved.kill()
	again := s.member(moved.name)
	again.start()
	apiserver.Eventually(t, "the others see the new address", func() error {
		for _, m := range members {
			if m == moved {
				continue
			}
			if got, _ := m.agent.cluster.Member(moved.name); got.Address.Addr().String() != again.ip {
				return fmt.Errorf("%s sees it at %s", m.name, got.Address)
			}
		}
		return nil
	})
	s.awaitMembers(len(names))
	s.write("gone")
	s.await("the orphan is gone", names...)
	s.awaitSweeps(3)
	s.await("its key stays", names...)
	noErrors(t, s)
}

// A machine dies, and its Node is deleted a while later, as controllers do: the key goes then, and not at the next list of all Nodes.
func TestANodeThatIsDeletedAfterItsAgentDied(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	s.startAll(names...)
	owner := s.owner()
	dead := s.agents[but(names, owner.name)[0]]
	dead.kill()
	s.awaitMembers(2)
	before := owner.proxy.Counts()["GET nodes"]
	apiserver.Eventually(t, "its Node was found to exist", func() error {
		if got := owner.proxy.Counts()["GET nodes"] - before; got < 2 {
			return fmt.Errorf("asked for %d times", got)
		}
		return nil
	})
	s.await("its key stays", names...)
	s.server.DeleteNode(t, dead.name)
	s.await("its key is gone", but(names, dead.name)...)
}

// An agent with another gossip key stays alone, and says why. Given the right one it finds the others without a restart.
func TestAWrongGossipKeyHeals(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node()}
	s.create(names...)
	right, wrong := s.member(names[0]), s.member(names[1])
	file := filepath.Join(t.TempDir(), "keys")
	give := func(key []byte) {
		t.Helper()
		if err := errors.Join(os.WriteFile(file+".new", key, 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	give([]byte(gossip.GenerateKey()))
	right.start()
	wrong.start(func(o *Options) {
		before := o.gossip
		o.gossip = func(c *gossip.Config) { before(c); c.KeyFile = file }
	})
	s.awaitMembers(1)
	apiserver.Eventually(t, "both say what is wrong", func() error {
		for _, m := range []*member{right, wrong} {
			if m.logs.FilterField(zap.String("problem", string(gossip.WrongKey))).Len() == 0 {
				return fmt.Errorf("%s does not", m.name)
			}
		}
		return nil
	})
	s.write("gone-1") // two owners
	s.await("the orphan is gone", names...)

	key, err := os.ReadFile(s.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	give(key)
	s.awaitMembers(2)
	s.owner()
	s.write("gone-2")
	s.await("the orphan is gone", names...)
	noErrors(t, s)
}

// Where UDP does not get through, the agents work together over TCP. What changes with them the others hear within half a minute, so
// more than two would take their time to agree on who owns what.
func TestUDPIsBlocked(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.network.blockUDP()
	names := []string{s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	s.owner()
	s.write("gone")
	s.await("the orphan is gone", names...)
	apiserver.Eventually(t, "somebody says so", func() error {
		for _, m := range members {
			if m.logs.FilterField(zap.String("problem", string(gossip.UDPBlocked))).Len() > 0 {
				return nil
			}
		}
		return errors.New("nobody does")
	})
	s.awaitMembers(len(names))
	s.awaitSweeps(3)
	s.await("the living stay", names...)
	noErrors(t, s)
}

// What the owner before saw counts for nothing: the next one waits a whole grace of its own.
func TestANewOwnerTrustsOnlyWhatItSaw(t *testing.T) {
	const grace = 6 * time.Second
	s := newScene(t, "grace: 6s\nsweepInterval: 1s")
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	s.startAll(names...)
	first := s.owner()
	s.write("gone")
	apiserver.Eventually(t, "the first owner has waited nearly all of the grace", func() error {
		seen := first.agent.decisions.find(decisionFilter{key: "gone", limit: 1})
		if len(seen) == 0 || time.Since(seen[0].Time) < grace*2/3 {
			return fmt.Errorf("it decided %v", seen)
		}
		return nil
	})
	first.kill()
	s.await("the orphan is gone", names...)
	removed := time.Now()
	owns := s.owner().logs.FilterMessage("owns").FilterField(zap.String("target", "shared")).All()
	if waited := removed.Sub(owns[len(owns)-1].Time); waited < grace {
		t.Errorf("the next owner waited only %s", waited)
	}
}

// An agent whose own Node does not exist, for a wrong --node say, says so; nothing of what it writes under that name is touched.
func TestAnAgentWithoutANode(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name, stranger := s.node(), apiserver.Unique("stranger")
	s.create(name, stranger, "gone")
	members := s.startAll(name, stranger)
	s.await("the orphan is gone", name, stranger)
	if members[1].logs.FilterMessageSnippet("is --node right?").Len() == 0 {
		t.Error("it does not say so")
	}
	s.awaitSweeps(4)
	s.await("its key stays", name, stranger)
}

// No goroutine of an agent is left after its stop, in good order or not. (1,000 joins and leaves are in package gossip.)
func TestNoGoroutineOfAnAgentStays(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	s.withReport()
	name, other := s.node(), s.node()
	s.create(name, other)
	m := s.startAll(name, other)[0]
	for range 2 {
		m.kill()
		m.proxy.SetFault(nil)
		m.start()
		s.awaitMembers(2)
		if err := m.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		m.start()
		s.awaitMembers(2)
	}
	m.kill()
	s.agents[other].kill()
	apiserver.Eventually(t, "no goroutine is left", func() error {
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			return err
		}
		var left []string
		for _, stack := range strings.Split(profile.String(), "\n\n") {
			ours := strings.Contains(stack, "unstale/") || strings.Contains(stack, "hashicorp/memberlist.") // net/http keeps idle connections
			if ours && (strings.Contains(stack, fmt.Sprintf("%q", name)) || strings.Contains(stack, fmt.Sprintf("%q", other))) {
				left = append(left, stack)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("these are:\n%s", strings.Join(left, "\n\n"))
		}
		return nil
	})
}
