package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/unstale/unstale/status"
)

const planNodes = 5000 // and as many keys

var plan = benchmark{
	name:  "plan",
	about: "unstale plan -o json over 5,000 Nodes and one resource with their 5,000 keys, beside a plain client",
	run:   measurePlan,
}

// measurePlan looks for orphans where there are none, with unstale and with a program as one writes it in ten minutes; see
// plainPlan.
func measurePlan(ctx context.Context, s *session) (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	c, err := s.startCluster(ctx)
	if err != nil {
		return err
	}
	defer c.closing(&err)
	names := nodeNames(planNodes)
	s.logf("create %d Nodes", len(names))
	if err := c.createNodes(ctx, newNodes(names)); err != nil {
		return err
	}
	if err := c.createPolicy(ctx, policyName, names); err != nil {
		return err
	}
	config, err := s.writeConfig(keysBatches[0])
	if err != nil {
		return err
	}

	unstalePlan := func() (measurement, error) {
		var m measurement
		c.ours.proxy.Reset()
		u, out, err := s.execute(ctx, s.unstale, "plan", "-o", "json", "--kubeconfig", c.ours.kubeconfig, "--config", config)
		if err != nil {
			return m, err
		}
		m.usage = u
		m.traffic(c.ours.proxy)
		return m, checkPlan(out)
	}
	plain := func() (measurement, error) {
		var m measurement
		c.beside.proxy.Reset()
		u, out, err := s.execute(ctx, self, plainPlanMode, c.beside.kubeconfig)
		if err != nil {
			return m, err
		}
		m.usage = u
		m.traffic(c.beside.proxy)
		if want := plainPlanResult(planNodes, nil); string(out) != want {
			return m, fmt.Errorf("check the plain client: it said %q, want %q", out, want)
		}
		return m, nil
	}

	s.logf("warm up")
	var ours, theirs []measurement
	for run := range s.runs + 1 {
		if run > 0 {
			s.logf("run %d of %d", run, s.runs)
		}
		a, err := unstalePlan()
		if err != nil {
			return err
		}
		b, err := plain()
		if err != nil {
			return err
		}
		if run > 0 {
			ours, theirs = append(ours, a), append(theirs, b)
		}
	}
	s.reportPlan(ours, theirs)
	return nil
}

func (s *session) reportPlan(ours, theirs []measurement) {
	const what = "plain client-go program"
	compare := func(figure, unit string, value func(measurement) float64) {
		s.compare("plan/"+figure, unit, per(1, ours, value), what, per(1, theirs, value))
	}
	compare("time", "s", wallSeconds)
	compare("cpu", "s", cpuSeconds)
	compare("requests", "requests", requestCount)
	s.compareRequests("plan/requests", ours, what, theirs)
	compare("sent", "bytes", bytesOut)
	compare("received", "bytes", bytesIn)
	if knowsMemory(ours) && knowsMemory(theirs) {
		compare("peakMemory", "bytes", peakBytes)
	}
}

// checkPlan fails unless the plan keeps each key because its Node exists.
func checkPlan(output []byte) error {
	var p struct {
		Targets []struct {
			Resources []struct {
				Findings []struct{ Verdict, Reason string }
			}
		}
	}
	if err := json.Unmarshal(output, &p); err != nil {
		return fmt.Errorf("check the plan: %w", err)
	}
	if len(p.Targets) != 1 || len(p.Targets[0].Resources) != 1 {
		return fmt.Errorf("check the plan: not one target with one resource: %.300s", output)
	}
	findings := p.Targets[0].Resources[0].Findings
	for _, f := range findings {
		if f.Reason != string(status.NodeExists) {
			return fmt.Errorf("check the plan: a key is %s/%s, want all to be kept", f.Verdict, f.Reason)
		}
	}
	if len(findings) != planNodes {
		return fmt.Errorf("check the plan: %d findings, want %d", len(findings), planNodes)
	}
	return nil
}
