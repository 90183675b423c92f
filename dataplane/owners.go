package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A Release is an address that a pod has lost.
type Release struct {
	Pod     PodRef
	Address netip.Addr
	// First tells that it was the first of the pod's addresses whenever it was seen, so that the API server can be asked who has it now. Where
	// it was a second one, it is a second one of other pods too.
	First bool
	// Reason is AddressLost, PodFinished, PodGone or SandboxLost.
	Reason Reason
	// Since is when the loss was seen.
	Since time.Time
	// NotBefore is until when the pod's containers may still run without the API server's knowledge.
	NotBefore time.Time
}

// Ready is when the release's grace is over and its containers do not run any more.
func (r *Release) Ready(grace time.Duration) time.Time {
	if at := r.Since.Add(grace); at.After(r.NotBefore) {
		return at
	}
	return r.NotBefore
}

// Due is when the entries of the release may go at the earliest. A container runtime knows whether containers still run, so there is no need to wait
// until they surely do not.
func (r *Release) Due(grace time.Duration, runtime bool) time.Time {
	if runtime {
		return r.Since.Add(grace)
	}
	return r.Ready(grace)
}

const (
	// killTime is how long a kubelet may need beyond a pod's grace period to end its containers, also when the pod was deleted by force.
	killTime = 30 * time.Second
	// maxReleases is how many releases are remembered at most. Nodes have 110 to 500 pods, and most leave nothing.
	maxReleases = 2000
)

// Owners know which pod of the node has which address, and which addresses pods have lost. All is by UID: another pod of the same name, or with
// the same address, is another. Owners say nothing about entries, and have no clock. They are not safe for concurrent use.
type Owners struct {
	pods    map[string]*life // by UID
	changed bool             // since the last Journal
}

// A life is what is known of one pod, from its first to its last word.
type life struct {
	Pod
	gone      bool // from the API server
	journaled bool // only the journal told of it so far
	addresses map[netip.Addr]*holding
	second    map[netip.Addr]bool // those that were not its first one, at some time
}

// A holding is an address that a pod has or had.
type holding struct {
	first bool     // it was the first of the pod's addresses at all times
	lost  *Release // nil while the pod has it
}

// NewOwners know what the journal says, until something newer is seen.
func NewOwners(journal Journal) *Owners {
	o := &Owners{pods: map[string]*life{}}
	for _, p := range journal.Pods {
		l := &life{
			Pod:       Pod{PodRef: p.PodRef, GracePeriod: Seconds(p.GraceSeconds), Stopped: p.Stopped},
			journaled: true, addresses: map[netip.Addr]*holding{}, second: map[netip.Addr]bool{},
		}
		for _, a := range p.Addresses {
			l.addresses[a] = &holding{first: true}
		}
		for _, a := range p.Others {
			l.addresses[a], l.second[a] = &holding{}, true
		}
		o.pods[p.UID] = l
	}
	return o
}

// Journal is what must outlive this process: the addresses that pods have, or had and that may still be in a table.
func (o *Owners) Journal(boot string) Journal {
	o.changed = false
	j := Journal{Boot: boot}
	for _, uid := range slices.Sorted(maps.Keys(o.pods)) {
		l := o.pods[uid]
		p := JournalPod{PodRef: l.PodRef, GraceSeconds: int64(l.GracePeriod / time.Second), Stopped: l.Stopped}
		for _, a := range slices.SortedFunc(maps.Keys(l.addresses), netip.Addr.Compare) {
			if l.addresses[a].first {
				p.Addresses = append(p.Addresses, a)
			} else {
				p.Others = append(p.Others, a)
			}
		}
		if len(l.addresses) > 0 {
			j.Pods = append(j.Pods, p)
		}
	}
	return j
}

// Changed tells whether the last Journal is behind.
func (o *Owners) Changed() bool { return o.changed }

// Saw takes in what the API server has of a pod now. A pod that is gone stays gone: what tells of it is late.
func (o *Owners) Saw(p Pod, now time.Time) {
	l := o.pods[p.UID]
	if l != nil && l.gone {
		return
	}
	for uid, other := range o.pods {
		if uid == p.UID || other.gone || other.Namespace != p.Namespace || other.Name != p.Name {
			continue
		}
		switch {
		case other.journaled || other.Created.Before(p.Created):
			o.Gone(uid, now) // its name was given away
		case p.Created.Before(other.Created): // a late word of the one before
			o.Gone(p.UID, now)
			return
		}
	}
	if l == nil {
		l = &life{addresses: map[netip.Addr]*holding{}, second: map[netip.Addr]bool{}}
		o.pods[p.UID] = l
	}
	l.see(p, now)
	o.changed = true
}

// see compares what the pod has with what it had: the rows of the table in the design, "Kernel state".
func (l *life) see(p Pod, now time.Time) {
	lived := l.UID != "" && !l.ended()
	l.Pod, l.journaled = p, false
	switch {
	case p.HostNetwork:
		clear(l.addresses)
	case p.ended():
		for i, a := range p.Addresses {
			if lived && l.addresses[a] == nil { // a short life may show its address for the first time when it has ended
				l.have(a, i == 0, now)
			}
		}
		for a, h := range l.addresses {
			l.lose(a, PodFinished, now, now)
			if lived {
				h.anew()
			}
		}
	case p.silent():
	default:
		for a := range l.addresses {
			if !slices.Contains(p.Addresses, a) {
				l.lose(a, AddressLost, now, now)
			}
		}
		for i, a := range p.Addresses {
			l.have(a, i == 0, now)
		}
	}
}

