package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/node"
)

// A replay plays what a real kubelet reported, and what a real container runtime had, to the agent. Its tables are written by somebody who writes an entry
// whenever a sandbox gets an address, and never removes one.
type replay struct {
	*testing.T
	scrubber *dataplane.Scrubber
	handler  podHandler
	begun    time.Time
	tables   []*replayTable

	mu        sync.Mutex
	pods      map[string]*watchedPod // by name, as the API server has them; guarded by mu
	sandboxes []dataplane.Sandbox    // guarded by mu
	story     []string               // guarded by mu
	wrong     int                    // removals of an address that a sandbox had; guarded by mu
}

// A replayTable is a small model of a kernel's table: one entry for each address.
type replayTable struct {
	*replay
	name    string
	entries map[netip.Addr]string // whose each is: a UID; guarded by mu
	told    map[netip.Addr]string // what was decided last
}

func (r *replay) say(format string, args ...any) {
	r.story = append(r.story, fmt.Sprintf("%7.1fs  ", time.Since(r.begun).Seconds())+fmt.Sprintf(format, args...))
}

// NodePods and PodsWith make it the API server.
func (r *replay) NodePods(context.Context) ([]dataplane.Pod, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pods := []dataplane.Pod{agentsPod}
	for _, w := range r.pods {
		pods = append(pods, w.pod)
	}
	return pods, nil
}

func (r *replay) PodsWith(ctx context.Context, a netip.Addr) ([]dataplane.Pod, error) {
	pods, err := r.NodePods(ctx)
	return slices.DeleteFunc(pods, func(p dataplane.Pod) bool { return len(p.Addresses) == 0 || p.Addresses[0] != a }), err
}

// Sandboxes makes it the container runtime.
func (r *replay) Sandboxes(context.Context) ([]dataplane.Sandbox, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(slices.Clone(r.sandboxes), dataplane.Sandbox{Pod: agentsPod.PodRef, Ready: true}), nil
}

// agentsPod is the agent's own, which always runs on the node.
var agentsPod = dataplane.Pod{PodRef: dataplane.PodRef{Namespace: "unstale", Name: "agent", UID: "agent"}, Phase: dataplane.PodRunning, HostNetwork: true}

func (t *replayTable) Read(_ context.Context, wanted *dataplane.Addresses, found func(dataplane.Entry)) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range slices.SortedFunc(maps.Keys(t.entries), netip.Addr.Compare) {
		if wanted == nil || wanted.Has(a) {
			found(dataplane.Entry{Table: t.name, Address: a, Text: a.String(), Key: a.AsSlice(), Value: []byte(t.entries[a])})
		}
	}
	return nil
}

func (t *replayTable) Remove(_ context.Context, entries []dataplane.Entry) []dataplane.Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	outcomes := make([]dataplane.Outcome, len(entries))
	for i, e := range entries {
		switch owner, is := t.entries[e.Address]; {
		case !is:
			outcomes[i].Result = dataplane.AlreadyGone
		case owner != string(e.Value):
			outcomes[i].Result = dataplane.WasChanged
		default:
			outcomes[i].Result = dataplane.Removed
			delete(t.entries, e.Address)
			if slices.ContainsFunc(t.sandboxes, func(s dataplane.Sandbox) bool { return s.Ready && slices.Contains(s.Addresses, e.Address) }) {
				t.wrong++
				t.say("%s: %s IS REMOVED WHILE A SANDBOX HAS IT", t.name, e.Text)
			}
		}
	}
	return outcomes
}

func (t *replayTable) Restore(_ context.Context, entries []dataplane.Entry) error {
	t.Errorf("put back: %v", entries)
	return nil
}

// heard writes down what was decided, where that is new.
func (r *replay) heard(reports []dataplane.TargetReport, _ time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, report := range reports {
		for _, f := range report.Findings {
			text := fmt.Sprint(f.Verdict, " ", f.Reason)
			if f.Removed {
				text += ", removed"
			}
			if r.tables[i].told[f.Address] != text {
				r.tables[i].told[f.Address] = text
				r.say("%s: %s %s", report.Target, f.Text, text)
			}
		}
	}
}

// play does what happened at one moment.
func (r *replay) play(m node.Moment) {
	r.mu.Lock()
	switch {
	case m.Did != "":
		r.say("-- %s", m.Did)
	case m.Sandboxes != nil:
		r.haveSandboxes(*m.Sandboxes)
	case m.Pod != nil:
		object, err := trimPod(m.Pod)
		if err != nil {
			r.Fatal(err)
		}
		now := object.(*watchedPod)
		before := r.pods[now.Name]
		text := fmt.Sprint(m.Event, " ", now.Name, " ", now.pod.Phase, " ", now.pod.Addresses)
		for i, is := range []bool{now.pod.HostNetwork, now.pod.Terminating, now.pod.SandboxLost, now.pod.Stopped} {
			if is {
				text += []string{" hostNetwork", " terminating", " sandbox lost", " stopped"}[i]
			}
		}
		r.say("%s", text)
		if m.Event == "DELETED" {
			delete(r.pods, now.Name)
			r.mu.Unlock()
			r.handler.gone(now)
			return
		}
		r.pods[now.Name] = now
		r.mu.Unlock()
		r.handler.saw(before, now)
		return
	}
	r.mu.Unlock()
}

