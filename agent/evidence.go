package agent

import (
	"context"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// pingFresh is how long the answer to a ping is good: no longer than the proof that the Node is gone, which it goes with.
const pingFresh = 4 * time.Second

const (
	// listInterval is how often an owner lists all Nodes: that finds nodes without an agent, and those that gossip wrongly takes for alive.
	listInterval = time.Hour
	// A list is cheaper than asking for Nodes one by one from this many candidates on, and one for each so many members.
	listCandidates, listMembers = 10, 100
	// likelyNodes is how many other members' Nodes are named as likely to exist.
	likelyNodes = 5
)

// members is what the evidence asks gossip; *gossip.Cluster is one.
type members interface {
	Member(name string) (gossip.Member, bool)
	Members() []gossip.Member
	Ping(ctx context.Context, name string) bool
}

// evidence joins what gossip and the API server know of nodes; it is a status.NodeEvidence. Gossip only ever spares requests and
// delays removal: whatever it says, a key goes only when the API server says that its Node is gone and no agent of that name answers.
// It is safe for concurrent use.
type evidence struct {
	nodes   *status.Nodes
	members members
	now     func() time.Time

	listing chan struct{} // size 1: taken by who lists

	mu     sync.Mutex
	due    time.Time            // of the next list; guarded by mu
	joined map[string]time.Time // when the live members joined, as this agent saw it; guarded by mu
	seen   map[string]bool      // ever a member, as this agent saw it; guarded by mu
	pings  map[string]pinged    // the last pings; guarded by mu
}

type pinged struct {
	at     time.Time
	answer bool
}

func newEvidence(nodes *status.Nodes, members members, self string) *evidence {
	// A live agent's Node exists, as a rule; its own is the one it has read.
	nodes.Likely = func() []string {
		likely := []string{self}
		alive := members.Members()
		for _, i := range rand.Perm(len(alive))[:min(len(alive), likelyNodes)] {
			likely = append(likely, alive[i].Name)
		}
		return likely
	}
	return &evidence{
		nodes: nodes, members: members, now: time.Now, listing: make(chan struct{}, 1), due: time.Now().Add(soonOrLater(listInterval)),
		joined: map[string]time.Time{}, seen: map[string]bool{}, pings: map[string]pinged{},
	}
}

// changed takes in what changed among the members.
func (e *evidence) changed(changes gossip.Changes) {
	now := e.now()
	for _, name := range changes.Departed {
		e.nodes.Left(name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range changes.Departed {
		delete(e.joined, name)
	}
	for _, name := range changes.Joined { // after the departures: it may have come back since
		e.seen[name] = true
		if _, alive := e.members.Member(name); alive {
			e.joined[name] = now
		}
	}
}

// memberSince tells whether a member of that name is alive, and since when.
func (e *evidence) memberSince(name string) (time.Time, bool) {
	if _, alive := e.members.Member(name); !alive {
		return time.Time{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	at, known := e.joined[name]
	if !known {
		at = e.now() // it joined a moment ago
	}
	return at, true
}

// Known is what is known of a name without a request.
func (e *evidence) Known(name string) status.Knowledge {
	k := e.nodes.Known(name)
	since, member := e.memberSince(name)
	if member {
		k.Member, k.Seen = true, true
		// memberlist can take a dead member for a live one for hours (memberlist#312). So once a list of Nodes lacks it, the Node is asked for.
		k.NodeGone = k.NodeGone || since.Before(e.nodes.ListedAt()) && !k.Listed
		return k
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	k.Seen = k.Seen || e.seen[name]
	return k
}

// Confirm asks for each of the Nodes, after it has asked the agents of those that ever had one whether they live.
func (e *evidence) Confirm(ctx context.Context, names []string, fresh time.Duration) map[string]status.NodeAnswer {
	// Before the Nodes: a ping that nobody answers takes three seconds, and by then the other answers would be too old to act on.
	alive := e.ping(ctx, names)
	answers := e.nodes.Confirm(ctx, names, fresh)
	for name, answer := range answers {
		if answer.Existence == status.Gone && alive[name] {
			answer.Pinged = true
			answers[name] = answer
		}
	}
	return answers
}

// ping tells which agents answer, of those that this agent has ever seen, all at once.
func (e *evidence) ping(ctx context.Context, names []string) map[string]bool {
	alive := map[string]bool{}
	var ask []string
	e.mu.Lock()
	now := e.now()
	maps.DeleteFunc(e.pings, func(_ string, p pinged) bool { return now.Sub(p.at) >= pingFresh })
	for _, name := range names {
		if p, known := e.pings[name]; known {
			alive[name] = p.answer
		} else if e.seen[name] {
			ask = append(ask, name)
		}
	}
	e.mu.Unlock()

	var asking sync.WaitGroup
	for _, name := range ask {
		asking.Go(func() {
			answer := e.members.Ping(ctx, name)
			e.mu.Lock()
			defer e.mu.Unlock()
			alive[name] = answer
			e.pings[name] = pinged{e.now(), answer}
		})
	}
	asking.Wait()
	return alive
}

// listHourly lists the Nodes if it is time to. A list that fails is tried again at the next pass; what was known stays.
func (e *evidence) listHourly(ctx context.Context, log *zap.Logger) {
	e.mu.Lock()
	due := !e.now().Before(e.due)
	e.mu.Unlock()
	if due {
		e.list(ctx, log)
	}
}

// listForMany lists the Nodes when there are so many candidates that asking for each would cost more.
func (e *evidence) listForMany(ctx context.Context, candidates int, log *zap.Logger) {
	fresh := e.now().Sub(e.nodes.ListedAt()) < status.ListFresh
	if candidates > listCandidates+len(e.members.Members())/listMembers && !fresh {
		e.list(ctx, log)
	}
}

func (e *evidence) list(ctx context.Context, log *zap.Logger) {
	select {
	case e.listing <- struct{}{}:
		defer func() { <-e.listing }()
	default:
		return // somebody lists already
	}
	if err := e.nodes.List(ctx); err != nil {
		if ctx.Err() == nil {
			log.Warn("cannot list the Nodes; keys of nodes that run no agent are found later", zap.Error(err))
		}
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.due = e.now().Add(soonOrLater(listInterval))
}

// soonOrLater is d, or up to a tenth more or less, so that not all agents do the same at the same time.
func soonOrLater(d time.Duration) time.Duration {
	return d - d/10 + rand.N(d/5+1)
}
