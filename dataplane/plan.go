package dataplane

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// A Snapshot is what plans and dumps know of pods. It answers as a Cluster.
type Snapshot struct {
	Node []Pod // of this node
	All  []Pod // of all nodes; only needed where a table has addresses of the whole cluster
	// Runtime is the node's container runtime; nil: not asked.
	Runtime Runtime
}

// NodePods are the pods of this node.
func (s *Snapshot) NodePods(context.Context) ([]Pod, error) { return s.Node, nil }

// PodsWith are the pods whose first address is that.
func (s *Snapshot) PodsWith(_ context.Context, a netip.Addr) ([]Pod, error) {
	var pods []Pod
	for _, p := range s.All {
		if len(p.Addresses) > 0 && p.Addresses[0] == a {
			pods = append(pods, p)
		}
	}
	return pods, nil
}

// Plan looks once at all that the tables hold, and says of each entry what would become of it if nothing changed for a grace. It removes nothing. The
// journal is that of the node's agent, which may be running.
func Plan(ctx context.Context, targets []Target, journal Journal, pods *Snapshot, host func() (HostState, error), grace time.Duration, now time.Time) []TargetReport {
	owners := NewOwners(journal)
	for _, p := range pods.Node {
		owners.Saw(p, now)
	}
	owners.Synced(now)
	releases := owners.Releases()
	l := look{sources: sources{pods, host, pods.Runtime}, grace: grace, releases: byAddress(releases), due: map[netip.Addr]bool{}}
	for _, r := range releases {
		l.due[r.Address] = true
		if ready := r.Ready(grace); ready.After(l.now) {
			l.now = ready // as if it was over for all
		}
	}
	l.read(ctx, targets, nil)
	needs := map[netip.Addr]bool{}
	for _, t := range l.tables {
		for _, e := range t.entries {
			needs[e.Address] = needs[e.Address] || t.target.Scope == ScopeCluster
		}
	}
	l.answers = l.askAbout(ctx, needs, l.releases, owners.Present())
	return l.reports()
}

// Dump tells of each entry that the tables hold, and of who has its address: a pod, the node itself, the pod that lost it by the journal's word, or
// nobody. It returns how each target fares, without findings.
func Dump(ctx context.Context, targets []Target, journal Journal, pods *Snapshot, host HostState, found func(target string, e Entry, owner string)) []TargetReport {
	owners := map[netip.Addr]string{}
	for _, p := range journal.Pods {
		for _, a := range slices.Concat(p.Addresses, p.Others) {
			owners[a] = "nobody; pod " + p.PodRef.String() + " had it"
		}
	}
	for _, list := range [][]Pod{pods.All, pods.Node} {
		for i := range list {
			for _, a := range list[i].Addresses {
				if list[i].has(a) {
					owners[a] = "pod " + list[i].PodRef.String()
				}
			}
		}
	}
	var reports []TargetReport
	if pods.Runtime != nil {
		sandboxes, err := pods.Runtime.Sandboxes(ctx)
		if err != nil {
			reports = append(reports, TargetReport{Target: "container runtime", State: StateUnavailable, Message: err.Error()})
		}
		for _, s := range sandboxes {
			for _, a := range s.Addresses {
				if has := "pod " + s.Pod.String(); owners[a] != has {
					owners[a] = has + ", by the container runtime"
				}
			}
		}
	}
	for a, by := range host.Addresses {
		owners[a] = "this node, interface " + by
	}
	for _, t := range targets {
		table := tableLook{target: t}
		table.err = t.Table.Read(ctx, nil, func(e Entry) {
			owner, known := owners[e.Address]
			if !known {
				owner = "nobody"
			}
			found(t.Name, e, owner)
		})
		reports = append(reports, table.report())
	}
	return reports
}
