package status

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// BatchPause lies between two batches of removals, so that an operator who sees the first can stop the second.
	BatchPause = 10 * time.Second
	// maxTries is how often a write is tried in one pass. Before each the resource is read and everything decided again.
	maxTries = 3
	// writeFresh and planFresh are how old an answer may be that is not asked for again.
	writeFresh = 2 * time.Second
	planFresh  = time.Minute
	// reportFresh is likewise for what is only reported, sweep after sweep; a list of Nodes, which owners make once an hour, ends it.
	reportFresh = time.Hour
	// confirmTime is how long a batch may go on asking for Nodes; the first answers grow old meanwhile.
	confirmTime = 2 * time.Second
	// maxReadFailures is how many resources of a target may be read in vain before the others are not tried in this pass.
	maxReadFailures = 5
	// confirmChunk is how many Nodes are asked for at most before a proof that the API server answers for Nodes.
	confirmChunk = 100
)

// NodeEvidence is what a Sweeper asks about nodes; *Nodes is one.
type NodeEvidence interface {
	// Known is what is known of a name without a request.
	Known(name string) Knowledge
	// Confirm asks for each of the Nodes now, or answers what was proved less than fresh ago.
	Confirm(ctx context.Context, names []string, fresh time.Duration) map[string]NodeAnswer
}

// A Sweeper keeps one target clean. It remembers its candidates between passes. It is not safe for concurrent use.
type Sweeper struct {
	target Target
	client *Client
	nodes  NodeEvidence
	log    *zap.Logger

	// Now and Wait stand for the clock; Progress hears of each batch that was written (removed so far, left in this
	// resource's pass). They may be replaced before the first pass.
	Now      func() time.Time
	Wait     func(context.Context, time.Duration) error
	Progress func(resource types.NamespacedName, removed, left int)
	// Recorded tells whether the log of a removal, which has what puts the entry back, is written; an error keeps the entry.
	Recorded Recorder
	// Others are resources of the same target that somebody else keeps clean. They are read when no key here belongs to an existing
	// node, before the target counts as held. Empty for a Sweeper of all the target's resources.
	Others func() []types.NamespacedName
	// Only is the one of the target's resources that this Sweeper looks at, where each has a Sweeper of its own; nil: all.
	Only *types.NamespacedName
	// WholeInterval is how long a whole list of objects serves, where those of certain nodes can be listed alone; 0: each pass lists all.
	WholeInterval time.Duration

	candidates map[types.NamespacedName]Candidates
	deletes    *rate.Limiter
	pods       *podEvidence                    // of a target that lives with pods
	refused    map[string]failedDeletion       // by UID, objects that could not be deleted when it was tried last
	owners     *owners                         // of a target's objects
	cursor     map[types.NamespacedName]string // by resource, the last subject that was asked for, where time did not suffice for all
	memory     memory                          // of a target's objects
	// objectNodes are the nodes that the last pass saw objects of.
	objectNodes map[string]bool
}

// NewSweeper makes a Sweeper without candidates.
func NewSweeper(target Target, client *Client, nodes NodeEvidence, log *zap.Logger) *Sweeper {
	s := &Sweeper{
		target: target, client: client, nodes: nodes, log: log.With(zap.String("target", target.Name)),
		Now: time.Now, Wait: waitFor, Progress: func(types.NamespacedName, int, int) {},
		Others: func() []types.NamespacedName { return nil },
		owners: newOwners(client), cursor: map[types.NamespacedName]string{},
		candidates: map[types.NamespacedName]Candidates{}, deletes: rate.NewLimiter(DeletesPerSecond, 1),
	}
	if o := target.Objects; o != nil && o.DeletesPerSecond > 0 {
		s.deletes.SetLimit(rate.Limit(o.DeletesPerSecond))
	}
	if target.LivesWith != nil {
		s.pods = newPodEvidence(client, *target.LivesWith, func() time.Time { return s.Now() })
		s.pods.members, s.nodes = nodes, s.pods
	}
	return s
}

