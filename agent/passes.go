package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

// republishMessage asks an agent to publish its key again, because it is not there, and with it whatever else it writes to the SweepReport.
const republishMessage = "republish"

// passes hears what the passes found, and tells it to all who want to know: log, metrics, decisions, events, the SweepReport, and
// the other agents.
type passes struct {
	agent *Agent
	log   *zap.Logger

	mu         sync.Mutex
	configured map[string][]string     // targets, with their resources where these have owners of their own; guarded by mu
	untrimmed  bool                    // the SweepReport may have more keys than it has room for; guarded by mu
	stale      bool                    // it may have entries of what is not configured; guarded by mu
	dropAt     time.Time               // not to be looked for before; guarded by mu
	last       map[string]lastPass     // by unit; guarded by mu
	keyOf      map[string]uint64       // live members whose key was in the SweepReport at the last pass, with their incarnation; guarded by mu
	resources  map[string]listedTarget // by unit that lists; guarded by mu
	goneOf     map[string]goneKey      // and those whose key was there before that, and who were asked to publish it again; guarded by mu
}

// A goneKey is a live agent's key that was in the SweepReport and no longer is.
type goneKey struct {
	incarnation uint64    // of the agent
	asked       time.Time // when it was asked to publish it again
}

// lastPass is what is remembered of a unit's last pass, so that only news is told.
type lastPass struct {
	state   status.State
	message string
	reasons map[findingOf]status.Reason // of keys that something is said about
}

// maxRemembered is how many entries of a kernel target are remembered of which something was told.
const maxRemembered = 10000

type findingOf struct {
	resource  types.NamespacedName
	key, path string
	since     time.Time // of kernel targets only
}

func newPasses(a *Agent) *passes {
	return &passes{agent: a, log: a.log.Named("sweep"), last: map[string]lastPass{}, resources: map[string]listedTarget{}, keyOf: map[string]uint64{}, goneOf: map[string]goneKey{}}
}

