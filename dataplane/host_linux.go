package dataplane

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/vishvananda/netlink"
)

// ReadHost reads the node's own addresses and interfaces, in the network namespace of the caller.
func ReadHost() (HostState, error) {
	s := HostState{Addresses: map[netip.Addr]string{}, Interfaces: map[uint32]bool{}}
	links, err := netlink.LinkList()
	if err != nil {
		return s, fmt.Errorf("list the interfaces: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		s.Interfaces[uint32(l.Attrs().Index)] = true
	}
	addresses, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return s, fmt.Errorf("list the addresses: %w", err)
	}
	for _, a := range addresses {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			s.Addresses[ip.Unmap()] = names[a.LinkIndex]
		}
	}
	return s, nil
}

// BootID is another one after each boot (proc(5), random/boot_id).
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the kernel's boot id: %w", err)
	}
	return strings.TrimSpace(string(id)), nil
}
