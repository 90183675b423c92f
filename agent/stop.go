package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// StopTimeout is longer than a stop takes, whatever the API server and the other agents do.
const StopTimeout = 25 * time.Second

// stop ends what runs, in this order, each step within its time whatever happens:
//
//   - not ready, and leaving: nobody waits for this agent any more, and others own its resources from now on;
//   - what writes on others' account ends, so that nothing is begun that cannot be finished;
//   - this node's own keys are cleared; the publisher ends with that, since a key that is cleared must not be added again;
//   - the agent leaves gossip, so that nobody takes it for dead;
//   - the journal of pod addresses is saved;
//   - events that are queued are sent, HTTP ends.
//
// The error is a *KeysLeftError if keys are left.
func (a *Agent) stop(running *parts) error {
	last := []step{
		{"send events", time.Second, running.events.end},
		{"close HTTP", 2 * time.Second, running.http.end},
	}
	if running.gossip == nil { // it came no further
		a.setPhase("stopping")
		take(last, a.log)
		return nil
	}
	a.log.Info("stopping: this takes 20 seconds at most; a second signal ends it at once")
	const keys = 2 // the step that clears them
	failures := take(append([]step{
		{"say that this agent leaves", time.Second, func(context.Context) error {
			a.setPhase("stopping")
			a.cluster.SetLeaving()
			return nil
		}},
		{"end sweeps", 2 * time.Second, func(ctx context.Context) error {
			running.kernel.stop() // its end is waited for below: it may have a removal to finish
			return errors.Join(
				running.reload.end(ctx), running.sweeps.end(ctx), running.recovery.end(ctx), running.incarnations.end(ctx), running.health.end(ctx), running.report.end(ctx))
		}},
		{"clear this node's keys", status.ClearTimeout, a.clearKeys},
		{"end publishing", time.Second, running.publisher.end},
		{"leave gossip", gossip.LeaveTimeout + time.Second, func(context.Context) error {
			return a.cluster.Leave(gossip.LeaveTimeout)
		}},
		{"save the journal of pod addresses", time.Second, running.kernel.end},
	}, last...), a.log)
	if failures[keys] != nil {
		return &KeysLeftError{failures[keys]}
	}
	return nil
}

// clearKeys clears this node's own keys: the one in the SweepReport, and those in the targets as their onStop says.
func (a *Agent) clearKeys(ctx context.Context) error {
	a.mu.Lock()
	applied := a.generation > 0
	a.mu.Unlock()
	if !applied {
		return nil // it never worked, and what is there may be of another agent that does: the one that has its port, say
	}
	var clearing sync.WaitGroup
	var published, others error
	clearing.Go(func() { published = a.publisher.clear(ctx) })
	clearing.Go(func() { others = a.ownKeys.clear(ctx, a.ownTargets()) })
	clearing.Wait()
	return errors.Join(published, others)
}
