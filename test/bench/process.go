package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// endLimit is how long a process may go on after it was asked to end.
const endLimit = 10 * time.Second

// A usage is what a process, or several one after another, took.
type usage struct {
	wall   time.Duration
	cpu    time.Duration // user and system
	memory int64         // peak resident set in bytes, the greatest of several; 0: not known on this platform
}

func (u usage) plus(v usage) usage {
	return usage{wall: u.wall + v.wall, cpu: u.cpu + v.cpu, memory: max(u.memory, v.memory)}
}

// execute runs a program to its end. It returns its standard output too. Both outputs go to files, as an operator's would,
// so that nobody has to read along.
func (s *session) execute(ctx context.Context, program string, args ...string) (usage, []byte, error) {
	outFile, errFile := filepath.Join(s.scratch, "stdout"), filepath.Join(s.scratch, "stderr")
	stdout, err := os.Create(outFile)
	if err != nil {
		return usage{}, nil, fmt.Errorf("make a file for the output: %w", err)
	}
	defer stdout.Close()
	stderr, err := os.Create(errFile)
	if err != nil {
		return usage{}, nil, fmt.Errorf("make a file for the output: %w", err)
	}
	defer stderr.Close()

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.scratch, stdout, stderr
	cmd.Env = append(os.Environ(), "HOME="+s.scratch, "KUBECONFIG=")
	endGently(cmd)
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return usage{}, nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	peak := watchMemory(cmd.Process.Pid)
	err = cmd.Wait()
	u := usage{wall: time.Since(start), memory: peak()}
	u.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	if err != nil {
		return u, nil, fmt.Errorf("run %s %s: %w; its standard error ends: %s", filepath.Base(program), args[0], err, tail(errFile))
	}
	out, err := os.ReadFile(outFile)
	if err != nil {
		return u, nil, fmt.Errorf("read the output: %w", err)
	}
	return u, out, nil
}

// endGently lets a command whose context ends clean up before it is killed.
func endGently(cmd *exec.Cmd) {
	cmd.Cancel = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			return cmd.Process.Kill() // not every platform can ask
		}
		return nil
	}
	cmd.WaitDelay = endLimit
}

// tail is the end of a text file, for a message.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1000):])
}
