package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

var (
	leases            = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	volumeAttachments = schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments"}
)

const (
	// RecoveryTarget is what Nodes that stay Unknown are called where targets are named, and RecoveryKind their kind.
	RecoveryTarget, RecoveryKind = "nodeRecovery", "nodeRecovery"
	// nodeLeases is where kubelets renew their Leases.
	nodeLeases = "kube-node-lease"
	// watchPause is how often the Leases of Nodes that wait are looked at. It also shows whether the API server answers.
	watchPause = 20 * time.Second
	// maxWatched is how many Nodes are watched at once; more than that are no dead machines.
	maxWatched = 20
	// unknownAfter is how long after a member has died its Node is looked at: the node controller waits 50 s for a kubelet (40 s before Kubernetes 1.32).
	unknownAfter = time.Minute
	// maxCountAge is how old a list of Nodes may be that something is done by.
	maxCountAge = time.Minute
	// calmTime is for how long no Node must have been unhealthy before a cluster that is smaller than it was counts as one of its present size.
	calmTime = time.Hour
)

// RecoveryMembers is what a Recovery asks gossip.
type RecoveryMembers interface {
	// Alive tells whether a live member has that name.
	Alive(name string) bool
	// Ping tells whether one answers now.
	Ping(ctx context.Context, name string) bool
}

// RecoveryOptions say what a Recovery does.
type RecoveryOptions struct {
	Policy         RecoveryPolicy
	Mode           Mode
	Report         string // the SweepReport that has what must outlive this process
	Self           string // the Node that this process runs on
	Interval       time.Duration
	Members        RecoveryMembers // nil: for Plan only
	Machines       func() (*Client, error)
	Infrastructure []InfrastructureSource
	Recorded       Recorder
}

// A Recovery taints and deletes Nodes that stay Unknown. It is not safe for concurrent use. It remembers since when Nodes have been as they are, so whoever
// takes over begins anew.
type Recovery struct {
	RecoveryOptions
	// Now stands for the clock; it may be replaced before the first look.
	Now func() time.Time

	client *Client // hears the API server's clock
	log    *zap.Logger
	clock  serverClock

	sightings      sightings
	infrastructure *infrastructure
	marks          marksAt
	marksWhy       string    // why the marks are not known
	calmSince      time.Time // since when no Node is unhealthy; zero: one is

	total   int       // Nodes at the last list
	ready   []string  // Ready ones
	watched []string  // Nodes that wait
	listed  time.Time // when the last list began
	looked  time.Time // when the last look of any kind ended
	due     time.Time // when the next list is, at the latest
}

// NewRecovery makes a Recovery that has seen nothing.
func NewRecovery(options RecoveryOptions, client *Client, log *zap.Logger) *Recovery {
	r := &Recovery{
		RecoveryOptions: options, log: log.With(zap.String("target", RecoveryTarget)), Now: time.Now, marksWhy: "not read yet",
		infrastructure: newInfrastructure(client, options.Machines, options.Infrastructure),
	}
	timed := *client
	timed.http = r.clock.listen(client.http, func() time.Time { return r.Now() })
	r.client = &timed
	return r
}

// serverNow is the time by the API server's clock; zero while it is not known.
func (r *Recovery) serverNow() time.Time {
	if !r.clock.known {
		return time.Time{}
	}
	return r.Now().Add(-r.clock.off)
}

// Next is when to look.
func (r *Recovery) Next() time.Time {
	next := r.nextList()
	if tick := r.looked.Add(watchPause); len(r.watched) > 0 && tick.Before(next) {
		return tick
	}
	return next
}

func (r *Recovery) nextList() time.Time {
	if earliest := r.listed.Add(listPause(r.total)); r.due.Before(earliest) {
		return earliest
	}
	return r.due
}

// Left tells that a member has left or died: its Node will soon be Unknown, if it is.
func (r *Recovery) Left() { r.listBefore(r.Now().Add(unknownAfter)) }

func (r *Recovery) listBefore(at time.Time) {
	if at.Before(r.due) {
		r.due = at
	}
}

// outage forgets since when Nodes have been as they are: what happened while nobody could see it must not age a Node.
func (r *Recovery) outage(why string) {
	if len(r.sightings.of) > 0 {
		r.log.Info("the time that Nodes have been Unknown is counted from the start, as this agent could not see all of it", zap.String("why", why))
	}
	r.sightings.outage()
}

