//go:build linux && kernel

package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/apiserver"
	"github.com/unstale/unstale/test/bpffs"
)

// A kernelScene is one node with pods on the real API server, BPF maps with their addresses in the real kernel, and the node's agent.
type kernelScene struct {
	*scene
	*member
	pins  string
	state string
	net   byte // addresses are 10.net.0.n
	maps  map[string]*ebpf.Map

	markers byte
}

var networks atomic.Int32

// A kernelTable is a map of a scene: one address is one entry.
type kernelTable struct{ name, more string }

// newKernelScene prepares a scene with a table of the node's addresses, and those given, which are removed from.
func newKernelScene(t *testing.T, tables ...kernelTable) *kernelScene {
	t.Helper()
	s := newScene(t)
	k := &kernelScene{scene: s, pins: bpffs.New(t), state: filepath.Join(t.TempDir(), "state"), net: byte(networks.Add(1)), maps: map[string]*ebpf.Map{}}
	s.options = quick + "\n" + k.kernel("Enforce", append(tables, kernelTable{"node", "scope: node"})...)
	k.member = s.member(s.node())
	s.create(k.member.name)
	return k
}

// kernel is the section of the configuration.
func (k *kernelScene) kernel(mode string, tables ...kernelTable) string {
	text := fmt.Sprintf("kernel:\n  mode: %s\n  grace: 1s\n  stateDir: %s\n  bpfMaps:\n", mode, k.state)
	for _, table := range tables {
		pin := filepath.Join(k.pins, table.name)
		text += fmt.Sprintf("  - {name: %s, pin: %s, expect: {type: Hash, keySize: 4}, addresses: [{offset: 0, size: 4}], %s}\n", table.name, pin, table.more)
		if k.maps[table.name] != nil {
			continue
		}
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1000})
		if err == nil {
			err = m.Pin(pin)
		}
		if err != nil {
			k.scene.Fatal(err)
		}
		k.scene.Cleanup(func() { m.Close() })
		k.maps[table.name] = m
	}
	return text
}

func (k *kernelScene) address(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, k.net, 0, n}) }

// fill writes an entry for each address into all tables.
func (k *kernelScene) fill(numbers ...byte) {
	k.scene.Helper()
	for _, m := range k.maps {
		for _, n := range numbers {
			if err := m.Put(k.address(n).AsSlice(), binary.NativeEndian.AppendUint32(nil, uint32(n))); err != nil {
				k.scene.Fatal(err)
			}
		}
	}
}

// entries are a table's, by the last byte of their address. Their values must be as they were written.
func (k *kernelScene) entries(table string) []byte {
	k.scene.Helper()
	var numbers []byte
	var key, value []byte
	entries := k.maps[table].Iterate()
	for entries.Next(&key, &value) {
		if binary.NativeEndian.Uint32(value) != uint32(key[3]) {
			k.scene.Errorf("the entry %x has the value %x", key, value)
		}
		numbers = append(numbers, key[3])
	}
	if err := entries.Err(); err != nil {
		k.scene.Fatal(err)
	}
	slices.Sort(numbers)
	return numbers
}

// awaitEntries waits until a table has these entries and no others.
func (k *kernelScene) awaitEntries(what, table string, numbers ...byte) {
	k.scene.Helper()
	apiserver.Eventually(k.scene.T, what, func() error {
		if got := k.entries(table); !slices.Equal(got, numbers) {
			return fmt.Errorf("table %s has %v, want %v; the agent said:\n%s", table, got, numbers, strings.Join(k.said(), "\n"))
		}
		return nil
	})
}

const (
	runs  = `"containerStatuses": [{"name": "c", "image": "none", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]`
	ended = `"containerStatuses": [{"name": "c", "image": "none", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]`
)

// pod makes a running pod with an address; 0: none.
func (k *kernelScene) pod(name string, n byte) {
	k.scene.Helper()
	k.podOn(k.member.name, name, n)
}

func (k *kernelScene) podOn(node, name string, n byte) {
	k.scene.Helper()
	k.server.CreatePod(k.scene.T, k.namespace, name, node, nil)
	k.status(name, `"phase": "Running", `+runs)
	k.has(name, n)
}

// has writes a pod's address; 0: none.
func (k *kernelScene) has(name string, n byte) {
	k.scene.Helper()
	if n == 0 {
		k.status(name, `"podIP": null, "podIPs": null`)
		return
	}
	k.status(name, fmt.Sprintf(`"podIP": "%s", "podIPs": [{"ip": "%[1]s"}]`, k.address(n)))
}

