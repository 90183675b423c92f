package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/test/apiserver"
)

func mustKube(t *testing.T, config *rest.Config) *kube {
	t.Helper()
	k, err := newKube(config, "unstale-test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestClusterUID(t *testing.T) {
	server := apiserver.Shared(t)
	proxy := server.Proxy(t)
	k := mustKube(t, proxy.Config())
	uid, err := k.clusterUID(t.Context())
	if want := string(server.Get(t, apiserver.Namespaces, "", "kube-system").GetUID()); err != nil || uid != want {
		t.Errorf("got %q and the error %v, want %q", uid, err, want)
	}
	requests := proxy.Requests()
	if len(requests) != 1 || requests[0].Class != "GET namespaces" || requests[0].UserAgent != "unstale-test" {
		t.Errorf("requests: %+v, want one GET of a namespace", requests)
	}
	if err := k.reachable(t.Context()); err != nil || len(proxy.Requests()) != 2 {
		t.Errorf("reachable: %v, after %d requests; want nil after one more", err, len(proxy.Requests()))
	}
}

func TestClusterUIDMayBeAllWeMayRead(t *testing.T) {
	server := apiserver.Shared(t)
	user := apiserver.Unique("uid-reader")
	k := mustKube(t, server.As(user))
	if _, err := k.clusterUID(t.Context()); err == nil || !strings.Contains(err.Error(), `grant the agent's service account "get" on namespaces`) ||
		!strings.Contains(err.Error(), user) {
		t.Errorf("got %v, want advice about RBAC and the API server's words", err)
	}
	server.Grant(t, user, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}})
	if uid, err := k.clusterUID(t.Context()); err != nil || uid == "" {
		t.Errorf("got %q and the error %v, want a UID", uid, err)
	}
}

func TestClusterUIDErrors(t *testing.T) {
	for name, test := range map[string]struct {
		fault *apiserver.Fault
		want  string
	}{
		"401":          {apiserver.Refuse(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "who are you"), "renew the token"},
		"404":          {apiserver.PlainNotFound, "a Kubernetes API server?"},
		"a page":       {&apiserver.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<html>"}, "a Kubernetes API server?"},
		"other object": {&apiserver.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"metadata":{"name":"other","uid":"1"}}`}, "a Kubernetes API server?"},
		"no UID":       {&apiserver.Fault{Status: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"metadata":{"name":"kube-system"}}`}, "a Kubernetes API server?"},
		"500":          {apiserver.Refuse(http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd is on fire"), "etcd is on fire"},
		"no answer":    {&apiserver.Fault{Hang: true}, "no answer within 50ms"},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := apiserver.Shared(t).Proxy(t)
			proxy.SetFault(apiserver.OnEach(test.fault))
			k := mustKube(t, proxy.Config())
			if name == "no answer" {
				k.timeout = 50 * time.Millisecond
			}
			uid, err := k.clusterUID(t.Context())
			if err == nil || uid != "" || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "read the UID of namespace kube-system: ") {
				t.Errorf("got %q and the error %v, want one with %q", uid, err, test.want)
			}
			if k.reachable(t.Context()) == nil {
				t.Error("counts as reachable")
			}
		})
	}
}

func TestRequestsEndWithTheirContext(t *testing.T) {
	proxy := apiserver.Shared(t).Proxy(t)
	ctx, cancel := context.WithCancel(t.Context())
	proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Before: func(*http.Request) { cancel() }, Hang: true}))
	if _, err := mustKube(t, proxy.Config()).clusterUID(ctx); err == nil {
		t.Error("no error")
	}
}

// slice is an EndpointSlice as YAML. lines are its ports and endpoints.
func slice(service, family string, lines ...string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: %s, labels: {kubernetes.io/service-name: %s}}\naddressType: %s\n%s\n",
		apiserver.Unique(service), service, family, strings.Join(lines, "\n"))
}

