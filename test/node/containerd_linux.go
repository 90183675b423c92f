package node

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A Containerd is a running containerd, with its pods, in namespaces for processes and mounts of its own: all of it ends with it, and it with this
// process.
type Containerd struct {
	// Socket is where it listens.
	Socket string
	// CNI is the folder with the configuration of the pods' network. While it is empty no pod starts.
	CNI string

	Options
	dir     string
	process *process
}

// Options are about the pods' network.
type Options struct {
	// IPv4 and IPv6 are the subnets that pods' addresses come from.
	IPv4, IPv6 string
	// Shared makes it use this process's network, where a kubelet reaches its API server. Otherwise it has one of its own.
	Shared bool
}

// startLimit is how long a program may take until it is ready. It takes a second or two on an idle machine.
const startLimit = time.Minute

// NewContainerd starts one for a test, and ends it with the test. The pods have addresses of both families.
func NewContainerd(t testing.TB, o Options) *Containerd {
	t.Helper()
	dir, err := os.MkdirTemp("", "node") // not the test's, whose name may be too long for a socket's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	c, err := StartContainerd(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// StartContainerd starts one whose files are below dir, which exists and has a short name.
func StartContainerd(dir string, o Options) (*Containerd, error) {
	c := &Containerd{Socket: filepath.Join(dir, "containerd.sock"), CNI: filepath.Join(dir, "cni"), Options: o, dir: dir}
	if err := os.Mkdir(c.CNI, 0o700); err != nil {
		return nil, err
	}
	if err := c.Connect(); err != nil {
		return nil, err
	}
	image := filepath.Join(dir, "image.tar")
	if err := writeImage(image); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(c.config()), 0o600); err != nil {
		return nil, err
	}
	if err := c.start(); err != nil {
		return nil, err
	}
	if out, err := exec.Command("ctr", "--address", c.Socket, "--namespace", "k8s.io", "images", "import", image).CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("import the image: %w: %s", err, out), c.Close())
	}
	return c, nil
}

// config needs restrict_oom_score_adj where the capability CAP_SYS_RESOURCE is missing, and the snapshotter that works everywhere.
func (c *Containerd) config() string {
	return fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
address = "%[2]s"
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "%[3]s"
restrict_oom_score_adj = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "%[4]s"
`, c.dir, c.Socket, Image, c.CNI)
}

func (c *Containerd) start() error {
	own := uintptr(syscall.CLONE_NEWPID)
	if !c.Shared {
		own |= syscall.CLONE_NEWNET
	}
	p, err := start("containerd", filepath.Join(c.dir, "containerd.log"), &syscall.SysProcAttr{Cloneflags: own, Unshareflags: syscall.CLONE_NEWNS},
		"sh", "-c", `mount -t proc proc /proc && exec containerd --config "$0"`, filepath.Join(c.dir, "config.toml"))
	if err != nil {
		return err
	}
	c.process = p
	err = p.await(startLimit, func() bool {
		out, err := exec.Command("ctr", "--address", c.Socket, "--namespace", "k8s.io", "version").CombinedOutput()
		return err == nil && strings.Contains(string(out), "Server:")
	})
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// Disconnect takes the network's configuration away: no pod gets an address any more, and none loses its one.
func (c *Containerd) Disconnect() error { return os.Remove(filepath.Join(c.CNI, "10-ptp.conflist")) }

// Connect gives pods that start from now on addresses.
func (c *Containerd) Connect() error {
	plugin := map[string]any{
		"type": "ptp",
		"ipam": map[string]any{
			"type": "host-local", "dataDir": filepath.Join(c.dir, "ipam"),
			"ranges": []any{[]any{map[string]string{"subnet": c.IPv4}}, []any{map[string]string{"subnet": c.IPv6}}},
			"routes": []any{map[string]string{"dst": "0.0.0.0/0"}, map[string]string{"dst": "::/0"}},
		},
	}
	list := map[string]any{"cniVersion": "0.4.0", "name": "pods", "plugins": []any{plugin}}
	return os.WriteFile(filepath.Join(c.CNI, "10-ptp.conflist"), jsonOf(list), 0o600)
}

// Close ends it with all that runs in it.
func (c *Containerd) Close() error { return c.process.kill() }

// A process is a program that runs, and dies with this one.
type process struct {
	name, log string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// start runs a program. It dies with this process: Linux sees to that by the thread that made it, which therefore lasts as long.
func start(name, log string, attributes *syscall.SysProcAttr, args ...string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{name: name, log: log, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	attributes.Pdeathsig = syscall.SIGKILL
	p.cmd.SysProcAttr = attributes
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // that it ended, and how, its log tells
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// await returns when ready says so, or with the end of the log.
func (p *process) await(limit time.Duration, ready func() bool) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	pause := time.NewTicker(100 * time.Millisecond)
	defer pause.Stop()
	for !ready() {
		select {
		case <-pause.C:
		case <-p.ended:
			return fmt.Errorf("%s ended before it was ready; its log ends:\n%s", p.name, p.tail())
		case <-deadline.C:
			return fmt.Errorf("%s was not ready after %s; its log ends:\n%s", p.name, limit, p.tail())
		}
	}
	return nil
}

func (p *process) tail() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-2000):])
}

// kill ends it, with all in its namespace for processes, and waits for it.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s, process %d: %w", p.name, p.cmd.Process.Pid, err)
	}
	<-p.ended
	return nil
}
