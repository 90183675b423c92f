package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// A daemon is a process that works until it is killed.
type daemon struct {
	name   string // among the others of its kind
	cmd    *exec.Cmd
	log    string        // file with its standard error
	exited chan struct{} // closed when it has ended
}

// startDaemon starts a program whose log goes to a file of its name in dir. It is killed when ctx ends.
func startDaemon(ctx context.Context, dir, name, program string, args ...string) (*daemon, error) {
	d := &daemon{name: name, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, fmt.Errorf("make a file for the log: %w", err)
	}
	defer log.Close()
	d.cmd = exec.CommandContext(ctx, program, args...)
	d.cmd.Dir, d.cmd.Stderr = dir, log
	d.cmd.Env = append(os.Environ(), "HOME="+dir, "KUBECONFIG=")
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	go func() {
		defer close(d.exited)
		d.cmd.Wait() // how it ended stands in its log
	}()
	return d, nil
}

// kill ends it without a warning, and returns when it has ended.
func (d *daemon) kill() {
	d.cmd.Process.Kill() // fails only when it has ended
	<-d.exited
}

// running fails when the process has ended.
func (d *daemon) running() error {
	select {
	case <-d.exited:
		return fmt.Errorf("%s has ended (%s); its log ends: %s", d.name, d.cmd.ProcessState, tail(d.log))
	default:
		return nil
	}
}

// A fleet is several daemons of one kind.
type fleet []*daemon

func (f fleet) kill() {
	for _, d := range f {
		d.cmd.Process.Kill() // all at once, so that no one takes over meanwhile
	}
	for _, d := range f {
		d.kill()
	}
}

// owner is the one daemon of the fleet that owns name, by their logs; nil where none or several do. It fails when a daemon has
// ended.
func (f fleet) owner(name string) (*daemon, error) {
	var owners fleet
	for _, d := range f {
		if err := d.running(); err != nil {
			return nil, err
		}
		log, err := os.Open(d.log)
		if err != nil {
			return nil, fmt.Errorf("read the log of %s: %w", d.name, err)
		}
		owns, err := ownsLast(log, name)
		log.Close()
		if err != nil {
			return nil, fmt.Errorf("read the log of %s: %w", d.name, err)
		}
		if owns {
			owners = append(owners, d)
		}
	}
	if len(owners) != 1 {
		return nil, nil
	}
	return owners[0], nil
}

const (
	// ownersLimit is how long a fleet may take until it agrees.
	ownersLimit = 2 * time.Minute
	// ownersPause is how often the logs are read.
	ownersPause = 200 * time.Millisecond
)

// awaitOwners waits until each name has had one and the same owner for the time settled.
func (f fleet) awaitOwners(ctx context.Context, settled time.Duration, names ...string) (map[string]*daemon, error) {
	owners := map[string]*daemon{}
	since := time.Now()
	err := await(ctx, "each resource has one owner", ownersLimit, ownersPause, func() (bool, error) {
		for _, name := range names {
			owner, err := f.owner(name)
			if err != nil {
				return false, err
			}
			if owner == nil || owner != owners[name] {
				owners[name], since = owner, time.Now()
			}
		}
		return time.Since(since) > settled, nil
	})
	return owners, err
}

// ownsLast tells whether the last word about name in a log is that its writer owns it.
func ownsLast(log io.Reader, name string) (bool, error) {
	owns := false
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20) // an entry that is removed is logged whole
	for lines.Scan() {
		var line struct{ Msg, Name string }
		if json.Unmarshal(lines.Bytes(), &line) != nil || line.Name != name {
			continue // another line, perhaps one that is being written
		}
		switch line.Msg {
		case "owns":
			owns = true
		case "no longer owns":
			owns = false
		}
	}
	return owns, lines.Err()
}

// await calls check again and again until it is done or fails.
func await(ctx context.Context, what string, limit, every time.Duration, check func() (done bool, err error)) error {
	tooLate := time.NewTimer(limit)
	defer tooLate.Stop()
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		done, err := check()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tooLate.C:
			return fmt.Errorf("wait until %s: not after %s", what, limit)
		case <-again.C:
		}
	}
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