// sandbox writes the condition that tells whether the pod's sandbox is there.
func (k *kernelScene) sandbox(name, is string) {
	k.scene.Helper()
	k.status(name, fmt.Sprintf(`"conditions": [{"type": "PodReadyToStartContainers", "status": %q}]`, is))
}

func (k *kernelScene) status(name, fields string) {
	k.scene.Helper()
	k.server.PatchStatus(k.scene.T, apiserver.Pods, k.namespace, name, `{"status": {`+fields+`}}`)
}

// delete deletes a pod at once, as kubelets do when its containers have ended, and others by force.
func (k *kernelScene) delete(name string) {
	k.scene.Helper()
	now := int64(0)
	err := k.server.Dynamic().Resource(apiserver.Pods).Namespace(k.namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		k.scene.Fatal(err)
	}
}

// awaitSeen waits until the agent has looked at all pods that there are: a marker's address is lost, and its entry goes.
func (k *kernelScene) awaitSeen(table string) {
	k.scene.Helper()
	name := apiserver.Unique("marker")
	k.markers++
	n := 255 - k.markers
	k.fillOne(table, n)
	k.pod(name, n)
	k.awaitJournal(n)
	k.has(name, 0)
	apiserver.Eventually(k.scene.T, "the marker's entry is gone", func() error {
		if slices.Contains(k.entries(table), n) {
			return fmt.Errorf("it is there; the agent said:\n%s", strings.Join(k.said(), "\n"))
		}
		return nil
	})
}

func (k *kernelScene) fillOne(table string, n byte) {
	k.scene.Helper()
	if err := k.maps[table].Put(k.address(n).AsSlice(), binary.NativeEndian.AppendUint32(nil, uint32(n))); err != nil {
		k.scene.Fatal(err)
	}
}

// awaitJournal waits until the agent has written down who has the addresses.
func (k *kernelScene) awaitJournal(numbers ...byte) {
	k.scene.Helper()
	apiserver.Eventually(k.scene.T, "the journal has the addresses", func() error {
		journal, err := dataplane.JournalDir(k.state).Load()
		if err != nil {
			return err
		}
		var had []netip.Addr
		for _, p := range journal.Pods {
			had = append(had, slices.Concat(p.Addresses, p.Others)...)
		}
		for _, n := range numbers {
			if !slices.Contains(had, k.address(n)) {
				return fmt.Errorf("it has %v; the agent said:\n%s", had, strings.Join(k.said(), "\n"))
			}
		}
		return nil
	})
}

// awaitDecision waits until the agent has decided so on an address, as /debug/decisions tells.
func (k *kernelScene) awaitDecision(target string, n byte, reason dataplane.Reason) {
	k.scene.Helper()
	apiserver.Eventually(k.scene.T, "a decision", func() error {
		all := k.agent.decisions.find(decisionFilter{target: target, key: k.address(n).String(), limit: maxDecisions})
		for _, d := range all {
			if string(d.Reason) == string(reason) {
				return nil
			}
		}
		return fmt.Errorf("on %s in %s there is none that says %s: %v; the agent said:\n%s", k.address(n), target, reason, all, strings.Join(k.said(), "\n"))
	})
}

// Entries go when their pod no longer shows the address, when it has ended, when it is gone; those of all others stay, byte for byte.
func TestKernelEntriesGo(t *testing.T) {
	k := newKernelScene(t)
	k.fill(1, 2, 3, 4, 5, 6)
	k.pod("loses", 1)
	k.pod("ends", 2)
	k.pod("goes", 3)
	k.pod("stays", 4)
	k.pod("moves", 5)
	k.start()
	k.awaitJournal(1, 2, 3, 4, 5)
	k.has("loses", 0)
	k.status("ends", `"phase": "Succeeded", `+ended)
	k.status("goes", ended)
	k.delete("goes")
	k.has("moves", 7)
	k.fill(7)
	k.awaitEntries("the lost addresses' entries are gone", "node", 4, 6, 7)
	k.awaitDecision("node", 1, dataplane.AddressLost)
	k.awaitDecision("node", 2, dataplane.PodFinished)
	k.awaitDecision("node", 3, dataplane.PodGone)
	k.awaitDone()
	if err := k.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	journal, err := dataplane.JournalDir(k.state).Load()
	if err != nil || len(journal.Pods) != 2 {
		t.Errorf("the journal has %+v (%v)", journal, err)
	}
}

