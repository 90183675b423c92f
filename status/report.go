package status

import (
	"fmt"
	"iter"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A State says how a target fares.
type State string

// The states of a target. Each comes with a message unless it is OK.
const (
	OK           State = "OK"
	NotInstalled State = "NotInstalled" // the API server does not serve the resource; it may come later
	Forbidden    State = "Forbidden"    // the API server's authorization or admission refuses it
	Unavailable  State = "Unavailable"  // the API server does not answer, or answers with an error
	StateHeld    State = "Held"         // nothing is removed, because no key belongs to an existing node
	Invalid      State = "Invalid"      // the resource does not look as the configuration says
)

// severity orders the states, so that of several resources' states the target shows the worst.
var severity = map[State]int{OK: 0, NotInstalled: 1, StateHeld: 2, Invalid: 3, Unavailable: 4, Forbidden: 5}

// Failed tells whether something must be mended before the target can be kept clean.
func (s State) Failed() bool { return s == Forbidden || s == Unavailable || s == Invalid }

// A TargetReport is what one pass over a target found. Its JSON is stable.
type TargetReport struct {
	Target    string           `json:"target"`
	Kind      string           `json:"kind"` // statusKeys, nodeObjects, kernel, nodeRecovery
	State     State            `json:"state"`
	Message   string           `json:"message"`
	Resources []ResourceReport `json:"resources"`
	// FromMemory tells that the pass needed no request: nothing was in doubt.
	FromMemory bool `json:"-"`

	messages int // how many the message is made of
}

// maxMessages is how many causes a target's message names; a hundred resources mostly fail for one.
const maxMessages = 3

// A ResourceReport is what one pass found in one shared resource.
type ResourceReport struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Entries   int       `json:"entries"`           // of all places together, before the pass
	Removed   int       `json:"removed,omitempty"` // entries that this pass removed
	Findings  []Finding `json:"findings"`

	// What identifies the object to others, for events.
	Type metav1.TypeMeta `json:"-"`
	UID  string          `json:"-"`
}

// A Finding is the verdict on one key at one place.
type Finding struct {
	Key     string    `json:"key"`
	Path    string    `json:"path"`
	Verdict Verdict   `json:"verdict"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`    // when the key became a candidate; absent where it is none
	Removed bool      `json:"removed,omitempty"` // this pass removed it
	// Of Nodes only: when what it waits for is over, and that this pass did what the verdict says.
	NotBefore time.Time `json:"notBefore,omitzero"`
	Done      bool      `json:"done,omitempty"`
}

// worsen sets the state if the new one is worse, and adds the message in any case.
func (t *TargetReport) worsen(state State, message string) {
	if severity[state] > severity[t.State] {
		t.State = state
	}
	if message == "" || strings.Contains(t.Message, message) {
		return
	}
	switch t.messages++; {
	case t.messages == 1:
		t.Message = message
	case t.messages <= maxMessages:
		t.Message += "; " + message
	default:
		t.Message, _, _ = strings.Cut(t.Message, "; and ")
		t.Message += fmt.Sprintf("; and %d more", t.messages-maxMessages)
	}
}

// Count is how many findings have that verdict.
func (t *TargetReport) Count(verdict Verdict) int {
	n := 0
	for f := range t.All() {
		if f.Verdict == verdict {
			n++
		}
	}
	return n
}

// All are the findings of all resources.
func (t *TargetReport) All() iter.Seq[Finding] {
	return func(yield func(Finding) bool) {
		for _, r := range t.Resources {
			for _, f := range r.Findings {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// Waiting are the keys whose verdict is Wait.
func (t *TargetReport) Waiting() []string {
	var keys []string
	for f := range t.All() {
		if f.Verdict == Wait {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

// Removed is how many entries the pass removed.
func (t *TargetReport) Removed() int {
	n := 0
	for _, r := range t.Resources {
		n += r.Removed
	}
	return n
}
