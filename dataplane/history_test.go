package dataplane

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"
)

var histories = flag.Int("histories", 1000, "how many random histories TestHistories plays (its seed is -rapid.seed)")

// An op is one thing that happens in a history. Its numbers say to what and how; what they mean depends on what there is then.
type op struct {
	kind                string
	pod, addr, table, n int
}

// GoString is how rapid prints it.
func (o op) GoString() string {
	if o.kind == nothing {
		return nothing
	}
	return fmt.Sprintf("\n\t%s pod=%d addr=%d table=%d n=%d", o.kind, o.pod, o.addr, o.table, o.n)
}

// opKinds has each kind as often as it is to be drawn, in relation to the others.
func opKinds(weights map[string]int) (kinds []string) {
	for _, kind := range slices.Sorted(maps.Keys(weights)) {
		kinds = append(kinds, slices.Repeat([]string{kind}, weights[kind])...)
	}
	return kinds
}

// nothing is what the steps of a history become that a failure does not need: the first of the kinds.
const nothing = "-"

var (
	kinds = opKinds(map[string]int{
		nothing: 1, "wait": 30, "run": 16, "pend": 2, "empty": 6, "back": 3, "sandbox": 5, "finish": 3, "delete": 10, "recreate": 3, "annotate": 1, "there": 3,
		"host": 1, "interface": 2, "write": 6, "kill": 1, "start": 3, "api": 2, "lag": 2, "table": 1, "mode": 1, "recorder": 1, "during": 8, "cri": 1, "stop": 3,
	})
	// duringKinds are what happens in the middle of a pass.
	duringKinds = opKinds(map[string]int{
		"run": 6, "empty": 2, "back": 2, "sandbox": 2, "finish": 1, "delete": 3, "recreate": 2, "flash": 3, "annotate": 1, "there": 3, "host": 1, "write": 3, "api": 1, "slow": 2, "stop": 2,
	})
	moments = []string{"read", "asked", "remove", "removed"}
	waits   = []time.Duration{0, 1, 5, 9, 10, 11, 20, 30, 45, 61, 100, 310}
	v4s     = []netip.Addr{addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.3")}
	v6s     = []netip.Addr{addr("fd00::1"), addr("fd00::2"), addr("fd00::3")}
)

func drawOp(kinds []string) *rapid.Generator[op] {
	return rapid.Custom(func(t *rapid.T) op {
		return op{
			kind: rapid.SampledFrom(kinds).Draw(t, "kind"), pod: rapid.IntRange(0, 3).Draw(t, "pod"), addr: rapid.IntRange(0, len(v4s)-1).Draw(t, "addr"),
			table: rapid.IntRange(0, 2).Draw(t, "table"), n: rapid.IntRange(0, 63).Draw(t, "n"),
		}
	})
}

// A history plays ops on a node: its pods as the API server has them, its tables and their writers, and the agent, which the model watches.
type history struct {
	*rapid.T
	truth
	dir     string
	story   []string // what happened, for people
	targets []Target
	tables  []*historyTable
	withIf  []bool // the table's entries name interfaces
	limit   int
	armed   map[string][]op
	uids    int
	links   uint32
	last    map[string][]netip.Addr // the addresses that a pod had last
	link    map[string]uint32       // a pod's interface

	apiDown, lagging, noRecord bool
	agent                      *Scrubber // nil: down
	passing                    bool
	removing                   bool           // the pass is between a removal and the question after it
	store                      map[string]Pod // what the agent's watch has told, by name
	late                       []func()       // what it has not told yet
	model                      *model
	boot                       int
	journal                    []byte // as it was saved last
	memory                     map[string]memory

	claimed   map[netip.Addr]map[string]time.Time // when a pod had the address last, by its status or by what was told
	doubted   map[netip.Addr]map[string]time.Time // the same, while its sandbox was lost
	elseTaken map[netip.Addr]time.Time            // when another node's pod had it last
	noLink    map[uint32]time.Time                // since when an interface is gone
	scrubbed  map[netip.Addr]time.Time            // when an entry was removed last
	troubled  bool                                // something failed at some time
	passes    int
	stats     *historyStats
}

type historyStats struct{ removed, putBack, planned, stayed, passes, early int }

// A historyTable asks the model about each removal.
type historyTable struct {
	*memTable
	h     *history
	index int
	added map[string]time.Time // when its writer wrote the entry last
	wrong map[string]string    // entries that must not be missing after the pass, and why
}

const historyGrace = 10 * time.Second

func (t *historyTable) put(e Entry) {
	t.add(e)
	t.added[e.Text] = t.h.now
	t.h.say("table %s gets %s, interface %d", t.name, e.Text, e.Interface)
}

func (t *historyTable) Remove(ctx context.Context, entries []Entry) []Outcome {
	outcomes := t.memTable.Remove(ctx, entries)
	for i, e := range entries {
		if outcomes[i].Result != Removed {
			continue
		}
		t.h.say("table %s: %s is removed", t.name, e.Text)
		t.h.stats.removed++
		for _, s := range t.h.model.standings(e.Address, historyGrace) {
			if t.h.now.Before(s.until) {
				t.h.stats.early++
			}
		}
		if why := t.h.model.permitted(&t.h.targets[t.index], e, t.h.truth, historyGrace); why != "" {
			t.wrong[e.Text] = why
		} else {
			t.h.scrubbed[e.Address] = t.h.now
		}
	}
	return outcomes
}

func (t *historyTable) Restore(ctx context.Context, entries []Entry) error {
	for _, e := range entries {
		t.h.say("table %s: %s is put back", t.name, e.Text)
		t.h.stats.putBack++
	}
	return t.memTable.Restore(ctx, entries)
}

// TestHistories plays random histories of pods, tables and agents. At every moment no entry may be missing that the model does not permit to go, and
// when all has settled none may be left that the model says must go.
func TestHistories(t *testing.T) {
	setFlag(t, "rapid.checks", fmt.Sprint(*histories))
	setFlag(t, "rapid.nofailfile", "true")
	if flag.Lookup("rapid.seed").Value.String() == "0" { // each run plays the same ones, unless another seed is given
		setFlag(t, "rapid.seed", "1")
	}
	stats := &historyStats{}
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		h := newHistory(rt, dir, stats)
		for _, o := range rapid.SliceOfN(drawOp(kinds), 60, 100).Draw(rt, "history") {
			h.play(o)
		}
		h.settle()
	})
	t.Logf("%+v", *stats)
	if stats.removed < *histories/2 || stats.putBack < *histories/100 || stats.planned < *histories/50 || stats.stayed < *histories || stats.early < *histories/50 {
		t.Errorf("the histories have little in them: %+v", *stats)
	}
}

