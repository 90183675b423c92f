package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/status"
)

// kernel keeps the node's kernel tables clean while the configuration says so: it watches the node's pods and tells the scrubber of them.
type kernel struct {
	pods     *pods
	log      *zap.Logger
	recorded status.Recorder
	told     func([]dataplane.TargetReport, time.Duration)
	metrics  *metrics
	wake     chan struct{} // size 1

	mu       sync.Mutex
	config   *KernelConfig       // nil: kernel tables are left alone; guarded by mu
	mode     status.Mode         // of the configuration as a whole; guarded by mu
	scrubber *dataplane.Scrubber // nil while it does not run; guarded by mu
}

func newKernel(a *Agent) (*kernel, error) {
	k := &kernel{
		log: a.log.Named("kernel"), recorded: a.options.Recorded, told: a.kernelTold, metrics: a.metrics,
		wake: make(chan struct{}, 1),
	}
	var err error
	k.pods, err = newPods(a.options.API, a.options.UserAgent, a.options.Node, a.kube, k.annotations)
	return k, err
}

// use takes in a configuration. It never blocks.
func (k *kernel) use(c *Configuration) {
	k.mu.Lock()
	k.config, k.mode = c.Kernel, c.Mode
	k.mu.Unlock()
	signal(k.wake)
}

func (k *kernel) present() (*KernelConfig, status.Mode) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.config, k.mode
}

// annotations are the keys of the annotations that claim addresses.
func (k *kernel) annotations() []string {
	c, _ := k.present()
	if c == nil {
		return nil
	}
	return c.PodAddressAnnotations
}

// run keeps the tables clean until ctx ends, and saves the journal.
func (k *kernel) run(ctx context.Context) error {
	pause := time.Duration(0)
	for ctx.Err() == nil {
		c, _ := k.present()
		if c == nil {
			select {
			case <-ctx.Done():
			case <-k.wake:
			}
			continue
		}
		if err := k.scrub(ctx, c); err != nil {
			pause = min(max(2*pause, time.Second), time.Minute)
			k.log.Error("kernel tables are not kept clean", zap.Error(err), zap.Duration("nextTry", pause))
			_ = wait(ctx, pause) // ended: seen above
			continue
		}
		pause = 0
	}
	return nil
}

// scrub is run while the configuration has kernel tables.
func (k *kernel) scrub(ctx context.Context, c *KernelConfig) error {
	boot, err := dataplane.BootID()
	if err != nil {
		return err
	}
	scrubber, err := dataplane.NewScrubber(dataplane.Options{
		Cluster: k.pods, Host: dataplane.ReadHost, Journal: dataplane.JournalDir(c.StateDir), Boot: boot, Recorded: dataplane.Recorder(k.recorded),
		Told: k.told, Log: k.log, Now: time.Now,
	})
	if err != nil {
		return fmt.Errorf("begin with the kernel tables: %w", err)
	}
	k.runs(scrubber)
	defer k.runs(nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	informer, heard, err := k.pods.informer(k.handler(scrubber))
	if err != nil {
		return fmt.Errorf("watch the node's pods: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(k.notWatched()); err != nil {
		return fmt.Errorf("watch the node's pods: %w", err)
	}
	var running sync.WaitGroup
	var runtime *containerRuntime
	if runtime, err = k.configure(ctx, scrubber, nil, &running); err != nil {
		return err
	}
	// What client-go would log in a form of its own is told by notWatched.
	running.Go(func() { informer.RunWithContext(klog.NewContext(ctx, logr.Discard())) })
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), heard.HasSynced) {
			scrubber.Synced()
		}
	})
	running.Go(func() { _ = scrubber.Run(ctx) }) // always nil
	defer func() {
		cancel()
		running.Wait()
		runtime.close()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.wake:
		}
		if now, _ := k.present(); now == nil {
			k.log.Info("the configuration no longer has kernel tables; they are left alone from now on")
			return nil
		}
		if runtime, err = k.configure(ctx, scrubber, runtime, &running); err != nil {
			return err
		}
		for _, object := range informer.GetStore().List() { // the annotations that count may be others
			scrubber.Saw(object.(*watchedPod).withAnnotations(k.annotations()))
		}
	}
}

// handler tells the scrubber of pods, but for updates that cannot matter to it.
func (k *kernel) handler(scrubber *dataplane.Scrubber) podHandler {
	return podHandler{
		saw: func(before, now *watchedPod) {
			annotations := k.annotations()
			pod := now.withAnnotations(annotations)
			if before != nil {
				relevant := dataplane.Relevant(before.withAnnotations(annotations), pod)
				k.metrics.podUpdate(relevant, len(now.pod.Addresses) == 0)
				if !relevant {
					return
				}
				if before.UID != now.UID {
					scrubber.Gone(string(before.UID))
				}
			}
			scrubber.Saw(pod)
		},
		gone: func(last *watchedPod) { scrubber.Gone(string(last.UID)) },
	}
}

func (k *kernel) runs(scrubber *dataplane.Scrubber) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.scrubber = scrubber
}

