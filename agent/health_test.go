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
		h.passed(&status.TargetReport{State: status.NotInstalled})
		h.passed(&status.TargetReport{State: status.Unavailable, Resources: []status.ResourceReport{{}}})
		expect("passes that reached the API server", "true")
		time.Sleep(time.Hour)
		if n := probes.Load(); n != 0 {
			t.Errorf("%d probes while all is well", n)
		}
		for range 10 {
			h.passed(bad)
			h.passed(&status.TargetReport{State: status.Forbidden})
			h.passed(good)
			time.Sleep(time.Second)
		}
		expect("one target cannot be read, and the API server answers", "true")
		if n := probes.Swap(0); n < 10 || n > 20 {
			t.Errorf("%d probes after 20 passes that read nothing", n)
		}

		down.Store(true)
		h.passed(bad)
		expect("the API server does not answer", "true", "false")
		if c := h.condition(); c.OK || c.Message != "down" {
			t.Errorf("condition %+v", c)
		}
		time.Sleep(10 * time.Minute)
		if n := probes.Load(); n < 20 || n > 50 {
			t.Errorf("%d probes in 10 minutes", n)
		}
		h.passed(good)
		expect("a pass reads something", "true", "false", "true")
		h.passed(bad)
		expect("and the next one nothing", "true", "false", "true", "false")
		h.passed(&status.TargetReport{State: status.Forbidden})
		expect("a pass that was refused says nothing of the API server", "true", "false", "true", "false")
		down.Store(false)
		time.Sleep(maxProbe)
		expect("it is back", "true", "false", "true", "false", "true")

		// The way to the API server comes and goes, and probes see it only while it is there: the agent must not come and go with it.
		mu.Lock()
		said = nil
		mu.Unlock()
		begun := time.Now()
		for time.Since(begun) < 10*time.Minute {
			down.Store(true)
			h.passed(bad)
			synctest.Wait()
			down.Store(false)
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

// A pass that reads something while the API server is asked knows better than the answer.
func TestAPassKnowsBetterThanAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan error)
		h := newHealth(func(context.Context) error { return <-answer }, func(bool) {}, zap.NewNop())
		h.set(true, "")
		p := begin("health", nil, h.run)
		defer p.end(t.Context())
		h.passed(&status.TargetReport{State: status.Unavailable})
		synctest.Wait()
		h.passed(&status.TargetReport{State: status.OK})
		answer <- errors.New("no answer in time")
		synctest.Wait()
		if c := h.condition(); !c.OK {
			t.Errorf("condition %+v", c)
		}
	})
}
