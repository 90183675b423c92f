package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

const (
	// publishRetry is the pause after a publication failed for a reason that somebody must mend; it doubles up to maxPublishRetry.
	publishRetry, maxPublishRetry = 15 * time.Second, 5 * time.Minute
	// publishSpread is how much later, at most, an agent publishes for each member there is: when a new configuration reaches all, as many
	// patches of one object as the API server can bear, and no more, come at once.
	publishSpread = 20 * time.Millisecond
)

// publisher keeps this node's key in the SweepReport as it should be, until it is closed.
type publisher struct {
	keys    *ownKeys
	log     *zap.Logger
	members func() int // how many there are

	wake chan struct{} // size 1

	mu     sync.Mutex
	name   string           // of the SweepReport; empty: none; guarded by mu
	entry  status.NodeEntry // guarded by mu
	forget bool             // somebody saw that the key is not there; guarded by mu
	closed bool             // guarded by mu
	key    *status.OwnKey   // the one in use; guarded by mu
	keyIn  string           // the SweepReport that key is in; guarded by mu
	// former are the keys in SweepReports that were in use before, by their names, until they are cleared; guarded by mu
	former map[string]*status.OwnKey
}

func newPublisher(keys *ownKeys, members func() int, log *zap.Logger) *publisher {
	return &publisher{keys: keys, members: members, log: log, wake: make(chan struct{}, 1), former: map[string]*status.OwnKey{}}
}

// set says what to publish, and in which SweepReport. It never blocks.
func (p *publisher) set(name string, entry status.NodeEntry) {
	p.mu.Lock()
	p.name, p.entry = name, entry
	p.mu.Unlock()
	signal(p.wake)
}

// again publishes again what somebody saw to be missing. It never blocks.
func (p *publisher) again() {
	p.mu.Lock()
	p.forget = true
	p.mu.Unlock()
	signal(p.wake)
}

// run publishes until ctx ends or the key is cleared.
func (p *publisher) run(ctx context.Context) error {
	retry := time.NewTimer(0)
	retry.Stop()
	defer retry.Stop()
	pause, said := publishRetry, ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry.C:
		case <-p.wake:
			if wait(ctx, rand.N(time.Duration(p.members()+1)*publishSpread)) != nil {
				return nil
			}
		}
		err := p.publish(ctx)
		switch {
		case err == nil:
			pause, said = publishRetry, ""
			continue
		case errors.Is(err, status.ErrClosed), ctx.Err() != nil:
			return nil
		case err.Error() != said:
			p.log.Warn("this node's key is not published, or left in a SweepReport of before; the agent works on",
				zap.Error(err), zap.Duration("nextTry", pause))
			said = err.Error()
		}
		retry.Reset(pause/2 + rand.N(pause/2))
		pause = min(2*pause, maxPublishRetry)
	}
}

// publish is one try, which may last until the API server answers again.
func (p *publisher) publish(ctx context.Context) error {
	key, entry, forget, err := p.present()
	if err != nil {
		return err
	}
	return errors.Join(p.publishIn(ctx, key, entry, forget), p.clearFormer(ctx))
}

// publishIn publishes in the SweepReport that is in use, if one is.
func (p *publisher) publishIn(ctx context.Context, key *status.OwnKey, entry status.NodeEntry, forget bool) error {
	if key == nil || p.members() > status.MaxNodeKeys && entry.Status == status.NodeSuccess { // the SweepReport has no room
		return nil
	}
	if forget {
		if err := key.Forget(ctx); err != nil {
			return err
		}
	}
	return key.Publish(ctx, entry)
}

// clearFormer clears the keys in the SweepReports that were in use before. Those that are left are tried again.
func (p *publisher) clearFormer(ctx context.Context) error {
	p.mu.Lock()
	former := maps.Clone(p.former)
	p.mu.Unlock()
	var clearing sync.WaitGroup
	failures := make([]error, 0, len(former))
	for name, key := range former {
		clearing.Go(func() {
			err := key.Clear(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			switch {
			case errors.Is(err, status.ErrKept):
				p.log.Info("this node's key in the SweepReport of before stays", zap.Error(err))
			case err != nil:
				failures = append(failures, fmt.Errorf("this node's key is left in a SweepReport that was in use before: %w", err))
				return
			}
			if p.former[name] == key {
				delete(p.former, name)
			}
		})
	}
	clearing.Wait()
	return errors.Join(failures...)
}

// present is what to publish now.
func (p *publisher) present() (key *status.OwnKey, entry status.NodeEntry, forget bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, p.entry, false, status.ErrClosed
	}
	if p.key != nil && p.keyIn != p.name {
		p.former[p.keyIn], p.key = p.key, nil
	}
	if p.key == nil && p.name != "" {
		if p.key, err = p.newKey(p.name); err != nil {
			return nil, p.entry, false, err
		}
		p.keyIn = p.name
		delete(p.former, p.name) // in use again: what is there is replaced
	}
	forget, p.forget = p.forget, false
	return p.key, p.entry, forget, nil
}

// newKey makes the key in the SweepReport of that name.
func (p *publisher) newKey(name string) (*status.OwnKey, error) {
	return p.keys.key(&status.Target{
		Name: reportTarget, Resource: status.SweepReports, Paths: []status.KeyPath{status.ReportNodes},
	}, types.NamespacedName{Name: name})
}

// clearElsewhere clears the key in other SweepReports, from before the agent was given another name for it.
func (p *publisher) clearElsewhere(ctx context.Context) error {
	p.mu.Lock()
	name := p.name
	p.mu.Unlock()
	if name == "" {
		return nil
	}
	key, err := p.newKey(name)
	if err != nil {
		return err
	}
	return key.ClearElsewhere(ctx)
}

// clear ends publishing for good and clears the key, also in SweepReports that were in use before. It returns when ctx ends at the latest.
func (p *publisher) clear(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	key, name := p.key, p.name
	p.mu.Unlock()
	var failure error
	if key == nil && name != "" { // nothing was published yet, but a process before this one may have
		key, failure = p.newKey(name)
	}
	var clearing sync.WaitGroup
	if key != nil {
		clearing.Go(func() { failure = key.Clear(ctx) })
	}
	former := p.clearFormer(ctx)
	clearing.Wait()
	return errors.Join(failure, former)
}
