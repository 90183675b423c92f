package status

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

func TestDropLeavesWhatChangedMeanwhile(t *testing.T) {
	s := newReportScene(t)
	s.setAt("old", "", 5, time.Now().Add(-2*time.Hour))
	s.write()
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", &apiserver.Fault{Before: func(*http.Request) {
		s.server.PatchStatus(t, SweepReports, "", s.name, `{"status": {"targets": {"old": {"keys": 6}}}}`)
	}}).Times(1))
	if _, err := s.writer.Drop(t.Context(), nil); err == nil {
		t.Error("it dropped an entry that was written meanwhile")
	}
	s.expect("old=OK/node-1/6/0")
}

// setAt is what a sweep found that was so long ago.
func (s *reportScene) setAt(target, resource string, keys int64, at time.Time) {
	s.writer.Set(target, resource, TargetStatus{State: OK, Owner: "node-1", Keys: keys, LastSweep: metav1.NewTime(at)})
}

// drop drops what is not configured, and checks what is left.
func (s *reportScene) drop(what string, configured map[string][]string, left bool, want string, patches int) {
	s.Helper()
	s.proxy.Reset()
	got, err := s.writer.Drop(s.Context(), configured)
	if err != nil || got != left {
		s.Errorf("%s: something is left to drop: %t, error %v", what, got, err)
	}
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != patches {
		s.Errorf("%s: %d writes, want %d", what, n, patches)
	}
	s.expect(want)
}

// An agent that still has the earlier configuration does not know the targets of those that are ahead.
func TestDropLeavesWhatIsNew(t *testing.T) {
	s := newReportScene(t)
	old, young := time.Now().Add(-formerAge-time.Minute), time.Now().Add(-formerAge+time.Minute)
	s.setAt("mine", "", 1, old)
	s.setAt("new", "", 2, young)
	s.setAt("former", "", 3, old)
	s.write()
	s.set("never-swept", "", "node-1", 4, 0)
	s.write()
	mine := map[string][]string{"mine": nil}
	s.drop("two are old", mine, true, "mine=OK/node-1/1/0, new=OK/node-1/2/0", 1)
	s.drop("none is old", mine, true, "mine=OK/node-1/1/0, new=OK/node-1/2/0", 0)
	s.drop("it is known now", map[string][]string{"mine": nil, "new": nil}, false, "mine=OK/node-1/1/0, new=OK/node-1/2/0", 0)
}

// Where a target's resources have owners of their own, those that are not configured any more go too, and out of the sum.
func TestDropResources(t *testing.T) {
	s := newReportScene(t)
	old, young := time.Now().Add(-2*time.Hour), time.Now()
	s.setAt("nri", "ns/a", 1, old)
	s.setAt("nri", "ns/b", 2, old)
	s.setAt("nri", "ns/c", 4, young)
	s.write()
	const a, b, c = " [ns/a=OK/node-1/1/0]", " [ns/b=OK/node-1/2/0]", " [ns/c=OK/node-1/4/0]"
	s.drop("all are configured", map[string][]string{"nri": {"ns/c", "ns/b", "ns/a"}}, false, "nri=OK//7/0"+a+b+c, 0)
	s.drop("one is", map[string][]string{"nri": {"ns/a"}}, true, "nri=OK//5/0"+a+c, 1)
	s.drop("the same again", map[string][]string{"nri": {"ns/a"}}, true, "nri=OK//5/0"+a+c, 0)
	s.drop("another is", map[string][]string{"nri": {"ns/c"}}, false, "nri=OK//4/0"+c, 1)
	s.setAt("nri", "ns/c", 5, old)
	s.write()
	s.drop("none is", map[string][]string{"nri": {"ns/d"}}, false, "", 1)
}
