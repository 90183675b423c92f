package dataplane

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

const journalDiskDir = "UNSTALE_TEST_JOURNAL_DISK"

// A disk that is full or read-only is told of with what to do, and the journal that there was stays. The disk is a small one in memory, which only
// the process sees that mounts it: TestJournalOnSmallDisk in another process.
func TestJournalDiskFails(t *testing.T) {
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.run=^TestJournalOnSmallDisk$", "-test.v")
	c.Env = append(os.Environ(), journalDiskDir+"="+t.TempDir())
	c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		c.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWNS | syscall.CLONE_NEWUSER,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
	}
	if out, err := c.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestJournalOnSmallDisk") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestJournalOnSmallDisk(t *testing.T) {
	dir, asked := os.LookupEnv(journalDiskDir)
	if !asked {
		return
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	d := JournalDir(dir)
	var last Journal
	var err error
	for n := 1; err == nil && n < 10_000; n++ {
		j := Journal{Boot: fmt.Sprint(n)}
		for i := range n {
			j.Pods = append(j.Pods, JournalPod{PodRef: PodRef{"ns", "pod", fmt.Sprint(i)}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
		}
		if err = d.Save(j); err == nil {
			last = j
		}
	}
	check := func(err error, word string) {
		t.Helper()
		if err == nil || !strings.HasPrefix(err.Error(), "write the journal: ") || !strings.Contains(err.Error(), word) || !strings.HasSuffix(err.Error(), "check kernel.stateDir and its disk") {
			t.Errorf("%v; want one with %q", err, word)
		}
		if got, err := d.Load(); err != nil || !reflect.DeepEqual(got, last) {
			t.Errorf("%v: %d pods, want %d", err, len(got.Pods), len(last.Pods))
		}
	}
	check(err, "no space left on device")
	if len(last.Pods) < 100 {
		t.Errorf("only %d pods", len(last.Pods))
	}
	last = Journal{Boot: "smaller", Pods: []JournalPod{}}
	if err := d.Save(last); err != nil {
		t.Errorf("what fits is not written after what did not: %v", err)
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatalf("make the disk read-only: %v", err)
	}
	check(d.Save(Journal{}), "read-only file system")
	if err := JournalDir(filepath.Join(dir, "new", "one")).Save(Journal{}); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Errorf("a directory that cannot be made: %v", err)
	}
	if err := syscall.Unmount(dir, 0); err != nil {
		t.Errorf("unmount: %v", err)
	}
}
