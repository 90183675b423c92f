package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Objects make a Target one of a resource with an object for each node, instead of one with a key for each.
type Objects struct {
	// NodeName says where an object has the name of its node.
	NodeName NodeNameIn
	// KeepAnnotation, if it is not empty, protects objects that have it; with KeepValue only those that have this value.
	KeepAnnotation, KeepValue string
	// DeletesPerSecond is how many are deleted in a second at most; 0: DeletesPerSecond.
	DeletesPerSecond int
}

// NodeNameIn says where an object has the name of its node: exactly one of the fields is set.
type NodeNameIn struct {
	// Name: it is the object's own.
	Name bool
	// Label is the key of a label whose value it is.
	Label string
	// Field leads to it. OwnerNode is the name of the Node that owns the object.
	Field FieldPath
}

// OwnerNode is the Field of objects whose node is the Node among their owners.
var OwnerNode = FieldPath{"metadata", "ownerReferences", "Node"}

// Readable tells whether the path leads to something that can be an object's node name: of the metadata its name, namespace, a label, an annotation and
// OwnerNode, and anything else.
func (p FieldPath) Readable() bool {
	switch {
	case p[0] != "metadata":
		return true
	case len(p) == 2:
		return p[1] == "name" || p[1] == "namespace"
	case len(p) == 3:
		return p[1] == "labels" || p[1] == "annotations" || p.String() == OwnerNode.String()
	}
	return false
}

// metadataOnly tells whether an object's metadata is enough to know its node.
func (in *NodeNameIn) metadataOnly() bool { return len(in.Field) == 0 || in.Field[0] == "metadata" }

// An object is what counts of one.
type object struct {
	types.NamespacedName
	uid, version string
	node         string   // "" where it names none
	keep         bool     // it carries KeepAnnotation
	stays        Decision // why it stays whatever becomes of its node; zero: nothing says so
	cut          bool     // the name may be the first part of one only, because a label holds no more
	owners       []owner  // what ends with the node, or long after it, is none
	old          bool     // it was read by an earlier pass, and not by this one
}

// An owner is another object that an object belongs to.
type owner struct{ apiVersion, kind, name, uid string }

func (o owner) String() string { return o.kind + " " + o.name }

// objectHead is an object's metadata, as far as it counts. managedFields and all else are dropped while reading.
type objectHead struct {
	Namespace         string                  `json:"namespace"`
	Name              string                  `json:"name"`
	UID               string                  `json:"uid"`
	ResourceVersion   string                  `json:"resourceVersion"`
	DeletionTimestamp string                  `json:"deletionTimestamp"`
	Labels            map[string]string       `json:"labels"`
	Annotations       map[string]string       `json:"annotations"`
	Finalizers        []string                `json:"finalizers"`
	OwnerReferences   []metav1.OwnerReference `json:"ownerReferences"`
}

// item reads one object of a list.
func (t *Objects) item(d *json.Decoder) (object, error) {
	if t.NodeName.metadataOnly() {
		var item struct {
			Metadata objectHead `json:"metadata"`
		}
		if err := d.Decode(&item); err != nil {
			return object{}, err
		}
		return t.object(&item.Metadata, nil)
	}
	var whole json.RawMessage
	if err := d.Decode(&whole); err != nil {
		return object{}, err
	}
	var item struct {
		Metadata objectHead `json:"metadata"`
	}
	if err := json.Unmarshal(whole, &item); err != nil {
		return object{}, err
	}
	return t.object(&item.Metadata, whole)
}

// object is what counts of an object. whole is only needed where its metadata does not have its node's name.
func (t *Objects) object(head *objectHead, whole json.RawMessage) (object, error) {
	if head.Name == "" || head.UID == "" || head.ResourceVersion == "" {
		return object{}, errors.New("an item has no name, no uid or no resourceVersion")
	}
	o := object{
		NamespacedName: types.NamespacedName{Namespace: head.Namespace, Name: head.Name}, uid: head.UID, version: head.ResourceVersion,
		keep: head.Annotations[KeepAnnotation] == "true", node: t.NodeName.of(head, whole), stays: t.stays(head),
	}
	o.cut = t.label() != "" && len(o.node) == validation.LabelValueMaxLength
	for _, r := range head.OwnerReferences {
		if !(isNode(&r) && r.Name == o.node) && !outlives(&r) {
			o.owners = append(o.owners, owner{r.APIVersion, r.Kind, r.Name, string(r.UID)})
		}
	}
	return o, nil
}

// of is the name of the object's node, "" where there is none.
func (in *NodeNameIn) of(head *objectHead, whole json.RawMessage) string {
	switch f := in.Field; {
	case in.Name:
		return head.Name
	case in.Label != "":
		return head.Labels[in.Label]
	case f.String() == OwnerNode.String():
		for _, r := range head.OwnerReferences {
			if isNode(&r) {
				return r.Name
			}
		}
		return ""
	case len(f) == 3 && f[0] == "metadata" && f[1] == "annotations":
		return head.Annotations[f[2]]
	case len(f) == 3 && f[0] == "metadata" && f[1] == "labels":
		return head.Labels[f[2]]
	case len(f) == 2 && f[0] == "metadata" && f[1] == "name":
		return head.Name
	case len(f) == 2 && f[0] == "metadata" && f[1] == "namespace":
		return head.Namespace
	}
	value, err := lookUp(whole, in.Field)
	var name string
	if err != nil || value == nil || json.Unmarshal(value, &name) != nil {
		return ""
	}
	return name
}

// outlives is true of owners that say nothing of one node: an object of each node belongs to them, and they outlive the nodes. node-feature-discovery
// makes the topology updater's objects the namespace's.
func outlives(r *metav1.OwnerReference) bool {
	return r.Kind == "DaemonSet" && strings.HasPrefix(r.APIVersion, "apps/") || r.Kind == "Namespace" && r.APIVersion == "v1"
}

func isNode(r *metav1.OwnerReference) bool { return r.APIVersion == "v1" && r.Kind == "Node" }

// stays says why the object stays whatever becomes of its node; zero: nothing says so.
func (t *Objects) stays(head *objectHead) Decision {
	if head.DeletionTimestamp != "" {
		return Decision{Keep, BeingDeleted, "somebody has deleted the object since " + head.DeletionTimestamp + "; it waits for " + orNothing(head.Finalizers)}
	}
	if len(head.Finalizers) > 0 {
		return Decision{Keep, Finalizers, "the object has finalizers, which are for its owner to see to: " + orNothing(head.Finalizers)}
	}
	if value, has := head.Annotations[t.KeepAnnotation]; has && t.KeepAnnotation != "" && (t.KeepValue == "" || value == t.KeepValue) {
		return Decision{Keep, KeptByOwner, fmt.Sprintf("the object carries %s: %q, which the configuration's keepIf protects", t.KeepAnnotation, value)}
	}
	return Decision{}
}

func orNothing(names []string) string {
	if len(names) == 0 {
		return "nothing"
	}
	return strings.Join(names, ", ")
}
