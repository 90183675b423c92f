package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestStepsAreBoundedAndAllTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		release := make(chan struct{})
		defer close(release)
		begun := time.Now()
		failures := take([]step{
			{"quick", time.Second, func(context.Context) error { return nil }},
			{"obedient", time.Second, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
			{"deaf", time.Second, func(context.Context) error { <-release; return nil }},
			{"failing", time.Second, func(context.Context) error { return errors.New("on fire") }},
			{"last", time.Second, func(context.Context) error { return nil }},
		}, zap.New(core))
		for i, failed := range []bool{false, true, true, true, false} {
			if failures[i] != nil != failed {
				t.Errorf("step %d: %v", i, failures[i])
			}
		}
		if took := time.Since(begun); took != 2*time.Second+overtime {
			t.Errorf("it took %s", took)
		}
		var got []string
		for _, e := range logs.All() {
			got = append(got, fmt.Sprint(e.ContextMap()["step"], ": ", e.Message))
		}
		want := "quick: stopping, obedient: stopping: not done, deaf: stopping: not done, failing: stopping: not done, last: stopping"
		if strings.Join(got, ", ") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, ", "), want)
		}
	})
}

func TestParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := make(chan error, 1)
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		good := begin("good", failed, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		if err := good.end(soon); err != nil {
			t.Error(err)
		}
		if err := good.end(soon); err != nil {
			t.Errorf("ended again: %v", err)
		}
		var never *part
		if err := never.end(soon); err != nil {
			t.Error(err)
		}
		for _, name := range []string{"bad", "worse"} { // nobody listens yet; no part may hang on that
			p := begin(name, failed, func(context.Context) error { return errors.New("on fire") })
			synctest.Wait()
			if err := p.end(soon); err != nil {
				t.Error(err)
			}
		}
		if err := <-failed; err.Error() != "bad: on fire" {
			t.Error(err)
		}
		release := make(chan struct{})
		defer close(release)
		deaf := begin("deaf", failed, func(context.Context) error { <-release; return nil })
		if err := deaf.end(soon); err == nil || !strings.Contains(err.Error(), "deaf did not end in time") {
			t.Errorf("a part that does not end: %v", err)
		}
	})
}
