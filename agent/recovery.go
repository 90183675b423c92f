package agent

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// nodesUnit is what the pruners agree on an owner for: all Nodes at once.
var nodesUnit = unit{
	target: status.Target{Name: status.RecoveryTarget},
	key:    keyOf(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, types.NamespacedName{}),
}

// recovery taints and deletes Nodes that stay Unknown, while the configuration says so, this agent is a pruner, and the one that owns the Nodes.
type recovery struct {
	agent *Agent
	log   *zap.Logger
	wake  chan struct{} // size 1: there is another configuration

	mu     sync.Mutex
	config *Configuration // guarded by mu
}

func newRecovery(a *Agent) *recovery {
	return &recovery{agent: a, log: a.log.Named("recovery"), wake: make(chan struct{}, 1)}
}

// use takes in a configuration. It never blocks.
func (r *recovery) use(c *Configuration) {
	r.mu.Lock()
	r.config = c
	r.mu.Unlock()
	signal(r.wake)
}

func (r *recovery) present() *Configuration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.config
}

// run follows members and configuration until ctx ends.
func (r *recovery) run(ctx context.Context) error {
	cluster := r.agent.cluster
	select {
	case <-cluster.Ready():
	case <-ctx.Done():
		return nil
	}
	subscription := cluster.Subscribe()
	defer subscription.Close()
	var working *status.Recovery // nil while another owns the Nodes, or nobody is to
	var worksBy *Configuration
	timer := time.NewTimer(0)
	defer timer.Stop()
	lonely := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-subscription.C:
			if changes := subscription.Take(); len(changes.Departed) > 0 && working != nil {
				working.Left()
			}
		case <-timer.C:
			if working != nil {
				r.look(ctx, working)
			}
		}
		c := r.present()
		pruners := gossip.Eligible(cluster.Members(), gossip.Pruner)
		var owners gossip.Owners
		owners.SetEligible(pruners)
		wanted := c != nil && c.NodeRecovery != nil
		mine := wanted && r.agent.options.Role == gossip.Pruner && (r.agent.options.ownsAll || owners.Owner(nodesUnit.key) == r.agent.options.Node)
		switch {
		case !mine && working != nil:
			working = nil
			r.log.Info("no longer owns the Nodes")
			r.agent.passes.ended(&nodesUnit)
		case mine && (working == nil || !sameRecovery(worksBy, c)):
			working, worksBy = status.NewRecovery(r.options(c), r.agent.client, r.log), c
			r.log.Info("owns the Nodes", zap.String("mode", string(c.Mode)))
		}
		if alone := wanted && len(pruners) == 0; alone != lonely {
			if lonely = alone; alone {
				r.log.Warn("the configuration has nodeRecovery, but no agent that lives and works has the role pruner (--role pruner), so no Node is tainted or deleted")
			}
		}
		if working != nil {
			timer.Reset(time.Until(working.Next()))
		}
	}
}

// sameRecovery tells whether what a Recovery goes by is the same in two configurations.
func sameRecovery(a, b *Configuration) bool {
	return reflect.DeepEqual(a.NodeRecovery, b.NodeRecovery) && a.Mode == b.Mode && a.Report.Name == b.Report.Name && a.SweepInterval == b.SweepInterval
}

func (r *recovery) look(ctx context.Context, working *status.Recovery) {
	begun := time.Now()
	report, told := working.Look(ctx)
	if !told || ctx.Err() != nil {
		return
	}
	a := r.agent
	a.health.passed(&report)
	a.metrics.swept(&report, time.Since(begun))
	a.metrics.holds(nodesUnit.id(), &report)
	a.passes.news(nodesUnit.id(), &report, time.Now())
	a.report.set(&nodesUnit, status.Summary(&report, a.options.Node, time.Now()))
}

