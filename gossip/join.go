package gossip

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// join looks for peers: at the start until somebody answers or is there, then with a small probability each interval. This
// is what heals a split: memberlist soon forgets members that it takes for dead, and never looks for them again.
func (c *Cluster) join(ctx context.Context) {
	retry := min(firstRetry, c.config.RejoinInterval)
	alone := true // nobody was ever met
	for first := true; ; first = false {
		members := c.dir.size()
		alone = alone && members <= 1
		if alone || rand.Float64() < c.rejoinProbability(members) {
			c.joinPeers(ctx)
			alone = alone && c.dir.size() <= 1
		}
		if first {
			close(c.ready)
		}
		c.dir.forget(time.Now())
		pause := c.config.RejoinInterval
		if alone {
			pause, retry = retry, min(2*retry, c.config.RejoinInterval)
		}
		if sleep(ctx, pause*9/10+rand.N(pause/5+1)) != nil {
			return
		}
	}
}

func (c *Cluster) rejoinProbability(members int) float64 {
	if c.config.RejoinProbability > 0 {
		return c.config.RejoinProbability
	}
	return min(1, rejoinsPerInterval/float64(max(members, 1)))
}

// joinPeers joins a few peers that are not members.
func (c *Cluster) joinPeers(ctx context.Context) {
	list, err := c.memberlist()
	if c.config.Peers == nil || err != nil {
		return
	}
	asking, cancel := context.WithTimeout(ctx, peersTimeout)
	defer cancel()
	peers, err := c.config.Peers(asking)
	if err != nil {
		if ctx.Err() == nil {
			c.problems.met(Unreachable, "", zap.Error(fmt.Errorf("find peers: %w", err)))
		}
		return
	}
	strangers, err := strangers(asking, net.DefaultResolver, peers, c.dir.addresses())
	rand.Shuffle(len(strangers), func(i, j int) { strangers[i], strangers[j] = strangers[j], strangers[i] })
	joined := false
	for _, address := range strangers[:min(len(strangers), joinAtOnce)] {
		if ctx.Err() != nil {
			return
		}
		if _, failed := list.Join([]string{address.String()}); failed != nil {
			err = whyNotJoined(address, failed)
			c.log.Debug("a peer was not joined", zap.Error(err))
			continue
		}
		joined = true
		c.stats.rejoins.Add(1)
		c.log.Info("joined a peer", zap.Stringer("peer", address), zap.Int("members", c.dir.size()))
	}
	// Among many members one that does not answer is only about to start or stop.
	if !joined && err != nil && c.dir.size() <= 1 && ctx.Err() == nil {
		c.problems.met(Unreachable, "", zap.Error(err))
	}
}

// strangers are the addresses of peers, host:port, that are not among the known ones. The error is about one of those that
// could not be understood or looked up.
func strangers(ctx context.Context, resolver *net.Resolver, peers []string, known map[netip.AddrPort]bool) ([]netip.AddrPort, error) {
	var found []netip.AddrPort
	var wrong error
	add := func(address netip.AddrPort) {
		address = netip.AddrPortFrom(address.Addr().Unmap(), address.Port())
		if !known[address] && !slices.Contains(found, address) {
			found = append(found, address)
		}
	}
	for _, peer := range peers {
		if address, err := netip.ParseAddrPort(peer); err == nil {
			add(address)
			continue
		}
		host, text, err := net.SplitHostPort(peer)
		port, portErr := strconv.ParseUint(text, 10, 16)
		if err != nil || portErr != nil {
			wrong = fmt.Errorf("peer %q is not host:port", peer)
			continue
		}
		// memberlist would look names up by a query of its own that few DNS servers answer.
		ips, err := resolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			wrong = fmt.Errorf("look up peer %q: %w", peer, err)
			continue
		}
		for _, ip := range ips {
			add(netip.AddrPortFrom(ip, uint16(port)))
		}
	}
	return found, wrong
}
