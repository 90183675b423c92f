package node

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A Moment is one thing that happened on a real node: something was done to it, the API server told of a pod, or the container runtime has other
// sandboxes than before. A recording is a file with one as JSON in each line.
type Moment struct {
	At        time.Duration `json:"at"`                  // since the recording began
	Did       string        `json:"did,omitempty"`       // what was done, for people
	Event     string        `json:"event,omitempty"`     // ADDED, MODIFIED or DELETED
	Pod       *corev1.Pod   `json:"pod,omitempty"`       // of the event
	Sandboxes *[]Sandbox    `json:"sandboxes,omitempty"` // all that live
}

// A Sandbox is one that the container runtime has.
type Sandbox struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	UID       string   `json:"uid"`
	Addresses []string `json:"addresses,omitempty"`
	Ready     bool     `json:"ready,omitempty"`
}

// ReadHistory reads a recording.
func ReadHistory(r io.Reader) ([]Moment, error) {
	var history []Moment
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m Moment
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return nil, fmt.Errorf("line %d: %w", len(history)+1, err)
		}
		history = append(history, m)
	}
	return history, lines.Err()
}
