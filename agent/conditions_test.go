package agent

import (
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/unstale/unstale/test/apiserver"
)

// An agent that is told to stop before it has begun to work can be asked all the while whether it is ready, and is not.
func TestReadinessOfAnAgentThatNeverWorked(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	m := s.member(s.node())
	waits := make(chan struct{}, 100)
	m.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true, Before: func(*http.Request) { waits <- struct{}{} }}))
	m.start()
	<-waits
	a := m.agent
	m.cancel()
	for asked := false; ; asked = true {
		if c := a.conditions(); c[0].OK {
			t.Fatalf("conditions %+v", c)
		}
		select {
		case err := <-m.result:
			m.result <- err
			if err != nil || !asked {
				t.Errorf("it ended with %v", err)
			}
			if m.logs.FilterMessage("stopping: this takes 20 seconds at most; a second signal ends it at once").Len() != 0 {
				t.Error("it says how long a stop takes in which there is nothing to do")
			}
			return
		default:
		}
	}
}

// An agent whose log cannot be written says so and is not ready; it can remove nothing.
func TestReadinessWithoutALog(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	m := s.member(s.node())
	m.start(func(o *Options) { o.LogFailed = func() error { return errors.New("no space left on device") } })
	s.awaitMembers(1)
	want := Condition{Name: "log", Message: "cannot be written, so nothing is removed: no space left on device"}
	if got := m.agent.conditions(); !slices.Contains(got, want) {
		t.Errorf("conditions %+v", got)
	}
}
