package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/test/apiserver"
)

const (
	nodeFeatureLabel = "nfd.node.kubernetes.io/node-name"

	objectsIdleNodes = 1000
	objectsIdleTime  = 5 * time.Minute
	objectsRenewal   = 10 * time.Second // of each Node's status

	objectsLargeCount = 5000
	objectsLargeAlive = 100
	objectsElements   = 1300 // features of an object, which make 130 KB with its managedFields not counted

	departureNodes = 5
	departureGrace = 5 * time.Second

	collectorWhat = "informer on all Nodes, list of all objects, delete by name"
)

var objectsIdle = benchmark{
	name: "objects-idle",
	about: fmt.Sprintf("%d Nodes that renew their status every %s, %d objects, %s with nothing to do, beside a collector with an informer",
		objectsIdleNodes, objectsRenewal, objectsIdleNodes, objectsIdleTime),
	slow: true,
	run:  measureObjectsIdle,
}

var objectsMemory = benchmark{
	name: "objects-memory",
	about: fmt.Sprintf("%d objects of 130 KB, %d of them orphans: memory, requests and time, beside a collector with an informer",
		objectsLargeCount, objectsLargeCount-objectsLargeAlive),
	slow: true,
	run:  measureObjectsMemory,
}

var objectsDeparture = benchmark{
	name:  "objects-departure",
	about: fmt.Sprintf("%d agents; from the deletion of a killed agent's Node to that of its object, less grace, beside a collector with an informer", departureNodes),
	run:   measureObjectsDeparture,
}

// startObjects starts a control plane with Nodes and an object for each and for each orphan.
func (s *session) startObjects(ctx context.Context, nodes, orphans []string, elements int) (*cluster, error) {
	c, err := s.startCluster(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.createObjects(ctx, s, nodes, orphans, elements); err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *cluster) createObjects(ctx context.Context, s *session, nodes, orphans []string, elements int) error {
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(apiserver.NodeFeatureCRD), &definition.Object); err != nil {
		return fmt.Errorf("decode the definition: %w", err)
	}
	if _, err := c.client.Resource(apiserver.CRDs).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create %s: %w", definition.GetName(), err)
	}
	s.logf("create %d Nodes", len(nodes))
	if err := c.createNodes(ctx, newNodes(nodes)); err != nil {
		return err
	}
	err := await(ctx, "the objects' definition is served", installLimit, 50*time.Millisecond, func() (bool, error) {
		_, err := c.features().List(ctx, metav1.ListOptions{Limit: 1})
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	return c.createAllFeatures(ctx, s, append(append([]string{}, nodes...), orphans...), elements)
}

// createAllFeatures makes an object for each of the nodes, several at a time.
func (c *cluster) createAllFeatures(ctx context.Context, s *session, all []string, elements int) error {
	s.logf("create %d objects", len(all))
	next, failed := make(chan string), make(chan error, 1)
	var writers sync.WaitGroup
	for range nodeWriters {
		writers.Go(func() {
			for node := range next {
				if err := c.createFeature(ctx, node, elements); err != nil {
					select {
					case failed <- err:
					default:
					}
				}
			}
		})
	}
	for _, node := range all {
		next <- node
	}
	close(next)
	writers.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// createFeature makes a node's object as Node Feature Discovery's worker does.
func (c *cluster) createFeature(ctx context.Context, node string, elements int) error {
	features := map[string]any{}
	for i := range elements {
		features[fmt.Sprintf("feature-%04d.example.com/of-this-node", i)] = strings.Repeat("x", 40)
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "nfd.k8s-sigs.io/v1alpha1", "kind": "NodeFeature",
		"metadata": map[string]any{
			"name": node, "labels": map[string]any{nodeFeatureLabel: node},
			"ownerReferences": []any{map[string]any{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "nfd-worker", "uid": "1"}},
		},
		"spec": map[string]any{"features": map[string]any{"attributes": map[string]any{"all": map[string]any{"elements": features}}}},
	}}
	if _, err := c.features().Create(ctx, o, metav1.CreateOptions{FieldManager: "nfd-worker"}); err != nil {
		return fmt.Errorf("create the object of %s: %w", node, err)
	}
	return nil
}

// startObjectAgents starts unstale agent for each of the nodes, through the proxy of our side.
func (s *session) startObjectAgents(ctx context.Context, c *cluster, nodes []string, grace time.Duration, maxRemovals int) (f fleet, err error) {
	dir, err := os.MkdirTemp(s.scratch, "object-agents-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the agents: %w", err)
	}
	key := filepath.Join(dir, "gossip-key")
	if err := os.WriteFile(key, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("write the gossip key: %w", err)
	}
	for i, node := range nodes {
		text, err := json.Marshal(map[string]any{
			"apiVersion": "unstale.dev/v1alpha1", "kind": "AgentConfiguration", "grace": grace.String(), "maxRemovals": maxRemovals,
			"gossip": map[string]any{"bindAddress": gossipAddress(i), "port": gossipPort, "keyFile": key, "peers": []string{fmt.Sprintf("%s:%d", gossipAddress(0), gossipPort)}},
			"http":   map[string]any{"debugAddress": "", "metricsAddress": ""}, "report": map[string]any{"name": ""},
			"nodeObjects": []any{map[string]any{
				"name": "nfd-features", "resource": map[string]any{"group": "nfd.k8s-sigs.io", "version": "v1alpha1", "resource": "nodefeatures"},
				"nodeName": map[string]any{"label": nodeFeatureLabel}, "unknownKeys": "Remove",
			}},
		})
		if err != nil {
			return f, fmt.Errorf("encode the configuration: %w", err)
		}
		path := filepath.Join(dir, node+".yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return f, fmt.Errorf("write the configuration: %w", err)
		}
		agent, err := startDaemon(ctx, dir, node, s.unstale, "agent", "--config", path, "--node", node, "--kubeconfig", c.ours.kubeconfig)
		if err != nil {
			return f, err
		}
		f = append(f, agent)
	}
	return f, nil
}

