package status

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

// An entry is due when it has news, and not because it had some before.
func TestWhatIsWrittenIsNoNews(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 2)
	s.set("nri", "ns/a", "node-1", 5, 2)
	s.set("other", "", "node-1", 5, 0)
	s.write()
	if at, _ := s.writer.next(); time.Until(at) < s.writer.settle/2 {
		t.Errorf("after the write something is due at %v", at)
	}
	s.proxy.Reset()
	s.write()
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what is written", n)
	}
	s.set("nri", "", "node-1", 5, 1) // but for the removals all is as it was
	if at, _ := s.writer.next(); time.Until(at) > 0 {
		t.Error("removals are no news")
	}
}

// What the report said before is read once for all entries that are written for the first time.
func TestTheReportIsReadOnceForAllEntries(t *testing.T) {
	s := newReportScene(t)
	for _, target := range []string{"a", "b", "c", "d"} {
		s.set(target, "", "node-1", 1, 1)
	}
	s.write()
	s.expect("a=OK/node-1/1/1, b=OK/node-1/1/1, c=OK/node-1/1/1, d=OK/node-1/1/1")
	if n := s.proxy.Counts()["GET sweepreports.unstale.dev"]; n != 1 {
		t.Errorf("%d reads", n)
	}
}

// The writer wakes for the entry that is due first.
func TestTheEntryThatIsDueFirst(t *testing.T) {
	w := NewTargetWriter(nil, "report", nopLog)
	if _, due := w.next(); due {
		t.Error("something is due at first")
	}
	first := noon.Add(w.interval)
	for i, target := range []string{"c", "a", "b", "d", "e"} {
		w.Set(target, "", TargetStatus{State: OK, Keys: 1})
		e := w.entries[[2]string{target, ""}]
		e.written, e.writtenAt, e.lookAt = &TargetStatus{State: OK}, noon.Add(time.Duration(i)*time.Second), noon.Add(time.Hour)
	}
	w.entries[[2]string{"c", ""}].next.Keys = 0 // the first has no news
	first = first.Add(time.Second)
	for range 20 { // the entries are in no order
		if at, due := w.next(); !due || !at.Equal(first) {
			t.Fatalf("the next is due at %v (%t), want %v", at, due, first)
		}
	}
}

// What is no SweepReport has no totals to go on from: writing would set them back.
func TestAnAnswerThatIsNoSweepReport(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 2)
	s.write()
	for _, body := range []string{`{}`, `{"metadata": {"name": "x"}}`, `[]`, `<html>`} {
		s.restart()
		s.proxy.SetFault(apiserver.On("GET sweepreports.unstale.dev", &apiserver.Fault{Status: http.StatusOK, Body: body}))
		s.set("nri", "", "node-2", 5, 1)
		if err := s.writer.writeDue(t.Context()); err == nil {
			t.Errorf("%s: no error", body)
		}
		s.expect("nri=OK/node-1/5/2")
	}
	s.proxy.SetFault(nil)
	s.write()
	s.expect("nri=OK/node-2/5/3")
}

// Who may not write is told what is wanted.
func TestTargetWriterSaysWhichRightsItNeeds(t *testing.T) {
	s := newReportScene(t)
	for _, class := range []string{"GET sweepreports.unstale.dev", "PATCH sweepreports.unstale.dev/status"} {
		s.restart()
		s.proxy.SetFault(apiserver.On(class, apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")))
		s.set("nri", "", "node-1", 5, 2)
		if err := s.writer.writeDue(t.Context()); err == nil || !strings.Contains(err.Error(), "the agents need get on sweepreports.unstale.dev and patch on its status") {
			t.Errorf("%s refused: %v", class, err)
		}
	}
}

// The sum is written where it changes: who owns a resource is no part of it.
func TestTheSumIsWrittenWhenItChanges(t *testing.T) {
	s := newReportScene(t)
	patches := func(owner string, keys int64) int {
		s.proxy.Reset()
		s.set("nri", "ns/a", owner, keys, 0)
		s.write()
		return s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]
	}
	if n := patches("node-1", 5); n != 2 {
		t.Errorf("%d writes, want the resource's and the sum's", n)
	}
	if n := patches("node-2", 5); n != 1 {
		t.Errorf("%d writes for another owner, want one", n)
	}
	if n := patches("node-2", 6); n != 2 {
		t.Errorf("%d writes, want the resource's and the sum's", n)
	}
	s.expect("nri=OK//6/0 [ns/a=OK/node-2/6/0]")
}

// As many agents as a SweepReport holds have their keys in it.
func TestTrimAtItsLimit(t *testing.T) {
	s := newReportScene(t)
	for _, agents := range []int{MaxNodeKeys - 1, MaxNodeKeys} {
		if err := s.writer.Trim(t.Context(), agents); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != 0 {
		t.Errorf("%d writes", n)
	}
	for range 2 { // said once
		if err := s.writer.Trim(t.Context(), MaxNodeKeys+1); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != 1 {
		t.Errorf("%d writes, want one", n)
	}
}
