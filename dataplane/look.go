package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// A look is one reading of the tables for some addresses, and what was asked about these.
type look struct {
	sources
	now      time.Time
	grace    time.Duration
	releases map[netip.Addr][]*Release // all of each address
	due      map[netip.Addr]bool       // those that this look is for
	tables   []tableLook               // in the order of the targets
	needs    map[netip.Addr]bool       // those to ask about, and whether the whole cluster is to be asked
	askedAt  time.Time                 // when that began
	answers
}

// A tableLook is what one table has.
type tableLook struct {
	target  Target
	entries []Entry
	err     error
}

// answers are what was asked about the addresses, just before or just after acting.
type answers struct {
	asked      bool
	why        string // why there are none
	network    HostState
	sandboxes  []Sandbox
	knowsNode  bool  // they are this node's: one is of a pod that the API server has here
	pods       []Pod // of this node: by the API server's word, and by what was seen last
	elsewhere  map[netip.Addr]*Claim
	whyAddress map[netip.Addr]string // why there is none for an address
}

func byAddress(releases []*Release) map[netip.Addr][]*Release {
	by := map[netip.Addr][]*Release{}
	for _, r := range releases {
		by[r.Address] = append(by[r.Address], r)
	}
	return by
}

// read reads all tables for the addresses; nil: all.
func (l *look) read(ctx context.Context, targets []Target, wanted *Addresses) {
	for _, t := range targets {
		table := tableLook{target: t}
		table.err = t.Table.Read(ctx, wanted, func(e Entry) { table.entries = append(table.entries, e) })
		l.tables = append(l.tables, table)
	}
}

// state is how the table fares, in the words of all targets.
func (t *tableLook) state() (TableState, string) {
	var known *TableError
	switch {
	case t.err == nil:
		return StateOK, ""
	case errors.As(t.err, &known):
		return known.State, known.Message
	}
	return StateUnavailable, t.err.Error()
}

// report is how the table fares, without findings.
func (t *tableLook) report() TargetReport {
	r := TargetReport{Target: t.target.Name}
	r.State, r.Message = t.state()
	return r
}

// complete tells whether the table holds what was found and nothing more.
func (t *tableLook) complete() bool {
	state, _ := t.state()
	return state == StateOK || state == StateNotInstalled
}

// reports decides on each entry.
func (l *look) reports() []TargetReport {
	reports := make([]TargetReport, len(l.tables))
	for i := range l.tables {
		t := &l.tables[i]
		reports[i] = t.report()
		for _, e := range t.entries {
			reports[i].Findings = append(reports[i].Findings, l.finding(&t.target, e))
		}
	}
	return reports
}

func (l *look) finding(t *Target, e Entry) Finding {
	decision, r := l.decide(t, e)
	f := Finding{Entry: e, Decision: decision}
	if r != nil {
		f.Since, f.Pod = r.Since, r.Pod
	}
	return f
}

// decide gives the verdict on an entry: the most cautious one of those on all who have lost its address.
func (l *look) decide(t *Target, e Entry) (Decision, *Release) {
	releases := l.releases[e.Address]
	if len(releases) == 0 {
		claim := l.claim(e.Address, nil)
		if claim == nil {
			claim = l.elsewhere[e.Address]
		}
		return Decide(Evidence{Entry: e, Claim: claim}), nil
	}
	var worst Decision
	var of *Release
	asks := l.asks(t, e)
	for _, r := range releases {
		evidence := l.evidence(t, e, r)
		d, settled := DecideUnasked(evidence)
		if !settled && !asks {
			continue // another one settles it, so nobody was asked
		}
		if !settled {
			d = Decide(evidence)
		}
		if of == nil || caution[d.Verdict] > caution[worst.Verdict] {
			worst, of = d, r
		}
	}
	return worst, of
}

// caution orders the verdicts.
var caution = map[Verdict]int{Remove: 0, Wait: 1, Keep: 2}

