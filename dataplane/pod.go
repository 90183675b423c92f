package dataplane

import (
	"net/netip"
	"slices"
	"time"
)

// A PodRef names one life of a pod.
type PodRef struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func (p PodRef) String() string { return p.Namespace + "/" + p.Name }

// A Phase is a pod's status.phase.
type Phase string

// The phases of pods.
const (
	PodPending   Phase = "Pending"
	PodRunning   Phase = "Running"
	PodSucceeded Phase = "Succeeded"
	PodFailed    Phase = "Failed"
)

// A Pod is what counts of a pod here, as the API server had it.
type Pod struct {
	PodRef
	Created     time.Time // to the second
	Started     time.Time // when its node took it on, to the second; zero before
	HostNetwork bool      // it has the node's addresses, none of its own
	Phase       Phase
	Terminating bool          // it has a deletionTimestamp
	GracePeriod time.Duration // that its containers have to end when it is deleted
	Addresses   []netip.Addr  // status.podIPs; the API server can be asked for the first only
	Annotated   []netip.Addr  // what its annotations say it has
	SandboxLost bool          // its condition PodReadyToStartContainers is False
	Stopped     bool          // each of its containers was seen terminated
}

func (p *Pod) ended() bool { return p.Phase == PodSucceeded || p.Phase == PodFailed }

// has tells whether by its own status the pod has the address.
func (p *Pod) has(a netip.Addr) bool {
	return !p.HostNetwork && !p.ended() && slices.Contains(p.Addresses, a)
}

// claims tells whether the pod may have the address by its annotations, whatever its status says.
func (p *Pod) claims(a netip.Addr) bool {
	return !p.HostNetwork && !p.ended() && slices.Contains(p.Annotated, a)
}

// lostSandbox tells whether the pod's addresses are in doubt: they stand in its status, but its sandbox is gone. A real kubelet on Linux leaves
// them there.
func (p *Pod) lostSandbox() bool {
	return p.Phase == PodRunning && p.SandboxLost && len(p.Addresses) > 0
}

// silent tells whether that the pod shows no address means nothing: one that has not started yet, or of which the node does not know.
func (p *Pod) silent() bool {
	return len(p.Addresses) == 0 && !p.Terminating && p.Phase != PodRunning && !p.ended()
}

// Seconds is a number of seconds that somebody else gave as a duration, at most a year.
func Seconds(n int64) time.Duration {
	const year = 365 * 24 * 60 * 60
	return time.Duration(min(max(n, 0), year)) * time.Second
}
