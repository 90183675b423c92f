package agent

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/unstale/unstale/status"
)

// maxDecisions is how many decisions are remembered. A thousand take less than 1 MB.
const maxDecisions = 1000

// A Decision is what was decided on one key of one shared resource, and when. Its JSON is stable.
type Decision struct {
	Time      time.Time `json:"time"`
	Target    string    `json:"target"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	status.Finding
}

// decisions remember the latest ones. They are safe for concurrent use.
type decisions struct {
	node string

	mu   sync.Mutex
	ring []Decision // guarded by mu; grows to maxDecisions, then the oldest is replaced
	next int        // where the next one goes once the ring is full; guarded by mu
}

// newDecisions remembers none yet. node is the agent's own.
func newDecisions(node string) *decisions { return &decisions{node: node} }

// add remembers what was decided now on keys of one shared resource.
func (d *decisions) add(now time.Time, target, namespace, name string, findings []status.Finding) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, f := range findings {
		decision := Decision{Time: now.UTC(), Target: target, Namespace: namespace, Name: name, Finding: f}
		if len(d.ring) < maxDecisions {
			d.ring = append(d.ring, decision)
			continue
		}
		d.ring[d.next] = decision
		d.next = (d.next + 1) % maxDecisions
	}
}

// find returns the decisions that the filter wants, the newest first; never nil, so that its JSON is a list.
func (d *decisions) find(filter decisionFilter) []Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := []Decision{}
	for i := len(d.ring) - 1; i >= 0 && len(found) < filter.limit; i-- {
		decision := d.ring[(d.next+i)%len(d.ring)]
		if filter.wants(&decision) {
			found = append(found, decision)
		}
	}
	return found
}

// A decisionFilter says which decisions are wanted. What is empty lets all through.
type decisionFilter struct {
	target, key, reason string
	limit               int // at least 1
}

func (f *decisionFilter) wants(d *Decision) bool {
	return (f.target == "" || f.target == d.Target) && (f.key == "" || f.key == d.Key) && (f.reason == "" || f.reason == string(d.Reason))
}

// decisionQuery are the parameters of /debug/decisions.
var decisionQuery = []string{"target", "key", "reason", "limit"}

// parseDecisionFilter reads the query of a request. Whoever mistypes a parameter must not read an unfiltered list as a filtered one.
func parseDecisionFilter(query string) (decisionFilter, error) {
	filter := decisionFilter{limit: maxDecisions}
	values, err := url.ParseQuery(query)
	if err != nil {
		return filter, errors.New("the query cannot be read; it must look like ?target=NAME&limit=20")
	}
	for name, given := range values {
		switch {
		case !slices.Contains(decisionQuery, name):
			return filter, fmt.Errorf("unknown parameter %.100q; allowed are %s", name, strings.Join(decisionQuery, ", "))
		case len(given) > 1:
			return filter, fmt.Errorf("parameter %s is given %d times; give it once", name, len(given))
		}
	}
	filter.target, filter.key, filter.reason = values.Get("target"), values.Get("key"), values.Get("reason")
	if values.Has("limit") {
		limit, err := strconv.Atoi(values.Get("limit"))
		if err != nil || limit < 1 || limit > maxDecisions {
			return filter, fmt.Errorf("limit must be a number from 1 to %d, got %.100q", maxDecisions, values.Get("limit"))
		}
		filter.limit = limit
	}
	return filter, nil
}
