package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/deploy"
	"github.com/unstale/unstale/test/apiserver"
)

// newRecoveryCast is a cluster with a Ready Node, and one that has been Unknown for an hour and is opted in, and a configuration with more of nodeRecovery.
func newRecoveryCast(t *testing.T) *cast {
	t.Helper()
	c := &cast{T: t, server: apiserver.Shared(t)}
	c.server.Install(t, deploy.SweepReportCRD)
	c.server.Apply(t, "", deploy.SweepReport)
	for _, name := range []string{"ready", "unknown"} {
		node := apiserver.Unique(name)
		c.nodes = append(c.nodes, node)
		c.server.CreateNode(t, node, map[string]string{"unstale.dev/removable": "true"})
		c.server.PatchStatus(t, apiserver.Nodes, "", node, fmt.Sprintf(`{"status": {"conditions": [{"type": "Ready", "status": %q, "lastTransitionTime": %q}]}}`,
			map[string]string{"ready": "True", "unknown": "Unknown"}[name], time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)))
	}
	c.proxy = c.server.Proxy(t)
	return c
}

func (c *cast) recovery(text string) {
	c.Helper()
	c.config = writeFile(c.T, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\nnodeRecovery: "+text+"\n")
}

// plan tells what would become of Nodes that are Unknown, and when, and writes nothing.
func TestPlanOfNodes(t *testing.T) {
	c := newRecoveryCast(t)
	c.recovery("{prune: {after: 10m, minReadyEtcdMembers: 0, maxUnhealthy: 100%}}")
	r := c.run("plan", "--exit-code")
	r.want(t, exitWouldRemove, "nodeRecovery", c.nodes[1], "Prune", "UnknownTooLong", "Unknown for 1h", "Keep NodeReady 1")
	if strings.Contains(r.stdout, c.nodes[0]) {
		t.Errorf("a Ready Node is shown:\n%s", r.stdout)
	}
	c.recovery("{prune: {after: 2h, minReadyEtcdMembers: 0, maxUnhealthy: 100%}}")
	r = c.run("plan", "--exit-code", "-o", "json")
	r.want(t, exitDone)
	var plan struct {
		Targets []struct {
			Target, Kind, State string
			Resources           []struct {
				Name     string
				Findings []struct {
					Key, Verdict, Reason string
					NotBefore            time.Time
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(r.stdout), &plan); err != nil {
		t.Fatal(err)
	}
	if len(plan.Targets) != 1 || plan.Targets[0].Kind != "nodeRecovery" || len(plan.Targets[0].Resources) != 2 {
		t.Fatalf("%+v", plan)
	}
	for _, resource := range plan.Targets[0].Resources {
		f := resource.Findings[0]
		if resource.Name != f.Key {
			t.Errorf("%+v", resource)
		}
		if f.Key == c.nodes[1] && (f.Verdict != "Keep" || f.Reason != "BelowThreshold" || f.NotBefore.Before(time.Now().Add(58*time.Minute)) || f.NotBefore.After(time.Now().Add(62*time.Minute))) {
			t.Errorf("%+v", f)
		}
	}
	c.run("plan").want(t, exitDone, "not before "+time.Now().UTC().Format("2006"))
	for _, request := range c.proxy.Requests() {
		if request.Method != "GET" {
			t.Errorf("%s %s", request.Method, request.Path)
		}
	}
	c.recovery("{prune: {after: 10m, minReadyEtcdMembers: 0, maxUnhealthy: 100%}, infrastructure: [{name: hosts, resource: {group: no.such, version: v1, resource: hosts}, match: {annotation: a/b}}], clusterAPI: {kubeconfig: /nonexistent}}")
	c.run("plan").want(t, exitDone, "Prune") // no annotation names anything
}

// untaint takes our taint off, and says which Nodes had it, or why it could not.
func TestUntaint(t *testing.T) {
	c := newRecoveryCast(t)
	untaint := func() result { return runProgram(t, "untaint", "--kubeconfig", c.proxy.Kubeconfig(t)) }
	untaint().want(t, exitDone, "no Node has the taint")
	taint := func() {
		t.Helper()
		patch := []byte(`{"spec": {"taints": [{"key": "node.kubernetes.io/out-of-service", "value": "unstale", "effect": "NoExecute"}, {"key": "a", "effect": "NoSchedule"}]}}`)
		if _, err := c.server.Dynamic().Resource(apiserver.Nodes).Patch(t.Context(), c.nodes[1], types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	taint()
	untaint().want(t, exitDone, "node/"+c.nodes[1]+" untainted")
	if text := string(c.server.GetJSON(t, "/api/v1/nodes/"+c.nodes[1])); strings.Contains(text, "out-of-service") || !strings.Contains(text, `"key":"a"`) {
		t.Error(text)
	}
	taint()
	c.proxy.SetFault(apiserver.On("PATCH nodes", apiserver.Refuse(403, metav1.StatusReasonForbidden, "not on my watch")))
	untaint().want(t, exitFailed, "Node "+c.nodes[1], "not on my watch")
	runProgram(t, "untaint", "--config", "x").want(t, exitUsage, "unknown flag")
	runProgram(t, "untaint", "--kubeconfig", "/nonexistent").want(t, exitUsage, "/nonexistent")
}
