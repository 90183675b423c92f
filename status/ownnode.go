package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An OwnNode is what one GET said of the Node that an agent runs on. The zero value says that nobody asked.
type OwnNode struct {
	Existence Existence // Gone is the API server's own 404 for this Node
	Why       string    // for Unproved: what went wrong

	UID      string
	Created  time.Time // by the API server's clock
	Deleting bool      // it has a deletion timestamp
	Ready    Condition // the zero value where there is none

	// FirstWritten is the earliest time in the Node's conditions, by the clocks of those who write them; zero where there is none.
	// All of them write when the Node is there, so one before Created shows that a clock was behind.
	FirstWritten time.Time
	// ClockOff is how far this machine's clock was ahead of the API server's at the answer; valid if ClockKnown.
	ClockOff   time.Duration
	ClockKnown bool
}

// A Condition is the part of a Node's condition that decisions use.
type Condition struct{ Status, Reason, Message string }

// ReadOwnNode asks for the Node by a quorum read. What fails is in the answer.
func ReadOwnNode(ctx context.Context, client *Client, name string, now func() time.Time) OwnNode {
	var clock serverClock
	timed := *client
	timed.http = clock.listen(client.http, now)
	body, err := timed.bytes(ctx, request{
		verb: "get", resource: nodesResource, name: name, accept: acceptJSON,
		attempts: askAttempts, timeout: askTimeout, patience: askPatience, // an agent that stops has not much time
	})
	if err != nil {
		if saysGone(err, name) {
			return OwnNode{Existence: Gone}
		}
		return OwnNode{Existence: Unproved, Why: err.Error()}
	}
	n, err := parseOwnNode(body, name)
	if err != nil {
		return OwnNode{Existence: Unproved, Why: fmt.Sprintf("get nodes %s: %v", name, err)}
	}
	n.ClockOff, n.ClockKnown = clock.off, clock.known
	return n
}

// parseOwnNode reads the JSON of a Node. Any bytes may be passed.
func parseOwnNode(body []byte, name string) (OwnNode, error) {
	var node struct {
		Kind     string `json:"kind"`
		Metadata struct {
			Name              string       `json:"name"`
			UID               types.UID    `json:"uid"`
			CreationTimestamp metav1.Time  `json:"creationTimestamp"`
			DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
		} `json:"metadata"`
		Status struct {
			Conditions []corev1.NodeCondition `json:"conditions"`
		} `json:"status"`
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return OwnNode{}, fmt.Errorf("read the Node's JSON: %w", err)
	}
	m := node.Metadata
	if node.Kind != "Node" || m.Name != name || m.UID == "" || m.CreationTimestamp.IsZero() {
		return OwnNode{}, errors.New("the answer is not that Node")
	}
	n := OwnNode{Existence: Exists, UID: string(m.UID), Created: m.CreationTimestamp.Time, Deleting: m.DeletionTimestamp != nil}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Ready = Condition{Status: string(c.Status), Reason: c.Reason, Message: c.Message}
		}
		if at := c.LastTransitionTime.Time; !at.IsZero() && (n.FirstWritten.IsZero() || at.Before(n.FirstWritten)) {
			n.FirstWritten = at
		}
	}
	return n, nil
}

// A serverClock learns from an answer's Date how far this machine's clock is ahead of the API server's.
type serverClock struct {
	off   time.Duration
	known bool
}

// listen is the client with every answer's Date heard. The answers come one after another.
func (c *serverClock) listen(client *http.Client, now func() time.Time) *http.Client {
	through := client.Transport
	if through == nil {
		through = http.DefaultTransport
	}
	timed := *client
	timed.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
		asked := now()
		resp, err := through.RoundTrip(r)
		if err == nil {
			c.hear(resp.Header.Get("Date"), asked, now())
		}
		return resp, err
	})
	return &timed
}

func (c *serverClock) hear(date string, asked, answered time.Time) {
	at, err := http.ParseTime(date)
	if c.known = err == nil; c.known {
		c.off = asked.Add(answered.Sub(asked) / 2).Sub(at)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
