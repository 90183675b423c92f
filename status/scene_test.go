package status

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/unstale/unstale/test/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m)) }

// A scene is one shared resource on a real API server, behind a proxy that counts requests and can fail them, and a sweeper for
// it whose clock the test sets.
type scene struct {
	*testing.T
	server   *apiserver.Server
	proxy    *apiserver.Proxy
	target   Target
	name     string // of the resource
	nodes    *Nodes
	sweeper  *Sweeper
	logs     *observer.ObservedLogs
	clock    sync.Mutex
	now      time.Time // guarded by clock where other goroutines run
	onWait   func()    // runs when the sweeper waits between two batches
	existing []string
}

// newScene makes n Nodes, and a resource with the given status in which KEEP0, KEEP1… stand for the Nodes' names.
func newScene(t *testing.T, n int, text string, at ...KeyPath) *scene {
	t.Helper()
	s := &scene{T: t, server: apiserver.Shared(t), name: "default", now: noon}
	crd := apiserver.CRD{Group: apiserver.Unique("scene") + ".example.com"}
	s.server.Install(t, crd.YAML())
	s.target = Target{
		Name: "scene", Resource: crd.GVR(), Namespace: s.server.Namespace(t), Paths: at, UnknownKeys: RemoveUnknown, Mode: Enforce,
		Grace: time.Minute, MaxRemovals: 50,
	}
	for range n {
		s.existing = append(s.existing, apiserver.Unique("node"))
	}
	slices.Sort(s.existing) // as findings are: node-10 comes before node-9
	s.server.CreateNodes(t, s.existing...)
	s.create(text)
	s.proxy = s.server.Proxy(t)
	s.restart()
	return s
}

// create makes the resource.
func (s *scene) create(text string) {
	s.Helper()
	text = regexp.MustCompile(`KEEP\d+`).ReplaceAllStringFunc(text, func(keep string) string {
		i, _ := strconv.Atoi(keep[len("KEEP"):])
		return s.existing[i]
	})
	gvr := s.target.Resource
	s.server.Apply(s, s.target.Namespace, fmt.Sprintf("apiVersion: %s/%s\nkind: Widget\nmetadata: {name: %s}\nstatus: %s\n", gvr.Group, gvr.Version, s.name, text))
}

// restart makes a new sweeper that knows nothing, as a new process does.
func (s *scene) restart() {
	s.Helper()
	client, err := NewClient(s.proxy.Config(), "unstale-test")
	if err != nil {
		s.Fatal(err)
	}
	client.wait = func(ctx context.Context, _ time.Duration) error { return ctx.Err() } // its requests run in parallel: no clock here
	core, logs := observer.New(zapcore.InfoLevel)
	s.nodes, s.logs = NewNodes(client), logs
	s.sweeper = NewSweeper(s.target, client, s.nodes, zap.New(core))
	s.sweeper.Now = func() time.Time {
		s.clock.Lock()
		defer s.clock.Unlock()
		return s.now
	}
	s.nodes.Now = s.sweeper.Now
	s.sweeper.Wait = func(ctx context.Context, d time.Duration) error {
		s.now = s.now.Add(d)
		if s.onWait != nil {
			s.onWait()
		}
		return ctx.Err()
	}
	if err := s.nodes.List(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// tick moves the clock, from any goroutine.
func (s *scene) tick(d time.Duration) {
	s.clock.Lock()
	defer s.clock.Unlock()
	s.now = s.now.Add(d)
}

// sweep looks, lets the grace pass, and sweeps; between runs in between.
func (s *scene) sweep(between ...func()) TargetReport {
	s.Helper()
	s.sweeper.Look(s.Context())
	s.now = s.now.Add(s.target.Grace)
	for _, f := range between {
		f()
	}
	return s.sweeper.Sweep(s.Context())
}

// left is the JSON at the target's first path as it is on the server.
func (s *scene) left() string {
	s.Helper()
	return s.leftAt(s.target.Paths[0])
}

func (s *scene) leftAt(at KeyPath) string {
	s.Helper()
	var value any = s.server.Get(s, s.target.Resource, s.target.Namespace, s.name).Object
	for _, step := range at.Path {
		fields, _ := value.(map[string]any)
		value = fields[step]
	}
	text, err := json.Marshal(value)
	if err != nil {
		s.Fatal(err)
	}
	out := regexp.MustCompile(`node-\d+`).ReplaceAllStringFunc(string(text), func(name string) string {
		return fmt.Sprintf("KEEP%d", slices.Index(s.existing, name))
	})
	// Once more through JSON, so that the keys are in order as they are called here.
	d := json.NewDecoder(strings.NewReader(out))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		s.Fatal(err)
	}
	if text, err = json.Marshal(value); err != nil {
		s.Fatal(err)
	}
	return string(text)
}

// merge sends a merge patch to the resource's status.
func (s *scene) merge(patch string) {
	s.Helper()
	s.server.PatchStatus(s, s.target.Resource, s.target.Namespace, s.name, patch)
}

// verdicts are the findings as "key=Verdict/Reason", in order.
func (s *scene) verdicts(report TargetReport) string {
	var all []string
	for _, r := range report.Resources {
		for _, f := range r.Findings {
			key := f.Key
			if i := slices.Index(s.existing, f.Key); i >= 0 {
				key = fmt.Sprintf("KEEP%d", i)
			}
			all = append(all, fmt.Sprintf("%s=%s/%s", key, f.Verdict, f.Reason))
		}
	}
	return strings.Join(all, " ")
}

func (s *scene) equal(what, got, want string) {
	s.Helper()
	if got != want {
		s.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

// state checks a report's state and that its message has the words.
func (s *scene) state(report TargetReport, want State, words ...string) {
	s.Helper()
	if report.State != want {
		s.Errorf("state %s (%s), want %s", report.State, report.Message, want)
	}
	for _, w := range words {
		if !strings.Contains(report.Message, w) {
			s.Errorf("the message %q does not say %q", report.Message, w)
		}
	}
}

func nodeNamed(name string) string { return "/api/v1/nodes/" + name }
