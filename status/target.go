package status

import (
	"context"
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// A Target is one kind of shared resource in whose status every node has a key of its own, or of which every node has an object of its own.
// It is complete and valid when it reaches this package: whoever makes one has checked it.
type Target struct {
	// Name is what the operator calls it. Unique among all targets.
	Name string
	// Resource is what to look at, by its plural name.
	Resource schema.GroupVersionResource
	// Namespace limits the target to one namespace; empty means all, and is right for a cluster-scoped resource.
	Namespace string
	// Names limits the target to resources of these names; empty means all.
	Names []string
	// ClusterScoped says that the resource is known to be cluster-scoped, so that names without a namespace need no list.
	ClusterScoped bool
	// Paths are the places with a key per node. A node's key is removed from all of them by the same write.
	Paths []KeyPath
	// Objects is set where each node has an object of its own instead; then there are no Names and no Paths.
	Objects *Objects
	// LivesWith says with which pods a key or object lives; nil: with its Node.
	LivesWith *PodSelector
	// UnknownKeys says what becomes of a key that was never seen as a Node or member.
	UnknownKeys UnknownKeys
	// Mode Report decides everything and writes nothing.
	Mode Mode
	// Grace is how long a candidate stays one before it may be removed.
	Grace time.Duration
	// MaxRemovals is how many keys one write may remove, 1 to MaxRemovalsLimit.
	MaxRemovals int
}

// Kind is statusKeys or nodeObjects.
func (t *Target) Kind() string {
	if t.Objects != nil {
		return "nodeObjects"
	}
	return "statusKeys"
}

// ByMembership tells whether who is a member says what may be stale.
func (t *Target) ByMembership() bool { return t.LivesWith == nil || t.LivesWith.OrMember }

// listsPods tells whether the pods that keys or objects live with are listed at each pass.
func (t *Target) listsPods() bool { return !t.ByMembership() }

// gone is why a key or object goes.
func (t *Target) gone() Reason {
	if t.LivesWith != nil {
		return PodGone
	}
	return NodeGone
}

// NamesAll tells whether the target says which resources it is about, so that none need be listed to be known: all of them are
// meant otherwise, or they may lie in any namespace.
func (t *Target) NamesAll() bool { return len(t.Names) > 0 && (t.Namespace != "" || t.ClusterScoped) }

// Has tells whether a shared resource of that name is the target's, if there is one.
func (t *Target) Has(name types.NamespacedName) bool {
	return (t.Namespace == "" || t.Namespace == name.Namespace) && (len(t.Names) == 0 || slices.Contains(t.Names, name.Name))
}

// A KeyPath is one place with a key per node: a map keyed by node name (ListKey is empty), a list of items
// (ListKey names the field with the node's name), or a list of strings (ListKey is ".").
type KeyPath struct {
	Path    FieldPath
	ListKey string
}

// ListOfStrings is the ListKey of a list whose items are the node names themselves.
const ListOfStrings = "."

// MaxRemovalsLimit is the most keys one JSON Patch may carry: each takes two operations, the server takes 10,000
// (maxJSONPatchOperations in k8s.io/apiserver/pkg/endpoints/handlers/patch.go), and the guards need a few.
const MaxRemovalsLimit = 4500

// Mode says whether a target is written to.
type Mode string

// The modes.
const (
	Enforce Mode = "Enforce"
	Report  Mode = "Report"
)

// UnknownKeys says what becomes of a key that was never seen as a Node or member.
type UnknownKeys string

// What becomes of unknown keys.
const (
	KeepUnknown   UnknownKeys = "Keep"
	RemoveUnknown UnknownKeys = "Remove"
)

// A TargetError says why a target's resources are not known, and what to do.
type TargetError struct {
	Target  string
	State   State
	Message string
	cause   error
}

func (e *TargetError) Error() string { return "target " + e.Target + ": " + e.Message }

func (e *TargetError) Unwrap() error { return e.cause }

// Resources are the resources that the target is about: as it names them, whether or not they exist, or listed. Where the API server
// does not serve the resource there are none. An error is a *TargetError.
func Resources(ctx context.Context, c *Client, t *Target) ([]types.NamespacedName, error) {
	found, err := FindResources(ctx, c, t)
	var why *TargetError
	if errors.As(err, &why) && why.State == NotInstalled {
		return nil, nil
	}
	return found, err
}

// FindResources is Resources, but that the API server does not serve the resource is an error too: a *TargetError of state NotInstalled.
func FindResources(ctx context.Context, c *Client, t *Target) ([]types.NamespacedName, error) {
	found, err := c.resources(ctx, t)
	if err == nil {
		return found, nil
	}
	state, message := c.stateOf(ctx, t, err)
	return nil, &TargetError{Target: t.Name, State: state, Message: message, cause: err}
}

func (c *Client) resources(ctx context.Context, t *Target) ([]types.NamespacedName, error) {
	var found []types.NamespacedName
	if t.NamesAll() {
		for _, name := range t.Names {
			found = append(found, types.NamespacedName{Namespace: t.Namespace, Name: name})
		}
		return found, nil
	}
	objects, err := c.list(ctx, t.Resource, t.Namespace)
	if err != nil {
		return nil, err
	}
	for _, o := range objects {
		if len(t.Names) == 0 || slices.Contains(t.Names, o.Name) {
			found = append(found, types.NamespacedName{Namespace: o.Namespace, Name: o.Name})
		}
	}
	return found, nil
}