// asks tells whether a decision on the entry needs somebody to be asked.
func (l *look) asks(t *Target, e Entry) bool {
	for _, r := range l.releases[e.Address] {
		if _, settled := DecideUnasked(l.evidence(t, e, r)); settled {
			return false
		}
	}
	return len(l.releases[e.Address]) > 0
}

func (l *look) evidence(t *Target, e Entry, r *Release) Evidence {
	evidence := Evidence{
		Entry: e, Scope: t.Scope, ScrubOnLoss: t.ScrubOnLoss, Grace: l.grace, Now: l.now, Release: r, Full: !l.due[e.Address],
		Runtime: l.runtime != nil, Asked: l.asked, AskedWhy: l.why, Interfaces: l.network.Interfaces,
	}
	if !l.asked || l.why != "" {
		return evidence
	}
	evidence.Claim, evidence.Ending, evidence.Sandbox = l.claim(e.Address, l.releases[e.Address]), l.ending(r), l.runtime != nil && l.hasSandbox(r)
	if t.Scope == ScopeCluster && r.First && evidence.Claim == nil {
		evidence.Elsewhere, evidence.AskedWhy = l.elsewhere[e.Address], l.whyAddress[e.Address]
	}
	return evidence
}

// claim says who has the address on this node. The word of a pod whose sandbox is lost counts for nothing: what that means for an entry is decided by
// its own release, which is one of those.
func (a *answers) claim(address netip.Addr, releases []*Release) *Claim {
	if by, is := a.network.Addresses[address]; is {
		return &Claim{Reason: HostAddress, By: by}
	}
	var has, annotated *Claim
	for i := range a.pods {
		p := &a.pods[i]
		if inDoubtOf(releases, p) {
			continue
		}
		if p.has(address) {
			has = has.orOlder(&Claim{Reason: PodHasAddress, By: p.PodRef.String(), Started: p.Started})
		}
		if annotated == nil && p.claims(address) {
			annotated = &Claim{Reason: Annotated, By: p.PodRef.String()}
		}
	}
	if has != nil {
		return has
	}
	for i := range a.sandboxes {
		if s := &a.sandboxes[i]; slices.Contains(s.Addresses, address) {
			by := "a sandbox of pod " + s.Pod.String()
			if !s.Ready {
				by += ", which has ended, but its network was not taken down,"
			}
			return &Claim{Reason: SandboxHas, By: by}
		}
	}
	return annotated
}

// orOlder is the one of two claims whose pod started first, so far as that is known: what is older than that is neither's.
func (c *Claim) orOlder(other *Claim) *Claim {
	if c == nil || other.Started.Before(c.Started) { // zero is before all
		return other
	}
	return c
}

// ending tells whether the pod that lost the address is still there, and terminating.
func (a *answers) ending(r *Release) bool {
	return slices.ContainsFunc(a.pods, func(p Pod) bool { return p.UID == r.Pod.UID && p.Terminating && !p.ended() })
}

// knowsNode tells whether a container runtime that has these sandboxes is shown to be this node's, by one of a pod that runs here. One that has none of
// those that run here is another's, and what it does not have means nothing.
func knowsNode(sandboxes []Sandbox, pods []Pod) (bool, error) {
	running := 0
	for i := range pods {
		p := &pods[i]
		if p.Phase != PodRunning || p.Terminating || p.SandboxLost {
			continue
		}
		running++
		// A static pod has another UID in the API server.
		if slices.ContainsFunc(sandboxes, func(s Sandbox) bool { return s.Pod.Namespace == p.Namespace && s.Pod.Name == p.Name }) {
			return true, nil
		}
	}
	if running > 0 {
		return false, fmt.Errorf("the container runtime has none of the %d pods that run on this node; is kernel.runtimeEndpoint that of the kubelet?", running)
	}
	return false, nil
}

