//go:build linux && kernel

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/unstale/unstale/test/apiserver"
	"github.com/unstale/unstale/test/bpffs"
)

// plan --kernel and kernel dump tell of each entry who has its address.
func TestKernelCommands(t *testing.T) {
	pins := bpffs.New(t)
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for n := range byte(3) {
		if err := m.Put([]byte{10, 254, 0, 1 + n}, []byte{0, 0, 0, n}); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Put([]byte{127, 0, 0, 1}, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if err := m.Pin(filepath.Join(pins, "m")); err != nil {
		t.Fatal(err)
	}
	server := apiserver.Shared(t)
	ns, node := server.Namespace(t), apiserver.Unique("node")
	for n, on := range []string{node, apiserver.Unique("other")} {
		name := fmt.Sprint("pod-", n+1)
		server.CreatePod(t, ns, name, on, nil)
		server.PatchStatus(t, apiserver.Pods, ns, name, fmt.Sprintf(`{"status": {"phase": "Running", "podIP": "10.254.0.%d", "podIPs": [{"ip": "10.254.0.%[1]d"}]}}`, n+1))
	}
	config := writeFile(t, fmt.Sprintf(`apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
kernel:
  stateDir: %s
  conntrack: {enabled: false}
  neighbors: {enabled: false}
  bpfMaps: [{name: mine, pin: %s/m, expect: {keySize: 4}, addresses: [{offset: 0, size: 4}], scope: cluster}, {name: absent, pin: %[2]s/none, addresses: [{offset: 0, size: 4}], scope: node}]
`, t.TempDir(), pins))
	args := []string{"--config", config, "--node", node, "--kubeconfig", server.Proxy(t).Kubeconfig(t)}

	r := runProgram(t, append([]string{"plan", "--kernel"}, args...)...)
	r.want(t, exitDone, "10.254.0.3", "NotReleased", "absent: NotInstalled", "mine: OK: 4 entries in 1 resource; Keep HostAddress 1, Keep NotReleased 1, Keep PodHasAddress 1, Keep UsedElsewhere 1")
	if strings.Contains(r.stdout, "10.254.0.1") {
		t.Errorf("an address that its pod has is shown: %s", r.stdout)
	}
	runProgram(t, append([]string{"plan", "--kernel", "--all"}, args...)...).want(t, exitDone, "10.254.0.1", "PodHasAddress")
	r = runProgram(t, append([]string{"plan", "--kernel", "-o", "json", "--exit-code"}, args...)...)
	r.want(t, exitDone)
	var plan struct {
		Targets []struct {
			Target, Kind, State string
			Resources           []struct {
				Name     string
				Findings []struct{ Key, Verdict, Reason string }
			}
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &plan); err != nil || len(plan.Targets) != 2 || plan.Targets[0].Kind != "kernel" || len(plan.Targets[0].Resources) != 1 ||
		plan.Targets[0].Resources[0].Name != pins+"/m" || len(plan.Targets[0].Resources[0].Findings) != 4 {
		t.Errorf("%v: %s", err, r.stdout)
	}

	r = runProgram(t, append([]string{"kernel", "dump"}, args...)...)
	r.want(t, exitDone, "pod "+ns+"/pod-1", "pod "+ns+"/pod-2", "this node, interface lo", "nobody", "mine: OK", "absent: NotInstalled")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	args[1] = writeFile(t, strings.Replace(string(text), "kernel:\n", "kernel:\n  runtimeEndpoint: /none/cri.sock\n", 1))
	runProgram(t, append([]string{"kernel", "dump"}, args...)...).want(t, exitFailed, "pod "+ns+"/pod-1", "container runtime: Unavailable: ask the container runtime at /none/cri.sock: nobody listens there")
	runProgram(t, append([]string{"plan", "--kernel"}, args...)...).want(t, exitDone, "10.254.0.3", "NotReleased")
	args[1] = config
	r = runProgram(t, append([]string{"kernel", "dump", "-o", "json"}, args...)...)
	r.want(t, exitDone)
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	for _, line := range lines {
		var e struct{ Target, Table, Address, Entry, Key, Value, Owner string }
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Target != "mine" || len(e.Key) != 8 || len(e.Value) != 8 || e.Owner == "" {
			t.Errorf("%v: %s", err, line)
		}
	}
	if len(lines) != 4 || !strings.Contains(r.stderr, "mine: OK") {
		t.Errorf("%d lines; on standard error: %s", len(lines), r.stderr)
	}
}
