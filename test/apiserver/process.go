package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// programEnv names the control plane's program, for whoever has built it already.
const programEnv = "UNSTALE_CONTROLPLANE"

// program finds the control plane's program.
func program() (string, error) {
	if path := os.Getenv(programEnv); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("find the test control plane named by %s: %w", programEnv, err)
		}
		return path, nil
	}
	script, err := findUp(filepath.Join("test", "controlplane", "build.sh"))
	if err != nil {
		return "", fmt.Errorf("find the test control plane: %w; set %s to its path", err, programEnv)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(script, "--path")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask %s --path for the test control plane: %w: %s", script, err, stderr.Bytes())
	}
	path := strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("no test control plane at %s: build it first with `make controlplane`", path)
	}
	return path, nil
}

// findUp looks for a file in the working folder and those above it. Tests run in their package's folder, programs at the
// module's root.
func findUp(name string) (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no %s in or above %s", name, start)
		}
	}
}

// A process is one running control plane.
type process struct {
	os  *os.Process
	log string // file with its standard error and output

	exited chan struct{} // closed when it has ended; err is final then
	err    error
}

// startProcess runs the program with args. On Linux the process dies with this one.
func startProcess(program string, args []string, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = childAttributes()
	p := &process{log: logFile, exited: make(chan struct{})}
	started, ended := make(chan error), make(chan error, 1)
	go waitOnOneThread(cmd, started, ended)
	err = <-started
	log.Close()
	if err != nil {
		return nil, fmt.Errorf("start the test control plane: %w", err)
	}
	p.os = cmd.Process
	go func() {
		p.err = <-ended
		close(p.exited)
	}()
	return p, nil
}

// waitOnOneThread starts cmd and waits for its end. Linux sends the parent-death signal when the *thread* that made the
// child ends, so that thread has to last as long as the child does.
func waitOnOneThread(cmd *exec.Cmd, started, ended chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	started <- err
	if err == nil {
		ended <- cmd.Wait()
	}
}

// waitForFile returns when path exists, or with the end of the log if the process ends before or limit is over.
func (p *process) waitForFile(path string, limit time.Duration) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	pause := time.NewTicker(waitPause)
	defer pause.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
		select {
		case <-pause.C:
		case <-p.exited:
			return fmt.Errorf("the test control plane ended before it was ready (%v); its log ends:\n%s", p.err, p.logTail())
		case <-deadline.C:
			return fmt.Errorf("the test control plane was not ready after %s; its log ends:\n%s", limit, p.logTail())
		}
	}
}

// stopLimit is how long an end on request may take. It takes a second or two; rarely kube-apiserver hangs when it is asked within a second of its start.
const stopLimit = 15 * time.Second

// stop ends the process and waits for it. An end that is neither clean nor forced is an error. No test is about how Kubernetes ends, and etcd's data
// outlives a kill.
func (p *process) stop() error {
	select {
	case <-p.exited:
		return fmt.Errorf("the test control plane had ended by itself (%v); its log ends:\n%s", p.err, p.logTail())
	default:
	}
	signalErr := interrupt(p.os)
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	select {
	case <-p.exited:
		if p.err != nil {
			return fmt.Errorf("stop the test control plane: %w; its log ends:\n%s", errors.Join(signalErr, p.err), p.logTail())
		}
		return nil
	case <-limit.C:
		p.kill()
		fmt.Fprintf(os.Stderr, "the test control plane was killed, as it still ran %s after it was asked to end\n", stopLimit)
		return nil
	}
}

// kill ends the process as a power loss would.
func (p *process) kill() {
	p.os.Kill()
	<-p.exited
}

// logTail is the end of what the process wrote.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.SplitAfter(string(text), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "")
}
