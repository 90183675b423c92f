package node

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// A Kubelet is a real one, in the namespaces of a Containerd that uses this process's network. It ends with its Containerd.
type Kubelet struct {
	// Manifests is the folder of static pods.
	Manifests string

	containerd                 *Containerd
	program, dir, node, nodeIP string
	kubeconfig                 string
	process                    *process
}

// StartKubelet starts one for the Node of that name. Its program is what test/controlplane/program.sh builds. nodeIP is an address of this machine
// other than 127.0.0.1. Its files are below dir.
func (c *Containerd) StartKubelet(program, kubeconfig, dir, node, nodeIP string) (*Kubelet, error) {
	k := &Kubelet{
		Manifests: filepath.Join(dir, "manifests"), containerd: c, program: program, dir: dir, node: node, nodeIP: nodeIP, kubeconfig: kubeconfig,
	}
	if err := os.MkdirAll(k.Manifests, 0o700); err != nil {
		return nil, err
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + c.Socket, "staticPodPath": k.Manifests, "fileCheckFrequency": "1s",
		// What a test machine may lack: cgroups of its own, swap that is off, the right to set iptables up.
		"failCgroupV1": false, "cgroupDriver": "cgroupfs", "cgroupsPerQOS": false, "enforceNodeAllocatable": []string{}, "failSwapOn": false,
		"makeIPTablesUtilChains": false, "localStorageCapacityIsolation": false,
		"authentication": map[string]any{"anonymous": map[string]any{"enabled": true}, "webhook": map[string]any{"enabled": false}},
		"authorization":  map[string]any{"mode": "AlwaysAllow"},
		"healthzPort":    10248, "readOnlyPort": 0,
	}
	b, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "kubelet.json"), b, 0o600); err != nil {
		return nil, err
	}
	return k, k.Start()
}

// Start starts it again after Stop.
func (k *Kubelet) Start() error {
	var err error
	k.process, err = start("the kubelet", filepath.Join(k.dir, "kubelet.log"), &syscall.SysProcAttr{},
		"nsenter", "--target", fmt.Sprint(k.containerd.process.cmd.Process.Pid), "--mount", "--pid", "--",
		k.program, "--config", filepath.Join(k.dir, "kubelet.json"), "--kubeconfig", k.kubeconfig, "--root-dir", filepath.Join(k.dir, "root"),
		"--cert-dir", filepath.Join(k.dir, "pki"), "--hostname-override", k.node, "--node-ip", k.nodeIP)
	if err != nil {
		return err
	}
	return k.process.await(startLimit, func() bool {
		client := http.Client{Timeout: time.Second}
		response, err := client.Get("http://127.0.0.1:10248/healthz")
		if err == nil {
			response.Body.Close()
		}
		return err == nil && response.StatusCode == http.StatusOK
	})
}

// Stop ends the kubelet, not the pods.
func (k *Kubelet) Stop() error {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", k.process.cmd.Process.Pid))
	if err != nil {
		return err
	}
	for _, pid := range strings.Fields(string(children)) {
		if out, err := exec.Command("kill", pid).CombinedOutput(); err != nil {
			return fmt.Errorf("end the kubelet: %w: %s", err, out)
		}
	}
	<-k.process.ended
	return nil
}
