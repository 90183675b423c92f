package gossip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// Config says who this agent is and how it gossips.
type Config struct {
	// Name of the member: its node's name.
	Name string
	// Label keeps clusters apart that share a network: the UID of namespace kube-system. Required.
	Label string
	// Role and Version are told to the other members.
	Role    Role
	Version string

	// BindAddress is the IP address to listen on, AdvertiseAddress the one that others use (default: BindAddress).
	BindAddress      string
	AdvertiseAddress string
	// Port for UDP and TCP. 0: any free one.
	Port int

	// KeyFile holds the encryption keys and is read again when it changes. Without it, Insecure must say that gossip
	// may go in clear text.
	KeyFile  string
	Insecure bool

	// Peers returns addresses of agents, as host:port; some of all are enough. It is asked at the start and now and then
	// after. nil: this agent waits to be joined.
	Peers func(context.Context) ([]string, error)
	// RejoinInterval is how often a member may look for peers that are not members, default 1m. It does so with
	// RejoinProbability, default min(1, 3/members), so that all together ask three times an interval, however many they are.
	RejoinInterval    time.Duration
	RejoinProbability float64

	// Logger, default: none.
	Logger *zap.Logger

	// Loses, for simulations of a network where things are wrong, tells of each packet ("udp") and stream ("tcp") whether it is
	// lost on its way to an address. nil: nothing is.
	Loses func(network string, to netip.Addr) bool

	// For this package's tests.
	tune    func(*memberlist.Config)
	keyPoll time.Duration
}

const (
	defaultRejoinInterval = time.Minute
	// rejoinsPerInterval is how many members, of all, look for peers within an interval.
	rejoinsPerInterval = 3
	// joinAtOnce is how many addresses are joined at a time. One that answers is enough.
	joinAtOnce = 3
	// firstRetry is the pause after a first join that reached nobody; it doubles up to RejoinInterval.
	firstRetry = time.Second
	// peersTimeout bounds Config.Peers and the look-up of its names.
	peersTimeout = 10 * time.Second
	// defaultKeyPoll: reading a file of 100 bytes costs nothing. Watching it instead would have to follow the symbolic
	// links that Kubernetes swaps under a mounted Secret, and inotify instances run out on busy nodes.
	defaultKeyPoll = 5 * time.Second
	// LeaveTimeout bounds the leave of a Run whose context ends.
	LeaveTimeout = time.Second
	// receiptTimeout bounds a Send whose context does not.
	receiptTimeout = 5 * time.Second
	// maxWaiting is how many messages wait for their handlers. At MaxMessage each that is 16 MiB.
	maxWaiting = 256
	// maxReceipts is how many receipts are on their way at once.
	maxReceipts = 64
	// announceFor is how long a member whose name another address also claims goes on telling where it is, in units of
	// DeadNodeReclaimTime.
	announceFor = 12
)

// check tells all that is wrong.
func (config *Config) check() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gossip: "+format, args...)) }
	if config.Name == "" || len(config.Name) > maxName {
		wrong("the member's name has %d bytes, 1 to %d are allowed", len(config.Name), maxName)
	}
	if config.Label == "" || len(config.Label) > memberlist.LabelMaxSize {
		wrong("the label has %d bytes, 1 to %d are allowed", len(config.Label), memberlist.LabelMaxSize)
	}
	if config.Role != Agent && config.Role != Pruner {
		wrong("no role")
	}
	if _, err := netip.ParseAddr(config.BindAddress); err != nil {
		wrong("bindAddress: %q is not an IP address", config.BindAddress)
	} else if ip, err := netip.ParseAddr(config.AdvertiseAddress); err != nil {
		wrong("advertiseAddress: %q is not an IP address", config.AdvertiseAddress)
	} else if ip.IsUnspecified() {
		wrong("advertiseAddress: others cannot reach %s; set it to an address of this host", ip)
	}
	if config.Port < 0 || config.Port > 65535 {
		wrong("port: %d is not a port", config.Port)
	}
	if config.KeyFile == "" && !config.Insecure {
		wrong("%w", errNoKeyFile)
	}
	return errors.Join(errs...)
}

// memberlistConfig is memberlist's own for a LAN, and what differs.
func (c *Cluster) memberlistConfig() *memberlist.Config {
	m := memberlist.DefaultLANConfig()
	m.Name = c.config.Name
	m.Label = c.config.Label
	m.BindAddr, m.BindPort = c.config.BindAddress, c.config.Port
	m.AdvertiseAddr, m.AdvertisePort = c.config.AdvertiseAddress, c.config.Port
	m.Keyring = c.ring
	m.Logger = newLogger(c.log, c.problems, c.postpone)
	m.Delegate, m.Events, m.Conflict = (*delegate)(c), (*events)(c), (*conflicts)(c)
	// It costs more CPU than it saves bandwidth: 300 members on 2 cores did not converge in 8 minutes with it, in 13 s without.
	m.EnableCompression = false
	// Never by default. A node that comes back under another address would be refused for ever.
	m.DeadNodeReclaimTime = 10 * time.Second
	// 10 s by default. On a LAN 2 s are plenty, and joins and messages to a dead address wait this long.
	m.TCPTimeout = 2 * time.Second
	if c.config.tune != nil {
		c.config.tune(m)
	}
	return m
}
