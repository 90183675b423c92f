package agent

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestPresetsAreValid: a preset is embedded, so an agent has no way to say that one is wrong but to stop.
func TestPresetsAreValid(t *testing.T) {
	presets := Presets()
	if names := presetNames(presets); !slices.Equal(names, []string{"cilium-legacy", "nfd", "nri-plugins"}) {
		t.Errorf("got the presets %v", names)
	}
	for _, preset := range presets {
		if len(preset.Summary) < 20 || !strings.HasSuffix(preset.Summary, ".") || strings.ContainsAny(preset.Summary, "#\n") {
			t.Errorf("%s: the summary is %q", preset.Name, preset.Summary)
		}
		if !strings.HasPrefix(preset.YAML, "# ") {
			t.Errorf("%s: the YAML is not the file: %q", preset.Name, preset.YAML)
		}
		c, err := Parse([]byte(preset.YAML))
		if err != nil {
			t.Errorf("%s is not valid:\n%v", preset.Name, err)
			continue
		}
		if len(preset.Targets) == 0 || !reflect.DeepEqual(preset.Targets, c.StatusKeys) {
			t.Errorf("%s has the targets %+v, its file has %+v", preset.Name, preset.Targets, c.StatusKeys)
		}
		// Only targets are taken from a preset; whatever else it said would be lost.
		c.StatusKeys = nil
		compare(t, c, mustParse(t, ""))
		for _, target := range preset.Targets {
			if target.UnknownKeys != "Remove" {
				t.Errorf("%s: %s keeps unknown keys, which are what an agent that starts late finds", preset.Name, target.Name)
			}
		}
	}
}

// TestPresetTargets holds what the presets touch.
func TestPresetTargets(t *testing.T) {
	var got []string
	for _, preset := range Presets() {
		for _, target := range preset.Targets {
			for _, path := range target.Paths {
				r := target.Resource
				got = append(got, strings.TrimSpace(strings.Join([]string{target.Name, r.Group + "/" + r.Version, r.Resource, path.Path, path.ListKey, target.TimestampPath}, " ")))
			}
		}
	}
	want := []string{
		"cilium-network-policies cilium.io/v2 ciliumnetworkpolicies status.nodes",
		"cilium-clusterwide-network-policies cilium.io/v2 ciliumclusterwidenetworkpolicies status.nodes",
		"nfd-feature-groups nfd.k8s-sigs.io/v1alpha1 nodefeaturegroups status.nodes name",
		"nri-topology-aware config.nri/v1alpha1 topologyawarepolicies status.nodes  timestamp",
		"nri-balloons config.nri/v1alpha1 balloonspolicies status.nodes  timestamp",
		"nri-template config.nri/v1alpha1 templatepolicies status.nodes  timestamp",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func targetNamesOf(c *Configuration) string {
	var names []string
	for _, target := range c.StatusKeys {
		names = append(names, target.Name)
	}
	return strings.Join(names, " ")
}

func TestPresetsAreAdded(t *testing.T) {
	c := mustParse(t, "presets: [nri-plugins, nfd]\nstatusKeys: [{name: own, resource: {version: v1, resource: things}, paths: [{path: status.nodes}]}]")
	if got, want := targetNamesOf(c), "nri-topology-aware nri-balloons nri-template nfd-feature-groups own"; got != want {
		t.Errorf("got the targets %s, want %s", got, want)
	}
	if again := targetNamesOf(mustParse(t, "presets: [nfd]")); again != "nfd-feature-groups" {
		t.Errorf("got %s, want nfd-feature-groups", again)
	}
}

func TestTargetOfTheSameNameOverrides(t *testing.T) {
	c := mustParse(t, "presets: [nfd]\nstatusKeys: [{name: nfd-feature-groups, resource: {version: v1, resource: things}, paths: [{path: status.nodes}]}]")
	if len(c.StatusKeys) != 1 || c.StatusKeys[0].Resource.Resource != "things" {
		t.Errorf("got %+v, want the file's target only", c.StatusKeys)
	}
	c = mustParse(t, "presets: [nfd]\nnodeObjects: [{name: nfd-feature-groups, resource: {version: v1, resource: things}, nodeName: {name: {}}}]")
	if len(c.StatusKeys) != 0 {
		t.Errorf("got %+v, want none: the file's target of another kind has the name", c.StatusKeys)
	}
}

func TestPresetsThatShareATarget(t *testing.T) {
	presets := []Preset{
		{Name: "one", Targets: []StatusKeysConfig{{Name: "shared"}, {Name: "first"}}},
		{Name: "two", Targets: []StatusKeysConfig{{Name: "shared"}, {Name: "second"}}},
	}
	clash := Configuration{Presets: []string{"one", "two"}}
	want := Errors{{Path: "presets[1]", Message: "the presets one and two both have a target shared; remove one preset, or give a target of that name in this file, which replaces both"}}
	compare(t, clash.addPresetsOf(presets), want)

	overridden := Configuration{Presets: []string{"one", "two"}, StatusKeys: []StatusKeysConfig{{Name: "shared", Namespace: "own"}}}
	if errs := overridden.addPresetsOf(presets); errs != nil {
		t.Errorf("the file replaces both targets, but got %v", errs)
	}
	if got, want := targetNamesOf(&overridden), "first second shared"; got != want {
		t.Errorf("got the targets %s, want %s", got, want)
	}
}

func TestPresetsAreTheCallersOwn(t *testing.T) {
	Presets()[0].Targets[0].Paths[0].Path = "status.changed"
	if path := Presets()[0].Targets[0].Paths[0].Path; path != "status.nodes" {
		t.Errorf("a change by one caller reached the next: %s", path)
	}
}
