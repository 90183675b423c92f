package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/unstale/unstale/test/apiserver"
)

// sweepReports is the resource in which the agents publish what they do; report is theirs.
var sweepReports = schema.GroupVersionResource{Group: "unstale.dev", Version: "v1alpha1", Resource: "sweepreports"}

const (
	report = "unstale"
	target = "nri-topology-aware" // the preset's target for this policy
)

const agentConfiguration = `apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
grace: %s
sweepInterval: 5s
presets: [nri-plugins]
gossip: {bindAddress: %s, keyFile: %s, peers: ["127.0.0.11:7947", "127.0.0.12:7947", "127.0.0.13:7947"]}
http: {debugAddress: "", metricsAddress: ""}
`

// fleet is the agents: one real process for each node.
type fleet struct {
	tool   *tool
	dir    string
	agents map[string]*exec.Cmd
	ended  map[string]chan error
}

// start starts the agent of node number i.
func (f *fleet) start(name string, i int) error {
	config := filepath.Join(f.dir, name+".yaml")
	text := fmt.Sprintf(agentConfiguration, grace, fmt.Sprint("127.0.0.", 11+i), filepath.Join(f.dir, "gossip.key"))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	log, err := os.Create(f.log(name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(f.tool.program, "agent", "--config", config, "--node", name, "--kubeconfig", f.tool.kubeconfig, "--log-format", "console")
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the agent of %s: %w", name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	f.agents[name], f.ended[name] = cmd, ended
	return nil
}

func (f *fleet) log(name string) string { return filepath.Join(f.dir, name+".log") }

// signal sends a signal to an agent and waits until it has ended.
func (f *fleet) signal(name string, signal syscall.Signal) (exit int, err error) {
	if err := f.agents[name].Process.Signal(signal); err != nil {
		return 0, fmt.Errorf("signal the agent of %s: %w", name, err)
	}
	select {
	case <-f.ended[name]:
	case <-time.After(30 * time.Second):
		return 0, fmt.Errorf("the agent of %s does not end", name)
	}
	exit = f.agents[name].ProcessState.ExitCode()
	delete(f.agents, name)
	return exit, nil
}

// close kills what runs.
func (f *fleet) close() {
	for name, cmd := range f.agents {
		_ = cmd.Process.Kill() // it may have ended
		<-f.ended[name]
		delete(f.agents, name)
	}
}

// say shows the lines of an agent's log that have a word.
func (f *fleet) say(name, word string) error {
	said := false
	err := f.lines(name, func(line string) {
		if !strings.Contains(line, word) {
			return
		}
		said = true
		if len(line) > 150 {
			line = line[:150] + "…\n"
		}
		fmt.Printf("      %s: %s", name, line)
	})
	if err == nil && !said {
		err = fmt.Errorf("the agent of %s logged nothing of %q", name, word)
	}
	return err
}

// publishing waits until each of the agents has its key in the SweepReport.
func (c *cluster) publishing(ctx context.Context, names []string) error {
	return retry(ctx, "wait for the agents", func() error {
		nodes, err := c.reported(ctx, "nodes")
		if err != nil {
			return err
		}
		for _, name := range names {
			if nodes[name] == nil {
				return fmt.Errorf("%s has not published its key", name)
			}
		}
		return nil
	})
}

// owner is the agent that keeps the policy clean: the only one that logged last that it owns it. (The SweepReport says so too, within a minute.)
func (f *fleet) owner(ctx context.Context) (owner string, err error) {
	err = retry(ctx, "find the owner", func() error {
		var owners []string
		for name := range f.agents {
			owns := false
			err := f.lines(name, func(line string) {
				words := strings.Fields(line) // who lists the target's policies has a line without a name
				if slices.Contains(words, "target="+target) && slices.Contains(words, "name="+policy) {
					owns = (owns || strings.Contains(line, " owns ")) && !strings.Contains(line, " no longer owns ")
				}
			})
			if err != nil {
				return err
			}
			if owns {
				owners = append(owners, name)
			}
		}
		if len(owners) != 1 {
			return fmt.Errorf("the owners are %v", owners)
		}
		owner = owners[0]
		return nil
	})
	return owner, err
}

// remover is the agent that removed a departed node's key, by the logs.
func (f *fleet) remover(key string) (string, error) {
	for _, name := range living {
		found := false
		err := f.lines(name, func(line string) {
			words := strings.Fields(line)
			found = found || slices.Contains(words, "removing") && slices.Contains(words, "key="+key) && slices.Contains(words, "target="+target)
		})
		if err != nil {
			return "", err
		}
		if found {
			return name, nil
		}
	}
	return "", fmt.Errorf("no agent logged that it removes the key of %s", key)
}

// lines hands each line of an agent's log to a function.
func (f *fleet) lines(name string, each func(line string)) error {
	text, err := os.ReadFile(f.log(name))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		each(line)
	}
	return nil
}

func (c *cluster) reported(ctx context.Context, field string) (map[string]any, error) {
	object, err := c.client.Resource(sweepReports).Get(ctx, report, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the SweepReport: %w", err)
	}
	found, _, err := unstructured.NestedMap(object.Object, "status", field)
	return found, err
}

// goes waits until a key is gone from the policy, and says how long that took.
func (c *cluster) goes(ctx context.Context, names ...string) error {
	begun := time.Now()
	for _, name := range names {
		err := retry(ctx, "wait until the key of "+name+" goes", func() error {
			keys, err := c.keys(ctx)
			if err != nil {
				return err
			}
			if keys[name] != nil {
				return errors.New("it is still there")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	fmt.Printf("    ✓ gone after %.1f s: %s\n", time.Since(begun).Seconds(), strings.Join(names, ", "))
	return nil
}

func (c *cluster) deleteNode(ctx context.Context, name string) error {
	if err := c.client.Resource(apiserver.Nodes).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	return nil
}

// A guard watches the policy from its beginning and sees every state it was ever in: whoever is alive must be in each.
type guard struct {
	done chan struct{}
	lost error // read after done
	seen int   // how many states; read after done
}

// watch begins to guard; alive tells, for each state, whose keys must be there.
func (c *cluster) watch(ctx context.Context, alive func(name string) bool) (*guard, error) {
	object, err := c.policy(ctx)
	if err != nil {
		return nil, err
	}
	watching, err := c.client.Resource(apiserver.TopologyAwarePolicies).Namespace(namespace).Watch(ctx,
		metav1.ListOptions{FieldSelector: "metadata.name=" + policy, ResourceVersion: object.GetResourceVersion()})
	if err != nil {
		return nil, fmt.Errorf("watch the policy: %w", err)
	}
	g := &guard{done: make(chan struct{})}
	go func() {
		defer close(g.done)
		defer watching.Stop()
		for event := range watching.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				break
			}
			g.seen++
			keys, _, _ := unstructured.NestedMap(object.Object, "status", "nodes")
			for _, name := range living {
				if alive(name) && keys[name] == nil {
					g.lost = errors.Join(g.lost, fmt.Errorf("the key of %s was gone although it lives", name))
				}
			}
		}
		if ctx.Err() == nil {
			g.lost = errors.Join(g.lost, errors.New("the watch ended early, so nobody saw all"))
		}
	}()
	return g, nil
}
