package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// options are what the command line says.
type options struct {
	runs    int
	unstale string // program; empty: build it
	kubectl string // program; empty: build it
	output  string // file; empty: bench.json at the root
}

// A session is one run of this program.
type session struct {
	options
	root    string    // of the checkout
	scratch string    // a folder that goes at the end
	log     io.Writer // for the person who waits
	figures []figure
}

// measure runs the benchmarks, prints their figures and writes them as JSON, if all went well.
func measure(ctx context.Context, chosen []benchmark, o options, stdout, stderr io.Writer) (err error) {
	s := &session{options: o, log: stderr}
	if s.root, err = findRoot(); err != nil {
		return err
	}
	if s.output == "" {
		s.output = filepath.Join(s.root, "bench.json")
	}
	if s.scratch, err = os.MkdirTemp("", "unstale-bench-"); err != nil {
		return fmt.Errorf("make a folder for the benchmarks: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.scratch)) }()
	if err := s.buildUnstale(ctx); err != nil {
		return err
	}
	for _, b := range chosen {
		first := len(s.figures)
		s.logf("%s: %s", b.name, b.about)
		before := loadAverage()
		if err := b.run(ctx, s); err != nil {
			if ctx.Err() != nil {
				return fmt.Errorf("benchmark %s: interrupted", b.name)
			}
			return fmt.Errorf("benchmark %s: %w", b.name, err)
		}
		fmt.Fprintf(stdout, "\n%s: %s\n%s/%s, %d CPUs, %s; load average before %s, after %s\n\n", b.name, b.about,
			runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version(), before, loadAverage())
		if err := printTable(stdout, s.figures[first:]); err != nil {
			return fmt.Errorf("print the figures: %w", err)
		}
	}
	return writeJSON(s.output, s.figures)
}

// findRoot finds the checkout in or above the working folder.
func findRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "test", "controlplane", "build.sh")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find the checkout: no test/controlplane/build.sh in or above %s", start)
		}
	}
}

func (s *session) buildUnstale(ctx context.Context) error {
	if s.unstale != "" {
		if _, err := os.Stat(s.unstale); err != nil {
			return fmt.Errorf("find the unstale to measure: %w", err)
		}
		return nil
	}
	s.unstale = filepath.Join(s.scratch, "unstale"+executableSuffix())
	_, err := s.tool(ctx, "build unstale", "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w", "-o", s.unstale, "./cmd/unstale")
	return err
}

func executableSuffix() string {
	if runtime.GOOS == "windows" {
		return ".exe"
	}
	return ""
}

// needKubectl builds kubectl unless that was done before.
func (s *session) needKubectl(ctx context.Context) error {
	if s.kubectl != "" {
		return nil
	}
	out, err := s.tool(ctx, "build kubectl", filepath.Join(s.root, "test", "controlplane", "program.sh"), "kubectl")
	s.kubectl = strings.TrimSpace(out)
	return err
}

// tool runs a program that helps to measure. It returns the standard output; the standard error is shown as it comes.
func (s *session) tool(ctx context.Context, what, program string, args ...string) (string, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.root, &out, s.log
	endGently(cmd)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	return out.String(), nil
}

func (s *session) logf(format string, args ...any) {
	fmt.Fprintf(s.log, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
}
