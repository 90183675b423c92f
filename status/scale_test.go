package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/unstale/unstale/test/apiserver"
)

// keysOf is a status with the keys of the nodes KEEP0… and of orphans gone-0….
func keysOf(nodes, orphans int) string {
	var b strings.Builder
	for i := range nodes {
		fmt.Fprintf(&b, "KEEP%d: {status: Success, generation: 3, errors: '', timestamp: '2026-07-01T12:00:00Z'}, ", i)
	}
	for i := range orphans {
		fmt.Fprintf(&b, "gone-%d: {status: Success, generation: 3, errors: '', timestamp: '2026-07-01T12:00:00Z'}, ", i)
	}
	return "{nodes: {" + b.String() + "}}"
}

// 135 keys for 126 nodes, as was reported of nri-plugins (#718): the 9 go.
func Test135KeysFor126Nodes(t *testing.T) {
	s := newScene(t, 126, `{nodes: {}}`, paths("status.nodes")...)
	s.mergeKeys(keysOf(126, 9))
	report := s.sweep()
	s.state(report, OK)
	if report.Removed() != 9 || report.Count(Keep) != 126 {
		t.Errorf("%d removed, %d kept; want 9 and 126", report.Removed(), report.Count(Keep))
	}
	if left := strings.Count(s.left(), `"Success"`); left != 126 {
		t.Errorf("%d keys left, want 126", left)
	}
}

// 6,000 keys, 3,000 of them orphans, while an agent that lives rewrites its entry before each write.
func Test6000KeysWith3000Orphans(t *testing.T) {
	s := newScene(t, 3000, `{nodes: {}}`, paths("status.nodes")...)
	s.mergeKeys(keysOf(3000, 3000))
	s.target.MaxRemovals = 1000
	s.target.Names = []string{s.name}
	s.restart()
	s.sweeper.client.limiter = flowcontrol.NewFakeAlwaysRateLimiter()
	write := "PATCH widgets." + s.target.Resource.Group + "/status"
	writes := 0
	s.proxy.SetFault(apiserver.On(write, &apiserver.Fault{Before: func(*http.Request) {
		writes++
		s.merge(fmt.Sprintf(`{"status":{"nodes":{%q:{"generation":%d}}}}`, s.existing[0], 100+writes))
	}}))
	s.proxy.Reset()
	report := s.sweep()
	s.state(report, OK)
	if report.Removed() != 3000 || report.Count(Keep) != 3000 {
		t.Errorf("%d removed, %d kept; want 3,000 each", report.Removed(), report.Count(Keep))
	}
	left := s.left()
	if strings.Contains(left, "gone-") || strings.Count(left, `"Success"`) != 3000 {
		t.Errorf("%d keys left, want 3,000 and no orphan", strings.Count(left, `"Success"`))
	}
	if !strings.Contains(left, `"generation":103`) {
		t.Error("a living agent's writes were undone")
	}
	counts := s.proxy.Counts()
	if proofs := 3000 / confirmChunk; counts[write] != 3 || counts["GET nodes"] != 3000+proofs {
		t.Errorf("requests: %v; want 3 writes, and a request for each orphan and %d proofs", counts, proofs)
	}
}

// mergeKeys writes keys given in YAML's flow style into the status.
func (s *scene) mergeKeys(text string) {
	s.Helper()
	s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name)
	s.create(text)
	s.restart()
}
