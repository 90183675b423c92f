package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// A workerScene is a worker whose goroutine does not run, over a shared resource on a real API server; who is a member the test says.
type workerScene struct {
	*evidenceScene
	*worker
	told []status.TargetReport
}

// newWorkerScene makes the shared resource with keys of these names. Only self has a Node.
func newWorkerScene(t *testing.T, self string, names ...string) *workerScene {
	t.Helper()
	e := newEvidenceScene(t, self)
	e.server.CreateNodes(t, self)
	crd := apiserver.CRD{Group: apiserver.Unique("worker") + ".example.com"}
	e.server.Install(t, crd.YAML())
	namespace := e.server.Namespace(t)
	var keys []string
	for _, name := range names {
		keys = append(keys, fmt.Sprintf("%q: 1", name))
	}
	e.server.Apply(t, namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: shared}\nstatus: {nodes: {%s}}\n",
		crd.GVR().Group, strings.Join(keys, ", ")))
	target := status.Target{
		Name: "shared", Resource: crd.GVR(), Namespace: namespace, Names: []string{"shared"},
		Paths:       []status.KeyPath{{Path: status.FieldPath{"status", "nodes"}}},
		UnknownKeys: status.RemoveUnknown, Mode: status.Enforce, Grace: time.Minute, MaxRemovals: 50,
	}
	client, err := status.NewClient(e.proxy.Config(), "unstale-test")
	if err != nil {
		t.Fatal(err)
	}
	s := &workerScene{evidenceScene: e}
	s.worker = &worker{
		unit: unitsOf(target)[0], sweeper: status.NewSweeper(target, client, e.evidence, zap.NewNop()), evidence: e.evidence,
		slots: make(slots, 1), log: zap.NewNop(), poke: make(chan struct{}, 1), done: make(chan struct{}),
		told: func(_ context.Context, _ *unit, report status.TargetReport, _ time.Duration) {
			s.told = append(s.told, report)
		},
	}
	s.sweeper.Wait = s.pause
	return s
}

// bounded is a context in which nothing is waited for without end.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func (s *workerScene) lists() int { return s.proxy.Counts()["LIST nodes"] }

// Who leaves brings the next look forward if the resource has its key, who is back does not any more.
func TestAWorkerTakesInWhoLeft(t *testing.T) {
	self, here, elsewhere := apiserver.Unique("node"), apiserver.Unique("here"), apiserver.Unique("elsewhere")
	s := newWorkerScene(t, self, self, here)
	s.join(self, here, elsewhere)
	if _, ok := s.pass(t.Context(), 0); !ok {
		t.Fatal("no pass")
	}
	schedule := &status.Schedule{Interval: time.Hour, Grace: time.Minute}
	schedule.Looked(&s.told[0], time.Now(), time.Now(), 0)
	for _, step := range []struct {
		what    string
		changes gossip.Changes
		alive   bool // here, by the time that the worker hears of the changes
		leaving int
	}{
		{"of others", gossip.Changes{Departed: []string{elsewhere, "stranger"}, Joined: []string{"another"}}, true, 0},
		{"it left", gossip.Changes{Departed: []string{here}}, false, 1},
		{"it came and left again", gossip.Changes{Joined: []string{here}}, false, 1},
		{"it is back", gossip.Changes{Joined: []string{here}}, true, 0},
		{"it left and came back", gossip.Changes{Departed: []string{here}, Joined: []string{here}}, true, 0},
		{"it came back and left", gossip.Changes{Departed: []string{here}, Joined: []string{here}}, false, 1},
	} {
		s.members.mu.Lock()
		s.members.alive[here] = step.alive
		s.members.mu.Unlock()
		s.worker.changed(step.changes)
		select {
		case <-s.poke:
		default:
			t.Errorf("%s: the worker is not woken", step.what)
		}
		s.takeIn(schedule)
		if got := schedule.Leaving(); got != step.leaving {
			t.Errorf("%s: %d are leaving, want %d", step.what, got, step.leaving)
		}
		if soon := schedule.Next().Before(time.Now().Add(2 * time.Minute)); soon != (step.leaving > 0) {
			t.Errorf("%s: the next look is at %v", step.what, schedule.Next())
		}
	}

	// What comes before it is taken in adds up, and is taken in once.
	s.worker.changed(gossip.Changes{Departed: []string{self}})
	s.worker.changed(gossip.Changes{Departed: []string{elsewhere}})
	s.takeIn(schedule)
	if got := schedule.Leaving(); got != 2 {
		t.Errorf("%d are leaving, want both", got)
	}
	schedule.Returned(self)
	s.takeIn(schedule)
	if got := schedule.Leaving(); got != 1 {
		t.Errorf("%d are leaving: what was taken in before was taken in again", got)
	}
}