// Target is what the sweeper keeps clean.
func (s *Sweeper) Target() Target { return s.target }

// Look reads the target's resources once and remembers their candidates. It asks for no Node and writes nothing.
func (s *Sweeper) Look(ctx context.Context) TargetReport { return s.pass(ctx, lookOnly) }

// Plan looks once and asks for the Nodes of all candidates, as though they had waited out their grace. It writes nothing, and
// tells what would go if nothing changed for a grace.
func (s *Sweeper) Plan(ctx context.Context) TargetReport { return s.pass(ctx, planOnly) }

// Sweep looks once more, and removes the keys of Nodes that are gone, batch after batch. With mode Report it only says what it would
// remove. The objects of departed nodes are looked for also where none of theirs is known. What failed is in the report's state; a context that ends
// stops it between two requests.
func (s *Sweeper) Sweep(ctx context.Context, departed ...string) TargetReport {
	if s.target.Mode == Report {
		return s.pass(ctx, reportOnly, departed...)
	}
	return s.pass(ctx, enforce, departed...)
}

type passKind int

const (
	lookOnly passKind = iota
	planOnly
	reportOnly
	enforce
)

// A pass is one look at all of a target's resources.
type pass struct {
	*Sweeper
	kind     passKind
	departed []string // nodes whose objects are looked for in any case
	report   TargetReport
	// alive: some key of the target belongs to a member or an existing Node. Without one the target is held.
	alive bool
	asked bool // the other resources were read for one
	held  bool // some key would go if the target were not held
	// noPods: the target lives with pods, and no such pod is anywhere.
	noPods bool
}

func (s *Sweeper) pass(ctx context.Context, kind passKind, departed ...string) TargetReport {
	p := s.newPass(kind)
	p.departed = departed
	if s.target.listsPods() {
		any, err := s.pods.list(ctx)
		if err != nil {
			p.failed(ctx, err)
			return p.report
		}
		p.noPods = !any
	}
	if s.target.Objects != nil {
		p.objects(ctx)
	} else {
		p.keys(ctx)
	}
	switch {
	case p.held && p.noPods:
		p.report.worsen(StateHeld, "nothing is removed: the selector "+s.target.LivesWith.Labels+" matches no pod that is on a node and stays; were the pods' labels renamed?")
	case p.held && s.target.listsPods():
		p.report.worsen(StateHeld, "nothing is removed: no key of this target belongs to a node with a pod of "+s.target.LivesWith.Labels+
			", so the keys are probably not node names")
	case p.held:
		p.report.worsen(StateHeld, "nothing is removed: no key of this target belongs to an existing node, so the keys are probably not node names")
	}
	if kind == reportOnly && p.report.Count(Remove) > 0 {
		p.report.worsen(OK, "nothing was removed, because the mode is Report")
	}
	return p.report
}

// keys decides on the keys of the target's resources.
func (p *pass) keys(ctx context.Context) {
	resources := p.readAll(ctx)
	for _, r := range resources {
		p.alive = p.alive || slices.ContainsFunc(r.keys(), p.speaksFor)
	}
	p.missingPaths(resources)
	for _, r := range resources {
		p.report.Resources = append(p.report.Resources, p.resource(ctx, r))
	}
}

// Has tells whether the last pass saw that key in any of the target's resources, or an object of that node.
func (s *Sweeper) Has(key string) bool {
	if s.target.Objects != nil {
		return key != "" && s.objectNodes[key]
	}
	for _, c := range s.candidates {
		if c.Has(key) {
			return true
		}
	}
	return false
}

// Failure is the report of a pass that could not begin, because something all targets need failed: the list of Nodes.
func (s *Sweeper) Failure(ctx context.Context, err error) TargetReport {
	p := s.newPass(lookOnly)
	p.failed(ctx, err)
	return p.report
}

func (s *Sweeper) newPass(kind passKind) *pass {
	return &pass{Sweeper: s, kind: kind, report: TargetReport{
		Target: s.target.Name, Kind: s.target.Kind(), State: OK, Resources: []ResourceReport{},
	}}
}

