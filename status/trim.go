package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodesComplete is the condition of a SweepReport that says whether all agents have their keys in it.
const NodesComplete = "NodesComplete"

// Trim keeps a SweepReport below what etcd takes: where there are more than MaxNodeKeys agents it removes the keys of those that succeeded,
// and says so in the condition NodesComplete. agents is how many there are. The SweepReport's owner calls it after a pass.
func (w *TargetWriter) Trim(ctx context.Context, agents int) error {
	data, err := w.client.bytes(ctx, request{verb: "get", resource: SweepReports, name: w.report, accept: acceptJSON})
	if err != nil {
		return w.explain(err)
	}
	paths := []KeyPath{ReportNodes}
	r, err := ParseResource(data, paths)
	if err != nil {
		return err
	}
	body, err := parseReport(data)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(surplus(r.Entries, agents), MaxRemovalsLimit) {
		if err := w.patchJSON(ctx, removal(r, paths, batch)); err != nil {
			return fmt.Errorf("remove the keys of agents that succeeded, of which there are too many: %w", err)
		}
	}
	conditions, changed := nodesComplete(body.Status.Conditions, agents, metav1.NewTime(time.Now().UTC()))
	if !changed {
		return nil
	}
	_, err = w.merge(ctx, map[string]any{"conditions": conditions}, acceptMetadata)
	return err
}

// surplus are the entries that have no room.
func surplus(entries []Entry, agents int) []Entry {
	if max(agents, len(entries)) <= MaxNodeKeys {
		return nil
	}
	var surplus []Entry
	for _, e := range entries {
		var entry NodeEntry
		if json.Unmarshal(e.Raw, &entry) == nil && entry.Status == NodeSuccess {
			surplus = append(surplus, e)
		}
	}
	return surplus
}

// nodesComplete brings the condition up to date. It is only there once there were too many agents.
func nodesComplete(conditions []metav1.Condition, agents int, now metav1.Time) ([]metav1.Condition, bool) {
	want := metav1.Condition{
		Type: NodesComplete, Status: metav1.ConditionTrue, Reason: "AllNodes", LastTransitionTime: now,
		Message: "every agent has its key in status.nodes",
	}
	if agents > MaxNodeKeys {
		want.Status, want.Reason = metav1.ConditionFalse, "TooManyNodes"
		want.Message = fmt.Sprintf("there are more than %d agents, so only those that failed have their keys in status.nodes", MaxNodeKeys)
	}
	i := slices.IndexFunc(conditions, func(c metav1.Condition) bool { return c.Type == NodesComplete })
	switch {
	case i < 0 && want.Status == metav1.ConditionTrue:
		return conditions, false
	case i < 0:
		return append(slices.Clone(conditions), want), true
	case conditions[i].Status == want.Status:
		return conditions, false
	}
	conditions = slices.Clone(conditions)
	conditions[i] = want
	return conditions, true
}