// notWatched logs why the pods cannot be watched, once for each reason. Meanwhile nothing is removed: that is confirmed by requests of its own.
func (k *kernel) notWatched() cache.WatchErrorHandlerWithContext {
	said := ""
	return func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() != nil || errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) { // as watches end
			return
		}
		if text := err.Error(); text != said {
			said = text
			k.log.Warn("the node's pods are not seen for now", zap.Error(k.pods.why("watch the pods of Node "+k.pods.node, podsRule, err)))
		}
	}
}

// configure gives the scrubber its targets, and the container runtime, which it returns. before is the one until now, nil: none.
func (k *kernel) configure(ctx context.Context, scrubber *dataplane.Scrubber, before *containerRuntime, running *sync.WaitGroup) (*containerRuntime, error) {
	c, mode := k.present()
	if c == nil {
		return before, nil
	}
	now := before
	if before.at() != c.RuntimeEndpoint {
		var err error
		if now, err = newContainerRuntime(c.RuntimeEndpoint, k.log); err != nil {
			return before, err
		}
		defer before.close() // a question that is under way fails, and is asked again
		if now != nil {
			running.Go(func() { now.greet(ctx) })
		}
	}
	if c.Conntrack.Enabled && c.Conntrack.EnableTimestamps {
		switch changed, err := dataplane.EnableTimestamps(); {
		case err != nil:
			k.log.Warn("connections whose address another pod has by now are kept", zap.Error(err))
		case changed:
			k.log.Info("net.netfilter.nf_conntrack_timestamp is set to 1, as kernel.conntrack.enableTimestamps says; it stays so when the agent stops")
		}
	}
	var runtime dataplane.Runtime // an interface that is nil, not one that holds nil
	if now != nil {
		runtime = now
	}
	scrubber.Configure(kernelTargets(c, mode), time.Duration(c.Grace), c.MaxRemovals, runtime)
	return now, nil
}

// kernelTargets are the tables of a configuration. The more cautious mode counts.
func kernelTargets(c *KernelConfig, mode status.Mode) []dataplane.Target {
	enforce := func(target status.Mode) bool {
		return !slices.Contains([]status.Mode{mode, c.Mode, target}, status.Report)
	}
	var targets []dataplane.Target
	for _, s := range c.IPSets {
		targets = append(targets, dataplane.Target{
			Name: s.Name, Table: s.table(), Scope: s.Scope, ScrubOnLoss: s.OnSandboxLoss == SandboxLossScrub, Enforce: enforce(s.Mode),
		})
	}
	for _, m := range c.BPFMaps {
		targets = append(targets, dataplane.Target{
			Name: m.Name, Table: m.table(), Scope: m.Scope, ScrubOnLoss: m.OnSandboxLoss == SandboxLossScrub, Enforce: enforce(m.Mode),
		})
	}
	// Their addresses are those of the whole cluster: a connection through this node may be of another node's pod that has the address by now.
	if c.Conntrack.Enabled {
		targets = append(targets, dataplane.Target{
			Name: dataplane.ConntrackTarget, Table: dataplane.Conntrack{}, Scope: dataplane.ScopeCluster, Enforce: enforce(c.Conntrack.Mode),
		})
	}
	if c.Neighbors.Enabled {
		targets = append(targets, dataplane.Target{
			Name: dataplane.NeighborsTarget, Table: dataplane.Neighbors{}, Scope: dataplane.ScopeCluster, Enforce: enforce(c.Neighbors.Mode),
		})
	}
	return targets
}

// KernelKind is the kind of kernel targets in reports.
const KernelKind = "kernel"

// kernelTold hears of one look at all tables.
func (a *Agent) kernelTold(reports []dataplane.TargetReport, took time.Duration) {
	for i := range reports {
		report := KernelReport(&reports[i])
		a.metrics.swept(&report, took)
		a.passes.news("kernel/"+report.Target, &report, time.Now())
	}
}

// logScrub logs what was decided on an entry of a kernel table.
func logScrub(log *zap.Logger, table string, f status.Finding) {
	say, what := log.Info, "entry of a lost address"
	switch {
	case f.Removed:
		what = "entry removed"
	case f.Reason == status.Reason(dataplane.SandboxLost):
		say, what = log.Warn, "entry of a pod whose sandbox is lost"
	}
	say(what, zap.String("table", table), zap.String("address", f.Key), zap.String("entry", f.Path), zap.String("verdict", string(f.Verdict)),
		zap.String("reason", string(f.Reason)), zap.String("message", f.Message))
}

// KernelReport is what was found in a kernel target in the form that all targets share: a resource is a set or a map, a key an address, a path the
// entry.
func KernelReport(r *dataplane.TargetReport) status.TargetReport {
	report := status.TargetReport{Target: r.Target, Kind: KernelKind, State: status.State(r.State), Message: r.Message, Resources: []status.ResourceReport{}}
	index := map[string]int{}
	for _, f := range r.Findings {
		i, known := index[f.Table]
		if !known {
			i = len(report.Resources)
			index[f.Table] = i
			report.Resources = append(report.Resources, status.ResourceReport{Name: f.Table})
		}
		table := &report.Resources[i]
		table.Entries++
		if f.Removed {
			table.Removed++
		}
		table.Findings = append(table.Findings, status.Finding{
			Key: f.Address.String(), Path: f.Text, Verdict: status.Verdict(f.Verdict), Reason: status.Reason(f.Reason), Message: f.Message,
			Since: f.Since, Removed: f.Removed,
		})
	}
	return report
}
