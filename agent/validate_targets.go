package agent

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/unstale/unstale/status"
)

// reservedNames are the targets that the configuration does not name, because there is one of each.
var reservedNames = []string{"conntrack", "neighbors", "hns", "nodeRecovery"}

// maxDeletesPerSecond is more than an API server should be asked for.
const maxDeletesPerSecond = 1000

// A namedTarget is a target's name and where it is given.
type namedTarget struct {
	name string
	at   location
}

// namedTargets are the targets that have names, of all kinds.
func (c *Configuration) namedTargets() []namedTarget {
	var targets []namedTarget
	add := func(list location, index int, name string) {
		targets = append(targets, namedTarget{name: name, at: list.item(index)})
	}
	for i := range c.StatusKeys {
		add("statusKeys", i, c.StatusKeys[i].Name)
	}
	for i := range c.NodeObjects {
		add("nodeObjects", i, c.NodeObjects[i].Name)
	}
	if c.Kernel != nil {
		for i := range c.Kernel.IPSets {
			add("kernel.ipsets", i, c.Kernel.IPSets[i].Name)
		}
		for i := range c.Kernel.BPFMaps {
			add("kernel.bpfMaps", i, c.Kernel.BPFMaps[i].Name)
		}
	}
	return targets
}

// TargetNames are the names of all targets, those of the presets too.
func (c *Configuration) TargetNames() []string {
	var names []string
	for _, target := range c.namedTargets() {
		names = append(names, target.name)
	}
	return names
}

// targetNames checks the names of all targets together: one name, one target, whatever its kind.
func (f *checks) targetNames(c *Configuration) {
	first := map[string]location{}
	for _, target := range c.namedTargets() {
		at := target.at.field("name")
		if !f.required(at, target.name, "my-target") {
			continue
		}
		if slices.Contains(reservedNames, target.name) {
			f.failf(at, "must not be %s, which is the name of a target that the agent has of its own", quote(target.name))
			continue
		}
		f.label(at, target.name)
		if other, taken := first[target.name]; taken {
			f.failf(at, "must be unique, but %s is also the name of %s", quote(target.name), other)
			continue
		}
		first[target.name] = target.at
	}
}

func (f *checks) statusKeys(at location, c StatusKeysConfig) {
	f.resource(at.field("resource"), c.Resource)
	f.namespace(at.field("namespace"), c.Namespace)
	first := map[string]int{}
	for i, name := range c.Names {
		inner := at.field("names").item(i)
		f.objectName(inner, name)
		if other, taken := first[name]; taken {
			f.failf(inner, "repeats names[%d]; keep one", other)
			continue
		}
		first[name] = i
	}
	f.keyPaths(at.field("paths"), c.Paths)
	f.entryPath(at.field("timestampPath"), c.TimestampPath, c.Paths)
	f.entryPath(at.field("nodeUIDPath"), c.NodeUIDPath, c.Paths)
	f.livesWith(at.field("livesWith"), c.LivesWith)
	oneOf(f, at.field("unknownKeys"), c.UnknownKeys, status.KeepUnknown, status.RemoveUnknown)
	oneOf(f, at.field("onStop"), c.OnStop, status.StopAlways, status.StopNodeLeaving, status.StopNever)
	f.mode(at.field("mode"), c.Mode)
}

func (f *checks) resource(at location, c ResourceConfig) {
	if c.Group != "" {
		f.objectName(at.field("group"), c.Group)
	}
	if f.required(at.field("version"), c.Version, "v1alpha1") {
		f.label(at.field("version"), c.Version)
	}
	if f.required(at.field("resource"), c.Resource, "topologyawarepolicies") && len(validation.IsDNS1123Label(c.Resource)) > 0 {
		f.failf(at.field("resource"), "must be the plural, lower-case name of the resource, such as topologyawarepolicies, without a subresource; got %s", quote(c.Resource))
	}
}

// keyPaths wants at least one path, all below status, none the same as another or inside it: two removals of one key
// in one write would fail that write.
func (f *checks) keyPaths(at location, paths []PathConfig) {
	if len(paths) == 0 {
		f.failf(at, "is required: at least one, such as {path: status.nodes}")
	}
	parsed := make([]status.FieldPath, len(paths))
	for i, c := range paths {
		f.listKey(at.item(i).field("listKey"), c.ListKey)
		inner := at.item(i).field("path")
		path, err := status.ParseFieldPath(c.Path)
		switch {
		case err != nil:
			f.failf(inner, "%v", err)
			continue
		case path[0] != "status" || len(path) < 2:
			f.failf(inner, "must lie below status, such as status.nodes, got %s", quote(c.Path))
			continue
		}
		if clash := clashing(path, parsed[:i]); clash != "" {
			f.failf(inner, "%s; keep one", clash)
		}
		parsed[i] = path
	}
}

