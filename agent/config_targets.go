package agent

import "github.com/unstale/unstale/status"

// StatusKeysConfig is a kind of shared resource with a key per node in its status.
type StatusKeysConfig struct {
	// Name is what the target is called in logs, metrics and reports. A DNS label, unique among all targets.
	Name string `json:"name"`
	// Resource to look at.
	Resource ResourceConfig `json:"resource"`
	// Namespace limits the target. Empty: all namespaces; also right for a cluster-scoped resource.
	Namespace string `json:"namespace"`
	// Names limits the target to resources of these names. Empty: all.
	Names []string `json:"names,omitempty"`
	// Paths are the places with a key per node. All are cleaned together.
	Paths []PathConfig `json:"paths,omitempty"`
	// TimestampPath leads to the time of writing in an entry. Optional.
	TimestampPath string `json:"timestampPath"`
	// NodeUIDPath leads to the UID of the Node in an entry. Optional.
	NodeUIDPath string `json:"nodeUIDPath"`
	// LivesWith says whose life a key shares. Default: the Node's.
	LivesWith LivesWithConfig `json:"livesWith"`
	// UnknownKeys says what becomes of a key that was never seen as a Node or member. Default Keep.
	UnknownKeys status.UnknownKeys `json:"unknownKeys"`
	// OnStop says when an agent that stops clears its own node's key. Default NodeLeaving for a key that lives with its
	// node, Never for one that lives with pods.
	OnStop status.OnStop `json:"onStop"`
	// Mode Report decides and does not write. Default Enforce, which is no more than Configuration.Mode allows.
	Mode status.Mode `json:"mode"`
}

func (c *StatusKeysConfig) setDefaults() {
	c.UnknownKeys = status.KeepUnknown
	c.Mode = status.Enforce
}

func (c *StatusKeysConfig) complete() {
	c.LivesWith.complete()
	switch {
	case c.OnStop != "":
	case c.LivesWith.Pods != nil:
		c.OnStop = status.StopNever
	default:
		c.OnStop = status.StopNodeLeaving
	}
}

// PathConfig is one place with a key per node.
type PathConfig struct {
	// Path leads to it and lies below status.
	Path string `json:"path"`
	// ListKey is empty for a map keyed by node name. For a list of items it is the field with the node's name; for a list
	// of strings it is ".".
	ListKey string `json:"listKey"`
}

// LivesWithConfig says whose life a key or an object shares: exactly one of the fields.
type LivesWithConfig struct {
	// Node: it is stale when the Node is gone.
	Node *struct{} `json:"node,omitempty"`
	// Pods: it is stale when none of these pods is bound to the node.
	Pods *PodsConfig `json:"pods,omitempty"`
}

func (c *LivesWithConfig) complete() {
	if c.Node == nil && c.Pods == nil {
		c.Node = &struct{}{}
	}
}

// NodeObjectsConfig is a kind of resource with an object per node.
type NodeObjectsConfig struct {
	// Name is what the target is called in logs, metrics and reports. A DNS label, unique among all targets.
	Name string `json:"name"`
	// Resource to look at.
	Resource ResourceConfig `json:"resource"`
	// Namespace limits the target. Empty: all namespaces; also right for a cluster-scoped resource.
	Namespace string `json:"namespace"`
	// NodeName says where an object has the name of its node.
	NodeName NodeNameConfig `json:"nodeName"`
	// LivesWith says whose life an object shares. Default: the Node's.
	LivesWith LivesWithConfig `json:"livesWith"`
	// UnknownKeys says what becomes of an object whose node was never seen as a Node or member. Default Keep.
	UnknownKeys status.UnknownKeys `json:"unknownKeys"`
	// KeepIf protects objects.
	KeepIf KeepAnnotationConfig `json:"keepIf"`
	// DeletesPerSecond is how many of the target's objects are deleted in a second at most. 1 to 1000, default 20.
	DeletesPerSecond int `json:"deletesPerSecond"`
	// Mode Report decides and does not delete. Default Enforce, which is no more than Configuration.Mode allows.
	Mode status.Mode `json:"mode"`
}

func (c *NodeObjectsConfig) setDefaults() {
	c.DeletesPerSecond = status.DeletesPerSecond
	c.UnknownKeys = status.KeepUnknown
	c.Mode = status.Enforce
}

// NodeNameConfig says where an object has the name of its node: exactly one of the fields.
type NodeNameConfig struct {
	// Label is the key of a label whose value is the node's name.
	Label string `json:"label"`
	// Name: the object is named after its node.
	Name *struct{} `json:"name,omitempty"`
	// Field is the path of a field with the node's name.
	Field string `json:"field"`
}

// KeepAnnotationConfig protects objects that carry an annotation.
type KeepAnnotationConfig struct {
	// Annotation is its key. Empty: none protects.
	Annotation string `json:"annotation"`
	// Value that it must have. Empty: any.
	Value string `json:"value"`
}
