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
	body, err := k.send(ctx, k.client.Get().AbsPath("/api/v1/namespaces/kube-system").
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

// reachable returns nil when the API server answers a read.
func (k *kube) reachable(ctx context.Context) error {
	_, err := k.clusterUID(ctx)
	return err
}

// peers are the addresses, as host:port, of the agents behind a Service, ready or not: those of one EndpointSlice, which holds up
// to 100 of them in a large cluster and so is enough to join. The port is the one that the Service calls "gossip", else the given one.
func (k *kube) peers(ctx context.Context, service ServiceConfig, port int) ([]string, error) {
	what := fmt.Sprintf("find the other agents in the EndpointSlices of Service %s/%s", service.Namespace, service.Name)
	body, err := k.send(ctx, k.client.Get().
		AbsPath("/apis/discovery.k8s.io/v1/namespaces", service.Namespace, "endpointslices").
		Param("labelSelector", discoveryv1.LabelServiceName+"="+service.Name).
		Param("limit", "1").
		SetHeader("Accept", "application/json"))
	if err != nil {
		return nil, k.why(what, fmt.Sprintf(`"list" on endpointslices.discovery.k8s.io in namespace %s`, service.Namespace), err)
	}
	var slices discoveryv1.EndpointSliceList
	if err := json.Unmarshal(body, &slices); err != nil {
		return nil, fmt.Errorf("%s: the answer is no list of them: %w", what, err)
	}
	if len(slices.Items) == 0 {
		return nil, fmt.Errorf("%s: there is none; does the Service exist, is it headless, and does it select the agents' pods?", what)
	}
	return addressesOf(&slices.Items[0], port), nil
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