func TestPeers(t *testing.T) {
	server := apiserver.Shared(t)
	for name, test := range map[string]struct {
		slices []string
		want   []string
	}{
		"IPv4 without ports": {
			[]string{slice("gossip", "IPv4", "endpoints: [{addresses: [192.0.2.1]}, {addresses: [192.0.2.2]}]")},
			[]string{"192.0.2.1:7947", "192.0.2.2:7947"},
		},
		"IPv6": {
			[]string{slice("gossip", "IPv6", `endpoints: [{addresses: ["2001:db8::1"]}]`)},
			[]string{"[2001:db8::1]:7947"},
		},
		"the gossip port, not the others": {
			[]string{slice("gossip", "IPv4", "ports: [{name: http, port: 80}, {name: gossip, port: 9000, protocol: UDP}]", "endpoints: [{addresses: [192.0.2.1]}]")},
			[]string{"192.0.2.1:9000"},
		},
		"a port of another name": {
			[]string{slice("gossip", "IPv4", "ports: [{name: http, port: 80}]", "endpoints: [{addresses: [192.0.2.1]}]")},
			[]string{"192.0.2.1:7947"},
		},
		"not ready is still an agent": {
			[]string{slice("gossip", "IPv4", "endpoints: [{addresses: [192.0.2.1], conditions: {ready: false, serving: false}}]")},
			[]string{"192.0.2.1:7947"},
		},
		"only the first address means anything": {
			[]string{slice("gossip", "IPv4", "endpoints: [{addresses: [192.0.2.1, 192.0.2.2]}]")},
			[]string{"192.0.2.1:7947"},
		},
		"nobody yet": {[]string{slice("gossip", "IPv4", "endpoints: []")}, nil},
		"another Service's are not ours": {
			[]string{slice("a-first-one", "IPv4", "endpoints: [{addresses: [192.0.2.9]}]"), slice("gossip", "IPv4", "endpoints: [{addresses: [192.0.2.1]}]")},
			[]string{"192.0.2.1:7947"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			namespace, proxy := server.Namespace(t), server.Proxy(t)
			for _, text := range test.slices {
				server.Apply(t, namespace, text)
			}
			family := discoveryv1.AddressTypeIPv4
			if name == "IPv6" {
				family = discoveryv1.AddressTypeIPv6
			}
			got, err := mustKube(t, proxy.Config()).peers(t.Context(), ServiceConfig{Namespace: namespace, Name: "gossip"}, 7947, family)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("got %q and the error %v, want %q", got, err, test.want)
			}
			requests := proxy.Requests()
			if len(requests) != 1 || requests[0].Class != "LIST endpointslices.discovery.k8s.io" || requests[0].Query.Get("limit") != "1" {
				t.Errorf("requests: %+v, want one LIST with limit 1", requests)
			}
		})
	}
}

func TestPeersOfSeveralSlices(t *testing.T) {
	server := apiserver.Shared(t)
	namespace := server.Namespace(t)
	for i := range 3 {
		server.Apply(t, namespace, slice("gossip", "IPv4", fmt.Sprintf("endpoints: [{addresses: [192.0.2.%d]}]", i+1)))
	}
	got, err := mustKube(t, server.Config()).peers(t.Context(), ServiceConfig{Namespace: namespace, Name: "gossip"}, 7947, discoveryv1.AddressTypeIPv4)
	if err != nil || len(got) != 1 {
		t.Errorf("got %q and the error %v, want those of one slice", got, err)
	}
}

// A dual-stack Service has slices of both families, in any order; those of the other family cannot be reached from an address of this one.
func TestPeersOfADualStackService(t *testing.T) {
	server := apiserver.Shared(t)
	namespace := server.Namespace(t)
	peers := func(family discoveryv1.AddressType) string {
		got, err := mustKube(t, server.Config()).peers(t.Context(), ServiceConfig{Namespace: namespace, Name: "gossip"}, 7947, family)
		return fmt.Sprint(got, err)
	}
	server.Apply(t, namespace, slice("gossip", "IPv6", `endpoints: [{addresses: ["2001:db8::1"]}]`))
	if got := peers(discoveryv1.AddressTypeIPv4); !strings.Contains(got, "they have IPv6 addresses, and this agent gossips over IPv4") {
		t.Error(got)
	}
	server.Apply(t, namespace, slice("gossip", "IPv4", "endpoints: []"))
	if got := peers(discoveryv1.AddressTypeIPv4); got != "[] <nil>" {
		t.Error(got)
	}
	server.Apply(t, namespace, slice("gossip", "IPv4", "endpoints: [{addresses: [192.0.2.1]}]"))
	if got := peers(discoveryv1.AddressTypeIPv4); got != "[192.0.2.1:7947] <nil>" {
		t.Error(got)
	}
	if got := peers(discoveryv1.AddressTypeIPv6); got != "[[2001:db8::1]:7947] <nil>" {
		t.Error(got)
	}
	for _, address := range []string{"192.0.2.1", "::ffff:192.0.2.1"} {
		if familyOf(address) != discoveryv1.AddressTypeIPv4 {
			t.Error(address)
		}
	}
	if familyOf("2001:db8::1") != discoveryv1.AddressTypeIPv6 {
		t.Error("IPv6")
	}
}

func TestPeersErrors(t *testing.T) {
	server := apiserver.Shared(t)
	namespace := server.Namespace(t)
	service := ServiceConfig{Namespace: namespace, Name: "gossip"}
	_, err := mustKube(t, server.Config()).peers(t.Context(), service, 7947, discoveryv1.AddressTypeIPv4)
	if err == nil || !strings.Contains(err.Error(), "Service "+namespace+"/gossip") || !strings.Contains(err.Error(), "is it headless, and does it select the agents' pods?") {
		t.Errorf("without a slice: %v", err)
	}
	user := apiserver.Unique("peers-reader")
	_, err = mustKube(t, server.As(user)).peers(t.Context(), service, 7947, discoveryv1.AddressTypeIPv4)
	if err == nil || !strings.Contains(err.Error(), `"list" on endpointslices.discovery.k8s.io in namespace `+namespace) {
		t.Errorf("without the right: %v", err)
	}
}

func TestOtherErrorsKeepTheirCause(t *testing.T) {
	k := &kube{host: "https://192.0.2.1"}
	cause := errors.New("boom")
	if err := k.why("do it", "a rule", cause); err.Error() != "do it: boom" || !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}
