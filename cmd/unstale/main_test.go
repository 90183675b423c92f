package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

var update = flag.Bool("update", false, "write the golden files instead of comparing with them")

// asProgram in the environment makes the test binary behave as the program itself, so that tests can start and kill it.
const asProgram = "UNSTALE_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if name := os.Getenv(asProgram); name != "" {
		os.Exit(run(append([]string{name}, os.Args[1:]...)))
	}
	os.Exit(apiserver.Run(m))
}

// A result is what a run of the program came to.
type result struct {
	code           int
	stdout, stderr string
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), asProgram+"=unstale", "KUBECONFIG=/nonexistent", "HOME="+t.TempDir())
	return cmd
}

func runProgram(t *testing.T, args ...string) result {
	t.Helper()
	return finish(t, command(t, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, isExit := err.(*exec.ExitError); err != nil && !isExit {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func (r result) want(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Errorf("exit status %d, want %d", r.code, code)
	}
	for _, w := range words {
		if !strings.Contains(r.stdout+r.stderr, w) {
			t.Errorf("it does not say %q", w)
		}
	}
	if t.Failed() {
		t.Logf("stdout:\n%s\nstderr:\n%s", r.stdout, r.stderr)
	}
}

// A cast is a cluster with two Nodes and a policy with their keys and those of three orphans.
type cast struct {
	*testing.T
	server    *apiserver.Server
	proxy     *apiserver.Proxy
	namespace string
	nodes     []string
	config    string
}

const enforce = "mode: Enforce"

func newCast(t *testing.T, options ...string) *cast {
	t.Helper()
	c := &cast{T: t, server: apiserver.Shared(t)}
	c.server.Install(t, apiserver.TopologyAwarePolicyCRD)
	c.namespace = c.server.Namespace(t)
	c.nodes = []string{apiserver.Unique("node"), apiserver.Unique("node")}
	c.server.CreateNodes(t, c.nodes...)
	c.server.Apply(t, c.namespace, fmt.Sprintf(`
apiVersion: config.nri/v1alpha1
kind: TopologyAwarePolicy
metadata: {name: default}
spec: {}
status:
  nodes:
    %s: {status: Success, generation: 1, errors: "", timestamp: "2026-07-01T12:00:00Z"}
    %s: {status: Success, generation: 1, errors: "", timestamp: "2026-07-01T12:00:00Z"}
    gone-a: {status: Success, generation: 1, errors: "", timestamp: "2026-07-01T12:00:00Z"}
    gone-b: {status: Failure, generation: 1, errors: "it's <broken>", timestamp: "2026-07-01T12:00:00Z"}
    gone-c: {status: Success, generation: 1, errors: "", timestamp: "2026-07-01T12:00:00Z"}
`, c.nodes[0], c.nodes[1]))
	c.proxy = c.server.Proxy(t)
	c.config = c.write(append([]string{"grace: 1s"}, options...)...)
	return c
}

func (c *cast) write(options ...string) string {
	c.Helper()
	return writeFile(c.T, fmt.Sprintf(`apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
%s
statusKeys:
- name: nri
  resource: {group: config.nri, version: v1alpha1, resource: topologyawarepolicies}
  namespace: %s
  names: [default]
  paths: [{path: status.nodes}]
  unknownKeys: Remove
`, strings.Join(options, "\n"), c.namespace))
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "unstale.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// left are the keys in the policy, sorted, with the Nodes' names as n0 and n1.
func (c *cast) left() string {
	c.Helper()
	object := c.server.Get(c, apiserver.TopologyAwarePolicies, c.namespace, "default").Object
	status, _ := object["status"].(map[string]any)
	nodes, _ := status["nodes"].(map[string]any)
	var keys []string
	for key := range nodes {
		if i := slices.Index(c.nodes, key); i >= 0 {
			key = fmt.Sprintf("n%d", i)
		}
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func (c *cast) run(command string, args ...string) result {
	c.Helper()
	return runProgram(c.T, append([]string{command, "--config", c.config, "--kubeconfig", c.proxy.Kubeconfig(c)}, args...)...)
}

// stable makes output comparable between runs.
func (c *cast) stable(text string) string {
	for i, name := range c.nodes {
		text = strings.ReplaceAll(text, name, fmt.Sprintf("n%d", i))
	}
	text = strings.ReplaceAll(text, c.namespace, "NAMESPACE")
	text = regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:.]+Z`).ReplaceAllString(text, "TIME")
	return regexp.MustCompile(` {2,}(\S)`).ReplaceAllString(text, "  $1") // a table's columns are as wide as the names
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update writes it anew):\ngot\n%s\nwant\n%s", name, got, want)
	}
}

func TestPlan(t *testing.T) {
	c := newCast(t)
	r := c.run("plan")
	r.want(t, exitDone)
	golden(t, "plan.txt", c.stable(r.stdout))
	r = c.run("plan", "--all")
	golden(t, "plan-all.txt", c.stable(r.stdout))

	r = c.run("plan", "-o", "json")
	r.want(t, exitDone)
	golden(t, "plan.json", c.stable(r.stdout))
	if !json.Valid([]byte(r.stdout)) || r.stderr != "" {
		t.Errorf("not only JSON: %s %s", r.stdout, r.stderr)
	}

	c.run("plan", "--exit-code").want(t, exitWouldRemove)
	if left := c.left(); left != "gone-a gone-b gone-c n0 n1" {
		t.Errorf("plan removed something: left %s", left)
	}
	for _, request := range c.proxy.Requests() {
		if request.Method != http.MethodGet {
			t.Errorf("plan wrote: %s %s", request.Method, request.Path)
		}
		if !strings.HasPrefix(request.UserAgent, "unstale/") {
			t.Errorf("user agent %q", request.UserAgent)
		}
	}
}

func TestSweep(t *testing.T) {
	c := newCast(t)
	r := c.run("sweep", "--log-format", "json")
	r.want(t, exitDone, "3 keys may be stale. Looking again in 1s")
	golden(t, "sweep.txt", c.stable(r.stdout))
	if left := c.left(); left != "n0 n1" {
		t.Errorf("left %s", left)
	}
	if n := strings.Count(r.stderr, `"putBack":"kubectl patch topologyawarepolicies.v1alpha1.config.nri default --namespace `); n != 3 {
		t.Errorf("%d removals logged with what puts them back, want 3:\n%s", n, r.stderr)
	}
	c.run("plan", "--exit-code").want(t, exitDone)

	// With nothing to remove it does not wait.
	r = c.run("sweep", "-o", "json")
	r.want(t, exitDone)
	if strings.Contains(r.stderr, "Looking again") {
		t.Error("it waited for nothing")
	}
}

// A disk that is full must not cost the only copy of an entry.
func TestSweepThatCannotLog(t *testing.T) {
	c := newCast(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, format := range []string{"console", "json"} {
		cmd := command(t, "sweep", "--config", c.config, "--kubeconfig", c.proxy.Kubeconfig(t), "--log-format", format)
		var stdout bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, full
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != exitFailed {
			t.Errorf("%s: ended with %v, want status 1", format, err)
		}
		if left := c.left(); left != "gone-a gone-b gone-c n0 n1" {
			t.Errorf("%s: left %s", format, left)
		}
		if !strings.Contains(stdout.String(), "the log with what puts it back cannot be written") {
			t.Errorf("%s: it says %s", format, stdout.String())
		}
	}
	cmd := command(t, "presets")
	cmd.Stdout = full
	if err := cmd.Run(); cmd.ProcessState.ExitCode() != exitFailed {
		t.Errorf("presets that cannot be printed: ended with %v", err)
	}
}

// A single run has not seen the Nodes that were gone before: it says so at once and does not wait.
func TestSweepWithUnknownKeysKept(t *testing.T) {
	c := newCast(t)
	text, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	c.config = writeFile(t, strings.Replace(string(text), "unknownKeys: Remove", "unknownKeys: Keep", 1))
	r := c.run("sweep")
	r.want(t, exitDone, "Keep", "UnknownName", "set unknownKeys: Remove")
	if strings.Contains(r.stderr, "Looking again") {
		t.Error("it waited in vain")
	}
}

func TestSweepInReportMode(t *testing.T) {
	c := newCast(t, "mode: Report")
	r := c.run("sweep")
	r.want(t, exitDone, "Remove NodeGone 3", "nothing was removed, because the mode is Report")
	if left := c.left(); left != "gone-a gone-b gone-c n0 n1" {
		t.Errorf("left %s", left)
	}
}

// Killed before, in, or after the write, and run again: it finishes, and no living key goes.
func TestSweepKilled(t *testing.T) {
	const write = "PATCH topologyawarepolicies.config.nri/status"
	for _, test := range []struct {
		name  string
		fault func(kill func()) *apiserver.Fault
		class string
		left  string
	}{
		{"before it asks for the Nodes", func(kill func()) *apiserver.Fault {
			return &apiserver.Fault{Before: func(*http.Request) { kill() }, Drop: true}
		}, "GET nodes", "gone-a gone-b gone-c n0 n1"},
		{"before the write", func(kill func()) *apiserver.Fault {
			return &apiserver.Fault{Before: func(*http.Request) { kill() }, Drop: true}
		}, write, "gone-a gone-b gone-c n0 n1"},
		{"in the write", func(kill func()) *apiserver.Fault {
			return &apiserver.Fault{After: func(*http.Request, int) { kill() }, Lose: true}
		}, write, "n0 n1"},
		{"after the first batch", func(kill func()) *apiserver.Fault {
			return &apiserver.Fault{After: func(*http.Request, int) { kill() }}
		}, write, "gone-b gone-c n0 n1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			options := []string{enforce}
			if test.name == "after the first batch" {
				options = append(options, "maxRemovals: 1")
			}
			c := newCast(t, options...)
			cmd := command(t, "sweep", "--config", c.config, "--kubeconfig", c.proxy.Kubeconfig(t))
			started := make(chan struct{})
			kill := func() {
				<-started
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
			c.proxy.SetFault(apiserver.On(test.class, test.fault(kill)).Times(1))
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			close(started)
			if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != -1 {
				t.Fatalf("ended with %v, want it killed", err)
			}
			if left := c.left(); left != test.left {
				t.Errorf("left after the kill: %s, want %s", left, test.left)
			}
			c.proxy.SetFault(nil)
			c.config = c.write("grace: 1s")
			c.run("sweep").want(t, exitDone)
			if left := c.left(); left != "n0 n1" {
				t.Errorf("left %s", left)
			}
		})
	}
}

// A signal ends a sweep that waits, and nothing was removed.
func TestSweepInterrupted(t *testing.T) {
	c := newCast(t)
	c.config = c.write("grace: 1h")
	cmd := command(t, "sweep", "--config", c.config, "--kubeconfig", c.proxy.Kubeconfig(t))
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 4096)
	n, err := stderr.Read(said) // until it says that it waits
	if err != nil || !strings.Contains(string(said[:n]), "Looking again in 1h0m0s") {
		t.Fatalf("it says %q, %v", said[:n], err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	n, _ = stderr.Read(said)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(string(said[:n]), "nothing was removed") {
		t.Errorf("exit status %d, it says %q", code, said[:n])
	}
	if left := c.left(); left != "gone-a gone-b gone-c n0 n1" {
		t.Errorf("left %s", left)
	}
}

// One target that fails does not keep the others from being cleaned, and the exit status tells.
func TestSweepOfSeveralTargets(t *testing.T) {
	c := newCast(t)
	text, err := os.ReadFile(c.config)
	if err != nil {
		t.Fatal(err)
	}
	more := string(text) + `
- name: not-there
  resource: {group: nowhere.example.com, version: v1, resource: widgets}
  paths: [{path: status.nodes}]
`
	c.config = writeFile(t, more)
	c.run("sweep").want(t, exitDone, "not-there: NotInstalled: the API group nowhere.example.com is not installed", "nri: OK")
	if left := c.left(); left != "n0 n1" {
		t.Errorf("left %s", left)
	}
	c.proxy.SetFault(apiserver.On("LIST widgets.nowhere.example.com", apiserver.Refuse(500, metav1.StatusReasonInternalError, "down")))
	c.run("plan").want(t, exitFailed, "not-there: Unavailable", "nri: OK", "not all was done: not-there is Unavailable")
}

func TestNodesCannotBeListed(t *testing.T) {
	c := newCast(t)
	c.proxy.SetFault(apiserver.On("LIST nodes", apiserver.Refuse(403, metav1.StatusReasonForbidden,
		`nodes is forbidden: User "jane" cannot list resource "nodes" in API group "" at the cluster scope`)))
	c.run("plan").want(t, exitFailed, "nri: Forbidden", `{apiGroups: [""], resources: ["nodes"], verbs: ["get", "list"]} in a ClusterRole`)
	c.run("sweep").want(t, exitFailed, "nri: Forbidden")
	if left := c.left(); left != "gone-a gone-b gone-c n0 n1" {
		t.Errorf("left %s", left)
	}
}

func TestPresets(t *testing.T) {
	r := runProgram(t, "presets")
	r.want(t, exitDone, "nri-plugins", "nfd", "cilium-legacy", "azure-npm", "kube-router", "aws-network-policy")
	runProgram(t, "presets", "calico", "--rbac").want(t, exitDone, "- pods", "- watch")
	runProgram(t, "presets", "nri-plugins").want(t, exitDone, "topologyawarepolicies", "kind: AgentConfiguration")
	r = runProgram(t, "presets", "nri-plugins", "--rbac")
	r.want(t, exitDone)
	golden(t, "presets-nri-plugins-rbac.yaml", r.stdout)
	runProgram(t, "presets", "nonesuch").want(t, exitUsage, `no preset "nonesuch"`, "nri-plugins")
	runProgram(t, "presets", "--rbac").want(t, exitUsage, "needs the NAME of a preset")
}

// What a preset prints as RBAC is enough for a sweep with that preset, and needs no more.
func TestPresetRBACIsEnough(t *testing.T) {
	c := newCast(t)
	user := apiserver.Unique("cleaner")
	for _, role := range c.server.Apply(t, "", runProgram(t, "presets", "nri-plugins", "--rbac").stdout) {
		c.server.Apply(t, "", fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %s}]
`, user, role.GetName(), user))
	}
	kubeconfig := apiserver.WriteKubeconfig(t, c.proxy.As(user))
	config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\ngrace: 1s\npresets: [nri-plugins]\n")
	apiserver.Eventually(t, "the role to be in force", func() error {
		if r := runProgram(t, "plan", "--config", config, "--kubeconfig", kubeconfig); r.code != exitDone {
			return fmt.Errorf("exit status %d: %s%s", r.code, r.stdout, r.stderr)
		}
		return nil
	})
	runProgram(t, "sweep", "--config", config, "--kubeconfig", kubeconfig).want(t, exitDone)
	if left := c.left(); left != "n0 n1" {
		t.Errorf("left %s", left)
	}
}

func TestValidate(t *testing.T) {
	runProgram(t, "validate", "--config", writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\npresets: [nri-plugins]\n")).
		want(t, exitDone, "is valid: 3 targets")
	runProgram(t, "validate", "--config", writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\npresets: [calico, nfd]\n")).
		want(t, exitDone, "is valid: 6 targets")
	bad := writeFile(t, `apiVersion: unstale.dev/v1alpha1
kind: AgentConfiguration
grace: soon
sweepIntervall: 5m
maxRemovals: many
statusKeys:
- name: a
  resource: {group: g.example.com, version: v1, resource: widgets}
  paths: [{path: status.nodes}]
- name: a
  resource: {group: g.example.com, version: v1, resource: widgets}
  paths: [{path: "status..nodes"}]
`)
	for _, command := range []string{"validate", "plan", "sweep"} {
		runProgram(t, command, "--config", bad).want(t, exitUsage,
			"grace: ", "sweepIntervall: unknown field", "maxRemovals: ", "statusKeys[1].name: ", "statusKeys[1].paths[0].path: ")
		runProgram(t, command, "--config", filepath.Join(t.TempDir(), "absent.yaml")).want(t, exitUsage, "absent.yaml", "no such file")
		runProgram(t, command).want(t, exitUsage, "--config FILE")
	}
}

func TestUsage(t *testing.T) {
	config := writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\npresets: [nri-plugins]\n")
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, exitDone, "plan"},
		{[]string{"version"}, exitDone, "unstale dev (commit"},
		{[]string{"--version"}, exitDone, "unstale version dev"},
		{[]string{"plann"}, exitUsage, `unknown command "plann"`},
		{[]string{"plan", "--nonesuch"}, exitUsage, "unknown flag: --nonesuch"},
		{[]string{"plan", "extra"}, exitUsage, "unknown command \"extra\""},
		{[]string{"plan", "--config", config, "--preset", "nfd"}, exitUsage, "exclude one another"},
		{[]string{"plan", "--preset", "nonesuch"}, exitUsage, "nonesuch"},
		{[]string{"plan", "--preset", "]{"}, exitUsage, "]{"},
		{[]string{"plan", "--config", config, "-o", "yaml"}, exitUsage, "must be text or json"},
		{[]string{"plan", "--config", config, "--log-format", "xml"}, exitUsage, "must be console or json"},
		{[]string{"plan", "--config", config, "--kubeconfig", "/nonexistent"}, exitUsage, "find the API server"},
		{[]string{"plan", "--config", config}, exitUsage, "find the API server"},
		{[]string{"plan", "--kernel", "--preset", "calico"}, exitUsage, "say which Node this is: --node NAME"},
		{[]string{"plan", "--kernel", "--config", config, "--node", "n"}, exitUsage, "has no kernel tables"},
		{[]string{"plan", "--kernel", "--preset", "calico", "--node", "n"}, exitUsage, "find the API server"},
		{[]string{"kernel", "dump", "--preset", "calico"}, exitUsage, "say which Node this is: --node NAME"},
		{[]string{"kernel", "dump", "--preset", "calico", "--node", "n", "-o", "xml"}, exitUsage, "must be text or json"},
		{[]string{"kernel", "dmp"}, exitUsage, `unknown command "dmp"`},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) { runProgram(t, test.args...).want(t, test.code, test.says) })
	}
}

func TestContext(t *testing.T) {
	c := newCast(t)
	c.run("plan", "--context", "nonesuch").want(t, exitUsage, "nonesuch")
}

func TestNoTargets(t *testing.T) {
	c := newCast(t)
	c.config = writeFile(t, "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\n")
	c.run("plan").want(t, exitDone, "no targets in the cluster")
	r := c.run("plan", "-o", "json")
	r.want(t, exitDone, `"targets": []`)
}

func TestKubectlPlugin(t *testing.T) {
	cmd := command(t, "plan", "--help")
	cmd.Env = append(cmd.Env, asProgram+"=/usr/local/bin/kubectl-unstale")
	finish(t, cmd).want(t, exitDone, "kubectl unstale plan [flags]")
}
