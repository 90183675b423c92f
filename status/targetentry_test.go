package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/test/apiserver"
)

// At a handover the loser's write may come after the winner's. The winner has no news then, and the report would name the loser for good.
func TestALateWriteOfAFormerOwner(t *testing.T) {
	for _, resource := range []string{"", "ns/a"} {
		s := newReportScene(t)
		s.writer.settle = 0
		want := func(owner string, removed int) string {
			if resource == "" {
				return fmt.Sprintf("nri=OK/%s/5/%d", owner, removed)
			}
			return fmt.Sprintf("nri=OK//5/%d [ns/a=OK/%s/5/%d]", removed, owner, removed)
		}
		s.set("nri", resource, "winner", 5, 1)
		s.write()
		winner := s.writer
		s.restart()
		s.set("nri", resource, "loser", 5, 2)
		s.write()
		s.expect(want("loser", 3))
		s.writer = winner
		s.write()
		s.expect(want("winner", 3))

		// It looked once; the next look is not due for long.
		s.proxy.Reset()
		s.write()
		if n := len(s.proxy.Requests()); n != 0 {
			t.Errorf("%d requests after the look", n)
		}
		if at, _ := s.writer.next(); time.Until(at) < lookInterval/3 || time.Until(at) > lookInterval {
			t.Errorf("the next look is due in %s", time.Until(at))
		}
		s.set("nri", resource, "winner", 5, 1)
		s.write()
		s.expect(want("winner", 4))
	}
}

// Where all is as it was written, the look costs a read and no write.
func TestALookThatFindsWhatWasWritten(t *testing.T) {
	s := newReportScene(t)
	s.writer.settle = 0
	s.set("nri", "", "node-1", 5, 1)
	s.set("other", "ns/a", "node-1", 5, 1)
	s.set("other", "ns/b", "node-1", 6, 1)
	s.write()
	s.proxy.Reset()
	s.write()
	if n := len(s.proxy.Requests()); n != 1 || s.proxy.Counts()["GET sweepreports.unstale.dev"] != 1 {
		t.Errorf("%d requests, want one GET: %v", n, s.proxy.Counts())
	}
}

// Two that write a target's resources at the same time: the sum of the one that saw less may come last.
func TestALookBringsTheSumUpToDate(t *testing.T) {
	s := newReportScene(t)
	s.writer.settle = 0
	s.set("nri", "ns/a", "node-1", 5, 0)
	s.write()
	s.server.PatchStatus(t, SweepReports, "", s.name, `{"status": {"targets": {"nri": {"keys": 1}}}}`)
	s.write()
	s.expect("nri=OK//5/0 [ns/a=OK/node-1/5/0]")
}

