package agent

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

// A unit is what one agent keeps clean on its own: a resource of a target, or all objects of one. Where a target does not name its shared resources,
// listing them is a unit too, and whoever owns that tells the owners of those that it finds.
type unit struct {
	target status.Target // with the unit's own resource as its only name, where the target names it
	// key is what agents agree on an owner for: group/resource/namespace/name, without a name for all.
	key string
	// name is empty for all.
	name types.NamespacedName
	// others are the target's other resources, where it names them.
	others []types.NamespacedName
	// listed tells that the resource is one that was found by a list.
	listed bool
}

// lists tells whether the unit is to list the target's resources.
func (u *unit) lists() bool { return u.name == types.NamespacedName{} && u.target.Objects == nil }

// found is the unit of a resource that was found by the unit that lists.
func (u *unit) found(name types.NamespacedName) unit {
	return unit{target: u.target, key: keyOf(u.target.Resource, name), name: name, listed: true}
}

// keyOf is what agents agree on an owner for.
func keyOf(resource schema.GroupVersionResource, name types.NamespacedName) string {
	return strings.Join([]string{resource.Group, resource.Resource, name.Namespace, name.Name}, "/")
}

// unitsOf splits a target. Units of two targets with the same resource have the same key, and so the same owner.
func unitsOf(target status.Target) []unit {
	if !target.NamesAll() {
		return []unit{{target: target, key: keyOf(target.Resource, types.NamespacedName{Namespace: target.Namespace})}}
	}
	names := make([]types.NamespacedName, len(target.Names))
	for i, name := range target.Names {
		names[i] = types.NamespacedName{Namespace: target.Namespace, Name: name}
	}
	units := make([]unit, len(names))
	for i, name := range names {
		one := target
		one.Names = []string{name.Name}
		units[i] = unit{
			target: one, key: keyOf(target.Resource, name), name: name,
			others: slices.DeleteFunc(slices.Clone(names), func(n types.NamespacedName) bool { return n == name }),
		}
	}
	return units
}

// id tells units apart; one key may belong to several targets.
func (u *unit) id() string { return u.target.Name + " " + u.key }

// resource names the unit's resource where the target's resources have owners of their own.
func (u *unit) resource() string {
	if len(u.others) == 0 && !u.listed {
		return ""
	}
	return u.name.String()
}
