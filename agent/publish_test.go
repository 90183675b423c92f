package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

// A publishScene is a publisher that does not run, and two SweepReports.
type publishScene struct {
	*scene
	*publisher
	proxy   *apiserver.Proxy
	node    string
	reports [2]string
	members int
}

func newPublishScene(t *testing.T) *publishScene {
	t.Helper()
	s := &publishScene{scene: newScene(t), members: 1}
	for i := range s.reports {
		s.withReport()
		s.reports[i] = s.report
	}
	s.node, s.proxy = s.scene.node(), s.server.Proxy(t)
	s.restart()
	return s
}

// restart makes a publisher that knows nothing, as a new process does.
func (s *publishScene) restart() {
	client, err := status.NewClient(s.proxy.Config(), "unstale-test")
	if err != nil {
		s.Fatal(err)
	}
	s.publisher = newPublisher(&ownKeys{node: s.node, client: client, log: zap.NewNop()}, func() int { return s.members }, zap.NewNop())
}

func entryFor(failure error) status.NodeEntry {
	return status.NewNodeEntry(failure, 1, "abc", time.Now(), "")
}

// expect publishes, and checks in which of the SweepReports the key is then.
func (s *publishScene) expect(what string, first, second bool) {
	s.Helper()
	if err := s.publish(bounded(s.T)); err != nil {
		s.Errorf("%s: %v", what, err)
	}
	s.isIn(what, first, second)
}

func (s *publishScene) isIn(what string, first, second bool) {
	s.Helper()
	for i, want := range []bool{first, second} {
		s.report = s.reports[i]
		if got := s.reported("nodes")[s.node] != nil; got != want {
			s.Errorf("%s: the key is in SweepReport %d: %t", what, i, got)
		}
	}
}

// The key is in the SweepReport that the configuration names, and in no other.
func TestTheKeyFollowsTheConfiguration(t *testing.T) {
	s := newPublishScene(t)
	s.expect("no configuration", false, false)
	s.set(s.reports[0], entryFor(nil))
	s.expect("the first", true, false)
	s.proxy.Reset()
	s.expect("no change", true, false)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what has not changed", n)
	}
	s.set(s.reports[1], entryFor(nil))
	s.expect("the second", false, true)
	s.set("", entryFor(nil))
	s.expect("none", false, false)
	s.proxy.Reset()
	s.expect("still none", false, false)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests without a SweepReport", n)
	}
	s.set(s.reports[0], entryFor(nil))
	s.expect("the first again", true, false)
}

// Somebody else took the key away. Nobody finds out but by looking, so it is put back when it is said to be missing, once.
func TestAMissingKeyIsPublishedAgain(t *testing.T) {
	s := newPublishScene(t)
	s.set(s.reports[0], entryFor(nil))
	s.expect("published", true, false)
	s.server.PatchStatus(t, status.SweepReports, "", s.reports[0], fmt.Sprintf(`{"status": {"nodes": {%q: null}}}`, s.node))
	s.expect("nobody has said so", false, false)
	s.again()
	s.expect("it is said", true, false)
	s.proxy.Reset()
	s.expect("it was said before", true, false)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what was seen to already", n)
	}
}

// Beyond what a SweepReport holds, only failures are published.
func TestSuccessIsNotPublishedWhereThereAreTooMany(t *testing.T) {
	s := newPublishScene(t)
	s.members = status.MaxNodeKeys + 1
	s.set(s.reports[0], entryFor(nil))
	s.expect("a success", false, false)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests to publish nothing", n)
	}
	s.set(s.reports[0], entryFor(errors.New("bad")))
	s.expect("a failure", true, false)
	s.members = status.MaxNodeKeys
	s.set(s.reports[0], entryFor(nil))
	s.expect("as many as it holds", true, false)
}

