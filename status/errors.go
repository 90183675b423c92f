package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// stateOf turns what went wrong with a request for t into a state and a sentence that says what to do.
func (c *Client) stateOf(ctx context.Context, t *Target, err error) (State, string) {
	var layout *LayoutError
	if errors.As(err, &layout) {
		return Invalid, err.Error()
	}
	var failure *RequestError
	if !errors.As(err, &failure) {
		return Unavailable, err.Error()
	}
	switch {
	case failure.Code == http.StatusForbidden && failure.Status != nil:
		if byRBAC(failure) {
			rule := missingRule(append(Rules(t), NodeRules()...), failure.request)
			return Forbidden, fmt.Sprintf("not allowed to %s; this rule is missing: %s", failure.request, rule)
		}
		return Forbidden, fmt.Sprintf("%s was refused by the API server's admission: %s", failure.request, failure.Status.Message)
	case failure.Code == http.StatusUnauthorized:
		return Unavailable, fmt.Sprintf("%s: the API server does not accept these credentials (401); renew the token or the kubeconfig", failure.request)
	case failure.Code == http.StatusNotFound && failure.request.resource == t.Resource && !(namesObject(failure) && failure.request.verb == "get"):
		return c.whyNotServed(ctx, t, failure)
	case failure.Code == http.StatusUnprocessableEntity && failure.Status != nil:
		return Forbidden, fmt.Sprintf("%s was refused although nothing had changed, so by the resource's own schema, a policy or a webhook: %s",
			failure.request, failure.Status.Message)
	}
	if failure.request.verb == "delete" && failure.refusesObject() {
		return Forbidden, fmt.Sprintf("%s was refused by the API server's admission: %s", failure.request, failure.Status.Message)
	}
	return Unavailable, failure.Error()
}

// byRBAC tells authorization's refusal from admission's: only the former names the user and what they cannot do.
func byRBAC(e *RequestError) bool {
	return strings.Contains(e.Status.Message, "User ") && strings.Contains(e.Status.Message, " cannot "+e.request.verb+" ")
}

// namesObject tells a 404 for an object from one for a path that the API server does not serve.
func namesObject(e *RequestError) bool {
	return e.Status != nil && e.Status.Details != nil && e.Status.Details.Name != "" && e.Status.Details.Name == e.request.name
}

// whyNotServed asks the API server what it does serve, now that the resource's path was answered with 404.
func (c *Client) whyNotServed(ctx context.Context, t *Target, failure *RequestError) (State, string) {
	g := t.Resource
	group := g.Group
	var versions []string
	if group == "" {
		group, versions = "the core group", []string{g.Version}
	} else {
		var groups metav1.APIGroupList
		if err := c.discover(ctx, "/apis", "APIGroupList", &groups); err != nil {
			// Not even this is answered: it is no API server that said 404.
			return Unavailable, fmt.Sprintf("%v; discovery fails too: %v; is this address an API server's?", failure, err)
		}
		for _, found := range groups.Groups {
			if found.Name == g.Group {
				for _, v := range found.Versions {
					versions = append(versions, v.Version)
				}
			}
		}
	}
	if len(versions) == 0 {
		return NotInstalled, fmt.Sprintf("the API group %s is not installed", g.Group)
	}
	if !slices.Contains(versions, g.Version) {
		return NotInstalled, fmt.Sprintf("version %s of %s is not served, only %s; set resource.version",
			g.Version, group, strings.Join(versions, ", "))
	}
	path := "/apis/" + g.Group + "/" + g.Version
	if g.Group == "" {
		path = "/api/" + g.Version
	}
	var resources metav1.APIResourceList
	if err := c.discover(ctx, path, "APIResourceList", &resources); err != nil {
		return Unavailable, fmt.Sprintf("%v; discovery fails too: %v", failure, err)
	}
	served := map[string]bool{}
	namespaced := false
	for _, r := range resources.APIResources {
		served[r.Name] = true
		namespaced = namespaced || r.Name == g.Resource && r.Namespaced
	}
	switch {
	case !served[g.Resource]:
		return NotInstalled, fmt.Sprintf("%s is not among the resources of %s/%s", g.Resource, group, g.Version)
	case !namespaced && t.Namespace != "":
		return Invalid, fmt.Sprintf("%s is cluster-scoped; leave namespace empty", g.Resource)
	case t.Objects == nil && !served[g.Resource+"/status"]:
		return Invalid, fmt.Sprintf("%s has no status subresource, so its keys cannot be removed apart from its spec", g.Resource)
	}
	if namesObject(failure) { // the write of one that was there at the look
		return OK, fmt.Sprintf("%s was deleted between look and write", types.NamespacedName{Namespace: failure.request.namespace, Name: failure.request.name})
	}
	return Unavailable, fmt.Sprintf("%v, although the resource is served; perhaps it was installed a moment ago", failure)
}

// discover reads a discovery document. The API server answers older and newer clients with different kinds there, so the
// kind is checked.
func (c *Client) discover(ctx context.Context, path, kind string, into any) error {
	body, err := c.bytes(ctx, request{verb: "get", rawPath: path, accept: acceptJSON})
	if err != nil {
		return err
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(body, &meta); err != nil || meta.Kind != kind {
		return fmt.Errorf("get %s: the answer is no %s", path, kind)
	}
	return json.Unmarshal(body, into)
}
