package agent

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/status"
)

const (
	// maxKernelRemovals keeps a pass short: its addresses are asked for one by one in the cluster.
	maxKernelRemovals = 4096
	// maxMapName is BPF_OBJ_NAME_LEN of linux/bpf.h, 16, without its final zero byte.
	maxMapName = 15
	// prefixLengthSize is the u32 that struct bpf_lpm_trie_key of linux/bpf.h begins with, in bytes.
	prefixLengthSize = 4
	// interfaceIndexSize is that of a network interface's index, in bytes.
	interfaceIndexSize = 4
)

// ipsetTypes are the set types with pod addresses whose entries the agent knows how to remove one by one. Sets of sets
// and of networks with conditions are not among them.
var ipsetTypes = []string{"hash:ip", "hash:net", "hash:ip,port", "hash:ip,port,ip", "hash:net,port"}

func (f *checks) kernel(at location, c KernelConfig) {
	f.mode(at.field("mode"), c.Mode)
	f.between(at.field("grace"), c.Grace, time.Second, time.Hour)
	if !isAbsolute(c.StateDir) {
		f.failf(at.field("stateDir"), "must be an absolute path such as /var/lib/unstale, got %s", quote(c.StateDir))
	}
	if e := c.RuntimeEndpoint; e != "" && !strings.HasPrefix(e, "unix:///") && !strings.HasPrefix(e, "npipe://") && !isAbsolute(e) {
		f.failf(at.field("runtimeEndpoint"), "must be a socket such as unix:///run/containerd/containerd.sock, got %s", quote(e))
	}
	for i, key := range c.PodAddressAnnotations {
		f.qualifiedKey(at.field("podAddressAnnotations").item(i), key)
	}
	f.inRange(at.field("maxRemovals"), c.MaxRemovals, 1, maxKernelRemovals)
	for i, set := range c.IPSets {
		inner := at.field("ipsets").item(i)
		f.ipset(inner, set)
		f.modeBelow(inner, set.Mode, c.Mode)
	}
	for i, m := range c.BPFMaps {
		inner := at.field("bpfMaps").item(i)
		f.bpfMap(inner, m)
		f.modeBelow(inner, m.Mode, c.Mode)
	}
	f.modeBelow(at.field("conntrack"), c.Conntrack.Mode, c.Mode)
	f.modeBelow(at.field("neighbors"), c.Neighbors.Mode, c.Mode)
	f.modeBelow(at.field("hns"), c.HNS.Mode, c.Mode)
	if c.HNS.Enabled && c.HNS.ACLPrefix == "" {
		f.failf(at.field("hns").field("aclPrefix"), "must not be empty, which would be every ACL; give a prefix such as azure-acl- or set enabled: false")
	}
}

// modeBelow checks the mode of a target. One that it has from its section was checked there.
func (f *checks) modeBelow(at location, mode, section status.Mode) {
	if mode != section {
		f.mode(at.field("mode"), mode)
	}
}

var windowsPath = regexp.MustCompile(`^[A-Za-z]:[\\/]`)

// isAbsolute takes the paths of Linux and of Windows: a configuration is also checked on machines that it is not for.
func isAbsolute(file string) bool { return path.IsAbs(file) || windowsPath.MatchString(file) }

func (f *checks) ipset(at location, c IPSetConfig) {
	match := at.field("match")
	if f.required(match, c.Match, "^azure-npm-") {
		if _, err := regexp.Compile(c.Match); err != nil {
			f.failf(match, "must be a regular expression (RE2): %v", err)
		}
	}
	if len(c.Types) == 0 {
		f.failf(at.field("types"), "is required: at least one of %s", strings.Join(ipsetTypes, " "))
	}
	for i, kind := range c.Types {
		if !slices.Contains(ipsetTypes, kind) {
			f.failf(at.field("types").item(i), "must be one of %s, got %s", strings.Join(ipsetTypes, " "), quote(kind))
		}
	}
	oneOf(f, at.field("scope"), c.Scope, dataplane.ScopeNode, dataplane.ScopeCluster)
	oneOf(f, at.field("onSandboxLoss"), c.OnSandboxLoss, SandboxLossReport, SandboxLossScrub)
}

func (f *checks) bpfMap(at location, c BPFMapConfig) {
	pin := at.field("pin")
	if _, err := path.Match(c.Pin, ""); err != nil {
		f.failf(pin, "must be a path or a glob: %v in %s", err, quote(c.Pin))
	} else if !path.IsAbs(c.Pin) {
		f.failf(pin, "must be an absolute path such as /sys/fs/bpf/tc/globals/cilium_lxc, got %s", quote(c.Pin))
	}
	f.expect(at.field("expect"), c.Expect)
	if len(c.Addresses) == 0 {
		f.failf(at.field("addresses"), "is required: at least one, such as {offset: 0, size: 16}")
	}
	for i, address := range c.Addresses {
		f.address(at.field("addresses").item(i), address, c.Expect.KeySize)
	}
	f.prefixLength(at.field("prefixLength"), c)
	for i, condition := range c.KeepIf {
		f.keepBits(at.field("keepIf").item(i), condition, c.Expect)
	}
	if c.OwnerInterface != nil {
		f.fits(at.field("ownerInterface").field("offset"), c.OwnerInterface.Offset, interfaceIndexSize, "value", c.Expect.ValueSize)
	}
	oneOf(f, at.field("scope"), c.Scope, dataplane.ScopeNode, dataplane.ScopeCluster)
	oneOf(f, at.field("onSandboxLoss"), c.OnSandboxLoss, SandboxLossReport, SandboxLossScrub)
}