// have takes in that the address stands in the pod's status.
func (l *life) have(a netip.Addr, first bool, now time.Time) {
	h := l.addresses[a]
	if h == nil {
		h = &holding{}
		l.addresses[a] = h
	}
	l.second[a] = l.second[a] || !first
	h.first = !l.second[a]
	switch {
	case !l.lostSandbox():
		h.lost = nil
	case h.lost == nil || h.lost.Reason != SandboxLost || h.lost.First != h.first:
		h.lost = &Release{Pod: l.PodRef, Address: a, First: h.first, Reason: SandboxLost, Since: now, NotBefore: now}
	}
}

// lose makes a release of an address, unless that it is lost for good was known before.
func (l *life) lose(a netip.Addr, why Reason, now, notBefore time.Time) {
	h := l.addresses[a]
	if h.lost == nil || h.lost.Reason == SandboxLost {
		h.lost = &Release{Pod: l.PodRef, Address: a, First: h.first, Reason: why, Since: now, NotBefore: notBefore}
	}
}

// anew makes the loss one to be looked at anew: what the pod kept while it lived it keeps no longer.
func (h *holding) anew() {
	r := *h.lost // another one: who has this one goes on with it
	h.lost = &r
}

// Gone takes in that the API server no longer has the pod of that UID. Unless its containers were seen ended they may run on for a while: a pod
// can be deleted by force.
func (o *Owners) Gone(uid string, now time.Time) {
	l := o.pods[uid]
	if l == nil || l.gone {
		return
	}
	l.gone = true
	notBefore := now
	if !l.Stopped && !l.ended() {
		notBefore = now.Add(l.GracePeriod + killTime)
	}
	for a, h := range l.addresses {
		l.lose(a, PodGone, now, notBefore)
		h.anew()
		if notBefore.After(now) && h.lost.NotBefore.Before(notBefore) { // that its status did not show the address may have been for a moment only
			h.lost.NotBefore = notBefore
		}
	}
	o.changed = true
}

// Synced takes in that all pods of the node have been seen: those of which only the journal tells are gone.
func (o *Owners) Synced(now time.Time) {
	for uid, l := range o.pods {
		if l.journaled {
			o.Gone(uid, now)
		}
	}
}

// Done ends a release: no table has the address any more, or it is another's. One whose pod may have the address back stays, so that it is not
// taken for a new one: it ends when the pod says more.
func (o *Owners) Done(r *Release) {
	l := o.pods[r.Pod.UID]
	if r.Reason == SandboxLost || l == nil || l.addresses[r.Address] == nil || l.addresses[r.Address].lost != r {
		return
	}
	delete(l.addresses, r.Address)
	o.changed = true
}

// Forget drops what is not needed: pods that are gone and have left nothing, and the oldest releases where there are too many. It returns these.
func (o *Owners) Forget() []*Release {
	var given []*Release
	if releases := o.Releases(); len(releases) > maxReleases {
		given = releases[:len(releases)-maxReleases]
	}
	for _, r := range given {
		delete(o.pods[r.Pod.UID].addresses, r.Address)
		o.changed = true
	}
	maps.DeleteFunc(o.pods, func(_ string, l *life) bool { return l.gone && len(l.addresses) == 0 })
	return given
}

// Releases are all addresses that pods have lost, in the order in which that was seen.
func (o *Owners) Releases() []*Release {
	var releases []*Release
	for _, l := range o.pods {
		for _, h := range l.addresses {
			if h.lost != nil {
				releases = append(releases, h.lost)
			}
		}
	}
	slices.SortFunc(releases, func(a, b *Release) int {
		if c := a.Since.Compare(b.Since); c != 0 {
			return c
		}
		if c := a.Address.Compare(b.Address); c != 0 {
			return c
		}
		return strings.Compare(a.Pod.UID, b.Pod.UID)
	})
	return releases
}

// Present are the pods that there are, by what was seen last. One that shows no address for a moment has those that it had.
func (o *Owners) Present() []Pod {
	var pods []Pod
	for _, uid := range slices.Sorted(maps.Keys(o.pods)) {
		l := o.pods[uid]
		if l.gone || l.journaled {
			continue
		}
		p := l.Pod
		if p.silent() {
			p.Addresses = nil
			for a, h := range l.addresses {
				if h.lost == nil {
					p.Addresses = append(p.Addresses, a)
				}
			}
		}
		pods = append(pods, p)
	}
	return pods
}

// Relevant tells whether an update of a pod can change who has which address. Most cannot: they are about probes, counts and times. One that
// shows no address counts only for a pod that runs, ends or has ended: before that it has none to lose.
func Relevant(before, after Pod) bool {
	switch {
	case before.UID != after.UID:
		return true
	case after.HostNetwork:
		return false
	case after.silent() && len(before.Addresses) == 0:
		return !slices.Equal(before.Annotated, after.Annotated)
	}
	return before.Phase != after.Phase || before.Terminating != after.Terminating || before.SandboxLost != after.SandboxLost ||
		before.Stopped != after.Stopped || before.GracePeriod != after.GracePeriod ||
		!before.Started.Equal(after.Started) || !slices.Equal(before.Addresses, after.Addresses) || !slices.Equal(before.Annotated, after.Annotated)
}
