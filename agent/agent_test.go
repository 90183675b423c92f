package agent

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

// The tests' graces are short, so that nobody has to wait for the default of a minute; gossip has its production timings.
const quick = "grace: 1s\nsweepInterval: 2s"

func TestOrphansGoAndTheLivingStay(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	agentless := s.node()
	s.create(append([]string{agentless, "gone-1", "gone-2"}, names...)...)
	s.startAll(names...)
	s.await("the orphans are gone", append([]string{agentless}, names...)...)
	owner := s.owner()

	// One node leaves: its Node is deleted, its agent is stopped. It clears its key itself.
	leaver := s.agents[but(names, owner.name)[0]]
	s.server.DeleteNode(t, leaver.name)
	if err := leaver.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	names = but(names, leaver.name)
	if got, want := s.keys(), append([]string{agentless}, names...); !sameKeys(got, want) {
		t.Errorf("after the stop the keys are %v, want %v", got, want)
	}

	// The owner is killed, and its Node deleted: the last one finishes.
	s.server.DeleteNode(t, owner.name)
	owner.kill()
	s.await("the owner's key is gone", append([]string{agentless}, but(names, owner.name)...)...)
}

func sameKeys(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// A rolling restart of all agents, one after the other, removes nothing and asks for nothing: each is back within the grace.
func TestARollingRestartCostsNothing(t *testing.T) {
	s := newScene(t, "grace: 60s\nsweepInterval: 1s")
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	s.owner()
	s.resetCounts()
	for _, m := range members {
		if err := m.stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		m.start()
		s.awaitMembers(len(names))
	}
	s.awaitSweeps(3)
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("the keys are %v", got)
	}
	if got := s.counts(s.class("PATCH") + "/status"); got != 0 {
		t.Errorf("%d writes", got)
	}
	// Each agent reads its own Node: at its start, and at its stop to know whether the node is leaving.
	if got := s.counts("GET nodes"); got != 2*len(names) {
		t.Errorf("%d requests for Nodes", got)
	}
	if got := s.counts("LIST nodes"); got != 0 {
		t.Errorf("%d lists of Nodes", got)
	}
}

// With every key's node alive, a sweep is one GET for each resource and nothing else.
func TestTheSteadyStateCostsOneGET(t *testing.T) {
	s := newScene(t, "grace: 1s\nsweepInterval: 1s")
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	s.startAll(names...)
	s.owner()
	s.awaitSweeps(2)
	s.resetCounts()
	s.awaitSweeps(5)
	for _, m := range s.agents {
		for class, n := range m.proxy.Counts() {
			if class != s.class("GET") {
				t.Errorf("%d × %s", n, class)
			}
		}
	}
}

// An agent whose way to the API server is cut, but not the one to the other agents, is passed over, and owns again when it is back.
func TestAnOwnerWithoutTheAPIServerIsPassedOver(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	s.startAll(names...)
	first := s.owner()
	first.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Drop: true}))
	first.proxy.CutConnections()
	apiserver.Eventually(t, "another owner", func() error {
		if first.owns() {
			return fmt.Errorf("the first still owns")
		}
		return nil
	})
	if second := s.owner(); second == first {
		t.Fatal("the same owner")
	}
	s.write("gone")
	s.await("the orphan is gone", names...)

	first.proxy.SetFault(nil)
	apiserver.Eventually(t, "the first is back", func() error {
		if !first.owns() {
			return fmt.Errorf("it does not own")
		}
		return nil
	})
	s.owner()
	s.write("gone-again")
	s.await("the orphan is gone", names...)
}

// The owner crashes at each step of a removal; the next owner finishes.
func TestAnOwnerThatCrashesInTheMiddle(t *testing.T) {
	for name, fault := range map[string]*apiserver.Fault{
		"between reading and patching": {Drop: true},
		"during the patch":             {Hang: true},
		"after the patch":              {Lose: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, quick)
			defer s.dump()
			names := []string{s.node(), s.node(), s.node()}
			s.create(names...)
			s.startAll(names...)
			first := s.owner()
			arrived := make(chan struct{}, 100)
			f := *fault
			f.Before = func(*http.Request) { arrived <- struct{}{} }
			first.proxy.SetFault(apiserver.On(s.class("PATCH")+"/status", &f))
			s.write("gone-1", "gone-2")
			select {
			case <-arrived:
			case <-time.After(time.Minute):
				t.Fatal("the owner does not patch")
			}
			first.kill()
			s.await("the orphans are gone", names...) // the owner's own node still exists
		})
	}
}

