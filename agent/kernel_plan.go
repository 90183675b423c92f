package agent

import (
	"context"
	"encoding/hex"
	"slices"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/status"
)

// A KernelView is what a command sees of this node's kernel tables: once, and without the node's agent, which may be running.
type KernelView struct {
	targets []dataplane.Target
	grace   time.Duration
	journal dataplane.Journal
	pods    dataplane.Snapshot
}

// ViewKernel reads the journal of the node's agent, and asks the API server for the node's pods; for those of all nodes too where a table has their
// addresses. It is for commands that run on the node itself. The configuration must have a kernel section.
func ViewKernel(ctx context.Context, c *Configuration, api *rest.Config, userAgent, node string) (*KernelView, error) {
	k, err := newKube(api, userAgent)
	if err != nil {
		return nil, err
	}
	p, err := newPods(api, userAgent, node, k, func() []string { return c.Kernel.PodAddressAnnotations })
	if err != nil {
		return nil, err
	}
	v := &KernelView{targets: kernelTargets(c.Kernel, c.Mode), grace: time.Duration(c.Kernel.Grace)}
	if v.journal, err = dataplane.JournalDir(c.Kernel.StateDir).Load(); err != nil {
		return nil, err
	}
	boot, err := dataplane.BootID()
	if err != nil {
		return nil, err
	}
	if v.journal.Boot != boot {
		v.journal = dataplane.Journal{}
	}
	if v.pods.Runtime, err = askRuntime(ctx, c.Kernel); err != nil {
		return nil, err
	}
	if v.pods.Node, err = p.NodePods(ctx); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(v.targets, func(t dataplane.Target) bool { return t.Scope == dataplane.ScopeCluster }) {
		if v.pods.All, err = p.all(ctx); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// Plan says of each entry what would become of it if nothing changed for a grace.
func (v *KernelView) Plan(ctx context.Context) []status.TargetReport {
	reports := []status.TargetReport{}
	for _, r := range dataplane.Plan(ctx, v.targets, v.journal, &v.pods, dataplane.ReadHost, v.grace, time.Now()) {
		reports = append(reports, KernelReport(&r))
	}
	return reports
}

// KernelRules are what an agent with kernel tables needs, and the commands that look at them: to see the node's pods, and to ask whether any pod has an
// address. RBAC has no word for a node's pods only.
func KernelRules() []status.Rule {
	return []status.Rule{{PolicyRule: rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}}}
}

// A KernelEntry is an entry of a kernel table, and who has its address. Its JSON is stable.
type KernelEntry struct {
	Target  string `json:"target"`
	Table   string `json:"table"`
	Address string `json:"address"`
	Entry   string `json:"entry"`
	Key     string `json:"key"` // hex
	Value   string `json:"value"`
	Owner   string `json:"owner"`
}

// Dump tells of each entry of each table, and then how each target fares.
func (v *KernelView) Dump(ctx context.Context, found func(KernelEntry)) ([]status.TargetReport, error) {
	host, err := dataplane.ReadHost()
	if err != nil {
		return nil, err
	}
	reports := []status.TargetReport{}
	for _, r := range dataplane.Dump(ctx, v.targets, v.journal, &v.pods, host, func(target string, e dataplane.Entry, owner string) {
		found(KernelEntry{target, e.Table, e.Address.String(), e.Text, hex.EncodeToString(e.Key), hex.EncodeToString(e.Value), owner})
	}) {
		reports = append(reports, KernelReport(&r))
	}
	return reports, nil
}
