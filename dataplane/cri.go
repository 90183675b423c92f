package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Sandbox is what holds a pod's network on this node, by the word of the container runtime.
type Sandbox struct {
	Pod       PodRef
	Addresses []netip.Addr // none of one that has the node's network
	Ready     bool         // otherwise it has ended, and its network was not taken down yet
}

// A Runtime is the node's container runtime, asked at the moment of acting.
type Runtime interface {
	// Sandboxes are those that live: they are ready, or still have addresses.
	Sandboxes(context.Context) ([]Sandbox, error)
}

const (
	// criTimeout is how long the runtime may take for all its answers. One that does not answer means that nothing goes.
	criTimeout = 5 * time.Second
	// criMessage is how large an answer may be, in bytes: as much as the kubelet takes (maxMsgSize in k8s.io/cri-client).
	criMessage = 16 << 20
	// criPause is how long at most after a failed connection the next is tried.
	criPause = 5 * time.Second
)

// A CRI is a container runtime that speaks the Container Runtime Interface, version 1: containerd since 1.6, CRI-O since 1.23. It is safe for
// concurrent use.
type CRI struct {
	endpoint   string
	connection *grpc.ClientConn
	client     cri.RuntimeServiceClient

	mu    sync.Mutex
	known map[string]knownSandbox // by the runtime's id; guarded by mu
}

// A knownSandbox needs no further question while the runtime lists it in the same state.
type knownSandbox struct {
	Sandbox
	state cri.PodSandboxState
}

// NewCRI prepares questions to the runtime that listens on a socket, given as unix:///run/containerd/containerd.sock or as a path. It connects when it
// is asked something, and again when that ended. Close it.
func NewCRI(endpoint string) (*CRI, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("the container runtime's endpoint %q is not a socket such as unix:///run/containerd/containerd.sock", endpoint)
	}
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = criPause
	connection, err := grpc.NewClient("unix:"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()), // a socket of this machine
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(criMessage)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: criTimeout}),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare questions to the container runtime at %s: %w", endpoint, err)
	}
	return &CRI{endpoint: endpoint, connection: connection, client: cri.NewRuntimeServiceClient(connection), known: map[string]knownSandbox{}}, nil
}

// Close ends the connection.
func (c *CRI) Close() error { return c.connection.Close() }

// Version is the runtime's name and version.
func (c *CRI) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, criTimeout)
	defer cancel()
	v, err := c.client.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return "", c.explain(err)
	}
	return v.RuntimeName + " " + v.RuntimeVersion, nil
}

// Sandboxes are those that live. Each is asked about once: one that is ready keeps its addresses, and one that has lost them has none again.
func (c *CRI) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	ctx, cancel := context.WithTimeout(ctx, criTimeout)
	defer cancel()
	list, err := c.client.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, c.explain(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock() // one asks, others wait for what it learns
	known := make(map[string]knownSandbox, len(list.Items))
	var living []Sandbox
	for _, item := range list.Items {
		k, is := c.known[item.Id]
		if !is || k.state != item.State {
			var final bool
			if k, final, err = c.sandbox(ctx, item); err != nil {
				return nil, err
			}
			is = final
		}
		if is {
			known[item.Id] = k
		}
		if k.Ready || len(k.Addresses) > 0 {
			living = append(living, k.Sandbox)
		}
	}
	c.known = known
	return living, nil
}

// sandbox asks about one sandbox. final tells that the answer holds as long as its state does.
func (c *CRI) sandbox(ctx context.Context, item *cri.PodSandbox) (k knownSandbox, final bool, err error) {
	m := item.GetMetadata()
	k.Pod = PodRef{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid()}
	response, err := c.client.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: item.Id})
	switch {
	case status.Code(err) == codes.NotFound: // it was removed meanwhile
		k.state = cri.PodSandboxState_SANDBOX_NOTREADY
		return k, false, nil
	case err != nil:
		return k, false, c.explain(err)
	}
	s := response.GetStatus()
	k.state = s.GetState()
	k.Ready = k.state == cri.PodSandboxState_SANDBOX_READY
	if s.GetLinux().GetNamespaces().GetOptions().GetNetwork() == cri.NamespaceMode_NODE {
		return k, true, nil
	}
	texts := []string{s.GetNetwork().GetIp()}
	for _, ip := range s.GetNetwork().GetAdditionalIps() {
		texts = append(texts, ip.GetIp())
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		a, err := netip.ParseAddr(text)
		if err != nil {
			return k, false, fmt.Errorf("the container runtime at %s gives pod %s the address %q, which is none", c.endpoint, k.Pod, text)
		}
		k.Addresses = append(k.Addresses, a.Unmap().WithZone(""))
	}
	return k, k.Ready == (len(k.Addresses) > 0), nil
}

// explain turns an error into what an operator can do about it.
func (c *CRI) explain(err error) error {
	why := status.Convert(err)
	text := why.Message()
	switch {
	case why.Code() == codes.DeadlineExceeded:
		text = fmt.Sprintf("it did not answer within %s (%s)", criTimeout, text)
	case why.Code() == codes.Unimplemented:
		text = "it does not speak version 1 of the Container Runtime Interface (" + text + "); is this the socket of the one that the kubelet uses?"
	case strings.Contains(text, "no such file"), strings.Contains(text, "connection refused"):
		text = "nobody listens there (" + text + "); is kernel.runtimeEndpoint right, and the socket mounted into the agent's container?"
	case strings.Contains(text, "permission denied"):
		text = "the agent may not connect (" + text + "); it must run as root"
	}
	return fmt.Errorf("ask the container runtime at %s: %s", c.endpoint, text)
}
