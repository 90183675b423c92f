package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// transport is memberlist's own over UDP and TCP, but what it dials ends with it, and has a deadline: memberlist writes a
// message to a member without one, so a member that stops reading would hold the sender for as long as TCP tries.
type transport struct {
	memberlist.NodeAwareTransport
	loses func(network string, to netip.Addr) bool // nil: nothing is lost
	ctx   context.Context
	stop  context.CancelFunc

	mu    sync.Mutex
	conns map[*conn]struct{} // guarded by mu; what is open. nil once stopped
}

func newTransport(inner memberlist.NodeAwareTransport, loses func(string, netip.Addr) bool) *transport {
	ctx, stop := context.WithCancel(context.Background())
	return &transport{NodeAwareTransport: inner, loses: loses, ctx: ctx, stop: stop, conns: make(map[*conn]struct{})}
}

// lost tells whether what is sent to an address is to be lost.
func (t *transport) lost(network, address string) bool {
	if t.loses == nil {
		return false
	}
	to, err := netip.ParseAddrPort(address)
	return err == nil && t.loses(network, to.Addr().Unmap())
}

func (t *transport) WriteTo(data []byte, address string) (time.Time, error) {
	return t.WriteToAddress(data, memberlist.Address{Addr: address})
}

func (t *transport) WriteToAddress(data []byte, a memberlist.Address) (time.Time, error) {
	if t.lost("udp", a.Addr) {
		return time.Now(), nil
	}
	return t.NodeAwareTransport.WriteToAddress(data, a)
}

// streamTime is how long a stream may take in all from its dialling, beside the timeout for the dialling itself. A full
// exchange of state sets deadlines of its own, after this one.
const streamTime = 5 * time.Second

// listen opens the sockets. port 0 is any free one, the same for UDP and TCP.
func listen(config *memberlist.Config) (*memberlist.NetTransport, error) {
	var inner *memberlist.NetTransport
	var err error
	for range 10 {
		inner, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{config.BindAddr}, BindPort: config.BindPort, Logger: config.Logger,
		})
		// The port that was free for TCP may be taken for UDP: another may be free for both.
		if err == nil || config.BindPort != 0 || !strings.Contains(err.Error(), "in use") {
			break
		}
	}
	return inner, err
}

func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if t.ctx.Err() != nil {
		return nil, ErrNotRunning
	}
	if t.lost("tcp", a.Addr) { // at once: nothing is learned from waiting
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
	}
	dialer := net.Dialer{Timeout: timeout}
	dialled, err := dialer.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	if err := dialled.SetDeadline(time.Now().Add(streamTime)); err != nil {
		dialled.Close()
		return nil, fmt.Errorf("set the deadline of a stream: %w", err)
	}
	c := &conn{Conn: dialled, t: t}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns == nil {
		dialled.Close()
		return nil, ErrNotRunning
	}
	t.conns[c] = struct{}{}
	return c, nil
}

func (t *transport) Shutdown() error {
	t.stop()
	t.mu.Lock()
	open := t.conns
	t.conns = nil
	t.mu.Unlock()
	for c := range open {
		c.Conn.Close()
	}
	return t.NodeAwareTransport.Shutdown()
}

type conn struct {
	net.Conn
	t *transport
}

func (c *conn) Close() error {
	c.t.mu.Lock()
	delete(c.t.conns, c)
	c.t.mu.Unlock()
	return c.Conn.Close()
}
