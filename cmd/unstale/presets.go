package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/agent"
	"github.com/unstale/unstale/status"
)

func newPresets() *cobra.Command {
	var rbac bool
	cmd := &cobra.Command{
		Use:   "presets [NAME]",
		Short: "List the built-in target sets, or print one",
		Long: `presets lists the built-in target sets; with a NAME it prints that set as it would stand in a configuration file,
with --rbac the roles that it needs.`,
		Example: "  unstale presets\n  unstale presets nri-plugins\n  unstale presets nri-plugins --rbac | kubectl apply -f -",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			if len(args) == 0 {
				if rbac {
					return usageError(errors.New("--rbac needs the NAME of a preset"))
				}
				return failed(listPresets(out))
			}
			preset, err := findPreset(args[0])
			if err != nil {
				return usageError(err)
			}
			if rbac {
				return failed(printRBAC(out, preset))
			}
			_, err = io.WriteString(out, preset.YAML)
			return failed(err)
		},
	}
	cmd.Flags().BoolVar(&rbac, "rbac", false, "print the RBAC roles that the preset needs")
	return cmd
}

func listPresets(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tSUMMARY")
	for _, p := range agent.Presets() {
		fmt.Fprintf(table, "%s\t%s\n", p.Name, p.Summary)
	}
	return table.Flush()
}

func findPreset(name string) (agent.Preset, error) {
	var known []string
	for _, p := range agent.Presets() {
		if p.Name == name {
			return p, nil
		}
		known = append(known, p.Name)
	}
	return agent.Preset{}, fmt.Errorf("there is no preset %q; there are %s", name, strings.Join(known, ", "))
}

// printRBAC prints a ClusterRole, and a Role for each namespace that a target is limited to.
func printRBAC(w io.Writer, preset agent.Preset) error {
	c, err := agent.Parse([]byte(preset.YAML))
	if err != nil {
		return err
	}
	var rules []status.Rule
	if targets := c.StatusTargets(); len(targets) > 0 {
		rules = status.NodeRules()
		for _, target := range targets {
			rules = append(rules, status.Rules(&target)...)
		}
	}
	if c.Kernel != nil {
		rules = append(rules, agent.KernelRules()...)
	}
	var namespaces []string
	byNamespace := map[string][]rbacv1.PolicyRule{}
	for _, rule := range rules {
		if byNamespace[rule.Namespace] == nil {
			namespaces = append(namespaces, rule.Namespace)
		}
		byNamespace[rule.Namespace] = append(byNamespace[rule.Namespace], rule.PolicyRule)
	}
	for i, namespace := range namespaces {
		meta := metav1.ObjectMeta{Name: "unstale-" + preset.Name, Namespace: namespace}
		var role any = rbacv1.ClusterRole{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
			ObjectMeta: meta, Rules: byNamespace[namespace],
		}
		if namespace != "" {
			role = rbacv1.Role{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
				ObjectMeta: meta, Rules: byNamespace[namespace],
			}
		}
		text, err := yaml.Marshal(role)
		if err != nil {
			return err
		}
		if i > 0 {
			fmt.Fprintln(w, "---")
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
	}
	return nil
}