// failed records what went wrong with a request.
func (p *pass) failed(ctx context.Context, err error) {
	var unanswered *unansweredError
	if errors.As(err, &unanswered) {
		p.report.worsen(Unavailable, err.Error())
		return
	}
	state, message := p.client.stateOf(ctx, &p.target, err)
	p.report.worsen(state, message)
}

// readAll reads the target's resources, those that can be read.
func (p *pass) readAll(ctx context.Context) []*Resource {
	t := &p.target
	var wanted []types.NamespacedName
	if p.Only != nil {
		wanted = append(wanted, *p.Only)
	} else {
		var err error
		if wanted, err = p.client.resources(ctx, t); err != nil {
			p.failed(ctx, err)
			return nil
		}
	}
	p.forgetOthers(wanted)

	var resources []*Resource
	failures := 0
	for i, name := range wanted {
		r, err := p.read(ctx, name)
		var failure *RequestError
		switch {
		case err == nil:
			resources = append(resources, r)
		case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
			p.report.worsen(OK, fmt.Sprintf("%s does not exist", name))
		default:
			p.failed(ctx, err)
			if failure != nil && failure.retryable() {
				failures++
			}
			if ctx.Err() != nil || p.report.State == NotInstalled {
				return resources // the others would say the same
			}
			if left := len(wanted) - i - 1; failures == maxReadFailures && left > 0 {
				p.report.worsen(Unavailable, fmt.Sprintf("%d more resources were not tried", left))
				return resources
			}
		}
	}
	return resources
}

// missingPaths says which of the target's paths no resource has: a path that is misspelt looks just like that.
func (p *pass) missingPaths(resources []*Resource) {
	for place, path := range p.target.Paths {
		has := func(r *Resource) bool { return r.has[place] }
		if len(resources) > 0 && !slices.ContainsFunc(resources, has) {
			p.report.worsen(OK, fmt.Sprintf("no resource has %s; is the path right?", path.Path))
		}
	}
}

func (s *Sweeper) forgetOthers(wanted []types.NamespacedName) {
	for name := range s.candidates {
		if !slices.Contains(wanted, name) {
			delete(s.candidates, name)
		}
	}
}

func (s *Sweeper) read(ctx context.Context, name types.NamespacedName) (*Resource, error) {
	body, err := s.client.bytes(ctx, request{
		verb: "get", resource: s.target.Resource, namespace: name.Namespace, name: name.Name, accept: acceptJSON,
	})
	if err != nil {
		return nil, err
	}
	return s.parse(name, body)
}

func (s *Sweeper) parse(name types.NamespacedName, body []byte) (*Resource, error) {
	r, err := ParseResource(body, s.target.Paths)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if r.NamespacedName != name {
		return nil, fmt.Errorf("%s: the answer is %s", name, r.NamespacedName)
	}
	return r, nil
}

// resource decides on one resource's keys and, where the pass may write, removes them batch by batch.
func (p *pass) resource(ctx context.Context, r *Resource) (report ResourceReport) {
	report = ResourceReport{Namespace: r.Namespace, Name: r.Name, Entries: len(r.Entries), Type: r.Type, UID: r.UID}
	defer func() {
		slices.SortStableFunc(report.Findings, func(a, b Finding) int {
			return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Path, b.Path))
		})
	}()
	var removed []Finding // by earlier writes
	for tries := 0; ; {
		p.candidates[r.NamespacedName] = p.candidates[r.NamespacedName].Look(r, p.nodes.Known, p.Now())
		batch := p.decide(ctx, r.NamespacedName, p.subjects(r), p.target.MaxRemovals)
		findings := p.findings(r, batch.decisions)
		report.Findings = append(append([]Finding{}, removed...), findings...) // never nil
		if p.kind != enforce || len(batch.going) == 0 {
			return report
		}
		result, err := p.remove(ctx, r, r.of(batch.going), batch.proved)
		if len(result.removed) > 0 {
			report.Removed += len(result.removed)
			removed = append(removed, p.markRemoved(findings, result.removed)...)
			report.Findings = append(append([]Finding{}, removed...), without(findings, removed)...)
			p.Progress(r.NamespacedName, report.Removed, batch.waiting)
		}
		if err != nil {
			p.failed(ctx, err)
			return report
		}
		r = result.next
		if result.again {
			if tries++; tries == maxTries {
				p.report.worsen(Unavailable, fmt.Sprintf(
					"%s: %d writes in a row failed, the last one because %s; the next sweep tries again", r.NamespacedName, tries, result.why))
				return report
			}
			continue
		}
		tries = 0
		if batch.waiting == 0 {
			return report
		}
		if err := p.Wait(ctx, BatchPause); err != nil {
			p.report.worsen(Unavailable, fmt.Sprintf("%s: stopped with %d still to remove: %v", r.NamespacedName, batch.waiting, err))
			return report
		}
	}
}

