package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/unstale/unstale/test/node"
)

// A scene is what is done to some pods.
type scene struct {
	name string
	play func(context.Context, *recorder) error
}

var scenes = []scene{
	{"ends", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a")), r.awaitRunning(ctx, "a"), r.delete(ctx, "a", 30), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"sandbox-dies", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a")), r.awaitRunning(ctx, "a"), r.killSandbox(ctx, "a"), r.awaitAnother(ctx, "a"), r.quiet(ctx),
			r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"sandbox-dies-without-network", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a")), r.awaitRunning(ctx, "a"), r.disconnect(), r.killSandbox(ctx, "a"), r.pause(ctx, 60*time.Second),
			r.connect(), r.awaitAnother(ctx, "a"), r.quiet(ctx), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"no-network-at-first", func(ctx context.Context, r *recorder) error {
		return steps(r.disconnect(), r.create(ctx, pod("a")), r.pause(ctx, 20*time.Second), r.connect(), r.awaitRunning(ctx, "a"),
			r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"deleted-by-force", func(ctx context.Context, r *recorder) error {
		deaf := pod("a", "deaf")
		return steps(r.create(ctx, deaf), r.awaitRunning(ctx, "a"), r.delete(ctx, "a", 0), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"deleted-by-force-while-the-kubelet-is-down", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a")), r.awaitRunning(ctx, "a"), r.stopKubelet(), r.delete(ctx, "a", 0), r.pause(ctx, 90*time.Second),
			r.startKubelet(), r.awaitNoSandbox(ctx), r.quiet(ctx))
	}},
	{"same-name-again", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a", "deaf")), r.awaitRunning(ctx, "a"), r.delete(ctx, "a", 0), r.awaitGone(ctx, "a"), r.create(ctx, pod("a")),
			r.awaitRunning(ctx, "a"), r.quiet(ctx), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"job", func(ctx context.Context, r *recorder) error {
		done, failed := pod("done", "3s", "0"), pod("failed", "3s", "1")
		done.Spec.RestartPolicy, failed.Spec.RestartPolicy = corev1.RestartPolicyNever, corev1.RestartPolicyNever
		return steps(r.create(ctx, done), r.create(ctx, failed), r.awaitPhase(ctx, "done", corev1.PodSucceeded), r.awaitPhase(ctx, "failed", corev1.PodFailed), r.quiet(ctx),
			r.delete(ctx, "done", 1), r.delete(ctx, "failed", 1), r.awaitGone(ctx, "done"), r.awaitGone(ctx, "failed"), r.quiet(ctx))
	}},
	{"deadline", func(ctx context.Context, r *recorder) error {
		p, seconds := pod("a", "deaf"), int64(5)
		p.Spec.ActiveDeadlineSeconds = &seconds
		return steps(r.create(ctx, p), r.awaitPhase(ctx, "a", corev1.PodFailed), r.quiet(ctx), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"container-restarts", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a", "2s", "1")), r.awaitRunning(ctx, "a"), r.pause(ctx, 40*time.Second), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"kubelet-restarts", func(ctx context.Context, r *recorder) error {
		return steps(r.create(ctx, pod("a")), r.awaitRunning(ctx, "a"), r.stopKubelet(), r.killSandbox(ctx, "a"), r.pause(ctx, 15*time.Second), r.startKubelet(),
			r.awaitAnother(ctx, "a"), r.quiet(ctx), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"host-network", func(ctx context.Context, r *recorder) error {
		p := pod("a")
		p.Spec.HostNetwork = true
		return steps(r.create(ctx, p), r.awaitRunning(ctx, "a"), r.delete(ctx, "a", 1), r.awaitGone(ctx, "a"), r.quiet(ctx))
	}},
	{"static", func(ctx context.Context, r *recorder) error {
		name := "s-" + nodeName // as the API server has it
		return steps(r.manifest("s"), r.awaitRunning(ctx, name), r.delete(ctx, name, 0), r.awaitGone(ctx, name), r.awaitRunning(ctx, name), r.quiet(ctx), r.removeManifest("s"), r.awaitGone(ctx, name), r.quiet(ctx))
	}},
	{"busy", func(ctx context.Context, r *recorder) error { // addresses are used again
		var all []func() error
		for round := range 3 {
			for i := range 4 {
				all = append(all, r.create(ctx, pod(fmt.Sprintf("p%d-%d", round, i))))
			}
			for i := range 4 {
				name := fmt.Sprintf("p%d-%d", round, i)
				all = append(all, r.awaitRunning(ctx, name), r.delete(ctx, name, int64(i%2)))
			}
			for i := range 4 {
				all = append(all, r.awaitGone(ctx, fmt.Sprintf("p%d-%d", round, i)))
			}
		}
		return steps(append(all, r.awaitNoSandbox(ctx), r.quiet(ctx))...)
	}},
}

func steps(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func pod(name string, args ...string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:   nodeName,
			Containers: []corev1.Container{{Name: "main", Image: node.Image, ImagePullPolicy: corev1.PullNever, Args: args}},
		},
	}
}

func (r *recorder) create(ctx context.Context, p *corev1.Pod) func() error {
	return func() error {
		r.did("create pod %s", p.Name)
		object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
		if err != nil {
			return err
		}
		_, err = r.api().Create(ctx, &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
		return err
	}
}

func (r *recorder) delete(ctx context.Context, name string, grace int64) func() error {
	return func() error {
		r.did("delete pod %s, grace period %d s", name, grace)
		return r.api().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace})
	}
}

func (r *recorder) killSandbox(ctx context.Context, name string) func() error {
	return func() error {
		out, err := exec.CommandContext(ctx, "ctr", "--address", r.containerd.Socket, "--namespace", "k8s.io", "containers", "list", "--quiet",
			fmt.Sprintf(`labels."io.kubernetes.pod.name"==%s,labels."io.kubernetes.pod.namespace"==%s,labels."io.cri-containerd.kind"==sandbox`, name, r.namespace)).CombinedOutput()
		id := strings.TrimSpace(string(out))
		if err != nil || id == "" {
			return fmt.Errorf("find the sandbox of %s: %w: %s", name, err, out)
		}
		r.did("kill the sandbox of pod %s", name)
		out, err = exec.CommandContext(ctx, "ctr", "--address", r.containerd.Socket, "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id).CombinedOutput()
		if err != nil {
			return fmt.Errorf("kill the sandbox of %s: %w: %s", name, err, out)
		}
		return nil
	}
}

func (r *recorder) disconnect() func() error {
	return func() error {
		r.did("the pods' network is not configured any more")
		return r.containerd.Disconnect()
	}
}

func (r *recorder) connect() func() error {
	return func() error {
		r.did("the pods' network is configured")
		return r.containerd.Connect()
	}
}

func (r *recorder) stopKubelet() func() error {
	return func() error {
		r.did("stop the kubelet")
		return r.kubelet.Stop()
	}
}

func (r *recorder) startKubelet() func() error {
	return func() error {
		r.did("start the kubelet")
		return r.kubelet.Start()
	}
}

func (r *recorder) manifest(name string) func() error {
	return func() error {
		r.did("write the manifest of the static pod %s", name)
		text := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": %q, "namespace": %q}, "spec": {"containers": [{"name": "main", "image": %q, "imagePullPolicy": "Never"}]}}`,
			name, r.namespace, node.Image)
		return os.WriteFile(filepath.Join(r.kubelet.Manifests, name+".json"), []byte(text), 0o600)
	}
}

func (r *recorder) removeManifest(name string) func() error {
	return func() error {
		r.did("remove the manifest of the static pod %s", name)
		return os.Remove(filepath.Join(r.kubelet.Manifests, name+".json"))
	}
}

// stepLimit is how long a wait may take.
const stepLimit = 4 * time.Minute

func (r *recorder) await(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, stepLimit)
	defer cancel()
	for {
		r.mu.Lock()
		done := is()
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until %s: %w", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (r *recorder) awaitRunning(ctx context.Context, name string) func() error {
	return func() error {
		return r.await(ctx, name+" runs with an address", func() bool {
			p := r.pods[name]
			return p != nil && p.Status.Phase == corev1.PodRunning && len(p.Status.PodIPs) > 0 && p.DeletionTimestamp == nil
		})
	}
}

func (r *recorder) awaitPhase(ctx context.Context, name string, phase corev1.PodPhase) func() error {
	return func() error {
		return r.await(ctx, fmt.Sprint(name, " is ", phase), func() bool { return r.pods[name] != nil && r.pods[name].Status.Phase == phase })
	}
}

func (r *recorder) awaitGone(ctx context.Context, name string) func() error {
	return func() error {
		return r.await(ctx, name+" is gone", func() bool { return r.pods[name] == nil })
	}
}

// awaitAnother waits until a pod has another address than at the beginning of the wait.
func (r *recorder) awaitAnother(ctx context.Context, name string) func() error {
	return func() error {
		r.mu.Lock()
		before := r.pods[name].Status.PodIP
		r.mu.Unlock()
		return r.await(ctx, name+" has another address", func() bool {
			p := r.pods[name]
			return p != nil && p.Status.PodIP != "" && p.Status.PodIP != before
		})
	}
}

// awaitNoSandbox waits until the runtime has none.
func (r *recorder) awaitNoSandbox(ctx context.Context) func() error {
	return func() error {
		return r.await(ctx, "no sandbox is left", func() bool {
			for i := len(r.moments) - 1; i >= 0; i-- {
				if s := r.moments[i].Sandboxes; s != nil {
					return len(*s) == 0
				}
			}
			return false
		})
	}
}

// quiet waits until nothing has happened for a while.
func (r *recorder) quiet(ctx context.Context) func() error {
	return func() error {
		return r.await(ctx, "nothing happens", func() bool { return time.Since(r.last) > 5*time.Second })
	}
}

func (r *recorder) pause(ctx context.Context, d time.Duration) func() error {
	return func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
			return nil
		}
	}
}
