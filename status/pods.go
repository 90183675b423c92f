package status

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// A PodSelector says which pods' life the keys or objects of a target share.
type PodSelector struct {
	Namespace string // empty: all
	Labels    string // a label selector
	// OrMember: a live member of the node's name speaks for it as well. Then pods are asked for only where there is none, and never listed.
	OrMember bool
}

var podsResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// unfinished selects pods that have not ended: those that have keep nothing alive.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// podEvidence knows on which nodes pods of a selector are, as far as the API server was asked; it is a NodeEvidence in which a node exists while such a pod
// is bound to it. It is safe for concurrent use.
type podEvidence struct {
	client   *Client
	selector PodSelector
	now      func() time.Time
	members  NodeEvidence // with OrMember: who knows of members

	mu   sync.Mutex
	on   map[string]bool // the nodes with such a pod, at the last list; guarded by mu
	seen map[string]bool // ever; guarded by mu
}

func newPodEvidence(client *Client, selector PodSelector, now func() time.Time) *podEvidence {
	return &podEvidence{client: client, selector: selector, now: now, on: map[string]bool{}, seen: map[string]bool{}}
}

// list reads all pods of the selector, and tells whether there is any. After an error what was known stays.
func (p *podEvidence) list(ctx context.Context) (any bool, err error) {
	nodes, err := listAll(ctx, p.client, p.listing("", objectsPage), func(d *json.Decoder) (string, error) {
		var pod struct {
			Spec struct {
				NodeName string `json:"nodeName"`
			} `json:"spec"`
		}
		err := d.Decode(&pod)
		return pod.Spec.NodeName, err
	})
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = map[string]bool{}
	for _, node := range nodes {
		if node != "" {
			p.on[node], p.seen[node] = true, true
		}
	}
	return len(nodes) > 0, nil
}

// listing lists the pods on a node; empty: on all, and those that are on none yet.
func (p *podEvidence) listing(node string, page int) listing {
	l := listing{resource: podsResource, namespace: p.selector.Namespace, selector: p.selector.Labels, fields: unfinished, full: node == "", page: page}
	if node != "" {
		l.fields += "," + fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	return l
}

// Known is what is known of a node without a request.
func (p *podEvidence) Known(node string) Knowledge {
	if p.selector.OrMember {
		k := p.members.Known(node)
		k.Listed = false // that its Node exists says nothing
		return k
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return Knowledge{Listed: p.on[node], Seen: p.seen[node]}
}

// Confirm asks for pods on each of the nodes now, and whether there is any such pod at all: only then does it prove anything that a node has none.
func (p *podEvidence) Confirm(ctx context.Context, nodes []string, _ time.Duration) map[string]NodeAnswer {
	answers := make(map[string]NodeAnswer, len(nodes))
	proof, gone := false, false
	for i, node := range nodes {
		answer := p.ask(ctx, node)
		answers[node] = answer
		proof, gone = proof || answer.Existence == Exists, gone || answer.Existence == Gone
		if answer.Existence == Unproved {
			for _, other := range nodes[i+1:] {
				answers[other] = NodeAnswer{Existence: Unproved, Why: notAskedFor}
			}
			break
		}
	}
	if proof || !gone {
		return answers
	}
	why := ""
	switch found, err := p.some(ctx, ""); {
	case err != nil:
		why = err.Error()
	case !found:
		why = fmt.Sprintf("the selector %s matches no pod anywhere", p.selector.Labels)
	}
	if why != "" {
		for node, answer := range answers {
			if answer.Existence == Gone {
				answers[node] = NodeAnswer{Existence: Unproved, Why: why}
			}
		}
	}
	return answers
}

func (p *podEvidence) ask(ctx context.Context, node string) NodeAnswer {
	at := p.now() // before the request: the answer is at least as old
	switch found, err := p.some(ctx, node); {
	case err != nil:
		return NodeAnswer{Existence: Unproved, Why: err.Error()}
	case found:
		p.mu.Lock()
		p.seen[node] = true
		p.mu.Unlock()
		return NodeAnswer{Existence: Exists, At: at}
	}
	return NodeAnswer{Existence: Gone, At: at}
}

// some tells whether there is such a pod on the node; empty: anywhere.
func (p *podEvidence) some(ctx context.Context, node string) (bool, error) {
	l := p.listing(node, 1)
	l.full, l.first = false, true
	pods, err := listAll(ctx, p.client, l, nameItem)
	return len(pods) > 0, err
}
