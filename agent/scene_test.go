package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/test/apiserver"
)

// A scene is a shared resource on a real API server and agents around it: the real ones, in this process, which gossip over real
// sockets on addresses of their own. Each reaches the API server through a proxy of its own, which counts requests and can fail them.
type scene struct {
	*testing.T
	server    *apiserver.Server
	resource  schema.GroupVersionResource
	namespace string
	keyFile   string
	report    string // the SweepReport
	pods      string // more of the configuration's report
	found     string // more of the configuration's statusKeys
	options   string // more lines of the configuration
	peers     []string
	agents    map[string]*member
	network   network
}

// A member is one agent of a scene.
type member struct {
	scene  *scene
	name   string
	ip     string
	proxy  *apiserver.Proxy
	logs   *observer.ObservedLogs
	file   string // its configuration
	agent  *Agent
	cancel context.CancelFunc
	result chan error // what Run returned; one element
}

// addresses counts the loopback addresses given out, so that no two members of this process share one.
var addresses atomic.Int32

// newScene prepares a scene. Its test runs beside others: scenes share the API server and its Nodes and nothing else.
func newScene(t *testing.T, options ...string) *scene {
	t.Helper()
	t.Parallel()
	s := &scene{T: t, server: apiserver.Shared(t), options: strings.Join(options, "\n"), agents: map[string]*member{}}
	crd := apiserver.CRD{Group: apiserver.Unique("agents") + ".example.com"}
	s.server.Install(t, crd.YAML())
	s.resource, s.namespace = crd.GVR(), s.server.Namespace(t)
	s.keyFile = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(s.keyFile, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// create makes the shared resource with a key for each of the names.
func (s *scene) create(names ...string) {
	s.Helper()
	var keys []string
	for _, name := range names {
		keys = append(keys, fmt.Sprintf("%q: %s", name, entryOf(name)))
	}
	s.server.Apply(s, s.namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: shared}\nstatus: {nodes: {%s}}\n",
		s.resource.Group, strings.Join(keys, ", ")))
}

func entryOf(name string) string {
	return fmt.Sprintf(`{"status": "Success", "by": %q}`, name)
}

// write adds keys as their nodes would.
func (s *scene) write(names ...string) {
	s.Helper()
	for _, name := range names {
		s.server.PatchStatus(s, s.resource, s.namespace, "shared", fmt.Sprintf(`{"status": {"nodes": {%q: %s}}}`, name, entryOf(name)))
	}
}

// keys are the shared resource's keys on the server.
func (s *scene) keys() []string {
	s.Helper()
	object := s.server.Get(s, s.resource, s.namespace, "shared").Object
	status, _ := object["status"].(map[string]any)
	nodes, _ := status["nodes"].(map[string]any)
	return slices.Sorted(maps.Keys(nodes))
}

// await waits until the shared resource has these keys and no others.
func (s *scene) await(what string, names ...string) {
	s.Helper()
	names = slices.Sorted(slices.Values(names)) // not the caller's own
	apiserver.Eventually(s.T, what, func() error {
		if got := s.keys(); !slices.Equal(got, names) {
			return fmt.Errorf("the keys are %v, not %v", got, names)
		}
		return nil
	})
}

// node makes a Node and returns its name.
func (s *scene) node() string {
	s.Helper()
	name := apiserver.Unique("node")
	s.server.CreateNodes(s.T, name)
	return name
}

// member prepares an agent for the node of that name.
func (s *scene) member(name string) *member {
	s.Helper()
	n := addresses.Add(1)
	m := &member{scene: s, name: name, ip: fmt.Sprintf("127.0.%d.%d", 100+n/250, 1+n%250), proxy: s.server.Proxy(s.T)}
	m.file = filepath.Join(s.TempDir(), name+".yaml")
	s.agents[name] = m
	s.peers = append(s.peers, m.ip+":7947")
	return m
}