// hasSandbox tells whether the container runtime may have a sandbox of the pod that lost the address.
func (a *answers) hasSandbox(r *Release) bool {
	return !a.knowsNode || slices.ContainsFunc(a.sandboxes, func(s Sandbox) bool { return s.Pod.UID == r.Pod.UID })
}

// inDoubt tells whether the pod is the one of the release and its sandbox is what was lost, so that its word on the address counts for nothing.
func (r *Release) inDoubt(p *Pod) bool {
	return r.Reason == SandboxLost && p.UID == r.Pod.UID && p.lostSandbox()
}

// maxEverywhere is how many addresses a look asks the whole cluster about: for the API server each question is a search through all pods.
const maxEverywhere = 8

// ask asks about all addresses of entries that may go: the node's own network, its container runtime, the node's pods, and where a table has addresses
// of the whole cluster, all pods. Addresses that are too many for that are no longer due. present are the node's pods as they were seen last.
func (l *look) ask(ctx context.Context, present []Pod, now time.Time) {
	l.needs = map[netip.Addr]bool{}
	everywhere := 0
	for i := range l.tables {
		t := &l.tables[i]
		for _, e := range t.entries {
			if !l.asks(&t.target, e) {
				continue
			}
			if t.target.Scope == ScopeCluster && !l.needs[e.Address] {
				if everywhere == maxEverywhere {
					delete(l.due, e.Address)
					delete(l.needs, e.Address)
					continue
				}
				everywhere++
			}
			l.needs[e.Address] = l.needs[e.Address] || t.target.Scope == ScopeCluster
		}
	}
	if len(l.needs) > 0 {
		l.askAgain(ctx, present, now)
	}
}

// askAgain asks about the same addresses as ask did.
func (l *look) askAgain(ctx context.Context, present []Pod, now time.Time) {
	l.askedAt = now // before the first question: the oldest answer counts
	l.answers = l.askAbout(ctx, l.needs, l.releases, present)
}

func (s *sources) askAbout(ctx context.Context, needs map[netip.Addr]bool, releases map[netip.Addr][]*Release, present []Pod) answers {
	a := answers{asked: true, elsewhere: map[netip.Addr]*Claim{}, whyAddress: map[netip.Addr]string{}}
	var err error
	if a.network, err = s.host(); err != nil {
		a.why = "the node's own addresses and interfaces cannot be read: " + err.Error()
		return a
	}
	if s.runtime != nil {
		if a.sandboxes, err = s.runtime.Sandboxes(ctx); err != nil {
			a.why = err.Error()
			return a
		}
	}
	pods, err := s.cluster.NodePods(ctx)
	if err != nil {
		a.why = err.Error()
		return a
	}
	if s.runtime != nil {
		if a.knowsNode, err = knowsNode(a.sandboxes, pods); err != nil {
			a.why = err.Error()
			return a
		}
	}
	a.pods = slices.Concat(pods, present) // what only one of the two knows holds as well
	for address, everywhere := range needs {
		if !everywhere || !askable(releases[address]) || a.claim(address, releases[address]) != nil {
			continue
		}
		pods, err := s.cluster.PodsWith(ctx, address)
		if err != nil {
			a.whyAddress[address] = err.Error()
			continue
		}
		for i := range pods {
			// One that has the node's network has this address as a node's.
			if p := &pods[i]; !p.ended() && !inDoubtOf(releases[address], p) {
				a.elsewhere[address] = a.elsewhere[address].orOlder(&Claim{Reason: UsedElsewhere, By: p.PodRef.String(), Started: p.Started})
			}
		}
	}
	return a
}

// askable tells whether the API server can be asked who has the address.
func askable(releases []*Release) bool {
	return !slices.ContainsFunc(releases, func(r *Release) bool { return !r.First })
}

func inDoubtOf(releases []*Release, p *Pod) bool {
	return slices.ContainsFunc(releases, func(r *Release) bool { return r.inDoubt(p) })
}
