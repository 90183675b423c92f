// Command demo shows the main job on a real API server, with five real agents: keys that departed nodes left in a shared resource are
// found, explained and removed, whatever ended the nodes, and those of living ones stay. It checks what it shows, and ends with
// status 1 if anything is wrong.
//
//	make demo               runs it and cleans up
//	make demo ARGS=--keep   leaves the API server running until Enter, to try more
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

func main() {
	keep := flag.Bool("keep", false, "leave the API server running until Enter or Ctrl-C")
	program := flag.String("unstale", "bin/unstale", "the unstale `program` to show")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *program, *keep); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: FAILED:", err)
		os.Exit(1)
	}
}

// grace is short, so that nobody has to wait for the default of a minute.
const grace = 3 * time.Second

const configuration = `apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
grace: %s
presets: [nri-plugins]
`

func run(ctx context.Context, program string, keep bool) (err error) {
	program, err = filepath.Abs(program)
	if err != nil {
		return err
	}
	begun := time.Now()
	step("Starting a real API server (kube-apiserver and etcd)")
	server, err := apiserver.Launch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	fmt.Printf("    ready after %.0f s\n", time.Since(begun).Seconds())

	dir, err := os.MkdirTemp("", "unstale-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	config := filepath.Join(dir, "unstale.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, grace), 0o600); err != nil {
		return err
	}
	c := &cluster{server: server, client: server.Dynamic()}
	tool := &tool{program: program, config: config, kubeconfig: server.Kubeconfig}

	step("Five nodes. Each wrote its key into the status of a TopologyAwarePolicy (containers/nri-plugins);\n" +
		"    so did three that are no more, and nobody took their keys away")
	if err := c.populate(ctx); err != nil {
		return err
	}
	if err := c.show(ctx); err != nil {
		return err
	}

	step("What would unstale do, and why? plan only looks")
	if err := tool.run(ctx, 3, "plan", "--exit-code"); err != nil {
		return err
	}
	if err := c.expect(ctx, "plan changed nothing", append(slices.Clone(living), departed...)); err != nil {
		return err
	}

	agents, err := c.agents(ctx, tool, dir)
	if err != nil {
		return err
	}
	defer agents.close()
	if err := agents.play(ctx, c); err != nil {
		return err
	}
	if err := tool.quiet(ctx, 0, "plan", "--exit-code"); err != nil {
		return err
	}
	fmt.Println("    ✓ another plan finds nothing to remove")
	fmt.Printf("\nAll as it should be, after %.0f s.\n", time.Since(begun).Seconds())

	if keep {
		agents.close()
		fmt.Printf("\nThe agents are stopped. The API server runs until you press Enter (or Ctrl-C). Try:\n\n    kubectl --kubeconfig %[1]s get topologyawarepolicies -A -o yaml\n    %[2]s plan --all --config %[3]s --kubeconfig %[1]s\n",
			server.Kubeconfig, program, config)
		enter := make(chan struct{})
		go func() {
			if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err == nil { // without a terminal, until a signal
				close(enter)
			}
		}()
		select {
		case <-enter:
		case <-ctx.Done():
		}
		fmt.Println("Stopping the API server and removing its data.")
	}
	return nil
}

var steps int

func step(text string) {
	steps++
	fmt.Printf("\n%d.  %s.\n", steps, text)
}

// A tool is the unstale program with the flags that every call needs.
type tool struct{ program, config, kubeconfig string }

// run shows the command and what it prints, and checks its exit status.
func (t *tool) run(ctx context.Context, code int, args ...string) error {
	fmt.Printf("\n    $ unstale %s --config unstale.yaml\n", strings.Join(args, " "))
	return t.exec(ctx, code, &indented{}, args)
}

// quiet checks the exit status alone.
func (t *tool) quiet(ctx context.Context, code int, args ...string) error {
	return t.exec(ctx, code, nil, args)
}

func (t *tool) exec(ctx context.Context, code int, out *indented, args []string) error {
	cmd := exec.CommandContext(ctx, t.program, append(args, "--config", t.config, "--kubeconfig", t.kubeconfig)...)
	if out != nil {
		cmd.Stdout, cmd.Stderr = out, out
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run unstale: %w", err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code {
		return fmt.Errorf("unstale %s ended with status %d, not %d", args[0], got, code)
	}
	return nil
}

// indented prints what a command prints, set off from what the demo says.
type indented struct{ middle bool }

func (w *indented) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if !w.middle {
			fmt.Print("    ")
		}
		fmt.Print(line)
		w.middle = !strings.HasSuffix(line, "\n")
	}
	return len(p), nil
}
