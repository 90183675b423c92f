package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

const (
	// keysAtOnce is how many of this node's keys are looked at or cleared at once.
	keysAtOnce = 8
	// readNodeTime bounds the question at a stop whether the node is leaving: what then remains of status.ClearTimeout is for clearing.
	readNodeTime = 6 * time.Second
	// askAgain is the first pause after a question at a stop that failed; within the questions are pauses of their own.
	askAgain = 200 * time.Millisecond
	// incarnationResources is how many resources of a target an agent that starts looks at for an entry of an earlier node of its name. A
	// target has a few as a rule; reading thousands in each of thousands of agents is not worth it.
	incarnationResources = 20
)

// ownKeys are this node's own keys in the configured targets, which other programs write: the agent clears them when the node
// goes, and those that an earlier node of its name left.
type ownKeys struct {
	node, uid string
	client    *status.Client
	log       *zap.Logger
	recorded  status.Recorder

	configured chan struct{} // size 1: the targets may be others now
}

// An ownTarget is a target with what concerns a node's own key in it.
type ownTarget struct {
	status.Target
	onStop      status.OnStop
	incarnation status.IncarnationRule
}

// key is this node's key in one of the target's resources.
func (o *ownKeys) key(t *status.Target, resource types.NamespacedName) (*status.OwnKey, error) {
	key, err := status.NewOwnKey(o.client, o.node, status.KeyPlace{
		Resource: t.Resource, Namespace: resource.Namespace, Name: resource.Name, Paths: t.Paths,
	})
	if err != nil {
		return nil, err
	}
	key.NodeUID, key.Recorded, key.Log = o.uid, o.recorded, o.log.With(zap.String("target", t.Name))
	return key, nil
}

// clear clears the keys of all targets that say so, several at once. The error tells of each that is left.
func (o *ownKeys) clear(ctx context.Context, targets []ownTarget) error {
	leaving := sync.OnceValue(func() status.Leaving { return o.leaving(ctx) })
	var clearing sync.WaitGroup
	seats := make(chan struct{}, keysAtOnce)
	failures := make([]error, len(targets))
	for i, t := range targets {
		clearing.Go(func() {
			var l status.Leaving
			if t.onStop.AsksForNode() {
				l = leaving()
			}
			d := status.DecideStop(t.onStop, l)
			log := o.log.With(zap.String("target", t.Name), zap.String("reason", string(d.Reason)))
			switch {
			case d.Reason == status.Unconfirmed && t.Mode != status.Report:
				failures[i] = fmt.Errorf("this node's key in target %s stays: %s", t.Name, d.Message)
			case !d.Clear:
				log.Info("this node's key stays", zap.String("message", d.Message))
			case t.Mode == status.Report:
				log.Info("this node's key would be cleared, but the mode is Report", zap.String("message", d.Message))
			default:
				failures[i] = o.clearTarget(ctx, &t.Target, seats, log)
			}
		})
	}
	clearing.Wait()
	return errors.Join(failures...)
}

// leaving tells whether the node is leaving. It asks until there is an answer, or no time is left to act on one.
func (o *ownKeys) leaving(ctx context.Context) status.Leaving {
	ctx, cancel := context.WithTimeout(ctx, readNodeTime)
	defer cancel()
	why := ""
	for pause := askAgain; ; pause *= 2 {
		node := status.ReadOwnNode(ctx, o.client, o.node, time.Now)
		if ctx.Err() == nil || why == "" {
			why = node.Why // what was answered says more than that the time was over
		}
		if node.Existence == status.Unproved {
			node.Why = why
		}
		if node.Existence != status.Unproved || wait(ctx, pause) != nil {
			return status.DecideLeaving(node, o.uid)
		}
	}
}

// clearTarget clears the keys in one target's resources, each in a seat.
func (o *ownKeys) clearTarget(ctx context.Context, t *status.Target, seats chan struct{}, log *zap.Logger) error {
	resources, err := o.resources(ctx, t)
	if err != nil {
		return fmt.Errorf("clear this node's key: %w", err)
	}
	var clearing sync.WaitGroup
	failures := make([]error, len(resources))
	for i, resource := range resources {
		seats <- struct{}{}
		clearing.Go(func() {
			defer func() { <-seats }()
			failures[i] = o.clearKey(ctx, t, resource, log)
		})
	}
	clearing.Wait()
	return errors.Join(failures...)
}

