package agent

import "time"

// RemovableLabel is the label by which a Node is opted in to being tainted and deleted, with the value "true".
const RemovableLabel = "unstale.dev/removable"

// NodeRecoveryConfig is about Nodes that stay Unknown. Tainting and deleting are two switches, both off by default.
type NodeRecoveryConfig struct {
	// Taint adds node.kubernetes.io/out-of-service.
	Taint TaintConfig `json:"taint"`
	// Prune deletes the Node.
	Prune PruneConfig `json:"prune"`
	// ClusterAPI is where Machines are found.
	ClusterAPI ClusterAPIConfig `json:"clusterAPI"`
	// Infrastructure are other resources that say whether a Node's machine still exists.
	Infrastructure []InfrastructureConfig `json:"infrastructure,omitempty"`
}

func (c *NodeRecoveryConfig) complete() {
	if c.Taint.NodeSelector == nil {
		c.Taint.NodeSelector = map[string]string{c.Prune.Label: "true"}
	}
}

// TaintConfig says when a Node gets the out-of-service taint.
type TaintConfig struct {
	// After is how long Ready must have been Unknown, in whole seconds. Absent: no Node is tainted.
	After *Duration `json:"after,omitempty"`
	// Confirm says what proves that the machine is gone. Default Infrastructure.
	Confirm Confirm `json:"confirm"`
	// NodeSelector are labels that a Node must have. Absent: the label of PruneConfig. Empty ({}): every Node but the
	// agent's own.
	NodeSelector map[string]string `json:"nodeSelector,omitzero"`
}

func (c *TaintConfig) setDefaults() { c.Confirm = ConfirmInfrastructure }

// Confirm says what proves that a Node's machine is gone.
type Confirm string

// The proofs.
const (
	// ConfirmInfrastructure: its infrastructure object is confirmed gone.
	ConfirmInfrastructure Confirm = "Infrastructure"
	// ConfirmLabel: the operator vouches for it with the label.
	ConfirmLabel Confirm = "Label"
)

// PruneConfig says when a Node is deleted.
type PruneConfig struct {
	// After is how long Ready must have been Unknown, in whole seconds and longer than TaintConfig.After. Absent: no Node
	// is deleted.
	After *Duration `json:"after,omitempty"`
	// Label is the key of the label, with the value "true", that opts a Node in. Default RemovableLabel.
	Label string `json:"label"`
	// MinReadyEtcdMembers is how many Ready Nodes with the etcd role must remain. Default 3, the smallest etcd cluster
	// that survives a loss. 0 is for clusters whose Nodes do not carry that role.
	MinReadyEtcdMembers int `json:"minReadyEtcdMembers"`
	// MaxUnhealthy is the share of unhealthy Nodes beyond which nothing is deleted. 1% to 100%, default 40%.
	MaxUnhealthy Percent `json:"maxUnhealthy"`
	// Interval is the least time between two deletions. 1s to 24h, default 1m.
	Interval Duration `json:"interval"`
}

func (c *PruneConfig) setDefaults() {
	c.Label = RemovableLabel
	c.MinReadyEtcdMembers = 3
	c.MaxUnhealthy = 40
	c.Interval = Duration(time.Minute)
}

// ClusterAPIConfig is where the Machines of Cluster API are found.
type ClusterAPIConfig struct {
	// Kubeconfig of the management cluster, a file. Empty: this cluster.
	Kubeconfig string `json:"kubeconfig"`
}

// InfrastructureConfig is a resource that stands for the machine of a Node.
type InfrastructureConfig struct {
	// Name is what messages call it. Unique in its list.
	Name string `json:"name"`
	// Resource to look at.
	Resource ResourceConfig `json:"resource"`
	// Namespace to look in. Empty: all.
	Namespace string `json:"namespace"`
	// Match says which object is a Node's.
	Match MatchConfig `json:"match"`
	// Kubeconfig of the cluster that has it, a file. Empty: this cluster.
	Kubeconfig string `json:"kubeconfig"`
}

// MatchConfig says which object stands for a Node: exactly one of the fields.
type MatchConfig struct {
	// ProviderID is the path of the object's field that equals the Node's spec.providerID.
	ProviderID string `json:"providerID"`
	// Annotation is the key of the Node's annotation that holds namespace/name of the object.
	Annotation string `json:"annotation"`
}
