//go:build linux && kernel

package agent

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/apiserver"
	"github.com/unstale/unstale/test/node"
)

// A runtimeScene is a scene whose pods have sandboxes in a real containerd.
type runtimeScene struct {
	*kernelScene
	containerd *node.Containerd
	sandboxes  map[string]string // ids, by the pods' names
}

func newRuntimeScene(t *testing.T) *runtimeScene {
	t.Helper()
	k := newKernelScene(t)
	c := node.NewContainerd(t, node.Options{IPv4: fmt.Sprintf("10.%d.0.0/24", k.net), IPv6: fmt.Sprintf("fd00:%d::/64", k.net)})
	k.scene.options = strings.Replace(k.scene.options, "  grace: 1s\n", "  grace: 1s\n  runtimeEndpoint: unix://"+c.Socket+"\n", 1)
	return &runtimeScene{k, c, map[string]string{}}
}

// run makes a pod that runs, with the address that the CNI plugin gives its sandbox, and its entries. It returns the address's last byte.
func (r *runtimeScene) run(name string) byte {
	r.scene.Helper()
	pod := r.server.CreatePod(r.scene.T, r.namespace, name, r.member.name, nil)
	id, addresses, err := r.containerd.RunPod(r.scene.Context(), node.Pod{Namespace: r.namespace, Name: name, UID: string(pod.GetUID())})
	if err != nil {
		r.scene.Fatal(err)
	}
	r.sandboxes[name] = id
	var n byte
	if _, err := fmt.Sscanf(addresses[0], fmt.Sprintf("10.%d.0.%%d", r.net), &n); err != nil {
		r.scene.Fatalf("%v: %v", addresses, err)
	}
	r.fill(n)
	r.status(name, `"phase": "Running", `+runs)
	r.has(name, n)
	return n
}

func (r *runtimeScene) end(name string) {
	r.scene.Helper()
	if err := r.containerd.StopPod(r.scene.Context(), r.sandboxes[name]); err != nil {
		r.scene.Fatal(err)
	}
}

func (r *runtimeScene) awaitLog(words string) {
	r.scene.Helper()
	apiserver.Eventually(r.scene.T, "the agent says "+words, func() error {
		if len(r.logs.FilterMessageSnippet(words).All()) == 0 {
			return errors.New(strings.Join(r.said(), "\n"))
		}
		return nil
	})
}

// What a real containerd has counts: the sandbox of a pod that was deleted by force, and that of one whose status shows no address. Without its
// answer nothing goes.
func TestKernelAsksTheRuntime(t *testing.T) {
	r := newRuntimeScene(t)
	forced, flickers, last := r.run("forced"), r.run("flickers"), r.run("last")
	r.start()
	r.awaitJournal(forced, flickers, last)
	r.awaitLog("the container runtime is asked before an entry goes")

	r.delete("forced")
	r.awaitDecision("node", forced, dataplane.StillRuns)
	r.has("flickers", 0)
	r.awaitDecision("node", flickers, dataplane.SandboxHas)
	if got := r.entries("node"); !slices.Equal(got, []byte{forced, flickers, last}) {
		t.Errorf("the table has %v", got)
	}
	r.end("forced")
	r.awaitEntries("the sandbox is gone, and the entry", "node", flickers, last)
	r.end("flickers")
	r.awaitEntries("likewise", "node", last)
	apiserver.Eventually(t, "nobody asks any more whether that was right", func() error {
		if slices.ContainsFunc(r.releases(), func(l dataplane.Release) bool { return l.Address == r.address(flickers) }) {
			return errors.New("it is not done with")
		}
		return nil
	})

	if err := r.containerd.Close(); err != nil {
		t.Fatal(err)
	}
	r.has("last", 0)
	r.awaitDecision("node", last, dataplane.Unconfirmed)
	r.awaitLog("the container runtime does not answer; meanwhile no entry goes")
	if got := r.entries("node"); !slices.Equal(got, []byte{last}) {
		t.Errorf("the table has %v", got)
	}
	r.scene.options = quick + "\n" + r.kernel("Enforce", kernelTable{"node", "scope: node"})
	r.config()
	r.awaitEntries("it is not asked any more", "node")
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
