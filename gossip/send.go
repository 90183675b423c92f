package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// ErrNoReceipt: the message was written to the receiver, who did not say in time that it took it. It may have.
var ErrNoReceipt = errors.New("no receipt came in time")

// Send sends a message to a member and waits for its receipt: without an error, the member's handler has the message or is
// the next to get it. memberlist alone calls a message delivered when it is written to a socket, also if its receiver then
// cannot decrypt it. Each message arrives at most once. payload is JSON; nil is none.
func (c *Cluster) Send(ctx context.Context, to, messageType string, payload json.RawMessage) error {
	err := c.send(ctx, to, messageType, payload)
	if err != nil {
		c.stats.failed.Add(1)
		return fmt.Errorf("send %s to %s: %w", messageType, to, err)
	}
	c.stats.sent.Add(1)
	return nil
}

func (c *Cluster) send(ctx context.Context, to, messageType string, payload json.RawMessage) error {
	member, ok := c.dir.member(to)
	if !ok {
		if _, err := c.memberlist(); err != nil {
			return err
		}
		return ErrNotMember
	}
	return c.sendTo(ctx, to, member.Address, messageType, payload)
}

func (c *Cluster) sendTo(ctx context.Context, to string, address netip.AddrPort, messageType string, payload json.RawMessage) error {
	ctx, cancel := context.WithTimeoutCause(ctx, receiptTimeout, ErrNoReceipt)
	defer cancel()
	done := make(chan result, 1)
	c.mu.Lock()
	c.nextID++
	m := Message{
		Type: messageType, ID: c.nextID, Sender: c.config.Name, Incarnation: c.meta.Incarnation, To: to, Payload: payload,
	}
	c.pending[m.ID] = sent{to, done}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, m.ID)
		c.mu.Unlock()
	}()
	data, err := encodeMessage(m)
	if err != nil {
		return err
	}
	if to == c.config.Name {
		return c.take(m).err()
	}
	written := make(chan error, 1)
	if !c.write(to, address, data, func(err error) { written <- err }) {
		return ErrNotRunning
	}
	for {
		select {
		case err := <-written:
			if err != nil {
				return err
			}
			written = nil
		case r := <-done:
			return r.err()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-c.quit:
			return ErrNotRunning
		}
	}
}

// write sends an encoded message from a goroutine of its own, which ends when the transport does.
func (c *Cluster) write(to string, address netip.AddrPort, data []byte, done func(error)) bool {
	list, err := c.memberlist()
	if err != nil {
		return false
	}
	return c.spawn(func() {
		done(list.SendReliable(&memberlist.Node{
			Name: to, Addr: net.IP(address.Addr().AsSlice()), Port: address.Port(),
		}, data))
	})
}

// pingTimeout bounds the part of a Ping that goes over TCP.
const pingTimeout = 2 * time.Second

// Ping asks the agent of that name whether it lives, now: over UDP, twice, and if no answer comes over TCP. An agent that
// left or died within the last day is looked for where it was. It takes three seconds or so at most.
func (c *Cluster) Ping(ctx context.Context, name string) bool {
	list, err := c.memberlist()
	if err != nil {
		return false
	}
	if name == c.config.Name {
		return true
	}
	address, ok := c.dir.lastAddress(name)
	if !ok {
		return false
	}
	for range 2 {
		if ctx.Err() != nil {
			return false
		}
		// Only the agent of that name answers, whoever has the address now.
		if _, err := list.Ping(name, net.UDPAddrFromAddrPort(address)); err == nil {
			return true
		}
	}
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return c.sendTo(ctx, name, address, typePing, nil) == nil
}

// dispatch hands messages to their handlers.
func (c *Cluster) dispatch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-c.waiting:
			c.handlers[m.Type](m)
		}
	}
}

// take accepts or refuses a message for this member.
func (c *Cluster) take(m Message) result {
	if m.To != c.config.Name {
		c.stats.refused.Add(1)
		return notMe
	}
	if m.Type == typePing {
		return taken
	}
	if c.handlers[m.Type] == nil {
		c.stats.unknown.Add(1)
		return unknownType
	}
	select {
	case c.waiting <- m:
		c.stats.received.Add(1)
		return taken
	default:
		c.stats.refused.Add(1)
		return busy
	}
}

// arrived deals with a message from the network. It is called by memberlist and does not block.
func (c *Cluster) arrived(data []byte) {
	m, err := decodeMessage(data)
	if err != nil {
		c.stats.invalid.Add(1)
		c.postpone(func() {
			if c.problems.due("invalid message", repeatEvery) {
				c.log.Warn("a gossip message cannot be read", zap.Error(err))
			}
		})
		return
	}
	if m.Type == typeReceipt {
		c.receipt(m)
		return
	}
	c.reply(m, c.take(m))
}

// receipt tells a waiting Send what became of its message.
func (c *Cluster) receipt(m Message) {
	var r receipt
	if m.To != c.config.Name || json.Unmarshal(m.Payload, &r) != nil {
		c.stats.invalid.Add(1)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting, ok := c.pending[r.Of]
	// A notMe comes from somebody else than was meant.
	if !ok || waiting.to != m.Sender && r.Result != notMe {
		return
	}
	select {
	case waiting.done <- r.Result:
	default:
	}
}

// reply sends a receipt. When too many are on their way it does not: the sender will take the message for lost.
func (c *Cluster) reply(m Message, r result) {
	address, ok := c.dir.lastAddress(m.Sender)
	if !ok {
		return // it would not know us either
	}
	payload, err := json.Marshal(receipt{Of: m.ID, Result: r})
	if err != nil {
		return
	}
	c.mu.Lock()
	c.nextID++
	answer := Message{
		Type: typeReceipt, ID: c.nextID, Sender: c.config.Name, Incarnation: c.meta.Incarnation, To: m.Sender, Payload: payload,
	}
	c.mu.Unlock()
	data, err := encodeMessage(answer)
	if err != nil {
		return
	}
	select {
	case c.replies <- struct{}{}:
	default:
		c.stats.dropped.Add(1)
		return
	}
	// A receipt that cannot be sent is one that does not come.
	if !c.write(m.Sender, address, data, func(error) { <-c.replies }) {
		<-c.replies
	}
}

// delegate is memberlist's way to metadata and messages.
type delegate Cluster

func (d *delegate) NodeMeta(int) []byte             { return (*Cluster)(d).metadata().encode() }
func (d *delegate) NotifyMsg(data []byte)           { (*Cluster)(d).arrived(data) }
func (d *delegate) GetBroadcasts(_, _ int) [][]byte { return nil }
func (d *delegate) LocalState(bool) []byte          { return nil }
func (d *delegate) MergeRemoteState([]byte, bool)   {}
