package agent

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/unstale/unstale/dataplane"
)

// allPodsPage is how many pods are asked for at once where those of the whole cluster are needed.
const allPodsPage = 500

// podsPerSecond bounds the questions about pods. A pass of the scrubber has ten to twenty, after which it rests.
const podsPerSecond = 20

// pods asks the API server for pods. It is safe for concurrent use, and what a dataplane.Cluster is.
type pods struct {
	client *rest.RESTClient
	node   string
	why    func(what, rule string, err error) error
	// annotations are the keys of those that claim addresses.
	annotations func() []string
}

// newPods makes a pods for a node. It knows pods only, not the API's other hundred types, and takes the smaller encoding.
func newPods(config *rest.Config, userAgent, node string, k *kube, annotations func() []string) (*pods, error) {
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	config.APIPath = "/api"
	config.GroupVersion = &corev1.SchemeGroupVersion
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.Timeout = 0 // each request has its own, and a watch none
	config.QPS, config.Burst = podsPerSecond, 2*podsPerSecond
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare requests to %s: %w", config.Host, err)
	}
	return &pods{client: client, node: node, why: k.why, annotations: annotations}, nil
}

const podsRule = `"get", "list" and "watch" on pods`

// list asks for pods that the selector finds, at this moment.
func (p *pods) list(ctx context.Context, selector fields.Selector, continued string, limit int64) (*corev1.PodList, error) {
	ctx, cancel := context.WithTimeout(ctx, kubeTimeout)
	defer cancel()
	request := p.client.Get().Resource("pods").Param("fieldSelector", selector.String())
	if limit > 0 {
		request = request.Param("limit", fmt.Sprint(limit))
	}
	if continued != "" {
		request = request.Param("continue", continued)
	}
	var list corev1.PodList
	return &list, request.Do(ctx).Into(&list)
}

// NodePods are the pods of the node.
func (p *pods) NodePods(ctx context.Context) ([]dataplane.Pod, error) {
	list, err := p.list(ctx, fields.OneTermEqualSelector("spec.nodeName", p.node), "", 0)
	if err != nil {
		return nil, p.why("list the pods of Node "+p.node, podsRule, err)
	}
	return p.of(list.Items), nil
}

// PodsWith are the pods of any node whose first address is that.
func (p *pods) PodsWith(ctx context.Context, address netip.Addr) ([]dataplane.Pod, error) {
	list, err := p.list(ctx, fields.OneTermEqualSelector("status.podIP", address.String()), "", 0)
	if err != nil {
		return nil, p.why("list the pods with address "+address.String(), podsRule, err)
	}
	return p.of(list.Items), nil
}

// all are the pods of all nodes, read page by page.
func (p *pods) all(ctx context.Context) ([]dataplane.Pod, error) {
	var pods []dataplane.Pod
	for next := ""; ; {
		list, err := p.list(ctx, fields.Everything(), next, allPodsPage)
		if err != nil {
			return nil, p.why("list all pods", podsRule, err)
		}
		pods = append(pods, p.of(list.Items)...)
		if next = list.Continue; next == "" {
			return pods, nil
		}
	}
}

func (p *pods) of(items []corev1.Pod) []dataplane.Pod {
	pods := make([]dataplane.Pod, len(items))
	annotations := p.annotations()
	for i := range items {
		pods[i] = podOf(&items[i], annotations)
	}
	return pods
}

// A podHandler hears of the node's pods, one call at a time.
type podHandler struct {
	saw  func(before, now *watchedPod) // before is nil for a pod that is new here
	gone func(last *watchedPod)
}

// A watchedPod is what is kept of a pod of this node.
type watchedPod struct {
	metav1.ObjectMeta                   // what client-go's store needs of it
	pod               dataplane.Pod     // without what annotations claim
	annotations       map[string]string // those that hold addresses
}

// withAnnotations is the pod with what those of its annotations claim.
func (w *watchedPod) withAnnotations(keys []string) dataplane.Pod {
	p := w.pod
	p.Annotated = annotated(w.annotations, keys)
	return p
}

