package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var nodesResource = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

const (
	// confirmParallel is how many Nodes are asked for at once.
	confirmParallel = 8
	// maxFailures is how many Nodes may fail to answer in one go before the others are not asked for: one that cannot be
	// read must not keep all others from being cleaned, and a server that hangs must not be asked 500 times.
	maxFailures = confirmParallel
	// What asking for one Node may take: two attempts, and a pause between them. Who asks is about to act on the answers, and
	// those of other Nodes grow old meanwhile.
	askAttempts = 2
	askTimeout  = 1500 * time.Millisecond
	askPatience = 500 * time.Millisecond
	// proofTries is how many Nodes known to exist are asked for until one answers.
	proofTries = 3
	// leftDoubt is how long after a member left the existence of its Node says nothing of the time to come: machines die first, and
	// controllers delete their Nodes minutes later.
	leftDoubt = 10 * time.Minute
	// ListFresh is how long a list answers for the Nodes in it.
	ListFresh = time.Minute
)

// Nodes knows which Nodes exist, as far as the API server was asked. It is safe for concurrent use.
type Nodes struct {
	client *Client
	// Now stands for the clock; it may be replaced before the first use.
	Now func() time.Time
	// Likely names Nodes that probably exist, the likeliest first: they are asked for where none is known to. It may be set before the first use.
	Likely func() []string

	mu       sync.Mutex
	listedAt time.Time             // when the last complete list began; guarded by mu
	left     map[string]time.Time  // when a member of that name left or died, if no list was begun leftDoubt later; guarded by mu
	listed   map[string]time.Time  // when the last list with it began, or it was asked for since; not from before it left; guarded by mu
	gone     map[string]bool       // proved to be gone and not seen since; guarded by mu
	seen     map[string]bool       // ever listed or read by this process; guarded by mu
	recent   map[string]NodeAnswer // the last proven answers; guarded by mu
}

// NewNodes makes a Nodes that knows none yet.
func NewNodes(client *Client) *Nodes {
	return &Nodes{
		client: client, Now: time.Now,
		left: map[string]time.Time{}, listed: map[string]time.Time{}, gone: map[string]bool{}, seen: map[string]bool{}, recent: map[string]NodeAnswer{},
	}
}

// List reads the names of all Nodes, paged and as metadata only. On an error what was known stays.
func (n *Nodes) List(ctx context.Context) error {
	begun := n.Now()
	objects, err := n.client.list(ctx, nodesResource, "")
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listedAt = begun
	n.listed = make(map[string]time.Time, len(objects))
	clear(n.recent)
	clear(n.gone)
	for _, o := range objects {
		n.seen[o.Name] = true
		if !n.left[o.Name].After(begun) {
			n.listed[o.Name] = begun
		}
	}
	maps.DeleteFunc(n.left, func(_ string, at time.Time) bool { return begun.Sub(at) >= leftDoubt })
	return nil
}

// ListedAt is when the last complete list of Nodes began; zero before the first.
func (n *Nodes) ListedAt() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.listedAt
}

// Left tells that a member of that name left or died. That its Node was there before then counts no more, and that it is there soon
// afterwards does not mean that it stays: until a list that begins leftDoubt later has it, it wants to be asked for again and again.
func (n *Nodes) Left(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.left[name] = n.Now()
	delete(n.listed, name)
	delete(n.recent, name)
}

// Known is what is known of a name without a request.
func (n *Nodes) Known(name string) Knowledge {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, listed := n.listed[name]
	_, left := n.left[name]
	return Knowledge{Listed: listed && !left, NodeGone: n.gone[name], Left: n.left[name], Seen: n.seen[name]}
}

// Confirm asks for each of the Nodes now, a quorum read of its metadata, and afterwards for a Node that is known to exist:
// only if that one could be read does a 404 prove anything. What was proved less than fresh ago is not asked for again, so
// that many resources with keys of the same Nodes cost as many requests as one.
func (n *Nodes) Confirm(ctx context.Context, names []string, fresh time.Duration) map[string]NodeAnswer {
	known, unknown := n.recentAnswers(names, fresh)
	if len(unknown) == 0 {
		return known
	}
	answers := askEach(unknown, func(name string) NodeAnswer { return n.ask(ctx, name) })

	proof := n.prove(ctx, answers)
	for name, answer := range answers {
		if answer.Existence == Gone && proof != nil {
			answers[name] = NodeAnswer{Existence: Unproved, Why: "the answer was 404, but " + proof.Error()}
		}
	}
	n.learn(answers)
	maps.Copy(answers, known)
	return answers
}

// recentAnswers are the answers that are young enough, and the names that have none.
func (n *Nodes) recentAnswers(names []string, fresh time.Duration) (known map[string]NodeAnswer, unknown []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	known = map[string]NodeAnswer{}
	now := n.Now()
	for _, name := range names {
		listed, there := n.listed[name]
		if answer, ok := n.recent[name]; ok && now.Sub(answer.At) < fresh {
			known[name] = answer
		} else if there && listed.Equal(n.listedAt) && !n.left[name].IsZero() && now.Sub(listed) < ListFresh {
			known[name] = NodeAnswer{Existence: Exists, At: listed} // where many left at once a list was made on their account
		} else {
			unknown = append(unknown, name)
		}
	}
	return known, unknown
}

