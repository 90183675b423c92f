package agent

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/unstale/unstale/status"
)

// reportTarget is how the agents' own SweepReport is called where targets are named. No configured target can have this name, which is no
// DNS label.
const reportTarget = "SweepReport"

// reportWriter writes what this agent's passes found to the SweepReport that the configuration names now.
type reportWriter struct {
	client *status.Client
	log    *zap.Logger

	wake chan struct{} // size 1: another SweepReport is in use

	mu     sync.Mutex
	name   string               // guarded by mu; empty: none
	writer *status.TargetWriter // guarded by mu; nil: none
}

func newReportWriter(client *status.Client, log *zap.Logger) *reportWriter {
	return &reportWriter{client: client, log: log, wake: make(chan struct{}, 1)}
}

// use says which SweepReport is in use. What was not yet written to the one before is dropped.
func (r *reportWriter) use(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if name == r.name {
		return
	}
	r.name, r.writer = name, nil
	if name != "" {
		r.writer = status.NewTargetWriter(r.client, name, r.log)
	}
	signal(r.wake)
}

func (r *reportWriter) present() *status.TargetWriter {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer
}

// set says what a pass over a unit found. It never blocks.
func (r *reportWriter) set(u *unit, s status.TargetStatus) {
	if w := r.present(); w != nil {
		w.Set(u.target.Name, u.resource(), s)
	}
}

// forget says that another agent owns a unit from now on.
func (r *reportWriter) forget(u *unit) {
	if w := r.present(); w != nil {
		w.Forget(u.target.Name, u.resource())
	}
}

// trim keeps the SweepReport below what etcd takes.
func (r *reportWriter) trim(ctx context.Context, agents int) error {
	w := r.present()
	if w == nil {
		return nil
	}
	return w.Trim(ctx, agents)
}

// again looks soon whether the SweepReport still has what was written to it. It never blocks.
func (r *reportWriter) again() {
	if w := r.present(); w != nil {
		w.Again()
	}
}

// drop removes the old entries of what is not configured; left tells that there are others that are not old enough.
func (r *reportWriter) drop(ctx context.Context, configured map[string][]string) (left bool, err error) {
	w := r.present()
	if w == nil {
		return false, nil
	}
	return w.Drop(ctx, configured)
}

// dropResources removes the old entries of resources that a target does not have.
func (r *reportWriter) dropResources(ctx context.Context, target string, resources []string) (left bool, err error) {
	w := r.present()
	if w == nil {
		return false, nil
	}
	return w.DropResources(ctx, target, resources)
}

// run writes until ctx ends.
func (r *reportWriter) run(ctx context.Context) error {
	for ctx.Err() == nil {
		writing, end := context.WithCancel(ctx)
		done := make(chan struct{})
		go func(w *status.TargetWriter) {
			defer close(done)
			if w != nil {
				_ = w.Run(writing)
			}
		}(r.present())
		select {
		case <-ctx.Done():
		case <-r.wake:
		}
		end()
		<-done
	}
	return nil
}