// haveSandboxes takes in what the runtime has; the tables' writer sees it at once. The caller has the lock.
func (r *replay) haveSandboxes(now []node.Sandbox) {
	had := map[netip.Addr]string{}
	for _, s := range r.sandboxes {
		for _, a := range s.Addresses {
			had[a] = s.Pod.UID
		}
	}
	r.sandboxes = nil
	var texts []string
	for _, s := range now {
		sandbox := dataplane.Sandbox{Pod: dataplane.PodRef{Namespace: s.Namespace, Name: s.Name, UID: s.UID}, Ready: s.Ready}
		for _, text := range s.Addresses {
			a := netip.MustParseAddr(text)
			sandbox.Addresses = append(sandbox.Addresses, a)
			if had[a] != s.UID {
				for _, t := range r.tables {
					t.entries[a] = s.UID
				}
			}
		}
		r.sandboxes = append(r.sandboxes, sandbox)
		text := fmt.Sprint(s.Name, " ", sandbox.Addresses)
		if !s.Ready {
			text += " has ended"
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	r.say("sandboxes: %s", strings.Join(texts, ", "))
}

// replayed plays a recording, lets five minutes pass, and returns what happened, how many entries were removed whose address a sandbox had, and how many
// are left though none has it.
func replayed(t *testing.T, history []node.Moment, asksRuntime bool) (story string, wrong, left int) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		r := &replay{T: t, pods: map[string]*watchedPod{}, begun: time.Now()}
		var targets []dataplane.Target
		for _, target := range []dataplane.Target{{Name: "table"}, {Name: "scrub", ScrubOnLoss: true}} {
			table := &replayTable{replay: r, name: target.Name, entries: map[netip.Addr]string{}, told: map[netip.Addr]string{}}
			target.Table, target.Scope, target.Enforce = table, dataplane.ScopeNode, true
			r.tables, targets = append(r.tables, table), append(targets, target)
		}
		var err error
		r.scrubber, err = dataplane.NewScrubber(dataplane.Options{
			Cluster: r, Host: func() (dataplane.HostState, error) { return dataplane.HostState{}, nil }, Journal: dataplane.JournalDir(dir), Boot: "boot",
			Told: r.heard, Log: zap.NewNop(), Now: time.Now,
		})
		if err != nil {
			t.Fatal(err)
		}
		r.handler = (&kernel{metrics: newMetrics("test")}).handler(r.scrubber)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.scrubber.Run(ctx) }) // always nil
		r.scrubber.Synced()
		var runtime dataplane.Runtime
		if asksRuntime {
			runtime = r
		}
		r.scrubber.Configure(targets, 10*time.Second, 64, runtime)
		for _, m := range history {
			time.Sleep(time.Until(r.begun.Add(m.At)))
			synctest.Wait()
			r.play(m)
			synctest.Wait()
		}
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		stop()
		running.Wait()
		for _, table := range r.tables {
			for _, a := range slices.SortedFunc(maps.Keys(table.entries), netip.Addr.Compare) {
				r.say("%s: %s is left", table.name, a)
				if !slices.ContainsFunc(r.sandboxes, func(s dataplane.Sandbox) bool { return slices.Contains(s.Addresses, a) }) {
					left++
				}
			}
		}
		story, wrong = strings.Join(r.story, "\n")+"\n", r.wrong
	})
	return story, wrong, left
}

// What a real kubelet reports while sandboxes die, the network fails and pods are deleted in every way (recorded by test/record) is understood: an entry
// stays while a sandbox has its address, and goes when none has. The stories are in testdata/kubelet; -update writes them.
func TestKubeletHistories(t *testing.T) {
	files, err := filepath.Glob("testdata/kubelet/*.jsonl")
	if err != nil || len(files) < 14 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			history, err := node.ReadHistory(f)
			if err != nil {
				t.Fatal(err)
			}
			var stories string
			for _, asksRuntime := range []bool{false, true} {
				story, wrong, left := replayed(t, history, asksRuntime)
				// While a kubelet is down longer than a pod's grace period and 30 s, only the runtime knows that a pod deleted by force still runs.
				blind := !asksRuntime && strings.Contains(file, "deleted-by-force-while-the-kubelet-is-down")
				if (wrong > 0) != blind || left > 0 {
					t.Errorf("with the runtime asked %v: %d entries were removed while a sandbox had their address, %d are left:\n%s", asksRuntime, wrong, left, story)
				}
				stories += fmt.Sprintf("# the container runtime is asked: %v\n%s\n", asksRuntime, story)
			}
			compareFile(t, strings.TrimSuffix(file, ".jsonl")+".txt", stories)
		})
	}
}
