package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unstale/unstale/gossip"
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

// An agent without a gossip key does not start, and says what to do.
func TestAgentWithoutAKey(t *testing.T) {
	config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\ngossip: {bindAddress: 127.0.90.1}\n"+
		"http: {debugAddress: \"\", metricsAddress: \"\"}\n")
	runProgram(t, "agent", "--config", config, "--node", "n", "--kubeconfig", apiserver.Shared(t).Kubeconfig).want(t, exitFailed, "unstale keygen")
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
			s := apiserver.Shared(t)
			node := apiserver.Unique("node")
			s.CreateNodes(t, node)
			proxy := s.Proxy(t)
			key := filepath.Join(t.TempDir(), "gossip.key")
			if err := os.WriteFile(key, []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\ngossip: {bindAddress: 127.0.90.2, keyFile: "+key+"}\n"+
				"http: {debugAddress: \"\", metricsAddress: \"\"}\n")
			cmd := command(t, "agent", "--config", config, "--node", node, "--kubeconfig", proxy.Kubeconfig(t), "--log-format", "console")
			log := &watched{line: "configuration applied", seen: make(chan struct{})}
			cmd.Stderr = log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-log.seen:
			case <-ended:
				t.Fatalf("it ended; it said\n%s", log.String())
			}
			if test.fault != nil {
				proxy.SetFault(apiserver.OnEach(test.fault))
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			<-ended
			if got := cmd.ProcessState.ExitCode(); got != test.code {
				t.Errorf("exit status %d, want %d; it said\n%s", got, test.code, log.String())
			}
		})
	}
}

// watched is a log that tells when it has a line.
type watched struct {
	text bytes.Buffer // not embedded: what copies to it must come through Write
	line string
	seen chan struct{}
	done bool
}

func (w *watched) Write(p []byte) (int, error) {
	n, err := w.text.Write(p)
	if !w.done && strings.Contains(w.String(), w.line) {
		w.done = true
		close(w.seen)
	}
	return n, err
}

func (w *watched) String() string { return w.text.String() }
