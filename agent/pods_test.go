package agent

import (
	"encoding/json"
	"math"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/unstale/unstale/dataplane"
)

func podFrom(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	var p corev1.Pod
	if err := yaml.UnmarshalStrict([]byte(text), &p); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return &p
}

var calicoKey = []string{"cni.projectcalico.org/podIP", "vpc.amazonaws.com/pod-ips"}

func TestPodOf(t *testing.T) {
	const head = "metadata: {namespace: ns, name: p, uid: u, creationTimestamp: \"2026-01-02T03:04:05Z\"}\n"
	base := dataplane.Pod{
		PodRef:  dataplane.PodRef{Namespace: "ns", Name: "p", UID: "u"},
		Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	a, b, six := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::1")
	for _, test := range []struct {
		name, text string
		want       func(*dataplane.Pod)
	}{
		{"new", head, func(*dataplane.Pod) {}},
		{"dual stack", head + "status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}, {ip: \"fd00::1\"}]}", func(p *dataplane.Pod) {
			p.Phase, p.Addresses = "Running", []netip.Addr{a, six}
		}},
		{"only podIP", head + "status: {podIP: 10.0.0.1}", func(p *dataplane.Pod) { p.Addresses = []netip.Addr{a} }},
		{"IPv4 in IPv6", head + "status: {podIPs: [{ip: \"::ffff:10.0.0.1\"}]}", func(p *dataplane.Pod) { p.Addresses = []netip.Addr{a} }},
		{"no address at all", head + "status: {podIP: \"\", podIPs: [{ip: \"\"}, {ip: nonsense}]}", func(*dataplane.Pod) {}},
		{"the node's network", head + "spec: {hostNetwork: true}", func(p *dataplane.Pod) { p.HostNetwork = true }},
		{"being deleted", "metadata: {namespace: ns, name: p, uid: u, creationTimestamp: \"2026-01-02T03:04:05Z\", deletionTimestamp: \"2026-01-02T03:05:05Z\", deletionGracePeriodSeconds: 0}\nspec: {terminationGracePeriodSeconds: 90}",
			func(p *dataplane.Pod) { p.Terminating, p.GracePeriod = true, 90*time.Second }},
		{"a static pod's mirror", "metadata: {namespace: ns, name: p, uid: u, creationTimestamp: \"2026-01-02T03:04:05Z\", annotations: {kubernetes.io/config.mirror: x}}\nspec: {terminationGracePeriodSeconds: 30}",
			func(p *dataplane.Pod) { p.GracePeriod = 150 * time.Second }},
		{"sandbox lost", head + "status: {conditions: [{type: Ready, status: \"True\"}, {type: PodReadyToStartContainers, status: \"False\"}]}", func(p *dataplane.Pod) { p.SandboxLost = true }},
		{"sandbox there", head + "status: {conditions: [{type: PodReadyToStartContainers, status: \"True\"}]}", func(*dataplane.Pod) {}},
		{"annotations", "metadata: {namespace: ns, name: p, uid: u, creationTimestamp: \"2026-01-02T03:04:05Z\", annotations: {cni.projectcalico.org/podIP: 10.0.0.1/32, vpc.amazonaws.com/pod-ips: \"10.0.0.2,fd00::1\", other: 10.0.0.9}}",
			func(p *dataplane.Pod) { p.Annotated = []netip.Addr{a, b, six} }},
		{"all containers ended", head + "spec: {initContainers: [{name: i}], containers: [{name: c}]}\nstatus: {initContainerStatuses: [{name: i, state: {terminated: {exitCode: 0}}}], containerStatuses: [{name: c, state: {terminated: {exitCode: 1}}}]}",
			func(p *dataplane.Pod) { p.Stopped = true }},
		{"one has no status yet", head + "spec: {containers: [{name: c}, {name: d}]}\nstatus: {containerStatuses: [{name: c, state: {terminated: {exitCode: 1}}}]}", func(*dataplane.Pod) {}},
		{"one waits", head + "spec: {containers: [{name: c}]}\nstatus: {containerStatuses: [{name: c, state: {waiting: {reason: CrashLoopBackOff}}, lastState: {terminated: {exitCode: 1}}}]}", func(*dataplane.Pod) {}},
		{"an ephemeral one runs", head + "spec: {containers: [{name: c}], ephemeralContainers: [{name: e}]}\nstatus: {containerStatuses: [{name: c, state: {terminated: {exitCode: 1}}}], ephemeralContainerStatuses: [{name: e, state: {running: {}}}]}", func(*dataplane.Pod) {}},
	} {
		t.Run(test.name, func(t *testing.T) {
			want := base
			test.want(&want)
			pod := podFrom(t, test.text)
			if test.name == "new" {
				huge := int64(math.MaxInt64)
				pod.Spec.TerminationGracePeriodSeconds, want.GracePeriod = &huge, dataplane.Seconds(huge)
			}
			utc := func(p dataplane.Pod) dataplane.Pod {
				p.Created = p.Created.UTC()
				return p
			}
			compare(t, utc(podOf(pod, calicoKey)), want)
			// What the agent keeps of it says the same.
			trimmed, err := trimPod(pod)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, utc(trimmed.(*watchedPod).withAnnotations(calicoKey)), want)
			if again, err := trimPod(trimmed); err != nil || again != trimmed {
				t.Errorf("trimmed again: %v, %v", again, err)
			}
		})
	}
}

// What is kept of a pod is small, however large the pod is.
func TestTrimmedPodIsSmall(t *testing.T) {
	pod := podFrom(t, "metadata: {namespace: ns, name: p, uid: u}\nstatus: {podIP: 10.0.0.1}")
	large := string(make([]byte, 100_000))
	pod.Annotations = map[string]string{"large": large, calicoKey[0]: "10.0.0.1/32"}
	pod.Labels = map[string]string{"large": large}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Args: []string{large}}}
	trimmed, err := trimPod(pod)
	if err != nil {
		t.Fatal(err)
	}
	w := trimmed.(*watchedPod)
	text, err := json.Marshal(map[string]any{"meta": w.ObjectMeta, "pod": w.pod, "annotations": w.annotations})
	if err != nil || len(text) > 1000 {
		t.Errorf("%d bytes are kept (%v)", len(text), err)
	}
}

func TestAddressesIn(t *testing.T) {
	for text, want := range map[string]int{
		"": 0, "10.0.0.1": 1, "10.0.0.1/32": 1, "10.0.0.1,fd00::1": 2, "10.0.0.1/32, fd00::1/128": 2, `["10.0.0.1","10.0.0.2"]`: 2, "{10.0.0.1}": 1, "none": 0, "10.0.0.1 10.0.0.300": 1, "///": 0,
	} {
		if got := addressesIn(text); len(got) != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func FuzzAddressesIn(f *testing.F) {
	for _, text := range []string{"10.0.0.1/32", "fd00::1%eth0", `["10.0.0.1", "::ffff:10.0.0.1"]`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range addressesIn(text) {
			if !a.IsValid() || a.Zone() != "" || a.Is4In6() {
				t.Errorf("%q: %v", text, a)
			}
		}
	})
}
