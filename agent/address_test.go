package agent

import (
	"strings"
	"testing"
)

func TestGossipAddresses(t *testing.T) {
	const local = "https://127.0.0.1:6443" // the route there is loopback, which is no use to others
	for name, test := range map[string]struct {
		bind, advertise, hostIP string
		wantBind, wantAdvertise string
		wantError               string
	}{
		"as configured":                    {bind: "192.0.2.1", advertise: "198.51.100.1", wantBind: "192.0.2.1", wantAdvertise: "198.51.100.1"},
		"who binds one advertises it":      {bind: "192.0.2.1", hostIP: "192.0.2.9", wantBind: "192.0.2.1", wantAdvertise: "192.0.2.1"},
		"loopback when asked for":          {bind: "127.0.0.5", wantBind: "127.0.0.5", wantAdvertise: "127.0.0.5"},
		"all IPv4 addresses":               {bind: "0.0.0.0", hostIP: "192.0.2.9", wantBind: "0.0.0.0", wantAdvertise: "192.0.2.9"},
		"all addresses":                    {bind: "::", hostIP: "2001:db8::9", wantBind: "::", wantAdvertise: "2001:db8::9"},
		"all, and one to tell":             {bind: "0.0.0.0", advertise: "198.51.100.1", wantBind: "0.0.0.0", wantAdvertise: "198.51.100.1"},
		"HOST_IP":                          {hostIP: "192.0.2.9", wantBind: "192.0.2.9", wantAdvertise: "192.0.2.9"},
		"HOST_IP is loopback on purpose":   {hostIP: "127.0.0.1", wantBind: "127.0.0.1", wantAdvertise: "127.0.0.1"},
		"only what others are told":        {advertise: "198.51.100.1", hostIP: "192.0.2.9", wantBind: "192.0.2.9", wantAdvertise: "198.51.100.1"},
		"HOST_IP is no address":            {hostIP: "node-1", wantError: `HOST_IP must hold this node's IP address, got "node-1"`},
		"HOST_IP is every address":         {hostIP: "0.0.0.0", wantError: "HOST_IP must hold this node's IP address"},
		"a route that others cannot take":  {wantError: "set gossip.bindAddress or the environment variable HOST_IP"},
		"all, and that route to tell":      {bind: "0.0.0.0", wantError: "over loopback (" + local + ")"},
		"HOST_IP is not looked at in vain": {bind: "192.0.2.1", hostIP: "node-1", wantBind: "192.0.2.1", wantAdvertise: "192.0.2.1"},
	} {
		t.Run(name, func(t *testing.T) {
			getenv := func(name string) string {
				if name == "HOST_IP" {
					return test.hostIP
				}
				return ""
			}
			bind, advertise, err := gossipAddresses(GossipConfig{BindAddress: test.bind, AdvertiseAddress: test.advertise}, local, getenv)
			if test.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantError) {
					t.Errorf("got the error %v, want one with %q", err, test.wantError)
				}
				return
			}
			if err != nil || bind != test.wantBind || advertise != test.wantAdvertise {
				t.Errorf("got %q, %q and the error %v, want %q and %q", bind, advertise, err, test.wantBind, test.wantAdvertise)
			}
		})
	}
}

func TestRouteAddress(t *testing.T) {
	for _, server := range []string{"https://127.0.0.1:6443", "127.0.0.1", "127.0.0.1:6443", "https://127.0.0.1/cluster/a", "http://127.0.0.1:8080"} {
		if ip, err := routeAddress(server); err != nil || ip.String() != "127.0.0.1" {
			t.Errorf("%s: got %s and the error %v, want 127.0.0.1", server, ip, err)
		}
	}
	for _, server := range []string{"https://a b", "https://name.invalid:6443"} {
		if ip, err := routeAddress(server); err == nil || !strings.Contains(err.Error(), server) {
			t.Errorf("%s: got %s and the error %v, want one that names it", server, ip, err)
		}
	}
}
