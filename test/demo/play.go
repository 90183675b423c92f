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
	"sync"
	"syscall"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/deploy"
	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/test/apiserver"
)

// agents prepares the fleet: a gossip key, and the SweepReport.
func (c *cluster) agents(ctx context.Context, tool *tool, dir string) (*fleet, error) {
	f := &fleet{tool: tool, dir: dir, agents: map[string]*exec.Cmd{}, ended: map[string]chan error{}}
	if err := os.WriteFile(filepath.Join(dir, "gossip.key"), []byte(gossip.GenerateKey()+"\n"), 0o600); err != nil {
		return nil, err
	}
	definition, object := &unstructured.Unstructured{}, &unstructured.Unstructured{}
	if err := errors.Join(yaml.Unmarshal([]byte(deploy.SweepReportCRD), &definition.Object), yaml.Unmarshal([]byte(deploy.SweepReport), &object.Object)); err != nil {
		return nil, err
	}
	if _, err := c.client.Resource(apiserver.CRDs).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("define SweepReport: %w", err)
	}
	return f, retry(ctx, "create the SweepReport", func() error {
		_, err := c.client.Resource(sweepReports).Create(ctx, object, metav1.CreateOptions{})
		return err
	})
}

// play lets nodes go in every way there is, and checks what becomes of their keys.
func (f *fleet) play(ctx context.Context, c *cluster) error {
	var mu sync.Mutex
	gone := map[string]bool{} // guarded by mu
	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	guard, err := c.watch(watching, func(name string) bool {
		mu.Lock()
		defer mu.Unlock()
		return !gone[name]
	})
	if err != nil {
		return err
	}
	leaves := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		gone[name] = true
	}

	step("An agent on each node, on 127.0.0.11 to 15. They find one another by gossip, and agree which of them cleans the policy")
	for i, name := range living {
		if err := f.start(name, i); err != nil {
			return err
		}
	}
	if err := c.publishing(ctx, living); err != nil {
		return f.explain(err)
	}
	fmt.Println("    ✓ five agents have published their keys in the SweepReport")
	if err := c.goes(ctx, departed...); err != nil {
		return f.explain(err)
	}
	remover, err := f.remover(departed[0])
	if err != nil {
		return f.explain(err)
	}
	fmt.Printf("    %s removed them, and logged what puts each back:\n", remover)
	if err := f.say(remover, " removing "); err != nil {
		return err
	}
	owner, err := f.owner(ctx)
	if err != nil {
		return f.explain(err)
	}
	fmt.Printf("    the owner of the policy is %s\n", owner)
	others := slices.DeleteFunc(slices.Clone(living), func(name string) bool { return name == owner })

	leaver := others[0]
	step(fmt.Sprintf("%s leaves: its Node is deleted, and its agent gets SIGTERM. The agent clears the key itself", leaver))
	leaves(leaver)
	if err := c.deleteNode(ctx, leaver); err != nil {
		return err
	}
	exit, err := f.signal(leaver, syscall.SIGTERM)
	if err != nil {
		return err
	}
	if exit != 0 {
		return f.explain(fmt.Errorf("the agent of %s ended with status %d", leaver, exit))
	}
	if err := c.goes(ctx, leaver); err != nil {
		return f.explain(err)
	}
	if err := f.say(leaver, "OwnKeyCleared"); err != nil {
		return err
	}

	victim := others[1]
	step(fmt.Sprintf("%s loses its power: its agent is killed with SIGKILL, and its Node is deleted.\n    Gossip notices within about 10 s, the key goes a grace (%s) later", victim, grace))
	leaves(victim)
	if _, err := f.signal(victim, syscall.SIGKILL); err != nil {
		return err
	}
	if err := c.deleteNode(ctx, victim); err != nil {
		return err
	}
	if err := c.goes(ctx, victim); err != nil {
		return f.explain(err)
	}

	step(fmt.Sprintf("The owner itself, %s, dies the same way. The next owner waits its own grace, and finishes", owner))
	leaves(owner)
	if _, err := f.signal(owner, syscall.SIGKILL); err != nil {
		return err
	}
	if err := c.deleteNode(ctx, owner); err != nil {
		return err
	}
	if err := c.goes(ctx, owner); err != nil {
		return f.explain(err)
	}
	heir, err := f.remover(owner)
	if err != nil {
		return f.explain(err)
	}
	if heir == owner {
		return f.explain(fmt.Errorf("the key of %s was removed by itself, although it was dead", owner))
	}
	fmt.Printf("    ✓ removed by %s, the next owner\n", heir)

	step("What is left")
	if err := c.show(ctx); err != nil {
		return err
	}
	if err := c.expect(ctx, "the keys of the two living nodes are there, all others are gone", others[2:]); err != nil {
		return err
	}
	if err := c.expectUntouched(ctx); err != nil {
		return err
	}
	stopWatching()
	<-guard.done
	if guard.lost != nil {
		return guard.lost
	}
	fmt.Printf("    ✓ in none of the %d states that the policy was in did a living node's key lack\n", guard.seen)
	return nil
}

// explain adds what the agents logged last.
func (f *fleet) explain(err error) error {
	for _, name := range living {
		text, readErr := os.ReadFile(f.log(name))
		if readErr != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		err = fmt.Errorf("%w\n%s logged:\n    %s", err, name, strings.Join(lines[max(0, len(lines)-15):], "\n    "))
	}
	return err
}
