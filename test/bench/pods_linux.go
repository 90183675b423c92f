package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/test/apiserver"
	"github.com/unstale/unstale/test/bpffs"
)

const (
	nodePods    = 250
	podEntries  = 40 // in the map, of each pod
	podLosses   = 100
	podUpdates  = 20 // a second
	kernelGrace = time.Second
	scalePods   = 2000
	scaleAtOnce = 20
	scanEntries = 1_000_000
	metricsAt   = "127.0.1.1:9811"
)

var pods = benchmark{
	name: "pods",
	about: fmt.Sprintf("from a pod's status without its address to the last of its %d entries of a BPF map gone, less grace, with %d pods and %d updates a second; updates that %d pods cause; memory of an agent that scans a map of %d entries, beside one without kernel tables; as root",
		podEntries, nodePods, podUpdates, scalePods, scanEntries),
	run: measurePods,
}

func measurePods(ctx context.Context, s *session) (err error) {
	pins := filepath.Join(s.scratch, "pins")
	if err := os.Mkdir(pins, 0o700); err != nil {
		return err
	}
	unmount, err := bpffs.Mount(pins)
	if err != nil {
		return err
	}
	defer unmount()
	c, err := s.startCluster(ctx, "--disable-admission-plugins=ServiceAccount") // nobody makes the accounts here
	if err != nil {
		return err
	}
	defer c.closing(&err)
	node := nodeName(0)
	if err := c.createNodes(ctx, newNodes([]string{node})); err != nil {
		return err
	}
	k := &podBench{session: s, cluster: c, node: node, pin: filepath.Join(pins, "map"), pods: c.client.Resource(apiserver.Pods).Namespace(namespace)}
	if err := k.fillNode(ctx); err != nil {
		return err
	}
	if err := k.mapLatency(ctx); err != nil {
		return fmt.Errorf("from a loss to its entries gone: %w", err)
	}
	if err := k.memory(ctx); err != nil {
		return fmt.Errorf("memory: %w", err)
	}
	if err := k.scale(ctx); err != nil {
		return fmt.Errorf("scale up and delete: %w", err)
	}
	return nil
}

type podBench struct {
	*session
	cluster *cluster
	node    string
	pin     string
	pods    dynamic.ResourceInterface
}

func podName(i int) string { return fmt.Sprintf("pod-%d", i) }

func podAddress(i int) []byte { return []byte{10, 64, byte(i >> 8), byte(i)} }

func (k *podBench) createPod(ctx context.Context, i int) error {
	pod := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": podName(i)},
		"spec": map[string]any{
			"nodeName": k.node, "terminationGracePeriodSeconds": int64(1),
			"containers": []any{map[string]any{"name": "main", "image": "registry.invalid/image:1"}},
		},
	}}
	_, err := k.pods.Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// status writes a part of a pod's status, as its kubelet would.
