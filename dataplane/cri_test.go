package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A fakeCRI answers as a container runtime does whose sandboxes the test says. It prints what it has.
type fakeCRI struct {
	cri.UnimplementedRuntimeServiceServer
	mu        sync.Mutex
	sandboxes map[string]*cri.PodSandboxStatus // by id
	err       error
	hang      bool
	asked     []string // the ids
	answering func(id string)
}

func (f *fakeCRI) String() string {
	var b strings.Builder
	for id, s := range f.sandboxes {
		fmt.Fprintln(&b, id, s.State, s.Metadata.GetUid(), s.Network.GetIp())
	}
	return b.String()
}

func (f *fakeCRI) ListPodSandbox(ctx context.Context, _ *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hang {
		f.mu.Unlock()
		<-ctx.Done()
		f.mu.Lock()
	}
	list := &cri.ListPodSandboxResponse{}
	for id, s := range f.sandboxes {
		list.Items = append(list.Items, &cri.PodSandbox{Id: id, Metadata: s.Metadata, State: s.State})
	}
	return list, f.err
}

func (f *fakeCRI) PodSandboxStatus(_ context.Context, r *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, r.PodSandboxId)
	if f.answering != nil {
		f.answering(r.PodSandboxId)
	}
	s := f.sandboxes[r.PodSandboxId]
	if s == nil {
		return nil, status.Error(codes.NotFound, "no such sandbox")
	}
	return &cri.PodSandboxStatusResponse{Status: s}, nil
}

// set gives it a sandbox of the pod of that UID, or takes it away: "".
func (f *fakeCRI) set(id, uid string, state cri.PodSandboxState, network cri.NamespaceMode, ips ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if uid == "" {
		delete(f.sandboxes, id)
		return
	}
	s := &cri.PodSandboxStatus{
		Id: id, State: state, Metadata: &cri.PodSandboxMetadata{Namespace: "ns", Name: strings.ToLower(uid), Uid: uid},
		Linux: &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{Network: network}}},
	}
	if len(ips) > 0 {
		s.Network = &cri.PodSandboxNetworkStatus{Ip: ips[0]}
		for _, ip := range ips[1:] {
			s.Network.AdditionalIps = append(s.Network.AdditionalIps, &cri.PodIP{Ip: ip})
		}
	}
	f.sandboxes[id] = s
}

func (f *fakeCRI) do(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// questions are the ids that were asked about since the last call.
func (f *fakeCRI) questions() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	asked := f.asked
	f.asked = nil
	slices.Sort(asked)
	return strings.Join(asked, " ")
}

