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

// A short outage ends soon, also after a long one: what the pause had grown to is forgotten with the first pass that succeeds.
func TestProbesStartAnewAfterASuccess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		h := newHealth(func(context.Context) error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}, func(bool) {}, zap.NewNop())
		p := begin("health", nil, h.run)
		defer p.end(t.Context())
		bad := &status.TargetReport{State: status.Unavailable}
		for range 3 {
			down.Store(true)
			h.passed(bad)
			time.Sleep(time.Hour)
			down.Store(false)
			time.Sleep(maxProbe)
			h.passed(&status.TargetReport{State: status.OK})
			h.passed(bad)
			time.Sleep(firstProbe)
			synctest.Wait()
			if !h.condition().OK {
				t.Errorf("after %s it has not asked", firstProbe)
			}
		}
	})
}
