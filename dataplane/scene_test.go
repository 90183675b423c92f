package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A fakeCluster is an API server. What it has need not be what the Scrubber was told.
type fakeCluster struct {
	mu              sync.Mutex
	here, elsewhere map[string]Pod // by UID
	err             error
	errWith         map[netip.Addr]error
	questions       []string
	answered        func(question string) // what happens right after an answer
}

func (c *fakeCluster) ask(question string, pods map[string]Pod, which func(*Pod) bool) ([]Pod, error) {
	c.mu.Lock()
	c.questions = append(c.questions, question)
	err, answered := c.err, c.answered
	var found []Pod
	for _, uid := range slices.Sorted(maps.Keys(pods)) {
		if p := pods[uid]; which(&p) {
			found = append(found, p)
		}
	}
	c.mu.Unlock()
	if answered != nil {
		answered(question)
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

func (c *fakeCluster) NodePods(context.Context) ([]Pod, error) {
	return c.ask("node", c.here, func(*Pod) bool { return true })
}

func (c *fakeCluster) PodsWith(_ context.Context, a netip.Addr) ([]Pod, error) {
	c.mu.Lock()
	err, all := c.errWith[a], maps.Clone(c.here)
	maps.Copy(all, c.elsewhere)
	c.mu.Unlock()
	pods, also := c.ask(a.String(), all, func(p *Pod) bool { return len(p.Addresses) > 0 && p.Addresses[0] == a })
	return pods, errors.Join(err, also)
}

// A fakeRuntime is a container runtime.
type fakeRuntime struct {
	mu        sync.Mutex
	sandboxes []Sandbox
	err       error
	asked     int
}

func (r *fakeRuntime) Sandboxes(context.Context) ([]Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asked++; r.err != nil {
		return nil, r.err
	}
	return slices.Clone(r.sandboxes), nil
}

// has sets which sandboxes there are besides that of Z, as "A 10.0.0.1", or "A ended 10.0.0.1" of one whose network is still there.
func (r *fakeRuntime) has(sandboxes ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sandboxes = []Sandbox{{Pod: PodRef{"ns", "z", "Z"}, Ready: true}}
	for _, text := range sandboxes {
		words := strings.Fields(text)
		s := Sandbox{Pod: PodRef{"ns", strings.ToLower(words[0]), words[0]}, Ready: true}
		for _, w := range words[1:] {
			if w == "ended" {
				s.Ready = false
				continue
			}
			s.Addresses = append(s.Addresses, addr(w))
		}
		r.sandboxes = append(r.sandboxes, s)
	}
}

func (r *fakeRuntime) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// A scene is a Scrubber at work on tables in memory, with an API server and a node of its own, in a bubble with a clock of its own.
type scene struct {
	*testing.T
	*Scrubber
	dir     string
	api     *fakeCluster
	tables  map[string]*memTable
	targets []Target
	grace   time.Duration
	limit   int
	runtime *fakeRuntime // nil: none is asked
	logs    *observer.ObservedLogs
	stop    context.CancelFunc
	ended   chan struct{}

	mu       sync.Mutex
	host     HostState
	hostErr  error
	told     [][]TargetReport // a list for each pass
	passedAt []time.Duration  // since the scene began
	recorder Recorder
	begun    time.Time
}

// onScene plays a test. targets are as "t", "t cluster", "t scrub" (when a sandbox is lost), "t report"; none: "t".
func onScene(t *testing.T, targets string, do func(*scene)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, dir, targets)
		s.start()
		s.Synced()
		s.configure()
		synctest.Wait() // the first look is over: nobody reads what the test sets now
		do(s)
		s.end()
	})
}

func newScene(t *testing.T, dir, targets string) *scene {
	s := &scene{
		T: t, dir: dir, grace: 10 * time.Second, limit: 64, tables: map[string]*memTable{}, begun: time.Now(),
		api:      &fakeCluster{here: map[string]Pod{}, elsewhere: map[string]Pod{}, errWith: map[netip.Addr]error{}},
		host:     HostState{Addresses: map[netip.Addr]string{addr("192.168.0.1"): "eth0"}, Interfaces: map[uint32]bool{1: true, 2: true}},
		recorder: func() (func() error, error) { return func() error { return nil }, nil },
	}
	if targets == "" {
		targets = "t"
	}
	for _, line := range strings.Split(targets, ",") {
		words := strings.Fields(line)
		table := newMemTable(t, words[0])
		target := Target{Name: words[0], Table: table, Scope: ScopeNode, Enforce: true}
		for _, w := range words[1:] {
			switch w {
			case "cluster":
				target.Scope = ScopeCluster
			case "scrub":
				target.ScrubOnLoss = true
			case "report":
				target.Enforce = false
			default:
				t.Fatalf("what is a target %s?", w)
			}
		}
		s.tables[words[0]], s.targets = table, append(s.targets, target)
	}
	return s
}

// start starts an agent on what the one before left.
func (s *scene) start() {
	s.Helper()
	core, logs := observer.New(zap.InfoLevel)
	s.logs = logs
	scrubber, err := NewScrubber(Options{
		Cluster: s.api, Journal: JournalDir(s.dir), Boot: "boot", Log: zap.New(core), Now: time.Now,
		Host: func() (HostState, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return HostState{maps.Clone(s.host.Addresses), maps.Clone(s.host.Interfaces)}, s.hostErr
		},
		Recorded: func() (func() error, error) {
			s.mu.Lock()
			recorder := s.recorder
			s.mu.Unlock()
			return recorder()
		},
		Told: func(reports []TargetReport, _ time.Duration) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.told, s.passedAt = append(s.told, reports), append(s.passedAt, time.Since(s.begun))
		},
	})
	if err != nil {
		s.Fatal(err)
	}
	s.Scrubber = scrubber
	ctx, stop := context.WithCancel(context.Background())
	s.stop, s.ended = stop, make(chan struct{})
	go func() {
		defer close(s.ended)
		if err := scrubber.Run(ctx); err != nil {
			s.Error(err)
		}
	}()
}

