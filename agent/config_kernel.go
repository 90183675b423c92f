package agent

import (
	"time"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/status"
)

// KernelConfig is about kernel tables that hold pod addresses.
type KernelConfig struct {
	// Mode Report logs what would go. Default Report: what a kernel table means is known only to its writer.
	Mode status.Mode `json:"mode"`
	// Grace is how long an address that a pod has lost is left alone. 1s to 1h, default 10s.
	Grace Duration `json:"grace"`
	// StateDir holds the journal. Default /var/lib/unstale.
	StateDir string `json:"stateDir"`
	// RuntimeEndpoint is the socket of the container runtime, asked for a second opinion. Empty: not asked.
	RuntimeEndpoint string `json:"runtimeEndpoint"`
	// PodAddressAnnotations are annotations of pods that claim addresses. Default: those of Calico and of the VPC CNI.
	PodAddressAnnotations []string `json:"podAddressAnnotations,omitempty"`
	// MaxRemovals is how many addresses (not entries) a pass scrubs at most. 1 to 4096, default 64.
	MaxRemovals int `json:"maxRemovals"`
	// IPSets and BPFMaps are tables whose layout the operator knows.
	IPSets  []IPSetConfig  `json:"ipsets,omitempty"`
	BPFMaps []BPFMapConfig `json:"bpfMaps,omitempty"`
	// Conntrack, Neighbors and HNS are tables whose layout the agent knows.
	Conntrack ConntrackConfig `json:"conntrack"`
	Neighbors NeighborsConfig `json:"neighbors"`
	HNS       HNSConfig       `json:"hns"`
}

func (c *KernelConfig) setDefaults() {
	c.Mode = status.Report
	c.Grace = Duration(10 * time.Second)
	c.StateDir = "/var/lib/unstale"
	c.PodAddressAnnotations = []string{"cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"}
	c.MaxRemovals = 64
}

// complete gives the targets without a mode the section's.
func (c *KernelConfig) complete() {
	for _, mode := range c.modes() {
		if *mode == "" {
			*mode = c.Mode
		}
	}
}

// setModes gives all targets that mode.
func (c *KernelConfig) setModes(to status.Mode) {
	for _, mode := range c.modes() {
		*mode = to
	}
}

// modes are those of the targets.
func (c *KernelConfig) modes() []*status.Mode {
	var modes []*status.Mode
	for i := range c.IPSets {
		modes = append(modes, &c.IPSets[i].Mode)
	}
	for i := range c.BPFMaps {
		modes = append(modes, &c.BPFMaps[i].Mode)
	}
	return append(modes, &c.Conntrack.Mode, &c.Neighbors.Mode, &c.HNS.Mode)
}

// OnSandboxLoss says what becomes of an address that is still in its pod's status while its sandbox is gone.
type OnSandboxLoss string

// What becomes of the address of a lost sandbox.
const (
	// SandboxLossReport only tells.
	SandboxLossReport OnSandboxLoss = "Report"
	// SandboxLossScrub is right for writers that add their entries again for every sandbox.
	SandboxLossScrub OnSandboxLoss = "Scrub"
)

// IPSetConfig is a group of ipsets.
type IPSetConfig struct {
	// Name of the target. A DNS label, unique among all targets.
	Name string `json:"name"`
	// Match is a regular expression (RE2, unanchored) for the names of the sets.
	Match string `json:"match"`
	// Types are the set types that are looked at; sets of others are left alone. Required.
	Types []string `json:"types,omitempty"`
	// MaxElemNot leaves sets with this maxelem alone. 0: none.
	MaxElemNot uint32 `json:"maxElemNot"`
	// Scope is required.
	Scope dataplane.Scope `json:"scope"`
	// OnSandboxLoss defaults to Report.
	OnSandboxLoss OnSandboxLoss `json:"onSandboxLoss"`
	// Mode defaults to KernelConfig.Mode; the more cautious of the two counts.
	Mode status.Mode `json:"mode"`
}

func (c *IPSetConfig) setDefaults() { c.OnSandboxLoss = SandboxLossReport }