// askEach asks for each of the nodes, several at once, and gives up where many fail.
func askEach(names []string, ask func(name string) NodeAnswer) map[string]NodeAnswer {
	var (
		mu       sync.Mutex
		answers  = make(map[string]NodeAnswer, len(names)) // guarded by mu
		failures int                                       // guarded by mu
		asking   sync.WaitGroup
		seats    = make(chan struct{}, confirmParallel)
	)
	for _, name := range names {
		seats <- struct{}{}
		asking.Go(func() {
			defer func() { <-seats }()
			mu.Lock()
			giveUp := failures >= maxFailures
			mu.Unlock()
			answer := NodeAnswer{Existence: Unproved, Why: notAskedFor}
			if !giveUp {
				answer = ask(name)
			}
			mu.Lock()
			defer mu.Unlock()
			answers[name] = answer
			if answer.Existence == Unproved {
				failures++
			}
		})
	}
	asking.Wait()
	return answers
}

// notAskedFor is why a Node is unproved that nobody asked for.
const notAskedFor = "not asked for, because asking for other Nodes failed"

// ask tells what the API server says of one Node. Gone here is a 404 that still wants its proof.
func (n *Nodes) ask(ctx context.Context, name string) NodeAnswer {
	at := n.Now() // before the request: the answer is at least as old
	body, err := n.client.bytes(ctx, request{
		verb: "get", resource: nodesResource, name: name, accept: acceptMetadata,
		attempts: askAttempts, timeout: askTimeout, patience: askPatience,
	})
	if err != nil {
		if saysGone(err, name) {
			return NodeAnswer{Existence: Gone, At: at}
		}
		return NodeAnswer{Existence: Unproved, Why: err.Error()}
	}
	var node struct {
		Kind     string     `json:"kind"`
		Metadata objectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &node); err != nil || node.Kind != "PartialObjectMetadata" ||
		node.Metadata.Name != name || node.Metadata.UID == "" {
		return NodeAnswer{Existence: Unproved, Why: fmt.Sprintf("get nodes %s: the answer is not that Node's metadata", name)}
	}
	return NodeAnswer{Existence: Exists, At: at}
}

// saysGone tells whether err is the API server's own 404 for the Node of that name: a proxy's, an aggregated server's or
// one for another path does not name it so.
func saysGone(err error, name string) bool {
	var failure *RequestError
	if !errors.As(err, &failure) || failure.Code != http.StatusNotFound || failure.Status == nil {
		return false
	}
	s := failure.Status
	return s.Reason == metav1.StatusReasonNotFound && s.Details != nil &&
		s.Details.Group == "" && s.Details.Kind == "nodes" && s.Details.Name == name
}

// prove reads a Node that is known to exist and is none of those just asked for. A nil error is the proof that this API server
// answers for Nodes; none is needed, and none is asked for, when nothing is said to be gone.
func (n *Nodes) prove(ctx context.Context, answers map[string]NodeAnswer) error {
	needed := false
	for _, answer := range answers {
		if answer.Existence == Exists {
			return nil // one of those asked for is proof enough
		}
		needed = needed || answer.Existence == Gone
	}
	if !needed {
		return nil
	}
	var last NodeAnswer
	tried := 0
	for _, name := range n.known(answers, proofTries) {
		tried++
		if last = n.ask(ctx, name); last.Existence == Exists {
			n.learn(map[string]NodeAnswer{name: last})
			return nil
		}
		if last.Existence == Gone {
			last.Why = fmt.Sprintf("get nodes %s: not found", name)
		}
	}
	if tried == 0 {
		return errors.New("no Node is known to exist, so nothing shows that this API server holds this cluster's Nodes")
	}
	return fmt.Errorf("a Node known to exist cannot be read either: %s", last.Why)
}

// known returns up to limit names of Nodes known or likely to exist, none of which is in but.
func (n *Nodes) known(but map[string]NodeAnswer, limit int) []string {
	var names []string
	add := func(name string) (full bool) {
		if _, excluded := but[name]; !excluded {
			names = append(names, name)
		}
		return len(names) == limit
	}
	n.mu.Lock()
	for name := range n.listed { // in no order, so that not always the same one is asked for
		if add(name) {
			break
		}
	}
	n.mu.Unlock()
	if n.Likely != nil {
		for _, name := range n.Likely() {
			if len(names) == limit || !slices.Contains(names, name) && add(name) {
				break
			}
		}
	}
	return names
}

func (n *Nodes) learn(answers map[string]NodeAnswer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, answer := range answers {
		delete(n.recent, name)
		if answer.Existence == Gone || answer.Existence == Exists && answer.At.After(n.left[name]) {
			n.recent[name] = answer
		}
		switch answer.Existence {
		case Exists:
			n.seen[name] = true
			delete(n.gone, name)
			if answer.At.After(n.left[name]) {
				n.listed[name] = answer.At
			}
		case Gone:
			n.gone[name] = true
			delete(n.listed, name)
		}
	}
}
