//go:build !linux

package main

// standing knows nothing here.
func standing(int) (u usage, ok bool) { return u, false }
