package agent

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// hostIP is the environment variable that a pod's specification fills with status.hostIP.
const hostIP = "HOST_IP"

// gossipAddresses are the IP addresses to listen on and to tell others, as the configuration says. What it leaves open is the
// address in the environment variable HOST_IP, else the local one of the route to the API server; but who listens on one
// address tells others that one. apiServer is its address as client-go's configuration has it, getenv is os.Getenv.
func gossipAddresses(c GossipConfig, apiServer string, getenv func(string) string) (bind, advertise string, err error) {
	bind, advertise = c.BindAddress, c.AdvertiseAddress
	if advertise == "" && bind != "" {
		if ip, err := netip.ParseAddr(bind); err == nil && !ip.IsUnspecified() {
			advertise = bind
		}
	}
	if bind != "" && advertise != "" {
		return bind, advertise, nil
	}
	own, err := ownAddress(apiServer, getenv)
	if err != nil {
		return "", "", err
	}
	if bind == "" {
		bind = own
	}
	if advertise == "" {
		advertise = own
	}
	return bind, advertise, nil
}

// ownAddress is the address under which other nodes reach this one.
func ownAddress(apiServer string, getenv func(string) string) (string, error) {
	if text := getenv(hostIP); text != "" {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.IsUnspecified() {
			return "", fmt.Errorf("the environment variable %s must hold this node's IP address, got %q; correct it, or set gossip.bindAddress", hostIP, text)
		}
		return ip.String(), nil
	}
	ip, err := routeAddress(apiServer)
	if err != nil {
		return "", fmt.Errorf("no address for gossip: neither gossip.bindAddress nor the environment variable %s is set, and %w", hostIP, err)
	}
	if ip.IsLoopback() {
		return "", fmt.Errorf("no address for gossip: the API server is reached over loopback (%s), where other nodes cannot reach this one; "+
			"set gossip.bindAddress or the environment variable %s", apiServer, hostIP)
	}
	return ip.String(), nil
}

// routeAddress is the local address that packets to the API server have. None is sent.
func routeAddress(apiServer string) (netip.Addr, error) {
	server, _, err := rest.DefaultServerURL(apiServer, "", schema.GroupVersion{}, true)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the API server's address %q cannot be read: %w", apiServer, err)
	}
	port := server.Port()
	if port == "" {
		port = "443" // any would do
	}
	conn, err := net.Dial("udp", net.JoinHostPort(server.Hostname(), port))
	if err != nil {
		return netip.Addr{}, fmt.Errorf("there is no route to the API server %s: %w", apiServer, err)
	}
	defer conn.Close()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, errors.New("the route to the API server has no local IP address")
	}
	return local.AddrPort().Addr().Unmap(), nil
}

// familyOf is the family of an address, in the words of EndpointSlices.
func familyOf(address string) discoveryv1.AddressType {
	if ip, err := netip.ParseAddr(address); err == nil && !ip.Unmap().Is4() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}