// Look looks at all Nodes, when it is time to, and does what is decided; in between only at the Leases of those that wait. It is false when there is nothing
// to tell.
func (r *Recovery) Look(ctx context.Context) (TargetReport, bool) {
	now := r.Now()
	if !r.looked.IsZero() && now.Sub(r.looked) > 3*watchPause && len(r.watched) > 0 {
		r.outage("it did not run")
	}
	defer func() { r.looked = r.Now() }()
	if now.Before(r.nextList()) {
		r.watch(ctx)
		return TargetReport{}, false
	}
	kind := enforce
	if r.Mode == Report {
		kind = reportOnly
	}
	return r.pass(ctx, kind), true
}

// Plan looks once, and tells what would be done if nothing changed. It knows nothing of members and writes nothing.
func (r *Recovery) Plan(ctx context.Context) TargetReport { return r.pass(ctx, planOnly) }

// watch looks at the Leases of the Nodes that wait.
func (r *Recovery) watch(ctx context.Context) {
	if unsure := r.gossipUnsure(); unsure {
		r.outage("it sees few other agents")
	}
	for _, name := range r.watched {
		if err := r.lookAtLease(ctx, name); err != nil && ctx.Err() == nil {
			var failure *RequestError
			if errors.As(err, &failure) && failure.retryable() {
				r.outage(err.Error())
				return
			}
		}
	}
}

func (r *Recovery) gossipUnsure() bool {
	return len(r.ready) > 0 && 2*r.membersAmong(r.ready) <= len(r.ready)
}

func (r *Recovery) membersAmong(names []string) int {
	if r.Members == nil {
		return len(names)
	}
	n := 0
	for _, name := range names {
		if r.Members.Alive(name) {
			n++
		}
	}
	return n
}

// lookAtLease remembers what a Node's Lease looks like now.
func (r *Recovery) lookAtLease(ctx context.Context, name string) error {
	at := types.NamespacedName{Namespace: nodeLeases, Name: name}
	body, err := r.client.bytes(ctx, briefGet(leases, at, acceptMetadata))
	var failure *RequestError
	if errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure) {
		r.sightings.sawLease(name, "none", r.Now())
		return nil
	}
	if err != nil {
		return err
	}
	var lease struct {
		Metadata struct {
			UID             string `json:"uid"`
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &lease); err != nil || lease.Metadata.ResourceVersion == "" {
		return fmt.Errorf("get lease %s: the answer is no Lease", at)
	}
	r.sightings.sawLease(name, lease.Metadata.UID+" "+lease.Metadata.ResourceVersion, r.Now())
	return nil
}

// A recoveryPass is one look at all Nodes.
type recoveryPass struct {
	*Recovery
	kind    passKind
	begun   time.Time
	nodes   []NodeView
	census  census
	volumes map[string][]string // by node; nil: not asked for yet
	report  TargetReport
}

func (r *Recovery) pass(ctx context.Context, kind passKind) TargetReport {
	p := &recoveryPass{Recovery: r, kind: kind, begun: r.Now(), report: TargetReport{
		Target: RecoveryTarget, Kind: RecoveryKind, State: OK, Resources: []ResourceReport{},
	}}
	r.listed, r.due = p.begun, p.begun.Add(r.Interval+time.Duration((rand.Float64()*2-1)*float64(r.Interval)/10))
	nodes, err := listAll(ctx, r.client, listing{resource: nodesResource, full: true, page: nodesWholePage}, readNodeView)
	if err != nil {
		if ctx.Err() == nil {
			r.outage(err.Error())
			p.failed(ctx, err)
		}
		r.watched = nil
		return p.report
	}
	slices.SortFunc(nodes, func(a, b NodeView) int { return strings.Compare(a.Name, b.Name) })
	p.nodes, p.census = nodes, takeCensus(nodes)
	r.total, r.ready = len(nodes), p.census.readyOnes
	p.census.counts.ReadyMembers = r.membersAmong(r.ready)
	if r.gossipUnsure() {
		r.outage("it sees few other agents")
	}
	if !r.clock.known {
		p.report.worsen(Unavailable, "nothing is tainted or deleted: the API server's answers tell no time (no Date in their headers)")
	}
	r.sightings.saw(nodes, p.begun)
	p.decideAll(ctx)
	if kind == reportOnly && (p.report.Count(Taint)+p.report.Count(Untaint)+p.report.Count(Prune)) > 0 {
		p.report.worsen(OK, "nothing was done, because the mode is Report")
	}
	return p.report
}

