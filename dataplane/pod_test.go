package dataplane

import (
	"net/netip"
	"testing"
	"time"
)

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

// What a pod's own word on an address counts for.
func TestPodHas(t *testing.T) {
	a := addr("10.0.0.1")
	for _, test := range []struct {
		name        string
		pod         Pod
		has, claims bool
	}{
		{"in the status", Pod{Phase: PodRunning, Addresses: []netip.Addr{a}}, true, false},
		{"in the status, as the second", Pod{Phase: PodRunning, Addresses: []netip.Addr{addr("fd00::1"), a}}, true, false},
		{"in an annotation", Pod{Phase: PodRunning, Annotated: []netip.Addr{a}}, false, true},
		{"in an annotation of one that has not started", Pod{Phase: PodPending, Annotated: []netip.Addr{addr("10.0.0.2"), a}}, false, true},
		{"in the status of one that has not started", Pod{Phase: PodPending, Addresses: []netip.Addr{a}}, true, false},
		{"of one being deleted", Pod{Phase: PodRunning, Terminating: true, Addresses: []netip.Addr{a}, Annotated: []netip.Addr{a}}, true, true},
		{"of one whose sandbox is lost", Pod{Phase: PodRunning, SandboxLost: true, Addresses: []netip.Addr{a}}, true, false},
		{"of one whose containers have ended, but that may start them again", Pod{Phase: PodRunning, Stopped: true, Addresses: []netip.Addr{a}}, true, false},
		{"in a phase nobody knows", Pod{Phase: "Unknown", Addresses: []netip.Addr{a}, Annotated: []netip.Addr{a}}, true, true},
		{"of one that succeeded", Pod{Phase: PodSucceeded, Addresses: []netip.Addr{a}, Annotated: []netip.Addr{a}}, false, false},
		{"of one that failed", Pod{Phase: PodFailed, Addresses: []netip.Addr{a}, Annotated: []netip.Addr{a}}, false, false},
		{"of one with the node's network", Pod{Phase: PodRunning, HostNetwork: true, Addresses: []netip.Addr{a}, Annotated: []netip.Addr{a}}, false, false},
		{"another address", Pod{Phase: PodRunning, Addresses: []netip.Addr{addr("10.0.0.2")}, Annotated: []netip.Addr{addr("10.0.0.2")}}, false, false},
	} {
		if has, claims := test.pod.has(a), test.pod.claims(a); has != test.has || claims != test.claims {
			t.Errorf("%s: has %v, claims %v; want %v, %v", test.name, has, claims, test.has, test.claims)
		}
	}
}

// A lost sandbox is one of a pod that runs and shows an address. That of one that has not started is only not there yet.
func TestPodLostSandbox(t *testing.T) {
	a := []netip.Addr{addr("10.0.0.1")}
	for _, test := range []struct {
		pod  Pod
		want bool
	}{
		{Pod{Phase: PodRunning, SandboxLost: true, Addresses: a}, true},
		{Pod{Phase: PodRunning, SandboxLost: true, Terminating: true, Addresses: a}, true},
		{Pod{Phase: PodRunning, Addresses: a}, false},
		{Pod{Phase: PodRunning, SandboxLost: true}, false},
		{Pod{Phase: PodPending, SandboxLost: true, Addresses: a}, false},
		{Pod{Phase: PodSucceeded, SandboxLost: true, Addresses: a}, false},
	} {
		if got := test.pod.lostSandbox(); got != test.want {
			t.Errorf("%+v: %v", test.pod, got)
		}
	}
}

func TestSeconds(t *testing.T) {
	for n, want := range map[int64]time.Duration{-1: 0, 0: 0, 1: time.Second, 30: 30 * time.Second, 1 << 62: 365 * 24 * time.Hour} {
		if got := Seconds(n); got != want {
			t.Errorf("Seconds(%d) = %s, want %s", n, got, want)
		}
	}
}