// BPFMapConfig is a pinned BPF map, or several of one layout.
type BPFMapConfig struct {
	// Name of the target. A DNS label, unique among all targets.
	Name string `json:"name"`
	// Pin is the absolute path of the pin, or a glob.
	Pin string `json:"pin"`
	// Expect is what must be true of a map before it is touched.
	Expect ExpectConfig `json:"expect"`
	// Addresses are where a key holds pod addresses. An entry is a pod's when any of them is.
	Addresses []AddressConfig `json:"addresses,omitempty"`
	// PrefixLength is required for an LPM trie, and only there.
	PrefixLength *PrefixLengthConfig `json:"prefixLength,omitempty"`
	// KeepIf are conditions that protect an entry: any one does.
	KeepIf []KeepBitsConfig `json:"keepIf,omitempty"`
	// OwnerInterface is where the value holds the index of the pod's host interface.
	OwnerInterface *OwnerInterfaceConfig `json:"ownerInterface,omitempty"`
	// Scope is required.
	Scope dataplane.Scope `json:"scope"`
	// OnSandboxLoss defaults to Report.
	OnSandboxLoss OnSandboxLoss `json:"onSandboxLoss"`
	// Mode defaults to KernelConfig.Mode; the more cautious of the two counts.
	Mode status.Mode `json:"mode"`
}

func (c *BPFMapConfig) setDefaults() { c.OnSandboxLoss = SandboxLossReport }

// ExpectConfig is what must be true of a map before it is touched. 0 and "" mean any.
type ExpectConfig struct {
	Type dataplane.MapType `json:"type"`
	// KeySize and ValueSize are in bytes.
	KeySize   int `json:"keySize"`
	ValueSize int `json:"valueSize"`
	// Name is the one that the kernel has for the map, of at most 15 characters.
	Name string `json:"name"`
}

// AddressConfig is where a key holds an address, in network order. Offsets and sizes are in bytes.
type AddressConfig struct {
	Offset int `json:"offset"`
	// Size is 4 (IPv4) or 16.
	Size int `json:"size"`
	// Family is where a byte of the key tells what the 16 bytes hold.
	Family *FamilyConfig `json:"family,omitempty"`
	// Role of the address in the entry. Default owner.
	Role dataplane.Role `json:"role"`
}

func (c *AddressConfig) setDefaults() { c.Role = dataplane.RoleOwner }

// FamilyConfig is a byte of the key that tells the address family, and its two values.
type FamilyConfig struct {
	Offset int   `json:"offset"`
	IPv4   uint8 `json:"ipv4"`
	IPv6   uint8 `json:"ipv6"`
}

// PrefixLengthConfig is where the key of an LPM trie holds its prefix length: a host-endian u32.
type PrefixLengthConfig struct {
	Offset int `json:"offset"`
	// BaseBits are the bits before the address: a host entry has BaseBits plus those of the address.
	BaseBits int `json:"baseBits"`
}

// KeepBitsConfig protects entries with certain bits: those whose number at Offset, masked, equals Equals.
type KeepBitsConfig struct {
	// In is the part of the entry.
	In dataplane.EntryPart `json:"in"`
	// Offset and Size of the number in bytes; it is host-endian. Size is 1, 2, 4 or 8.
	Offset int `json:"offset"`
	Size   int `json:"size"`
	// Mask selects bits. Absent: all.
	Mask   *uint64 `json:"mask,omitempty"`
	Equals uint64  `json:"equals"`
}

// OwnerInterfaceConfig is where the value holds the index of the pod's host interface: a host-endian u32.
type OwnerInterfaceConfig struct {
	Offset int `json:"offset"`
}

// ConntrackConfig is about the kernel's table of connections.
type ConntrackConfig struct {
	// Enabled defaults to true.
	Enabled bool `json:"enabled"`
	// EnableTimestamps lets the agent set nf_conntrack_timestamp, so that the age of a connection is known. Default false.
	EnableTimestamps bool `json:"enableTimestamps"`
	// Mode defaults to KernelConfig.Mode; the more cautious of the two counts.
	Mode status.Mode `json:"mode"`
}

func (c *ConntrackConfig) setDefaults() { c.Enabled = true }

// NeighborsConfig is about the kernel's neighbour tables.
type NeighborsConfig struct {
	// Enabled defaults to true.
	Enabled bool `json:"enabled"`
	// Mode defaults to KernelConfig.Mode; the more cautious of the two counts.
	Mode status.Mode `json:"mode"`
}

func (c *NeighborsConfig) setDefaults() { c.Enabled = true }

// HNSConfig is about the Host Networking Service of Windows. It means nothing elsewhere.
type HNSConfig struct {
	// Enabled defaults to true.
	Enabled bool `json:"enabled"`
	// ACLPrefix is what the names of the ACLs begin with that may be touched. Default azure-acl-.
	ACLPrefix string `json:"aclPrefix"`
	// DeleteOrphanEndpoints allows deleting endpoints that no container has. Default false.
	DeleteOrphanEndpoints bool `json:"deleteOrphanEndpoints"`
	// Mode defaults to KernelConfig.Mode; the more cautious of the two counts.
	Mode status.Mode `json:"mode"`
}

func (c *HNSConfig) setDefaults() {
	c.Enabled = true
	c.ACLPrefix = "azure-acl-"
}
