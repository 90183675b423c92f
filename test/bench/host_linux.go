package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// memoryInterval is how often a process is asked for its peak. What it takes in its last interval may be missed.
const memoryInterval = 5 * time.Millisecond

// watchMemory follows the peak resident set of a process; the function that it returns ends that and gives the peak.
//
// The kernel's own account of an ended process (ru_maxrss) will not do: a process starts with the peak of the one that
// made it, so one that was started from here would never seem to take less than this program has taken.
func watchMemory(pid int) (stop func() int64) {
	end, result := make(chan struct{}), make(chan int64)
	go func() {
		interval := time.NewTicker(memoryInterval)
		defer interval.Stop()
		var peak int64
		for {
			peak = max(peak, peakMemory(pid)) // 0 when it has ended
			select {
			case <-end:
				result <- peak
				return
			case <-interval.C:
			}
		}
	}()
	return func() int64 {
		close(end)
		return <-result
	}
}

// peakMemory is the peak resident set of a running process so far, in bytes; 0 if it cannot be read.
func peakMemory(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := bytes.Cut(text, []byte("\nVmHWM:"))
	line, _, _ := bytes.Cut(after, []byte(" kB\n"))
	kib, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 10, 64)
	if err != nil {
		return 0
	}
	return kib << 10
}

// loadAverage is the system's, over 1, 5 and 15 minutes.
func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 3 {
		return "unknown"
	}
	return strings.Join(fields[:3], " ")
}
