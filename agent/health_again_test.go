package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/status"
)

// A short outage ends soon, also after a long one: what the pause had grown to is forgotten when the agent has been able for a while.
func TestProbesStartAnewAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		h := newHealth(func(context.Context) error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}, func(bool) {}, zap.NewNop())
		h.set(true, "")
		p := begin("health", nil, h.run)
		defer p.end(t.Context())
		outage := func(d time.Duration) {
			down.Store(true)
			h.passed(&status.TargetReport{State: status.Unavailable})
			time.Sleep(d)
			down.Store(false)
		}
		for range 3 {
			outage(time.Hour)
			time.Sleep(maxProbe + steady)
			outage(time.Millisecond)
			time.Sleep(firstProbe)
			synctest.Wait()
			if !h.condition().OK {
				t.Errorf("after %s it has not asked", firstProbe)
			}
		}
		outage(time.Hour)
		time.Sleep(maxProbe)
		outage(time.Millisecond)
		time.Sleep(firstProbe)
		synctest.Wait()
		if h.condition().OK {
			t.Errorf("soon after an outage it asked again within %s", firstProbe)
		}
	})
}
