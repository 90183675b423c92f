// Command candidate stands beside unstale's agents in the benchmarks: one of several programs of which client-go's leader
// election lets one work. It is written as such programs usually are, and keeps client-go's modules for that out of the product's.
//
//	candidate -kubeconfig FILE -identity NAME -namespace NS -lease NAME [-policy NAME] [-grace 1m] [-interval 5m]
//
// The leader keeps a TopologyAwarePolicy clean, if one is named: it asks for the Node of every key, and takes out each key that
// had none at two looks at least a grace apart. It logs on standard error as JSON what it owns and what it removes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// What Kubernetes' own controllers elect with: the defaults of kube-controller-manager's --leader-elect-* flags.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

type options struct {
	kubeconfig, identity, namespace, lease, policy string
	grace, interval                                time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file`")
	flag.StringVar(&o.identity, "identity", "", "`name` among the candidates")
	flag.StringVar(&o.namespace, "namespace", "", "`namespace` of the Lease and the policy")
	flag.StringVar(&o.lease, "lease", "", "`name` of the Lease")
	flag.StringVar(&o.policy, "policy", "", "`name` of the policy to keep clean; default: none")
	flag.DurationVar(&o.grace, "grace", time.Minute, "how long a key without a Node is left alone")
	flag.DurationVar(&o.interval, "interval", 5*time.Minute, "how often to look")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil)).With("node", o.identity)
	if err := run(ctx, o, log); err != nil {
		log.Error("the candidate cannot go on", "error", err)
		os.Exit(1)
	}
}

// run takes part in the election until ctx ends or leadership is lost.
func run(ctx context.Context, o options, log *slog.Logger) error {
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.UserAgent = "candidate/" + o.identity
	// As much as unstale has: with client-go's own limit of 5 requests a second the removal would wait for that.
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client: %w", err)
	}
	policies, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a dynamic client: %w", err)
	}
	locking := *config
	locking.Timeout = renewDeadline / 2 // as resourcelock.NewFromKubeconfig has it, which would take another user agent
	lockClient, err := kubernetes.NewForConfig(&locking)
	if err != nil {
		return fmt.Errorf("make a client for the Lease: %w", err)
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, o.namespace, o.lease, lockClient.CoreV1(), lockClient.CoordinationV1(),
		resourcelock.ResourceLockConfig{Identity: o.identity})
	if err != nil {
		return fmt.Errorf("make the lock: %w", err)
	}

	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				log.Info("owns", "name", o.lease)
				if o.policy != "" {
					c := &cleaner{options: o, client: client, policies: policies, log: log, since: map[string]time.Time{}}
					c.run(ctx)
				}
			},
			OnStoppedLeading: func() { log.Info("no longer owns", "name", o.lease) },
		},
	})
	if err != nil {
		return fmt.Errorf("set up the election: %w", err)
	}
	elector.Run(ctx)
	return nil
}
