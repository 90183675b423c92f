package dataplane

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// A model says what the design says ("Kernel state"), slowly: it keeps every word that an agent heard of pods, and reads them all again for each question.
// It knows nothing of releases, agendas and looks.
type model struct {
	pods map[string]*modelPod // by UID
}

// A modelPod is all that was heard of one pod.
type modelPod struct {
	uid    string
	memory memory // what the journal says of it
	words  []word // since then, in order
}

// A word is what the API server had of a pod at a moment, or that it no longer had it.
type word struct {
	at   time.Time
	gone bool
	pod  Pod
}

// memory is what one agent leaves to the next of a pod.
type memory struct {
	grace     time.Duration
	stopped   bool
	addresses map[netip.Addr]remembered
}

type remembered struct {
	first   bool // as in a standing
	maybe   bool
	certain bool // the journal must have it; otherwise it may
}

// A standing is how a pod stands to an address.
type standing struct {
	kind    string    // "": it never had it; has, doubt (the sandbox is lost), lost
	since   time.Time // of doubt and lost: since the agent knows
	until   time.Time // its containers may still run, and have it
	first   bool      // it was never anything but the pod's first address
	maybe   bool      // the same, by what an agent knows that was told as little as possible
	certain bool
	vague   bool // lost before this agent's time, or so it was taken for by the one before
}

// ready is when enough time has passed for its entries to go. Who asks a container runtime need not wait for what it tells.
func (s *standing) ready(grace time.Duration, asksCRI bool) time.Time {
	at := s.since.Add(grace)
	if s.until.After(at) && !asksCRI {
		return s.until
	}
	return at
}

func newModel() *model { return &model{map[string]*modelPod{}} }

func (m *model) pod(uid string) *modelPod {
	if m.pods[uid] == nil {
		m.pods[uid] = &modelPod{uid: uid}
	}
	return m.pods[uid]
}

func (m *model) saw(p Pod, at time.Time)       { m.add(p.UID, word{at: at, pod: p}) }
func (m *model) gone(uid string, at time.Time) { m.add(uid, word{at: at, gone: true}) }

func (m *model) add(uid string, w word) {
	p := m.pod(uid)
	if n := len(p.words); n > 0 && p.words[n-1].gone {
		return // a UID never comes back
	}
	p.words = append(p.words, w)
}

// synced is when all pods that there are were heard of: the others that the journal knows are gone.
func (m *model) synced(at time.Time) {
	for uid, p := range m.pods {
		if len(p.words) == 0 {
			m.gone(uid, at)
		}
	}
}

// standing reads all that was heard of the pod.
func (p *modelPod) standing(a netip.Addr, grace time.Duration) standing {
	var s standing
	if r, has := p.memory.addresses[a]; has {
		s = standing{kind: "has", first: r.first, maybe: r.maybe, certain: true}
		if !r.certain { // whether the journal has it or not: it was lost long ago
			s = standing{kind: "lost", first: r.first, maybe: true, vague: true}
		}
	}
	lose := func(at time.Time) {
		if s.kind == "has" || s.kind == "doubt" {
			s.kind, s.since = "lost", at
		}
	}
	containers, stopped := p.memory.grace, p.memory.stopped
	alive, known := len(p.memory.addresses) > 0, false // seen alive, and certainly so
	for _, r := range p.memory.addresses {
		known = known || r.certain
	}
	for _, w := range p.words {
		saysNothing := len(w.pod.Addresses) == 0 && w.pod.Phase != PodRunning && w.pod.Phase != PodSucceeded && w.pod.Phase != PodFailed && !w.pod.Terminating
		s.vague = s.vague && !w.gone && saysNothing
		position := slices.Index(w.pod.Addresses, a)
		ended := w.pod.Phase == PodSucceeded || w.pod.Phase == PodFailed
		switch {
		case w.gone:
			// An address that was empty for less than the grace may be one that was empty for a moment only.
			flickers := s.kind == "lost" && w.at.Before(s.since.Add(grace))
			if (s.kind == "has" || s.kind == "doubt" || flickers) && !stopped {
				s.until = w.at.Add(containers + 30*time.Second)
			}
			lose(w.at)
		case w.pod.HostNetwork:
		case ended:
			if s.kind == "" && alive && position >= 0 { // it had it, and was never seen with it while it ran
				s = standing{kind: "has", first: position == 0, maybe: position == 0, certain: known}
			}
			lose(w.at)
		case position >= 0:
			was := s
			s = standing{kind: "has", certain: true}
			s.first = position == 0 && (was.kind == "" || was.first)
			s.maybe = position == 0 && (was.kind == "" || was.maybe)
			if w.pod.Phase == PodRunning && w.pod.SandboxLost {
				s.kind, s.since = "doubt", w.at
				if was.kind == "doubt" {
					s.since = was.since
				}
			}
		case saysNothing:
		default:
			lose(w.at)
		}
		if !w.gone {
			containers, stopped, alive = w.pod.GracePeriod, w.pod.Stopped || ended, !ended
			known = alive
		}
	}
	return s
}

