package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

var size = benchmark{
	name:  "size",
	about: "the size of unstale's program, beside a client-go program with leader election, built with the same flags",
	run:   measureSize,
}

func measureSize(ctx context.Context, s *session) error {
	unstale, err := s.buildAsReleased(ctx, "unstale", filepath.Join("cmd", "unstale"))
	if err != nil {
		return err
	}
	candidate, err := s.buildCandidate(ctx)
	if err != nil {
		return err
	}
	ours, err := os.Stat(unstale)
	if err != nil {
		return fmt.Errorf("measure unstale: %w", err)
	}
	theirs, err := os.Stat(candidate)
	if err != nil {
		return fmt.Errorf("measure what stands beside it: %w", err)
	}
	s.compare("size/program", "bytes", samples{float64(ours.Size())},
		"client-go program with its clientset and leader election", samples{float64(theirs.Size())})
	return nil
}
