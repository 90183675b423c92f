package agent

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// TestPresetsAreValid: a preset is embedded, so an agent has no way to say that one is wrong but to stop.
func TestPresetsAreValid(t *testing.T) {
	presets := Presets()
	if names := presetNames(presets); !slices.Equal(names, []string{
		"aws-network-policy", "azure-npm", "calico", "cilium", "cilium-legacy", "cilium-nodes", "kube-router", "kubernetes", "kubescape", "metallb", "nfd", "nmstate", "node-readiness",
		"noderesourcetopology", "nri-plugins", "sriov",
	}) {
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
		if len(preset.StatusKeys)+len(preset.NodeObjects) == 0 && preset.Kernel == nil || !reflect.DeepEqual(preset.StatusKeys, c.StatusKeys) ||
			!reflect.DeepEqual(preset.NodeObjects, c.NodeObjects) {
			t.Errorf("%s has the targets %+v %+v, its file has %+v %+v", preset.Name, preset.StatusKeys, preset.NodeObjects, c.StatusKeys, c.NodeObjects)
		}
		// Only targets are taken from a preset; whatever else it said would be lost.
		c.StatusKeys, c.NodeObjects = nil, nil
		if c.Kernel != nil {
			if len(c.Kernel.IPSets)+len(c.Kernel.BPFMaps) == 0 || strings.Contains(preset.YAML, "mode:") {
				t.Errorf("%s has no kernel tables, or says what their mode is, which is the operator's to say", preset.Name)
			}
			c.Kernel.IPSets, c.Kernel.BPFMaps = nil, nil
			compare(t, c, mustParse(t, "kernel: {}"))
			c.Kernel = nil
		}
		compare(t, c, mustParse(t, ""))
		for _, target := range preset.StatusKeys {
			if target.UnknownKeys != "Remove" {
				t.Errorf("%s: %s keeps unknown keys, which are what an agent that starts late finds", preset.Name, target.Name)
			}
		}
		for _, target := range preset.NodeObjects {
			if target.UnknownKeys != "Remove" {
				t.Errorf("%s: %s keeps unknown objects, which are what an agent that starts late finds", preset.Name, target.Name)
			}
		}
	}
}

