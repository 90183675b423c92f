package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/status"
)

// What a configuration file says it is.
const (
	APIVersion = "unstale.dev/v1alpha1"
	Kind       = "AgentConfiguration"
)

// A Configuration is the whole of a configuration file. Load and Parse make valid ones.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Mode Report turns all writing off, whatever the targets say: it is the emergency stop. Default Enforce.
	Mode status.Mode `json:"mode"`
	// SweepInterval is how often an owner looks at a target, ±10 %. 1s to 24h, default 5m.
	SweepInterval Duration `json:"sweepInterval"`
	// Grace is how long a candidate stays one before it may be acted on. 1s to 1h, default 60s.
	Grace Duration `json:"grace"`
	// MaxRemovals is how many removals a batch has at most. 1 to status.MaxRemovalsLimit, default 50.
	MaxRemovals int `json:"maxRemovals"`
	// Presets are names of built-in sets of targets; a target of the same name in the file replaces the built-in one.
	Presets []string `json:"presets,omitempty"`
	// Report is where the agents publish what they do.
	Report ReportConfig `json:"report"`
	// Gossip is how the agents find one another.
	Gossip GossipConfig `json:"gossip"`
	// HTTP is where the agent answers questions about itself.
	HTTP HTTPConfig `json:"http"`
	// StatusKeys are shared resources that have a key per node in their status.
	StatusKeys []StatusKeysConfig `json:"statusKeys,omitempty"`
	// NodeObjects are resources that have an object per node.
	NodeObjects []NodeObjectsConfig `json:"nodeObjects,omitempty"`
	// Kernel is about kernel tables that hold pod addresses. Absent: they are left alone.
	Kernel *KernelConfig `json:"kernel,omitempty"`
	// NodeRecovery is about Nodes that stay Unknown. Absent: they are left alone.
	NodeRecovery *NodeRecoveryConfig `json:"nodeRecovery,omitempty"`
}

func (c *Configuration) setDefaults() {
	c.Mode = status.Enforce
	c.SweepInterval = Duration(5 * time.Minute)
	c.Grace = Duration(60 * time.Second)
	c.MaxRemovals = 50
}

// complete fills in the defaults that depend on other fields. It is run once, on what the file said.
func (c *Configuration) complete() {
	for i := range c.StatusKeys {
		c.StatusKeys[i].complete()
	}
	for i := range c.NodeObjects {
		c.NodeObjects[i].LivesWith.complete()
	}
	if c.Kernel != nil {
		c.Kernel.complete()
	}
	if c.NodeRecovery != nil {
		c.NodeRecovery.complete()
	}
}

// Hash identifies what the agent does: the first 12 hex digits of the SHA-256 of the configuration with its defaults
// and presets. Two files that mean the same have the same hash, however they are written.
func (c *Configuration) Hash() string {
	text, err := json.Marshal(c)
	if err != nil {
		// Only a type that JSON has no form for could do this, and the format has none.
		panic(fmt.Sprintf("agent: a configuration has no JSON form: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])[:12]
}

// ReportConfig says where the agents publish what they do.
type ReportConfig struct {
	// Name of the SweepReport, a cluster-scoped object. Empty: none. Default "unstale".
	Name string `json:"name"`
	// Pods finds the agents' own pods, where agents are pods. A key whose node has none bound to it may go.
	Pods *PodsConfig `json:"pods,omitempty"`
}

func (c *ReportConfig) setDefaults() { c.Name = "unstale" }

// PodsConfig selects pods.
type PodsConfig struct {
	// Namespace of the pods. Empty: all namespaces.
	Namespace string `json:"namespace"`
	// LabelSelector in the form that kubectl takes with -l. Required: no selector would be every pod.
	LabelSelector string `json:"labelSelector"`
}

// GossipConfig says how the agents find one another and talk.
type GossipConfig struct {
	// BindAddress is the IP address to listen on, and AdvertiseAddress the one that others use. Default for both: the
	// environment variable HOST_IP, else the address of the route to the API server.
	BindAddress      string `json:"bindAddress"`
	AdvertiseAddress string `json:"advertiseAddress"`
	// Port for UDP and TCP. Default 7947: memberlist's own default, 7946, is taken by Docker Swarm.
	Port int `json:"port"`
	// KeyFile holds the encryption keys: 32 bytes each, in base64, one a line.
	KeyFile string `json:"keyFile"`
	// Insecure allows gossip without encryption. Without it a missing KeyFile keeps the agent from starting.
	Insecure bool `json:"insecure"`
	// Peers are agents to join, as host:port.
	Peers []string `json:"peers,omitempty"`
	// Service is a headless Service in whose EndpointSlice the agents find one another. Instead of Peers.
	Service *ServiceConfig `json:"service,omitempty"`
}

func (c *GossipConfig) setDefaults() { c.Port = 7947 }

// ServiceConfig names a Service.
type ServiceConfig struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// HTTPConfig says where the agent answers. Addresses are host:port; empty: not at all; port 0: any free one.
type HTTPConfig struct {
	// DebugAddress serves /debug, health and readiness. Default 127.0.0.1:9810.
	DebugAddress string `json:"debugAddress"`
	// MetricsAddress serves /metrics. Default 127.0.0.1:9811.
	MetricsAddress string `json:"metricsAddress"`
	// Profiling adds Go's pprof handlers to the debug address. Default false.
	Profiling bool `json:"profiling"`
}

func (c *HTTPConfig) setDefaults() {
	c.DebugAddress = "127.0.0.1:9810"
	c.MetricsAddress = "127.0.0.1:9811"
}

// ResourceConfig names a kind of resource as the API server does: by the plural, lower-case name.
type ResourceConfig struct {
	// Group is empty for the core group.
	Group    string `json:"group"`
	Version  string `json:"version"`
	Resource string `json:"resource"`
}

// GroupVersionResource is the resource in the form that clients take.
func (c ResourceConfig) GroupVersionResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: c.Group, Version: c.Version, Resource: c.Resource}
}

// A Duration is a time.Duration that is written as Go writes it: 90s, 5m, 1h30m.
type Duration time.Duration

// UnmarshalText reads the written form.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil {
		// The reason that the time package gives adds nothing that the example does not show.
		return errors.New("must be a duration such as 90s or 5m")
	}
	*d = Duration(parsed)
	return nil
}

// MarshalText is the written form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// String is the written form without trailing zeros: 5m, where the time package writes 5m0s.
func (d Duration) String() string {
	text := time.Duration(d).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// A Percent is a whole number of hundredths, written with its sign: 40%.
type Percent int

// UnmarshalText reads the written form.
func (p *Percent) UnmarshalText(text []byte) error {
	number, hasSign := strings.CutSuffix(string(text), "%")
	parsed, err := strconv.Atoi(number)
	if err != nil || !hasSign {
		return errors.New("must be a whole percentage such as 40%")
	}
	*p = Percent(parsed)
	return nil
}

// MarshalText is the written form.
func (p Percent) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// String is the written form.
func (p Percent) String() string { return strconv.Itoa(int(p)) + "%" }
