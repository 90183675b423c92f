package agent

import (
	"encoding/json"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/status"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// header begins the configurations of the tests.
const header = "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\n"

// mustParse parses a configuration of the tests, without its header, as if all parts were built.
func mustParse(t *testing.T, text string) *Configuration {
	t.Helper()
	c, err := parse([]byte(header+text), validate, (*Configuration).addPresets)
	if err != nil {
		t.Fatalf("%s\nis not valid:\n%v", text, err)
	}
	return c
}

func readTestFile(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestErrorMessages holds what operators read about each wrong file: testdata/errors/x.yaml has testdata/errors/x.txt
// beside it. go test ./agent -update writes those.
func TestErrorMessages(t *testing.T) {
	goldenErrors(t, "errors", Parse)
}

// compareFile compares with a golden file, or writes it.
func compareFile(t *testing.T, golden, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func goldenErrors(t *testing.T, dir string, parse func([]byte) (*Configuration, error)) {
	files, err := filepath.Glob(filepath.Join("testdata", dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in testdata/%s: %v", dir, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c, err := parse(data)
			if err == nil || c != nil {
				t.Fatalf("got a configuration %v and the error %v, want an error only", c, err)
			}
			compareFile(t, strings.TrimSuffix(file, ".yaml")+".txt", err.Error()+"\n")
		})
	}
}

// TestExample holds the format as it is documented: all of it is understood, and valid.
func TestExample(t *testing.T) {
	data := readTestFile(t, "example.yaml")
	if _, err := Parse(data); err != nil {
		t.Fatalf("the example is not valid:\n%v", err)
	}
}

// TestExampleIsComplete finds fields that were added to the types and not to the documented example.
func TestExampleIsComplete(t *testing.T) {
	var c Configuration
	d := newDecoder()
	d.decode(readTestFile(t, "example.yaml"), &c)
	inExample := map[string]bool{
		// What the example shows in comments, because only one of its kind can be given.
		"statusKeys.livesWith.pods": true, "nodeObjects.livesWith.pods": true,
		"nodeObjects.nodeName.name": true, "nodeObjects.nodeName.field": true,
		"nodeRecovery.infrastructure.match.annotation": true,
		// A kernel target without a mode of its own is in the example too.
		"kernel.bpfMaps.mode": true,
	}
	positions := regexp.MustCompile(`\[\d+\]`)
	for at := range d.lines {
		inExample[positions.ReplaceAllString(string(at), "")] = true
	}
	var visit func(location, reflect.Type)
	visit = func(at location, kind reflect.Type) {
		switch kind.Kind() {
		case reflect.Pointer, reflect.Slice:
			visit(at, kind.Elem())
		case reflect.Struct:
			for i, name := range fieldNames(kind) {
				inner := at.field(name)
				if !inExample[string(inner)] {
					t.Errorf("%s is not in the example", inner)
				}
				if !strings.HasSuffix(string(inner), "livesWith.pods") { // shown at report.pods
					visit(inner, kind.Field(i).Type)
				}
			}
		}
	}
	visit("", reflect.TypeFor[Configuration]())
}

func TestDefaults(t *testing.T) {
	c, err := Parse([]byte(header))
	if err != nil {
		t.Fatal(err)
	}
	want := &Configuration{
		APIVersion:    "unstale.dev/v1alpha1",
		Kind:          "AgentConfiguration",
		Mode:          status.Enforce,
		SweepInterval: Duration(5 * time.Minute),
		Grace:         Duration(time.Minute),
		MaxRemovals:   50,
		Report:        ReportConfig{Name: "unstale"},
		Gossip:        GossipConfig{Port: 7947},
		HTTP:          HTTPConfig{DebugAddress: "127.0.0.1:9810", MetricsAddress: "127.0.0.1:9811"},
	}
	compare(t, c, want)
}

func compare[T any](t *testing.T, got, want T) {
	t.Helper()
	if reflect.DeepEqual(got, want) {
		return
	}
	g, _ := json.MarshalIndent(got, "", " ")
	w, _ := json.MarshalIndent(want, "", " ")
	t.Errorf("got\n%s\nwant\n%s", g, w)
}

func TestTargetDefaults(t *testing.T) {
	c := mustParse(t, `
statusKeys:
- name: with-node
  resource: {version: v1, resource: things}
  paths: [{path: status.nodes}]
- name: with-pods
  resource: {version: v1, resource: things}
  paths: [{path: status.nodes}]
  livesWith: {pods: {labelSelector: app=x}}
- name: explicit
  resource: {version: v1, resource: things}
  paths: [{path: status.nodes}]
  livesWith: {node: , pods: {labelSelector: app=x}}
  onStop: Always
nodeObjects:
- name: objects
  resource: {version: v1, resource: things}
  nodeName: {name: {}}
`)
	things := ResourceConfig{Version: "v1", Resource: "things"}
	paths := []PathConfig{{Path: "status.nodes"}}
	withNode := LivesWithConfig{Node: &struct{}{}}
	withPods := LivesWithConfig{Pods: &PodsConfig{LabelSelector: "app=x"}}
	compare(t, c.StatusKeys, []StatusKeysConfig{
		{Name: "with-node", Resource: things, Paths: paths, LivesWith: withNode, UnknownKeys: "Keep", OnStop: "NodeLeaving", Mode: "Enforce"},
		{Name: "with-pods", Resource: things, Paths: paths, LivesWith: withPods, UnknownKeys: "Keep", OnStop: "Never", Mode: "Enforce"},
		{Name: "explicit", Resource: things, Paths: paths, LivesWith: withPods, UnknownKeys: "Keep", OnStop: "Always", Mode: "Enforce"},
	})
	compare(t, c.NodeObjects, []NodeObjectsConfig{
		{Name: "objects", Resource: things, NodeName: NodeNameConfig{Name: &struct{}{}}, LivesWith: withNode, UnknownKeys: "Keep", DeletesPerSecond: 20, Mode: "Enforce"},
	})
}

func TestKernelDefaults(t *testing.T) {
	c := mustParse(t, `
kernel:
  ipsets: [{name: a, match: x, types: ["hash:ip"], scope: node}]
  bpfMaps: [{name: b, pin: /x, addresses: [{size: 4}], scope: node}]
`)
	compare(t, c.Kernel, &KernelConfig{
		Mode:                  "Report",
		Grace:                 Duration(10 * time.Second),
		StateDir:              "/var/lib/unstale",
		PodAddressAnnotations: []string{"cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"},
		MaxRemovals:           64,
		IPSets:                []IPSetConfig{{Name: "a", Match: "x", Types: []string{"hash:ip"}, Scope: "node", OnSandboxLoss: "Report", Mode: "Report"}},
		BPFMaps:               []BPFMapConfig{{Name: "b", Pin: "/x", Addresses: []AddressConfig{{Size: 4, Role: "owner"}}, Scope: "node", OnSandboxLoss: "Report", Mode: "Report"}},
		Conntrack:             ConntrackConfig{Enabled: true, Mode: "Report"},
		Neighbors:             NeighborsConfig{Enabled: true, Mode: "Report"},
		HNS:                   HNSConfig{Enabled: true, ACLPrefix: "azure-acl-", Mode: "Report"},
	})
}

func TestKernelTargetsTakeTheModeOfTheirSection(t *testing.T) {
	c := mustParse(t, `
kernel:
  mode: Enforce
  ipsets: [{name: a, match: x, types: ["hash:ip"], scope: node, mode: Report}]
  bpfMaps: [{name: b, pin: /x, addresses: [{size: 4}], scope: node}]
  neighbors: {mode: Report}
`)
	got := []status.Mode{c.Kernel.IPSets[0].Mode, c.Kernel.BPFMaps[0].Mode, c.Kernel.Conntrack.Mode, c.Kernel.Neighbors.Mode, c.Kernel.HNS.Mode}
	compare(t, got, []status.Mode{"Report", "Enforce", "Enforce", "Report", "Enforce"})
}

func TestRecoveryDefaults(t *testing.T) {
	c := mustParse(t, "nodeRecovery: {}")
	compare(t, c.NodeRecovery, &NodeRecoveryConfig{
		Taint: TaintConfig{Confirm: "Infrastructure", NodeSelector: map[string]string{"unstale.dev/removable": "true"}},
		Prune: PruneConfig{Label: "unstale.dev/removable", MinReadyEtcdMembers: 3, MaxUnhealthy: 40, Interval: Duration(time.Minute)},
	})
}

// TestEveryNodeIsNotTheDefaultSelector: {} widens what may be tainted, so it must not be taken for "absent", nor
// the other way round.
func TestEveryNodeIsNotTheDefaultSelector(t *testing.T) {
	every := mustParse(t, "nodeRecovery: {taint: {nodeSelector: {}}}")
	if selector := every.NodeRecovery.Taint.NodeSelector; selector == nil || len(selector) != 0 {
		t.Errorf("an empty nodeSelector became %v", selector)
	}
	labelled := mustParse(t, "nodeRecovery: {prune: {label: example.com/gone}}")
	compare(t, labelled.NodeRecovery.Taint.NodeSelector, map[string]string{"example.com/gone": "true"})
	if every.Hash() == mustParse(t, "nodeRecovery: {}").Hash() {
		t.Error("the hash does not tell an empty nodeSelector from an absent one")
	}
}

func TestNullIsTheDefault(t *testing.T) {
	c := mustParse(t, "mode:\ngrace: ~\npresets: null\nreport: null\ngossip: {port: null, service: null}\nkernel: null\nstatusKeys:\n")
	want := mustParse(t, "")
	compare(t, c, want)
}

func TestJSONIsAccepted(t *testing.T) {
	data := "{\n\t\"apiVersion\": \"unstale.dev/v1alpha1\",\n\t\"kind\": \"AgentConfiguration\",\n\t\"grace\": \"90s\", \"presets\": [\"nfd\"]\n}\n"
	c, err := Parse([]byte(data))
	if err != nil {
		t.Fatal(err)
	}
	if c.Grace != Duration(90*time.Second) || len(c.StatusKeys) != 1 {
		t.Errorf("got the grace %s and %d targets, want 90s and 1", c.Grace, len(c.StatusKeys))
	}
}

// TestEffectiveConfigurationIsAConfiguration: what an agent shows as its configuration can be used as a file.
func TestEffectiveConfigurationIsAConfiguration(t *testing.T) {
	for _, text := range []string{string(readTestFile(t, "example.yaml")), header + "presets: [nri-plugins, nfd]", header + "nodeRecovery: {taint: {nodeSelector: {}}}"} {
		c, err := parse([]byte(text), validate, (*Configuration).addPresets)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parse(asJSON, validate, (*Configuration).addPresets)
		if err != nil {
			t.Fatalf("%s\nis not valid:\n%v", asJSON, err)
		}
		if again.Hash() != c.Hash() {
			t.Errorf("came back as another configuration: %s", asJSON)
		}
	}
}

func TestHash(t *testing.T) {
	base := mustParse(t, "").Hash()
	if len(base) != 12 || strings.Trim(base, "0123456789abcdef") != "" {
		t.Errorf("%q is not 12 hex digits", base)
	}
	for _, same := range []string{"# a comment", "grace: 1m", "grace: 60s\nmode: Enforce", "presets: []\nstatusKeys: []"} {
		if hash := mustParse(t, same).Hash(); hash != base {
			t.Errorf("%q means the default, but its hash differs", same)
		}
	}
	for _, other := range []string{"grace: 61s", "mode: Report", "presets: [nfd]"} {
		if hash := mustParse(t, other).Hash(); hash == base {
			t.Errorf("%q does not change the hash", other)
		}
	}
}

func TestLoad(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	writeFile(t, file, header+"grace: 30s\n")
	c, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Grace != Duration(30*time.Second) {
		t.Errorf("got the grace %s, want 30s", c.Grace)
	}
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	missing, invalid, tooLarge, largest := filepath.Join(dir, "missing"), filepath.Join(dir, "invalid"), filepath.Join(dir, "large"), filepath.Join(dir, "largest")
	writeFile(t, invalid, header+"grace: 0s\n")
	filler := func(size int) string { return header + "#" + strings.Repeat("x", size-len(header)-1) }
	writeFile(t, tooLarge, filler(maxFileSize+1))
	writeFile(t, largest, filler(maxFileSize))
	for _, test := range []struct {
		file string
		want []string
	}{
		{missing, []string{"read the configuration file", missing, "check the path"}},
		{dir, []string{"read the configuration file", dir, "is a directory; name the file in it"}},
		{tooLarge, []string{"read the configuration file", tooLarge, "more than 1048576 bytes"}},
		{invalid, []string{"the configuration file " + invalid + " is not valid:\n", "grace: must be from 1s to 1h, got 0s (line 3)"}},
	} {
		c, err := Load(test.file)
		if err == nil || c != nil {
			t.Errorf("%s: got a configuration and the error %v, want an error only", test.file, err)
			continue
		}
		for _, want := range test.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got the error %q, want %q in it", err, want)
			}
		}
	}
	if _, err := Load(missing); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want it to wrap fs.ErrNotExist", err)
	}
	var errs Errors
	if _, err := Load(invalid); !errors.As(err, &errs) {
		t.Errorf("got %v, want it to wrap Errors", err)
	}
	if _, err := Load(largest); err != nil {
		t.Errorf("a file of the largest size: %v", err)
	}
}

