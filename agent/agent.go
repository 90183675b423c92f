package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// Options are what an Agent needs to know beside its configuration file. All without a remark are required.
type Options struct {
	ConfigFile string
	// Node is the name of the Node that the agent runs on; also its name among the agents.
	Node string
	// Role says what it may write.
	Role gossip.Role
	// Version is told to the other agents and in metrics.
	Version string
	// API is the way to the API server, UserAgent how its logs and metrics name the agent.
	API       *rest.Config
	UserAgent string
	Log       *zap.Logger
	// Recorded tells whether what was logged of a removal is written; otherwise nothing is removed. Nil: nobody can tell.
	Recorded status.Recorder
	// LogFailed is why the last write of the log failed, for readiness; nil after one that succeeded. Nil: nobody can tell.
	LogFailed func() error

	// For this package's tests.
	ownsAll     bool
	reloadEvery time.Duration
	gossip      func(*gossip.Config)
}

// A KeysLeftError says that a stop left keys of the agent's own node behind.
type KeysLeftError struct{ cause error }

func (e *KeysLeftError) Error() string {
	return "this node's keys were not all cleared; their owner removes them when the node is gone: " + e.cause.Error()
}

func (e *KeysLeftError) Unwrap() error { return e.cause }

// An Agent keeps the configured targets clean, together with the agents of the other nodes.
type Agent struct {
	options Options
	log     *zap.Logger
	client  *status.Client
	kube    *kube

	metrics   *metrics
	decisions *decisions
	events    *recorder
	report    *reportWriter

	// Set while starting, before any part reads them.
	cluster   *gossip.Cluster
	evidence  *evidence
	health    *health
	publisher *publisher
	ownKeys   *ownKeys
	sweeps    *sweeps
	passes    *passes
	kernel    *kernel
	recovery  *recovery

	mu         sync.Mutex
	phase      string         // why it is not ready, empty when it is; guarded by mu
	config     *Configuration // in use; guarded by mu
	generation int64          // how many configurations this process applied; guarded by mu
	reload     error          // why the last change of the file was not taken; guarded by mu
}

// New loads the configuration and prepares an Agent. It starts nothing and sends nothing.
func New(options Options) (*Agent, error) {
	if problems := validation.IsDNS1123Subdomain(options.Node); len(problems) > 0 {
		return nil, fmt.Errorf("%q cannot be a Node's name: %s", options.Node, problems[0])
	}
	config, err := Load(options.ConfigFile)
	if err != nil {
		return nil, err
	}
	if err := gossip.CheckKeys(config.Gossip.KeyFile, config.Gossip.Insecure); err != nil {
		return nil, err // told at once, not only when the API server has answered
	}
	if options.reloadEvery == 0 {
		options.reloadEvery = reloadInterval
	}
	client, err := status.NewClient(options.API, options.UserAgent)
	if err != nil {
		return nil, err
	}
	kube, err := newKube(options.API, options.UserAgent)
	if err != nil {
		return nil, err
	}
	log := options.Log.With(zap.String("node", options.Node))
	a := &Agent{
		options: options, log: log, client: client, kube: kube, config: config, phase: "starting",
		metrics: newMetrics(options.Version), decisions: newDecisions(options.Node), events: newRecorder(kube, options.Node, log.Named("events")),
		report: newReportWriter(client, log.Named("report")),
	}
	return a, nil
}

// Run works until ctx ends, then stops in good order: see stop. It returns nil after a stop that left nothing behind, a
// *KeysLeftError after one that did, and any other error, which is logged, when the agent could not start or go on.
func (a *Agent) Run(ctx context.Context) error {
	failed := make(chan error, 1)
	var running parts
	servers, err := listenHTTP(a.config.HTTP, a.options.Node, a.conditions, a.decisions, a.metrics)
	if err != nil {
		a.log.Error("the agent cannot start", zap.Error(err))
		return err
	}
	running.http = begin("HTTP", failed, servers.Run)
	running.events = begin("events", failed, a.events.Run)
	if err = a.start(ctx, &running, failed); err != nil {
		a.log.Error("the agent cannot start", zap.Error(err))
	} else if ctx.Err() == nil { // else it may have been told to stop before it came that far
		a.setPhase("")
		select {
		case <-ctx.Done():
		case err = <-failed:
			a.log.Error("the agent cannot go on", zap.Error(err))
		}
	}
	return errors.Join(err, a.stop(&running))
}

