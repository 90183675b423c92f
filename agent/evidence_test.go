package agent

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// fakeMembers are who the test says, and answer pings as it says.
type fakeMembers struct {
	mu      sync.Mutex
	alive   map[string]bool // guarded by mu
	answers map[string]bool // guarded by mu
	pings   []string        // guarded by mu
}

func (f *fakeMembers) Member(name string) (gossip.Member, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return gossip.Member{Name: name}, f.alive[name]
}

func (f *fakeMembers) Members() []gossip.Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []gossip.Member
	for name := range f.alive {
		all = append(all, gossip.Member{Name: name})
	}
	return all
}

func (f *fakeMembers) Ping(_ context.Context, name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pings = append(f.pings, name)
	return f.answers[name]
}

// An evidenceScene is evidence over a real API server.
type evidenceScene struct {
	*testing.T
	server  *apiserver.Server
	proxy   *apiserver.Proxy
	members *fakeMembers
	*evidence
}

func newEvidenceScene(t *testing.T, self string) *evidenceScene {
	t.Helper()
	s := &evidenceScene{T: t, server: apiserver.Shared(t), members: &fakeMembers{alive: map[string]bool{}, answers: map[string]bool{}}}
	s.proxy = s.server.Proxy(t)
	client, err := status.NewClient(s.proxy.Config(), "unstale-test")
	if err != nil {
		t.Fatal(err)
	}
	s.evidence = newEvidence(status.NewNodes(client), s.members, self)
	return s
}

func (s *evidenceScene) join(names ...string) {
	for _, name := range names {
		s.members.alive[name] = true
	}
	s.changed(gossip.Changes{Joined: names})
}

func (s *evidenceScene) leave(names ...string) {
	for _, name := range names {
		delete(s.members.alive, name)
	}
	s.changed(gossip.Changes{Departed: names})
}

func (s *evidenceScene) confirm(name string) status.NodeAnswer {
	s.Helper()
	return s.Confirm(s.Context(), []string{name}, 0)[name]
}

func (s *evidenceScene) wants(what, name string, want status.Knowledge) {
	s.Helper()
	got := s.Known(name)
	if !got.Left.IsZero() != !want.Left.IsZero() {
		s.Errorf("%s: left at %v", what, got.Left)
	}
	got.Left = want.Left
	if got != want {
		s.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

var sometime = time.Now()

func TestEvidenceOfMembers(t *testing.T) {
	node := apiserver.Unique("node")
	s := newEvidenceScene(t, node)
	s.server.CreateNodes(t, node)
	s.wants("never heard of", "stranger", status.Knowledge{})
	s.join(node)
	s.wants("a member", node, status.Knowledge{Member: true, Seen: true})
	s.leave(node)
	s.wants("it left", node, status.Knowledge{Seen: true, Left: sometime})
	s.join(node)
	s.wants("it came back", node, status.Knowledge{Member: true, Seen: true, Left: sometime})
	s.leave(node)

	// What was known before it left counts no more; what is read since does.
	if got := s.confirm(node); got.Existence != status.Exists {
		t.Fatalf("the Node is %+v", got)
	}
	s.wants("its Node was read since, but may go yet", node, status.Knowledge{Seen: true, Left: sometime})
	s.join(node)
	s.leave(node)
	s.wants("it left again", node, status.Knowledge{Seen: true, Left: sometime})
	s.list(t.Context(), zap.NewNop())
	s.wants("the Nodes were listed soon after", node, status.Knowledge{Seen: true, Left: sometime})
	s.nodes.Now = func() time.Time { return time.Now().Add(time.Hour) }
	s.list(t.Context(), zap.NewNop())
	s.wants("the Nodes were listed long after", node, status.Knowledge{Listed: true, Seen: true})
}

// A member can be alive in gossip long after its node is gone (memberlist#312): a list of Nodes that lacks it makes it a candidate.
func TestAListFindsGhosts(t *testing.T) {
	s := newEvidenceScene(t, "self")
	s.join("ghost")
	s.wants("before the list", "ghost", status.Knowledge{Member: true, Seen: true})
	s.list(t.Context(), zap.NewNop())
	s.wants("after it", "ghost", status.Knowledge{Member: true, Seen: true, NodeGone: true})
	s.join("newcomer")
	s.wants("one that joined since", "newcomer", status.Knowledge{Member: true, Seen: true})
}

func TestPings(t *testing.T) {
	self, gone, zombie := apiserver.Unique("node"), apiserver.Unique("gone"), apiserver.Unique("zombie")
	s := newEvidenceScene(t, self)
	s.server.CreateNodes(t, self)
	s.join(gone, zombie)
	s.leave(gone)
	s.members.answers[zombie] = true
	answers := s.Confirm(t.Context(), []string{gone, zombie, "stranger"}, 0)
	for name, pinged := range map[string]bool{gone: false, zombie: true, "stranger": false} {
		if got := answers[name]; got.Existence != status.Gone || got.Pinged != pinged {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := fmt.Sprint(len(s.members.pings)); got != "2" {
		t.Errorf("asked %v; a name that was never a member need not be", s.members.pings)
	}
	// Asked again at once, as a pass does whose proofs grow old: not again for 3 seconds, but the Nodes are.
	s.proxy.Reset()
	if got := s.Confirm(t.Context(), []string{gone, zombie}, 0); !got[zombie].Pinged || got[gone].Pinged {
		t.Errorf("again: %+v", got)
	}
	if len(s.members.pings) != 2 || s.proxy.Counts()["GET nodes"] < 2 {
		t.Errorf("pings %v, requests %v", s.members.pings, s.proxy.Counts())
	}
	s.now = func() time.Time { return time.Now().Add(pingFresh) }
	s.confirm(gone)
	if len(s.members.pings) != 3 {
		t.Errorf("an old answer was taken: %v", s.members.pings)
	}
}

// Nothing shows that the API server holds this cluster's Nodes if not even the agent's own is there.
func TestWithoutAnyNodeNothingIsProved(t *testing.T) {
	s := newEvidenceScene(t, "no-such-node")
	s.join("another-such-node")
	if got := s.confirm("gone"); got.Existence != status.Unproved {
		t.Errorf("%+v", got)
	}
}

func TestListsAreRare(t *testing.T) {
	s := newEvidenceScene(t, "self")
	lists := func() int { return s.proxy.Counts()["LIST nodes"] }
	s.listHourly(t.Context(), zap.NewNop())
	s.listForMany(t.Context(), listCandidates, zap.NewNop())
	if lists() != 0 {
		t.Error("listed without need")
	}
	s.listForMany(t.Context(), listCandidates+1, zap.NewNop())
	s.listForMany(t.Context(), listCandidates+1, zap.NewNop())
	if lists() != 1 {
		t.Errorf("listed %d times for many candidates within a minute", lists())
	}
	s.now = func() time.Time { return time.Now().Add(listInterval * 12 / 10) }
	s.listHourly(t.Context(), zap.NewNop())
	s.listHourly(t.Context(), zap.NewNop())
	if lists() != 2 {
		t.Errorf("%d lists after an hour", lists()-1)
	}
	s.now = func() time.Time { return time.Now().Add(3 * listInterval) }
	s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(403, "Forbidden", "no")))
	s.listHourly(t.Context(), zap.NewNop())
	s.proxy.SetFault(nil)
	s.listHourly(t.Context(), zap.NewNop())
	if lists() != 4 {
		t.Errorf("a list that failed was not tried again: %d", lists())
	}
}
