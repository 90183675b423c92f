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

// health says whether this agent can do an owner's work, so that another is chosen when it cannot. An agent that works is not
// probed: its own passes tell. One that failed asks the API server now and then whether it is back.
type health struct {
	reachable func(context.Context) error
	setAble   func(bool) // must not call back
	log       *zap.Logger

	unable chan struct{} // size 1

	mu    sync.Mutex
	why   string        // guarded by mu; empty while it is able
	able  bool          // guarded by mu
	pause time.Duration // before the next probe; guarded by mu
}

func newHealth(reachable func(context.Context) error, setAble func(bool), log *zap.Logger) *health {
	return &health{reachable: reachable, setAble: setAble, log: log, unable: make(chan struct{}, 1), why: "starting"}
}

// passed takes in what became of a pass. One in which nothing at all could be read has tried several times by itself.
func (h *health) passed(report *status.TargetReport) {
	if report.State != status.Unavailable {
		h.mu.Lock()
		h.pause = 0
		h.mu.Unlock()
		h.set(true, "")
	} else if len(report.Resources) == 0 {
		h.set(false, report.Message)
		signal(h.unable)
	}
}

func (h *health) set(able bool, why string) {
	h.mu.Lock()
	defer h.mu.Unlock() // also while it is told: what is told last must be what holds
	changed := able != h.able
	h.able, h.why = able, why
	if !changed {
		return
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

// run asks, while the agent is unable, whether the API server answers again.
func (h *health) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.unable:
		}
		for {
			if wait(ctx, h.next()) != nil {
				return nil
			}
			if h.reachable(ctx) == nil {
				h.set(true, "")
				break
			}
		}
	}
}

// next is the pause before the next probe. It starts anew only after a pass that succeeded: where probes do and passes do not, this agent
// must not come and go as an owner all the time.
func (h *health) next() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pause = max(firstProbe, min(2*h.pause, maxProbe))
	return h.pause/2 + rand.N(h.pause/2)
}
