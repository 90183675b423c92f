package status

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/unstale/unstale/test/apiserver"
)

// A reportScene is a SweepReport on a real API server, and a writer that reaches it through a proxy.
type reportScene struct {
	*testing.T
	server *apiserver.Server
	proxy  *apiserver.Proxy
	name   string
	writer *TargetWriter
	logs   *observer.ObservedLogs
}

func newReportScene(t *testing.T) *reportScene {
	t.Helper()
	s := &reportScene{T: t, server: apiserver.Shared(t), name: apiserver.Unique("report")}
	definition, err := os.ReadFile("../deploy/crds/sweepreports.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.server.Install(t, string(definition))
	s.server.Apply(t, "", fmt.Sprintf("apiVersion: unstale.dev/v1alpha1\nkind: SweepReport\nmetadata: {name: %s}\n", s.name))
	s.proxy = s.server.Proxy(t)
	s.restart()
	return s
}

// restart makes a writer that knows nothing, as a new process does. It writes as often as it is told to.
func (s *reportScene) restart() {
	s.Helper()
	client, err := NewClient(s.proxy.Config(), "unstale-test")
	if err != nil {
		s.Fatal(err)
	}
	client.wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	core, logs := observer.New(zapcore.InfoLevel)
	s.logs = logs
	s.writer = NewTargetWriter(client, s.name, zap.New(core))
	s.writer.interval = 0
}

// write writes what is due.
func (s *reportScene) write() {
	s.Helper()
	if err := s.writer.writeDue(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// targets are the report's entries, in short.
func (s *reportScene) targets() string {
	s.Helper()
	status, _ := s.server.Get(s, SweepReports, "", s.name).Object["status"].(map[string]any)
	raw, err := json.Marshal(status["targets"])
	if err != nil {
		s.Fatal(err)
	}
	var targets map[string]targetInReport
	if err := json.Unmarshal(raw, &targets); err != nil {
		s.Fatal(err)
	}
	var all []string
	short := func(name string, t TargetStatus) string {
		return fmt.Sprintf("%s=%s/%s/%d/%d", name, t.State, t.Owner, t.Keys, t.Removed)
	}
	for _, name := range sortedKeys(targets) {
		text := short(name, targets[name].TargetStatus)
		for _, r := range sortedKeys(targets[name].Resources) {
			text += " [" + short(r, targets[name].Resources[r]) + "]"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func (s *reportScene) expect(want string) {
	s.Helper()
	if got := s.targets(); got != want {
		s.Errorf("the targets are\n %s, want\n %s", got, want)
	}
}

func (s *reportScene) set(target, resource, owner string, keys, removed int64) {
	s.writer.Set(target, resource, TargetStatus{State: OK, Owner: owner, Keys: keys, Removed: removed})
}

func TestTargetWriter(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 2)
	s.set("other", "", "node-1", 1, 0)
	s.write()
	s.expect("nri=OK/node-1/5/2, other=OK/node-1/1/0")

	s.proxy.Reset()
	s.set("nri", "", "node-1", 5, 0)
	s.write()
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests for what has not changed", n)
	}
	s.set("nri", "", "node-1", 4, 1)
	s.set("nri", "", "node-1", 3, 1) // before the first is written: removals add up
	s.write()
	s.expect("nri=OK/node-1/3/4, other=OK/node-1/1/0")
	if n := len(s.proxy.Requests()); n != 1 {
		t.Errorf("%d requests for a change, want one PATCH", n)
	}

	// Another owner goes on from what is there.
	s.restart()
	s.set("nri", "", "node-2", 3, 10)
	s.write()
	s.expect("nri=OK/node-2/3/14, other=OK/node-1/1/0")
	// And so does the first, when it owns it again: it must not go on from what it remembers.
	s.set("nri", "", "node-2", 2, 1)
	s.writer.Forget("nri", "")
	s.server.PatchStatus(t, SweepReports, "", s.name, `{"status": {"targets": {"nri": {"removed": 100}}}}`)
	s.set("nri", "", "node-2", 3, 1)
	s.write()
	s.expect("nri=OK/node-2/3/101, other=OK/node-1/1/0")

}

func TestTargetWithResourcesOfSeveralOwners(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "ns/a", "node-1", 5, 2)
	s.write()
	s.expect("nri=OK//5/2 [ns/a=OK/node-1/5/2]")
	s.restart()
	s.set("nri", "ns/b", "node-2", 10, 1)
	s.write()
	s.expect("nri=OK//15/3 [ns/a=OK/node-1/5/2] [ns/b=OK/node-2/10/1]")
	// One owner for all again, after another configuration: its resources are no longer told apart.
	s.set("nri", "", "node-3", 15, 0)
	s.write()
	s.expect("nri=OK/node-3/15/3")
}

func TestTargetWriterRunsThroughFailures(t *testing.T) {
	s := newReportScene(t)
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status",
		apiserver.Refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "not now")).Times(2)) // the client's own tries
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); s.writer.Run(ctx) }()
	s.set("nri", "", "node-1", 5, 2)
	apiserver.Eventually(t, "it is written", func() error {
		if got := s.targets(); got != "nri=OK/node-1/5/2" {
			return fmt.Errorf("the targets are %q", got)
		}
		return nil
	})
	s.set("nri", "", "node-1", 6, 0)
	apiserver.Eventually(t, "it is written again", func() error {
		if got := s.targets(); got != "nri=OK/node-1/6/2" {
			return fmt.Errorf("the targets are %q", got)
		}
		return nil
	})
	cancel()
	<-ended
}

