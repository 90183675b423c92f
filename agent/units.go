package agent

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/status"
)

// A unit is what one agent keeps clean on its own: a named resource of a target, or all resources of a target that does not name
// them, so that they must be listed.
type unit struct {
	target status.Target // with the unit's own resource as its only name, where it has one
	// key is what agents agree on an owner for: group/resource/namespace/name, without a name for all.
	key string
	// name is empty for all.
	name types.NamespacedName
	// others are the target's other resources.
	others []types.NamespacedName
}

// unitsOf splits a target. Units of two targets with the same resource have the same key, and so the same owner.
func unitsOf(target status.Target) []unit {
	key := func(name string) string {
		return strings.Join([]string{target.Resource.Group, target.Resource.Resource, target.Namespace, name}, "/")
	}
	if !target.NamesAll() {
		return []unit{{target: target, key: key("")}}
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
			target: one, key: key(name.Name), name: name,
			others: slices.DeleteFunc(slices.Clone(names), func(n types.NamespacedName) bool { return n == name }),
		}
	}
	return units
}

// id tells units apart; one key may belong to several targets.
func (u *unit) id() string { return u.target.Name + " " + u.key }

// resource names the unit's resource where the target's resources have owners of their own.
func (u *unit) resource() string {
	if len(u.others) == 0 {
		return ""
	}
	return u.name.String()
}
