package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/status"
)

// The pauses between two questions whether the API server answers again, while this agent cannot work.
const firstProbe, maxProbe = 2 * time.Second, 30 * time.Second

// steady is how long an agent must have been able for its next probes to start anew with the shortest pause: one whose way to the API
// server comes and goes must not come and go as an owner with it.
const steady = 3 * time.Minute

// health says whether this agent can do an owner's work, so that another is chosen when it cannot: whether the API server answers it at
// all. That one target cannot be read is no reason to choose another, who could not read it either. An agent that works is not probed:
// its own passes tell. After one that read nothing it asks the API server, and while that does not answer, now and then again.
type health struct {
	reachable func(context.Context) error
	setAble   func(bool) // must not call back
	log       *zap.Logger

	doubt chan struct{} // size 1: a pass read nothing
	back  chan struct{} // size 1: a pass has made it able again

	mu    sync.Mutex
	why   string        // guarded by mu; empty while it is able
	able  bool          // guarded by mu
	since time.Time     // when it became able last; guarded by mu
	reads int           // passes that read something; guarded by mu
	pause time.Duration // before the next probe; guarded by mu
}

func newHealth(reachable func(context.Context) error, setAble func(bool), log *zap.Logger) *health {
	return &health{reachable: reachable, setAble: setAble, log: log, doubt: make(chan struct{}, 1), back: make(chan struct{}, 1), why: "starting"}
}

// passed takes in what became of a pass. It sends nothing, and does not wait.
func (h *health) passed(report *status.TargetReport) {
	if len(report.Resources) == 0 && (report.State == status.Unavailable || report.State == status.Forbidden) {
		signal(h.doubt)
		return
	}
	if report.FromMemory {
		return // it says nothing of the API server
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	if !h.able {
		signal(h.back)
	}
	h.change(true, "")
}

func (h *health) set(able bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock() // also while it is told: what is told last must be what holds
	h.change(able, why)
}

// change is set for who holds mu.
func (h *health) change(able bool, why string) {
	changed := able != h.able
	h.able, h.why = able, why
	if !changed {
		return
	}
	if now := time.Now(); able {
		h.since = now
	} else if now.Sub(h.since) >= steady {
		h.pause = 0
	}
	if able {
		h.log.Info("the API server answers; this agent can be an owner")
	} else {
		h.log.Warn("this agent cannot work, so others own its resources until it can", zap.String("why", why))
	}
	h.setAble(able)
}

// condition is for readiness.
func (h *health) condition() Condition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Condition{Name: "api-server", OK: h.able, Message: h.why}
}

// run asks whether the API server answers: once after each pass that read nothing, and again and again while it does not.
func (h *health) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.doubt:
		}
		for able := h.probe(ctx); !able; {
			select {
			case <-ctx.Done():
				return nil
			case <-h.back:
				able = h.condition().OK
			case <-time.After(h.next()):
				able = h.probe(ctx)
			}
		}
	}
}

// probe asks once whether the API server answers, and tells whether this agent is able.
func (h *health) probe(ctx context.Context) bool {
	h.mu.Lock()
	before := h.reads
	h.mu.Unlock()
	err := h.reachable(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil || h.reads != before { // a pass has told meanwhile
		return h.able
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	h.change(err == nil, why)
	return h.able
}

// next is the pause before the next probe.
func (h *health) next() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pause = max(firstProbe, min(2*h.pause, maxProbe))
	return h.pause/2 + rand.N(h.pause/2)
}