// A key that is cleared is not published again, whoever asks for it; and one is cleared also by a process that never published it.
func TestAClearedKeyStaysCleared(t *testing.T) {
	s := newPublishScene(t)
	s.set(s.reports[0], entryFor(nil))
	s.expect("published", true, false)
	if err := s.clear(t.Context()); err != nil {
		t.Error(err)
	}
	s.isIn("cleared", false, false)
	s.again()
	s.set(s.reports[1], entryFor(errors.New("bad")))
	if err := s.publish(bounded(t)); !errors.Is(err, status.ErrClosed) {
		t.Errorf("published after it was cleared: %v", err)
	}
	s.isIn("still cleared", false, false)

	s.restart()
	s.set(s.reports[0], entryFor(nil))
	s.expect("published by a process that is killed", true, false)
	s.restart()
	if err := s.clear(t.Context()); err != nil {
		t.Error(err)
	}
	s.isIn("a process without a configuration does not know where", true, false)
	s.restart()
	s.set(s.reports[0], entryFor(nil))
	if err := s.clear(t.Context()); err != nil {
		t.Error(err)
	}
	s.isIn("the next process was stopped before it published", false, false)

	// A run that is under way ends with it.
	s.restart()
	s.set(s.reports[0], entryFor(nil))
	if err := s.clear(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.run(bounded(t)); err != nil {
		t.Error(err)
	}
	s.isIn("a run after that", false, false)
}

// The configuration names another SweepReport while the API server fails: the key in the first is cleared when it can be.
func TestAFormerKeyIsClearedLater(t *testing.T) {
	s := newPublishScene(t)
	fail := func() {
		t.Helper()
		s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(503, "ServiceUnavailable", "not now")))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := s.publish(ctx); err == nil {
			t.Error("no error although nothing is answered")
		}
		s.proxy.SetFault(nil)
	}
	s.set(s.reports[0], entryFor(nil))
	s.expect("the first", true, false)
	s.set(s.reports[1], entryFor(nil))
	fail()
	s.isIn("it could not be cleared", true, false)
	s.expect("the next try", false, true)
	s.proxy.Reset()
	s.expect("after that", false, true)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what is done", n)
	}

	s.set("", entryFor(nil))
	fail()
	s.isIn("there is none to publish in, and the former is left", false, true)
	s.expect("the next try", false, false)

	// Back to the first before it was cleared: it is published there, and not cleared.
	entry := entryFor(nil)
	s.set(s.reports[0], entry)
	s.expect("the first", true, false)
	s.set(s.reports[1], entry)
	fail()
	s.set(s.reports[0], entry)
	s.expect("the first again", true, false)
	s.expect("and later", true, false)
}

// A stop clears what is left in a former SweepReport, or tells that it is.
func TestAStopClearsFormerKeys(t *testing.T) {
	s := newPublishScene(t)
	s.set(s.reports[0], entryFor(nil))
	s.expect("the first", true, false)
	s.set(s.reports[1], entryFor(nil))
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if strings.Contains(r.URL.Path, s.reports[0]) {
			return apiserver.Refuse(403, "Forbidden", "not that one")
		}
		return nil
	})
	if err := s.publish(bounded(t)); err == nil || !strings.Contains(err.Error(), "not that one") {
		t.Errorf("the former key is left, and the error is %v", err)
	}
	s.isIn("it is published all the same", true, true)
	if err := s.clear(bounded(t)); err == nil || !strings.Contains(err.Error(), "not that one") {
		t.Errorf("a stop that leaves it ends with %v", err)
	}
	s.isIn("the stop", true, false)
	s.proxy.SetFault(nil)
	if err := s.clear(bounded(t)); err != nil {
		t.Error(err)
	}
	s.isIn("a stop without the refusal", false, false)
}

// A former SweepReport that keeps all its keys keeps this one, and nobody asks again.
func TestAFormerKeyThatIsKept(t *testing.T) {
	s := newPublishScene(t)
	s.set(s.reports[0], entryFor(nil))
	s.expect("the first", true, false)
	s.server.Apply(t, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s, annotations: {unstale.dev/keep: \"true\"}}\n", s.reports[0]))
	s.set(s.reports[1], entryFor(nil))
	s.expect("the second", true, true)
	s.proxy.Reset()
	s.expect("still", true, true)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for a key that is kept", n)
	}
}

// What the agent reports it writes to the SweepReport that is in use now, and what it reported to the one before is not carried over.
func TestTheReportWriterFollowsTheConfiguration(t *testing.T) {
	r := newReportWriter(nil, zap.NewNop())
	u := &unit{target: status.Target{Name: "shared"}}
	r.set(u, status.TargetStatus{}) // with none in use: nothing to do
	r.forget(u)
	r.again()
	left, err := r.drop(t.Context(), nil)
	if err := errors.Join(r.trim(t.Context(), 1), err); err != nil || left {
		t.Errorf("something is left: %t, error %v", left, err)
	}
	r.use("first")
	first := r.present()
	r.use("first")
	if first == nil || r.present() != first {
		t.Error("the same SweepReport has another writer: what was not yet written is lost")
	}
	<-r.wake
	r.use("first")
	select {
	case <-r.wake:
		t.Error("the writer is started anew although nothing changed")
	default:
	}
	r.use("second")
	if w := r.present(); w == nil || w == first {
		t.Error("another SweepReport has the same writer")
	}
	<-r.wake
	r.use("")
	if r.present() != nil {
		t.Error("there is a writer without a SweepReport")
	}
}
