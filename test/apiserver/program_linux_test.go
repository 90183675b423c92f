package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"
)

// These tests are about the program in test/controlplane and about what becomes of it.

func mustProgram(t *testing.T) string {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestProgramTellsWhatIsWrong(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() }) // not defer: the subtests run when this function has returned
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	shared := Shared(t)

	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"port in use":    {[]string{"--port", port}, "listen for the API server: listen tcp4 127.0.0.1:" + port + ": bind: address already in use"},
		"unknown flag":   {[]string{"--", "--no-such-flag"}, "kube-apiserver stopped: unknown flag: --no-such-flag"},
		"bad value":      {[]string{"--", "--authorization-mode=Nobody"}, `kube-apiserver stopped: authorization-mode "Nobody" is not a valid mode`},
		"not a flag":     {[]string{"--", "word"}, `kube-apiserver stopped: "word" is not a flag`},
		"folder in use":  {[]string{"--dir", filepath.Join(shared.dir, "data")}, "which another control plane may be using"},
		"folder missing": {[]string{"--dir", ""}, "--dir and --kubeconfig are required"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			kubeconfig := filepath.Join(dir, "kubeconfig")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			args := append([]string{"--dir", filepath.Join(dir, "data"), "--kubeconfig", kubeconfig}, c.args...)
			out, err := exec.CommandContext(ctx, mustProgram(t), args...).CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			last := lines[len(lines)-1]
			if err == nil || err.Error() != "exit status 1" || !strings.HasPrefix(last, "controlplane: ") || !strings.Contains(last, c.want) {
				t.Errorf("error %v, last line %q; want status 1 and %q", err, last, c.want)
			}
			if _, err := os.Stat(kubeconfig); err == nil {
				t.Error("it wrote a kubeconfig")
			}
		})
	}
}

// An ordinary user runs it as well: this test's own, or nobody where the test is root.
func TestProgramFromStartToEnd(t *testing.T) {
	t.Parallel()
	dir := folderForNobody(t)
	program := filepath.Join(dir, "controlplane") // the cache may be closed to others
	copyFile(t, mustProgram(t), program)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("stale"), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--dir", filepath.Join(dir, "data"), "--kubeconfig", kubeconfig)
	cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = asNobody(childAttributes())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := startTied(t, cmd)

	// The file of an earlier run goes first, and the new one is whole and valid as soon as it is there.
	var text []byte
	Eventually(t, "the kubeconfig", func() error {
		select {
		case err := <-p:
			t.Fatalf("it ended: %v; log:\n%s", err, stderr.String())
		default:
		}
		var err error
		text, err = os.ReadFile(kubeconfig)
		if string(text) == "stale" {
			return errors.New("still the one of an earlier run")
		}
		return err
	})
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// A watch must not hold up the end.
	watch, err := client.Resource(Nodes).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatalf("the server is not ready when the kubeconfig is there: %v", err)
	}
	defer watch.Stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if want := fmt.Sprintf("ready: %s %s\n", config.Host, kubeconfig); err != nil || line != want {
		t.Errorf("standard output %q, error %v; want %q", line, err, want)
	}

	begin := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = <-p
	if err != nil {
		t.Errorf("ended with %v; log:\n%s", err, stderr.String())
	}
	// 2 s on an idle machine; a minute is what it takes when it waits for the watch.
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("the end took %s", took)
	}
}