// clashing says which of the other paths (nil is none) is the same as a path, or inside it, or around it.
func clashing(path status.FieldPath, others []status.FieldPath) string {
	for i, other := range others {
		switch {
		case other == nil:
		case slices.Equal(path, other):
			return fmt.Sprintf("repeats paths[%d]", i)
		case isInside(path, other):
			return fmt.Sprintf("lies inside paths[%d]", i)
		case isInside(other, path):
			return fmt.Sprintf("has paths[%d] inside it", i)
		}
	}
	return ""
}

// isInside says whether inner leads to something inside what outer leads to.
func isInside(inner, outer status.FieldPath) bool {
	return len(inner) > len(outer) && slices.Equal(inner[:len(outer)], outer)
}

func (f *checks) listKey(at location, key string) {
	if key != "" && key != status.ListOfStrings && (strings.ContainsAny(key, ".[]/") || !isFieldName(key)) {
		f.failf(at, `must be empty for a map, "." for a list of strings, or the name of one field of the list's items, got %s`, quote(key))
	}
}

// entryPath checks an optional path in an entry, which a list of strings cannot have.
func (f *checks) entryPath(at location, text string, paths []PathConfig) {
	if text == "" {
		return
	}
	if _, err := status.ParseFieldPath(text); err != nil {
		f.failf(at, "%v", err)
	}
	isStrings := func(c PathConfig) bool { return c.ListKey == status.ListOfStrings }
	if len(paths) > 0 && !slices.ContainsFunc(paths, func(c PathConfig) bool { return !isStrings(c) }) {
		f.failf(at, "leads to nothing: the entries of a list of strings have no fields; remove it")
	}
}

func (f *checks) livesWith(at location, c LivesWithConfig) {
	if c.Node != nil && c.Pods != nil {
		f.failf(at, "must be either node or pods, not both")
	}
	if c.Pods != nil {
		f.pods(at.field("pods"), *c.Pods)
	}
}

func (f *checks) nodeObjects(at location, c NodeObjectsConfig) {
	f.resource(at.field("resource"), c.Resource)
	if c.Resource.Group == "" && c.Resource.Resource == "nodes" {
		f.failf(at.field("resource"), "must not be the Nodes themselves; only nodeRecovery deletes those")
	}
	f.namespace(at.field("namespace"), c.Namespace)
	f.nodeName(at.field("nodeName"), c.NodeName)
	f.livesWith(at.field("livesWith"), c.LivesWith)
	oneOf(f, at.field("unknownKeys"), c.UnknownKeys, status.KeepUnknown, status.RemoveUnknown)
	f.inRange(at.field("deletesPerSecond"), c.DeletesPerSecond, 1, maxDeletesPerSecond)
	keepIf := at.field("keepIf")
	if c.KeepIf.Annotation != "" {
		f.qualifiedKey(keepIf.field("annotation"), c.KeepIf.Annotation)
	} else if c.KeepIf.Value != "" {
		f.failf(keepIf.field("annotation"), "is required with a value, such as example.com/keep")
	}
	f.mode(at.field("mode"), c.Mode)
}

func (f *checks) nodeName(at location, c NodeNameConfig) {
	given := 0
	if c.Label != "" {
		given++
		f.qualifiedKey(at.field("label"), c.Label)
	}
	if c.Name != nil {
		given++
	}
	if c.Field != "" {
		given++
		switch path, err := status.ParseFieldPath(c.Field); {
		case err != nil:
			f.failf(at.field("field"), "%v", err)
		case !path.Readable():
			f.failf(at.field("field"), "must be metadata.name, metadata.namespace, a label or annotation such as metadata.annotations[example.com/node], metadata.ownerReferences.Node, or lie outside of metadata; got %s", quote(c.Field))
		}
	}
	if given != 1 {
		f.failf(at, "must be exactly one of label, name and field, such as {label: example.com/node-name} or {name: {}}")
	}
}
