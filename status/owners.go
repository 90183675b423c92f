package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An ownerAnswer is whether what an object belongs to exists.
type ownerAnswer struct {
	existence Existence
	why       string // for Unproved
}

// ownerExists asks for an object's owner, which is in the object's namespace or in none. One of that name with another UID is another.
func (c *Client) ownerExists(ctx context.Context, o owner, namespace string) ownerAnswer {
	resource, namespaced, err := c.resourceOf(ctx, o)
	if err != nil {
		return ownerAnswer{Unproved, err.Error()}
	}
	if !namespaced {
		namespace = ""
	}
	body, err := c.bytes(ctx, request{verb: "get", resource: resource, namespace: namespace, name: o.name, accept: acceptMetadata})
	var failure *RequestError
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		return ownerAnswer{existence: Gone}
	case err != nil:
		return ownerAnswer{Unproved, err.Error()}
	}
	var head struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	switch err := json.Unmarshal(body, &head); {
	case err != nil || head.Metadata.UID == "":
		return ownerAnswer{Unproved, fmt.Sprintf("%s: the answer has no metadata.uid", failureOf(err))}
	case head.Metadata.UID != o.uid:
		return ownerAnswer{existence: Gone}
	}
	return ownerAnswer{existence: Exists}
}

func failureOf(err error) string {
	if err == nil {
		return "read the owner"
	}
	return "read the owner: " + err.Error()
}

// resourceOf is how the API server serves objects of the owner's kind.
func (c *Client) resourceOf(ctx context.Context, o owner) (r schema.GroupVersionResource, namespaced bool, err error) {
	gv, err := schema.ParseGroupVersion(o.apiVersion)
	if err != nil {
		return r, false, fmt.Errorf("the apiVersion of %s: %w", o, err)
	}
	path := "/apis/" + o.apiVersion
	if gv.Group == "" {
		path = "/api/" + o.apiVersion
	}
	var resources metav1.APIResourceList
	if err := c.discover(ctx, path, "APIResourceList", &resources); err != nil {
		return r, false, err
	}
	for _, found := range resources.APIResources {
		if found.Kind == o.kind && !strings.Contains(found.Name, "/") {
			return gv.WithResource(found.Name), found.Namespaced, nil
		}
	}
	return r, false, fmt.Errorf("%s has no resource of kind %s", o.apiVersion, o.kind)
}