// subjects are the resource's keys.
func (p *pass) subjects(r *Resource) []subject {
	sizes := map[string]int{}
	for _, e := range r.Entries {
		sizes[e.Key]++
	}
	candidates := p.candidates[r.NamespacedName]
	subjects := []subject{}
	for _, key := range slices.Sorted(maps.Keys(sizes)) { // items without a name are one
		subjects = append(subjects, subject{id: key, node: key, size: sizes[key], kept: r.Kept(), candidate: candidates.Of(key), where: r.NamespacedName.String()})
	}
	return subjects
}

// markRemoved are the findings of the entries that were removed.
func (p *pass) markRemoved(findings []Finding, entries []Entry) []Finding {
	gone := map[[2]string]bool{}
	for _, e := range entries {
		gone[[2]string{e.Key, p.target.Paths[e.Place].Path.String()}] = true
	}
	var removed []Finding
	for _, f := range findings {
		if gone[[2]string{f.Key, f.Path}] {
			f.Removed = true
			removed = append(removed, f)
		}
	}
	return removed
}

// without are the findings that are about none of what was removed.
func without(findings, removed []Finding) []Finding {
	gone := map[[2]string]bool{}
	for _, f := range removed {
		gone[[2]string{f.Key, f.Path}] = true
	}
	return slices.DeleteFunc(slices.Clone(findings), func(f Finding) bool { return gone[[2]string{f.Key, f.Path}] })
}

// speaksFor tells whether anything known without a request speaks for that key's node.
func (s *Sweeper) speaksFor(key string) bool {
	_, alive := s.nodes.Known(key).alive()
	return alive
}

// MaxOthers is how many of the target's other resources are read at most for a key that belongs to an existing node.
const MaxOthers = 10

// aliveElsewhere tells whether a key in one of the target's other resources belongs to a member or an existing Node. It looks once a pass.
func (p *pass) aliveElsewhere(ctx context.Context) bool {
	if p.asked {
		return false
	}
	p.asked = true
	others := p.Others()
	for _, i := range rand.Perm(len(others))[:min(len(others), MaxOthers)] {
		// Whatever cannot be read speaks for nothing; its own sweeper reports it.
		if r, err := p.read(ctx, others[i]); err == nil && slices.ContainsFunc(r.keys(), p.speaksFor) {
			return true
		}
	}
	return false
}

// findings lists the decisions, one finding for each key and place, in the order of the entries.
func (p *pass) findings(r *Resource, decisions map[string]Decision) []Finding {
	type spot struct {
		key   string
		place int
	}
	found := map[spot]bool{}
	findings := []Finding{}
	for _, e := range r.Entries {
		at := spot{e.Key, e.Place}
		if found[at] {
			continue
		}
		found[at] = true
		d := decisions[e.Key]
		findings = append(findings, Finding{
			Key: e.Key, Path: p.target.Paths[e.Place].Path.String(), Verdict: d.Verdict, Reason: d.Reason, Message: d.Message,
			Since: p.candidates[r.NamespacedName].Of(e.Key).Since.UTC(),
		})
	}
	return findings
}
