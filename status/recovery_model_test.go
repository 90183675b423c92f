package status

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// A nodeRow is a row of a table: what it says counts if it matches and none before it does.
type nodeRow struct {
	matches   bool
	verdict   Verdict
	reason    Reason
	notBefore time.Time
}

func firstNodeRow(rows []nodeRow) nodeRow {
	for _, row := range rows {
		if row.matches {
			return row
		}
	}
	panic("no row matches")
}

// modelNode is DecideNode, slow and in plain words: it works out every row of every table and then looks for the first that matches. It shares
// neither helpers nor the lists of keys with what it is compared to.
func modelNode(e RecoveryEvidence) nodeRow {
	p, n, c := e.Policy, e.Node, e.Counts
	age := e.ServerNow.Sub(n.ReadySince)
	if e.Observed < age {
		age = e.Observed
	}
	if age < 0 {
		age = 0
	}
	notYet := func(after time.Duration) nodeRow {
		return nodeRow{age < after, Keep, BelowThreshold, e.ServerNow.Add(after - age)}
	}
	refuse := func(matches bool, reason Reason) nodeRow {
		return nodeRow{matches: matches, verdict: Refuse, reason: reason}
	}
	keep := func(matches bool, reason Reason) nodeRow {
		return nodeRow{matches: matches, verdict: Keep, reason: reason}
	}

	tainted, taintedByUs := false, false
	for _, t := range n.Taints {
		if t.Key == "node.kubernetes.io/out-of-service" {
			tainted = true
			if t.Value == "unstale" {
				taintedByUs = true
			}
		}
	}
	controlPlane := false
	for key := range n.Labels {
		switch key {
		case "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master", "node-role.kubernetes.io/etcd", "node-role.kubernetes.io/controlplane":
			controlPlane = true
		}
	}
	selected := true
	for key, want := range p.TaintSelector {
		if value, has := n.Labels[key]; !has || value != want {
			selected = false
		}
	}
	labelled := n.Labels[p.Label] == "true"
	taintable := p.TaintAfter > 0 && selected
	prunable := p.PruneAfter > 0 && labelled

	ready := c.Total - c.Unhealthy
	most, missing := c.Total, 0
	if c.HighWaterMark > c.Total {
		most, missing = c.HighWaterMark, c.HighWaterMark-c.Total
	}
	// What speaks against either, whichever is asked for.
	against := func(after time.Duration) []nodeRow {
		return []nodeRow{
			refuse(ready > 0 && 2*c.ReadyMembers <= ready, GossipUnsure),
			notYet(after),
			refuse(e.ReportWhy != "", ReportUnread),
			refuse(c.ReadyEtcd < p.MinReadyEtcdMembers, TooFewEtcdMembers),
			refuse(ready <= 0, NoNodeReady),
			refuse(100*(c.Unhealthy+missing) > p.MaxUnhealthy*most, TooManyUnhealthy),
			refuse(e.Lease == LeaseUnknown, LeaseUnread),
			refuse(e.Lease == LeaseChanged, LeaseRenewed),
			keep(e.Lease == LeaseOnce, LeaseWatched),
			refuse(e.Infrastructure == InfrastructureExists, MachineExists),
			refuse(e.Infrastructure == InfrastructureUnknown, MachineUnconfirmed),
			refuse(e.Infrastructure != InfrastructureGone && c.ZoneTotal >= 2 && c.ZoneUnhealthy == c.ZoneTotal, ZoneDown),
		}
	}
	taint := func() nodeRow {
		none := e.Infrastructure == InfrastructureNone
		return firstNodeRow(append(against(p.TaintAfter),
			refuse(none && !p.ConfirmByLabel, NoInfrastructure),
			refuse(none && p.ConfirmByLabel && !labelled, NotOptedIn),
			nodeRow{matches: true, verdict: Taint, reason: UnknownTooLong},
		))
	}
	prune := func() nodeRow {
		again := e.LastDeletion.Add(p.PruneInterval)
		return firstNodeRow(append(against(p.PruneAfter),
			refuse(e.VolumesWhy != "", VolumesUnread),
			refuse(len(e.Volumes) > 0, VolumeAttached),
			nodeRow{!e.LastDeletion.IsZero() && e.ServerNow.Before(again), Refuse, DeletedRecently, again},
			nodeRow{matches: true, verdict: Prune, reason: UnknownTooLong},
		))
	}
	questions := func() nodeRow {
		switch {
		case !prunable && tainted:
			return keep(true, RecoveryOff)
		case !prunable:
			return taint()
		case !taintable || tainted:
			return prune()
		}
		// Both are asked for. The taint comes first, for it comes sooner. What speaks against it does not hide what is said of the deletion, unless
		// that has only to wait.
		t, d := taint(), prune()
		if t.verdict == Taint || d.reason == BelowThreshold {
			return t
		}
		return d
	}

	readyAgain := n.Ready == "True" && taintedByUs
	return firstNodeRow([]nodeRow{
		keep(n.Deleted, BeingDeleted),
		{matches: readyAgain && age >= time.Minute, verdict: Untaint, reason: ReadyAgain},
		{readyAgain, Keep, BelowThreshold, notYet(time.Minute).notBefore},
		keep(n.Ready == "True", NodeReady),
		keep(n.Ready == "False", NodeNotReady),
		keep(p.TaintAfter == 0 && p.PruneAfter == 0, RecoveryOff),
		refuse(n.Ready != "Unknown", NoReadyCondition),
		refuse(n.Annotations["unstale.dev/keep"] == "true", KeptByAnnotation),
		refuse(e.Own, AgentsOwnNode),
		refuse(controlPlane, ControlPlane),
		refuse(!taintable && !prunable, NotOptedIn),
		refuse(e.Member, MemberAlive),
		questions(),
	})
}

