package agent

import (
	"fmt"
	"time"

	"github.com/unstale/unstale/status"
)

// StatusTargets are the shared resources that the configuration says to keep clean, in the form that the package
// status takes. The configuration must come from Load or Parse.
func (c *Configuration) StatusTargets() []status.Target {
	targets := make([]status.Target, len(c.StatusKeys))
	for i, target := range c.StatusKeys {
		targets[i] = status.Target{
			Name:        target.Name,
			Resource:    target.Resource.GroupVersionResource(),
			Namespace:   target.Namespace,
			Names:       target.Names,
			Paths:       keyPaths(target.Paths),
			UnknownKeys: target.UnknownKeys,
			Mode:        moreCautious(c.Mode, target.Mode),
			Grace:       time.Duration(c.Grace),
			MaxRemovals: c.MaxRemovals,
		}
	}
	return targets
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

// mustParseFieldPath parses a path that validation has parsed before.
func mustParseFieldPath(text string) status.FieldPath {
	path, err := status.ParseFieldPath(text)
	if err != nil {
		panic(fmt.Sprintf("agent: a configuration that was not validated: the path %v", err))
	}
	return path
}
