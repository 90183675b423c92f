//go:build unix

package apiserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// newFolder makes a folder for one server's data, and removes those that crashed tests left behind: each holds 130 MB of
// etcd's log. A folder in use has a file that its tests keep locked; the kernel takes the lock off when they end. The
// function that newFolder returns removes the folder.
func newFolder() (string, func() error, error) {
	base := filepath.Join(os.TempDir(), fmt.Sprintf("unstale-apiserver-%d", os.Getuid()))
	if err := os.MkdirAll(base, 0o700); err != nil {
		return "", nil, err
	}
	// While the base is locked nobody sees a folder whose own lock is not yet taken.
	all, err := lock(filepath.Join(base, "lock"), syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	defer all.Close()
	old, err := filepath.Glob(filepath.Join(base, "server-*"))
	if err != nil {
		return "", nil, err
	}
	for _, dir := range old {
		if held, err := lock(filepath.Join(dir, "lock"), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			err = os.RemoveAll(dir)
			if err := errors.Join(err, held.Close()); err != nil {
				return "", nil, err
			}
		}
	}
	dir, err := os.MkdirTemp(base, "server-")
	if err != nil {
		return "", nil, err
	}
	own, err := lock(filepath.Join(dir, "lock"), syscall.LOCK_EX)
	if err != nil {
		return "", nil, err
	}
	return dir, func() error { return errors.Join(os.RemoveAll(dir), own.Close()) }, nil
}

func lock(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
