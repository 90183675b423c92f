package status

import (
	"context"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	// aimedNodes is how many nodes one selector of labels names at most: with names of 63 characters it makes a query of 3.5 kB, and proxies take 8.
	aimedNodes = 50
	// maxAimed is how many requests for the objects of certain nodes may stand for a whole list.
	maxAimed = 20
)

// CanAim tells whether the objects of certain nodes can be listed alone, because a label or their own name says which node they belong to.
func (t *Objects) CanAim() bool { return t.label() != "" || t.byName() }

// label is the label that has the node's name; empty: none has.
func (t *Objects) label() string {
	if f := t.NodeName.Field; len(f) == 3 && f[0] == "metadata" && f[1] == "labels" {
		return f[2]
	}
	return t.NodeName.Label
}

// byName tells whether the object's name is its node's.
func (t *Objects) byName() bool {
	f := t.NodeName.Field
	return t.NodeName.Name || len(f) == 2 && f[0] == "metadata" && f[1] == "name"
}

// aim returns what lists the objects of these nodes and no others. It is false where that cannot be, or takes so many requests that a whole list is
// cheaper.
func (t *Objects) aim(all listing, nodes []string) ([]listing, bool) {
	var aimed []listing
	switch label := t.label(); {
	case label != "":
		// Longer names are no values of labels, so no object has them.
		names := slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return len(validation.IsValidLabelValue(n)) > 0 })
		for some := range slices.Chunk(names, aimedNodes) {
			requirement, err := labels.NewRequirement(label, selection.In, some)
			if err != nil {
				return nil, false
			}
			one := all
			one.selector = requirement.String()
			aimed = append(aimed, one)
		}
	case t.byName():
		for _, name := range nodes {
			one := all
			one.fields = fields.OneTermEqualSelector("metadata.name", name).String()
			aimed = append(aimed, one)
		}
	default:
		return nil, false
	}
	return aimed, len(aimed) <= maxAimed
}

// A memory is what a Sweeper remembers of a target's objects between passes, so that not every pass lists all of them.
type memory struct {
	at      time.Time // when the last whole list began; zero: there is none to rely on
	objects []object
}

// doubtful are the nodes, in order, whose objects must be looked at: those that nothing speaks for, of the objects that are remembered, and the others.
func (p *pass) doubtful(others []string) []string {
	nodes := map[string]bool{}
	for i := range p.memory.objects {
		nodes[p.memory.objects[i].node] = true
	}
	maps.DeleteFunc(nodes, func(node string, _ bool) bool { return p.speaksFor(node) })
	for _, node := range others {
		nodes[node] = true
	}
	maps.DeleteFunc(nodes, func(node string, _ bool) bool { return len(validation.IsDNS1123Subdomain(node)) > 0 }) // also what names none
	return slices.Sorted(maps.Keys(nodes))
}

// readObjects reads the target's objects: all of them; or, where a whole list is young enough, those of nodes that are in doubt, and the others are as
// they were remembered.
func (p *pass) readObjects(ctx context.Context) ([]object, error) {
	t, now := p.target.Objects, p.Now()
	all := listing{resource: p.target.Resource, namespace: p.target.Namespace, full: !t.NodeName.metadataOnly(), page: objectsPage}
	// One of a node that lives must be among them, or else the target would count as held.
	alive := slices.ContainsFunc(p.memory.objects, func(o object) bool { return p.speaksFor(o.node) })
	if !alive || p.memory.at.IsZero() || now.Sub(p.memory.at) >= p.WholeInterval {
		return p.readAllObjects(ctx, all)
	}
	nodes := p.doubtful(p.departed)
	aimed, can := t.aim(all, nodes)
	if !can {
		return p.readAllObjects(ctx, all)
	}
	return p.readSome(ctx, aimed, nodes)
}

func (p *pass) readAllObjects(ctx context.Context, all listing) ([]object, error) {
	begun := p.Now()
	objects, err := listAll(ctx, p.client, all, p.target.Objects.item)
	if err != nil {
		return nil, err
	}
	p.memory = memory{begun, objects}
	return objects, nil
}

// readSome reads the objects of these nodes.
func (p *pass) readSome(ctx context.Context, aimed []listing, nodes []string) ([]object, error) {
	p.report.FromMemory = len(aimed) == 0 && !p.target.listsPods()
	read := map[string]object{} // between two requests one may have moved from node to node
	for _, l := range aimed {
		some, err := listAll(ctx, p.client, l, p.target.Objects.item)
		if err != nil {
			return nil, err
		}
		for _, o := range some {
			read[o.String()] = o
		}
	}
	var objects []object
	for _, o := range p.memory.objects {
		_, again := read[o.String()]
		if _, asked := slices.BinarySearch(nodes, o.node); !again && !asked {
			o.old = true
			objects = append(objects, o)
		}
	}
	for _, o := range read {
		objects = append(objects, o)
	}
	p.memory.objects = objects
	return objects, nil
}

// forget forgets an object that is gone.
func (m *memory) forget(uid string) {
	m.objects = slices.DeleteFunc(m.objects, func(o object) bool { return o.uid == uid })
}
