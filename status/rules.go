package status

import (
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

// A Rule is an RBAC rule and where it must hold: in one namespace (a Role), or everywhere (a ClusterRole, Namespace is empty).
type Rule struct {
	Namespace string
	rbacv1.PolicyRule
}

// NodeRules are the rules that every target needs: its keys' Nodes are listed now and then, and each is asked for before
// its key is removed.
func NodeRules() []Rule {
	return []Rule{{PolicyRule: rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list"},
	}}}
}

// Rules are the rules that t needs beside NodeRules, and no wider.
func Rules(t *Target) []Rule {
	rules := ownRules(t)
	if t.LivesWith != nil {
		rules = append(rules, Rule{t.LivesWith.Namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}}})
	}
	return rules
}

func ownRules(t *Target) []Rule {
	if t.Objects != nil {
		verbs := []string{"list", "delete"}
		if t.Mode == Report {
			verbs = verbs[:1]
		}
		return []Rule{
			{t.Namespace, rbacv1.PolicyRule{APIGroups: []string{t.Resource.Group}, Resources: []string{t.Resource.Resource}, Verbs: verbs}},
			// Which pod wrote an object is its commonest owner, and an object stays while its owner may exist.
			{t.Namespace, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}},
		}
	}
	read := rbacv1.PolicyRule{
		APIGroups: []string{t.Resource.Group}, Resources: []string{t.Resource.Resource},
		Verbs: []string{"get"}, ResourceNames: t.Names,
	}
	rules := []Rule{{t.Namespace, read}}
	if !t.NamesAll() {
		// RBAC cannot limit a list to names (but for one, with a field selector).
		rules = append(rules, Rule{t.Namespace, rbacv1.PolicyRule{
			APIGroups: read.APIGroups, Resources: read.Resources, Verbs: []string{"list"},
		}})
		if len(t.Names) == 0 {
			rules = rules[1:]
			rules[0].Verbs = []string{"get", "list"}
		}
	}
	if t.Mode == Report {
		return rules
	}
	return append(rules, Rule{t.Namespace, rbacv1.PolicyRule{
		APIGroups: []string{t.Resource.Group}, Resources: []string{t.Resource.Resource + "/status"},
		Verbs: []string{"patch"}, ResourceNames: t.Names,
	}})
}

// RecoveryRules are the rules that a Recovery with these options needs beside NodeRules, in the Nodes' cluster, and no wider. delete on nodes is among them
// only while Nodes are to be deleted. A SweepReport's rules are the agents' own. Of Cluster API's infrastructure nobody knows the resources beforehand, so it is
// all of that group.
func RecoveryRules(o *RecoveryOptions) []Rule {
	rule := func(namespace, group, resource string, verbs ...string) Rule {
		return Rule{namespace, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}}
	}
	verbs := []string{"patch"} // also where tainting is off, to take the taint off
	if o.Policy.PruneAfter > 0 {
		verbs = append(verbs, "delete")
	}
	var rules []Rule
	if o.Mode != Report {
		rules = append(rules, rule("", "", "nodes", verbs...))
	}
	if o.Policy.TaintAfter == 0 && o.Policy.PruneAfter == 0 {
		return rules
	}
	rules = append(rules, rule(nodeLeases, leases.Group, leases.Resource, "get"))
	if o.Policy.PruneAfter > 0 {
		rules = append(rules, rule("", volumeAttachments.Group, volumeAttachments.Resource, "list"))
	}
	if o.Machines == nil {
		rules = append(rules, rule("", machineGroup, "machines", "get"), rule("", "infrastructure."+machineGroup, "*", "get"))
	}
	for _, s := range o.Infrastructure {
		if s.Open == nil {
			rules = append(rules, rule(s.Namespace, s.Resource.Group, s.Resource.Resource, "get", "list"))
		}
	}
	return rules
}

// missingRule tells the operator which of the rules the refused request wants, in the words of a Role.
func missingRule(rules []Rule, r request) string {
	for _, rule := range rules {
		if slices.Contains(rule.APIGroups, r.resource.Group) && slices.Contains(rule.Resources, r.rbacResource()) &&
			slices.Contains(rule.Verbs, r.verb) {
			return rule.String()
		}
	}
	return Rule{r.namespace, rbacv1.PolicyRule{
		APIGroups: []string{r.resource.Group}, Resources: []string{r.rbacResource()}, Verbs: []string{r.verb},
	}}.String()
}

// String is the rule as one line of YAML, and which role it belongs in.
func (r Rule) String() string {
	list := func(items []string) string {
		quoted := make([]string, len(items))
		for i, item := range items {
			quoted[i] = fmt.Sprintf("%q", item)
		}
		return "[" + strings.Join(quoted, ", ") + "]"
	}
	line := fmt.Sprintf("{apiGroups: %s, resources: %s, verbs: %s", list(r.APIGroups), list(r.Resources), list(r.Verbs))
	if len(r.ResourceNames) > 0 {
		line += ", resourceNames: " + list(r.ResourceNames)
	}
	if r.Namespace == "" {
		return line + "} in a ClusterRole"
	}
	return line + "} in a Role in namespace " + r.Namespace
}