func (p *recoveryPass) failed(ctx context.Context, err error) {
	state, message := p.client.stateOf(ctx, &Target{Name: RecoveryTarget, Resource: nodesResource}, err)
	var failure *RequestError
	if errors.As(err, &failure) && failure.Code == http.StatusForbidden && failure.Status != nil && byRBAC(failure) {
		message = fmt.Sprintf("not allowed to %s; this rule is missing: %s", failure.request, missingRule(append(RecoveryRules(&p.RecoveryOptions), NodeRules()...), failure.request))
	}
	p.report.worsen(state, message)
}

// decideAll decides on each Node, and does what is decided.
func (p *recoveryPass) decideAll(ctx context.Context) {
	var open []int
	var order []int // of those that something is to be done about
	decisions := make([]NodeDecision, len(p.nodes))
	evidence := map[int]RecoveryEvidence{} // likewise
	for i := range p.nodes {
		e := p.evidence(i)
		d, settled := DecideNodeUnasked(e)
		if decisions[i] = d; !settled {
			open = append(open, i)
		}
		if d.Verdict == Untaint {
			order, evidence[i] = append(order, i), e
		}
	}
	// Those that have been Unknown for the longest come first.
	slices.SortStableFunc(open, func(a, b int) int { return p.nodes[a].ReadySince.Compare(p.nodes[b].ReadySince) })
	p.Recovery.watched = nil
	if p.kind == enforce || p.kind == reportOnly {
		for _, i := range open[:min(len(open), maxWatched)] {
			p.Recovery.watched = append(p.Recovery.watched, p.nodes[i].Name)
		}
	}
	p.readMarksFor(ctx, len(open) > 0)
	p.report.Resources = make([]ResourceReport, len(p.nodes))
	p.infrastructure.learn(ctx, p.nodes)
	for k, i := range open {
		e := p.ask(ctx, i, k < maxWatched)
		decisions[i] = DecideNode(e)
		if v := decisions[i].Verdict; v == Taint || v == Prune {
			order, evidence[i] = append(order, i), e
		}
	}
	for i := range p.nodes {
		p.finding(i, decisions[i], false)
		p.wakeFor(i, decisions[i])
	}
	if p.kind == enforce {
		p.actAll(ctx, order, decisions, evidence)
	}
}

// evidence is what is known of a Node without asking.
func (p *recoveryPass) evidence(i int) RecoveryEvidence {
	n := &p.nodes[i]
	counts := p.census.of(n)
	counts.HighWaterMark = int(p.marks.HighWaterMark)
	e := RecoveryEvidence{
		Policy: p.Policy, Node: *n, Own: n.Name == p.Self, ServerNow: p.serverNow(), Observed: p.sightings.observed(n.Name, p.Now()),
		Counts: counts, ReportWhy: p.marksWhy, LastDeletion: p.marks.lastDeletion(),
	}
	if p.Members != nil {
		e.Member = p.Members.Alive(n.Name)
	}
	if p.kind == planOnly { // as though it had been watched
		e.Observed = math.MaxInt64
	}
	return e
}

// ask completes the evidence on a Node; watched tells that it is among those whose Lease and infrastructure are looked at.
func (p *recoveryPass) ask(ctx context.Context, i int, watched bool) RecoveryEvidence {
	e := p.evidence(i)
	n := &p.nodes[i]
	if !watched {
		return e // the counts speak against it, or it has to wait its turn
	}
	var failure *RequestError
	switch err := p.lookAtLease(ctx, n.Name); {
	case err != nil:
		e.Lease, e.LeaseWhy = LeaseUnknown, err.Error()
		p.failed(ctx, err)
		if errors.As(err, &failure) && failure.retryable() {
			p.outage(err.Error())
			e.Observed = 0
		}
	case p.kind == planOnly:
		e.Lease = LeaseStill
	default:
		e.Lease = p.sightings.leaseState(n.Name, p.Now())
	}
	answer := p.infrastructure.ask(ctx, n, p.nodes)
	e.Infrastructure, e.InfrastructureWhy = answer.state, answer.why
	e.ServerNow = p.serverNow()
	if DecideNode(e).Verdict == Prune {
		e.Volumes, e.VolumesWhy = p.volumesOf(ctx, n.Name)
	}
	return e
}

