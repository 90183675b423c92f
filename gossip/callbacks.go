package gossip

import (
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
	"go.uber.org/zap"
)

// postpone has f done soon, without memberlist's lock. It never blocks.
func (c *Cluster) postpone(f func()) {
	select {
	case c.later <- f:
	default:
		c.stats.dropped.Add(1)
	}
}

// drain does what was postponed.
func (c *Cluster) drain(stop <-chan struct{}) {
	for {
		select {
		case f := <-c.later:
			f()
		case <-stop:
			for {
				select {
				case f := <-c.later:
					f()
				default:
					return
				}
			}
		}
	}
}

// events are memberlist's callbacks about members. It calls them one at a time, under its lock; one may come even after
// the end, from a timer. They copy, signal, return.
type events Cluster

func (e *events) NotifyJoin(n *memberlist.Node)   { e.dir.join((*Cluster)(e).memberOf(n)) }
func (e *events) NotifyUpdate(n *memberlist.Node) { e.dir.update((*Cluster)(e).memberOf(n)) }

func (e *events) NotifyLeave(n *memberlist.Node) {
	// A member that leaves need not be told that it is gone.
	if n.Name != e.config.Name {
		e.dir.leave(n.Name, time.Now())
	}
}

// memberOf copies what memberlist says of a member. One whose metadata cannot be read is alive all the same; it owns nothing.
func (c *Cluster) memberOf(n *memberlist.Node) Member {
	ip, _ := netip.AddrFromSlice(n.Addr)
	m := Member{Name: n.Name, Address: netip.AddrPortFrom(ip.Unmap(), n.Port)}
	var err error
	if m.Metadata, err = decodeMetadata(n.Meta); err != nil {
		c.postpone(func() {
			if c.problems.due("metadata "+m.Name, warnEvery) {
				c.log.Warn("a member's metadata cannot be read; it counts as alive and owns nothing",
					zap.String("member", m.Name), zap.Stringer("address", m.Address), zap.Error(err))
			}
		})
	}
	return m
}

// conflicts is memberlist's callback when one name is claimed from two addresses.
type conflicts Cluster

func (c *conflicts) NotifyConflict(existing, other *memberlist.Node) {
	cluster := (*Cluster)(c)
	was, is := cluster.memberOf(existing), cluster.memberOf(other)
	if was.Name == c.config.Name {
		c.lastConflict.Store(time.Now().UnixNano())
	}
	cluster.postpone(func() {
		c.problems.met(NameConflict, was.Name, zap.Stringer("address", was.Address), zap.Stringer("otherAddress", is.Address))
	})
}
