package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// An InfrastructureSource is a resource with an object for each Node's machine.
type InfrastructureSource struct {
	Name      string // what messages call it
	Resource  schema.GroupVersionResource
	Namespace string // empty: all
	// ProviderID is the field of the object that equals the Node's spec.providerID; empty: Annotation.
	ProviderID FieldPath
	// Annotation is the key of the Node's annotation that has the object's namespace/name.
	Annotation string
	// Open makes the way to the cluster that has the objects. It is called before each use, so that a changed kubeconfig counts; nil: the Nodes' own cluster.
	Open func() (*Client, error)
}

// The annotations by which Cluster API says which Machine a Node is (https://github.com/kubernetes-sigs/cluster-api, api/core: MachineAnnotation,
// ClusterNamespaceAnnotation).
const (
	machineAnnotation   = "cluster.x-k8s.io/machine"
	namespaceAnnotation = "cluster.x-k8s.io/cluster-namespace"
	machineGroup        = "cluster.x-k8s.io"
)

// proofMachines is how many other objects are asked for until one shows that a cluster is the one that had the missing one.
const proofMachines = 3

// An infrastructureAnswer is whether a Node's machine exists, and what shows it.
type infrastructureAnswer struct {
	state InfrastructureState
	why   string
}

func cannotConfirm(format string, args ...any) infrastructureAnswer {
	return infrastructureAnswer{InfrastructureUnknown, fmt.Sprintf(format, args...)}
}

// An infrastructure knows the objects that stand for Nodes' machines, as far as it has seen them. It is not safe for concurrent use.
type infrastructure struct {
	own      *Client // to the Nodes' cluster
	machines func() (*Client, error)
	sources  []*source
	refs     map[types.NamespacedName]infrastructureRef // of the Machines that were seen
}

// A source is an InfrastructureSource with what was seen of it.
type source struct {
	InfrastructureSource
	seen    map[types.NamespacedName]seenObject
	matched bool  // some object stood for some Node at the last list
	any     bool  // there was any object then
	err     error // why the last list failed
}

// A seenObject is an object that stood for a machine when it was seen.
type seenObject struct {
	uid, providerID string
	listed          bool // it was in the last list
}

// An infrastructureRef is the object that a Machine names.
type infrastructureRef struct {
	machineUID string
	owner      // of its kind; without uid
	namespace  string
	seen       bool // it was there at some time
}

func newInfrastructure(own *Client, machines func() (*Client, error), sources []InfrastructureSource) *infrastructure {
	i := &infrastructure{own: own, machines: machines, refs: map[types.NamespacedName]infrastructureRef{}}
	if i.machines == nil {
		i.machines = func() (*Client, error) { return own, nil }
	}
	for _, s := range sources {
		if s.Open == nil {
			s.Open = i.ownClient
		}
		i.sources = append(i.sources, &source{InfrastructureSource: s, seen: map[types.NamespacedName]seenObject{}})
	}
	return i
}

func (i *infrastructure) ownClient() (*Client, error) { return i.own, nil }

// learn lists the sources' objects, so that one that is missing later is known to have been there.
func (i *infrastructure) learn(ctx context.Context, nodes []NodeView) {
	ids := map[string]bool{}
	for k := range nodes {
		ids[nodes[k].ProviderID] = true
	}
	for _, s := range i.sources {
		s.learn(ctx, ids)
	}
}

// A sourceObject is one object of a source.
type sourceObject struct {
	types.NamespacedName
	seenObject
}

func (s *source) learn(ctx context.Context, providerIDs map[string]bool) {
	client, err := s.Open()
	var objects []sourceObject
	if err == nil {
		l := listing{resource: s.Resource, namespace: s.Namespace, full: s.Annotation == "", page: nodesWholePage}
		objects, err = listAll(ctx, client, l, s.item)
	}
	if s.err = err; err != nil {
		return
	}
	s.any, s.matched = len(objects) > 0, s.Annotation != ""
	for name, o := range s.seen {
		o.listed = false
		s.seen[name] = o
	}
	for _, o := range objects {
		if s.Annotation == "" && !providerIDs[o.providerID] {
			continue // of a machine that is no Node
		}
		s.matched = true
		s.seen[o.NamespacedName] = o.seenObject
	}
}