// volumesOf are the VolumeAttachments that name a Node; or why they are not known.
func (p *recoveryPass) volumesOf(ctx context.Context, node string) (names []string, why string) {
	if p.volumes == nil {
		type attachment struct{ name, node string }
		all, err := listAll(ctx, p.client, listing{resource: volumeAttachments, full: true, page: objectsPage}, func(d *json.Decoder) (attachment, error) {
			var v struct {
				Metadata objectMeta `json:"metadata"`
				Spec     struct {
					NodeName string `json:"nodeName"`
				} `json:"spec"`
			}
			err := d.Decode(&v)
			return attachment{v.Metadata.Name, v.Spec.NodeName}, err
		})
		if err != nil {
			p.failed(ctx, err)
			return nil, err.Error()
		}
		p.volumes = map[string][]string{}
		for _, a := range all {
			p.volumes[a.node] = append(p.volumes[a.node], a.name)
		}
	}
	return p.volumes[node], ""
}

// readMarksFor reads the marks, where something depends on them, and brings the high-water mark up to date.
func (p *recoveryPass) readMarksFor(ctx context.Context, needed bool) {
	r := p.Recovery
	if p.Policy.TaintAfter == 0 && p.Policy.PruneAfter == 0 {
		return
	}
	if needed || r.marksWhy != "" {
		marks, err := r.readMarks(ctx)
		if err != nil {
			r.marksWhy = err.Error()
			if ctx.Err() == nil {
				p.report.worsen(Unavailable, err.Error())
			}
			return
		}
		r.marks, r.marksWhy = marks, ""
	}
	total := int64(p.census.counts.Total)
	switch {
	case p.census.counts.Unhealthy > 0:
		r.calmSince = time.Time{}
	case r.calmSince.IsZero():
		r.calmSince = p.begun
	}
	calm := !r.calmSince.IsZero() && p.begun.Sub(r.calmSince) >= calmTime
	if p.kind == planOnly || total == r.marks.HighWaterMark || total < r.marks.HighWaterMark && !calm {
		return
	}
	next := r.marks.recoveryMarks
	next.HighWaterMark = total
	if p.kind != enforce { // nothing is written; it counts for this process
		r.marks.recoveryMarks = next
		return
	}
	p.writeMarks(ctx, next)
}

// writeMarks writes marks; false: they were not, and are read anew with the next pass.
func (p *recoveryPass) writeMarks(ctx context.Context, next recoveryMarks) bool {
	r := p.Recovery
	marks, err := r.writeMarks(ctx, r.marks, next)
	if err != nil {
		r.marksWhy = err.Error()
		if ctx.Err() == nil && !errors.Is(err, errMarksChanged) {
			p.report.worsen(Unavailable, err.Error())
		}
		return false
	}
	r.marks = marks
	return true
}

// finding writes down what was decided on a Node.
func (p *recoveryPass) finding(i int, d NodeDecision, done bool) {
	n := &p.nodes[i]
	f := Finding{Key: n.Name, Verdict: d.Verdict, Reason: d.Reason, Message: d.Message, NotBefore: d.NotBefore.UTC(), Done: done, Removed: done && d.Verdict == Prune}
	if d.Reason != NodeReady {
		f.Since = n.ReadySince.UTC()
	}
	report := ResourceReport{Name: n.Name, Entries: 1, Findings: []Finding{f}, Type: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, UID: n.UID}
	if f.Removed {
		report.Removed = 1
	}
	p.report.Resources[i] = report
}

// wakeFor makes the next list early enough for what a Node waits for.
func (p *recoveryPass) wakeFor(i int, d NodeDecision) {
	switch {
	case d.Reason == LeaseWatched:
		if was := p.sightings.of[p.nodes[i].Name]; was != nil && was.lease != "" {
			p.listBefore(was.leaseSince.Add(leaseWatch))
		}
	case !d.NotBefore.IsZero():
		p.listBefore(p.Now().Add(d.NotBefore.Sub(p.serverNow())))
	}
}

// actAll does what was decided, as long as the list that it was decided by is young.
func (p *recoveryPass) actAll(ctx context.Context, order []int, decisions []NodeDecision, evidence map[int]RecoveryEvidence) {
	for _, i := range order {
		if ctx.Err() != nil {
			return
		}
		if p.Now().Sub(p.begun) > maxCountAge {
			p.report.worsen(Unavailable, "looking at all Nodes took too long to do all that was decided; the next look goes on")
			return
		}
		d, done := p.act(ctx, i, decisions[i], evidence[i])
		p.finding(i, d, done)
		if done {
			p.listBefore(p.Now()) // the deletion follows the taint, and one deletion another
			p.wakeFor(i, d)
		}
	}
}

