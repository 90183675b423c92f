package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unstale/unstale/agent"
)

func TestIsQuiet(t *testing.T) {
	for name, test := range map[string]struct {
		counts map[string]int
		want   bool
	}{
		"nothing yet":        {nil, false},
		"agents":             {map[string]int{"GET topologyawarepolicies.config.nri": 9}, true},
		"asking for Nodes":   {map[string]int{"GET topologyawarepolicies.config.nri": 9, "GET nodes": 1}, false},
		"listing":            {map[string]int{"LIST topologyawarepolicies.config.nri": 9}, false},
		"writing":            {map[string]int{"GET topologyawarepolicies.config.nri": 9, "PATCH topologyawarepolicies.config.nri/status": 1}, false},
		"candidates":         {map[string]int{"GET leases.coordination.k8s.io": 200, "UPDATE leases.coordination.k8s.io": 7}, true},
		"making their Lease": {map[string]int{"GET leases.coordination.k8s.io": 200, "CREATE leases.coordination.k8s.io": 1}, false},
	} {
		if got := isQuiet(test.counts); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestWritesAndNodeRequests(t *testing.T) {
	counts := map[string]int{
		"GET nodes": 1, "LIST nodes": 2, "WATCH nodes": 4, "PATCH nodes/status": 8, "DELETE nodefeatures.nfd.k8s-sigs.io": 16,
		"CREATE leases.coordination.k8s.io": 32, "GET nodefeatures.nfd.k8s-sigs.io": 64,
	}
	if got := writes(counts); got != 8+16+32 {
		t.Errorf("%d writes, want 56", got)
	}
	if got := ofNodes(counts); got != 1+2+4+8 {
		t.Errorf("%d requests for Nodes, want 15", got)
	}
}

func TestEach(t *testing.T) {
	before := []usage{{cpu: 100, memory: 9}, {cpu: 0, memory: 9}, {cpu: 50, memory: 9}}
	after := []usage{{cpu: 101, memory: 30}, {cpu: 7, memory: 10}, {cpu: 70, memory: 20}}
	if got, want := each(before, after), (usage{cpu: 7, memory: 20}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestAgentsConfigIsValid(t *testing.T) {
	dir := t.TempDir()
	addresses := map[string]bool{}
	for i := range idleAgents {
		text, err := agentsConfig{policies: idlePolicies, grace: idleGrace, interval: idleInterval}.file(i, filepath.Join(dir, "key"))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, "config.yaml")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := agent.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if time.Duration(c.SweepInterval) != idleInterval || time.Duration(c.Grace) != idleGrace || len(c.StatusKeys[0].Names) != len(idlePolicies) {
			t.Errorf("not what was asked for: %s", text)
		}
		addresses[c.Gossip.BindAddress] = true
	}
	if len(addresses) != idleAgents {
		t.Errorf("%d agents have %d addresses", idleAgents, len(addresses))
	}
}