// item reads one object of the source.
func (s *source) item(d *json.Decoder) (sourceObject, error) {
	var whole json.RawMessage
	if err := d.Decode(&whole); err != nil {
		return sourceObject{}, err
	}
	var head struct {
		Metadata objectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(whole, &head); err != nil {
		return sourceObject{}, err
	}
	m := head.Metadata
	if m.Name == "" || m.UID == "" {
		return sourceObject{}, errors.New("an object has no name or no uid")
	}
	o := sourceObject{types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, seenObject{uid: m.UID, listed: true}}
	if s.Annotation == "" {
		if value, err := lookUp(whole, s.ProviderID); err == nil && value != nil {
			_ = json.Unmarshal(value, &o.providerID) // what is no string is no providerID
		}
	}
	return o, nil
}

// ask tells whether the Node's machine exists: it does if anything says so, and is gone only if nothing that knows of it is in doubt. others are Nodes whose
// machines may show that a cluster is the right one.
func (i *infrastructure) ask(ctx context.Context, n *NodeView, others []NodeView) infrastructureAnswer {
	var answers []infrastructureAnswer
	if n.Annotations[machineAnnotation] != "" {
		answers = append(answers, i.askMachine(ctx, n, others))
	}
	for _, s := range i.sources {
		answers = append(answers, s.ask(ctx, n))
	}
	for _, state := range []InfrastructureState{InfrastructureExists, InfrastructureUnknown, InfrastructureGone} {
		at := slices.IndexFunc(answers, func(a infrastructureAnswer) bool { return a.state == state })
		if at >= 0 {
			return answers[at]
		}
	}
	return infrastructureAnswer{}
}

// ask tells whether the source's object for the Node exists; InfrastructureNone: there is none for it.
func (s *source) ask(ctx context.Context, n *NodeView) infrastructureAnswer {
	name, ok, answer := s.objectOf(n)
	if !ok {
		return answer
	}
	client, err := s.Open()
	if err != nil {
		return cannotConfirm("%s: %v", s.Name, err)
	}
	body, err := client.bytes(ctx, briefGet(s.Resource, name, acceptJSON))
	var failure *RequestError
	was, seen := s.seen[name]
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		switch {
		case !seen:
			return cannotConfirm("%s %s is not there, and never was while this agent looked", s.Name, name)
		case !s.proved(ctx, client, name):
			return cannotConfirm("%s %s is not there, but no other object that was there shows that this is still the cluster that had it", s.Name, name)
		}
		return infrastructureAnswer{InfrastructureGone, fmt.Sprintf("%s %s is gone", s.Name, name)}
	case err != nil:
		return cannotConfirm("%s: %v", s.Name, err)
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	o, err := s.item(d)
	switch {
	case err != nil:
		return cannotConfirm("%s %s: %v", s.Name, name, err)
	case s.Annotation == "" && o.providerID != n.ProviderID:
		return cannotConfirm("%s %s stands for another machine now, %q", s.Name, name, o.providerID)
	case seen && was.uid != o.uid && s.Annotation != "":
		return cannotConfirm("%s %s is another one of this name now", s.Name, name)
	}
	s.seen[name] = o.seenObject
	return infrastructureAnswer{InfrastructureExists, fmt.Sprintf("%s %s is there", s.Name, name)}
}

// objectOf is the object that stands for the Node; false: there is none to ask for, and the answer is given.
func (s *source) objectOf(n *NodeView) (types.NamespacedName, bool, infrastructureAnswer) {
	none := types.NamespacedName{}
	if s.Annotation != "" {
		text, has := n.Annotations[s.Annotation]
		if !has {
			return none, false, infrastructureAnswer{}
		}
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			return none, false, cannotConfirm("%s: the Node's annotation %s is %q, no namespace/name", s.Name, s.Annotation, text)
		}
		return types.NamespacedName{Namespace: namespace, Name: name}, true, infrastructureAnswer{}
	}
	if n.ProviderID == "" {
		return none, false, infrastructureAnswer{}
	}
	found := false
	var at types.NamespacedName
	for name, o := range s.seen { // one that is there counts more than one that was
		if o.providerID == n.ProviderID && (!found || o.listed) {
			at, found = name, true
		}
	}
	if found {
		return at, true, infrastructureAnswer{}
	}
	switch {
	case s.err != nil:
		return none, false, cannotConfirm("%s: %v", s.Name, s.err)
	case s.any && !s.matched:
		return none, false, cannotConfirm("%s: no object's %s is any Node's providerID; is match.providerID right?", s.Name, s.ProviderID)
	case !s.any:
		return none, false, cannotConfirm("%s: there is no object at all, so nothing shows that this is the right cluster", s.Name)
	}
	return none, false, infrastructureAnswer{}
}