// mustNever is what an operator was promised never happens, in no order: what a verdict that changes something breaks, "" if nothing.
func mustNever(e RecoveryEvidence, v Verdict) string {
	since := func(after time.Duration) bool {
		return e.Observed >= after && !e.ServerNow.Before(e.Node.ReadySince.Add(after))
	}
	ours, anyTaint, role, unselected := false, false, false, false
	for _, t := range e.Node.Taints {
		anyTaint = anyTaint || t.Key == outOfService
		ours = ours || t.Key == outOfService && t.Value == taintValue
	}
	for _, key := range []string{"control-plane", "controlplane", "master", "etcd"} {
		_, has := e.Node.Labels["node-role.kubernetes.io/"+key]
		role = role || has
	}
	for key, value := range e.Policy.TaintSelector {
		got, has := e.Node.Labels[key]
		unselected = unselected || !has || got != value
	}
	optedIn := e.Node.Labels[e.Policy.Label] == "true"
	ready, most := e.Counts.Total-e.Counts.Unhealthy, max(e.Counts.Total, e.Counts.HighWaterMark)
	gone := e.Infrastructure == InfrastructureGone
	either, taint, prune, untaint := v == Taint || v == Prune, v == Taint, v == Prune, v == Untaint
	for _, never := range []struct {
		breaks bool
		what   string
	}{
		{(either || untaint) && e.Node.Deleted, "somebody has deleted it"},
		{untaint && e.Node.Ready != corev1.ConditionTrue, "untainted, and not Ready"},
		{untaint && !ours, "untainted without our taint"},
		{untaint && !since(readyWatch), "untainted too soon"},
		{either && e.Node.Ready != corev1.ConditionUnknown, "not Unknown"},
		{either && e.Node.Annotations["unstale.dev/keep"] == "true", "annotated"},
		{either && e.Own, "its own Node"},
		{either && e.Member, "a live member"},
		{either && role, "a role"},
		{either && e.Lease != LeaseStill, "a Lease that is not still"},
		{either && !gone && e.Infrastructure != InfrastructureNone, "a machine that may exist"},
		{either && e.ReportWhy != "", "no report"},
		{either && e.Counts.ReadyEtcd < e.Policy.MinReadyEtcdMembers, "too few members of etcd"},
		{either && ready < 1, "nothing is Ready"},
		{either && e.Counts.ReadyMembers <= ready/2, "gossip sees too few"}, // so does half of an odd number, rounded down
		{either && (most-ready)*100 > most*e.Policy.MaxUnhealthy, "too many unhealthy"},
		{either && !gone && e.Counts.ZoneTotal > 1 && e.Counts.ZoneUnhealthy >= e.Counts.ZoneTotal, "its zone is down"},
		{taint && (e.Policy.TaintAfter <= 0 || !since(e.Policy.TaintAfter)), "tainted too soon"},
		{taint && unselected, "tainted and not selected"},
		{taint && anyTaint, "tainted twice"},
		{taint && !gone && !(e.Policy.ConfirmByLabel && optedIn), "tainted without proof"},
		{prune && (e.Policy.PruneAfter <= 0 || !since(e.Policy.PruneAfter)), "deleted too soon"},
		{prune && !optedIn, "deleted and not opted in"},
		{prune && (len(e.Volumes) > 0 || e.VolumesWhy != ""), "deleted with a volume"},
		{prune && !e.LastDeletion.IsZero() && e.ServerNow.Sub(e.LastDeletion) < e.Policy.PruneInterval, "deleted right after another"},
	} {
		if never.breaks {
			return never.what
		}
	}
	return ""
}