// config writes the member's configuration. More lines come after the scene's.
func (m *member) config(more ...string) {
	m.scene.Helper()
	peers := make([]string, len(m.scene.peers))
	for i, p := range m.scene.peers {
		peers[i] = fmt.Sprintf("%q", p)
	}
	text := fmt.Sprintf(`apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
gossip: {bindAddress: %s, keyFile: %s, peers: [%s]}
http: {debugAddress: "", metricsAddress: ""}
report: {name: %q%s}
statusKeys:
- name: shared
  resource: {group: %s, version: v1, resource: %s}
  namespace: %s
  names: [shared]
  paths: [{path: status.nodes}]
  unknownKeys: Remove%s
%s
%s
`, m.ip, m.scene.keyFile, strings.Join(peers, ", "), m.scene.report, m.scene.pods, m.scene.resource.Group, m.scene.resource.Resource, m.scene.namespace,
		m.scene.found, m.scene.options, strings.Join(more, "\n"))
	if err := os.WriteFile(m.file, []byte(text), 0o600); err != nil {
		m.scene.Fatal(err)
	}
}

// start starts the agent. It is killed when the test ends, if it runs then.
func (m *member) start(adjust ...func(*Options)) {
	m.scene.Helper()
	if _, err := os.Stat(m.file); err != nil {
		m.config()
	}
	core, logs := observer.New(zapcore.InfoLevel)
	m.logs = logs
	options := Options{
		ConfigFile: m.file, Node: m.name, Role: gossip.Agent, Version: "test", API: m.proxy.Config(), UserAgent: "unstale-" + m.name,
		Log: zap.New(core), reloadEvery: 50 * time.Millisecond,
		gossip: func(c *gossip.Config) {
			c.RejoinInterval, c.RejoinProbability, c.Loses = 2*time.Second, 1, m.scene.network.loses(m.ip)
		},
	}
	for _, f := range adjust {
		f(&options)
	}
	a, err := New(options)
	if err != nil {
		m.scene.Fatal(err)
	}
	m.agent = a
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.result = cancel, make(chan error, 1)
	go func(result chan<- error) {
		pprof.Do(ctx, pprof.Labels("agent", m.name), func(ctx context.Context) { result <- a.Run(ctx) }) // marks all that it starts
	}(m.result)
	m.scene.Cleanup(func() {
		if m.agent == a {
			m.kill()
		}
	})
}

// stop stops the agent as SIGTERM does, and returns what Run did.
func (m *member) stop() error {
	m.scene.Helper()
	m.cancel()
	err := m.wait()
	m.agent = nil
	return err
}

func (m *member) wait() error {
	m.scene.Helper()
	select {
	case err := <-m.result:
		m.result <- err
		return err
	case <-time.After(time.Minute):
		m.scene.Fatalf("%s does not end", m.name)
		return nil
	}
}

// kill ends the agent as SIGKILL does: without a word to anybody, and without another request.
func (m *member) kill() {
	m.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Drop: true}))
	m.proxy.CutConnections()
	if m.agent.cluster != nil {
		m.agent.cluster.Close()
	}
	m.cancel()
	m.wait()
	m.agent = nil
}

// awaitMembers waits until each running agent sees that many members that are able to work.
func (s *scene) awaitMembers(count int) {
	s.Helper()
	for _, m := range s.agents {
		if m.agent == nil {
			continue
		}
		apiserver.Eventually(s.T, m.name+" sees all agents", func() error {
			select {
			case err := <-m.result:
				m.result <- err
				s.Fatalf("%s ended: %v", m.name, err)
			default:
			}
			if len(m.logs.FilterMessage("configuration applied").All()) == 0 {
				return fmt.Errorf("it has not started: %v", m.said())
			}
			if got := len(gossip.Eligible(m.agent.cluster.Members(), gossip.Agent, gossip.Pruner)); got != count {
				return fmt.Errorf("it sees %d, not %d", got, count)
			}
			return nil
		})
	}
}