// startCollector starts what stands beside.
func (s *session) startCollector(ctx context.Context, c *cluster) (*daemon, error) {
	program, err := s.buildAsReleased(ctx, "collector", filepath.Join("test", "bench", "candidate", "collector"))
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(s.scratch, "collector-")
	if err != nil {
		return nil, fmt.Errorf("make a folder for the collector: %w", err)
	}
	return startDaemon(ctx, dir, "collector", program, "-kubeconfig", c.beside.kubeconfig)
}

// renew makes each Node renew its status until ctx ends, past the proxies, as kubelets do.
func (c *cluster) renew(ctx context.Context, nodes []string, failed chan<- error) {
	var renewing sync.WaitGroup
	for _, node := range nodes {
		renewing.Go(func() {
			for wait := rand.N(objectsRenewal); pause(ctx, wait) == nil; wait = objectsRenewal {
				patch := fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "lastHeartbeatTime": %q}]}}`, time.Now().UTC().Format(time.RFC3339))
				_, err := c.client.Resource(apiserver.Nodes).Patch(ctx, node, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: "kubelet"}, "status")
				if err != nil && ctx.Err() == nil {
					select {
					case failed <- fmt.Errorf("renew the status of %s: %w", node, err):
					default:
					}
				}
			}
		})
	}
	renewing.Wait()
}

// measureObjectsIdle counts what both sides ask for and receive at the same time, over the same Nodes.
func measureObjectsIdle(ctx context.Context, s *session) (err error) {
	nodes := nodeNames(objectsIdleNodes)
	c, err := s.startObjects(ctx, nodes, nil, 20)
	if err != nil {
		return err
	}
	defer c.closing(&err)
	agents, err := s.startObjectAgents(ctx, c, nodes[:1], 5*time.Second, 50)
	if err != nil {
		return err
	}
	defer agents.kill()
	collector, err := s.startCollector(ctx, c)
	if err != nil {
		return err
	}
	defer collector.kill()
	ctx, stop := context.WithCancel(ctx)
	failed, renewed := make(chan error, 1), make(chan struct{})
	go func() { defer close(renewed); c.renew(ctx, nodes, failed) }()
	defer func() { stop(); <-renewed }()
	s.logf("wait until both have settled")
	if err := pause(ctx, time.Minute); err != nil {
		return err
	}
	both := append(append(fleet{}, agents...), collector)
	var ours, theirs []measurement
	for run := range s.runs {
		s.logf("run %d of %d: %s", run+1, s.runs, objectsIdleTime)
		beginOurs, beginTheirs := trafficNow(c.ours.proxy), trafficNow(c.beside.proxy)
		before, known := both.standing()
		if err := pause(ctx, objectsIdleTime); err != nil {
			return err
		}
		after, _ := both.standing()
		a, b := trafficNow(c.ours.proxy).since(beginOurs), trafficNow(c.beside.proxy).since(beginTheirs)
		if known {
			a.usage, b.usage = each(before[:1], after[:1]), each(before[1:], after[1:])
		}
		ours, theirs = append(ours, a), append(theirs, b)
		for _, d := range both {
			if err := d.running(); err != nil {
				return err
			}
		}
		select {
		case err := <-failed:
			return err
		default:
		}
	}
	compare := func(figure, unit string, value func(measurement) float64) {
		s.compare("objects-idle/"+figure, unit, per(1, ours, value), collectorWhat, per(1, theirs, value))
	}
	compare("requests", "requests", requestCount)
	compare("received", "bytes", bytesIn)
	compare("cpu", "ms", cpuMillis)
	if knowsMemory(ours) && knowsMemory(theirs) {
		compare("memory", "bytes", peakBytes)
	}
	return nil
}

// trafficNow is what went through a proxy so far, also of what still goes on.
func trafficNow(p *apiserver.Proxy) (m measurement) {
	m.traffic(p)
	return m
}

// since is what went through since then.
func (m measurement) since(before measurement) measurement {
	m.sent -= before.sent
	m.received -= before.received
	counts := map[string]int{}
	for class, n := range m.requests {
		if n -= before.requests[class]; n > 0 {
			counts[class] = n
		}
	}
	m.requests = counts
	return m
}

// measureObjectsMemory lets each side delete the orphans among large objects, each on a control plane of its own.
func measureObjectsMemory(ctx context.Context, s *session) error {
	names := nodeNames(objectsLargeCount)
	nodes, orphans := names[:objectsLargeAlive], names[objectsLargeAlive:]
	var ours, theirs []measurement
	var above samples
	for run := range s.runs {
		s.logf("run %d of %d: unstale agent", run+1, s.runs)
		m, idle, err := s.collectLarge(ctx, nodes, orphans, func(c *cluster) (*daemon, error) {
			f, err := s.startObjectAgents(ctx, c, nodes[:1], 5*time.Second, 4500)
			if err != nil {
				return nil, err
			}
			return f[0], nil
		}, func(c *cluster) *apiserver.Proxy { return c.ours.proxy })
		if err != nil {
			return err
		}
		ours, above = append(ours, m), append(above, float64(m.memory-idle))
		s.logf("run %d of %d: the collector", run+1, s.runs)
		if m, _, err = s.collectLarge(ctx, nodes, orphans, func(c *cluster) (*daemon, error) { return s.startCollector(ctx, c) },
			func(c *cluster) *apiserver.Proxy { return c.beside.proxy }); err != nil {
			return err
		}
		theirs = append(theirs, m)
	}
	compare := func(figure, unit string, value func(measurement) float64) {
		s.compare("objects-memory/"+figure, unit, per(1, ours, value), collectorWhat, per(1, theirs, value))
	}
	s.add("objects-memory/aboveIdle", "bytes", above)
	compare("peakMemory", "bytes", peakBytes)
	compare("time", "s", wallSeconds)
	compare("cpu", "s", cpuSeconds)
	compare("received", "bytes", bytesIn)
	compare("requests", "requests", requestCount)
	s.compareRequests("objects-memory/requests", ours, collectorWhat, theirs)
	return nil
}

// collectLarge measures one side from its start until the orphans are gone. idle is the memory of the agent where there is no object.
func (s *session) collectLarge(ctx context.Context, nodes, orphans []string, start func(*cluster) (*daemon, error), proxy func(*cluster) *apiserver.Proxy) (m measurement, idle int64, err error) {
	c, err := s.startObjects(ctx, nodes[:1], nil, 1)
	if err != nil {
		return m, 0, err
	}
	defer c.closing(&err)
	waiting, err := start(c)
	if err != nil {
		return m, 0, err
	}
	peak := watchMemory(waiting.cmd.Process.Pid)
	err = pause(ctx, objectsSettle)
	idle = peak()
	waiting.kill()
	if err != nil {
		return m, 0, err
	}
	if err := c.features().Delete(ctx, nodes[0], metav1.DeleteOptions{}); err != nil {
		return m, 0, fmt.Errorf("delete the object of the idle agent's node: %w", err)
	}
	if err := c.createNodes(ctx, newNodes(nodes)[1:]); err != nil {
		return m, 0, err
	}
	if err := c.createAllFeatures(ctx, s, append(append([]string{}, nodes...), orphans...), objectsElements); err != nil {
		return m, 0, err
	}
	proxy(c).Reset()
	begun := time.Now()
	d, err := start(c)
	if err != nil {
		return m, 0, err
	}
	defer d.kill()
	peak = watchMemory(d.cmd.Process.Pid)
	err = await(ctx, "the orphans are gone", 20*time.Minute, 2*time.Second, func() (bool, error) {
		if err := d.running(); err != nil {
			return false, err
		}
		return proxy(c).Counts()[deleteFeatures] >= len(orphans), nil
	})
	m.memory = peak()
	m.wall = time.Since(begun)
	if u, ok := standing(d.cmd.Process.Pid); ok {
		m.cpu = u.cpu
	}
	if err != nil {
		return m, 0, err
	}
	taken := trafficNow(proxy(c))
	m.requests, m.sent, m.received = taken.requests, taken.sent, taken.received
	return m, idle, c.onlyLeft(ctx, nodes)
}

// deleteFeatures is the class of the deletions of objects.
const deleteFeatures = "DELETE nodefeatures.nfd.k8s-sigs.io"

// objectsSettle is how long an agent that has nothing to do is watched.
const objectsSettle = 20 * time.Second

// onlyLeft fails unless there are objects of these nodes and no others.
func (c *cluster) onlyLeft(ctx context.Context, nodes []string) error {
	return await(ctx, "exactly the living nodes' objects are left", time.Minute, time.Second, func() (bool, error) {
		left := map[string]bool{}
		for next := ""; ; {
			list, err := c.features().List(ctx, metav1.ListOptions{Limit: 100, Continue: next})
			if err != nil {
				return false, fmt.Errorf("list the objects: %w", err)
			}
			for _, o := range list.Items {
				left[o.GetName()] = true
			}
			if next = list.GetContinue(); next == "" {
				break
			}
		}
		for _, node := range nodes {
			if !left[node] {
				return false, fmt.Errorf("the object of %s, which exists, is gone", node)
			}
		}
		return len(left) == len(nodes), nil
	})
}

func (c *cluster) features() dynamic.ResourceInterface {
	return c.client.Resource(apiserver.NodeFeatures).Namespace(namespace)
}

// measureObjectsDeparture kills an agent and deletes its Node, and measures until its object is gone; beside it, the same Nodes and objects with the
// collector.
func measureObjectsDeparture(ctx context.Context, s *session) (err error) {
	var ours, theirs samples
	for run := range s.runs {
		s.logf("run %d of %d", run+1, s.runs)
		took, err := s.departure(ctx)
		if err != nil {
			return err
		}
		ours = append(ours, took.Seconds())
		if took, err = s.departureBeside(ctx); err != nil {
			return err
		}
		theirs = append(theirs, took.Seconds())
	}
	s.compare("objects-departure/time", "s", ours, collectorWhat+", without any grace", theirs)
	return nil
}

func (s *session) departure(ctx context.Context) (took time.Duration, err error) {
	nodes := nodeNames(departureNodes)
	c, err := s.startObjects(ctx, nodes, nil, 20)
	if err != nil {
		return 0, err
	}
	defer c.closing(&err)
	f, err := s.startObjectAgents(ctx, c, nodes, departureGrace, 50)
	if err != nil {
		return 0, err
	}
	defer f.kill()
	if _, err := f.awaitOwners(ctx, 10*time.Second, ""); err != nil {
		return 0, err
	}
	owner, err := f.owner("")
	if err != nil || owner == nil {
		return 0, errors.Join(errors.New("nobody owns the objects"), err)
	}
	dying := f[0]
	if dying == owner {
		dying = f[1]
	}
	dying.kill()
	took, err = c.timeDeparture(ctx, dying.name)
	return took - departureGrace, err
}

func (s *session) departureBeside(ctx context.Context) (took time.Duration, err error) {
	nodes := nodeNames(departureNodes)
	c, err := s.startObjects(ctx, nodes, nil, 20)
	if err != nil {
		return 0, err
	}
	defer c.closing(&err)
	d, err := s.startCollector(ctx, c)
	if err != nil {
		return 0, err
	}
	defer d.kill()
	if err := pause(ctx, 10*time.Second); err != nil {
		return 0, err
	}
	return c.timeDeparture(ctx, nodes[0])
}

// timeDeparture deletes a Node, and measures until its object is gone.
func (c *cluster) timeDeparture(ctx context.Context, node string) (time.Duration, error) {
	if err := c.client.Resource(apiserver.Nodes).Delete(ctx, node, metav1.DeleteOptions{}); err != nil {
		return 0, fmt.Errorf("delete Node %s: %w", node, err)
	}
	begun := time.Now()
	err := await(ctx, "the object of the deleted Node is gone", 3*time.Minute, 20*time.Millisecond, func() (bool, error) {
		_, err := c.features().Get(ctx, node, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	return time.Since(begun), err
}
