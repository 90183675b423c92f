package agent

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// Whose Nodes probably exist: the agent's own, which it has read, and some other members'.
func TestLikelyNodes(t *testing.T) {
	members := &fakeMembers{alive: map[string]bool{}}
	nodes := status.NewNodes(nil)
	newEvidence(nodes, members, "self")
	if got := nodes.Likely(); !slices.Equal(got, []string{"self"}) {
		t.Errorf("alone: %v", got)
	}
	for i := range 3 * likelyNodes {
		members.alive[fmt.Sprint("member-", i)] = true
	}
	drawn := map[string]bool{}
	for range 50 {
		got := nodes.Likely()
		if len(got) != 1+likelyNodes || got[0] != "self" {
			t.Fatalf("%v", got)
		}
		for _, name := range got[1:] {
			if !members.alive[name] {
				t.Errorf("%s is no member", name)
			}
			drawn[name] = true
		}
	}
	if len(drawn) <= likelyNodes {
		t.Errorf("always the same are named: %v", drawn)
	}
}

// A process that has just started lists no Nodes: all agents may have started at once. What it needs to know it asks for.
func TestTheFirstListIsAnHourAway(t *testing.T) {
	s := newEvidenceScene(t, "self")
	lists := func(after time.Duration) int {
		s.proxy.Reset()
		s.now = func() time.Time { return time.Now().Add(after) }
		s.listHourly(t.Context(), zap.NewNop())
		return s.proxy.Counts()["LIST nodes"]
	}
	if lists(0) != 0 || lists(time.Hour*8/10) != 0 {
		t.Error("listed long before an hour has passed")
	}
	if lists(time.Hour*12/10) != 1 {
		t.Error("not listed long after")
	}
	// The next one is due an hour after this one.
	if lists(time.Hour*19/10) != 0 || lists(time.Hour*24/10) != 1 {
		t.Error("the second list is not an hour after the first")
	}
}

// Two that want a list at the same time get one.
func TestOneListAtATime(t *testing.T) {
	s := newEvidenceScene(t, "self")
	inside := 0
	s.proxy.SetFault(apiserver.On("LIST nodes", &apiserver.Fault{Before: func(*http.Request) {
		inside++
		s.list(t.Context(), zap.NewNop())
	}}))
	s.list(t.Context(), zap.NewNop())
	if inside != 1 || s.proxy.Counts()["LIST nodes"] != 1 {
		t.Errorf("%d lists", s.proxy.Counts()["LIST nodes"])
	}
	s.proxy.SetFault(nil)
	s.list(t.Context(), zap.NewNop())
	if got := s.proxy.Counts()["LIST nodes"]; got != 2 {
		t.Errorf("%d lists, want another one", got)
	}
}

// The order in which changes are heard of does not matter, only who is a member now.
func TestChangesOfMembersInAnyOrder(t *testing.T) {
	s := newEvidenceScene(t, "self")
	long := time.Now().Add(-time.Hour)
	s.evidence.now = func() time.Time { return long }
	s.join("a", "b")
	later := long.Add(time.Minute)
	s.evidence.now = func() time.Time { return later }
	since := func(name string) string {
		at, alive := s.memberSince(name)
		switch {
		case !alive:
			return "not a member"
		case at.Equal(long):
			return "since long"
		case at.Equal(later):
			return "since later"
		}
		return at.String()
	}
	expect := func(what, a, b string) {
		t.Helper()
		if since("a") != a || since("b") != b {
			t.Errorf("%s: a is %s, b is %s; want %s, %s", what, since("a"), since("b"), a, b)
		}
	}
	expect("both joined", "since long", "since long")
	s.changed(gossip.Changes{Departed: []string{"a"}, Joined: []string{"a"}}) // it left and came back before anybody heard
	expect("a came back", "since later", "since long")
	delete(s.members.alive, "a")
	s.changed(gossip.Changes{Departed: []string{"a"}, Joined: []string{"a"}}) // it came and left
	expect("a came and left", "not a member", "since long")
	if k := s.Known("a"); k.Member || !k.Seen || k.Left.IsZero() {
		t.Errorf("a, which came and left: %+v", k)
	}
	later = later.Add(time.Minute)
	s.members.alive["a"] = true // gossip has it, and the change is on its way
	expect("a joins", "since later", "since long")
	if k := s.Known("a"); !k.Member || k.NodeGone {
		t.Errorf("a, which joins at this moment: %+v", k)
	}
}