// setFlag sets a flag of another package for a test.
func setFlag(t *testing.T, name, value string) {
	before := flag.Lookup(name).Value.String()
	check(t, flag.Set(name, value))
	t.Cleanup(func() { check(t, flag.Set(name, before)) })
}

func newHistory(rt *rapid.T, dir string, stats *historyStats) *history {
	h := &history{
		T: rt, dir: dir, stats: stats, armed: map[string][]op{}, last: map[string][]netip.Addr{}, link: map[string]uint32{}, store: map[string]Pod{}, model: newModel(),
		claimed: map[netip.Addr]map[string]time.Time{}, doubted: map[netip.Addr]map[string]time.Time{}, elseTaken: map[netip.Addr]time.Time{},
		noLink: map[uint32]time.Time{}, scrubbed: map[netip.Addr]time.Time{}, links: 10,
		truth: truth{
			now: noon, here: map[string]Pod{}, elsewhere: map[string]Pod{}, asksCRI: rapid.Bool().Draw(rt, "cri"), sandboxes: map[string]Sandbox{},
			host: HostState{Addresses: map[netip.Addr]string{addr("192.168.0.1"): "eth0"}, Interfaces: map[uint32]bool{1: true}},
		},
		limit: rapid.IntRange(1, 4).Draw(rt, "limit"),
	}
	// Some pod runs all the time, as the agent's own, and shows that the runtime is this node's.
	z := Pod{PodRef: PodRef{"ns", "z", "z0"}, Phase: PodRunning, HostNetwork: true}
	h.here[z.UID], h.sandboxes[z.UID] = z, Sandbox{Pod: z.PodRef}
	for i := range rapid.IntRange(1, 3).Draw(rt, "tables") {
		bits := rapid.IntRange(0, 31).Draw(rt, fmt.Sprint("table ", i))
		target := Target{Name: fmt.Sprint("t", i), Scope: ScopeNode, ScrubOnLoss: bits&2 != 0, Enforce: bits>>3 != 3}
		if bits&1 != 0 {
			target.Scope = ScopeCluster
		}
		table := &historyTable{memTable: newMemTable(rt, target.Name), h: h, index: i, added: map[string]time.Time{}, wrong: map[string]string{}}
		table.networks["10.0.0.0/24"] = true
		table.reading = func(context.Context) error { h.during("read"); return nil }
		table.memTable.removing = func(context.Context) error { h.during("remove"); return nil }
		table.removed = func(context.Context) error { h.during("removed"); h.removing = true; return nil }
		target.Table = table
		h.tables, h.targets, h.withIf = append(h.tables, table), append(h.targets, target), append(h.withIf, bits&4 != 0)
		h.say("table %s: scope %s, scrub on loss %v, enforce %v, with interfaces %v", target.Name, target.Scope, target.ScrubOnLoss, target.Enforce, bits&4 != 0)
	}
	h.start(0)
	return h
}