// owner is the agent that owns the shared resource, by its own word and nobody else's.
func (s *scene) owner() *member { s.Helper(); return s.ownerOf("shared") }

// ownerOf is the agent that owns a target with one owner.
func (s *scene) ownerOf(target string) *member {
	s.Helper()
	var owner *member
	apiserver.Eventually(s.T, "one agent owns "+target, func() error {
		var owners []string
		for _, m := range s.agents {
			if m.agent != nil && m.ownsTarget(target) {
				owner = m
				owners = append(owners, m.name)
			}
		}
		if len(owners) != 1 {
			return fmt.Errorf("the owners are %v", owners)
		}
		return nil
	})
	return owner
}

// owns tells what the agent last logged of the shared resource.
func (m *member) owns() bool { return m.ownsTarget("shared") }

// ownsTarget tells what it last logged of a target with one owner.
func (m *member) ownsTarget(target string) bool {
	owns := false
	for _, e := range m.logs.All() {
		if e.ContextMap()["target"] == target {
			switch e.Message {
			case "owns":
				owns = true
			case "no longer owns":
				owns = false
			}
		}
	}
	return owns
}

// said are the agent's log messages.
func (m *member) said() []string {
	var all []string
	for _, e := range m.logs.All() {
		all = append(all, fmt.Sprintf("%s %s %v", e.Level, e.Message, e.ContextMap()))
	}
	return all
}

// counts are the requests of a class that the agents sent, all together.
func (s *scene) counts(class string) int {
	n := 0
	for _, m := range s.agents {
		n += m.proxy.Counts()[class]
	}
	return n
}

// class names requests to the shared resource.
func (s *scene) class(verb string) string {
	return verb + " " + s.resource.Resource + "." + s.resource.Group
}

func (s *scene) resetCounts() {
	for _, m := range s.agents {
		m.proxy.Reset()
	}
}

// dump shows what the agents said, when the test has failed.
func (s *scene) dump() {
	s.Helper()
	if !s.Failed() {
		return
	}
	for _, m := range s.agents {
		if m.logs != nil {
			s.Logf("%s said:\n%s", m.name, strings.Join(m.said(), "\n"))
		}
	}
}

// A network says which member's packets to which others are lost. The zero value loses none.
type network struct {
	mu    sync.Mutex
	lost  func(from, to string) bool // guarded by mu; by member address
	noUDP bool                       // guarded by mu
}

func (n *network) blockUDP() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noUDP = true
}

func (n *network) set(lost func(from, to string) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = lost
}

func (n *network) loses(from string) func(string, netip.Addr) bool {
	return func(network string, to netip.Addr) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.lost == nil {
			return n.noUDP && network == "udp"
		}
		return n.lost(from, to.String()) || network == "tcp" && n.lost(to.String(), from)
	}
}

// split loses everything between the members of a group and all others.
func (s *scene) split(group ...*member) {
	in := map[string]bool{}
	for _, m := range group {
		in[m.ip] = true
	}
	s.network.set(func(from, to string) bool { return in[from] != in[to] })
}

func (s *scene) heal() { s.network.set(nil) }

// startAll starts a member for each of the names and waits until all see one another.
func (s *scene) startAll(names ...string) []*member {
	s.Helper()
	var members []*member
	for _, name := range names {
		members = append(members, s.member(name))
	}
	for _, m := range members {
		m.start()
	}
	s.awaitMembers(len(s.agents))
	return members
}

// but are the names without one.
func but(names []string, without string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == without })
}

// awaitSweeps waits until the agents, all together, have looked at the shared resource so many more times.
func (s *scene) awaitSweeps(count int) {
	s.Helper()
	before := s.counts(s.class("GET"))
	apiserver.Eventually(s.T, "more sweeps", func() error {
		if got := s.counts(s.class("GET")) - before; got < count {
			return fmt.Errorf("%d of %d", got, count)
		}
		return nil
	})
}