// serve starts the fake on a socket of its own.
func (f *fakeCRI) serve(t *testing.T, socket string) (stop func()) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, f)
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	stop = sync.OnceFunc(func() {
		server.Stop()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

func newFakeCRI(t *testing.T) (*fakeCRI, *CRI) {
	t.Helper()
	f := &fakeCRI{sandboxes: map[string]*cri.PodSandboxStatus{}}
	socket := filepath.Join(t.TempDir(), "cri.sock")
	f.serve(t, socket)
	return f, newCRI(t, "unix://"+socket)
}

func newCRI(t *testing.T, endpoint string) *CRI {
	t.Helper()
	c, err := NewCRI(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { check(t, c.Close()) })
	return c
}

// sandboxesOf are what the runtime says, as "A 10.0.0.1 fd00::1".
func sandboxesOf(t *testing.T, c *CRI) string {
	t.Helper()
	sandboxes, err := c.Sandboxes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, s := range sandboxes {
		text := s.Pod.UID
		if !s.Ready {
			text += " (ended)"
		}
		for _, a := range s.Addresses {
			text += " " + a.String()
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, ", ")
}

const (
	ready    = cri.PodSandboxState_SANDBOX_READY
	notReady = cri.PodSandboxState_SANDBOX_NOTREADY
	ofPod    = cri.NamespaceMode_POD
	ofNode   = cri.NamespaceMode_NODE
)

func TestCRISandboxes(t *testing.T) {
	f, c := newFakeCRI(t)
	if got := sandboxesOf(t, c); got != "" {
		t.Error(got)
	}
	f.set("1", "A", ready, ofPod, "10.0.0.1", "fd00::1")
	f.set("2", "B", notReady, ofPod, "10.0.0.2") // its network is still there
	f.set("3", "C", notReady, ofPod)             // its network is gone
	f.set("4", "D", ready, ofNode, "192.168.0.1")
	f.set("5", "E", ready, ofPod, "::ffff:10.0.0.5")
	f.set("6", "F", ready, ofPod) // between two words of the runtime
	f.do(func() { f.sandboxes["7"] = &cri.PodSandboxStatus{Id: "7"} })
	if got := sandboxesOf(t, c); got != ", A 10.0.0.1 fd00::1, B (ended) 10.0.0.2, D, E 10.0.0.5, F" {
		t.Error(got)
	}
	if got := sandboxesOf(t, c); got != ", A 10.0.0.1 fd00::1, B (ended) 10.0.0.2, D, E 10.0.0.5, F" {
		t.Error(got)
	}
}

// Each is asked about again only while its answer may be another.
func TestCRIAsksOnce(t *testing.T) {
	f, c := newFakeCRI(t)
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	f.set("2", "B", notReady, ofPod, "10.0.0.2")
	f.set("3", "C", notReady, ofPod)
	f.set("4", "D", ready, ofNode, "192.168.0.1")
	f.set("6", "F", ready, ofPod)
	for _, want := range []string{"1 2 3 4 6", "2 6", "2 6"} {
		sandboxesOf(t, c)
		if got := f.questions(); got != want {
			t.Errorf("asked about %s, want %s", got, want)
		}
	}
	f.set("1", "A", notReady, ofPod, "10.0.0.1")
	f.set("2", "B", notReady, ofPod)
	f.set("6", "F", ready, ofPod, "10.0.0.6")
	f.set("4", "", notReady, ofNode)
	if got := sandboxesOf(t, c); got != "A (ended) 10.0.0.1, F 10.0.0.6" {
		t.Error(got)
	}
	if got := f.questions(); got != "1 2 6" {
		t.Error(got)
	}
	f.set("1", "A", notReady, ofPod)
	if got := sandboxesOf(t, c); got != "F 10.0.0.6" {
		t.Error(got)
	}
	f.set("4", "D", ready, ofPod, "10.0.0.4") // an id that was given away
	if got := sandboxesOf(t, c); got != "D 10.0.0.4, F 10.0.0.6" {
		t.Error(got)
	}
	if len(c.known) != 5 {
		t.Errorf("%d are remembered, of 5", len(c.known))
	}
}

// One that goes or ends between the list and the question about it is no error.
func TestCRISandboxChangesMeanwhile(t *testing.T) {
	f, c := newFakeCRI(t)
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	f.do(func() { f.answering = func(id string) { delete(f.sandboxes, id) } })
	if got := sandboxesOf(t, c); got != "" {
		t.Error(got)
	}
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	f.do(func() {
		f.answering = func(id string) {
			f.sandboxes[id] = &cri.PodSandboxStatus{Id: id, State: notReady, Metadata: f.sandboxes[id].Metadata}
		}
	})
	if got := sandboxesOf(t, c); got != "" {
		t.Error(got)
	}
	f.do(func() { f.answering = nil })
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	if got := sandboxesOf(t, c); got != "A 10.0.0.1" {
		t.Error(got)
	}
}

// Each failure says to whom, what, and what to do; none of them is an answer.
func TestCRIErrors(t *testing.T) {
	f, c := newFakeCRI(t)
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	says := func(c *CRI, words ...string) {
		t.Helper()
		sandboxes, err := c.Sandboxes(t.Context())
		if err == nil || sandboxes != nil {
			t.Errorf("%v, %v", sandboxes, err)
			return
		}
		for _, w := range append(words, "ask the container runtime at "+c.endpoint) {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not say %q", err, w)
			}
		}
	}
	f.do(func() { f.err = status.Error(codes.Internal, "it broke") })
	says(c, "it broke")
	f.do(func() { f.err = status.Error(codes.Unimplemented, "unknown service") })
	says(c, "does not speak version 1 of the Container Runtime Interface", "unknown service")
	f.do(func() { f.err = status.Error(codes.DeadlineExceeded, "slow") })
	says(c, "did not answer within 5s")
	f.do(func() { f.err = nil })
	f.set("1", "A", ready, ofPod, "x", "y")
	if _, err := c.Sandboxes(t.Context()); err == nil || !strings.Contains(err.Error(), `gives pod ns/a the address "x", which is none`) {
		t.Errorf("%v", err)
	}
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	if got := sandboxesOf(t, c); got != "A 10.0.0.1" {
		t.Error(got)
	}

	nobody := filepath.Join(t.TempDir(), "nobody.sock")
	says(newCRI(t, nobody), "nobody listens there", "mounted into the agent's container")
	if _, err := newCRI(t, nobody).Version(t.Context()); err == nil || !strings.Contains(err.Error(), "nobody listens there") {
		t.Errorf("%v", err)
	}

	f.do(func() { f.hang = true })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Sandboxes(ctx); err == nil {
		t.Error("no error after the end of the context")
	}
}

// A runtime that is started again is found again.
func TestCRIStartsAgain(t *testing.T) {
	f := &fakeCRI{sandboxes: map[string]*cri.PodSandboxStatus{}}
	f.set("1", "A", ready, ofPod, "10.0.0.1")
	socket := filepath.Join(t.TempDir(), "cri.sock")
	stop := f.serve(t, socket)
	c := newCRI(t, socket)
	if got := sandboxesOf(t, c); got != "A 10.0.0.1" {
		t.Error(got)
	}
	stop()
	if _, err := c.Sandboxes(t.Context()); err == nil {
		t.Error("one that is down answers")
	}
	f.serve(t, socket)
	for {
		_, err := c.Sandboxes(t.Context())
		if err == nil {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
		c.connection.ResetConnectBackoff()
	}
}

func TestNewCRI(t *testing.T) {
	for _, endpoint := range []string{"", "tcp://127.0.0.1:1", "unix://relative", "relative", "npipe:////./pipe/x"} {
		if c, err := NewCRI(endpoint); err == nil {
			check(t, errors.Join(errors.New(endpoint+" is accepted"), c.Close()))
		}
	}
}
