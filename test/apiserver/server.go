package apiserver

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// A Server is a running control plane.
type Server struct {
	// Kubeconfig is a file with every right on the server.
	Kubeconfig string

	program string
	dir     string
	flags   []string
	remove  func() error

	config  *rest.Config
	http    *http.Client
	dynamic dynamic.Interface

	process *process // nil while stopped
}

// startLimit is how long the server may take until it is ready. It takes about 5 s on an idle machine.
const startLimit = 3 * time.Minute

// Launch starts a control plane, for programs; tests call Shared or Start. The flags are kube-apiserver's and
// override those that the control plane sets. Close ends it.
func Launch(flags ...string) (*Server, error) {
	path, err := program()
	if err != nil {
		return nil, err
	}
	dir, remove, err := newFolder()
	if err != nil {
		return nil, fmt.Errorf("make a folder for the test control plane: %w", err)
	}
	s := &Server{
		Kubeconfig: filepath.Join(dir, "kubeconfig"),
		program:    path, dir: dir, flags: flags, remove: remove,
	}
	if err := s.launch(0); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// launch starts the process on the port (0: any) and makes the clients.
func (s *Server) launch(port int) error {
	args := []string{
		"--dir", filepath.Join(s.dir, "data"), "--kubeconfig", s.Kubeconfig, "--port", fmt.Sprint(port), "--",
	}
	// The program removes it too, but not before somebody may have looked.
	if err := os.Remove(s.Kubeconfig); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p, err := startProcess(s.program, append(args, s.flags...), filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	s.process = p
	if err := p.waitForFile(s.Kubeconfig, startLimit); err != nil {
		p.kill()
		s.process = nil
		return err
	}
	if s.config, err = clientcmd.BuildConfigFromFlags("", s.Kubeconfig); err != nil {
		return err
	}
	s.config.QPS = -1 // the server's own limits are enough
	bounded := s.Config()
	bounded.Timeout = time.Minute // a server that hangs fails the test, with the request's name
	if s.http, err = rest.HTTPClientFor(bounded); err != nil {
		return err
	}
	s.dynamic, err = dynamic.NewForConfigAndClient(bounded, s.http)
	return err
}

// Close ends the server and removes its data.
func (s *Server) Close() error {
	var err error
	if s.process != nil {
		err = s.process.stop()
		s.process = nil
		s.http.CloseIdleConnections()
	}
	return errors.Join(err, s.remove())
}

// Start starts a control plane for this test alone and ends it with the test. The flags are kube-apiserver's.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	s, err := Launch(flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Stop ends a server that Start gave, as an outage does; Restart starts it again with the same data at the same address.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	s.mustOwn(t)
	if err := s.process.stop(); err != nil {
		t.Fatal(err)
	}
	s.process = nil
	s.http.CloseIdleConnections()
}

// Restart starts a stopped server again.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	s.mustOwn(t)
	u, err := url.Parse(s.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	var port int
	if _, err := fmt.Sscan(u.Port(), &port); err != nil {
		t.Fatalf("read the port of %s: %v", u, err)
	}
	if err := s.launch(port); err != nil {
		t.Fatal(err)
	}
}

// mustOwn keeps a test from stopping a server that others use.
func (s *Server) mustOwn(t testing.TB) {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if s == shared.server {
		t.Fatal("only a server made with Start may be stopped: this one is shared")
	}
}

// Config is a new client configuration with every right and no limit on the client's side.
func (s *Server) Config() *rest.Config { return rest.CopyConfig(s.config) }

// Dynamic is a client with every right. It gives up on a request after a minute; for longer watches make one from Config.
func (s *Server) Dynamic() dynamic.Interface { return s.dynamic }

// shared is the one server of a test binary.
var shared struct {
	sync.Mutex
	running bool // Run is on the stack, so somebody will end the server
	server  *Server
	err     error // of the only attempt to start it
}

// Run runs a package's tests and then ends the server that Shared started, if any test did. It returns the exit status
// for os.Exit in TestMain. A panic in a test ends the process at once; then the server dies with it.
func Run(m *testing.M) int {
	shared.Lock()
	shared.running = true
	shared.Unlock()
	code := m.Run()

	shared.Lock()
	defer shared.Unlock()
	shared.running = false
	if shared.server == nil {
		return code
	}
	err := shared.server.Close()
	shared.server = nil
	if err != nil {
		fmt.Println("FAIL:", err)
		return max(code, 1)
	}
	return code
}

// Shared is the package's server. The first test that calls it starts it.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if !shared.running {
		t.Fatal("nobody would end the shared server: write func TestMain(m *testing.M) { os.Exit(apiserver.Run(m)) }")
	}
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = Launch()
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	select {
	case <-shared.server.process.exited:
		t.Fatalf("the shared control plane has died; its log ends:\n%s", shared.server.process.logTail())
	default:
	}
	return shared.server
}