// options are what the configuration says, with what this agent knows.
func (r *recovery) options(c *Configuration) status.RecoveryOptions {
	options := c.RecoveryOptions(r.agent.options.UserAgent)
	options.Self, options.Members, options.Recorded = r.agent.options.Node, livingMembers{r.agent.evidence}, r.agent.options.Recorded
	return options
}

// livingMembers is what a Recovery asks gossip.
type livingMembers struct{ evidence *evidence }

func (m livingMembers) Alive(name string) bool {
	_, alive := m.evidence.memberSince(name)
	return alive
}

func (m livingMembers) Ping(ctx context.Context, name string) bool {
	return m.evidence.members.Ping(ctx, name)
}

// RecoveryOptions are what the configuration says of Nodes that stay Unknown, in the form that the package status takes; only if NodeRecovery is there. The
// configuration must come from Load or Parse. userAgent is how the API servers of other clusters are to name this process.
func (c *Configuration) RecoveryOptions(userAgent string) status.RecoveryOptions {
	n := c.NodeRecovery
	options := status.RecoveryOptions{
		Policy: status.RecoveryPolicy{
			TaintAfter: n.Taint.After.orOff(), PruneAfter: n.Prune.After.orOff(), ConfirmByLabel: n.Taint.Confirm == ConfirmLabel,
			TaintSelector: n.Taint.NodeSelector, Label: n.Prune.Label, MinReadyEtcdMembers: n.Prune.MinReadyEtcdMembers,
			MaxUnhealthy: int(n.Prune.MaxUnhealthy), PruneInterval: time.Duration(n.Prune.Interval),
		},
		Mode: c.Mode, Report: c.Report.Name, Interval: time.Duration(c.SweepInterval), Machines: openCluster(n.ClusterAPI.Kubeconfig, userAgent),
	}
	for _, i := range n.Infrastructure {
		options.Infrastructure = append(options.Infrastructure, status.InfrastructureSource{
			Name: i.Name, Resource: i.Resource.GroupVersionResource(), Namespace: i.Namespace, ProviderID: optionalFieldPath(i.Match.ProviderID),
			Annotation: i.Match.Annotation, Open: openCluster(i.Kubeconfig, userAgent),
		})
	}
	return options
}

// orOff is the duration, 0 where there is none.
func (d *Duration) orOff() time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(*d)
}

// openCluster makes the way to the cluster of a kubeconfig, which is read each time; nil: the agents' own cluster.
func openCluster(kubeconfig, userAgent string) func() (*status.Client, error) {
	if kubeconfig == "" {
		return nil
	}
	return func() (*status.Client, error) {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("the kubeconfig of another cluster: %w", err)
		}
		return status.NewClient(config, userAgent)
	}
}

// newsOfNode tells of what is new about a Node that stays Unknown, or did: in an event on the Node, and, of refusals, in the log.
func (p *passes) newsOfNode(node corev1.ObjectReference, f status.Finding) {
	const after = ": "
	switch {
	case f.Done && f.Verdict == status.Taint:
		p.agent.metrics.recovered(string(f.Verdict))
		p.agent.events.note(node, "NodeTainted", "added the taint node.kubernetes.io/out-of-service=unstale"+after+f.Message)
	case f.Done && f.Verdict == status.Untaint:
		p.agent.metrics.recovered(string(f.Verdict))
		p.agent.events.note(node, "NodeUntainted", "took off the taint node.kubernetes.io/out-of-service=unstale"+after+f.Message)
	case f.Done:
		p.agent.metrics.recovered(string(f.Verdict))
		p.agent.events.note(node, "NodeDeleted", "deleted the Node"+after+f.Message)
	case f.Verdict == status.Refuse:
		p.log.Warn("a Node is left alone", zap.String("target", status.RecoveryTarget), zap.String("node", f.Key), zap.String("reason", string(f.Reason)), zap.String("message", f.Message))
		p.agent.events.warn(node, string(f.Reason), "neither tainted nor deleted"+after+f.Message)
	}
}
