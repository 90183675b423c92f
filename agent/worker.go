package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// A worker keeps one unit clean while this agent owns it. It starts with nothing remembered, so that it trusts only what it saw.
type worker struct {
	unit     unit
	sweeper  *status.Sweeper
	list     *lister // of a unit that lists: what it does instead of a sweep; nil: none
	evidence *evidence
	slots    slots
	seated   bool // it has a slot; only its own goroutine knows
	doubtful int  // Nodes that the last pass had to ask for, since their agents left, and that exist; likewise
	log      *zap.Logger
	// told hears what each pass found; it runs on the worker's goroutine.
	told func(ctx context.Context, u *unit, report status.TargetReport, took time.Duration)

	cancel context.CancelFunc
	done   chan struct{}
	poke   chan struct{} // size 1: changes is not empty

	mu      sync.Mutex
	changes gossip.Changes // not yet taken in; guarded by mu
}

// changed tells the worker what changed among the members. It never blocks.
func (w *worker) changed(changes gossip.Changes) {
	w.mu.Lock()
	w.changes.Joined = append(w.changes.Joined, changes.Joined...)
	w.changes.Departed = append(w.changes.Departed, changes.Departed...)
	w.mu.Unlock()
	signal(w.poke)
}

func (w *worker) run(ctx context.Context, interval time.Duration) {
	defer close(w.done)
	aimed := w.unit.target.Objects != nil && w.unit.target.Objects.CanAim() && w.unit.target.ByMembership()
	schedule := status.Schedule{Interval: interval, Grace: w.unit.target.Grace, Aimed: aimed}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.poke:
			if w.list != nil {
				w.tellNew(ctx)
				continue
			}
			w.takeIn(&schedule)
		case <-timer.C:
			begun := time.Now()
			if w.list != nil {
				if report, ok := w.listPass(ctx); ok {
					schedule.Looked(&report, begun, time.Now(), rand.Float64()*2-1)
				}
			} else if report, ok := w.pass(ctx, schedule.Leaving(), schedule.Departed(begun)...); ok {
				schedule.Looked(&report, begun, time.Now(), rand.Float64()*2-1)
			}
		}
		timer.Reset(time.Until(schedule.Next()))
	}
}

// takeIn brings the schedule up to date with what changed among the members.
func (w *worker) takeIn(schedule *status.Schedule) {
	w.mu.Lock()
	changes := w.changes
	w.changes = gossip.Changes{}
	w.mu.Unlock()
	if !w.unit.target.ByMembership() {
		return
	}
	for _, name := range changes.Departed {
		if schedule.Aimed || w.sweeper.Has(name) { // objects of a node may be younger than the last whole list
			schedule.Left(name, time.Now())
		}
	}
	for _, name := range changes.Joined {
		if _, alive := w.evidence.memberSince(name); alive {
			schedule.Returned(name)
		}
	}
}

// pass is one pass over the unit, for so many nodes whose agents left among other reasons; objects of the departed are looked for in any case. It is
// false when the worker was told to stop before its end.
func (w *worker) pass(ctx context.Context, leaving int, departed ...string) (status.TargetReport, bool) {
	if w.sit(ctx) != nil {
		return status.TargetReport{}, false
	}
	defer w.stand()
	withNodes := w.unit.target.ByMembership()
	if withNodes {
		w.evidence.listHourly(ctx, w.log)
		w.evidence.listForMany(ctx, max(leaving, w.doubtful), w.log)
	}
	begun := time.Now()
	report := w.sweeper.Sweep(ctx, departed...)
	if ctx.Err() != nil {
		return report, false
	}
	w.told(ctx, &w.unit, report, time.Since(begun))
	waiting := 0
	w.doubtful = 0
	for f := range report.All() {
		switch {
		case f.Verdict == status.Wait && f.Reason != status.Changed: // what changes is written by somebody who lives
			waiting++
		case f.Reason == status.NodeExists:
			if k := w.evidence.Known(f.Key); !k.Member && !k.Listed {
				w.doubtful++
			}
		}
	}
	if withNodes {
		w.evidence.listForMany(ctx, waiting, w.log)
	}
	return report, true
}

// slots bound how many passes run at once: each holds its resource in memory.
type slots chan struct{}

// sit takes a slot for a pass.
func (w *worker) sit(ctx context.Context) error {
	select {
	case w.slots <- struct{}{}:
		w.seated = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *worker) stand() {
	if w.seated {
		w.seated = false
		<-w.slots
	}
}

// pause waits between two batches; others may pass meanwhile.
func (w *worker) pause(ctx context.Context, d time.Duration) error {
	w.stand()
	if err := wait(ctx, d); err != nil {
		return err
	}
	return w.sit(ctx)
}