// startTied starts cmd on a thread that lasts as long as it does, as startProcess does, and gives what Wait returns.
func startTied(t *testing.T, cmd *exec.Cmd) <-chan error {
	t.Helper()
	started, ended := make(chan error), make(chan error, 1)
	go waitOnOneThread(cmd, started, ended)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	return ended
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestProgramEndsCleanlyWhileItStarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(mustProgram(t), "--dir", filepath.Join(dir, "data"), "--kubeconfig", filepath.Join(dir, "kubeconfig"))
	cmd.SysProcAttr = childAttributes()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	ended := startTied(t, cmd)
	// kube-apiserver makes its certificate when it begins to start.
	Eventually(t, "the start", func() error {
		_, err := os.Stat(filepath.Join(dir, "data", "certs", "apiserver.key"))
		return err
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("ended with %v; log:\n%s", err, stderr.String())
	}
}

func TestStopAndRestart(t *testing.T) {
	t.Parallel()
	s := Start(t, "--event-ttl=2h")
	s.CreateNode(t, "n", nil)
	uid := s.Get(t, Nodes, "", "n").GetUID()
	before := s.Config()

	s.Stop(t)
	if _, err := s.Dynamic().Resource(Nodes).Get(t.Context(), "n", metav1.GetOptions{}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("while stopped: error %v, want connection refused", err)
	}
	s.Restart(t)
	if after := s.Config(); after.Host != before.Host || after.BearerToken != before.BearerToken || string(after.CAData) != string(before.CAData) {
		t.Error("address or credentials changed")
	}
	client, err := dynamic.NewForConfig(before)
	if err != nil {
		t.Fatal(err)
	}
	node, err := client.Resource(Nodes).Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if node.GetUID() != uid {
		t.Errorf("UID %s, want %s", node.GetUID(), uid)
	}
	if flags := commandLine(t, s.process.os.Pid); !strings.Contains(flags, "--event-ttl=2h") {
		t.Errorf("restarted as %q, without its flags", flags)
	}
}

// crashEnv makes TestMain's process one that TestServerDiesWithItsTests watches.
const crashEnv = "UNSTALE_TEST_CRASH"

func TestCrash(t *testing.T) {
	how := os.Getenv(crashEnv)
	if how == "" {
		return // only of use to TestServerDiesWithItsTests
	}
	s := Shared(t)
	fmt.Printf("control plane %d in %s\n", s.process.os.Pid, s.dir)
	switch how {
	case "panic":
		panic("on purpose")
	case "fail":
		t.Error("on purpose")
	case "hang":
		<-t.Context().Done() // until somebody kills this process
	}
}

func TestServerDiesWithItsTests(t *testing.T) {
	t.Parallel()
	var left string
	temp := t.TempDir() // a folder of its own, or other tests that run now would remove what crashes leave
	for _, how := range []string{"panic", "hang", "fail"} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
		cmd.Env = append(os.Environ(), crashEnv+"="+how, "TMPDIR="+temp)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		var dir string
		lines := bufio.NewReader(stdout)
		line, err := lines.ReadString('\n')
		if _, scanErr := fmt.Sscanf(line, "control plane %d in %s\n", &pid, &dir); scanErr != nil {
			t.Fatalf("%s: line %q, error %v", how, line, err)
		}
		if how == "hang" {
			cmd.Process.Kill()
		}
		io.Copy(io.Discard, lines)
		if err := cmd.Wait(); err == nil {
			t.Errorf("%s: the tests passed", how)
		}
		Eventually(t, how+": the end of the control plane", func() error {
			if alive(pid) {
				return errors.New("still running")
			}
			return nil
		})
		if left != "" {
			if _, err := os.Stat(left); err == nil {
				t.Errorf("%s: %s of the crash before is still there", how, left)
			}
		}
		left = dir
	}
	if _, err := os.Stat(left); err == nil {
		t.Errorf("%s of tests that failed is still there", left)
	}
}

func alive(pid int) bool {
	// A zombie has an empty command line.
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && len(line) > 0
}

func commandLine(t *testing.T, pid int) string {
	t.Helper()
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	return string(bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
}

func folderForNobody(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "unstale-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if os.Getuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const nobody = 65534

func asNobody(attributes *syscall.SysProcAttr) *syscall.SysProcAttr {
	if os.Getuid() == 0 {
		attributes.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return attributes
}

// A recorder keeps the message of Fatal and ends the goroutine, as the real one does.
type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Fatal(args ...any) {
	r.message = fmt.Sprint(args...)
	runtime.Goexit()
}

func TestSharedServerMayNotBeStopped(t *testing.T) {
	t.Parallel()
	s := Shared(t)
	for name, f := range map[string]func(testing.TB){"Stop": s.Stop, "Restart": s.Restart} {
		r := &recorder{TB: t}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f(r)
		}()
		<-ended
		if !strings.Contains(r.message, "this one is shared") {
			t.Errorf("%s: %q, want a refusal", name, r.message)
		}
	}
}

func TestMissingProgram(t *testing.T) {
	t.Setenv(programEnv, "")
	t.Setenv("UNSTALE_CACHE", t.TempDir())
	if _, err := Launch(); err == nil || !strings.Contains(err.Error(), "build it first with `make controlplane`") {
		t.Errorf("error %v, want one that tells how to build it", err)
	}
	t.Setenv(programEnv, "/no/such/program")
	if _, err := Launch(); err == nil || !strings.Contains(err.Error(), programEnv) {
		t.Errorf("error %v, want one that names %s", err, programEnv)
	}
}