// Where many have left, one list of the Nodes before the pass, or after it for the next, is cheaper than asking for each.
func TestAWorkerListsNodesForMany(t *testing.T) {
	self := apiserver.Unique("node")
	names := []string{self}
	for range listCandidates + 1 {
		names = append(names, apiserver.Unique("gone"))
	}
	few := newWorkerScene(t, self, names[:listCandidates+1]...) // and so many candidates less one
	few.join(self)
	if _, ok := few.pass(bounded(t), listCandidates); !ok || few.lists() != 0 {
		t.Errorf("%d lists for few candidates", few.lists())
	}
	if _, ok := few.pass(bounded(t), listCandidates+1); !ok || few.lists() != 1 {
		t.Errorf("%d lists although many have left", few.lists())
	}
	first := few.proxy.Requests()
	for i, r := range first {
		if r.Class == "LIST nodes" && (i == len(first)-1 || !strings.HasPrefix(first[i+1].Class, "GET widgets.")) {
			t.Error("the Nodes were listed after the pass that wanted to know")
		}
	}

	names[0] = apiserver.Unique("node")
	many := newWorkerScene(t, names[0], names...)
	many.join(names[0])
	if _, ok := many.pass(t.Context(), 0); !ok || many.lists() != 1 {
		t.Errorf("%d lists for many candidates", many.lists())
	}
}

// Once an hour a pass lists the Nodes first: that is how nodes without an agent, and members that are none any more, are found.
func TestAWorkerListsNodesHourly(t *testing.T) {
	self := apiserver.Unique("node")
	s := newWorkerScene(t, self, self)
	s.join(self)
	if _, ok := s.pass(bounded(t), 0); !ok || s.lists() != 0 {
		t.Errorf("%d lists at first", s.lists())
	}
	s.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	if _, ok := s.pass(bounded(t), 0); !ok || s.lists() != 1 {
		t.Errorf("%d lists after an hour", s.lists())
	}
	if requests := s.proxy.Requests(); requests[len(requests)-1].Class == "LIST nodes" {
		t.Error("the Nodes were listed after the pass")
	}
}

// A pass waits for a slot, gives it back, and between two batches lets others pass.
func TestAWorkersSlot(t *testing.T) {
	self := apiserver.Unique("node")
	s := newWorkerScene(t, self, self)
	s.join(self)
	ctx := bounded(t)
	s.slots <- struct{}{} // another one's
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if _, ok := s.pass(stopped, 0); ok || len(s.told) != 0 || len(s.proxy.Requests()) != 0 {
		t.Error("it passed without a slot")
	}
	if len(s.slots) != 1 {
		t.Error("it gave back what it did not have")
	}
	<-s.slots
	if _, ok := s.pass(ctx, 0); !ok || len(s.told) != 1 || len(s.slots) != 0 {
		t.Errorf("told %d times, %d slots are taken", len(s.told), len(s.slots))
	}

	if err := s.sit(ctx); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error, 1)
	go func() { // another one, which passes while this one pauses, and ends its pass when it has
		select {
		case s.slots <- struct{}{}:
			<-s.slots
			taken <- nil
		case <-ctx.Done():
			taken <- ctx.Err()
		}
	}()
	if err := s.pause(ctx, time.Millisecond); err != nil {
		t.Fatal(err)
	}
	s.stand()
	if err := <-taken; err != nil {
		t.Errorf("nobody else could pass: %v", err)
	}
	if err := s.sit(ctx); err != nil {
		t.Fatal(err)
	}
	if err := s.pause(stopped, time.Hour); err == nil || len(s.slots) != 0 {
		t.Errorf("told to stop while it paused: %v, %d slots are taken", err, len(s.slots))
	}
	s.slots <- struct{}{} // another one's
	s.stand()             // as the pass does at its end
	if len(s.slots) != 1 {
		t.Error("it gave back another one's slot")
	}
}

// A pass that was told to stop tells nobody what it found: it may not have seen all.
func TestAWorkerThatIsToldToStop(t *testing.T) {
	self := apiserver.Unique("node")
	s := newWorkerScene(t, self, self)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true, Before: func(*http.Request) { cancel() }}))
	if _, ok := s.pass(ctx, 0); ok || len(s.told) != 0 {
		t.Errorf("told of %d passes", len(s.told))
	}
	if len(s.slots) != 0 {
		t.Error("the slot is still taken")
	}
}
