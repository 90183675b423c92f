package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	idleAgents   = 50
	idleSweeps   = 10
	idleInterval = 5 * time.Second
	idleGrace    = time.Second
	// idleSettled is how long the agents must have owned the same and have asked for nothing but their resources: longer than
	// it takes to find out that a key's node has no member, and to ask for the Node.
	idleSettled = 3 * idleInterval
	// idleLimit is how long that may take to come.
	idleLimit = 3 * time.Minute
)

var idlePolicies = []string{"policy-a", "policy-b", "policy-c"}

var idle = benchmark{
	name: "idle",
	about: fmt.Sprintf("%d unstale agents over %d sweeps of %d resources, 5 s apart, every key with a live member, beside leader election alone",
		idleAgents, idleSweeps, len(idlePolicies)),
	run: measureIdle,
}

// measureIdle counts what agents ask of the server when nothing happens, and what each takes on its node. Beside them stand as
// many candidates over the same time that do nothing but elect: what they would do besides is another matter.
func measureIdle(ctx context.Context, s *session) (err error) {
	c, log, err := s.startAudited(ctx)
	if err != nil {
		return err
	}
	defer c.closing(&err)
	nodes := nodeNames(idleAgents)
	if err := c.createNodes(ctx, newNodes(nodes)); err != nil {
		return err
	}
	for _, policy := range idlePolicies {
		if err := c.createPolicy(ctx, policy, nodes); err != nil {
			return err
		}
	}
	ours, err := s.idleSide(ctx, log, "unstale", idlePolicies, func() (fleet, error) {
		return s.startAgents(ctx, c.server.Kubeconfig, nodes, agentsConfig{policies: idlePolicies, grace: idleGrace, interval: idleInterval})
	})
	if err != nil {
		return err
	}
	theirs, err := s.idleSide(ctx, log, "candidate", []string{"election"}, func() (fleet, error) {
		return s.startCandidates(ctx, c.server.Kubeconfig, nodes, "election", "", idleGrace)
	})
	if err != nil {
		return err
	}
	s.reportIdle(ours, theirs)
	return nil
}

// idleSide measures one side: its processor time and memory are those of a process, the median of all.
func (s *session) idleSide(ctx context.Context, log auditLog, program string, owned []string, start func() (fleet, error)) ([]measurement, error) {
	s.logf("start %d processes of %s", idleAgents, program)
	f, err := start()
	if err != nil {
		return nil, err
	}
	defer f.kill()
	s.logf("wait until they have settled")
	if err := f.awaitQuiet(ctx, log, program, owned); err != nil {
		return nil, err
	}
	var runs []measurement
	for run := range s.runs {
		s.logf("run %d of %d: %s for %s", run+1, s.runs, program, idleSweeps*idleInterval)
		m, err := f.watch(ctx, log, program)
		if err != nil {
			return nil, err
		}
		runs = append(runs, m)
	}
	return runs, nil
}

// awaitQuiet waits until the fleet does only what it will do for ever.
func (f fleet) awaitQuiet(ctx context.Context, log auditLog, program string, owned []string) error {
	last := map[string]int{}
	check := func() (bool, error) {
		if _, err := f.awaitOwners(ctx, idleSettled, owned...); err != nil {
			return false, err
		}
		now := time.Now()
		var err error
		last, err = log.counts(program, now.Add(-idleSettled), now)
		return isQuiet(last), err
	}
	err := await(ctx, "nothing is asked but what is asked for ever", idleLimit, ownersPause, check)
	if err != nil {
		return fmt.Errorf("%w; the last %s had %v", err, idleSettled, last)
	}
	return nil
}

// isQuiet tells whether these are the requests of programs that have settled: agents that only look at their resources, or
// candidates that only look at their Lease, which the leader renews.
func isQuiet(counts map[string]int) bool {
	for class := range counts {
		if class != "GET topologyawarepolicies.config.nri" && !strings.HasSuffix(class, " leases.coordination.k8s.io") {
			return false
		}
	}
	return len(counts) > 0 && counts["CREATE leases.coordination.k8s.io"] == 0
}

// watch measures for the time of the sweeps.
func (f fleet) watch(ctx context.Context, log auditLog, program string) (measurement, error) {
	var m measurement
	before, _ := f.standing()
	start := time.Now()
	if err := pause(ctx, idleSweeps*idleInterval); err != nil {
		return m, err
	}
	wall := time.Since(start)
	after, known := f.standing()
	for _, d := range f {
		if err := d.running(); err != nil {
			return m, err
		}
	}
	if known {
		m.usage = each(before, after)
	}
	m.wall = wall
	var err error
	m.requests, err = log.counts(program, start, start.Add(wall))
	return m, err
}

// standing is what each process has taken so far; see the function of that name.
func (f fleet) standing() (all []usage, known bool) {
	for _, d := range f {
		u, ok := standing(d.cmd.Process.Pid)
		if !ok {
			return nil, false
		}
		all = append(all, u)
	}
	return all, true
}

// each is the processor time that the median process took between two looks, and the memory that the median process had at the second.
func each(before, after []usage) usage {
	var cpu, memory samples
	for i := range after {
		cpu = append(cpu, float64(after[i].cpu-before[i].cpu))
		memory = append(memory, float64(after[i].memory))
	}
	return usage{cpu: time.Duration(cpu.median()), memory: int64(memory.median())}
}

func (s *session) reportIdle(ours, theirs []measurement) {
	const what = "client-go leader election, and no other work"
	compare := func(figure, unit string, value func(measurement) float64) {
		s.compare("idle/"+figure, unit, per(1, ours, value), what, per(1, theirs, value))
	}
	compare("requests", "requests", requestCount)
	s.compareRequests("idle/requests", ours, what, theirs)
	compare("writes", "requests", func(m measurement) float64 { return float64(writes(m.requests)) })
	s.add("idle/nodeRequests", "requests", per(1, ours, func(m measurement) float64 { return float64(ofNodes(m.requests)) }))
	if knowsMemory(ours) && knowsMemory(theirs) {
		compare("memoryPerAgent", "bytes", peakBytes)
		compare("cpuPerAgent", "ms", cpuMillis)
	}
}

// writes are the requests that are not reads.
func writes(counts map[string]int) int {
	sum := 0
	for class, n := range counts {
		switch verb, _, _ := strings.Cut(class, " "); verb {
		case "GET", "LIST", "WATCH":
		default:
			sum += n
		}
	}
	return sum
}

// ofNodes are the requests for Nodes, of whatever kind.
func ofNodes(counts map[string]int) int {
	sum := 0
	for class, n := range counts {
		if _, resource, _ := strings.Cut(class, " "); resource == "nodes" || strings.HasPrefix(resource, "nodes/") {
			sum += n
		}
	}
	return sum
}