// A list from before a member joined says nothing against it; one that has its Node, neither.
func TestAListAndAMember(t *testing.T) {
	node, ghost := apiserver.Unique("node"), apiserver.Unique("ghost")
	s := newEvidenceScene(t, node)
	s.server.CreateNodes(t, node)
	s.list(t.Context(), zap.NewNop())
	s.join(node, ghost)
	s.wants("its Node was listed, and then it joined", node, status.Knowledge{Member: true, Seen: true, Listed: true})
	s.wants("it joined after the list", ghost, status.Knowledge{Member: true, Seen: true})
	s.list(t.Context(), zap.NewNop())
	s.wants("its Node was listed again", node, status.Knowledge{Member: true, Seen: true, Listed: true})
	s.wants("a list lacks it", ghost, status.Knowledge{Member: true, Seen: true, NodeGone: true})
	s.leave(ghost)
	s.wants("it left", ghost, status.Knowledge{Seen: true, Left: sometime})
	s.join(ghost)
	s.wants("it came back, after the list", ghost, status.Knowledge{Member: true, Seen: true, Left: sometime})
	if got := s.confirm(ghost); got.Existence != status.Gone {
		t.Fatalf("%+v", got)
	}
	s.wants("proved to be gone", ghost, status.Knowledge{Member: true, Seen: true, NodeGone: true, Left: sometime})
}

// A Node that runs no agent is known to have been one all the same, when it is gone.
func TestANodeWithoutAnAgentWasSeen(t *testing.T) {
	node := apiserver.Unique("node")
	s := newEvidenceScene(t, "self")
	s.server.CreateNodes(t, node)
	s.list(t.Context(), zap.NewNop())
	s.wants("listed", node, status.Knowledge{Listed: true, Seen: true})
	s.server.DeleteNode(t, node)
	s.list(t.Context(), zap.NewNop())
	s.wants("a list lacks it", node, status.Knowledge{Seen: true})
}

// The more members there are the dearer is a list, and the more candidates it takes to be worth it.
func TestAListIsDearerInALargeCluster(t *testing.T) {
	s := newEvidenceScene(t, "self")
	for i := range 5 * listMembers {
		s.members.alive[fmt.Sprint("member-", i)] = true
	}
	s.listForMany(t.Context(), listCandidates+5, zap.NewNop())
	if n := s.proxy.Counts()["LIST nodes"]; n != 0 {
		t.Errorf("%d lists", n)
	}
	s.listForMany(t.Context(), listCandidates+6, zap.NewNop())
	if n := s.proxy.Counts()["LIST nodes"]; n != 1 {
		t.Errorf("%d lists, want one", n)
	}
}

// pingsFirst are members that note how many requests were sent when one of them was pinged.
type pingsFirst struct {
	*fakeMembers
	proxy *apiserver.Proxy
	sent  chan int
}

func (p *pingsFirst) Ping(ctx context.Context, name string) bool {
	p.sent <- len(p.proxy.Requests())
	return p.fakeMembers.Ping(ctx, name)
}

// A ping that nobody answers takes three seconds, by which time a proof from before it would be nearly too old to act on.
func TestPingsComeBeforeProofs(t *testing.T) {
	self, gone := apiserver.Unique("node"), apiserver.Unique("gone")
	s := newEvidenceScene(t, self)
	s.server.CreateNodes(t, self)
	s.join(gone)
	sent := make(chan int, 1)
	s.evidence.members = &pingsFirst{s.members, s.proxy, sent}
	if got := s.confirm(gone); got.Existence != status.Gone || got.Pinged {
		t.Errorf("%+v", got)
	}
	if n := <-sent; n != 0 {
		t.Errorf("%d requests were sent before the ping", n)
	}
}
