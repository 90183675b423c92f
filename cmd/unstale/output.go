package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/unstale/unstale/agent"
	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/status"
)

// printReports prints what a plan or a sweep found. The JSON is stable.
func printReports(w io.Writer, kind string, reports []status.TargetReport, output string, all bool) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			APIVersion string                `json:"apiVersion"`
			Kind       string                `json:"kind"`
			Targets    []status.TargetReport `json:"targets"`
		}{agent.APIVersion, kind, reports})
	}
	return printText(w, reports, all)
}

// printText shows a table of the keys that need a look, then a line for each target.
func printText(w io.Writer, reports []status.TargetReport, all bool) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	rows := 0
	for _, target := range reports {
		for _, resource := range target.Resources {
			for _, f := range resource.Findings {
				if !all && isQuiet(f) {
					continue
				}
				if rows++; rows == 1 {
					fmt.Fprintln(table, "TARGET\tRESOURCE\tPATH\tKEY\tVERDICT\tREASON\tMESSAGE")
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", target.Target, resourceName(resource), f.Path, shown(f.Key), verdict(f), f.Reason, messageOf(f))
			}
		}
	}
	if rows > 0 {
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for _, target := range reports {
		if _, err := fmt.Fprintln(w, summary(target)); err != nil {
			return err
		}
	}
	if len(reports) == 0 {
		_, err := fmt.Fprintln(w, "The configuration has no targets in the cluster. Kernel tables are looked at on their node: plan --kernel, kernel dump.")
		return err
	}
	return nil
}

// isQuiet tells whether a finding is what a healthy cluster is full of: keys of nodes that exist, addresses of pods that have them.
func isQuiet(f status.Finding) bool {
	switch f.Reason {
	case status.NodeExists, status.PodExists, status.MemberAlive, status.NodeReady:
		return f.Verdict == status.Keep
	case status.Reason(dataplane.PodHasAddress), status.Reason(dataplane.UsedElsewhere), status.Reason(dataplane.HostAddress):
		return f.Since.IsZero() // nobody is known to have lost it
	}
	return false
}

// verdict is the finding's verdict, and whether it was carried out.
func verdict(f status.Finding) string {
	if f.Removed {
		return "Removed"
	}
	return string(f.Verdict)
}

// messageOf is the finding's message, and when what it waits for is over.
func messageOf(f status.Finding) string {
	if f.NotBefore.IsZero() {
		return f.Message
	}
	return f.Message + "; not before " + f.NotBefore.Format(time.RFC3339)
}

// shown is a key as it stands, or quoted if it could confuse a terminal or a reader: it may be any string.
func shown(key string) string {
	if quoted := strconv.Quote(key); key == "" || quoted != `"`+key+`"` || strings.Contains(key, " ") {
		return quoted
	}
	return key
}

func resourceName(r status.ResourceReport) string {
	if r.Namespace == "" {
		return r.Name
	}
	return r.Namespace + "/" + r.Name
}

// summary is one line: "nri: OK: 8 entries in 1 resource; Keep NodeExists 5, Remove NodeGone 3".
func summary(t status.TargetReport) string {
	text := fmt.Sprintf("%s: %s", t.Target, t.State)
	if t.Message != "" {
		text += ": " + t.Message
	}
	if len(t.Resources) == 0 {
		if t.State == status.OK && t.Message == "" {
			text += ": " + nothingIn(t)
		}
		return text
	}
	entries := 0
	counts := map[string]int{}
	for _, r := range t.Resources {
		entries += r.Entries
		for _, f := range r.Findings {
			counts[fmt.Sprintf("%s %s", f.Verdict, f.Reason)]++
		}
	}
	text += fmt.Sprintf(": %s in %s", plural(entries, "entry", "entries"), plural(len(t.Resources), "resource", "resources"))
	var parts []string
	for what, n := range counts {
		parts = append(parts, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(parts)
	if len(parts) > 0 {
		text += "; " + strings.Join(parts, ", ")
	}
	if removed := t.Removed(); removed > 0 {
		text += fmt.Sprintf("; %s removed", plural(removed, "entry", "entries"))
	}
	return text
}

// nothingIn says that a target has nothing to look at.
func nothingIn(t status.TargetReport) string {
	if t.Kind == agent.KernelKind {
		return "no entry holds an address"
	}
	return "there is no such resource yet"
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func count(reports []status.TargetReport, verdict status.Verdict) int {
	n := 0
	for i := range reports {
		n += reports[i].Count(verdict)
	}
	return n
}

// failedIn says which targets were not looked at or cleaned in full; nil if all were.
func failedIn(reports []status.TargetReport) error {
	var failed []string
	for _, t := range reports {
		unconfirmed := slices.ContainsFunc(t.Resources, func(r status.ResourceReport) bool {
			return slices.ContainsFunc(r.Findings, func(f status.Finding) bool { return f.Reason == status.Unconfirmed })
		})
		switch {
		case t.State.Failed():
			failed = append(failed, fmt.Sprintf("%s is %s", t.Target, t.State))
		case unconfirmed:
			failed = append(failed, fmt.Sprintf("%s has keys whose Nodes could not be confirmed to be gone", t.Target))
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("not all was done: %s", strings.Join(failed, ", "))
}
