package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/status"
)

func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var said []string // guarded by mu
		var probes atomic.Int32
		var down atomic.Bool
		h := newHealth(func(context.Context) error {
			probes.Add(1)
			if down.Load() {
				return errors.New("down")
			}
			return nil
		}, func(able bool) {
			mu.Lock()
			defer mu.Unlock()
			said = append(said, fmt.Sprint(able))
		}, zap.NewNop())
		p := begin("health", nil, h.run)
		defer p.end(t.Context())
		good := &status.TargetReport{State: status.OK}
		bad := &status.TargetReport{State: status.Unavailable, Message: "no answer"}
		expect := func(what string, words ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(said, words) {
				t.Fatalf("%s: said %v, want %v", what, said, words)
			}
		}

		expect("at first")
		h.set(true, "")
		h.passed(good)
		h.passed(&status.TargetReport{State: status.Forbidden})
		h.passed(&status.TargetReport{State: status.Unavailable, Resources: []status.ResourceReport{{}}})
		expect("passes that reached the API server", "true")
		time.Sleep(time.Hour)
		if n := probes.Load(); n != 0 {
			t.Errorf("%d probes while all is well", n)
		}

		down.Store(true)
		h.passed(bad)
		expect("a pass that reached nothing", "true", "false")
		if c := h.condition(); c.OK || c.Message != "no answer" {
			t.Errorf("condition %+v", c)
		}
		time.Sleep(10 * time.Minute)
		if n := probes.Load(); n < 20 || n > 50 {
			t.Errorf("%d probes in 10 minutes", n)
		}
		down.Store(false)
		time.Sleep(maxProbe)
		expect("it is back", "true", "false", "true")

		// Probes succeed and passes do not: it must not come and go all the time.
		h.passed(good)
		mu.Lock()
		said = nil
		mu.Unlock()
		begun := time.Now()
		for time.Since(begun) < 10*time.Minute {
			h.passed(bad)
			for !h.condition().OK {
				time.Sleep(time.Second)
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(said) > 2*50 {
			t.Errorf("%d changes in 10 minutes", len(said))
		}
	})
}