// proved tells whether another object that was seen is still there: then this is the cluster that had the missing one.
func (s *source) proved(ctx context.Context, client *Client, but types.NamespacedName) bool {
	tried := 0
	for name, was := range s.seen {
		if name == but {
			continue
		}
		if uid, err := client.uidOf(ctx, s.Resource, name); err == nil && uid == was.uid {
			return true
		}
		if tried++; tried == proofMachines {
			break
		}
	}
	return false
}

// briefGet asks for one object, within the time that asking for a Node may take.
func briefGet(resource schema.GroupVersionResource, name types.NamespacedName, accept string) request {
	return request{
		verb: "get", resource: resource, namespace: name.Namespace, name: name.Name, accept: accept,
		attempts: askAttempts, timeout: askTimeout, patience: askPatience,
	}
}

// uidOf is the UID of an object that is there.
func (c *Client) uidOf(ctx context.Context, resource schema.GroupVersionResource, name types.NamespacedName) (string, error) {
	body, err := c.bytes(ctx, briefGet(resource, name, acceptMetadata))
	if err != nil {
		return "", err
	}
	var head struct {
		Metadata objectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &head); err != nil {
		return "", err
	}
	if head.Metadata.UID == "" {
		return "", errors.New("the answer has no metadata.uid")
	}
	return head.Metadata.UID, nil
}

// A machine is what counts of a Cluster API Machine.
type machine struct {
	Metadata struct {
		objectMeta
		DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		InfrastructureRef struct {
			APIVersion string `json:"apiVersion"` // until v1beta1
			APIGroup   string `json:"apiGroup"`   // from v1beta2 on, which has no namespace either: it is the Machine's
			Kind       string `json:"kind"`
			Name       string `json:"name"`
			Namespace  string `json:"namespace"`
		} `json:"infrastructureRef"`
	} `json:"spec"`
	Status struct {
		NodeRef struct {
			Name string `json:"name"`
		} `json:"nodeRef"`
	} `json:"status"`
}

// askMachine follows a Node's annotations to its Machine and on to its infrastructure.
func (i *infrastructure) askMachine(ctx context.Context, n *NodeView, others []NodeView) infrastructureAnswer {
	at, err := machineOf(n)
	if err != nil {
		return cannotConfirm("%v", err)
	}
	client, err := i.machines()
	if err != nil {
		return cannotConfirm("Machine %s: %v", at, err)
	}
	resource, err := client.preferred(ctx, machineGroup, "machines")
	if err != nil {
		return cannotConfirm("Machine %s: %v", at, err)
	}
	body, err := client.bytes(ctx, briefGet(resource, at, acceptJSON))
	var failure *RequestError
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		if !i.machinesProved(ctx, client, resource, at, others) {
			return cannotConfirm("Machine %s is not there, but no other Node's Machine is either, so nothing shows that this is the management cluster", at)
		}
		ref, seen := i.refs[at]
		if !seen { // Cluster API lets a Machine go only after its infrastructure
			return infrastructureAnswer{InfrastructureGone, fmt.Sprintf("Machine %s is gone", at)}
		}
		return i.askRef(ctx, client, at, ref, true)
	case err != nil:
		return cannotConfirm("Machine %s: %v", at, err)
	}
	var m machine
	if err := json.Unmarshal(body, &m); err != nil || m.Metadata.Name != at.Name || m.Metadata.UID == "" {
		return cannotConfirm("Machine %s: the answer is not that Machine", at)
	}
	if name := m.Status.NodeRef.Name; name != "" && name != n.Name {
		return cannotConfirm("Machine %s says that its Node is %s", at, name)
	}
	r := m.Spec.InfrastructureRef
	if r.Kind == "" || len(validation.IsDNS1123Subdomain(r.Name)) > 0 {
		return cannotConfirm("Machine %s names no infrastructure", at)
	}
	ref := infrastructureRef{machineUID: m.Metadata.UID, owner: owner{apiVersion: r.APIVersion, kind: r.Kind, name: r.Name}, namespace: r.Namespace}
	if ref.apiVersion == "" {
		if ref.apiVersion, err = client.preferredVersion(ctx, r.APIGroup); err != nil {
			return cannotConfirm("infrastructure %s %s of Machine %s: %v", r.Kind, r.Name, at, err)
		}
	}
	if ref.namespace == "" {
		ref.namespace = at.Namespace
	}
	if was := i.refs[at]; was.machineUID == ref.machineUID && was.owner == ref.owner && was.namespace == ref.namespace {
		ref.seen = was.seen
	}
	i.refs[at] = ref
	return i.askRef(ctx, client, at, ref, m.Metadata.DeletionTimestamp != nil)
}

