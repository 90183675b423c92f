package status

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
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

// formerAge is how old an entry of a target or resource that is not configured must be before it is dropped. While a new configuration
// reaches one agent after the other, those with the earlier one do not know the targets of those that are ahead; an hour is long for that.
const formerAge = time.Hour

// Drop removes the entries of targets that are not configured, and of resources that are not, as they were read: what somebody wrote
// meanwhile stays. configured is what there is: the resources as NAMESPACE/NAME by their target's name, none where the target has one owner for
// all. Entries whose last sweep is less than an hour ago stay; left tells that there are such. The SweepReport's owner calls it after a pass.
func (w *TargetWriter) Drop(ctx context.Context, configured map[string][]string) (left bool, err error) {
	return w.drop(ctx, configured, func(string) bool { return true })
}

// DropResources removes the entries of resources that the target does not have, as Drop does. The target's owner calls it when it has listed them.
func (w *TargetWriter) DropResources(ctx context.Context, target string, resources []string) (left bool, err error) {
	return w.drop(ctx, map[string][]string{target: resources}, func(name string) bool { return name == target })
}

func (w *TargetWriter) drop(ctx context.Context, configured map[string][]string, about func(target string) bool) (left bool, err error) {
	_, body, err := w.read(ctx)
	if err != nil {
		return false, err
	}
	maps.DeleteFunc(body.Status.Targets, func(name string, _ json.RawMessage) bool { return !about(name) })
	ops, left := former(body.Status.Targets, configured, time.Now())
	if len(ops) == 0 {
		return left, nil
	}
	return left, w.patchJSON(ctx, append([]operation{{"test", "/metadata/uid", quote(body.Metadata.UID)}}, ops...))
}

// former is what removes the entries that are not configured and old; left tells that some are not old.
func former(targets map[string]json.RawMessage, configured map[string][]string, now time.Time) (ops []operation, left bool) {
	old := func(s TargetStatus) bool { return now.Sub(s.LastSweep.Time) > formerAge }
	for _, name := range sortedKeys(targets) {
		raw := targets[name]
		var entry struct {
			TargetStatus
			Resources map[string]json.RawMessage `json:"resources"`
		}
		readable := json.Unmarshal(raw, &entry) == nil
		at := pointer(FieldPath{"status", "targets", name})
		remove := []operation{{"test", at, raw}, {"remove", at, nil}}
		resources, is := configured[name]
		switch {
		case !is && readable && !old(entry.TargetStatus):
			left = true
			continue
		case !is:
			ops = append(ops, remove...)
			continue
		case !readable || len(resources) == 0: // its owner writes it as a whole
			continue
		}
		stays, before := map[string]TargetStatus{}, len(entry.Resources)
		for _, resource := range sortedKeys(entry.Resources) {
			var s TargetStatus
			readable := json.Unmarshal(entry.Resources[resource], &s) == nil
			switch {
			case slices.Contains(resources, resource):
			case readable && !old(s):
				left = true
			default:
				delete(entry.Resources, resource)
				continue
			}
			stays[resource] = s
		}
		switch len(stays) {
		case before:
		case 0:
			ops = append(ops, remove...)
		default:
			ops = append(ops, operation{"test", at, raw}, operation{"replace", at, summed(stays, entry.Resources)})
		}
	}
	return ops, left
}

// summed is the entry of a target with those resources, as they stand in the report.
func summed(resources map[string]TargetStatus, raw map[string]json.RawMessage) json.RawMessage {
	s := sum(resources)
	entry := struct {
		TargetStatus
		LastSweep *metav1.Time               `json:"lastSweep,omitempty"` // null is no time
		Resources map[string]json.RawMessage `json:"resources"`
	}{TargetStatus: s, Resources: raw}
	if !s.LastSweep.IsZero() {
		entry.LastSweep = &s.LastSweep
	}
	text, err := json.Marshal(entry)
	if err != nil {
		panic("the entry of a target cannot be written as JSON: " + err.Error()) // its resources are JSON that was parsed before
	}
	return text
}