// informer is client-go's for the node's pods. Its store has them all, as *watchedPod. What it returns besides tells whether the handler has heard of
// all that were there at the start; the informer's own word comes a moment too early for that.
func (p *pods) informer(h podHandler) (cache.SharedInformer, cache.ResourceEventHandlerRegistration, error) {
	source := cache.NewListWatchFromClient(p.client, "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", p.node))
	informer := cache.NewSharedInformer(source, &corev1.Pod{}, 0)
	if err := informer.SetTransform(trimPod); err != nil {
		return nil, nil, err
	}
	heard, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { h.saw(nil, now.(*watchedPod)) },
		UpdateFunc: func(before, now any) { h.saw(before.(*watchedPod), now.(*watchedPod)) },
		DeleteFunc: func(last any) {
			if unknown, missed := last.(cache.DeletedFinalStateUnknown); missed {
				last = unknown.Obj
			}
			h.gone(last.(*watchedPod))
		},
	})
	return informer, heard, err
}

// trimPod keeps of a pod what is used, so that the store stays small.
func trimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok { // trimmed before
		return object, nil
	}
	w := &watchedPod{
		ObjectMeta:  metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion},
		pod:         podOf(p, nil),
		annotations: map[string]string{},
	}
	for key, value := range p.Annotations {
		if len(addressesIn(value)) > 0 {
			w.annotations[key] = value
		}
	}
	return w, nil
}

// mirrorPause is how long the API server may lack a static pod that runs on: whoever deletes it there deletes a mirror, which the kubelet makes again when
// it next looks at the pod, within a minute and a half (its syncFrequency of 1 minute, and half of that).
const mirrorPause = 2 * time.Minute

// podOf is what counts of a pod for its addresses.
func podOf(p *corev1.Pod, annotations []string) dataplane.Pod {
	pod := dataplane.Pod{
		PodRef:  dataplane.PodRef{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID)},
		Created: p.CreationTimestamp.Time, HostNetwork: p.Spec.HostNetwork, Phase: dataplane.Phase(p.Status.Phase),
		Terminating: p.DeletionTimestamp != nil, Stopped: stopped(p),
	}
	if p.Status.StartTime != nil {
		pod.Started = p.Status.StartTime.Time
	}
	if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		pod.GracePeriod = dataplane.Seconds(*g)
	}
	if _, mirrors := p.Annotations[corev1.MirrorPodAnnotationKey]; mirrors {
		pod.GracePeriod += mirrorPause
	}
	for _, ip := range p.Status.PodIPs {
		pod.Addresses = appendAddress(pod.Addresses, ip.IP)
	}
	if len(p.Status.PodIPs) == 0 { // API servers fill in both; only their writers may give one
		pod.Addresses = appendAddress(nil, p.Status.PodIP)
	}
	pod.Annotated = annotated(p.Annotations, annotations)
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReadyToStartContainers {
			pod.SandboxLost = c.Status == corev1.ConditionFalse
		}
	}
	return pod
}

// stopped tells whether the status shows each of the pod's containers as terminated.
func stopped(p *corev1.Pod) bool {
	seen := 0
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			if c.State.Terminated == nil {
				return false
			}
			seen++
		}
	}
	return seen > 0 && seen >= len(p.Spec.InitContainers)+len(p.Spec.Containers)+len(p.Spec.EphemeralContainers)
}

func appendAddress(addresses []netip.Addr, text string) []netip.Addr {
	a, err := netip.ParseAddr(text)
	if err != nil {
		return addresses
	}
	return append(addresses, a.Unmap().WithZone(""))
}

// annotated are the addresses in those annotations.
func annotated(annotations map[string]string, keys []string) []netip.Addr {
	var addresses []netip.Addr
	for _, key := range keys {
		addresses = append(addresses, addressesIn(annotations[key])...)
	}
	return addresses
}

// addressesIn reads what CNI plugins write into annotations: addresses, some with a prefix length, some in a list of whatever form.
func addressesIn(text string) []netip.Addr {
	var addresses []netip.Addr
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\n[]{}\"'", r) }) {
		word, _, _ = strings.Cut(word, "/")
		addresses = appendAddress(addresses, word)
	}
	return addresses
}