// askRef asks for the infrastructure that a Machine names. That it is not there proves something if it was seen before, or if the Machine is going or gone:
// otherwise it may only not be there yet.
func (i *infrastructure) askRef(ctx context.Context, client *Client, at types.NamespacedName, ref infrastructureRef, going bool) infrastructureAnswer {
	what := fmt.Sprintf("infrastructure %s of Machine %s", ref, at)
	resource, namespaced, err := client.resourceOf(ctx, ref.owner)
	if err != nil {
		return cannotConfirm("%s: %v", what, err)
	}
	name := types.NamespacedName{Namespace: ref.namespace, Name: ref.name}
	if !namespaced {
		name.Namespace = ""
	}
	_, err = client.uidOf(ctx, resource, name)
	var failure *RequestError
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		if !ref.seen && !going {
			return cannotConfirm("%s is not there, but its Machine is not being deleted, and it never was while this agent looked", what)
		}
		return infrastructureAnswer{InfrastructureGone, what + " is gone"}
	case err != nil:
		return cannotConfirm("%s: %v", what, err)
	}
	ref.seen = true
	i.refs[at] = ref
	if going {
		return infrastructureAnswer{InfrastructureExists, what + ", which is being deleted, is still there"}
	}
	return infrastructureAnswer{InfrastructureExists, what + " is there"}
}

// machineOf is the Machine that a Node's annotations name.
func machineOf(n *NodeView) (types.NamespacedName, error) {
	at := types.NamespacedName{Namespace: n.Annotations[namespaceAnnotation], Name: n.Annotations[machineAnnotation]}
	if len(validation.IsDNS1123Label(at.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(at.Name)) > 0 {
		return at, fmt.Errorf("the Node's annotations %s and %s are %q and %q, no name of a Machine", machineAnnotation, namespaceAnnotation, at.Name, at.Namespace)
	}
	return at, nil
}

// machinesProved tells whether the Machine of another Node is there: then this is the management cluster.
func (i *infrastructure) machinesProved(ctx context.Context, client *Client, resource schema.GroupVersionResource, but types.NamespacedName, others []NodeView) bool {
	tried := 0
	for k := range others {
		at, err := machineOf(&others[k])
		if err != nil || at == but {
			continue
		}
		if _, err := client.uidOf(ctx, resource, at); err == nil {
			return true
		}
		if tried++; tried == proofMachines {
			break
		}
	}
	return false
}

// preferred is the version of a resource that its API server prefers.
func (c *Client) preferred(ctx context.Context, group, resource string) (schema.GroupVersionResource, error) {
	apiVersion, err := c.preferredVersion(ctx, group)
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	gv, err := schema.ParseGroupVersion(apiVersion)
	return gv.WithResource(resource), err
}

// preferredVersion is a group's preferred version, as group/version.
func (c *Client) preferredVersion(ctx context.Context, group string) (string, error) {
	if len(validation.IsDNS1123Subdomain(group)) > 0 {
		return "", fmt.Errorf("%q is no API group", group)
	}
	var g metav1.APIGroup
	if err := c.discover(ctx, "/apis/"+group, "APIGroup", &g); err != nil {
		return "", err
	}
	if g.PreferredVersion.GroupVersion == "" {
		return "", fmt.Errorf("the API server has no version of %s", group)
	}
	return g.PreferredVersion.GroupVersion, nil
}