// An address that is there again within the grace was never lost.
func TestKernelAddressAwayForAMoment(t *testing.T) {
	k := newKernelScene(t)
	k.fill(1)
	k.pod("flaps", 1)
	k.start()
	k.awaitJournal(1)
	k.has("flaps", 0)
	k.has("flaps", 1)
	k.awaitSeen("node")
	if got := k.entries("node"); !slices.Equal(got, []byte{1}) {
		t.Errorf("the table has %v", got)
	}
}

// A lost sandbox is told at once, and acted on only where the table says so, and not if it is back.
func TestKernelSandboxLost(t *testing.T) {
	k := newKernelScene(t, kernelTable{"scrubs", "scope: node, onSandboxLoss: Scrub"})
	k.fill(1, 2)
	k.pod("lost", 1)
	k.pod("back", 2)
	k.start()
	k.awaitJournal(1, 2)
	k.sandbox("back", "False")
	k.sandbox("back", "True")
	k.sandbox("lost", "False")
	k.awaitDecision("node", 1, dataplane.SandboxLost)
	k.awaitEntries("the entry is gone where the table says so", "scrubs", 2)
	if got := k.entries("node"); !slices.Equal(got, []byte{1, 2}) {
		t.Errorf("the other table has %v", got)
	}
}

// An address that another pod has by now is that pod's, in whatever order the news comes.
func TestKernelAddressIsAnothers(t *testing.T) {
	k := newKernelScene(t)
	k.fill(1, 2, 3, 4)
	k.pod("a", 1)
	k.pod("same-name", 2)
	k.pod("restart", 3)
	k.pod("to-host", 4)
	k.start()
	k.awaitJournal(1, 2, 3, 4)
	k.pod("b", 1) // before anybody has heard of a's loss
	k.has("a", 0)
	k.status("a", ended)
	k.delete("a")
	k.status("same-name", ended)
	k.delete("same-name")
	k.pod("same-name", 2)
	k.kill()
	k.has("restart", 0)
	k.pod("heir", 3)
	k.has("to-host", 0)
	k.server.Apply(t, k.namespace, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: host}\nspec: {nodeName: %s, hostNetwork: true, containers: [{name: c, image: none}]}\nstatus: {phase: Running, podIP: %s, podIPs: [{ip: %[2]s}]}\n",
		k.member.name, k.address(4)))
	k.member.proxy.SetFault(nil)
	k.start()
	k.awaitDecision("node", 1, dataplane.PodHasAddress)
	k.awaitDecision("node", 3, dataplane.PodHasAddress)
	k.awaitSeen("node")
	// A pod of the node's network owns nothing, so the last one is nobody's.
	if got := k.entries("node"); !slices.Equal(got, []byte{1, 2, 3}) {
		t.Errorf("the table has %v; the agent said:\n%s", got, strings.Join(k.said(), "\n"))
	}
}

// awaitDone waits until the agent has nothing to do.
func (k *kernelScene) awaitDone() {
	k.scene.Helper()
	apiserver.Eventually(k.scene.T, "no release is left", func() error {
		if left := k.releases(); len(left) > 0 {
			return fmt.Errorf("there are %+v", left)
		}
		return nil
	})
}

// What pods lose while the agent is down is found by the journal. Without one nothing is removed on a guess.
func TestKernelJournal(t *testing.T) {
	for _, with := range []bool{true, false} {
		t.Run(fmt.Sprintf("journal %v", with), func(t *testing.T) {
			k := newKernelScene(t)
			k.fill(1, 2)
			k.pod("loses", 1)
			k.pod("stays", 2)
			k.start()
			k.awaitJournal(1, 2)
			k.kill()
			k.has("loses", 0)
			want := []byte{2}
			if !with {
				if err := os.WriteFile(filepath.Join(k.state, "journal"), []byte("unstale journal v1"), 0o600); err != nil {
					t.Fatal(err)
				}
				want = []byte{1, 2}
			}
			k.member.proxy.SetFault(nil)
			k.start()
			k.awaitSeen("node")
			if with {
				k.awaitEntries("what was lost meanwhile is gone", "node", want...)
				return
			}
			if got := k.entries("node"); !slices.Equal(got, want) {
				t.Errorf("the table has %v", got)
			}
			if _, err := os.Stat(filepath.Join(k.state, "journal.damaged")); err != nil {
				t.Errorf("the damaged journal was not set aside: %v", err)
			}
		})
	}
}