func (s *scene) configure() {
	if s.runtime == nil {
		s.Configure(s.targets, s.grace, s.limit, nil)
		return
	}
	s.Configure(s.targets, s.grace, s.limit, s.runtime)
}

// end stops the agent.
func (s *scene) end() {
	s.Helper()
	s.stop()
	synctest.Wait()
	select {
	case <-s.ended:
	default:
		s.Error("Run does not end")
	}
}

// wait lets time pass. What the test has set before, without a lock, a pass that begins then sees.
func (s *scene) wait(d time.Duration) {
	if s.Scrubber != nil {
		s.Releases() // takes the lock that a pass takes too
	}
	time.Sleep(d)
	synctest.Wait()
}

// inAPI gives the API server pods, in the words of podOfWords, of which the Scrubber is not told.
func (s *scene) inAPI(pods ...string) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	for _, p := range pods {
		words := strings.Fields(p)
		s.api.here[words[0]] = podOfWords(words[0], words[1:])
	}
}

// see gives the API server pods, and tells the Scrubber of them.
func (s *scene) see(pods ...string) {
	s.inAPI(pods...)
	for _, p := range pods {
		words := strings.Fields(p)
		s.Saw(podOfWords(words[0], words[1:]))
	}
}

// outOfAPI takes pods away, of which the Scrubber is not told.
func (s *scene) outOfAPI(uids ...string) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	for _, uid := range uids {
		delete(s.api.here, uid)
	}
}

// gone takes pods away, and tells the Scrubber of it.
func (s *scene) gone(uids ...string) {
	s.outOfAPI(uids...)
	for _, uid := range uids {
		s.Gone(uid)
	}
}

// there gives the API server a pod of another node.
func (s *scene) there(pod string) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	words := strings.Fields(pod)
	s.api.elsewhere[words[0]] = podOfWords(words[0], words[1:])
}

// fail makes the API server fail; nil: no longer.
func (s *scene) fail(err error) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	s.api.err = err
}

// onAnswer sets what happens right after an answer of the API server.
func (s *scene) onAnswer(do func(question string)) {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	s.api.answered = do
}

// asked are the questions since the last call.
func (s *scene) asked() string {
	s.api.mu.Lock()
	defer s.api.mu.Unlock()
	all := strings.Join(s.api.questions, " ")
	s.api.questions = nil
	return all
}

func (s *scene) setHost(change func(*HostState), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.host)
	s.hostErr = err
}

func (s *scene) record(r Recorder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorder = r
}

// passes are when passes ended since the last call.
func (s *scene) passes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var at []string
	for _, p := range s.passedAt {
		at = append(at, p.String())
	}
	s.passedAt = nil
	return strings.Join(at, " ")
}

// holds checks what a table has.
func (s *scene) holds(table, texts string) {
	s.Helper()
	if got := s.tables[table].texts(); got != texts {
		s.Errorf("after %s table %s has [%s], want [%s]", time.Since(s.begun), table, got, texts)
	}
}

// last is what the last pass said of an entry.
func (s *scene) last(target, text string) (Finding, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.told) > 0 {
		for _, report := range s.told[len(s.told)-1] {
			for _, f := range report.Findings {
				if report.Target == target && f.Text == text {
					return f, true
				}
			}
		}
	}
	return Finding{}, false
}

// said checks what the last pass said of an entry: its verdict, reason, and whether it was removed. An empty one: nothing.
func (s *scene) said(target, text, want string) Finding {
	s.Helper()
	f, found := s.last(target, text)
	got := ""
	if found {
		got = string(f.Verdict) + " " + string(f.Reason)
		if f.Removed {
			got += ", removed"
		}
	}
	if got != want {
		s.Errorf("after %s of %s in %s was said %q (%s), want %q", time.Since(s.begun), text, target, got, f.Message, want)
	}
	return f
}

// state checks how the last pass found a target.
func (s *scene) state(target string, want TableState, words string) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, report := range s.told[len(s.told)-1] {
		if report.Target == target && (report.State != want || !strings.Contains(report.Message, words)) {
			s.Errorf("%s is %s: %q, want %s: %q", target, report.State, report.Message, want, words)
		}
	}
}

// lost checks which releases there are, as "A 10.0.0.1".
func (s *scene) lost(want string) {
	s.Helper()
	var got []string
	for _, r := range s.Releases() {
		got = append(got, fmt.Sprint(r.Pod.UID, " ", r.Address))
	}
	if strings.Join(got, ", ") != want {
		s.Errorf("after %s lost are [%s], want [%s]", time.Since(s.begun), strings.Join(got, ", "), want)
	}
}

// removals are the entries of which was logged that they go.
func (s *scene) removals() string {
	var texts []string
	for _, e := range s.logs.FilterMessage("removing").All() {
		texts = append(texts, fmt.Sprint(e.ContextMap()["target"], " ", e.ContextMap()["entry"]))
	}
	return strings.Join(texts, ", ")
}
