package dataplane

import (
	"context"
	"net/netip"
)

// A Target is a table with what its configuration says of it.
type Target struct {
	Name        string
	Table       Table
	Scope       Scope
	ScrubOnLoss bool // onSandboxLoss is Scrub
	Enforce     bool // false: mode is Report
}

// A Cluster is the API server, asked at the moment of acting.
type Cluster interface {
	// NodePods are the pods of this node.
	NodePods(context.Context) ([]Pod, error)
	// PodsWith are the pods of any node whose first address is that.
	PodsWith(context.Context, netip.Addr) ([]Pod, error)
}

// sources are who can tell of addresses at the moment of acting.
type sources struct {
	cluster Cluster
	host    func() (HostState, error)
	runtime Runtime // nil: not asked
}

// A HostState is the node's own network at one moment.
type HostState struct {
	Addresses  map[netip.Addr]string // with the name of their interface
	Interfaces map[uint32]bool       // the indexes of those that exist
}

// A Recorder tells of a removal whether what is logged of it is safely written: it is called before, what it returns after the logging. What is not
// written is not removed.
type Recorder func() (written func() error, err error)