// randomRecovery draws what mostly speaks for a verdict, so that the last rows are reached too, and numbers at and beside every limit.
func randomRecovery(r *rand.Rand) RecoveryEvidence {
	trouble := []int{4, 12, 60}[r.IntN(3)]
	rarely := func() bool { return r.IntN(trouble) == 0 }
	coin := func() bool { return r.IntN(2) == 0 }
	one := func(of ...string) string { return of[r.IntN(len(of))] }
	why := func() string {
		if rarely() {
			return "on fire"
		}
		return ""
	}
	near := func(d time.Duration) time.Duration {
		return d + []time.Duration{-time.Minute, -time.Second, -1, 0, 1, time.Second, time.Hour}[r.IntN(7)]
	}
	after := func() time.Duration {
		return []time.Duration{0, time.Second, 5 * time.Minute, 10 * time.Minute}[r.IntN(4)]
	}

	e := RecoveryEvidence{ServerNow: noon.Add(time.Duration(r.IntN(3600)) * time.Second), Own: rarely(), Member: rarely()}
	p, n, c := &e.Policy, &e.Node, &e.Counts
	p.TaintAfter, p.PruneAfter, p.ConfirmByLabel, p.Label = after(), after(), coin(), one("unstale.dev/removable", "unstale.dev/removable", "example.com/spot")
	p.TaintSelector = []map[string]string{nil, {}, {"pool": "a"}, {"pool": "a", "empty": ""}, {p.Label: "true"}}[r.IntN(5)]
	p.MinReadyEtcdMembers, p.MaxUnhealthy = []int{0, 3}[r.IntN(2)], []int{0, 20, 25, 50, 50, 100}[r.IntN(6)]
	p.PruneInterval = []time.Duration{0, time.Minute, time.Minute}[r.IntN(3)]

	n.Name, n.UID, n.Version, n.ProviderID = "node-1", "u", "7", one("", "aws:///a/i-1")
	n.Labels, n.Annotations = map[string]string{"node-role.kubernetes.io/worker": ""}, map[string]string{}
	if !rarely() {
		n.Labels["pool"] = one("a", "a", "a", "b")
	}
	if coin() {
		n.Labels["empty"] = one("", "", "x")
	}
	if coin() {
		n.Labels[one(p.Label, p.Label, "unstale.dev/removable")] = one("true", "true", "true", "true", "True", "false", "")
	}
	if rarely() {
		n.Labels["node-role.kubernetes.io/"+one("control-plane", "master", "etcd", "controlplane")] = one("", "true", "false")
	}
	if rarely() {
		n.Annotations["unstale.dev/keep"] = one("true", "false", "")
	}
	n.Ready, n.Deleted = corev1.ConditionUnknown, rarely() && coin()
	if rarely() {
		n.Ready = corev1.ConditionStatus(one("True", "True", "False", "", "unknown"))
	}
	for r.IntN(3) == 0 {
		n.Taints = append(n.Taints, corev1.Taint{
			Key: one(outOfService, outOfService, "node.kubernetes.io/unreachable"), Value: one("unstale", "unstale", "nodeshutdown", ""),
			Effect: corev1.TaintEffect(one("NoExecute", "NoSchedule")),
		})
	}
	limits := []time.Duration{p.TaintAfter, p.PruneAfter, time.Minute, time.Hour, time.Hour}
	n.ReadySince, e.Observed = e.ServerNow.Add(-near(limits[r.IntN(5)])), near(limits[r.IntN(5)])
	far := []time.Time{{}, noon.AddDate(-400, 0, 0), noon.AddDate(400, 0, 0)} // farther than a Duration reaches
	if rarely() {
		n.ReadySince = far[r.IntN(3)]
	}

	e.Lease, e.Infrastructure = LeaseStill, []InfrastructureState{InfrastructureNone, InfrastructureGone}[r.IntN(2)]
	if rarely() {
		e.Lease = LeaseState(r.IntN(4))
	}
	if rarely() {
		e.Infrastructure = InfrastructureState(r.IntN(4))
	}
	e.InfrastructureWhy, e.LeaseWhy, e.VolumesWhy, e.ReportWhy = one("", "i-1"), one("", "down"), why(), why()
	if rarely() {
		e.Volumes = []string{"csi-1", "csi-2"}[:1+r.IntN(2)]
	}
	if coin() {
		e.LastDeletion = e.ServerNow.Add(-near(p.PruneInterval))
	}
	if rarely() {
		e.LastDeletion = far[r.IntN(3)]
	}

	c.Total = 1 + r.IntN(12)
	c.Unhealthy = min(c.Total, r.IntN(3))
	if rarely() {
		c.Unhealthy = r.IntN(c.Total + 1)
	}
	if rarely() {
		c.Unhealthy = c.Total
	}
	c.HighWaterMark = max(0, c.Total+[]int{-2, 0, 0, 0, 1, 3}[r.IntN(6)])
	c.ReadyMembers = c.Total - c.Unhealthy
	if rarely() {
		c.ReadyMembers = r.IntN(c.ReadyMembers + 1)
	}
	if c.ReadyEtcd = 3; rarely() {
		c.ReadyEtcd = r.IntN(5)
	}
	c.ZoneTotal = r.IntN(5)
	c.ZoneUnhealthy = r.IntN(c.ZoneTotal + 1)
	return e
}

