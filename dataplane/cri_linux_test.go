//go:build kernel

package dataplane

import (
	"strings"
	"testing"

	"github.com/unstale/unstale/test/node"
)

// What a real containerd says of pods that start, that end, and that are taken away.
func TestCRIOfContainerd(t *testing.T) {
	c := node.NewContainerd(t, node.Options{IPv4: "10.99.1.0/24", IPv6: "fd99:1::/64"})
	runtime := newCRI(t, "unix://"+c.Socket)
	version, err := runtime.Version(t.Context())
	if err != nil || !strings.HasPrefix(version, "containerd ") {
		t.Errorf("%q, %v", version, err)
	}
	run := func(uid string, hostNetwork bool) string {
		t.Helper()
		id, _, err := c.RunPod(t.Context(), node.Pod{Namespace: "ns", Name: strings.ToLower(uid), UID: uid, HostNetwork: hostNetwork})
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	has := func(want string) {
		t.Helper()
		if got := sandboxesOf(t, runtime); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	has("")
	a := run("A", false)
	run("B", true)
	has("A 10.99.1.2 fd99:1::2, B")
	check(t, c.StopPod(t.Context(), a))
	has("B")
	run("C", false)
	has("B, C 10.99.1.3 fd99:1::3")
	check(t, c.RemovePod(t.Context(), a))
	has("B, C 10.99.1.3 fd99:1::3")
	check(t, c.Close())
	if _, err := runtime.Sandboxes(t.Context()); err == nil {
		t.Error("one that has ended answers")
	}
}
