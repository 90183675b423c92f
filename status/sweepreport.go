package status

import (
	"strings"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SweepReports is the resource in which agents publish what they do; deploy/crds defines it.
var SweepReports = schema.GroupVersionResource{Group: "unstale.dev", Version: "v1alpha1", Resource: "sweepreports"}

// ReportNodes is where the agents' own keys stand in a SweepReport.
var ReportNodes = KeyPath{Path: FieldPath{"status", "nodes"}}

const (
	// MaxNodeKeys is how many agents' keys a SweepReport holds; where there are more agents only those that failed keep theirs. At about 250
	// bytes each, that is 1 MB of the 1.5 MiB that etcd takes.
	MaxNodeKeys = 4000
	// maxNodeErrors is how long an entry's errors are at most, in bytes.
	maxNodeErrors = 200
)

// A NodeEntry is what an agent publishes of itself.
type NodeEntry struct {
	Status     string      `json:"status"`     // Success or Failure
	Generation int64       `json:"generation"` // how many configurations this process applied
	Config     string      `json:"config"`     // the hash of the one in use
	Errors     string      `json:"errors"`     // why a newer one is not in use; empty on success
	Timestamp  metav1.Time `json:"timestamp"`  // when it was applied or refused
	NodeUID    string      `json:"nodeUID,omitempty"`
}

// The states of a NodeEntry.
const (
	NodeSuccess = "Success"
	NodeFailure = "Failure"
)

// NewNodeEntry makes an entry; failure is why a newer configuration is not in use, nil if none is newer.
func NewNodeEntry(failure error, generation int64, config string, at time.Time, nodeUID string) NodeEntry {
	e := NodeEntry{Status: NodeSuccess, Generation: generation, Config: config, Timestamp: metav1.NewTime(at.UTC()), NodeUID: nodeUID}
	if failure != nil {
		e.Status, e.Errors = NodeFailure, cut(failure.Error(), maxNodeErrors)
	}
	return e
}

// cut shortens a text to so many bytes, whole characters only.
func cut(text string, limit int) string {
	text = strings.ToValidUTF8(text, "�")
	if len(text) <= limit {
		return text
	}
	const more = "…"
	end := limit - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + more
}

// A TargetStatus is what a SweepReport says of a target, or of one of its resources.
type TargetStatus struct {
	State      State       `json:"state"`
	Owner      string      `json:"owner"`      // the member that looked last; empty for a target whose resources have owners of their own
	Keys       int64       `json:"keys"`       // entries that are there
	Candidates int64       `json:"candidates"` // of these, those that wait, or would be removed but for mode: Report
	Removed    int64       `json:"removed"`    // all told
	Held       int64       `json:"held"`       // entries that stay because no key of the target belongs to an existing node, or no pod that they live with is anywhere
	Message    string      `json:"message"`
	LastSweep  metav1.Time `json:"lastSweep"`
}

// maxTargetMessage is how long a target's message is at most, in bytes.
const maxTargetMessage = 1000

// Summary is what a pass found, in a SweepReport's words; Removed is what this pass removed.
func Summary(report *TargetReport, owner string, at time.Time) TargetStatus {
	s := TargetStatus{State: report.State, Owner: owner, Message: cut(report.Message, maxTargetMessage), LastSweep: metav1.NewTime(at.UTC())}
	for _, r := range report.Resources {
		s.Removed += int64(r.Removed)
		for _, f := range r.Findings {
			if f.Removed {
				continue
			}
			s.Keys++
			if f.Verdict != Keep {
				s.Candidates++
			}
			if f.Reason == Held || f.Reason == SelectorMatchesNothing {
				s.Held++
			}
		}
	}
	return s
}

// sameBut tells whether nothing but the time of the last sweep differs.
func (s TargetStatus) sameBut(other TargetStatus) bool {
	s.LastSweep = other.LastSweep
	return s == other
}

// sum is the status of a target whose resources have owners of their own: the worst state with its messages, and the added counts.
func sum(resources map[string]TargetStatus) TargetStatus {
	var all TargetReport
	all.State = OK
	s := TargetStatus{}
	for _, name := range sortedKeys(resources) {
		r := resources[name]
		all.worsen(r.State, r.Message)
		s.Keys += r.Keys
		s.Candidates += r.Candidates
		s.Removed += r.Removed
		s.Held += r.Held
		if r.LastSweep.After(s.LastSweep.Time) {
			s.LastSweep = r.LastSweep
		}
	}
	s.State, s.Message = all.State, cut(all.Message, maxTargetMessage)
	return s
}
