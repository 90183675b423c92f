package main

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unstale/unstale/test/apiserver"
)

// A stop ends although nobody reads the log any more, so that the pipe it goes to is full.
func TestAgentStopsWithoutAReader(t *testing.T) {
	t.Parallel()
	cmd := agentCommand(t, "127.0.90.4", apiserver.Shared(t).Proxy(t))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said []byte
	for buf := make([]byte, 4096); !bytes.Contains(said, []byte("configuration applied")); {
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, buf[:n]...)
	}
	go w.Write(make([]byte, 1<<20)) // until it is full; it ends when the reader is closed
	apiserver.Eventually(t, "the pipe is full", func() error {
		writable, err := unix.Poll([]unix.PollFd{{Fd: int32(w.Fd()), Events: unix.POLLOUT}}, 0)
		if writable > 0 {
			return errors.New("it is not")
		}
		return err
	})
	begun := time.Now()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != exitKeysLeft {
		t.Errorf("it ended with %v after %s", err, time.Since(begun))
	}
}
