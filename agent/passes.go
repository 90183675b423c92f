package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

// republishMessage asks an agent to publish its key again, because it is not there.
const republishMessage = "republish"

// passes hears what the passes found, and tells it to all who want to know: log, metrics, decisions, events, the SweepReport, and
// the other agents.
type passes struct {
	agent *Agent
	log   *zap.Logger

	mu      sync.Mutex
	targets []string            // that are configured; guarded by mu
	stale   bool                // the SweepReport may have entries of other targets; guarded by mu
	last    map[string]lastPass // by unit; guarded by mu
	keyOf   map[string]uint64   // live members whose key was in the SweepReport at the last pass, with their incarnation; guarded by mu
}

// lastPass is what is remembered of a unit's last pass, so that only news is told.
type lastPass struct {
	state   status.State
	message string
	reasons map[findingOf]status.Reason // of keys that something is said about
}

type findingOf struct {
	resource  types.NamespacedName
	key, path string
}

func newPasses(a *Agent) *passes {
	return &passes{agent: a, log: a.log.Named("sweep"), last: map[string]lastPass{}, keyOf: map[string]uint64{}}
}

// configure says which targets there are.
func (p *passes) configure(targets []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		if !slices.Contains(targets, t) {
			p.agent.metrics.forget(t)
		}
	}
	p.targets, p.stale = targets, true
	clear(p.last)
}

// told hears of one pass. Workers call it at the same time, each for its own unit.
func (p *passes) told(ctx context.Context, u *unit, report status.TargetReport, took time.Duration) {
	a, now := p.agent, time.Now()
	a.health.passed(&report)
	a.metrics.swept(&report, took)
	a.metrics.holds(u.id(), &report)
	p.news(u, &report, now)
	if u.target.Name == reportTarget {
		p.lookAfterKeys(ctx, &report, now)
		return
	}
	a.report.set(u, status.Summary(&report, a.options.Node, now))
}

// ended hears that this agent no longer owns a unit.
func (p *passes) ended(u *unit) {
	p.agent.metrics.released(u.id())
	p.agent.report.forget(u)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.last, u.id())
	if u.target.Name == reportTarget {
		clear(p.keyOf)
		p.stale = true
	}
}

// news logs, records and announces what differs from the pass before.
func (p *passes) news(u *unit, report *status.TargetReport, now time.Time) {
	p.mu.Lock()
	before := p.last[u.id()]
	p.mu.Unlock()
	after := lastPass{report.State, report.Message, map[findingOf]status.Reason{}}
	log := p.log.With(zap.String("target", u.target.Name))
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
		for _, f := range r.Findings {
			if f.Reason == status.MemberAlive || f.Reason == status.NodeExists {
				continue
			}
			at := findingOf{types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, f.Key, f.Path}
			after.reasons[at] = f.Reason
			if f.Removed {
				removed = append(removed, f.Key)
			}
			if before.reasons[at] == f.Reason && !f.Removed {
				continue
			}
			fresh = append(fresh, f)
			if f.Reason == status.MemberWithoutNode {
				withoutNode = append(withoutNode, f.Key)
			}
		}
		p.agent.decisions.add(now, report.Target, r.Namespace, r.Name, fresh)
		object := corev1.ObjectReference{
			APIVersion: r.Type.APIVersion, Kind: r.Type.Kind, Namespace: r.Namespace, Name: r.Name, UID: types.UID(r.UID),
		}
		if len(removed) > 0 {
			slices.Sort(removed)
			p.agent.events.removed(object, report.Target, string(status.NodeGone), slices.Compact(removed))
		}
		for _, key := range withoutNode {
			log.Warn("an agent without a Node", zap.String("key", key), zap.String("reason", string(status.MemberWithoutNode)))
			p.agent.events.warn(object, string(status.MemberWithoutNode),
				fmt.Sprintf("the Node %s is gone, but its agent still answers: is the Node's kubelet running without its Node?", key))
		}
	}
	p.mu.Lock()
	p.last[u.id()] = after
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
	before := p.keyOf
	p.keyOf = map[string]uint64{}
	var missing []string
	lost := 0
	for _, m := range members {
		since, alive := a.evidence.memberSince(m.Name)
		switch {
		case !alive || m.Leaving || tooMany:
		case there[m.Name]:
			p.keyOf[m.Name] = m.Incarnation
		case before[m.Name] == m.Incarnation && m.Incarnation != 0:
			lost++
			missing = append(missing, m.Name)
		case now.Sub(since) > publishTime:
			missing = append(missing, m.Name)
		}
	}
	stale, targets := p.stale, p.targets
	p.stale = false
	p.mu.Unlock()

	if lost > 0 {
		a.metrics.lostKeys(lost)
		p.log.Error("live agents' keys are gone from the SweepReport; somebody else removed them, or there is a defect here", zap.Int("keys", lost))
	}
	p.askToPublish(ctx, missing)
	var failures []error
	if stale || tooMany {
		failures = append(failures, a.report.trim(ctx, len(members)))
	}
	if stale {
		failures = append(failures, a.report.drop(ctx, targets))
	}
	if err := errors.Join(failures...); err != nil && ctx.Err() == nil {
		p.log.Warn("the SweepReport may still have what is no longer needed", zap.Error(err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stale = p.stale || tooMany || errors.Join(failures...) != nil // so that it is looked at once more when they are fewer
}

// publishTime is how long a new agent has to publish its key before it is asked to.
const publishTime = 2 * time.Minute

// maxAsked is how many agents are asked at most after one pass. The next pass asks the others.
const maxAsked = 100

func (p *passes) askToPublish(ctx context.Context, names []string) {
	var asking sync.WaitGroup
	seats := make(chan struct{}, keysAtOnce)
	for _, name := range names[:min(len(names), maxAsked)] {
		if name == p.agent.options.Node {
			p.agent.publisher.again()
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