// TestPresetTargets holds what the presets touch.
func TestPresetTargets(t *testing.T) {
	var got []string
	for _, preset := range Presets() {
		for _, target := range preset.StatusKeys {
			for _, path := range target.Paths {
				r := target.Resource
				got = append(got, strings.TrimSpace(strings.Join([]string{target.Name, r.Group + "/" + r.Version, r.Resource, path.Path, path.ListKey, target.TimestampPath}, " ")))
			}
		}
	}
	for _, preset := range Presets() {
		for _, target := range preset.NodeObjects {
			r := target.Resource
			in := cmp.Or(target.NodeName.Label, target.NodeName.Field, "name")
			got = append(got, strings.Join(strings.Fields(strings.Join([]string{
				target.Name, r.Group + "/" + r.Version, r.Resource, target.Namespace, in, string(target.Mode), target.KeepIf.Annotation,
			}, " ")), " "))
		}
	}
	want := []string{
		"cilium-network-policies cilium.io/v2 ciliumnetworkpolicies status.nodes",
		"cilium-clusterwide-network-policies cilium.io/v2 ciliumclusterwidenetworkpolicies status.nodes",
		"nfd-feature-groups nfd.k8s-sigs.io/v1alpha1 nodefeaturegroups status.nodes name",
		"node-readiness-rules readiness.node.x-k8s.io/v1alpha1 nodereadinessrules status.nodeEvaluations nodeName",
		"node-readiness-rules readiness.node.x-k8s.io/v1alpha1 nodereadinessrules status.failedNodes nodeName",
		"nri-topology-aware config.nri/v1alpha1 topologyawarepolicies status.nodes  timestamp",
		"nri-balloons config.nri/v1alpha1 balloonspolicies status.nodes  timestamp",
		"nri-template config.nri/v1alpha1 templatepolicies status.nodes  timestamp",

		"cilium-nodes cilium.io/v2 ciliumnodes name Report cilium.io/do-not-gc",
		"node-leases coordination.k8s.io/v1 leases kube-node-lease name Enforce",
		"csi-nodes storage.k8s.io/v1 csinodes name Report",
		"resource-slices resource.k8s.io/v1 resourceslices spec.nodeName Report",
		"kubescape-cloudproviderinfos hostdata.kubescape.cloud/v1beta1 cloudproviderinfos name Enforce",
		"kubescape-cniinfos hostdata.kubescape.cloud/v1beta1 cniinfos name Enforce",
		"kubescape-controlplaneinfos hostdata.kubescape.cloud/v1beta1 controlplaneinfos name Enforce",
		"kubescape-kernelversions hostdata.kubescape.cloud/v1beta1 kernelversions name Enforce",
		"kubescape-kubeletinfos hostdata.kubescape.cloud/v1beta1 kubeletinfos name Enforce",
		"kubescape-kubeproxyinfos hostdata.kubescape.cloud/v1beta1 kubeproxyinfos name Enforce",
		"kubescape-linuxkernelvariables hostdata.kubescape.cloud/v1beta1 linuxkernelvariables name Enforce",
		"kubescape-linuxsecurityhardeningstatuses hostdata.kubescape.cloud/v1beta1 linuxsecurityhardeningstatuses name Enforce",
		"kubescape-openportslists hostdata.kubescape.cloud/v1beta1 openportslists name Enforce",
		"kubescape-osreleasefiles hostdata.kubescape.cloud/v1beta1 osreleasefiles name Enforce",
		"metallb-configuration-states metallb.io/v1beta1 configurationstates metallb.io/node-name Enforce",
		"nfd-features nfd.k8s-sigs.io/v1alpha1 nodefeatures nfd.node.kubernetes.io/node-name Enforce",
		"node-network-states nmstate.io/v1beta1 nodenetworkstates name Report",
		"node-resource-topologies topology.node.k8s.io/v1alpha2 noderesourcetopologies name Enforce",
		"sriov-node-states sriovnetwork.openshift.io/v1 sriovnetworknodestates name Report sriovnetwork.openshift.io/keep-state-until",
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
		{Name: "one", StatusKeys: []StatusKeysConfig{{Name: "shared"}, {Name: "first"}}},
		{Name: "two", StatusKeys: []StatusKeysConfig{{Name: "shared"}, {Name: "second"}}},
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
	preset := func(name string) Preset {
		return Presets()[slices.IndexFunc(Presets(), func(p Preset) bool { return p.Name == name })]
	}
	preset("nfd").StatusKeys[0].Paths[0].Path = "status.changed"
	preset("calico").Kernel.IPSets[0].Match = "changed"
	if path, match := preset("nfd").StatusKeys[0].Paths[0].Path, preset("calico").Kernel.IPSets[0].Match; path != "status.nodes" || match == "changed" {
		t.Errorf("a change by one caller reached the next: %s, %s", path, match)
	}
}

// TestKernelPresets holds what the presets touch in the kernel, and that they are as cautious as the file is.
func TestKernelPresets(t *testing.T) {
	c := mustParse(t, "presets: [azure-npm, calico, cilium, kube-router, aws-network-policy]")
	var got []string
	for _, s := range c.Kernel.IPSets {
		got = append(got, fmt.Sprint(s.Name, " ", s.Match, " ", s.Types, " ", s.MaxElemNot, " ", s.Scope, " ", s.OnSandboxLoss, " ", s.Mode))
	}
	for _, m := range c.Kernel.BPFMaps {
		a := m.Addresses[0]
		line := fmt.Sprint(m.Name, " ", m.Pin, " ", m.Expect.Type, " ", m.Expect.KeySize, " address ", a.Offset, "+", a.Size, " ", m.Scope, " ", m.OnSandboxLoss, " ", m.Mode)
		if m.PrefixLength != nil {
			line += fmt.Sprint(" prefix ", m.PrefixLength.BaseBits)
		}
		if m.OwnerInterface != nil {
			line += fmt.Sprint(" interface ", m.OwnerInterface.Offset)
		}
		got = append(got, fmt.Sprint(line, " keepIf ", len(m.KeepIf)))
	}
	compare(t, got, []string{
		"npm-pods ^azure-npm- [hash:net hash:ip,port] 4294967295 cluster Report Report",
		"calico-pods ^cali[46]0 [hash:net hash:ip,port] 0 cluster Report Report",
		"kube-router-pods ^(inet6:)?KUBE-(SRC|DST)- [hash:ip] 0 cluster Report Report",
		"calico-routes /sys/fs/bpf/tc/globals/cali_v4_routes* LPMTrie 8 address 4+4 node Report Report prefix 0 interface 4 keepIf 3",
		"calico-ip-sets /sys/fs/bpf/tc/globals/cali_v4_ip_sets* LPMTrie 20 address 12+4 cluster Report Report prefix 64 keepIf 0",
		"calico-named-ports /sys/fs/bpf/tc/globals/cali_v4_ip_sets* LPMTrie 20 address 12+4 cluster Report Report prefix 88 keepIf 0",
		"cilium-lxc /sys/fs/bpf/tc/globals/cilium_lxc Hash 20 address 0+16 node Report Report interface 0 keepIf 1",
		"cilium-ipcache /sys/fs/bpf/tc/globals/cilium_ipcache* LPMTrie 24 address 8+16 cluster Report Report prefix 32 keepIf 0",
		"aws-policy-ingress /sys/fs/bpf/globals/aws/maps/*_ingress_map LPMTrie 8 address 4+4 cluster Report Report prefix 0 keepIf 0",
		"aws-policy-egress /sys/fs/bpf/globals/aws/maps/*_egress_map LPMTrie 8 address 4+4 cluster Report Report prefix 0 keepIf 0",
		"aws-policy-connections /sys/fs/bpf/globals/aws/maps/global_aws_conntrack_map LRUHash 24 address 16+4 node Report Report keepIf 0",
	})

	// The mode is the file's, and its own targets replace those of the same name.
	c = mustParse(t, "presets: [calico]\nkernel: {mode: Enforce, ipsets: [{name: calico-pods, match: own, types: [hash:ip], scope: node, mode: Report}]}")
	if len(c.Kernel.IPSets) != 1 || c.Kernel.IPSets[0].Match != "own" || c.Kernel.IPSets[0].Mode != "Report" || len(c.Kernel.BPFMaps) != 3 || c.Kernel.BPFMaps[0].Mode != "Enforce" {
		t.Errorf("got %+v", c.Kernel)
	}
}
