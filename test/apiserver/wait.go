package apiserver

import (
	"testing"
	"time"
)

const (
	// waitLimit is generous because it costs nothing when all is well, and machines that run tests are slow at times.
	waitLimit = 60 * time.Second
	waitPause = 20 * time.Millisecond
)

// Eventually calls check until it returns nil, and fails the test with check's last error if that takes more than a
// minute. Tests wait with it and never sleep.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.NewTimer(waitLimit)
	defer deadline.Stop()
	pause := time.NewTicker(waitPause)
	defer pause.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-pause.C:
		case <-deadline.C:
			t.Fatalf("wait for %s: not after %s: %v", what, waitLimit, err)
		}
	}
}