// A look that cannot be made is made later.
func TestALookThatFails(t *testing.T) {
	s := newReportScene(t)
	s.writer.settle = 0
	s.set("nri", "", "node-1", 5, 1)
	s.write()
	s.server.PatchStatus(t, SweepReports, "", s.name, `{"status": {"targets": {"nri": {"owner": "late"}}}}`)
	for _, class := range []string{"GET sweepreports.unstale.dev", "PATCH sweepreports.unstale.dev/status"} {
		s.proxy.SetFault(apiserver.On(class, apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")))
		if err := s.writer.writeDue(t.Context()); err == nil {
			t.Errorf("%s refused, and no error", class)
		}
		s.expect("nri=OK/late/5/1")
	}
	s.proxy.SetFault(nil)
	s.write()
	s.expect("nri=OK/node-1/5/1")
}

// A SweepReport that is made anew has none of what was written to the one before.
func TestAgain(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 7)
	s.set("other", "ns/a", "node-1", 6, 8)
	s.write()
	anew := func() {
		t.Helper()
		s.server.Delete(t, SweepReports, "", s.name)
		s.server.Apply(t, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s}\n", s.name))
	}
	anew()
	s.write()
	s.expect("")
	s.writer.Again()
	s.write()
	s.expect("nri=OK/node-1/5/0, other=OK//6/0 [ns/a=OK/node-1/6/0]")
	s.proxy.Reset()
	s.write()
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what was seen to already", n)
	}

	// Also when there is news at that time, and when the first try fails.
	s.set("nri", "", "node-1", 5, 7)
	s.write()
	s.expect("nri=OK/node-1/5/7, other=OK//6/0 [ns/a=OK/node-1/6/0]")
	anew()
	s.writer.Again()
	s.set("nri", "", "node-1", 5, 1)
	s.proxy.SetFault(apiserver.On("GET sweepreports.unstale.dev", apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")))
	if err := s.writer.writeDue(t.Context()); err == nil {
		t.Error("refused, and no error")
	}
	s.proxy.SetFault(nil)
	s.write()
	s.expect("nri=OK/node-1/5/1, other=OK//6/0 [ns/a=OK/node-1/6/0]")

	// Where nothing is missing nothing is written.
	s.proxy.Reset()
	s.writer.Again()
	s.write()
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != 0 {
		t.Errorf("%d writes of what is there", n)
	}
}

// Whoever waits is woken.
func TestAgainWakesTheWriter(t *testing.T) {
	w := NewTargetWriter(nil, "report", zap.NewNop())
	w.Again()
	select {
	case <-w.wake:
	default:
		t.Error("it is not woken")
	}
}

// An entry that the API server refuses does not hold up the others, and is tried again at its own pace.
func TestAnEntryThatIsRefused(t *testing.T) {
	for code, others := range map[int]bool{ // whether the others are written
		http.StatusUnprocessableEntity: true, http.StatusBadRequest: true, http.StatusRequestEntityTooLarge: true,
		http.StatusUnauthorized: false, http.StatusForbidden: false, http.StatusNotFound: false, http.StatusTooManyRequests: false,
		http.StatusInternalServerError: false,
	} {
		s := newReportScene(t)
		refuse := apiserver.On("PATCH sweepreports.unstale.dev/status", apiserver.Refuse(code, "No", "not that one"))
		names := []string{"a", "b", "c", "d", "e"}
		for _, name := range names {
			s.set(name, "", "node-1", 1, 0)
		}
		if !others {
			s.proxy.SetFault(refuse)
			if err := s.writer.writeDue(t.Context()); err == nil {
				t.Errorf("%d: no error although none can be written", code)
			}
			if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n > maxAttempts {
				t.Errorf("%d: it goes on although all are refused: %d tries", code, n)
			}
			continue
		}
		s.proxy.SetFault(refuse.Times(1))
		for range 2 { // the second time it does not try the one again
			s.write()
			if got := strings.Count(s.targets(), "OK"); got != len(names)-1 {
				t.Errorf("%d: %d are written: %s", code, got, s.targets())
			}
		}
		if at, _ := s.writer.next(); time.Until(at) <= 0 || time.Until(at) > firstWriteRetry {
			t.Errorf("%d: it is due in %s", code, time.Until(at))
		}
		if said := s.logs.FilterMessageSnippet("cannot write an entry").Len(); said != 1 {
			t.Errorf("%d: it was said %d times", code, said)
		}
		for _, e := range s.writer.entries {
			e.notBefore = time.Time{}
		}
		s.write()
		if got := strings.Count(s.targets(), "OK"); got != len(names) {
			t.Errorf("%d: %d are written at last: %s", code, got, s.targets())
		}
	}
}

// The pauses grow, and the same failure is said once.
func TestAnEntryIsPutOff(t *testing.T) {
	var e targetEntry
	for i, most := range []time.Duration{5, 10, 20, 40, 80, 160, 300, 300} {
		news := e.putOff(fmt.Errorf("no %d", i/2), noon)
		if wait := e.notBefore.Sub(noon); wait > most*time.Second || wait < most*time.Second/2 {
			t.Errorf("after failure %d it waits for %s", i, wait)
		}
		if news != (i%2 == 0) {
			t.Errorf("failure %d is news: %t", i, news)
		}
	}
	e.isThere(TargetStatus{}, noon, 0)
	if e.putOff(fmt.Errorf("no 3"), noon); e.pause != firstWriteRetry {
		t.Errorf("after a success it waits for %s", e.pause)
	}
}

// A former owner's write is over when the new one looks.
func TestAWriteIsOverBeforeTheLook(t *testing.T) {
	if entryTime+settleTime >= settleInterval {
		t.Errorf("a write takes %s at most, and takes effect %s later; the look comes after %s", entryTime, settleTime, settleInterval)
	}
}
