package agent

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// maxScrapes is how many requests for metrics are answered at once; others are told to come again.
const maxScrapes = 4

// sweepBuckets are in seconds. A pass in which nothing is removed takes milliseconds; between two batches lie ten seconds.
var sweepBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

// metrics are the agent's own, in a registry of their own. No label has a node's, key's or pod's name: a series lives as long as
// Prometheus keeps it. All methods are safe for concurrent use.
type metrics struct {
	registry *prometheus.Registry

	sweeps      *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	decided     *prometheus.CounterVec
	removed     *prometheus.CounterVec
	keys        *prometheus.GaugeVec
	candidates  *prometheus.GaugeVec
	reloads     *prometheus.CounterVec
	generations prometheus.Gauge
	ownedUnits  prometheus.Gauge
	ability     prometheus.Gauge
	lost        prometheus.Counter
	podUpdates  *prometheus.CounterVec
	recoveries  *prometheus.CounterVec

	mu    sync.Mutex
	units map[string]unitCounts // of the units that this agent owns, by their id; guarded by mu
}

// unitCounts are what the last pass over a unit found.
type unitCounts struct {
	target           string
	keys, candidates int
}

// newMetrics makes them. version is this program's.
func newMetrics(version string) *metrics {
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		units:    map[string]unitCounts{},

		sweeps: counters("unstale_sweeps_total", "Passes of this agent over the resources that it owns, by the state that they ended in.", "target", "state"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "unstale_sweep_duration_seconds", Help: "How long passes took, with the pauses between batches.", Buckets: sweepBuckets,
		}, []string{"target"}),
		decided: counters("unstale_decisions_total", "Verdicts on keys; each pass gives one for each key and place.", "target", "verdict", "reason"),
		removed: counters("unstale_removed_entries_total", "Entries that this agent removed from shared resources.", "target"),
		keys:    gauges("unstale_keys", "Keys in the resources that this agent owns, at the last pass over each, by place.", "target"),
		candidates: gauges("unstale_candidates",
			"Keys in the resources that this agent owns whose verdict was Wait or Remove at the last pass, and that are still there.", "target"),
		reloads:     counters("unstale_config_reloads_total", "Changes of the configuration file, by whether they were taken.", "result"),
		generations: gauge("unstale_config_generation", "How many configurations this process has applied."),
		ownedUnits:  gauge("unstale_owned_resources", "Shared resources, and lists of them, that this agent keeps clean."),
		ability:     gauge("unstale_able", "Whether this agent can do an owner's work (1) or not (0)."),
		lost: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "unstale_lost_keys_total", Help: "Keys of live agents that were gone from the SweepReport and did not come back when asked for: somebody else removes them, or there is a defect.",
		}),
	}
	m.recoveries = counters("unstale_node_recovery_actions_total", "Nodes that this agent tainted, untainted or deleted.", "action")
	m.podUpdates = counters("unstale_pod_updates_total",
		"Updates of this node's pods, by whether they can change who has which address, and whether they show one.", "relevant", "address")
	build := gauges("unstale_build_info", "Always 1; the label tells this program's version.", "version")
	build.WithLabelValues(version).Set(1)
	// Both results are there from the start, so that the first failure is seen as an increase.
	m.reloads.WithLabelValues("success")
	m.reloads.WithLabelValues("failure")
	m.registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build,
		m.sweeps, m.durations, m.decided, m.removed, m.keys, m.candidates, m.reloads, m.generations, m.ownedUnits, m.ability, m.lost, m.podUpdates, m.recoveries,
	)
	return m
}

// handler answers Prometheus.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes})
}

// swept counts one pass: what it decided, what it removed, and how long it took.
func (m *metrics) swept(report *status.TargetReport, took time.Duration) {
	target := report.Target
	m.sweeps.WithLabelValues(target, string(report.State)).Inc()
	m.durations.WithLabelValues(target).Observe(took.Seconds())
	m.removed.WithLabelValues(target).Add(float64(report.Removed()))
	type row struct {
		verdict status.Verdict
		reason  status.Reason
	}
	rows := map[row]int{}
	for _, r := range report.Resources {
		for _, f := range r.Findings {
			rows[row{f.Verdict, f.Reason}]++
		}
	}
	for r, n := range rows {
		m.decided.WithLabelValues(target, string(r.verdict), string(r.reason)).Add(float64(n))
	}
}

// holds says what the last pass over a unit found in it. A target's gauges are the sums over its units that this agent owns.
func (m *metrics) holds(unit string, report *status.TargetReport) {
	found := status.Summary(report, "", time.Time{})
	counts := unitCounts{target: report.Target, keys: int(found.Keys), candidates: int(found.Candidates)}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.units[unit] = counts
	m.sum(counts.target)
}

// released says that this agent no longer owns a unit.
func (m *metrics) released(unit string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if counts, ok := m.units[unit]; ok {
		delete(m.units, unit)
		m.sum(counts.target)
	}
}

// sum brings a target's gauges up to date; those of a target without units go, so that nobody adds up what nobody keeps clean. mu is held.
func (m *metrics) sum(target string) {
	keys, candidates, units := 0, 0, 0
	for _, counts := range m.units {
		if counts.target == target {
			keys, candidates, units = keys+counts.keys, candidates+counts.candidates, units+1
		}
	}
	if units == 0 {
		m.keys.DeleteLabelValues(target)
		m.candidates.DeleteLabelValues(target)
		return
	}
	m.keys.WithLabelValues(target).Set(float64(keys))
	m.candidates.WithLabelValues(target).Set(float64(candidates))
}

// forget drops all series of a target that is no longer configured.
func (m *metrics) forget(target string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for unit, counts := range m.units {
		if counts.target == target {
			delete(m.units, unit)
		}
	}
	labels := prometheus.Labels{"target": target}
	for _, vec := range []interface {
		DeletePartialMatch(prometheus.Labels) int
	}{m.sweeps, m.durations, m.decided, m.removed, m.keys, m.candidates} {
		vec.DeletePartialMatch(labels)
	}
}

// reloaded counts a change of the configuration file, err is why it was not taken.
func (m *metrics) reloaded(err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.reloads.WithLabelValues(result).Inc()
}

// generation says how many configurations this process has applied.
func (m *metrics) generation(n int64) { m.generations.Set(float64(n)) }

// owns says how many units this agent owns.
func (m *metrics) owns(units int) { m.ownedUnits.Set(float64(units)) }

// able says whether this agent can do an owner's work.
func (m *metrics) able(able bool) {
	if able {
		m.ability.Set(1)
	} else {
		m.ability.Set(0)
	}
}

// lostKeys counts keys of live agents that were gone from the SweepReport.
func (m *metrics) lostKeys(n int) { m.lost.Add(float64(n)) }

// recovered counts what was done to a Node that stayed Unknown, or did.
func (m *metrics) recovered(verdict string) { m.recoveries.WithLabelValues(verdict).Inc() }

// observe adds what gossip counts. It may be called once, when stats may be.
func (m *metrics) observe(stats func() gossip.Stats) {
	m.registry.MustRegister(newGossipCollector(stats))
}

// podUpdate counts an update of a pod of this node.
func (m *metrics) podUpdate(relevant, withoutAddress bool) {
	address := "present"
	if withoutAddress {
		address = "empty"
	}
	m.podUpdates.WithLabelValues(strconv.FormatBool(relevant), address).Inc()
}
