package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// clockTick is the unit of processor times in /proc: the same on every platform that Go knows.
const clockTick = 10 * time.Millisecond

// standing is the processor time that a running process has taken and the memory that is resident now; ok tells whether both
// could be read.
func standing(pid int) (u usage, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return u, false
	}
	return parseStat(stat, int64(os.Getpagesize()))
}

// parseStat reads a line of /proc/PID/stat.
func parseStat(stat []byte, pageSize int64) (u usage, ok bool) {
	// The second field is the program's name in parentheses, which may hold spaces and parentheses itself.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 22 {
		return u, false
	}
	number := func(field int) int64 { // as proc(5) counts them
		n, err := strconv.ParseInt(string(fields[field-3]), 10, 64)
		if err != nil {
			return -1
		}
		return n
	}
	user, system, pages := number(14), number(15), number(24)
	if min(user, system, pages) < 0 {
		return u, false
	}
	return usage{cpu: time.Duration(user+system) * clockTick, memory: pages * pageSize}, true
}