func TestDurationIsWrittenShort(t *testing.T) {
	for text, want := range map[string]string{"300s": "5m", "3600s": "1h", "90s": "1m30s", "1h30m": "1h30m", "10s": "10s", "0s": "0s", "1h10s": "1h0m10s", "10m": "10m", "500ms": "500ms"} {
		var d Duration
		if err := d.UnmarshalText([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if d.String() != want {
			t.Errorf("%s is written %s, want %s", text, d, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/*.yaml", "testdata/*/*.yaml", "presets/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			f.Fatalf("no files %s: %v", pattern, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		// Without the refusal of what is not built the fuzzer sees more of the code.
		c, err := parse(data, validate, (*Configuration).addPresets)
		if err != nil {
			checkErrors(t, c, err)
			return
		}
		again, err := parse(data, validate, (*Configuration).addPresets)
		if err != nil || again.Hash() != c.Hash() {
			t.Errorf("read twice, it is not the same: %v", err)
		}
		for _, target := range c.StatusTargets() {
			if target.Name == "" || len(target.Paths) == 0 && target.Objects == nil {
				t.Errorf("a target that is not complete: %+v", target)
			}
		}
	})
}

func checkErrors(t *testing.T, c *Configuration, err error) {
	t.Helper()
	var errs Errors
	if c != nil || !errors.As(err, &errs) || len(errs) == 0 {
		t.Fatalf("got the configuration %v and the error %v", c, err)
	}
	for _, e := range errs {
		if e.Message == "" || e.Path != "" && e.Line == 0 {
			t.Errorf("an error without a message or a line: %+v", e)
		}
		if strings.Contains(e.Path, "\n") {
			t.Errorf("a path over several lines: %q", e.Path)
		}
	}
}
