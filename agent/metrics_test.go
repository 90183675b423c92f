package agent

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// scrape is what Prometheus reads.
func scrape(t *testing.T, m *metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("status %d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// samples are the lines of a scrape that begin so.
func samples(text, prefix string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, prefix) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func expectSamples(t *testing.T, m *metrics, prefix string, want ...string) {
	t.Helper()
	if got := samples(scrape(t, m), prefix); !slices.Equal(got, want) {
		t.Errorf("%s: got\n%s\nwant\n%s", prefix, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// passOver is the report of a pass that found some of everything.
func passOver(target string) *status.TargetReport {
	return &status.TargetReport{Target: target, State: status.OK, Resources: []status.ResourceReport{
		{Name: "one", Removed: 2, Findings: []status.Finding{
			{Key: "a", Verdict: status.Keep, Reason: status.MemberAlive},
			{Key: "b", Verdict: status.Keep, Reason: status.MemberAlive},
			{Key: "c", Verdict: status.Wait, Reason: status.Waiting},
			{Key: "d", Path: "status.a", Verdict: status.Remove, Reason: status.NodeGone, Removed: true},
			{Key: "d", Path: "status.b", Verdict: status.Remove, Reason: status.NodeGone, Removed: true},
		}},
		{Name: "two", Findings: []status.Finding{
			{Key: "e", Verdict: status.Remove, Reason: status.NodeGone}, // as with mode Report
			{Key: "f", Verdict: status.Wait, Reason: status.BatchFull},
		}},
	}}
}

var someStats = gossip.Stats{
	Members: 5, Sent: 1, Failed: 2, Received: 3, Unknown: 4, Invalid: 5, Refused: 6, Dropped: 7, Rejoins: 8, Health: 9,
	Problems: map[gossip.Problem]int64{gossip.WrongKey: 10, gossip.UDPBlocked: 0},
}

// TestMetrics holds the names, helps, types and labels that others read. go test ./agent -update writes the golden file.
func TestMetrics(t *testing.T) {
	m := newMetrics("v1.2.3")
	m.observe(func() gossip.Stats { return someStats })
	report := passOver("nri")
	m.swept(report, 30*time.Millisecond)
	m.holds("nri unit", report)
	m.swept(&status.TargetReport{Target: "nri", State: status.Unavailable}, time.Hour)
	m.reloaded(errors.New("bad"))
	m.generation(3)
	m.owns(2)
	m.able(true)
	m.lostKeys(4)
	text := scrape(t, m)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %+v, %v", problems, err)
	}
	var own strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "unstale_") {
			own.WriteString(line)
		}
	}
	checkGolden(t, "metrics.txt", own.String())
	for _, other := range []string{"go_goroutines ", "process_start_time_seconds "} {
		if len(samples(text, other)) != 1 {
			t.Errorf("no %s", other)
		}
	}
}

func TestMetricsAddUp(t *testing.T) {
	m := newMetrics("v1.2.3")
	m.swept(passOver("nri"), time.Second)
	m.swept(passOver("nri"), time.Second)
	expectSamples(t, m, "unstale_removed_entries_total", `unstale_removed_entries_total{target="nri"} 4`)
	expectSamples(t, m, "unstale_decisions_total",
		`unstale_decisions_total{reason="BatchFull",target="nri",verdict="Wait"} 2`,
		`unstale_decisions_total{reason="MemberAlive",target="nri",verdict="Keep"} 4`,
		`unstale_decisions_total{reason="NodeGone",target="nri",verdict="Remove"} 6`,
		`unstale_decisions_total{reason="Waiting",target="nri",verdict="Wait"} 2`)
	m.lostKeys(2)
	m.lostKeys(3)
	expectSamples(t, m, "unstale_lost_keys_total", "unstale_lost_keys_total 5")
	expectSamples(t, m, "unstale_able", "unstale_able 0")
	m.able(true)
	expectSamples(t, m, "unstale_able", "unstale_able 1")
	m.able(false)
	expectSamples(t, m, "unstale_able", "unstale_able 0")
	expectSamples(t, m, "unstale_config_reloads_total",
		`unstale_config_reloads_total{result="failure"} 0`, `unstale_config_reloads_total{result="success"} 0`)
	m.reloaded(nil)
	expectSamples(t, m, "unstale_config_reloads_total",
		`unstale_config_reloads_total{result="failure"} 0`, `unstale_config_reloads_total{result="success"} 1`)
}

// A target's gauges are about what this agent owns now.
func TestGaugesOfATargetWithSeveralUnits(t *testing.T) {
	m := newMetrics("v1.2.3")
	gauges := func(keys, candidates string) {
		t.Helper()
		expectSamples(t, m, "unstale_keys", `unstale_keys{target="nri"} `+keys)
		expectSamples(t, m, "unstale_candidates", `unstale_candidates{target="nri"} `+candidates)
	}
	few := &status.TargetReport{Target: "nri", Resources: []status.ResourceReport{{Findings: []status.Finding{{Key: "a", Verdict: status.Keep}}}}}
	m.holds("unit 1", passOver("nri"))
	gauges("5", "3")
	m.holds("unit 1", passOver("nri"))
	gauges("5", "3")
	m.holds("unit 2", few)
	gauges("6", "3")
	m.holds("unit 3", &status.TargetReport{Target: "nri"})
	gauges("6", "3")
	m.released("unit 1")
	gauges("1", "0")
	m.released("unit 1")
	m.released("unit 3")
	gauges("1", "0")
	m.released("unit 2")
	expectSamples(t, m, "unstale_keys")
	expectSamples(t, m, "unstale_candidates")
}

func TestMetricsForgetATarget(t *testing.T) {
	m := newMetrics("v1.2.3")
	m.holds("nri unit", passOver("nri"))
	m.holds("nfd unit", passOver("nfd"))
	m.swept(passOver("nri"), time.Second)
	m.swept(passOver("nfd"), time.Second)
	m.forget("nri")
	text := scrape(t, m)
	if strings.Contains(text, `target="nri"`) {
		t.Errorf("still there:\n%s", text)
	}
	for _, name := range []string{"unstale_sweeps_total", "unstale_sweep_duration_seconds", "unstale_decisions_total", "unstale_removed_entries_total", "unstale_keys", "unstale_candidates"} {
		if len(samples(text, name)) == 0 {
			t.Errorf("%s of another target is gone", name)
		}
	}
	m.released("nri unit") // comes later and brings nothing back
	expectSamples(t, m, "unstale_keys", `unstale_keys{target="nfd"} 5`)
}