func (k *podBench) status(ctx context.Context, i int, format string, args ...any) error {
	patch := fmt.Sprintf(`{"status": {%s}}`, fmt.Sprintf(format, args...))
	_, err := k.pods.Patch(ctx, podName(i), types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	return err
}

func (k *podBench) run(ctx context.Context, i int) error {
	ip := fmt.Sprintf("10.64.%d.%d", i>>8, i&255)
	return k.status(ctx, i, `"phase": "Running", "podIP": %q, "podIPs": [{"ip": %q}]`, ip, ip)
}

func (k *podBench) fillNode(ctx context.Context) error {
	k.logf("make %d pods", nodePods)
	for i := range nodePods {
		if err := errors.Join(k.createPod(ctx, i), k.run(ctx, i)); err != nil {
			return err
		}
	}
	return nil
}

// newMap makes the map with entries of the node's pods and of others.
func (k *podBench) newMap(entries int) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 14, ValueSize: 56, MaxEntries: uint32(entries)})
	if err != nil {
		return nil, err
	}
	if err := m.Pin(k.pin); err != nil {
		m.Close()
		return nil, err
	}
	value := make([]byte, 56)
	for i := range entries {
		if err := m.Put(podKey(i/podEntries, i%podEntries), value); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

func podKey(pod, n int) []byte {
	return slices.Concat(podAddress(pod)[:2], binary.BigEndian.AppendUint16(nil, uint16(pod)), []byte{192, 0, 2, byte(n), 0, 80, byte(n), 7, 6, 0})
}

// tables is the part of the configuration that has the map.
func (k *podBench) tables() map[string]any {
	return map[string]any{"bpfMaps": []any{map[string]any{
		"name": "bench", "pin": k.pin, "expect": map[string]any{"type": "Hash", "keySize": 14}, "scope": "node",
		"addresses": []any{map[string]any{"offset": 0, "size": 4}},
	}}}
}

// startAgent starts the node's agent, with the kernel tables of that part of its configuration; nil: none.
func (k *podBench) startAgent(ctx context.Context, name string, tables map[string]any) (*daemon, error) {
	dir, err := os.MkdirTemp(k.scratch, "agent-")
	if err != nil {
		return nil, err
	}
	key := filepath.Join(dir, "gossip-key")
	config := map[string]any{
		"apiVersion": "unstale.dev/v1alpha1", "kind": "AgentConfiguration",
		"gossip": map[string]any{"bindAddress": gossipAddress(0), "port": gossipPort, "keyFile": key},
		"http":   map[string]any{"debugAddress": "", "metricsAddress": metricsAt}, "report": map[string]any{"name": ""},
	}
	if tables != nil {
		kernel := map[string]any{"mode": "Enforce", "grace": kernelGrace.String(), "stateDir": filepath.Join(dir, "state")}
		maps.Copy(kernel, tables)
		config["kernel"] = kernel
	}
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "config.yaml")
	if err := errors.Join(os.WriteFile(key, []byte(gossip.GenerateKey()+"\n"), 0o600), os.WriteFile(path, text, 0o600)); err != nil {
		return nil, err
	}
	d, err := startDaemon(ctx, dir, name, k.unstale, "agent", "--config", path, "--node", k.node, "--kubeconfig", k.cluster.server.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return d, await(ctx, "the agent works", time.Minute, ownersPause, func() (bool, error) {
		if err := d.running(); err != nil {
			return false, err
		}
		log, err := os.ReadFile(d.log)
		return bytes.Contains(log, []byte("configuration applied")), err
	})
}

// mapLatency is that of the map's entries.
func (k *podBench) mapLatency(ctx context.Context) error {
	m, err := k.newMap(nodePods * podEntries)
	if err != nil {
		return err
	}
	defer m.Close()
	defer m.Unpin()
	value := make([]byte, 56)
	return k.latency(ctx, "pods/latency", k.tables(), func(i int) (time.Time, error) {
		err := await(ctx, fmt.Sprintf("the entries of %s are gone", podName(i)), time.Minute, time.Millisecond, func() (bool, error) {
			for n := range podEntries {
				if m.Lookup(podKey(i, n), value) == nil {
					return false, nil
				}
			}
			return true, nil
		})
		return time.Now(), err
	})
}

// latency loses addresses one after the other, while other pods' statuses change. gone waits until the last entry of a pod is gone, and says when that was.
func (k *podBench) latency(ctx context.Context, name string, tables map[string]any, gone func(i int) (time.Time, error)) error {
	agent, err := k.startAgent(ctx, "agent", tables)
	if err != nil {
		return err
	}
	defer agent.kill()
	busy, stop := context.WithCancel(ctx)
	var updating sync.WaitGroup
	updating.Go(func() {
		limit := rate.NewLimiter(podUpdates, 1)
		for n := 0; limit.Wait(busy) == nil; n++ {
			_ = k.status(busy, podLosses+n%(nodePods-podLosses), `"message": "update %d"`, n) // the next one comes soon
		}
	})
	defer updating.Wait()
	defer stop()
	// The first loss is only seen by an agent that has seen the pods.
	if err := pause(ctx, 3*time.Second); err != nil {
		return err
	}
	var took samples
	for i := range podLosses {
		if i%20 == 0 {
			k.logf("loss %d of %d", i, podLosses)
		}
		if err := k.status(ctx, i, `"podIP": null, "podIPs": null`); err != nil {
			return err
		}
		start := time.Now()
		at, err := gone(i)
		if err != nil {
			return fmt.Errorf("%w; the agent's log ends: %s", err, tail(agent.log))
		}
		took = append(took, millis(at.Sub(start)-kernelGrace))
		if err := pause(ctx, time.Duration(rand.N(200))*time.Millisecond); err != nil {
			return err
		}
	}
	slices.Sort(took)
	k.add(name+"P50", "ms", samples{took[len(took)/2]})
	k.add(name+"P99", "ms", samples{took[len(took)*99/100]})
	k.add(name, "ms", took)
	return nil
}

// memory is the peak of an agent that has scanned a large map, beside one that has no kernel tables.
func (k *podBench) memory(ctx context.Context) error {
	var idle, scanning samples
	for run := range k.runs {
		k.logf("memory: run %d of %d", run+1, k.runs)
		without, err := k.peak(ctx, false)
		if err != nil {
			return err
		}
		with, err := k.peak(ctx, true)
		if err != nil {
			return err
		}
		idle, scanning = append(idle, without), append(scanning, with)
	}
	k.compare("pods/memory", "bytes", scanning, "the agent without kernel tables", idle)
	return nil
}

func (k *podBench) peak(ctx context.Context, withMap bool) (float64, error) {
	if withMap {
		m, err := k.newMap(scanEntries)
		if err != nil {
			return 0, err
		}
		defer m.Close()
		defer m.Unpin()
	}
	var tables map[string]any
	if withMap {
		tables = k.tables()
	}
	agent, err := k.startAgent(ctx, "agent", tables)
	if err != nil {
		return 0, err
	}
	defer agent.kill()
	if err := pause(ctx, 3*time.Second); err != nil {
		return 0, err
	}
	// A loss, so that it scans; the address is there again for the next run.
	const lost = nodePods - 1
	if err := k.status(ctx, lost, `"podIP": null, "podIPs": null`); err != nil {
		return 0, err
	}
	if err := pause(ctx, 5*time.Second); err != nil {
		return 0, err
	}
	if log, err := os.ReadFile(agent.log); err != nil || withMap != strings.Contains(string(log), `"entry removed"`) {
		return 0, fmt.Errorf("the agent's log does not tell what it should: %w: %s", err, tail(agent.log))
	}
	return float64(peakMemory(agent.cmd.Process.Pid)), errors.Join(agent.running(), k.run(ctx, lost))
}

// scale makes pods and deletes them, with the updates that a kubelet makes, and asks the agent how many it had to look at.
func (k *podBench) scale(ctx context.Context) error {
	m, err := k.newMap(podEntries)
	if err != nil {
		return err
	}
	defer m.Close()
	defer m.Unpin()
	agent, err := k.startAgent(ctx, "agent", k.tables())
	if err != nil {
		return err
	}
	defer agent.kill()
	k.logf("make and delete %d pods", scalePods)
	const first = 1000 // other names and addresses than those that are there
	var lives sync.WaitGroup
	failures := make(chan error, scaleAtOnce)
	next := make(chan int)
	for range scaleAtOnce {
		lives.Go(func() {
			for i := range next {
				if err := k.live(ctx, first+i); err != nil {
					select {
					case failures <- err:
					default:
					}
				}
			}
		})
	}
	for i := range scalePods {
		next <- i
	}
	close(next)
	lives.Wait()
	select {
	case err := <-failures:
		return err
	default:
	}
	if err := pause(ctx, time.Second); err != nil {
		return err
	}
	counts, err := podUpdateCounts(ctx)
	if err != nil {
		return err
	}
	all, empty := 0.0, counts["true empty"]
	for _, n := range counts {
		all += n
	}
	if all < scalePods*5 {
		return fmt.Errorf("the agent saw %v updates only", all)
	}
	k.add("pods/updates", "updates", samples{all})
	k.add("pods/updatesLookedAt", "updates", samples{counts["true empty"] + counts["true present"]})
	k.add("pods/emptyLookedAt", "% of updates", samples{100 * empty / all})
	return nil
}

// live takes a pod through its life, update by update as a kubelet makes them. One in a hundred loses its address while it runs.
func (k *podBench) live(ctx context.Context, i int) error {
	waiting := `"containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}]`
	running := `"containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]`
	ended := `"containerStatuses": [{"name": "main", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": 0}}}]`
	ready := func(s string) string {
		return fmt.Sprintf(`"conditions": [{"type": "PodReadyToStartContainers", "status": %q}, {"type": "Ready", "status": %q}]`, s, s)
	}
	steps := []func() error{
		func() error { return k.createPod(ctx, i) },
		func() error { return k.status(ctx, i, `%s, %s`, ready("False"), waiting) },
		func() error { return k.status(ctx, i, `"startTime": "2026-01-01T00:00:00Z"`) },
		func() error { return k.run(ctx, i) },
		func() error { return k.status(ctx, i, `%s, %s`, ready("True"), running) },
		func() error {
			if i%100 != 0 {
				return nil
			}
			return k.status(ctx, i, `"podIP": null, "podIPs": null`)
		},
		func() error { return k.pods.Delete(ctx, podName(i), metav1.DeleteOptions{}) },
		func() error { return k.status(ctx, i, `%s, %s`, ready("False"), ended) },
		func() error { return k.status(ctx, i, `"phase": "Succeeded"`) },
		func() error {
			now := int64(0)
			return k.pods.Delete(ctx, podName(i), metav1.DeleteOptions{GracePeriodSeconds: &now})
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// podUpdateCounts are the agent's counts of its pods' updates, by "relevant address".
func podUpdateCounts(ctx context.Context) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+metricsAt+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	counts := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		var address, relevant string
		var n float64
		if _, err := fmt.Sscanf(line, `unstale_pod_updates_total{address=%q,relevant=%q} %f`, &address, &relevant, &n); err == nil {
			counts[relevant+" "+address] = n
		}
	}
	return counts, nil
}
