package apiserver

import (
	"os"
	"syscall"
)

// childAttributes makes the child die with this process, however that ends, and keeps the terminal's Ctrl-C from it:
// the tests decide when it ends.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// interrupt asks the process to end cleanly.
func interrupt(p *os.Process) error { return p.Signal(syscall.SIGTERM) }