// Agents that do not see one another, all with the API server: two owners, and nothing alive is lost.
func TestAPartitionBetweenAgents(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	s.owner()
	s.split(members[0], members[1])
	apiserver.Eventually(t, "both sides think that they are alone", func() error {
		owners := 0
		for i, m := range members {
			if got := len(m.agent.cluster.Members()); got != 2 {
				return fmt.Errorf("%d sees %d", i, got)
			}
			if m.owns() {
				owners++
			}
		}
		if owners != 2 {
			return fmt.Errorf("%d owners", owners)
		}
		return nil
	})
	s.write("gone-1", "gone-2")
	s.await("the orphans are gone", names...)
	s.awaitSweeps(6)
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("the keys are %v", got)
	}
	noErrors(t, s)

	s.heal()
	s.awaitMembers(4)
	s.owner()
	s.awaitSweeps(2)
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("after it healed the keys are %v", got)
	}
}

// Packets get through one way only: whatever the agents make of it, nothing alive is lost, and orphans go.
func TestAOneWayPartition(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	deaf := members[0].ip
	s.network.set(func(from, to string) bool { return to == deaf })
	s.write("gone")
	s.await("the orphan is gone", names...)
	s.awaitSweeps(6)
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("the keys are %v", got)
	}
	s.heal()
	s.awaitMembers(3)
}

// The API server cannot be reached by anybody for a while, with or without a partition between the agents.
func TestAnOutageOfTheAPIServer(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	members := s.startAll(names...)
	s.owner()
	for _, m := range members {
		m.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Drop: true}))
		m.proxy.CutConnections()
	}
	s.split(members[0])
	apiserver.Eventually(t, "somebody notices", func() error {
		for _, m := range members {
			if c := m.agent.health.condition(); !c.OK {
				return nil
			}
		}
		return fmt.Errorf("nobody has")
	})
	s.write("gone")
	s.heal()
	for _, m := range members {
		m.proxy.SetFault(nil)
	}
	s.await("the orphan is gone", names...)
	s.awaitMembers(3)
	s.owner()
}

// Every member believes that it owns everything: ownership is not what makes writes safe.
func TestEverybodyOwnsEverything(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	names := []string{s.node(), s.node(), s.node(), s.node()}
	s.create(names...)
	for _, name := range names {
		s.member(name)
	}
	for _, m := range s.agents {
		m.start(func(o *Options) { o.ownsAll = true })
	}
	s.awaitMembers(4)
	for round := range 5 {
		s.write(fmt.Sprintf("gone-%d-a", round), fmt.Sprintf("gone-%d-b", round))
		s.write(names[round%4]) // the living go on writing
		s.await("the orphans are gone", names...)
	}
	s.awaitSweeps(20)
	if got := s.keys(); !sameKeys(got, names) {
		t.Errorf("the keys are %v", got)
	}
	noErrors(t, s)
}

// noErrors checks that the agents' conflicts made no noise: at most a look again.
func noErrors(t *testing.T, s *scene) {
	t.Helper()
	for _, m := range s.agents {
		for _, e := range m.logs.All() {
			if e.LoggerName == "sweep" && e.Level > 0 && !strings.HasPrefix(e.Message, "an agent without") {
				t.Errorf("%s: %s %v", m.name, e.Message, e.ContextMap())
			}
		}
	}
}

// A new configuration that is bad changes nothing; mode: Report stops removals.
func TestReloadOfARunningAgent(t *testing.T) {
	s := newScene(t)
	defer s.dump()
	name := s.node()
	s.create(name, "gone-1")
	m := s.member(name)
	m.config(quick)
	m.start()
	s.await("the orphan is gone", name)

	m.config(quick, "mode: Report")
	apiserver.Eventually(t, "the mode is Report", func() error {
		if got := m.logs.FilterMessage("owns").All(); got[len(got)-1].ContextMap()["mode"] != "Report" {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	s.write("gone-2")
	s.awaitSweeps(4)
	s.await("nothing is removed", name, "gone-2")

	m.config(quick, "mode: Perhaps")
	apiserver.Eventually(t, "the bad file is reported", func() error {
		if m.logs.FilterMessage("the configuration in use stays").Len() == 0 {
			return fmt.Errorf("it is not")
		}
		return nil
	})
	s.awaitSweeps(2)
	s.await("still nothing is removed", name, "gone-2")

	m.config(quick, "mode: Enforce")
	s.await("the orphan is gone", name)
}

// An agent that cannot have its port says so and ends, and touches nothing.
func TestAPortInUse(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name := s.node()
	s.create(name)
	m := s.startAll(name)[0]
	second := s.member(name)
	second.ip = m.ip
	second.config("# onStop is Always, so that a stop would clear the key")
	second.start()
	err := second.wait()
	second.agent = nil
	if err == nil || !strings.Contains(err.Error(), "the port is in use") {
		t.Errorf("it ended with %v", err)
	}
	if got := s.keys(); !sameKeys(got, []string{name}) {
		t.Errorf("the keys are %v", got)
	}
	s.agents[name] = m
}