func TestNodeModel(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	verdicts, reasons := map[Verdict]int{}, map[Reason]int{}
	for range 100_000 {
		e := randomRecovery(r)
		got, want := DecideNode(e), modelNode(e)
		if got.Verdict != want.verdict || got.Reason != want.reason || !got.NotBefore.Equal(want.notBefore) {
			t.Fatalf("DecideNode says %s %s, not before %v (%s)\nthe model says %s %s, not before %v\n%+v",
				got.Verdict, got.Reason, got.NotBefore, got.Message, want.verdict, want.reason, want.notBefore, e)
		}
		if got.Message == "" {
			t.Fatalf("%s %s without a message: %+v", got.Verdict, got.Reason, e)
		}
		if broken := mustNever(e, got.Verdict); broken != "" {
			t.Fatalf("%s %s, but %s: %+v", got.Verdict, got.Reason, broken, e)
		}
		verdicts[got.Verdict]++
		reasons[got.Reason]++
	}
	for _, v := range []Verdict{Keep, Taint, Untaint, Prune, Refuse} {
		if verdicts[v] < 10 {
			t.Errorf("verdict %s only %d times: the test compares little", v, verdicts[v])
		}
	}
	for _, reason := range []Reason{
		BeingDeleted, KeptByAnnotation, MemberAlive, NodeReady, NodeNotReady, RecoveryOff, BelowThreshold, LeaseWatched, UnknownTooLong, ReadyAgain,
		NoReadyCondition, AgentsOwnNode, ControlPlane, NotOptedIn, GossipUnsure, LeaseRenewed, LeaseUnread, MachineExists, MachineUnconfirmed,
		NoInfrastructure, VolumeAttached, VolumesUnread, TooFewEtcdMembers, TooManyUnhealthy, NoNodeReady, ZoneDown, ReportUnread, DeletedRecently,
	} {
		if reasons[reason] < 10 {
			t.Errorf("reason %s only %d times: the test compares little", reason, reasons[reason])
		}
	}
}
