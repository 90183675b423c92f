//go:build !linux

// Command record needs Linux.
package main

import "log"

func main() { log.Fatal("record: a real node needs Linux") }