// clearKey clears one key. One that the keep annotation keeps is no failure.
func (o *ownKeys) clearKey(ctx context.Context, t *status.Target, resource types.NamespacedName, log *zap.Logger) error {
	key, err := o.key(t, resource)
	if err == nil {
		err = key.Clear(ctx)
	}
	if errors.Is(err, status.ErrKept) {
		log.Info("this node's key stays", zap.Error(err))
		return nil
	}
	return err
}

// resources are the target's, asked for until there is an answer or ctx ends.
func (o *ownKeys) resources(ctx context.Context, t *status.Target) ([]types.NamespacedName, error) {
	for {
		resources, err := status.Resources(ctx, o.client, t)
		var failure *status.TargetError
		if !errors.As(err, &failure) || failure.State != status.Unavailable || wait(ctx, askAgain) != nil {
			return resources, err
		}
	}
}

// runIncarnations checks each target once: those that are configured at the start, and those that come with a new configuration.
func (o *ownKeys) runIncarnations(ctx context.Context, targets func() []ownTarget) {
	checked := map[string]bool{}
	for {
		var fresh []ownTarget
		for _, t := range targets() {
			if id := fmt.Sprintf("%+v", t); !checked[id] {
				checked[id] = true
				fresh = append(fresh, t)
			}
		}
		o.checkIncarnations(ctx, fresh)
		select {
		case <-ctx.Done():
			return
		case <-o.configured:
		}
	}
}

// checkIncarnations looks whether entries under this node's name were left by an earlier node of that name, and clears those. It ends
// when every entry is judged.
func (o *ownKeys) checkIncarnations(ctx context.Context, targets []ownTarget) {
	var checking sync.WaitGroup
	for _, t := range targets {
		if len(t.incarnation.NodeUIDPath) == 0 && len(t.incarnation.TimestampPath) == 0 {
			continue // nothing in an entry could tell
		}
		checking.Go(func() { o.checkIncarnation(ctx, t) })
	}
	checking.Wait()
}

func (o *ownKeys) checkIncarnation(ctx context.Context, t ownTarget) {
	log := o.log.With(zap.String("target", t.Name))
	var resources []types.NamespacedName
	err := retry(ctx, func() (again bool, err error) {
		resources, err = status.Resources(ctx, o.client, &t.Target)
		return err != nil, err
	})
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		log.Warn("cannot look for an earlier node's entry", zap.Error(err))
		return
	case len(resources) > incarnationResources:
		log.Info("too many resources to look for this node's entries from an earlier node of its name", zap.Int("resources", len(resources)))
		return
	}
	var looking sync.WaitGroup
	for _, resource := range resources {
		key, err := o.key(&t.Target, resource)
		if err != nil {
			log.Warn("cannot look for an earlier node's entry", zap.Error(err))
			continue
		}
		looking.Go(func() {
			judge(ctx, status.NewIncarnationCheck(key, t.incarnation), t.incarnation.Grace, log.With(zap.Stringer("at", key)))
		})
	}
	looking.Wait()
}

// judge looks until the entry is judged.
func judge(ctx context.Context, check *status.IncarnationCheck, grace time.Duration, log *zap.Logger) {
	for {
		var d status.Decision
		err := retry(ctx, func() (again bool, err error) {
			d, err = check.Look(ctx)
			return err != nil || d.Reason == status.Unconfirmed, err
		})
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Warn("cannot tell whether an earlier node left the entry", zap.Error(err))
			return
		case d.Verdict == status.Remove:
			log.Info("an earlier node left the entry", zap.String("reason", string(d.Reason)), zap.String("message", d.Message))
			return
		case d.Verdict == status.Keep || wait(ctx, grace) != nil:
			log.Debug("not an earlier node's entry", zap.String("reason", string(d.Reason)), zap.String("message", d.Message))
			return
		}
	}
}

const (
	// A look that fails is tried again for 20 minutes or so; the agent's next start looks again.
	tries      = 9
	firstPause = 5 * time.Second
)

// retry calls f until it does not want to be called again, and not too often.
func retry(ctx context.Context, f func() (again bool, err error)) error {
	pause := firstPause
	for try := 1; ; try++ {
		again, err := f()
		if !again || try == tries || ctx.Err() != nil {
			return err
		}
		if wait(ctx, pause) != nil {
			return err
		}
		pause *= 2
	}
}