// The entries of a pod that was deleted by force stay while its containers may run.
func TestKernelForceDelete(t *testing.T) {
	k := newKernelScene(t)
	k.fill(1)
	k.pod("forced", 1)
	k.start()
	k.awaitJournal(1)
	k.delete("forced")
	k.awaitSeen("node")
	k.awaitSeen("node")
	if got := k.entries("node"); !slices.Equal(got, []byte{1}) {
		t.Errorf("the table has %v", got)
	}
	var waits bool
	for _, r := range k.releases() {
		waits = waits || r.Address == k.address(1) && r.NotBefore.Sub(r.Since) >= 30e9
	}
	if !waits {
		t.Errorf("the releases are %+v", k.releases())
	}
}

func (k *kernelScene) releases() []dataplane.Release {
	k.member.agent.kernel.mu.Lock()
	defer k.member.agent.kernel.mu.Unlock()
	if k.member.agent.kernel.scrubber == nil {
		return nil
	}
	return k.member.agent.kernel.scrubber.Releases()
}

// In a table of the whole cluster's addresses one that a pod of another node has stays.
func TestKernelClusterScope(t *testing.T) {
	k := newKernelScene(t, kernelTable{"cluster", "scope: cluster"})
	other := k.node()
	k.fill(1, 2)
	k.pod("a", 1)
	k.pod("b", 2)
	k.start()
	k.awaitJournal(1, 2)
	k.podOn(other, "heir", 1)
	k.has("a", 0)
	k.has("b", 0)
	k.awaitEntries("what nobody has is gone", "cluster", 1)
	k.awaitDecision("cluster", 1, dataplane.UsedElsewhere)
	k.awaitEntries("the node's own table has neither", "node")
}

// Report is the default and removes nothing. What was reported goes when the mode is changed; without the section nothing is touched.
func TestKernelModes(t *testing.T) {
	k := newKernelScene(t)
	table := kernelTable{"node", "scope: node"}
	k.scene.options = k.kernel("Report", table)
	k.fill(1, 2)
	k.pod("a", 1)
	k.pod("b", 2)
	k.start()
	k.awaitJournal(1, 2)
	k.has("a", 0)
	k.awaitDecision("node", 1, dataplane.AddressLost)
	if got := k.entries("node"); !slices.Equal(got, []byte{1, 2}) {
		t.Errorf("with mode Report the table has %v", got)
	}
	k.config("mode: Report")
	k.scene.options = k.kernel("Enforce", table)
	k.config()
	k.awaitEntries("with mode Enforce it goes", "node", 2)
	k.scene.options = ""
	k.config()
	apiserver.Eventually(t, "the section is gone", func() error {
		if len(k.logs.FilterMessageSnippet("no longer has kernel tables").All()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	k.has("b", 0)
	k.scene.options = k.kernel("Enforce", table)
	k.config()
	k.awaitEntries("what was lost without the section is found by the journal", "node")
}

// Without the API server's word at the moment of acting nothing goes; with it, it does.
func TestKernelUnconfirmed(t *testing.T) {
	k := newKernelScene(t)
	k.fill(1)
	k.pod("a", 1)
	k.start()
	k.awaitJournal(1)
	k.member.proxy.SetFault(apiserver.On("LIST pods", apiserver.Refuse(403, metav1.StatusReasonForbidden, "no")))
	k.has("a", 0)
	k.awaitDecision("node", 1, dataplane.Unconfirmed)
	if got := k.entries("node"); !slices.Equal(got, []byte{1}) {
		t.Errorf("the table has %v", got)
	}
	k.member.proxy.SetFault(nil)
	k.awaitEntries("with the API server's word it goes", "node")
}

// An agent whose stateDir cannot be written says so, and works on.
func TestKernelWithoutAStateDir(t *testing.T) {
	k := newKernelScene(t)
	if err := os.WriteFile(k.state, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	k.start()
	k.awaitMembers(1)
	apiserver.Eventually(t, "it is said", func() error {
		for _, e := range k.logs.All() {
			if why, is := e.ContextMap()["error"].(string); is && strings.Contains(why, "kernel.stateDir") {
				return nil
			}
		}
		return fmt.Errorf("the agent said:\n%s", strings.Join(k.said(), "\n"))
	})
	k.write("gone")
	k.await("its other work goes on", k.member.name)
}