// act does what was decided on a Node by the evidence, if it still holds. What it returns is what became of it.
func (p *recoveryPass) act(ctx context.Context, i int, d NodeDecision, e RecoveryEvidence) (NodeDecision, bool) {
	listed := &p.nodes[i]
	became := func(v Verdict, r Reason, format string, args ...any) (NodeDecision, bool) {
		return NodeDecision{Decision: Decision{v, r, fmt.Sprintf(format, args...)}}, false
	}
	if d.Verdict != Untaint && p.Members != nil && p.Members.Ping(ctx, listed.Name) {
		return became(Refuse, MemberAlive, "its agent answers, so the machine runs")
	}
	body, err := p.client.bytes(ctx, briefGet(nodesResource, types.NamespacedName{Name: listed.Name}, acceptJSON))
	if err != nil {
		if saysGone(err, listed.Name) {
			return became(Keep, BeingDeleted, "somebody else has deleted the Node")
		}
		p.failed(ctx, err)
		return became(Keep, Unconfirmed, "not done: %v", err)
	}
	fresh, err := readNodeView(json.NewDecoder(strings.NewReader(string(body))))
	if err != nil {
		return became(Keep, Unconfirmed, "not done: %v", err)
	}
	// Anything but its resourceVersion that decides must be as it was.
	if was := p.sightings.of[listed.Name]; was == nil || !was.shows(&fresh) {
		return became(Keep, Changed, "its Ready condition changed between look and write")
	}
	p.nodes[i] = fresh
	now := p.evidence(i) // earlier actions of this pass count in it
	e.Node, e.Member, e.Counts, e.LastDeletion, e.ReportWhy, e.ServerNow = fresh, now.Member, now.Counts, now.LastDeletion, now.ReportWhy, now.ServerNow
	if again := DecideNode(e); again.Verdict != d.Verdict {
		return again, false
	}
	log := p.log.With(zap.String("node", fresh.Name), zap.String("uid", fresh.UID), zap.String("resourceVersion", fresh.Version), zap.String("reason", string(d.Reason)))
	if d.Verdict == Prune {
		// Before the deletion: of two pruners at once only one may delete, and a third must not either until an interval has passed.
		next := p.marks.recoveryMarks
		at := metav1.NewTime(p.serverNow().Truncate(time.Second))
		next.LastDeletion = &at
		if !p.writeMarks(ctx, next) {
			return became(Refuse, ReportUnread, "the deletion could not be noted in the SweepReport, so it was not done: %s", p.marksWhy)
		}
	}
	written, err := p.Recorded.begin()
	if err != nil {
		return became(Keep, Unconfirmed, "not done: %v", err)
	}
	log.Info("acting", zap.String("verdict", string(d.Verdict)), zap.String("message", d.Message), zap.Any("labels", fresh.Labels), zap.Any("taints", fresh.Taints))
	if err := written(); err != nil {
		return became(Keep, Unconfirmed, "not done: %v", err)
	}
	switch d.Verdict {
	case Taint:
		err = p.client.taintNode(ctx, &fresh, p.serverNow())
	case Untaint:
		err = p.client.untaintNode(ctx, &fresh)
	default:
		err = p.client.deleteNode(ctx, &fresh)
	}
	var failure *RequestError
	switch {
	case err == nil:
		log.Info("done", zap.String("verdict", string(d.Verdict)))
		if d.Verdict == Prune {
			p.census.deleted(&fresh)
		}
		return d, true
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		return became(Keep, BeingDeleted, "somebody else has deleted the Node")
	case errors.As(err, &failure) && (failure.Code == http.StatusConflict || failure.Code == http.StatusUnprocessableEntity):
		log.Info("not done; the Node was written meanwhile, or a policy refuses it", zap.Error(err))
		return became(Keep, Changed, "not done, because it was written meanwhile or a policy refuses it; the next look decides again: %v", err)
	}
	log.Warn("not done", zap.Error(err))
	p.failed(ctx, err)
	return became(Keep, Unconfirmed, "perhaps not done: %v", cmp.Or(err, errors.New("no answer")))
}
