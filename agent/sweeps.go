package agent

import (
	"context"
	"reflect"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// maxPasses is how many passes run at once. Each holds a resource of up to 1.5 MiB, decoded, and its findings.
const maxPasses = 8

// wholeIntervals is how many intervals a whole list of objects serves where those of certain nodes can be listed alone: an hour by default, as a list of
// Nodes does. All that it finds and gossip does not is what was written for nodes that were gone already.
const wholeIntervals = 12

// sweeps keep those units clean that this agent owns: one worker each, started when it becomes the owner, ended when it no longer is.
type sweeps struct {
	node     string
	cluster  *gossip.Cluster
	client   *status.Client
	evidence *evidence
	log      *zap.Logger
	recorded status.Recorder
	told     func(ctx context.Context, u *unit, report status.TargetReport, took time.Duration)
	ended    func(u *unit)   // hears that this agent no longer owns a unit
	owned    func(count int) // hears how many units it owns
	// ownsAll makes this agent believe that it owns everything, for the test that ownership is not what makes writes safe.
	ownsAll bool

	// listed hears which resources a unit that lists has found. It runs on that worker's goroutine.
	listed func(ctx context.Context, u *unit, resources []types.NamespacedName)
	found  found // by lists, this agent's own or others'

	slots slots
	wake  chan struct{} // size 1: the units changed

	mu       sync.Mutex
	units    []unit        // guarded by mu
	interval time.Duration // guarded by mu
}

// configure replaces what is to be kept clean. Workers whose unit did not change go on.
func (s *sweeps) configure(units []unit, interval time.Duration) {
	s.mu.Lock()
	s.units, s.interval = units, interval
	s.mu.Unlock()
	signal(s.wake)
}

// run follows members and configuration until ctx ends; then it ends all workers and waits for them.
func (s *sweeps) run(ctx context.Context) error {
	select {
	case <-s.cluster.Ready(): // before, this agent would think that it is alone, and owns everything
	case <-ctx.Done():
		return nil
	}
	subscription := s.cluster.Subscribe()
	defer subscription.Close()
	workers := map[string]*worker{}
	defer func() {
		for _, w := range workers {
			w.cancel()
		}
		for _, w := range workers {
			<-w.done
		}
	}()
	var owners gossip.Owners
	var interval time.Duration
	var expiry <-chan time.Time // of what was found
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-expiry:
		case <-subscription.C:
			changes := subscription.Take()
			s.evidence.changed(changes)
			for _, w := range workers {
				w.changed(changes)
			}
		}
		owners.SetEligible(gossip.Eligible(s.cluster.Members(), gossip.Agent, gossip.Pruner))
		s.mu.Lock()
		units, every := s.units, s.interval
		s.mu.Unlock()
		units, next := s.found.with(units, time.Now())
		expiry = nil
		if !next.IsZero() {
			expiry = time.After(time.Until(next))
		}
		mine := map[string]unit{}
		for _, u := range units {
			if s.ownsAll || owners.Owner(u.key) == s.node {
				mine[u.id()] = u
			}
		}
		for id, w := range workers {
			if u, still := mine[id]; !still || interval != every || !reflect.DeepEqual(u, w.unit) {
				w.cancel()
				<-w.done
				delete(workers, id)
				s.ended(&w.unit)
				if !still {
					w.log.Info("no longer owns")
				}
			}
		}
		interval = every
		for id, u := range mine {
			if workers[id] == nil {
				workers[id] = s.start(ctx, u, interval)
			}
		}
		s.owned(len(workers))
	}
}

// start starts a worker.
func (s *sweeps) start(ctx context.Context, u unit, interval time.Duration) *worker {
	log := s.log.With(zap.String("target", u.target.Name), zap.String("namespace", u.target.Namespace), zap.String("name", u.name.Name))
	log.Info("owns", zap.String("mode", string(u.target.Mode)))
	sweeper := status.NewSweeper(u.target, s.client, s.evidence, s.log)
	sweeper.Recorded, sweeper.Others = s.recorded, func() []types.NamespacedName { return u.others }
	if u.listed {
		sweeper.Only, sweeper.Others = &u.name, func() []types.NamespacedName { return s.found.others(&u) }
	}
	sweeper.WholeInterval = wholeIntervals * interval
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		unit: u, sweeper: sweeper, evidence: s.evidence, slots: s.slots, log: log, told: s.told,
		cancel: cancel, done: make(chan struct{}), poke: make(chan struct{}, 1),
	}
	sweeper.Wait = w.pause
	if u.lists() {
		w.list = &lister{unit: &u, sweeps: s}
	}
	go w.run(ctx, interval)
	return w
}
