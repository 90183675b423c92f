//go:build !linux

package dataplane

import (
	"errors"
	"runtime"
)

var errUnsupported = errors.New("kernel tables are not supported on " + runtime.GOOS)

// ReadHost fails: there are no tables here for which it would be asked.
func ReadHost() (HostState, error) { return HostState{}, errUnsupported }

// BootID is empty: nothing is removed here.
func BootID() (string, error) { return "", nil }
