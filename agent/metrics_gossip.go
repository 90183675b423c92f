package agent

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/unstale/unstale/gossip"
)

// A gossipCollector turns what gossip counts itself into metrics, when they are asked for.
type gossipCollector struct {
	stats func() gossip.Stats

	members, messages, problems, rejoins, health *prometheus.Desc
}

func newGossipCollector(stats func() gossip.Stats) *gossipCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &gossipCollector{
		stats:    stats,
		members:  desc("unstale_gossip_members", "Live agents that this one knows, itself among them."),
		messages: desc("unstale_gossip_messages_total", "Messages to and from other agents, by what became of them.", "result"),
		problems: desc("unstale_gossip_problems_total", "Signs of something that keeps agents from gossiping; the log says more.", "problem"),
		rejoins:  desc("unstale_gossip_rejoins_total", "Joins of peers that were not members, as after a split of the network."),
		health:   desc("unstale_gossip_health_score", "How slow this agent's gossip is: 0 is healthy."),
	}
}

// Describe is prometheus.Collector's.
func (c *gossipCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.members, c.messages, c.problems, c.rejoins, c.health} {
		to <- d
	}
}

// Collect is prometheus.Collector's.
func (c *gossipCollector) Collect(to chan<- prometheus.Metric) {
	s := c.stats()
	gauge := func(d *prometheus.Desc, value int) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value))
	}
	count := func(d *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
	}
	gauge(c.members, s.Members)
	gauge(c.health, s.Health)
	count(c.rejoins, s.Rejoins)
	count(c.messages, s.Sent, "sent")
	count(c.messages, s.Failed, "failed")
	count(c.messages, s.Received, "received")
	count(c.messages, s.Unknown, "unknown")
	count(c.messages, s.Invalid, "invalid")
	count(c.messages, s.Refused, "refused")
	count(c.messages, s.Dropped, "dropped")
	for problem, n := range s.Problems {
		count(c.problems, n, string(problem))
	}
}
