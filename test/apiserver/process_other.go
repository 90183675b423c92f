//go:build !linux

package apiserver

import (
	"os"
	"syscall"
)

// childAttributes has nothing to ask for here: the control plane ends with TestMain, but not with a crash of the tests.
func childAttributes() *syscall.SysProcAttr { return nil }

// interrupt asks the process to end cleanly, where that can be asked.
func interrupt(p *os.Process) error {
	if err := p.Signal(os.Interrupt); err != nil {
		return p.Kill()
	}
	return nil
}
