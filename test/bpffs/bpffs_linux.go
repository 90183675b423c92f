// Package bpffs mounts BPF file systems, in which tests and benchmarks pin maps of their own.
package bpffs

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a BPF file system on a directory that exists. The caller unmounts it.
func Mount(dir string) (unmount func() error, err error) {
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return nil, fmt.Errorf("mount a BPF file system on %s: %w; it needs root", dir, err)
	}
	return func() error { return unix.Unmount(dir, unix.MNT_DETACH) }, nil
}

// New mounts a BPF file system of the test's own, for the time of the test, and returns where.
func New(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	unmount, err := Mount(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	return dir
}
