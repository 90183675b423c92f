package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"
)

// debugAPIVersion stands in each debug answer. Its JSON is stable.
const debugAPIVersion = "unstale.dev/debug/v1"

// A debugList is a debug answer with items.
type debugList[T any] struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Node       string    `json:"node"`
	Time       time.Time `json:"time"`
	Items      []T       `json:"items"`
}

// A Condition is one of those that must hold for the agent to be ready.
type Condition struct {
	Name    string
	OK      bool
	Message string // why it is not, or what to know though it is
}

// newDebugHandler serves /healthz, /readyz, /debug/decisions and, with profiling, /debug/pprof.
func newDebugHandler(node string, conditions func() []Condition, d *decisions, profiling bool) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", serveHealth)
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
		ready, text := readiness(conditions(), r.URL.Query().Has("verbose"))
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, text)
	})
	mux.HandleFunc("/debug/decisions", func(w http.ResponseWriter, r *http.Request) {
		filter, err := parseDecisionFilter(r.URL.RawQuery)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		// An error here is a client that went away.
		_ = encoder.Encode(debugList[Decision]{APIVersion: debugAPIVersion, Kind: "Decisions", Node: node, Time: time.Now().UTC(), Items: d.find(filter)})
	})
	if profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// newMetricsHandler serves /metrics and /healthz.
func newMetricsHandler(m *metrics) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/metrics", m.handler())
	mux.HandleFunc("/healthz", serveHealth)
	return mux
}

// serveHealth says that the process runs. That it answers is all there is to say: an agent that cannot work waits until it can, and
// a restart would help nobody.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	fmt.Fprintln(w, "ok")
}

// readiness tells whether all conditions hold, with a line for each that does not, or (verbose) for each.
func readiness(conditions []Condition, verbose bool) (bool, string) {
	ready := true
	var text strings.Builder
	for _, c := range conditions {
		ready = ready && c.OK
		mark, what := "+", c.Message
		if !c.OK {
			mark = "-"
		} else if what == "" {
			what = "ok"
		}
		if verbose {
			fmt.Fprintf(&text, "[%s] %s: %s\n", mark, c.Name, what)
		} else if !c.OK {
			fmt.Fprintf(&text, "%s: %s\n", c.Name, what)
		}
	}
	switch {
	case ready:
		text.WriteString("ready\n")
	case verbose:
		text.WriteString("not ready\n")
	}
	return ready, text.String()
}
