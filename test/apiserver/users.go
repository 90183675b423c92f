package apiserver

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

var (
	clusterRoles         = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	clusterRoleBindings  = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
	subjectAccessReviews = schema.GroupVersionResource{Group: "authorization.k8s.io", Version: "v1", Resource: "subjectaccessreviews"}
)

// As is a configuration for a user that has no right but those of every user, until Grant gives more. A service account is
// the user system:serviceaccount:NAMESPACE:NAME.
func (s *Server) As(user string) *rest.Config { return impersonate(s.Config(), user) }

func impersonate(c *rest.Config, user string) *rest.Config {
	c.Impersonate = rest.ImpersonationConfig{UserName: user}
	return c
}

// Grant gives the user the rules in the whole cluster and waits until the server knows it. The function that it returns
// takes them away again and waits likewise.
func (s *Server) Grant(t testing.TB, user string, rules ...rbacv1.PolicyRule) (revoke func()) {
	t.Helper()
	if len(rules) == 0 {
		return func() {}
	}
	name := Unique("test-" + user)
	s.createTyped(t, clusterRoles, &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules,
	})
	s.createTyped(t, clusterRoleBindings, &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})
	// The server's authorizer learns of both through watches. It has the whole role or nothing of it, so one rule tells.
	wait := func(t testing.TB, want bool) {
		t.Helper()
		Eventually(t, fmt.Sprintf("the rights of %s to be %t", user, want), func() error {
			allowed, err := s.allowed(user, rules[0])
			if err == nil && allowed != want {
				err = fmt.Errorf("allowed: %t", allowed)
			}
			return err
		})
	}
	wait(t, true)
	return func() {
		t.Helper()
		s.Delete(t, clusterRoleBindings, "", name)
		wait(t, false)
	}
}

func (s *Server) createTyped(t testing.TB, gvr schema.GroupVersionResource, obj any) {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.resource(gvr, "").Create(context.Background(), &unstructured.Unstructured{Object: content}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("create %s: %v", gvr.Resource, err)
	}
}

// allowed asks the server for the first thing that the rule allows.
func (s *Server) allowed(user string, rule rbacv1.PolicyRule) (bool, error) {
	spec := map[string]any{"user": user}
	switch {
	case len(rule.NonResourceURLs) > 0 && len(rule.Verbs) > 0:
		spec["nonResourceAttributes"] = map[string]any{"path": rule.NonResourceURLs[0], "verb": rule.Verbs[0]}
	case len(rule.Resources) > 0 && len(rule.APIGroups) > 0 && len(rule.Verbs) > 0:
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		attributes := map[string]any{
			"group": rule.APIGroups[0], "resource": resource, "subresource": subresource, "verb": rule.Verbs[0],
		}
		if len(rule.ResourceNames) > 0 {
			attributes["name"] = rule.ResourceNames[0]
		}
		spec["resourceAttributes"] = attributes
	default:
		return false, errors.New("a rule without resources or verbs allows nothing")
	}
	review := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
	}}
	out, err := s.resource(subjectAccessReviews, "").Create(context.Background(), review, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	allowed, _, err := unstructured.NestedBool(out.Object, "status", "allowed")
	return allowed, err
}

// WriteKubeconfig writes a client configuration as a file that any program can use, kubectl too.
func WriteKubeconfig(t testing.TB, c *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		Token:             c.BearerToken,
		Impersonate:       c.Impersonate.UserName,
		ImpersonateGroups: c.Impersonate.Groups, ImpersonateUserExtra: c.Impersonate.Extra,
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatalf("write kubeconfig: %v", err)
	}
	return path
}
