package apiserver_test

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unstale/unstale/test/apiserver"
)

func client(t *testing.T, c *rest.Config) dynamic.Interface {
	t.Helper()
	d, err := dynamic.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestGrantAndRevoke(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	user := apiserver.Unique("user")
	for name, c := range map[string]*rest.Config{"direct": s.As(user), "through a proxy": s.Proxy(t).As(user)} {
		t.Run(name, func(t *testing.T) {
			nodes := client(t, c).Resource(apiserver.Nodes)
			mayList := func() error {
				_, err := nodes.List(t.Context(), metav1.ListOptions{Limit: 1})
				return err
			}
			if err := mayList(); !apierrors.IsForbidden(err) {
				t.Errorf("without a right: error %v, want Forbidden", err)
			}
			revoke := s.Grant(t, user, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}})
			if err := mayList(); err != nil {
				t.Errorf("after Grant: %v", err)
			}
			revoke()
			if err := mayList(); !apierrors.IsForbidden(err) {
				t.Errorf("after revoke: error %v, want Forbidden", err)
			}
		})
	}
}

func TestGrantKnowsSubresourcesNamesAndPaths(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	for _, rule := range []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"one"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	} {
		s.Grant(t, apiserver.Unique("user"), rule)()
	}
}

func TestWriteKubeconfigKeepsTheUser(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	c, err := clientcmd.BuildConfigFromFlags("", apiserver.WriteKubeconfig(t, s.As("somebody")))
	if err != nil {
		t.Fatal(err)
	}
	_, err = client(t, c).Resource(apiserver.Nodes).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `"somebody"`) {
		t.Errorf("error %v, want one that says somebody may not", err)
	}
}
