package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// kubeTimeout bounds each of a kube's requests, with all that client-go does again by itself.
const kubeTimeout = 10 * time.Second

// gossipPortName is what a Service calls the gossip port, where it has several.
const gossipPortName = "gossip"

// kube sends the agent's own few requests, those that are not about what is kept clean. It is safe for concurrent use.
//
// It takes client-go's plain REST client and reads the answers itself: the typed clientset would double the program's size.
type kube struct {
	client  *rest.RESTClient
	host    string
	timeout time.Duration
}

// newKube makes a kube. userAgent is how the API server's logs and metrics name it.
func newKube(config *rest.Config, userAgent string) (*kube, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	config.Timeout = 0 // each request has its own
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	config.WarningHandler = rest.NoWarnings{} // they are about kinds of resources that this program chose, not the operator
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare requests to %s: %w", config.Host, err)
	}
	return &kube{client: client, host: config.Host, timeout: kubeTimeout}, nil
}

// send sends a request and returns the body of a successful answer. Where the API server gave a reason for a failure, the
// error is a *errors.StatusError with it.
func (k *kube) send(ctx context.Context, request *rest.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	body, err := request.DoRaw(ctx)
	if err == nil {
		return body, nil
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		err = &apierrors.StatusError{ErrStatus: status}
	}
	return nil, err
}

// why says what was being done when an error came, and what to do about it. rule is what RBAC must allow, in words.
func (k *kube) why(what, rule string, err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%s: not allowed; grant the agent's service account %s: %w", what, rule, err)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server does not accept these credentials; renew the token or the kubeconfig: %w", what, err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: not found; is %s a Kubernetes API server? %w", what, k.host, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: no answer within %s: %w", what, k.timeout, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// clusterUID is the UID of the namespace kube-system: it lives as long as the cluster, and no two clusters have the same.
func (k *kube) clusterUID(ctx context.Context) (string, error) {
	const what = "read the UID of namespace kube-system"
	body, err := k.send(ctx, k.client.Get().AbsPath("/api/v1/namespaces/kube-system").MaxRetries(0). // who asks does so again
														SetHeader("Accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"))
	if err != nil {
		return "", k.why(what, `"get" on namespaces (resourceNames: kube-system)`, err)
	}
	var namespace metav1.PartialObjectMetadata
	if err := json.Unmarshal(body, &namespace); err != nil {
		return "", fmt.Errorf("%s: the answer is no object; is %s a Kubernetes API server? %w", what, k.host, err)
	}
	if namespace.Name != "kube-system" || namespace.UID == "" {
		return "", fmt.Errorf("%s: the answer names no such namespace; is %s a Kubernetes API server?", what, k.host)
	}
	return string(namespace.UID), nil
}

// probeTimeout bounds the question whether the API server answers: others wait for what an agent owns that cannot reach it.
const probeTimeout = 3 * time.Second

// reachable returns nil when the API server answers this agent. A refusal (403, 429) is an answer: other agents have the same rights, so
// nothing is gained when one of them owns what this one does. Credentials that are not accepted (401) are this agent's own.
func (k *kube) reachable(ctx context.Context) error {
	short := *k
	short.timeout = min(k.timeout, probeTimeout)
	_, err := short.clusterUID(ctx)
	if apierrors.IsForbidden(err) || apierrors.IsTooManyRequests(err) {
		return nil
	}
	return err
}

// maxSlices is how many EndpointSlices are read at most for one of the right address family that has addresses.
const maxSlices = 10

// peers are the addresses, as host:port, of the agents behind a Service, ready or not: those of one EndpointSlice of the address family,
// which holds up to 100 of them in a large cluster and so is enough to join. The port is the one that the Service calls "gossip", else the
// given one.
func (k *kube) peers(ctx context.Context, service ServiceConfig, port int, family discoveryv1.AddressType) ([]string, error) {
	what := fmt.Sprintf("find the other agents in the EndpointSlices of Service %s/%s", service.Namespace, service.Name)
	var others []string // families of slices that were passed over
	next, found := "", false
	for reads := 1; ; reads++ {
		list, err := k.oneSlice(ctx, service, next)
		if err != nil {
			return nil, k.why(what, fmt.Sprintf(`"list" on endpointslices.discovery.k8s.io in namespace %s`, service.Namespace), err)
		}
		for i := range list.Items {
			slice := &list.Items[i]
			if slice.AddressType != family {
				others = append(others, string(slice.AddressType))
			} else if addresses := addressesOf(slice, port); len(addresses) > 0 {
				return addresses, nil
			} else {
				found = true
			}
		}
		switch next = list.Continue; {
		case next != "" && reads < maxSlices:
		case found:
			return nil, nil // nobody yet
		case len(others) > 0:
			return nil, fmt.Errorf("%s: they have %s addresses, and this agent gossips over %s; set gossip.advertiseAddress, or the Service's ipFamilies",
				what, others[0], family)
		default:
			return nil, fmt.Errorf("%s: there is none; does the Service exist, is it headless, and does it select the agents' pods?", what)
		}
	}
}

// oneSlice reads the next EndpointSlice of a Service.
func (k *kube) oneSlice(ctx context.Context, service ServiceConfig, next string) (*discoveryv1.EndpointSliceList, error) {
	request := k.client.Get().
		AbsPath("/apis/discovery.k8s.io/v1/namespaces", service.Namespace, "endpointslices").
		Param("labelSelector", discoveryv1.LabelServiceName+"="+service.Name).
		Param("limit", "1").
		SetHeader("Accept", "application/json")
	if next != "" {
		request = request.Param("continue", next)
	}
	body, err := k.send(ctx, request)
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("the answer is no list of them: %w", err)
	}
	return &list, nil
}

// addressesOf are the addresses in a slice, each with the slice's gossip port if it has one, else the given port.
func addressesOf(slice *discoveryv1.EndpointSlice, port int) []string {
	for _, p := range slice.Ports {
		if p.Name != nil && *p.Name == gossipPortName && p.Port != nil {
			port = int(*p.Port)
		}
	}
	var addresses []string
	for _, e := range slice.Endpoints {
		if len(e.Addresses) > 0 { // what comes after the first has no meaning
			addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(port)))
		}
	}
	return addresses
}