// configure says which targets there are, and whether Nodes that stay Unknown are one.
func (p *passes) configure(targets []status.Target, recovers bool) {
	configured := map[string][]string{}
	if recovers {
		configured[status.RecoveryTarget] = nil
	}
	for _, t := range targets {
		configured[t.Name] = nil
		for _, u := range unitsOf(t) {
			if resource := u.resource(); resource != "" {
				configured[t.Name] = append(configured[t.Name], resource)
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.configured {
		if _, still := configured[name]; !still {
			p.agent.metrics.forget(name)
		}
	}
	p.configured = configured
	p.lookForFormer()
	clear(p.last)
}

// lookForFormer makes the next pass over the SweepReport look at what else may be in it. The caller holds mu.
func (p *passes) lookForFormer() { p.untrimmed, p.stale, p.dropAt = true, true, time.Time{} }

// told hears of one pass. Workers call it at the same time, each for its own unit.
func (p *passes) told(ctx context.Context, u *unit, report status.TargetReport, took time.Duration) {
	a, now := p.agent, time.Now()
	if u.target.Name == reportTarget && withoutKeys(&report) {
		report.Message = "" // that the path is missing: a new SweepReport has none, and a path of unstale's own is right
	}
	a.health.passed(&report)
	a.metrics.swept(&report, took)
	a.metrics.holds(u.id(), &report)
	p.news(u.id(), &report, now)
	if u.target.Name == reportTarget {
		p.lookAfterKeys(ctx, &report, now)
		return
	}
	if u.lists() && report.State == status.OK && report.Message == "" {
		return // there are resources, whose owners say how the target fares
	}
	a.report.set(u, status.Summary(&report, a.options.Node, now))
}

// A listedTarget is what is remembered of a target whose resources are listed.
type listedTarget struct {
	resources []string
	again     time.Time // when to look for entries of former resources, at the latest; zero: there are none
}

// listed hears which resources there are of a target that does not name them. What the SweepReport has of others goes.
func (p *passes) listed(ctx context.Context, u *unit, names []types.NamespacedName) {
	if len(names) == 0 {
		return // the target's entry is written as a whole
	}
	p.agent.report.forget(u) // from when there were none
	resources, now := namesOf(names), time.Now()
	slices.Sort(resources)
	p.mu.Lock()
	last := p.resources[u.id()]
	p.mu.Unlock()
	if slices.Equal(last.resources, resources) && (last.again.IsZero() || now.Before(last.again)) {
		return
	}
	next := listedTarget{resources: resources}
	left, err := p.agent.report.dropResources(ctx, u.target.Name, resources)
	switch {
	case err != nil && ctx.Err() == nil:
		p.log.Warn("the SweepReport may still have resources that there are no more", zap.String("target", u.target.Name), zap.Error(err))
		next.again = now
	case left:
		next.again = now.Add(dropInterval)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resources[u.id()] = next
}

// withoutKeys tells whether all was read and no key was found.
func withoutKeys(report *status.TargetReport) bool {
	return report.State == status.OK && len(report.Resources) == 1 && len(report.Resources[0].Findings) == 0
}

// ended hears that this agent no longer owns a unit.
func (p *passes) ended(u *unit) {
	p.agent.metrics.released(u.id())
	p.agent.report.forget(u)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, u.id())
	delete(p.resources, u.id())
	if u.target.Name == reportTarget {
		clear(p.keyOf)
		clear(p.goneOf)
		p.lookForFormer()
	}
}

// news logs, records and announces what differs from the pass before of that id.
func (p *passes) news(id string, report *status.TargetReport, now time.Time) {
	p.mu.Lock()
	before := p.last[id]
	p.mu.Unlock()
	after := lastPass{report.State, report.Message, map[findingOf]status.Reason{}}
	partial := report.Kind == KernelKind // a look at kernel tables is one at a few addresses
	if partial && len(before.reasons) < maxRemembered {
		maps.Copy(after.reasons, before.reasons)
	}
	log := p.log.With(zap.String("target", report.Target))
	if after.state != before.state || after.message != before.message {
		switch {
		case report.State.Failed() || report.State == status.StateHeld:
			log.Warn("state", zap.String("state", string(report.State)), zap.String("message", report.Message))
		case before.state != "" || report.Message != "":
			log.Info("state", zap.String("state", string(report.State)), zap.String("message", report.Message))
		}
	}
	for _, r := range report.Resources {
		var fresh []status.Finding
		var removed, withoutNode []string
		var why status.Reason
		for _, f := range r.Findings {
			if f.Verdict == status.Keep && (f.Reason == status.MemberAlive || f.Reason == status.NodeExists || f.Reason == status.PodExists || f.Reason == status.NodeReady) {
				continue
			}
			at := findingOf{types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, f.Key, f.Path, time.Time{}}
			if partial {
				at.since = f.Since // another pod that loses the same address is news
			}
			after.reasons[at] = f.Reason
			if f.Removed {
				removed, why = append(removed, f.Key), f.Reason
				if partial {
					delete(after.reasons, at)
				}
			}
			if before.reasons[at] == f.Reason && !f.Removed && !f.Done {
				continue
			}
			fresh = append(fresh, f)
			if partial {
				logScrub(log, r.Name, f)
			}
			if f.Reason == status.MemberWithoutNode {
				withoutNode = append(withoutNode, f.Key)
			}
		}
		p.agent.decisions.add(now, report.Target, r.Namespace, r.Name, fresh)
		object := corev1.ObjectReference{
			APIVersion: r.Type.APIVersion, Kind: r.Type.Kind, Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.UID),
		}
		if report.Kind == status.RecoveryKind {
			for _, f := range fresh {
				p.newsOfNode(object, f)
			}
			continue
		}
		if len(removed) > 0 && object.UID != "" {
			slices.Sort(removed)
			p.agent.events.removed(object, report.Target, string(why), slices.Compact(removed))
		}
		for _, key := range withoutNode {
			log.Warn("an agent without a Node", zap.String("key", key), zap.String("reason", string(status.MemberWithoutNode)))
			p.agent.events.warn(object, string(status.MemberWithoutNode),
				fmt.Sprintf("the Node %s is gone, but its agent still answers: is the Node's kubelet running without its Node?", key))
		}
	}
	p.mu.Lock()
	p.last[id] = after
	p.mu.Unlock()
}

// lookAfterKeys is what the SweepReport's owner does after a pass over it: agents whose key is missing are asked to publish it, and what
// nobody needs there any more goes.
func (p *passes) lookAfterKeys(ctx context.Context, report *status.TargetReport, now time.Time) {
	a := p.agent
	if len(report.Resources) != 1 {
		return
	}
	there := map[string]bool{}
	for _, f := range report.Resources[0].Findings {
		there[f.Key] = !f.Removed
	}
	members := a.cluster.Members()
	tooMany := max(len(members), len(there)) > status.MaxNodeKeys // then keys are missing on purpose
	p.mu.Lock()
	keyBefore, goneBefore := p.keyOf, p.goneOf
	p.keyOf, p.goneOf = map[string]uint64{}, map[string]goneKey{}
	var missing []string
	lost := 0
	for _, m := range members {
		since, alive := a.evidence.memberSince(m.Name)
		switch {
		case !alive || m.Leaving || tooMany:
		case there[m.Name]:
			p.keyOf[m.Name] = m.Incarnation
		case m.Incarnation != 0 && keyBefore[m.Name] == m.Incarnation:
			// Not counted as lost yet: it may be leaving, and the news of it on its way.
			if len(missing) < maxAsked {
				p.goneOf[m.Name] = goneKey{m.Incarnation, now}
			} else { // it is asked after another pass
				p.keyOf[m.Name] = m.Incarnation
			}
			missing = append(missing, m.Name)
		case m.Incarnation != 0 && goneBefore[m.Name].incarnation == m.Incarnation:
			if gone := goneBefore[m.Name]; now.Sub(gone.asked) < publishTime {
				p.goneOf[m.Name] = gone
			} else {
				lost++
			}
			missing = append(missing, m.Name)
		case now.Sub(since) > publishTime:
			missing = append(missing, m.Name)
		}
	}
	trim, drop, configured := p.untrimmed || tooMany, p.stale && !now.Before(p.dropAt), p.configured
	p.untrimmed, p.stale = false, p.stale && !drop
	p.mu.Unlock()

	if lost > 0 {
		a.metrics.lostKeys(lost)
		p.log.Error("live agents' keys are gone from the SweepReport, and still are after these agents were asked to publish them; they cannot write it, "+
			"somebody else removes them, another group of agents uses this SweepReport, or there is a defect here",
			zap.Int("keys", lost))
	}
	p.askToPublish(ctx, missing)
	var trimming, dropping error
	left := false
	if trim {
		trimming = a.report.trim(ctx, len(members))
	}
	if drop {
		left, dropping = a.report.drop(ctx, configured)
	}
	if err := errors.Join(trimming, dropping); err != nil && ctx.Err() == nil {
		p.log.Warn("the SweepReport may still have what is no longer needed", zap.Error(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.untrimmed = p.untrimmed || tooMany || trimming != nil // so that it is looked at once more when they are fewer
	switch {
	case p.stale: // a new configuration came meanwhile, or it is not time yet
	case dropping != nil:
		p.stale = true
	case left:
		p.stale, p.dropAt = true, now.Add(dropInterval)
	}
}

// dropInterval is how long after a look for entries of what is not configured the next one follows, where some were too new to be dropped.
const dropInterval = time.Hour

// publishAgain is called when the SweepReport's owner saw that this agent's key is not there. Where somebody has made the SweepReport anew,
// all else that this agent wrote to it is gone too.
func (a *Agent) publishAgain() {
	a.publisher.again()
	a.report.again()
}

// publishTime is how long a new agent has to publish its key before it is asked to, and one that was asked before its key counts as lost:
// longer than publishSpread makes of the most agents there may be.
const publishTime = 2 * time.Minute

// maxAsked is how many agents are asked at most after one pass. The next pass asks the others.
const maxAsked = 100

func (p *passes) askToPublish(ctx context.Context, names []string) {
	var asking sync.WaitGroup
	seats := make(chan struct{}, keysAtOnce)
	for _, name := range names[:min(len(names), maxAsked)] {
		if name == p.agent.options.Node {
			p.agent.publishAgain()
			continue
		}
		seats <- struct{}{}
		asking.Go(func() {
			defer func() { <-seats }()
			if err := p.agent.cluster.Send(ctx, name, republishMessage, nil); err != nil && ctx.Err() == nil {
				p.log.Warn("cannot ask an agent to publish its key", zap.String("member", name), zap.Error(err))
			}
		})
	}
	asking.Wait()
}
