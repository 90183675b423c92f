//go:build !linux

package main

// kernelBenchmarks are those of kernel tables, which only Linux has.
var kernelBenchmarks []benchmark