// addresses are all that were ever heard of with the pod.
func (p *modelPod) addresses() []netip.Addr {
	all := map[netip.Addr]bool{}
	for a := range p.memory.addresses {
		all[a] = true
	}
	for _, w := range p.words {
		for _, a := range w.pod.Addresses {
			all[a] = true
		}
	}
	return slices.SortedFunc(maps.Keys(all), netip.Addr.Compare)
}

// standings are how all pods stand to the address that ever had it, by UID.
func (m *model) standings(a netip.Addr, grace time.Duration) map[string]standing {
	all := map[string]standing{}
	for uid, p := range m.pods {
		if s := p.standing(a, grace); s.kind != "" {
			all[uid] = s
		}
	}
	return all
}

// remember is what an agent leaves to the next. What is lost long enough may have been scrubbed, and not be in the journal any more.
func (m *model) remember(now time.Time, grace time.Duration, asksCRI bool) map[string]memory {
	all := map[string]memory{}
	for uid, p := range m.pods {
		r := memory{grace: p.memory.grace, stopped: p.memory.stopped, addresses: map[netip.Addr]remembered{}}
		for _, w := range p.words {
			if !w.gone {
				r.grace, r.stopped = w.pod.GracePeriod, w.pod.Stopped
			}
		}
		for _, a := range p.addresses() {
			if s := p.standing(a, grace); s.kind != "" {
				r.addresses[a] = remembered{s.first, s.maybe, s.certain && (s.kind != "lost" || now.Before(s.ready(grace, asksCRI)))}
			}
		}
		if len(r.addresses) > 0 {
			all[uid] = r
		}
	}
	return all
}

// recall is a new agent that knows what the one before left.
func recall(all map[string]memory) *model {
	m := newModel()
	for uid, r := range all {
		m.pod(uid).memory = r
	}
	return m
}

// A truth is what is so, whether the agent knows it or not.
type truth struct {
	now       time.Time
	here      map[string]Pod // of this node, by UID
	elsewhere map[string]Pod
	host      HostState
	asksCRI   bool // the agent has a container runtime
	criDown   bool
	sandboxes map[string]Sandbox // by the pod's UID
}

// permitted says why the entry may not be removed at this moment; empty: it may.
func (m *model) permitted(t *Target, e Entry, w truth, grace time.Duration) string {
	_, isHost := w.host.Addresses[e.Address]
	interfaceGone := e.Interface != 0 && !w.host.Interfaces[e.Interface]
	switch {
	case !t.Enforce:
		return "the table is only reported on"
	case e.Protected != "" || e.Peer:
		return "the entry is protected"
	case isHost:
		return "the node has the address"
	case e.Interface != 0 && !interfaceGone:
		return "the entry's interface exists"
	case w.asksCRI && w.criDown:
		return "the container runtime does not answer"
	}
	taken, losses, askable := "", 0, false
	standings := m.standings(e.Address, grace)
	for _, uid := range slices.Sorted(maps.Keys(standings)) {
		s := standings[uid]
		switch {
		case s.kind == "has":
			taken = "pod " + uid + " was seen with the address"
			continue
		case s.kind == "doubt" && !t.ScrubOnLoss:
			return "the sandbox of pod " + uid + " is lost, and this table is not scrubbed for that"
		case w.now.Before(s.since.Add(grace)):
			return "it is not a grace ago that pod " + uid + " lost the address"
		case w.now.Before(s.until) && !w.asksCRI:
			return "containers of pod " + uid + " may still run"
		case w.now.Before(s.until) && w.sandboxes[uid].Pod.UID != "":
			return "pod " + uid + " still has a sandbox"
		}
		losses++
		askable = askable || s.maybe
	}
	for where, pods := range map[string]map[string]Pod{"here": w.here, "elsewhere": w.elsewhere} {
		for uid, p := range pods {
			inDoubt := standings[uid].kind == "doubt" && p.Phase == PodRunning && p.SandboxLost
			if p.Phase == PodSucceeded || p.Phase == PodFailed || inDoubt {
				continue
			}
			has, claims := slices.Contains(p.Addresses, e.Address), slices.Contains(p.Annotated, e.Address)
			if where == "here" && !p.HostNetwork && (has || claims) {
				taken = "pod " + uid + " has the address"
			}
			if t.Scope == ScopeCluster && has && p.Addresses[0] == e.Address { // also a node's address, by a pod with the node's network
				taken = "pod " + uid + " of the cluster has the address"
			}
		}
	}
	for uid, s := range w.sandboxes {
		if w.asksCRI && slices.Contains(s.Addresses, e.Address) {
			taken = "the sandbox of pod " + uid + " has the address"
		}
	}
	switch {
	case losses == 0:
		return "nobody was seen to lose the address"
	case taken != "" && !interfaceGone:
		return taken
	case taken == "" && t.Scope == ScopeCluster && !askable:
		return "who has the address in the cluster cannot be asked"
	}
	return ""
}