func (f *checks) expect(at location, c ExpectConfig) {
	if c.Type != "" {
		oneOf(f, at.field("type"), c.Type, dataplane.MapHash, dataplane.MapLRUHash, dataplane.MapLPMTrie)
	}
	if c.KeySize < 0 {
		f.failf(at.field("keySize"), "must be a number of bytes, or 0 for any, got %d", c.KeySize)
	}
	if c.ValueSize < 0 {
		f.failf(at.field("valueSize"), "must be a number of bytes, or 0 for any, got %d", c.ValueSize)
	}
	if len(c.Name) > maxMapName {
		f.failf(at.field("name"), "must have at most %d characters, which is what the kernel keeps of it, got %s", maxMapName, quote(c.Name))
	}
}

// fits wants a number of bytes at an offset to lie within a part of the entry. A whole of 0 is of unknown size.
func (f *checks) fits(at location, offset, size int, part string, whole int) {
	switch {
	case offset < 0:
		f.failf(at, "must not be negative, got %d", offset)
	case whole > 0 && offset > whole-size:
		f.failf(at, "must leave room for what is there, of size %d, in a %s of size %d, got %d", size, part, whole, offset)
	}
}

func (f *checks) address(at location, c AddressConfig, keySize int) {
	if c.Size != 4 && c.Size != 16 {
		f.failf(at.field("size"), "must be 4 (IPv4) or 16, got %d", c.Size)
	} else {
		f.fits(at.field("offset"), c.Offset, c.Size, "key", keySize)
	}
	oneOf(f, at.field("role"), c.Role, dataplane.RoleOwner, dataplane.RoleSource, dataplane.RoleDestination)
	if c.Family == nil {
		return
	}
	family := at.field("family")
	f.fits(family.field("offset"), c.Family.Offset, 1, "key", keySize)
	if c.Size == 4 {
		f.failf(family, "must not be given with size 4, which is always IPv4; remove it")
	}
	if c.Family.Offset >= c.Offset && c.Family.Offset-c.Offset < c.Size {
		f.failf(family.field("offset"), "must not lie in the address itself, got %d", c.Family.Offset)
	}
	if c.Family.IPv4 == c.Family.IPv6 {
		f.failf(family, "must have different values for ipv4 and ipv6, got %d for both", c.Family.IPv4)
	}
}

func (f *checks) prefixLength(at location, c BPFMapConfig) {
	isTrie := c.Expect.Type == dataplane.MapLPMTrie
	switch {
	case isTrie && c.PrefixLength == nil:
		f.failf(at, "is required for an LPMTrie, such as {offset: 0, baseBits: 0}: without it a network could be taken for a host")
	case !isTrie && c.PrefixLength != nil:
		f.failf(at, "must be given only with expect.type: LPMTrie; no other map has one")
	}
	if c.PrefixLength == nil {
		return
	}
	if c.PrefixLength.Offset != 0 {
		f.failf(at.field("offset"), "must be 0, where the kernel keeps it, got %d", c.PrefixLength.Offset)
	}
	base := at.field("baseBits")
	if c.PrefixLength.BaseBits < 0 || c.PrefixLength.BaseBits%8 != 0 {
		f.failf(base, "must be whole bytes, such as 0 or 32, got %d", c.PrefixLength.BaseBits)
	}
	if len(c.Addresses) > 1 {
		f.failf(at, "must be given with one address only: what is a host entry would not be clear")
	}
	if len(c.Addresses) == 1 && c.Expect.KeySize > 0 {
		bits, host := 8*(c.Expect.KeySize-prefixLengthSize), c.PrefixLength.BaseBits+8*c.Addresses[0].Size // of IPv6, where both may be
		if host > bits {
			f.failf(base, "is too large: with the address a host entry would have %d bits, of a key's %d", host, bits)
		}
	}
}

func (f *checks) keepBits(at location, c KeepBitsConfig, expect ExpectConfig) {
	oneOf(f, at.field("in"), c.In, dataplane.InKey, dataplane.InValue)
	if !slices.Contains([]int{1, 2, 4, 8}, c.Size) {
		f.failf(at.field("size"), "must be 1, 2, 4 or 8 bytes, got %d", c.Size)
		return
	}
	whole := expect.ValueSize
	if c.In == dataplane.InKey {
		whole = expect.KeySize
	}
	f.fits(at.field("offset"), c.Offset, c.Size, string(c.In), whole)
	all := ^uint64(0) >> (64 - 8*c.Size)
	mask := all
	if c.Mask != nil {
		mask = *c.Mask
	}
	switch {
	case mask == 0:
		f.failf(at.field("mask"), "must select a bit; leave it out for all")
	case mask&^all != 0:
		f.failf(at.field("mask"), "must fit into %d bytes, got %#x", c.Size, mask)
	case c.Equals&^mask != 0:
		f.failf(at.field("equals"), "must have no bits outside the mask %#x, or it never holds, got %#x", mask, c.Equals)
	}
}
