package status

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
// is bound to it, or waits for it. It is safe for concurrent use.
type podEvidence struct {
	client   *Client
	selector PodSelector
	now      func() time.Time
	members  NodeEvidence // who knows of Nodes and members

	mu   sync.Mutex
	on   map[string]bool // the nodes with such a pod, at the last list; guarded by mu
	seen map[string]bool // ever; guarded by mu
}

func newPodEvidence(client *Client, selector PodSelector, now func() time.Time) *podEvidence {
	return &podEvidence{client: client, selector: selector, now: now, on: map[string]bool{}, seen: map[string]bool{}}
}

// list reads all pods of the selector, and tells whether any is bound to a node and to stay: only those show that the selector is right. After an error
// what was known stays.
func (p *podEvidence) list(ctx context.Context) (any bool, err error) {
	pods, err := listAll(ctx, p.client, p.listing("", objectsPage), readPod)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.on = map[string]bool{}
	for _, pod := range pods {
		any = any || pod.bound && !pod.ending
		for _, node := range pod.nodes {
			p.on[node], p.seen[node] = true, true
		}
	}
	return any, nil
}

// A podPlace is where a pod is.
type podPlace struct {
	nodes  []string // the node that it is bound to; of one that is bound to none yet those that it is made for, as a DaemonSet's pods are
	bound  bool
	ending bool // it is being deleted
}

// readPod reads one pod of a list.
func readPod(d *json.Decoder) (podPlace, error) {
	var pod struct {
		Metadata struct {
			DeletionTimestamp string `json:"deletionTimestamp"`
		} `json:"metadata"`
		Spec struct {
			NodeName string           `json:"nodeName"`
			Affinity *corev1.Affinity `json:"affinity"`
		} `json:"spec"`
	}
	if err := d.Decode(&pod); err != nil {
		return podPlace{}, err
	}
	place := podPlace{ending: pod.Metadata.DeletionTimestamp != ""}
	if pod.Spec.NodeName != "" {
		place.nodes, place.bound = []string{pod.Spec.NodeName}, true
	} else if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		for _, term := range a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
			for _, field := range term.MatchFields {
				if field.Key == metav1.ObjectNameField && field.Operator == corev1.NodeSelectorOpIn {
					place.nodes = append(place.nodes, field.Values...)
				}
			}
		}
	}
	return place, nil
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
	return Knowledge{Listed: p.on[node], Seen: p.seen[node] || p.members.Known(node).Seen}
}

// Confirm asks for pods on each of the nodes now, and whether there is any such pod at all: only then does it prove anything that a node has none.
func (p *podEvidence) Confirm(ctx context.Context, nodes []string, _ time.Duration) map[string]NodeAnswer {
	answers := askEach(nodes, func(node string) NodeAnswer { return p.ask(ctx, node) })
	p.waiting(ctx, answers)
	proof, gone := false, false
	for _, answer := range answers {
		proof, gone = proof || answer.Existence == Exists, gone || answer.Existence == Gone
	}
	if proof || !gone {
		return answers
	}
	why := ""
	switch found, err := p.bound(ctx); {
	case err != nil:
		why = err.Error()
	case !found:
		why = fmt.Sprintf("the selector %s matches no pod that is on a node and stays", p.selector.Labels)
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
	l := p.listing(node, 1)
	l.first, l.brief = true, true
	switch pods, err := listAll(ctx, p.client, l, nameItem); {
	case err != nil:
		return NodeAnswer{Existence: Unproved, Why: err.Error()}
	case len(pods) > 0:
		p.mu.Lock()
		p.seen[node] = true
		p.mu.Unlock()
		return NodeAnswer{Existence: Exists, At: at}
	}
	return NodeAnswer{Existence: Gone, At: at}
}

// waiting asks, where a node seems to have no pod, for pods that are bound to none yet: those that are made for it count as well.
func (p *podEvidence) waiting(ctx context.Context, answers map[string]NodeAnswer) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(answers)), func(a NodeAnswer) bool { return a.Existence == Gone }) {
		return
	}
	at := p.now()
	l := p.listing("", objectsPage)
	l.fields += "," + fields.OneTermEqualSelector("spec.nodeName", "").String()
	l.brief = true
	pods, err := listAll(ctx, p.client, l, readPod)
	made := map[string]bool{}
	for _, pod := range pods {
		for _, node := range pod.nodes {
			made[node] = true
		}
	}
	for node, answer := range answers {
		switch {
		case answer.Existence != Gone:
		case err != nil:
			answers[node] = NodeAnswer{Existence: Unproved, Why: err.Error()}
		case made[node]:
			answers[node] = NodeAnswer{Existence: Exists, At: at}
		}
	}
}

// boundPage is how many pods one page asks for of which one that stays is enough.
const boundPage = 20

// bound tells whether any such pod is on a node, and is to stay.
func (p *podEvidence) bound(ctx context.Context) (bool, error) {
	l := p.listing("", boundPage)
	l.fields += "," + fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	l.full, l.first, l.brief = false, true, true
	pods, err := listAll(ctx, p.client, l, func(d *json.Decoder) (bool, error) {
		pod, err := readPod(d)
		if err == nil && pod.ending {
			err = errSkipped
		}
		return true, err
	})
	return len(pods) > 0, err
}