// parts are the running parts that a stop ends, nil where one has not begun.
type parts struct {
	http, events, gossip, report, health, publisher, incarnations, sweeps, reload, kernel, recovery *part
}

// start brings the agent up to where it works. It returns nil also when ctx ends before.
func (a *Agent) start(ctx context.Context, running *parts, failed chan error) error {
	config := a.config // nobody else is there yet
	a.setPhase("waiting for the API server")
	label, err := a.clusterUID(ctx)
	if err != nil {
		return nil
	}
	if a.cluster, err = a.newCluster(label, config); err != nil {
		return err
	}
	a.cluster.Handle(republishMessage, func(gossip.Message) { a.publishAgain() })
	self := a.ownNode(ctx)
	if ctx.Err() != nil {
		return nil
	}

	members := func() int { return len(a.cluster.Members()) }
	a.metrics.observe(a.cluster.Stats)
	a.evidence = newEvidence(status.NewNodes(a.client), a.cluster, a.options.Node)
	a.health = newHealth(a.kube.reachable, a.able, a.log)
	a.ownKeys = &ownKeys{
		node: a.options.Node, uid: self.UID, client: a.client, log: a.log.Named("own-key"), recorded: a.options.Recorded,
		configured: make(chan struct{}, 1),
	}
	a.publisher = newPublisher(a.ownKeys, members, a.ownKeys.log)
	a.passes = newPasses(a)
	if a.kernel, err = newKernel(a); err != nil {
		return err
	}
	a.sweeps = &sweeps{
		node: a.options.Node, cluster: a.cluster, client: a.client, evidence: a.evidence, log: a.log.Named("sweep"),
		recorded: a.options.Recorded, told: a.passes.told, ended: a.passes.ended, owned: a.metrics.owns, ownsAll: a.options.ownsAll,
		listed: a.passes.listed, slots: make(slots, maxPasses), wake: make(chan struct{}, 1),
	}
	a.cluster.Handle(sweepMessage, a.sweeps.ordered)
	a.recovery = newRecovery(a)

	a.setPhase("joining the other agents")
	running.gossip = begin("gossip", failed, a.cluster.Run)
	select {
	case <-a.cluster.Ready():
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
	a.health.set(true, "")
	a.apply(config)
	reload := &reloader{
		file: a.options.ConfigFile, every: a.options.reloadEvery, log: a.log.Named("configuration"), present: config,
		apply: a.apply, failed: a.notApplied,
	}
	running.report = begin("report", failed, a.report.run)
	running.health = begin("health", failed, a.health.run)
	running.publisher = begin("own key", failed, a.publisher.run)
	running.incarnations = begin("incarnations", failed, func(ctx context.Context) error {
		if err := a.publisher.clearElsewhere(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("this node's key in other SweepReports may be left", zap.Error(err))
		}
		a.ownKeys.runIncarnations(ctx, a.ownTargets)
		return nil
	})
	running.sweeps = begin("sweeps", failed, a.sweeps.run)
	running.kernel = begin("kernel", failed, a.kernel.run)
	running.recovery = begin("recovery", failed, a.recovery.run)
	running.reload = begin("reload", failed, reload.run)
	if len(config.StatusKeys)+len(config.NodeObjects) == 0 && config.Kernel == nil && config.NodeRecovery == nil {
		a.log.Warn("the configuration has no targets, so there is nothing to keep clean; see statusKeys, nodeObjects and presets")
	}
	return nil
}

// clusterUID asks until it is answered or ctx ends: without it this agent does not know which agents are of its own cluster.
func (a *Agent) clusterUID(ctx context.Context) (string, error) {
	said := ""
	for pause := time.Second; ; pause = min(2*pause, 30*time.Second) {
		uid, err := a.kube.clusterUID(ctx)
		if err == nil || ctx.Err() != nil {
			return uid, errors.Join(err, ctx.Err())
		}
		if err.Error() != said {
			a.log.Warn("waiting for the API server", zap.Error(err))
			said = err.Error()
		}
		if err := wait(ctx, pause); err != nil {
			return "", err
		}
	}
}

// ownNodeTries is how often the agent's own Node is asked for at the start.
const ownNodeTries = 4

// ownNode reads the Node that the agent runs on.
func (a *Agent) ownNode(ctx context.Context) status.OwnNode {
	var node status.OwnNode
	pause := time.Second
	for range ownNodeTries {
		node = status.ReadOwnNode(ctx, a.client, a.options.Node, time.Now)
		if node.Existence != status.Unproved || wait(ctx, pause) != nil {
			break
		}
		pause *= 2
	}
	switch {
	case ctx.Err() != nil:
	case node.Existence == status.Gone:
		a.log.Warn("there is no Node of this name; is --node right?")
	case node.Existence != status.Exists:
		a.log.Warn("the agent's own Node cannot be read, so its keys carry no UID", zap.String("why", node.Why))
	}
	return node
}

// newCluster prepares gossip.
func (a *Agent) newCluster(label string, config *Configuration) (*gossip.Cluster, error) {
	g := config.Gossip
	bind, advertise, err := gossipAddresses(g, a.options.API.Host, os.Getenv)
	if err != nil {
		return nil, err
	}
	c := gossip.Config{
		Name: a.options.Node, Label: label, Role: a.options.Role, Version: a.options.Version,
		BindAddress: bind, AdvertiseAddress: advertise, Port: g.Port, KeyFile: g.KeyFile, Insecure: g.Insecure,
		Logger: a.log.Named("gossip"),
	}
	switch {
	case g.Service != nil:
		c.Peers = func(ctx context.Context) ([]string, error) {
			return a.kube.peers(ctx, *g.Service, g.Port, familyOf(advertise))
		}
	case len(g.Peers) > 0:
		c.Peers = func(context.Context) ([]string, error) { return g.Peers, nil }
	default:
		a.log.Warn("no gossip.peers and no gossip.service: this agent waits for others to find it")
	}
	if a.options.gossip != nil {
		a.options.gossip(&c)
	}
	return gossip.New(c)
}

// able is told when this agent can or cannot do an owner's work.
func (a *Agent) able(able bool) {
	a.cluster.SetAble(able)
	a.metrics.able(able)
}

// apply puts a configuration into effect.
func (a *Agent) apply(c *Configuration) {
	a.mu.Lock()
	a.generation++
	a.config, a.reload = c, nil
	generation := a.generation
	a.mu.Unlock()
	a.metrics.reloaded(nil)
	a.metrics.generation(generation)

	targets := c.StatusTargets()
	var units []unit
	var names []string
	for _, t := range targets {
		units = append(units, unitsOf(t)...)
		names = append(names, t.Name)
	}
	if c.Report.Name != "" {
		units = append(units, unitsOf(c.reportTarget())...)
	}
	if c.NodeRecovery != nil {
		names = append(names, status.RecoveryTarget)
	}
	a.passes.configure(targets, c.NodeRecovery != nil)
	a.report.use(c.Report.Name)
	a.kernel.use(c)
	a.recovery.use(c)
	a.sweeps.configure(units, time.Duration(c.SweepInterval))
	signal(a.ownKeys.configured)
	a.publisher.set(c.Report.Name, status.NewNodeEntry(nil, generation, c.Hash(), time.Now(), a.ownKeys.uid))
	a.log.Info("configuration applied", zap.String("config", c.Hash()), zap.Int64("generation", generation),
		zap.String("mode", string(c.Mode)), zap.Strings("targets", names))
}

// notApplied is told why a new configuration was not taken, or nil when the file is what is in use again.
func (a *Agent) notApplied(why error) {
	a.mu.Lock()
	a.reload = why
	c, generation := a.config, a.generation
	a.mu.Unlock()
	if why != nil {
		a.metrics.reloaded(why)
	}
	a.publisher.set(c.Report.Name, status.NewNodeEntry(why, generation, c.Hash(), time.Now(), a.ownKeys.uid))
}

func (a *Agent) setPhase(phase string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.phase = phase
}

// conditions are what readiness is made of.
func (a *Agent) conditions() []Condition {
	a.mu.Lock()
	phase, reload := a.phase, a.reload
	a.mu.Unlock()
	conditions := []Condition{{Name: "started", OK: phase == "", Message: phase}}
	if phase == "" {
		conditions = append(conditions, a.health.condition())
	}
	if a.options.LogFailed != nil {
		if err := a.options.LogFailed(); err != nil {
			conditions = append(conditions, Condition{Name: "log", Message: "cannot be written, so nothing is removed: " + err.Error()})
		}
	}
	if reload != nil { // said, but no reason to be taken for dead: the earlier configuration works
		conditions = append(conditions, Condition{Name: "configuration", OK: true, Message: "the earlier one is in use: " + reload.Error()})
	}
	return conditions
}

// ownTargets are the targets in use.
func (a *Agent) ownTargets() []ownTarget {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.config.ownTargets()
}
