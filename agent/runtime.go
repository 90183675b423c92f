package agent

import (
	"context"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/unstale/unstale/dataplane"
)

// A containerRuntime asks the one of the configuration, and logs when it begins and ends to answer.
type containerRuntime struct {
	*dataplane.CRI
	endpoint string
	log      *zap.Logger

	mu   sync.Mutex
	said string // guarded by mu
}

// newContainerRuntime prepares questions. Without an endpoint it is nil.
func newContainerRuntime(endpoint string, log *zap.Logger) (*containerRuntime, error) {
	if endpoint == "" {
		return nil, nil
	}
	cri, err := dataplane.NewCRI(endpoint)
	if err != nil {
		return nil, err
	}
	return &containerRuntime{CRI: cri, endpoint: endpoint, log: log}, nil
}

// at is the endpoint; empty of nil.
func (r *containerRuntime) at() string {
	if r == nil {
		return ""
	}
	return r.endpoint
}

// close ends the connection, if there is one.
func (r *containerRuntime) close() {
	if r != nil {
		_ = r.Close() // nothing is lost with it
	}
}

// greet asks who it is, so that a wrong endpoint is known before it is needed.
func (r *containerRuntime) greet(ctx context.Context) {
	version, err := r.Version(ctx)
	if err == nil {
		r.log.Info("the container runtime is asked before an entry goes", zap.String("endpoint", r.endpoint), zap.String("runtime", version))
	}
	r.heard(ctx, err)
}

// Sandboxes are those that live.
func (r *containerRuntime) Sandboxes(ctx context.Context) ([]dataplane.Sandbox, error) {
	sandboxes, err := r.CRI.Sandboxes(ctx)
	r.heard(ctx, err)
	return sandboxes, err
}

// heard logs an error once, until there is another or none.
func (r *containerRuntime) heard(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil && r.said != "":
		r.log.Info("the container runtime answers again", zap.String("endpoint", r.endpoint))
		r.said = ""
	case err != nil && r.said != err.Error():
		r.log.Warn("the container runtime does not answer; meanwhile no entry goes", zap.Error(err))
		r.said = err.Error()
	}
}

// isPipe tells whether the endpoint of a container runtime is a named pipe, as on Windows.
func isPipe(endpoint string) bool {
	return strings.HasPrefix(endpoint, "npipe:") || strings.Contains(endpoint, `\`)
}

// A runtimeAnswer is what a container runtime said once.
type runtimeAnswer struct {
	sandboxes []dataplane.Sandbox
	err       error
}

// Sandboxes makes it a dataplane.Runtime.
func (a runtimeAnswer) Sandboxes(context.Context) ([]dataplane.Sandbox, error) {
	return a.sandboxes, a.err
}

// askRuntime asks the container runtime of a configuration once; nil: it has none.
func askRuntime(ctx context.Context, c *KernelConfig) (dataplane.Runtime, error) {
	if c.RuntimeEndpoint == "" {
		return nil, nil
	}
	cri, err := dataplane.NewCRI(c.RuntimeEndpoint)
	if err != nil {
		return nil, err
	}
	defer cri.Close()
	sandboxes, err := cri.Sandboxes(ctx)
	return runtimeAnswer{sandboxes, err}, nil
}
