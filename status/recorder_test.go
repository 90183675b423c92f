package status

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

var errDiskFull = errors.New("no space left on device")

// fullAtOnce is a log that cannot be written, fullMeanwhile one that fills up with the lines of the removal.
func fullAtOnce() (func() error, error)    { return nil, errDiskFull }
func fullMeanwhile() (func() error, error) { return func() error { return errDiskFull }, nil }

// What cannot be put back is not removed, and not logged whole where nothing can be logged.
func TestLogThatCannotBeWritten(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1}}`, paths("status.nodes")...)
	for _, test := range []struct {
		recorded Recorder
		logged   int
	}{{fullAtOnce, 0}, {fullMeanwhile, 1}} {
		s.restart()
		s.sweeper.Recorded = test.recorded
		report := s.sweep()
		s.state(report, Unavailable, "nothing was removed", "no space left on device")
		s.equal("left", s.left(), `{"KEEP0":1,"gone-a":1}`)
		if got := s.logs.FilterMessage("removing").Len(); got != test.logged {
			t.Errorf("%d entries were logged, want %d", got, test.logged)
		}
	}
	s.sweeper.Recorded = func() (func() error, error) { return func() error { return nil }, nil }
	s.sweep()
	s.equal("left", s.left(), `{"KEEP0":1}`)
}

// A Recorder is asked before the first line of a removal and after its last.
func TestARecorderSeesAllLinesOfARemoval(t *testing.T) {
	s := newScene(t, 1, `{nodes: {KEEP0: 1, gone-a: 1, gone-b: 1}}`, paths("status.nodes")...)
	var before, after []int
	removing := func() int { return s.logs.FilterMessage("removing").Len() }
	s.sweeper.Recorded = func() (func() error, error) {
		before = append(before, removing())
		return func() error { after = append(after, removing()); return nil }, nil
	}
	s.sweep()
	if len(before) != 1 || before[0] != 0 || len(after) != 1 || after[0] != 2 {
		t.Errorf("asked after %v lines, and then after %v", before, after)
	}
}

// An entry that another program wrote is cleared only if the log of it is written; what this OwnKey published itself needs none.
func TestAStopRecordsWhatOthersWrote(t *testing.T) {
	for name, recorded := range map[string]Recorder{"at once": fullAtOnce, "meanwhile": fullMeanwhile} {
		t.Run(name, func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {KEEP0: {by: another program}}}`, paths("status.nodes")...)
			core, logs := observer.New(zapcore.InfoLevel)
			s.key.Log = zap.New(core)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tries := 0
			s.key.Recorded = func() (func() error, error) {
				tries++
				return recorded()
			}
			s.onWait = func(context.Context, time.Duration) {
				if tries == 3 {
					cancel()
				}
			}
			err := s.key.Clear(ctx)
			if err == nil || !strings.Contains(err.Error(), "no space left on device") {
				t.Errorf("the error is %v", err)
			}
			s.equal("left", s.left(), `{"KEEP0":{"by":"another program"}}`)
			if name == "at once" && logs.FilterMessage("removing").Len() != 0 {
				t.Error("the entry was logged")
			}
			s.key.Recorded = nil
			s.clear()
			s.equal("left", s.left(), `{}`)
		})
	}
	t.Run("its own", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
		s.key.Recorded = fullAtOnce
		s.publish(1)
		s.clear()
		s.equal("left", s.left(), `{}`)
	})
	t.Run("its own, and another's in another place", func(t *testing.T) {
		s := newOwnScene(t, `{nodes: {}, names: [KEEP0]}`, paths("status.nodes", "status.names|.")...)
		asked := 0
		s.key.Recorded = func() (func() error, error) {
			asked++
			return func() error { return nil }, nil
		}
		s.publish(1)
		s.clear()
		if asked != 1 {
			t.Errorf("asked %d times", asked)
		}
	})
}
