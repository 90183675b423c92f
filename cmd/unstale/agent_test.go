package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

func TestAgentUsage(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\n")
	for _, test := range []struct {
		args  []string
		words string
	}{
		{[]string{"--node", "n"}, "--config FILE"},
		{[]string{"--config", config}, "NODE_NAME"},
		{[]string{"--config", config, "--node", "n", "--role", "king"}, "it must be agent or pruner"},
		{[]string{"--config", config, "--node", "n", "--log-format", "song"}, "it must be console or json"},
		{[]string{"--config", config, "--node", "Not_a_node", "--kubeconfig", apiserver.Shared(t).Kubeconfig}, "cannot be a Node's name"},
		{[]string{"--config", "/no/such/file", "--node", "n", "--kubeconfig", apiserver.Shared(t).Kubeconfig}, "/no/such/file"},
	} {
		runProgram(t, append([]string{"agent"}, test.args...)...).want(t, exitUsage, test.words)
	}
}

// An agent without a gossip key does not start, and says what to do, whether or not the API server answers.
func TestAgentWithoutAKey(t *testing.T) {
	proxy := apiserver.Shared(t).Proxy(t)
	proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true}))
	for _, test := range []struct{ keyFile, words string }{
		{"", "unstale keygen"},
		{", keyFile: /no/such/keys", "read the gossip keys: open /no/such/keys"},
		{", keyFile: " + writeFile(t, "not a key\n"), "read the gossip keys"},
		{", keyFile: " + writeFile(t, ""), "no key in it; unstale keygen makes one"},
	} {
		config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\ngossip: {bindAddress: 127.0.90.1"+test.keyFile+"}\n"+
			"http: {debugAddress: \"\", metricsAddress: \"\"}\n")
		runProgram(t, "agent", "--config", config, "--node", "n", "--kubeconfig", proxy.Kubeconfig(t)).want(t, exitUsage, test.words)
	}
	if n := len(proxy.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
}

// agentCommand runs an agent of a new node behind the proxy.
func agentCommand(t *testing.T, ip string, proxy *apiserver.Proxy) *exec.Cmd {
	t.Helper()
	node := apiserver.Unique("node")
	apiserver.Shared(t).CreateNodes(t, node)
	key := filepath.Join(t.TempDir(), "gossip.key")
	if err := os.WriteFile(key, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\ngossip: {bindAddress: "+ip+", keyFile: "+key+"}\n"+
		"http: {debugAddress: \"\", metricsAddress: \"\"}\n")
	return command(t, "agent", "--config", config, "--node", node, "--kubeconfig", proxy.Kubeconfig(t), "--log-format", "console")
}

// startAgent starts an agent, and returns when it works. wait waits for its end.
func startAgent(t *testing.T, ip string, proxy *apiserver.Proxy) (cmd *exec.Cmd, log *watched, wait func()) {
	t.Helper()
	cmd = agentCommand(t, ip, proxy)
	log = &watched{lines: map[string]chan struct{}{}}
	cmd.Stderr = log
	applied := log.line("configuration applied")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		cmd.Wait()
		close(ended)
	}()
	select {
	case <-applied:
	case <-ended:
		t.Fatalf("it ended; it said\n%s", log.String())
	}
	return cmd, log, func() { <-ended }
}

// SIGTERM stops an agent in good order, with status 0; where it cannot clear its key, with 4.
func TestAgentStops(t *testing.T) {
	for name, test := range map[string]struct {
		fault *apiserver.Fault
		code  int
	}{
		"all cleared": {nil, exitDone},
		"a key left":  {&apiserver.Fault{Hang: true}, exitKeysLeft},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := apiserver.Shared(t).Proxy(t)
			cmd, log, wait := startAgent(t, "127.0.90.2", proxy)
			if test.fault != nil {
				proxy.SetFault(apiserver.OnEach(test.fault))
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			wait()
			if got := cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("exit status %d, want %d; it said\n%s", got, test.code, log.String())
			}
		})
	}
}

// A second signal ends an agent at once that waits for an API server which does not answer.
func TestAgentStopsAtOnce(t *testing.T) {
	proxy := apiserver.Shared(t).Proxy(t)
	cmd, log, wait := startAgent(t, "127.0.90.3", proxy)
	waits := make(chan struct{}, 100)
	proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true, Before: func(*http.Request) { waits <- struct{}{} }}))
	stopping := log.line("a second signal ends it at once")
	begun := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-stopping
	<-waits // it clears its key, for which it has 10 seconds
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wait()
	if got, want := cmd.ProcessState.ExitCode(), exitSignal+int(syscall.SIGTERM); got != want {
		t.Errorf("exit status %d, want %d; it said\n%s", got, want, log.String())
	}
	if took := time.Since(begun); took >= status.ClearTimeout {
		t.Errorf("it took %s", took)
	}
}

// watched is a log that tells when it has a line.
type watched struct {
	mu    sync.Mutex
	text  bytes.Buffer             // guarded by mu
	lines map[string]chan struct{} // waited for, by a part of them; guarded by mu
}

// line returns what is closed when the log has a line with this part.
func (w *watched) line(part string) <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := make(chan struct{})
	w.lines[part] = seen
	w.tell()
	return seen
}

func (w *watched) tell() {
	for part, seen := range w.lines {
		if strings.Contains(w.text.String(), part) {
			close(seen)
			delete(w.lines, part)
		}
	}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, err := w.text.Write(p)
	w.tell()
	return n, err
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// An agent that cannot start says why before anything else about its end, and its log stays JSON to the last line.
func TestAgentThatCannotStart(t *testing.T) {
	proxy := apiserver.Shared(t).Proxy(t)
	cmd, _, wait := startAgent(t, "127.0.90.4", proxy)
	second := agentCommand(t, "127.0.90.4", proxy)
	second.Args = append(second.Args, "--log-format", "json")
	var out bytes.Buffer
	second.Stderr = &out
	second.Run()
	if got := second.ProcessState.ExitCode(); got != exitFailed {
		t.Errorf("exit status %d, want %d", got, exitFailed)
	}
	var why []string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var record struct{ Level, Msg, Error string }
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("no JSON: %s", line)
		}
		switch {
		case record.Level == "error":
			why = append(why, record.Error)
		case strings.HasPrefix(record.Msg, "stopping") && len(why) == 0:
			t.Errorf("it says %q before it says why", record.Msg)
		}
	}
	if len(why) != 1 || !strings.Contains(why[0], "the port is in use") {
		t.Errorf("the causes it told are %q", why)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	wait()
}
