package main

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeName is a name as clouds give them, always 40 bytes long for i below 100,000.
func nodeName(i int) string {
	return fmt.Sprintf("ip-10-%03d-%03d.eu-west-1.compute.internal", i/1000, i%1000)
}

func nodeNames(n int) []string {
	var names []string
	for i := range n {
		names = append(names, nodeName(i))
	}
	return names
}

// newNodes are Nodes of those names.
func newNodes(names []string) []*corev1.Node {
	var nodes []*corev1.Node
	for i, name := range names {
		nodes = append(nodes, newNode(i, name))
	}
	return nodes
}

// newNode is a Node of the size that real ones have, 5 to 8 KB: with the labels of a cloud and of a feature discovery,
// and a kubelet's status.
func newNode(i int, name string) *corev1.Node {
	address := fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)
	id := digest(i)
	instance := "i-0" + id[:16]
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: nodeLabels(i, name),
			Annotations: map[string]string{
				"alpha.kubernetes.io/provided-node-ip":                   address,
				"csi.volume.kubernetes.io/nodeid":                        fmt.Sprintf(`{"ebs.csi.example.com":%q}`, instance),
				"nfd.node.kubernetes.io/feature-labels":                  "cpu-cpuid.AVX2,cpu-cpuid.AVX512F,cpu-model.vendor_id,kernel-version.major,pci-10de.present",
				"node.alpha.kubernetes.io/ttl":                           "300",
				"volumes.kubernetes.io/controller-managed-attach-detach": "true",
			},
		},
		Spec: corev1.NodeSpec{
			PodCIDR: fmt.Sprintf("10.%d.%d.0/24", 128+i>>8&127, i&255), PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 128+i>>8&127, i&255)},
			ProviderID: "aws:///eu-west-1a/" + instance,
		},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: address},
				{Type: corev1.NodeInternalDNS, Address: name},
				{Type: corev1.NodeHostName, Address: name},
			},
			Capacity:        nodeResources("64", "528183648Ki", "250"),
			Allocatable:     nodeResources("63770m", "519996768Ki", "250"),
			Conditions:      nodeConditions(),
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Images:          nodeImages(i),
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: "amd64", OperatingSystem: "linux", KernelVersion: "6.12.40-63.114.x86_64", OSImage: "Linux 2023.8.20260707",
				ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.37.2",
				MachineID: id[:32], SystemUUID: uuid(id), BootID: uuid(id[28:]),
			},
		},
	}
}

func nodeLabels(i int, name string) map[string]string {
	zone := fmt.Sprintf("eu-west-1%c", 'a'+i%3)
	labels := map[string]string{
		"beta.kubernetes.io/arch":          "amd64",
		"beta.kubernetes.io/instance-type": "m7i.16xlarge",
		"beta.kubernetes.io/os":            "linux",
		"kubernetes.io/arch":               "amd64",
		"kubernetes.io/hostname":           name,
		"kubernetes.io/os":                 "linux",
		"node.kubernetes.io/instance-type": "m7i.16xlarge",
		"node.kubernetes.io/pool":          fmt.Sprintf("workers-%d", i%20),
		"topology.ebs.csi.example.com":     zone,
		"topology.kubernetes.io/region":    "eu-west-1",
		"topology.kubernetes.io/zone":      zone,
	}
	for _, feature := range []string{
		"cpu-cpuid.AVX2", "cpu-cpuid.AVX512F", "cpu-cpuid.VMX", "cpu-hardware_multithreading", "cpu-rdt.RDTMBA", "pci-10de.present", "system-os_release.ID",
	} {
		labels["feature.node.kubernetes.io/"+feature] = "true"
	}
	return labels
}

func nodeResources(cpu, memory, pods string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse(cpu),
		corev1.ResourceMemory:           resource.MustParse(memory),
		corev1.ResourcePods:             resource.MustParse(pods),
		corev1.ResourceEphemeralStorage: resource.MustParse("104779756Ki"),
		"hugepages-1Gi":                 resource.MustParse("0"),
		"hugepages-2Mi":                 resource.MustParse("0"),
	}
}

func nodeConditions() []corev1.NodeCondition {
	since := metav1.NewTime(time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC))
	condition := func(of corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{
			Type: of, Status: status, Reason: reason, Message: message, LastHeartbeatTime: since, LastTransitionTime: since,
		}
	}
	return []corev1.NodeCondition{
		condition(corev1.NodeNetworkUnavailable, corev1.ConditionFalse, "RouteCreated", "RouteController created a route"),
		condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
		condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
		condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
		condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"),
	}
}

// nodeImages are 20 of the 60 that the cluster runs. Digests are as random as real ones, or answers would be compressed too well.
func nodeImages(node int) []corev1.ContainerImage {
	var images []corev1.ContainerImage
	for n := range 20 {
		i := (node*7 + n) % 60
		repository := fmt.Sprintf("registry.example.com/team-%d/service", i)
		images = append(images, corev1.ContainerImage{
			Names: []string{
				repository + "@sha256:" + digest(i),
				fmt.Sprintf("%s:v1.%d.%d", repository, i, i*7%10),
			},
			SizeBytes: int64(40_000_000 + 7_654_321*i),
		})
	}
	return images
}

// digest is a number's SHA-256 in hexadecimal digits.
func digest(i int) string {
	return fmt.Sprintf("%x", sha256.Sum256(strconv.AppendInt(nil, int64(i), 10)))
}

// uuid writes hexadecimal digits as a UUID.
func uuid(hex string) string {
	return hex[:8] + "-" + hex[8:12] + "-" + hex[12:16] + "-" + hex[16:20] + "-" + hex[20:32]
}
