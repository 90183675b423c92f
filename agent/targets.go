package agent

import (
	"fmt"
	"time"

	"github.com/unstale/unstale/status"
)

// StatusTargets are the shared resources, and the resources with an object per node, that the configuration says to keep clean, in the form that the package
// status takes. The configuration must come from Load or Parse.
func (c *Configuration) StatusTargets() []status.Target {
	targets := make([]status.Target, len(c.StatusKeys), len(c.StatusKeys)+len(c.NodeObjects))
	for i, target := range c.StatusKeys {
		targets[i] = status.Target{
			Name:        target.Name,
			Resource:    target.Resource.GroupVersionResource(),
			Namespace:   target.Namespace,
			Names:       target.Names,
			Paths:       keyPaths(target.Paths),
			UnknownKeys: target.UnknownKeys,
			LivesWith:   target.LivesWith.pods(),
			Mode:        moreCautious(c.Mode, target.Mode),
			Grace:       time.Duration(c.Grace),
			MaxRemovals: c.MaxRemovals,
		}
	}
	for _, target := range c.NodeObjects {
		targets = append(targets, status.Target{
			Name:      target.Name,
			Resource:  target.Resource.GroupVersionResource(),
			Namespace: target.Namespace,
			Objects: &status.Objects{
				NodeName:       status.NodeNameIn{Name: target.NodeName.Name != nil, Label: target.NodeName.Label, Field: optionalFieldPath(target.NodeName.Field)},
				KeepAnnotation: target.KeepIf.Annotation, KeepValue: target.KeepIf.Value, DeletesPerSecond: target.DeletesPerSecond,
			},
			UnknownKeys: target.UnknownKeys,
			LivesWith:   target.LivesWith.pods(),
			Mode:        moreCautious(c.Mode, target.Mode),
			Grace:       time.Duration(c.Grace),
			MaxRemovals: c.MaxRemovals,
		})
	}
	return targets
}

// reportTarget is the SweepReport itself: the agents' own keys are those of departed nodes too, some day; or, where agents are known to be pods, of nodes
// that no agent runs on any more.
func (c *Configuration) reportTarget() status.Target {
	var pods *status.PodSelector
	if p := c.Report.Pods; p != nil {
		pods = &status.PodSelector{Namespace: p.Namespace, Labels: p.LabelSelector, OrMember: true}
	}
	return status.Target{
		Name: reportTarget, Resource: status.SweepReports, Names: []string{c.Report.Name}, ClusterScoped: true, Paths: []status.KeyPath{status.ReportNodes},
		LivesWith: pods, UnknownKeys: status.RemoveUnknown, Mode: c.Mode, Grace: time.Duration(c.Grace), MaxRemovals: c.MaxRemovals,
	}
}

// ownTargets are the same targets with what concerns the own key of the node that the agent runs on.
func (c *Configuration) ownTargets() []ownTarget {
	targets := make([]ownTarget, len(c.StatusKeys))
	for i, target := range c.StatusTargets()[:len(c.StatusKeys)] {
		config := c.StatusKeys[i]
		targets[i] = ownTarget{
			Target: target,
			onStop: config.OnStop,
			incarnation: status.IncarnationRule{
				NodeUIDPath:   optionalFieldPath(config.NodeUIDPath),
				TimestampPath: optionalFieldPath(config.TimestampPath),
				Grace:         target.Grace,
				Mode:          target.Mode,
			},
		}
	}
	return targets
}

// pods are those that a key or object lives with; nil: it lives with its node.
func (c *LivesWithConfig) pods() *status.PodSelector {
	if c.Pods == nil {
		return nil
	}
	return &status.PodSelector{Namespace: c.Pods.Namespace, Labels: c.Pods.LabelSelector}
}

// moreCautious is Report when any of the modes is: the top level is the emergency stop for all, and a target that was
// told to report is not made to write by what stands above it.
func moreCautious(modes ...status.Mode) status.Mode {
	for _, mode := range modes {
		if mode != status.Enforce {
			return status.Report
		}
	}
	return status.Enforce
}

func keyPaths(paths []PathConfig) []status.KeyPath {
	converted := make([]status.KeyPath, len(paths))
	for i, p := range paths {
		converted[i] = status.KeyPath{Path: mustParseFieldPath(p.Path), ListKey: p.ListKey}
	}
	return converted
}

func optionalFieldPath(text string) status.FieldPath {
	if text == "" {
		return nil
	}
	return mustParseFieldPath(text)
}

// mustParseFieldPath parses a path that validation has parsed before.
func mustParseFieldPath(text string) status.FieldPath {
	path, err := status.ParseFieldPath(text)
	if err != nil {
		panic(fmt.Sprintf("agent: a configuration that was not validated: the path %v", err))
	}
	return path
}