// A write whose answer is lost was done: what it removed must not be added to itself.
func TestRemovalsCountOnceWhenAnAnswerIsLost(t *testing.T) {
	for _, resource := range []string{"", "ns/a"} {
		s := newReportScene(t)
		s.set("nri", resource, "node-1", 5, 2)
		lose := apiserver.On("PATCH sweepreports.unstale.dev/status", &apiserver.Fault{Lose: true})
		s.proxy.SetFault(lose.Times(maxAttempts))
		if err := s.writer.writeDue(t.Context()); err == nil {
			t.Error("no answer, and no error")
		}
		s.set("nri", resource, "node-1", 4, 1)
		s.write()
		want := "nri=OK/node-1/4/3"
		if resource != "" {
			want = "nri=OK//4/3 [ns/a=OK/node-1/4/3]"
		}
		s.expect(want)
	}
}

// The sum is a write of its own; when it fails the resource's entry has been written.
func TestRemovalsCountOnceWhenTheSumFails(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "ns/a", "node-1", 5, 2)
	patches := 0
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if apiserver.Class(r) != "PATCH sweepreports.unstale.dev/status" {
			return nil
		}
		if patches++; patches == 1 || patches > 1+maxAttempts {
			return nil
		}
		return apiserver.Refuse(http.StatusServiceUnavailable, "ServiceUnavailable", "not now")
	})
	if err := s.writer.writeDue(t.Context()); err == nil {
		t.Error("the sum was refused, and no error")
	}
	s.write()
	s.expect("nri=OK//5/2 [ns/a=OK/node-1/5/2]")
}

func TestWhatIsForgottenDuringItsWrite(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 2)
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", &apiserver.Fault{Before: func(*http.Request) {
		s.writer.Forget("nri", "")
		s.set("nri", "", "node-1", 6, 1) // this agent owns it again
	}}).Times(1))
	s.write()
	s.write()
	s.expect("nri=OK/node-1/6/3")

	// Two are due; during the first one's write the other is forgotten.
	s.set("nri", "", "node-1", 7, 0)
	s.set("other", "", "node-1", 7, 0)
	s.proxy.Reset()
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", &apiserver.Fault{Before: func(*http.Request) {
		s.writer.Forget("nri", "")
		s.writer.Forget("other", "")
	}}).Times(1))
	s.write()
	s.write()
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != 1 {
		t.Errorf("%d writes, want the one that was under way", n)
	}
}

func TestAnEntryIsWrittenOnceAnInterval(t *testing.T) {
	s := newReportScene(t)
	s.writer.interval = time.Hour
	s.set("nri", "", "node-1", 5, 2)
	s.write()
	s.set("nri", "", "node-1", 4, 1)
	s.proxy.Reset()
	s.write()
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests within the interval", n)
	}
	s.set("other", "", "node-1", 1, 0)
	s.write()
	s.expect("nri=OK/node-1/5/2, other=OK/node-1/1/0")
}