func (h *history) say(format string, args ...any) {
	at := fmt.Sprintf("%6.0fs ", h.now.Sub(noon).Seconds())
	if h.passing {
		at += "  (in a pass) "
	}
	h.story = append(h.story, at+fmt.Sprintf(format, args...))
}

func (h *history) fail(format string, args ...any) {
	h.Helper()
	h.Fatalf("%s\n\n%s\n\n%s", fmt.Sprintf(format, args...), strings.Join(h.story, "\n"), h.tablesText())
}

func (h *history) tablesText() string {
	var b strings.Builder
	for _, t := range h.tables {
		b.WriteString(t.String())
	}
	return b.String()
}

// during plays what is to happen at that moment of a pass.
func (h *history) during(moment string) {
	ops := h.armed[moment]
	h.armed[moment] = nil
	for _, o := range ops {
		h.play(o)
	}
}

// NodePods and PodsWith make it the API server.
func (h *history) NodePods(context.Context) ([]Pod, error) {
	pods := slices.Collect(maps.Values(h.here))
	down := h.apiDown
	if !h.removing { // what happens after the last question nobody can know
		h.during("asked")
	}
	h.removing = false
	if down {
		return nil, errors.New("the API server does not answer")
	}
	return pods, nil
}

func (h *history) PodsWith(_ context.Context, a netip.Addr) ([]Pod, error) {
	if h.apiDown {
		return nil, errors.New("the API server does not answer")
	}
	var found []Pod
	for _, pods := range []map[string]Pod{h.here, h.elsewhere} {
		for _, p := range pods {
			if len(p.Addresses) > 0 && p.Addresses[0] == a {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// Sandboxes makes it the container runtime.
func (h *history) Sandboxes(context.Context) ([]Sandbox, error) {
	if h.criDown {
		return nil, errors.New("the container runtime does not answer")
	}
	return slices.Collect(maps.Values(h.sandboxes)), nil
}

// runtime is what the agent asks, if it does.
func (h *history) runtime() Runtime {
	if h.asksCRI {
		return h
	}
	return nil
}

func (h *history) Host() (HostState, error) {
	return HostState{maps.Clone(h.host.Addresses), maps.Clone(h.host.Interfaces)}, nil
}

// note writes down who has which address now.
func (h *history) note() {
	put := func(m map[netip.Addr]map[string]time.Time, a netip.Addr, uid string) {
		if m[a] == nil {
			m[a] = map[string]time.Time{}
		}
		m[a][uid] = h.now
	}
	for _, a := range slices.Concat(v4s, v6s) {
		for uid, p := range h.here {
			if p.has(a) && p.lostSandbox() {
				put(h.doubted, a, uid)
			} else if p.has(a) {
				put(h.claimed, a, uid)
			}
		}
		for uid, s := range h.model.standings(a, historyGrace) {
			if s.kind == "has" {
				put(h.claimed, a, uid)
			}
		}
		for _, p := range slices.AppendSeq(slices.Collect(maps.Values(h.elsewhere)), maps.Values(h.here)) {
			if (p.HostNetwork || h.here[p.UID].UID == "") && !p.ended() && len(p.Addresses) > 0 && p.Addresses[0] == a {
				h.elseTaken[a] = h.now
			}
		}
		for uid, s := range h.sandboxes {
			if h.asksCRI && slices.Contains(s.Addresses, a) {
				put(h.claimed, a, "the sandbox of "+uid)
			}
		}
		if _, has := h.host.Addresses[a]; has {
			put(h.claimed, a, "the node")
		}
	}
}

// tell tells the agent, now or late, or not at all.
func (h *history) tell(do func()) {
	switch {
	case h.agent == nil || h.apiDown:
	case h.lagging:
		h.late = append(h.late, do)
	default:
		do()
	}
}

// put gives the API server a pod.
func (h *history) put(p Pod) {
	p.Addresses, p.Annotated = slices.Clone(p.Addresses), slices.Clone(p.Annotated)
	h.here[p.UID] = p
	h.say("pod %s (%s) is %s", p.Name, p.UID, podText(p))
	h.tell(func() { h.watched(p) })
	h.note()
}

func podText(p Pod) string {
	text := fmt.Sprint(p.Phase, " ", p.Addresses)
	for i, is := range []bool{p.HostNetwork, p.Terminating, p.SandboxLost, p.Stopped} {
		if is {
			text += []string{" hostNetwork", " terminating", " sandbox lost", " stopped"}[i]
		}
	}
	if len(p.Annotated) > 0 {
		text += fmt.Sprint(" annotated ", p.Annotated)
	}
	return text
}

// take takes a pod out of the API server.
func (h *history) take(p Pod) {
	delete(h.here, p.UID)
	h.say("pod %s (%s) is gone", p.Name, p.UID)
	h.tell(func() { h.unwatched(p.Name) })
	h.note()
}

// watched is what an agent does when its watch has a pod: as the agent's podHandler.
func (h *history) watched(p Pod) {
	before, known := h.store[p.Name]
	h.store[p.Name] = p
	if known && !Relevant(before, p) {
		h.model.saw(p, h.now)
		return
	}
	if known && before.UID != p.UID {
		h.agent.Gone(before.UID)
		h.model.gone(before.UID, h.now)
	}
	h.agent.Saw(p)
	h.model.saw(p, h.now)
}

func (h *history) unwatched(name string) {
	if p, known := h.store[name]; known {
		delete(h.store, name)
		h.agent.Gone(p.UID)
		h.model.gone(p.UID, h.now)
	}
}

// relist is what a watch does that begins anew.
func (h *history) relist() {
	there := map[string]bool{}
	for _, uid := range slices.Sorted(maps.Keys(h.here)) {
		there[h.here[uid].Name] = true
		h.watched(h.here[uid])
	}
	for _, name := range slices.Sorted(maps.Keys(h.store)) {
		if !there[name] {
			h.unwatched(name)
		}
	}
}

// start starts an agent; how says what became of the journal.
func (h *history) start(how int) {
	file := filepath.Join(h.dir, journalName)
	switch how {
	case 1:
		h.say("the journal is lost")
		h.journal, h.memory = nil, nil
	case 2:
		if len(h.journal) > 0 {
			h.say("the journal is damaged")
			h.journal[len(h.journal)/2] ^= 1
			h.memory = nil
		}
	case 3:
		h.say("the node starts anew")
		h.boot++
		h.memory = nil
		for _, t := range h.tables {
			for text := range t.added {
				t.remove(text)
			}
		}
	}
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		h.Fatal(err)
	}
	if h.journal != nil {
		if err := os.WriteFile(file, h.journal, 0o600); err != nil {
			h.Fatal(err)
		}
	}
	agent, err := NewScrubber(Options{
		Cluster: h, Host: h.Host, Journal: JournalDir(h.dir), Boot: fmt.Sprint("boot", h.boot), Log: zap.NewNop(), Now: func() time.Time { return h.now },
		Recorded: func() (func() error, error) {
			if h.noRecord {
				return nil, errors.New("no log")
			}
			return func() error { return nil }, nil
		},
		Told: func([]TargetReport, time.Duration) {},
	})
	if err != nil {
		h.fail("start the agent: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		h.journal = nil // set aside
	}
	h.say("an agent starts")
	h.agent, h.model, h.store = agent, recall(h.memory), map[string]Pod{}
	h.configure()
	if !h.apiDown {
		h.sync()
	}
}

// sync is the first list of a watch.
func (h *history) sync() {
	h.relist()
	h.agent.Synced()
	h.model.synced(h.now)
	h.say("it has seen all pods")
	h.note()
}

func (h *history) kill() {
	h.say("the agent is killed")
	h.agent, h.late, h.lagging = nil, nil, false
}

func (h *history) configure() {
	if h.agent != nil {
		h.agent.Configure(h.targets, historyGrace, h.limit, h.runtime())
	}
}

// save is what happens whenever a moment passes.
func (h *history) save() {
	if h.agent != nil && h.agent.synced {
		if h.agent.owners.Changed() {
			h.journal = formatJournal(h.agent.owners.Journal(h.agent.Boot))
		}
		h.memory = h.model.remember(h.now, historyGrace, h.asksCRI)
	}
}

// wait lets time pass, with the passes that are due.
func (h *history) wait(d time.Duration) {
	end := h.now.Add(d)
	h.save()
	for h.agent != nil {
		at, any := h.agent.next()
		if !any || at.After(end) {
			break
		}
		if at.After(h.now) {
			h.now = at
			h.note()
		}
		h.pass()
		end = later(end, h.now) // tables may take their time
	}
	h.note()
	h.now = end
	h.note()
	h.save()
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (h *history) pass() {
	before := h.now
	h.passing, h.removing = true, false
	h.agent.pass(context.Background())
	h.passing = false
	h.passes++
	h.stats.passes++
	if limit := 50 + int(h.now.Sub(noon)/time.Second); h.passes > limit {
		h.fail("%d passes in %s", h.passes, h.now.Sub(noon))
	}
	if at, any := h.agent.next(); any && !at.After(before) {
		h.fail("after a pass the next one is due at once")
	}
	for _, t := range h.tables {
		for text, why := range t.wrong {
			if !t.has(text) {
				h.fail("%s was removed from %s, though %s", text, t.name, why)
			}
		}
		clear(t.wrong)
	}
}

// pod is the node's pod of that number, if there is one.
func (h *history) pod(n int) (Pod, bool) {
	for _, p := range h.here {
		if p.Name == podName(n) {
			return p, true
		}
	}
	return Pod{}, false
}

func podName(n int) string { return string(rune('a' + n)) }

func (h *history) create(o op) Pod {
	h.uids++
	return Pod{
		PodRef:  PodRef{"ns", podName(o.pod), fmt.Sprint(podName(o.pod), h.uids)},
		Created: h.now.Truncate(time.Second), HostNetwork: o.n%16 == 15, Phase: PodPending, GracePeriod: time.Duration(o.n%3) * 30 * time.Second,
	}
}

// write adds the entries of a pod's addresses to the tables that the op says.
func (h *history) write(p Pod, o op) {
	for i, t := range h.tables {
		if o.n>>i&1 != 0 {
			for _, a := range p.Addresses {
				e := entryOf(t.name, a.String())
				if h.withIf[i] {
					e.Interface = h.link[p.UID]
				}
				t.put(e)
			}
		}
	}
}

// sandbox gives a pod a sandbox with its addresses.
func (h *history) sandbox(p Pod) {
	s := Sandbox{Pod: p.PodRef}
	if !p.HostNetwork {
		s.Addresses = slices.Clone(p.Addresses)
	}
	h.sandboxes[p.UID] = s
	h.say("the sandbox of %s has %s", p.UID, s.Addresses)
}

// unlink takes a pod's sandbox away, with its interface.
func (h *history) unlink(uid string) {
	if h.sandboxes[uid].Pod.UID != "" {
		delete(h.sandboxes, uid)
		h.say("the sandbox of %s is gone", uid)
	}
	if link := h.link[uid]; link != 0 && h.host.Interfaces[link] {
		delete(h.host.Interfaces, link)
		h.noLink[link] = h.now
		h.say("interface %d of %s is gone", link, uid)
	}
}

func (h *history) play(o op) {
	p, is := h.pod(o.pod)
	alive := is && !p.ended() && !p.HostNetwork
	switch o.kind {
	case "wait":
		h.wait(waits[o.n%len(waits)] * time.Second)
	case "slow": // a table takes its time
		h.note()
		h.now = h.now.Add(2 * time.Second)
		h.note()
	case "run":
		if !is {
			p = h.create(o)
		} else if !alive {
			return
		}
		p.Phase, p.SandboxLost = PodRunning, false
		p.Addresses = v4s[o.addr : o.addr+1 : o.addr+1]
		if o.n&8 != 0 {
			p.Addresses = append(p.Addresses, v6s[o.addr])
		}
		if h.link[p.UID] == 0 || o.n&16 != 0 {
			h.unlink(p.UID)
			h.links++
			h.link[p.UID], h.host.Interfaces[h.links] = h.links, true
		}
		h.sandbox(p)
		if o.n&32 != 0 {
			h.write(p, o) // before the API server knows
			h.put(p)
		} else {
			h.put(p)
			h.write(p, o)
		}
	case "pend":
		if !is {
			h.put(h.create(o))
		} else if alive {
			h.last[p.UID] = p.Addresses
			p.Phase, p.Addresses = PodPending, nil
			h.put(p)
		}
	case "empty":
		if alive && len(p.Addresses) > 0 {
			h.last[p.UID] = p.Addresses
			switch {
			case o.n%3 == 0 && len(p.Addresses) > 1:
				p.Addresses = p.Addresses[:1]
			case o.n%3 == 1 && len(p.Addresses) > 1:
				p.Addresses = p.Addresses[1:]
			default:
				p.Addresses = nil
			}
			h.put(p)
		}
	case "back":
		if alive && len(h.last[p.UID]) > 0 {
			p.Phase, p.Addresses = PodRunning, h.last[p.UID]
			h.put(p)
		}
	case "sandbox":
		if !alive || p.Phase != PodRunning {
			return
		}
		if p.SandboxLost = !p.SandboxLost; p.SandboxLost && o.n&1 != 0 {
			h.unlink(p.UID)
		}
		if !p.SandboxLost && o.n&2 != 0 {
			p.Addresses = v4s[o.addr : o.addr+1]
		}
		if !p.SandboxLost {
			h.sandbox(p)
		}
		h.put(p)
	case "finish":
		if is {
			p.Phase = []Phase{PodSucceeded, PodFailed}[o.n&1]
			if o.n&2 != 0 {
				p.Addresses = nil
			}
			if p.Stopped = o.n&4 != 0; p.Stopped {
				h.unlink(p.UID)
			}
			h.put(p)
		}
	case "delete":
		if !is {
			return
		}
		if o.n%4 < 3 {
			p.Terminating = true
			if p.Stopped = o.n%4 > 0; p.Stopped {
				h.unlink(p.UID)
			}
			h.put(p)
		}
		if o.n%4 >= 2 {
			h.take(p)
		}
	case "recreate":
		if is {
			h.take(p)
		}
		h.play(op{"run", o.pod, o.addr, o.table, o.n})
	case "flash": // a pod comes and is deleted by force
		if !is {
			h.play(op{"run", o.pod, o.addr, o.table, o.n})
			h.play(op{"delete", o.pod, 0, 0, 3})
		}
	case "annotate":
		if is {
			if p.Annotated = nil; o.n&1 != 0 {
				p.Annotated = v4s[o.addr : o.addr+1]
			}
			h.put(p)
		}
	case "there":
		uid := "x" + podName(o.pod)
		if delete(h.elsewhere, uid); o.n%4 != 0 {
			x := Pod{PodRef: PodRef{"ns", uid, uid}, Phase: PodRunning, Addresses: []netip.Addr{v4s[o.addr], v6s[o.addr]}, HostNetwork: o.n%16 == 15}
			if o.n%4 == 3 {
				x.Phase = PodSucceeded
			}
			h.elsewhere[uid] = x
			h.say("pod %s of another node is %s", uid, podText(x))
		} else {
			h.say("pod %s of another node is gone", uid)
		}
	case "host":
		if _, has := h.host.Addresses[v4s[o.addr]]; has {
			delete(h.host.Addresses, v4s[o.addr])
			h.say("the node no longer has %s", v4s[o.addr])
		} else if o.n&1 != 0 {
			h.host.Addresses[v4s[o.addr]] = "eth1"
			h.say("the node has %s", v4s[o.addr])
		}
	case "interface":
		if is {
			h.unlink(p.UID)
		}
	case "write":
		h.writer(o)
	case "cri":
		h.criDown, h.troubled = !h.criDown, true
		h.say("the container runtime is down: %v", h.criDown)
	case "stop": // the runtime ends what is left of a pod
		for _, uid := range slices.Sorted(maps.Keys(h.sandboxes)) {
			if p, is := h.here[uid]; !is || p.ended() {
				h.unlink(uid)
				break
			}
		}
	case "kill":
		if h.agent != nil && !h.passing {
			h.kill()
		}
	case "start":
		if h.passing {
			return
		}
		if h.agent != nil && o.n&32 != 0 {
			h.save() // an orderly stop
		}
		if h.agent != nil {
			h.kill()
		}
		h.start(o.n % 8)
	case "api":
		h.apiDown = !h.apiDown
		h.troubled = true
		h.say("the API server is down: %v", h.apiDown)
		if !h.apiDown && h.agent != nil {
			h.catchUp()
		}
	case "lag":
		if h.lagging = !h.lagging && h.agent != nil; !h.lagging && h.agent != nil && !h.apiDown {
			h.catchUp()
		}
		h.say("the news are late: %v", h.lagging)
	case "table":
		t := h.tables[o.table%len(h.tables)]
		h.troubled = true
		err := &TableError{[]TableState{StateForbidden, StateUnavailable, StateInvalid}[o.n%3], "on fire"}
		t.setReadErr(nil)
		t.reading = func(context.Context) error { h.during("read"); return nil }
		switch o.n >> 2 % 3 {
		case 0:
			h.say("table %s works", t.name)
		case 1:
			t.setReadErr(err)
			h.say("table %s is %s after what was read", t.name, err.State)
		case 2:
			t.reading = func(context.Context) error { h.during("read"); return err }
			h.say("table %s is %s", t.name, err.State)
		}
	case "mode":
		target := &h.targets[o.table%len(h.targets)]
		if o.n&1 != 0 {
			target.Enforce = !target.Enforce
		} else {
			target.ScrubOnLoss = !target.ScrubOnLoss
		}
		h.targets = slices.Clone(h.targets)
		h.say("table %s: enforce %v, scrub on loss %v", target.Name, target.Enforce, target.ScrubOnLoss)
		h.configure()
	case "recorder":
		h.noRecord, h.troubled = !h.noRecord, true
		h.say("what is removed cannot be logged: %v", h.noRecord)
	case "during":
		inner := op{duringKinds[(o.n*4+o.pod)%len(duringKinds)], o.pod, o.addr, o.table, o.n}
		moment := moments[(o.n+o.table)%len(moments)]
		h.armed[moment] = append(h.armed[moment], inner)
		h.say("when a pass is at %q: %s pod=%d addr=%d n=%d", moment, inner.kind, o.pod, o.addr, o.n)
	}
	h.note()
}

// catchUp tells all that was not told.
func (h *history) catchUp() {
	for _, do := range h.late {
		do()
	}
	h.late = nil
	if h.agent.synced {
		h.relist()
	} else {
		h.sync()
	}
}

// writer is what a table's writer does late, early, or for reasons of its own.
func (h *history) writer(o op) {
	t := h.tables[o.table%len(h.tables)]
	a := v4s[o.addr]
	if o.n&8 != 0 {
		a = v6s[o.addr]
	}
	e := entryOf(t.name, a.String())
	if h.withIf[t.index] && h.links > 10 {
		e.Interface = 11 + uint32(o.n)%(h.links-10)
	}
	switch o.n % 8 {
	case 0, 1, 2:
		t.put(e)
	case 3, 4:
		e.Text += ",tcp:80"
		t.put(e)
	case 5:
		e.Text, e.Protected = e.Text+",tcp:53", "it is the node's"
		t.put(e)
	case 6:
		t.change(e.Text)
		t.added[e.Text] = h.now
		h.say("table %s: %s is another", t.name, e.Text)
	case 7:
		t.remove(e.Text)
		h.say("table %s: its writer removes %s", t.name, e.Text)
	}
}

// settle mends what is broken, lets everything come to rest, and compares what is left with what the model says.
func (h *history) settle() {
	clear(h.armed)
	h.noRecord, h.criDown = false, false
	for range h.sandboxes {
		h.play(op{kind: "stop"})
	}
	for _, t := range h.tables {
		t.setReadErr(nil)
		t.reading = nil
	}
	if h.apiDown {
		h.play(op{kind: "api"})
	}
	if h.lagging {
		h.play(op{kind: "lag"})
	}
	var planned []TargetReport
	if rapid.Bool().Draw(h.T, "planned") { // what an agent does that starts now is what a plan says
		if h.agent != nil {
			h.save()
			h.kill()
		}
		h.start(0)
		planned = h.plan()
	}
	if h.agent == nil {
		h.start(0)
	}
	h.say("from now on nothing happens")
	h.wait(3 * time.Hour)
	h.checkPlan(planned)
	for i, t := range h.tables {
		if !strings.HasSuffix(t.String(), t.name+" 10.0.0.0/24 (a network)\n") {
			h.fail("a network is missing")
		}
		for _, text := range strings.Fields(t.texts()) {
			h.stats.stayed++
			e := t.entries[text]
			if why := h.mustGo(&h.targets[i], t, e); why != "" && h.model.permitted(&h.targets[i], e, h.truth, historyGrace) == "" {
				h.fail("%s is left in %s, though %s", text, t.name, why)
			}
		}
	}
	h.checkAgent()
}

// plan is what the command says at this moment.
func (h *history) plan() []TargetReport {
	var journal Journal
	if h.journal != nil {
		journal = must(parseJournal(h.journal))
	}
	if journal.Boot != h.agent.Boot {
		journal = Journal{}
	}
	here := slices.Collect(maps.Values(h.here))
	pods := &Snapshot{Node: here, All: slices.AppendSeq(here, maps.Values(h.elsewhere)), Runtime: h.runtime()}
	before := h.tablesText()
	planned := Plan(context.Background(), h.targets, journal, pods, h.Host, historyGrace, h.now)
	if after := h.tablesText(); after != before {
		h.fail("the plan changed the tables")
	}
	for _, report := range planned {
		for _, f := range report.Findings {
			h.say("plan: %s in %s: %s %s", f.Text, report.Target, f.Verdict, f.Reason)
		}
	}
	return planned
}

// checkPlan checks that what a plan said is what has happened.
func (h *history) checkPlan(planned []TargetReport) {
	for i, report := range planned {
		for _, f := range report.Findings {
			goes := f.Verdict == Remove && h.targets[i].Enforce
			if goes {
				h.stats.planned++
			}
			if goes == h.tables[i].has(f.Text) {
				h.fail("of %s in %s the plan said %s %s (%s)", f.Text, report.Target, f.Verdict, f.Reason, f.Message)
			}
		}
	}
}

// mustGo says why an entry that may go must be gone by now. It says nothing where the loss may have been done with before the entry came, or while
// somebody else had the address.
func (h *history) mustGo(target *Target, t *historyTable, e Entry) string {
	standings := h.model.standings(e.Address, historyGrace)
	for _, s := range standings {
		if target.Scope == ScopeCluster && !s.first {
			return "" // the API server could not be asked
		}
		if s.vague {
			return "" // the agent may take it for had
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(standings)) {
		s := standings[uid]
		if !s.certain || s.kind == "has" {
			continue
		}
		ready := s.ready(historyGrace, h.asksCRI)
		scrubbed := h.scrubbed[e.Address]
		inTime := t.added[e.Text].Before(ready) || (!h.troubled && !scrubbed.Before(s.since) && t.added[e.Text].Before(scrubbed.Add(historyGrace)))
		free := target.Scope == ScopeNode || !h.elseTaken[e.Address].After(s.since)
		for other, at := range h.claimed[e.Address] {
			free = free && (!at.After(s.since) || (other == uid && s.kind == "doubt" && !at.After(s.since)) || other == "the sandbox of "+uid)
		}
		for other, at := range h.doubted[e.Address] {
			free = free && (!at.After(s.since) || (other == uid && s.kind == "doubt"))
		}
		gone, isGone := h.noLink[e.Interface]
		_, byNode := h.claimed[e.Address]["the node"]
		if inTime && (free || (isGone && gone.Before(ready) && !byNode)) {
			return fmt.Sprintf("pod %s has it in %q since %s", uid, s.kind, s.since.Sub(noon))
		}
	}
	return ""
}

// checkAgent checks that the agent knows what there is, and keeps nothing for ever.
func (h *history) checkAgent() {
	var present, here []string
	for _, p := range h.agent.owners.Present() {
		present = append(present, p.UID)
	}
	here = slices.Sorted(maps.Keys(h.here))
	if !slices.Equal(present, here) {
		h.fail("the agent knows pods %v, there are %v", present, here)
	}
	for _, r := range h.agent.Releases() {
		left := r.Reason == SandboxLost
		for _, t := range h.tables {
			left = left || slices.ContainsFunc(strings.Fields(t.texts()), func(text string) bool { return entryOf("", text).Address == r.Address })
		}
		if !left {
			h.fail("the loss of %s by %s is not done with, though nothing is left", r.Address, r.Pod.UID)
		}
	}
	if left := len(h.agent.owners.pods); left > len(h.here)+len(h.agent.Releases()) {
		h.fail("the agent remembers %d pods", left)
	}
}
