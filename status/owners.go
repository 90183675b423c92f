package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// An ownerAnswer is whether what an object belongs to exists.
type ownerAnswer struct {
	existence Existence
	err       error     // for Unproved
	at        time.Time // when the pass began that asked
}

// owners answer whether what objects belong to exists. That something exists is believed for a while, as it only keeps what belongs to it; that it is gone
// for one pass, or for a while too where nothing is done about it.
type owners struct {
	client  *Client
	answers map[ownerIn]ownerAnswer
	kinds   map[ownerKind]ownerResource // in this pass

	now      time.Time // when the pass began
	onlyTold bool      // the pass does nothing but tell
}

// ownerFresh is how long an answer is believed.
const ownerFresh = time.Hour

type ownerIn struct {
	owner
	namespace string
}

type ownerKind struct{ apiVersion, kind string }

// An ownerResource is how the API server serves owners of a kind.
type ownerResource struct {
	resource   schema.GroupVersionResource
	namespaced bool
	err        error // why it cannot be asked for any
	failures   int   // how many could not be asked for, one after the other
}

func newOwners(client *Client) *owners {
	return &owners{client: client, answers: map[ownerIn]ownerAnswer{}, kinds: map[ownerKind]ownerResource{}}
}

// begin begins a pass.
func (o *owners) begin(now time.Time, onlyTold bool) {
	o.now, o.onlyTold = now, onlyTold
	clear(o.kinds)
	maps.DeleteFunc(o.answers, func(_ ownerIn, a ownerAnswer) bool { return now.Sub(a.at) >= ownerFresh || a.existence == Unproved })
}

// known is what is believed of an owner without asking.
func (o *owners) known(of owner, namespace string) (ownerAnswer, bool) {
	answer, known := o.answers[ownerIn{of, namespace}]
	return answer, known && (answer.existence == Exists || o.onlyTold || answer.at.Equal(o.now))
}

// exists tells whether the owner exists of an object in that namespace.
func (o *owners) exists(ctx context.Context, of owner, namespace string) ownerAnswer {
	answer, known := o.known(of, namespace)
	if !known {
		answer = o.ask(ctx, of, namespace)
		answer.at = o.now
		o.answers[ownerIn{of, namespace}] = answer
	}
	return answer
}

// ask asks for an object's owner, which is in the object's namespace or in none. One of that name with another UID is another.
func (o *owners) ask(ctx context.Context, of owner, namespace string) ownerAnswer {
	kind := ownerKind{of.apiVersion, of.kind}
	r, known := o.kinds[kind]
	if !known {
		r.resource, r.namespaced, r.err = o.client.resourceOf(ctx, of)
		o.kinds[kind] = r
	}
	if r.err != nil {
		return ownerAnswer{existence: Unproved, err: r.err}
	}
	if !r.namespaced {
		namespace = ""
	}
	body, err := o.client.bytes(ctx, request{
		verb: "get", resource: r.resource, namespace: namespace, name: of.name, accept: acceptMetadata,
		attempts: askAttempts, timeout: askTimeout, patience: askPatience,
	})
	var failure *RequestError
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusForbidden:
		r.err = fmt.Errorf("not allowed to get %s; without that its objects stay: %w", failure.request.rbacResource(), err)
		o.kinds[kind] = r // nor any other of the kind, in this pass
		return ownerAnswer{existence: Unproved, err: r.err}
	case errors.As(err, &failure) && failure.Code == http.StatusNotFound && namesObject(failure):
		return ownerAnswer{existence: Gone}
	case err != nil:
		if r.failures++; r.failures == maxReadFailures {
			r.err = fmt.Errorf("not asked for, because asking for %d others failed, for the last one because %w", r.failures, err)
		}
		o.kinds[kind] = r
		return ownerAnswer{existence: Unproved, err: err}
	}
	r.failures = 0
	o.kinds[kind] = r
	var head struct {
		Metadata struct {
			UID string `json:"uid"`
		} `json:"metadata"`
	}
	switch err := json.Unmarshal(body, &head); {
	case err != nil || head.Metadata.UID == "":
		return ownerAnswer{existence: Unproved, err: cmp.Or(err, errors.New("the answer has no metadata.uid"))}
	case head.Metadata.UID != of.uid:
		return ownerAnswer{existence: Gone}
	}
	return ownerAnswer{existence: Exists}
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
