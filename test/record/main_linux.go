// Command record runs pods on a real node and writes down what its kubelet reports of them, and what the container runtime has, while sandboxes die,
// the pods' network fails, addresses change, and pods are deleted in every way. The agent's tests replay these recordings.
//
//	record [-o FOLDER] [-kubelet PROGRAM] [SCENE...]
//
// It needs root, and a network namespace of its own:  unshare -n go run ./test/record
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/apiserver"
	"github.com/unstale/unstale/test/node"
)

const (
	nodeName = "node-1"
	nodeIP   = "172.31.0.1"
)

func main() {
	folder := flag.String("o", "agent/testdata/kubelet", "`folder` for the recordings")
	kubelet := flag.String("kubelet", "", "the kubelet; default: the one that test/controlplane/program.sh builds")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *folder, *kubelet, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "record:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, folder, kubelet string, names []string) (err error) {
	if kubelet == "" {
		build := exec.CommandContext(ctx, "test/controlplane/program.sh", "kubelet")
		build.Stderr = os.Stderr
		out, err := build.Output()
		if err != nil {
			return fmt.Errorf("build a kubelet: %w", err)
		}
		kubelet = strings.TrimSpace(string(out))
	}
	for _, command := range []string{"ip link set lo up", "ip link add pods0 type bridge", "ip address add " + nodeIP + "/24 dev pods0", "ip link set pods0 up"} {
		if out, err := exec.CommandContext(ctx, "sh", "-c", command).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s; it needs a network namespace of its own", command, err, out)
		}
	}
	server, err := apiserver.Launch("--disable-admission-plugins=ServiceAccount") // nobody makes the accounts here
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	dir, err := os.MkdirTemp("", "record")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	containerd, err := node.StartContainerd(dir, node.Options{IPv4: "10.88.0.0/24", IPv6: "fd00:88::/64", Shared: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, containerd.Close()) }()
	k, err := containerd.StartKubelet(kubelet, server.Kubeconfig, filepath.Join(dir, "kubelet"), nodeName, nodeIP)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(server.Config())
	if err != nil {
		return err
	}
	cri, err := dataplane.NewCRI(containerd.Socket)
	if err != nil {
		return err
	}
	defer cri.Close()
	for _, s := range scenes {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		fmt.Println("scene", s.name)
		r := &recorder{client: client, containerd: containerd, kubelet: k, cri: cri, namespace: s.name, begun: time.Now()}
		if err := r.record(ctx, s, filepath.Join(folder, s.name+".jsonl")); err != nil {
			return fmt.Errorf("scene %s: %w", s.name, err)
		}
	}
	return nil
}

// A recorder records one scene, of the pods of a namespace.
type recorder struct {
	client     dynamic.Interface
	containerd *node.Containerd
	kubelet    *node.Kubelet
	cri        *dataplane.CRI
	namespace  string
	begun      time.Time

	mu      sync.Mutex
	moments []node.Moment          // guarded by mu
	pods    map[string]*corev1.Pod // by name; guarded by mu
	last    time.Time              // when something happened last; guarded by mu
}

func (r *recorder) api() dynamic.ResourceInterface {
	return r.client.Resource(apiserver.Pods).Namespace(r.namespace)
}

func (r *recorder) record(ctx context.Context, s scene, file string) error {
	r.pods = map[string]*corev1.Pod{}
	namespace := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": r.namespace}}}
	_, err := r.client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(ctx, namespace, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	events, err := r.api().Watch(watching, metav1.ListOptions{})
	if err != nil {
		stop()
		return err
	}
	var running sync.WaitGroup
	running.Go(func() { r.watch(events) })
	running.Go(func() { r.poll(watching) })
	err = s.play(ctx, r)
	stop()
	running.Wait()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, m := range r.moments {
		b, err := json.Marshal(m)
		if err != nil {
			return err
		}
		text.Write(append(b, '\n'))
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

func (r *recorder) add(m node.Moment) {
	r.last = time.Now()
	m.At = r.last.Sub(r.begun).Round(time.Millisecond)
	r.moments = append(r.moments, m)
	what := m.Did
	if m.Pod != nil {
		what = fmt.Sprint(m.Event, " ", m.Pod.Name, " ", m.Pod.Status.Phase, " ", m.Pod.Status.PodIPs)
	} else if m.Sandboxes != nil {
		what = fmt.Sprint("sandboxes ", *m.Sandboxes)
	}
	fmt.Printf("  %8s %s\n", m.At, what)
}

// did writes down what is done now.
func (r *recorder) did(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.add(node.Moment{Did: fmt.Sprintf(format, args...)})
}

func (r *recorder) watch(events watch.Interface) {
	for e := range events.ResultChan() {
		object, is := e.Object.(*unstructured.Unstructured)
		if !is {
			continue
		}
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, pod); err != nil {
			r.did("not understood: %v", err)
			continue
		}
		pod.ManagedFields = nil
		r.mu.Lock()
		r.add(node.Moment{Event: string(e.Type), Pod: pod})
		if r.pods[pod.Name] = pod; e.Type == watch.Deleted {
			delete(r.pods, pod.Name)
		}
		r.mu.Unlock()
	}
}

// poll asks the runtime ten times a second.
func (r *recorder) poll(ctx context.Context) {
	var before []node.Sandbox
	for {
		if all, err := r.cri.Sandboxes(ctx); err == nil {
			now := []node.Sandbox{}
			for _, s := range all {
				if s.Pod.Namespace != r.namespace {
					continue
				}
				has := node.Sandbox{Namespace: s.Pod.Namespace, Name: s.Pod.Name, UID: s.Pod.UID, Ready: s.Ready}
				for _, a := range s.Addresses {
					has.Addresses = append(has.Addresses, a.String())
				}
				now = append(now, has)
			}
			slices.SortFunc(now, func(a, b node.Sandbox) int { return strings.Compare(a.UID, b.UID) })
			if !reflect.DeepEqual(now, before) {
				r.mu.Lock()
				r.add(node.Moment{Sandboxes: &now})
				r.mu.Unlock()
				before = now
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(100 * time.Millisecond):
		}
	}
}
