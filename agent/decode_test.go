package agent

import (
	"strings"
	"testing"
)

func TestNearestName(t *testing.T) {
	known := []string{"mode", "grace", "sweepInterval", "maxRemovals", "in"}
	for name, want := range map[string]string{
		"grcae":                     "grace",
		"Mode":                      "mode",
		"sweepinterval":             "sweepInterval",
		"sweep-interval":            "sweepInterval",
		"maxRemoval":                "maxRemovals",
		"maxDeletions":              "",
		"node":                      "mode",
		"nice":                      "",
		"IN":                        "in",
		"on":                        "",
		"":                          "",
		strings.Repeat("grace", 99): "",
	} {
		if got := nearest(name, known); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"abc", "abc", 0},
		{"abc", "axc", 1},
		{"abc", "abxc", 1},
		{"abc", "ac", 1},
		{"abc", "acb", 1},
		{"kitten", "sitting", 3},
		{"abcd", "badc", 2},
	} {
		if got := editDistance(test.a, test.b); got != test.want {
			t.Errorf("%q and %q: got %d, want %d", test.a, test.b, got, test.want)
		}
	}
}

// TestOneMistakeIsReportedOnce: validation must not add what it thinks of a field that the decoder refused.
func TestOneMistakeIsReportedOnce(t *testing.T) {
	const target = "statusKeys:\n- name: a\n  resource: {version: v1, resource: things}\n  paths: [{path: status.nodes}]\n"
	for _, text := range []string{
		target + "mode: [Report]\n",
		target + "  mode: 1\n",
		strings.Replace(target, "name", "nmae", 1),
		strings.Replace(target, "{version: v1, resource: things}", "things", 1),
		strings.Replace(target, "version: v1", "version: 1", 1),
		strings.Replace(target, "version: v1", "versoin: v1", 1),
		strings.Replace(target, "paths", "path", 1),
		strings.Replace(target, "[{path: status.nodes}]", "[status.nodes]", 1),
		strings.Replace(target, "[{path: status.nodes}]", "[~]", 1),
		"kind: [x]\n",
	} {
		text = "apiVersion: unstale.dev/v1alpha1\n" + text
		if !strings.Contains(text, "kind:") {
			text = "kind: AgentConfiguration\n" + text
		}
		_, err := Parse([]byte(text))
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s\ngot %v, want one error", text, err)
		}
	}
}

// TestExplicitZeroIsNotTheDefault: the default must not hide what the file says.
func TestExplicitZeroIsNotTheDefault(t *testing.T) {
	for text, want := range map[string]string{
		"maxRemovals: 0":                                 "maxRemovals: must be from 1",
		"grace: 0":                                       "grace: must be from 1s",
		"gossip: {port: 0}":                              "gossip.port: must be from 1",
		"mode: ''":                                       "mode: is required: Enforce or Report",
		"statusKeys: [{unknownKeys: ''}]":                "statusKeys[0].unknownKeys: is required: Keep or Remove",
		"statusKeys: [{mode: ''}]":                       "statusKeys[0].mode: is required",
		"kernel: {maxRemovals: 0}":                       "kernel.maxRemovals: must be from 1",
		"nodeRecovery: {prune: {maxUnhealthy: 0%}}":      "nodeRecovery.prune.maxUnhealthy: must be from 1%",
		"kernel: {bpfMaps: [{addresses: [{role: ''}]}]}": "kernel.bpfMaps[0].addresses[0].role: is required",
	} {
		_, err := parse([]byte(header+text), validate)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	c := mustParse(t, "report: {name: ''}\nhttp: {debugAddress: ''}\nkernel: {podAddressAnnotations: [], conntrack: {enabled: false}}\nnodeRecovery: ~")
	if c.Report.Name != "" || c.HTTP.DebugAddress != "" || len(c.Kernel.PodAddressAnnotations) != 0 || c.Kernel.Conntrack.Enabled {
		t.Errorf("a default replaced what the file says: %+v", c)
	}
}

// TestMask: all 64 bits can be given, and an absent mask is not a mask of 0.
func TestMask(t *testing.T) {
	c := mustParse(t, "kernel: {bpfMaps: [{name: a, pin: /x, addresses: [{size: 4}], scope: node, keepIf: [{in: key, size: 8, mask: 0xffffffffffffffff, equals: 18446744073709551615}, {in: key, size: 8}]}]}")
	keep := c.Kernel.BPFMaps[0].KeepIf
	if keep[0].Mask == nil || *keep[0].Mask != 1<<64-1 || keep[0].Equals != 1<<64-1 {
		t.Errorf("got %+v, want all 64 bits", keep[0])
	}
	if keep[1].Mask != nil {
		t.Errorf("an absent mask became %d", *keep[1].Mask)
	}
}

// TestListItemsKeepTheirPositions: an error in one item must not shift the paths of the errors of the next.
func TestListItemsKeepTheirPositions(t *testing.T) {
	_, err := Parse([]byte(header + "statusKeys: [wrong, ~, {name: a, resource: {version: v1, resource: things}}]"))
	if err == nil || !strings.Contains(err.Error(), "statusKeys[2].paths: is required") {
		t.Errorf("got %v, want an error at statusKeys[2].paths", err)
	}
}