// 5,000 agents' keys must not be sent with each answer.
func TestAnswersWithoutTheAgentsKeys(t *testing.T) {
	s := newReportScene(t)
	s.server.SetStatus(t, SweepReports, "", s.name, map[string]any{
		"nodes": map[string]any{"node-1": map[string]any{"status": NodeFailure, "errors": strings.Repeat("x", 200)}},
	})
	s.set("nri", "", "node-1", 5, 2)
	s.write()
	s.proxy.Reset()
	s.set("nri", "", "node-1", 4, 0)
	s.write()
	whole := s.server.GetJSON(t, "/apis/unstale.dev/v1alpha1/sweepreports/"+s.name)
	if _, n := s.proxy.Bytes(); n == 0 || n > int64(len(whole))-200 {
		t.Errorf("%d bytes were received for one entry of a SweepReport of %d", n, len(whole))
	}
}

func TestWhatIsRemovedDuringAWrite(t *testing.T) {
	s := newReportScene(t)
	s.set("nri", "", "node-1", 5, 2)
	s.proxy.SetFault(apiserver.On("PATCH sweepreports.unstale.dev/status", &apiserver.Fault{Before: func(*http.Request) {
		s.set("nri", "", "node-1", 5, 1) // the counts are the same, so only this tells that there is something to write
	}}).Times(1))
	s.write()
	s.expect("nri=OK/node-1/5/2")
	s.write()
	s.expect("nri=OK/node-1/5/3")
}

func TestTargetWriterSaysWhatIsMissing(t *testing.T) {
	s := newReportScene(t)
	s.server.Delete(t, SweepReports, "", s.name)
	s.set("nri", "", "node-1", 5, 2)
	err := s.writer.writeDue(t.Context())
	if err == nil || !strings.Contains(err.Error(), "unstale crd") {
		t.Errorf("without a SweepReport: %v", err)
	}
}

func TestTrim(t *testing.T) {
	s := newReportScene(t)
	nodes := map[string]any{}
	for i := range 10 {
		nodes[fmt.Sprint("node-", i)] = map[string]any{"status": []string{NodeSuccess, NodeFailure}[i%2], "generation": 1}
	}
	s.server.SetStatus(t, SweepReports, "", s.name, map[string]any{"nodes": nodes})
	left := func() (keys int, condition string) {
		status, _ := s.server.Get(t, SweepReports, "", s.name).Object["status"].(map[string]any)
		found, _ := status["nodes"].(map[string]any)
		if conditions, _ := status["conditions"].([]any); len(conditions) > 0 {
			condition = fmt.Sprint(conditions[0].(map[string]any)["status"])
		}
		return len(found), condition
	}
	for _, step := range []struct {
		agents, keys int
		condition    string
	}{{10, 10, ""}, {MaxNodeKeys + 1, 5, "False"}, {10, 5, "True"}} {
		if err := s.writer.Trim(t.Context(), step.agents); err != nil {
			t.Fatal(err)
		}
		if keys, condition := left(); keys != step.keys || condition != step.condition {
			t.Errorf("%d agents: %d keys, condition %q; want %d, %q", step.agents, keys, condition, step.keys, step.condition)
		}
	}
}

// One patch has no room for so many.
func TestTrimInBatches(t *testing.T) {
	s := newReportScene(t)
	nodes := map[string]any{"failed": map[string]any{"status": NodeFailure}}
	for i := range MaxRemovalsLimit + 1 {
		nodes[fmt.Sprint("node-", i)] = map[string]any{"status": NodeSuccess}
	}
	s.server.SetStatus(t, SweepReports, "", s.name, map[string]any{"nodes": nodes})
	if err := s.writer.Trim(t.Context(), len(nodes)); err != nil {
		t.Fatal(err)
	}
	status, _ := s.server.Get(t, SweepReports, "", s.name).Object["status"].(map[string]any)
	if left, _ := status["nodes"].(map[string]any); len(left) != 1 || left["failed"] == nil {
		t.Errorf("%d keys are left", len(left))
	}
	if n := s.proxy.Counts()["PATCH sweepreports.unstale.dev/status"]; n != 3 { // and one for the condition
		t.Errorf("%d patches", n)
	}
}
