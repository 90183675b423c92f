package agent

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
)

// A part of the agent runs beside the others until it is ended.
type part struct {
	name   string
	cancel context.CancelFunc
	done   chan struct{}
}

// begin starts a part. If run returns an error before the part is ended, failed hears it.
func begin(name string, failed chan<- error, run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{name: name, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			select {
			case failed <- fmt.Errorf("%s: %w", name, err):
			default: // one is reported already, and ends the agent
			}
		}
	}()
	return p
}

// stop tells the part to end, without waiting for it.
func (p *part) stop() {
	if p != nil {
		p.cancel()
	}
}

// end ends the part, and waits for that until ctx ends. A part that was never begun has ended.
func (p *part) end(ctx context.Context) error {
	if p == nil {
		return nil
	}
	p.stop()
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s did not end in time", p.name)
	}
}

// wait returns after d, or with the context's error when that ends first.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// signal wakes whoever listens to c, a channel of size 1. It never blocks: one signal stands for all that came since it was taken.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// A step of a stop.
type step struct {
	name  string
	limit time.Duration
	do    func(context.Context) error
}

// overtime is how much longer than its limit a step may take before it is left alone: requests that end with their context take a moment.
const overtime = 500 * time.Millisecond

// take takes the steps one after the other, each within its limit whatever it does, and logs each. All are taken, also when one
// fails. It returns their errors, in the same order.
func take(steps []step, log *zap.Logger) []error {
	failures := make([]error, len(steps))
	for i, s := range steps {
		begun := time.Now()
		err := s.take()
		failures[i] = err
		fields := []zap.Field{zap.String("step", s.name), zap.Duration("took", time.Since(begun).Round(time.Millisecond))}
		if err != nil {
			log.Warn("stopping: not done", append(fields, zap.Error(err))...)
			continue
		}
		log.Info("stopping", fields...)
	}
	return failures
}

func (s step) take() error {
	ctx, cancel := context.WithTimeout(context.Background(), s.limit)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- s.do(ctx) }()
	late := time.NewTimer(s.limit + overtime)
	defer late.Stop()
	select {
	case err := <-result:
		return err
	case <-late.C:
		return fmt.Errorf("not done within %s", s.limit)
	}
}
