package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The requests of an OwnKey, and what their failures mean.

// look makes sure that k.view is there, from what is known or by a GET.
func (k *OwnKey) look(ctx context.Context, limit time.Duration) error {
	if k.view != nil {
		return nil
	}
	body, err := k.send(ctx, limit, request{
		verb: "get", resource: k.target.Resource, namespace: k.target.Namespace, name: k.target.Names[0], accept: acceptJSON,
	})
	if err != nil {
		return err
	}
	view, err := k.parse(body)
	if err != nil {
		return err
	}
	k.see(view)
	return nil
}

func (k *OwnKey) parse(body []byte) (*ownView, error) {
	view, err := viewOf(body, k.target.Paths, k.node)
	if err != nil {
		return nil, err
	}
	if want := (types.NamespacedName{Namespace: k.target.Namespace, Name: k.target.Names[0]}); view.NamespacedName != want {
		return nil, fmt.Errorf("the answer is %s instead of %s", view.NamespacedName, want)
	}
	return view, nil
}

// replaced tells whether the Node of this name is another one than the agent's. A Node that is gone has not been replaced.
// It must be asked after the entry was read: then an entry of the new Node's cannot have been taken for one of ours.
func (k *OwnKey) replaced(ctx context.Context) (bool, error) {
	if k.NodeUID == "" {
		return false, nil
	}
	body, err := k.send(ctx, clearAttempt, request{verb: "get", resource: nodesResource, name: k.node, accept: acceptMetadata})
	if err != nil {
		if saysGone(err, k.node) {
			return false, nil
		}
		if codeOf(err) == http.StatusNotFound { // something else's, so the next answer may be the API server's again
			return false, fmt.Errorf("whose entry it is could not be found out: %v", err)
		}
		return false, err
	}
	var node struct {
		Metadata objectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(body, &node); err != nil || node.Metadata.Name != k.node || node.Metadata.UID == "" {
		return false, fmt.Errorf("whose entry it is could not be found out: get nodes %s: the answer is not that Node's metadata", k.node)
	}
	return node.Metadata.UID != k.NodeUID, nil
}

// resourceGone returns nil if a 404 means that there is no such resource, so no key in it, and otherwise why it does not mean that.
func (k *OwnKey) resourceGone(ctx context.Context, failure *RequestError) error {
	if k.namesResource(failure) {
		return nil
	}
	// It must not be there in another version either, where the key could still be read.
	g := k.target.Resource
	var groups metav1.APIGroupList
	if err := k.client.discover(ctx, "/apis", "APIGroupList", &groups); err != nil {
		// Not wrapped: whatever this is, it is no API server that said 404, and one may be back soon.
		return fmt.Errorf("%v; discovery fails too: %v; is this address an API server's?", failure, err)
	}
	elsewhere := g.Group == ""
	for _, group := range groups.Groups {
		if group.Name != g.Group {
			continue
		}
		for _, v := range group.Versions {
			var resources metav1.APIResourceList
			if err := k.client.discover(ctx, "/apis/"+v.GroupVersion, "APIResourceList", &resources); err != nil {
				return fmt.Errorf("%v; discovery fails too: %v", failure, err)
			}
			served := map[string]bool{}
			for _, r := range resources.APIResources {
				served[r.Name] = true
			}
			if v.Version == g.Version && served[failure.request.rbacResource()] {
				return fmt.Errorf("%v, although the resource is served", failure) // not wrapped, likewise
			}
			elsewhere = elsewhere || served[g.Resource]
		}
	}
	if elsewhere {
		return failure
	}
	return nil
}

// namesResource tells whether a 404 is the API server's own for the very resource.
func (k *OwnKey) namesResource(failure *RequestError) bool {
	return namesObject(failure) && failure.Status.Reason == metav1.StatusReasonNotFound && failure.request.name == k.target.Names[0] &&
		failure.Status.Details.Group == k.target.Resource.Group && failure.Status.Details.Kind == k.target.Resource.Resource
}

// write sends a patch and returns the resource as it is afterwards. An answer that is not the resource says as little as none.
func (k *OwnKey) write(ctx context.Context, limit time.Duration, patch []byte) (*ownView, error) {
	body, err := k.send(ctx, limit, request{
		verb: "patch", resource: k.target.Resource, namespace: k.target.Namespace, name: k.target.Names[0], subresource: "status",
		accept: acceptJSON, contentType: "application/json-patch+json", body: patch,
		// The server, too, gives the request up then.
		query: url.Values{"timeout": {limit.String()}},
	})
	if err != nil {
		return nil, err
	}
	return k.parse(body)
}

// send sends a request one time only: what became of each one matters here.
func (k *OwnKey) send(ctx context.Context, limit time.Duration, r request) ([]byte, error) {
	r.attempts, r.timeout = 1, limit
	return k.client.bytes(ctx, r)
}

// outcomeUnknown tells whether a write may have been done, or may yet be.
func outcomeUnknown(err error) bool {
	code := codeOf(err)
	return code == 0 || code >= 500 || code == http.StatusOK
}

// codeOf is the HTTP status of a failed request, 0 where there is none.
func codeOf(err error) int {
	var failure *RequestError
	if errors.As(err, &failure) {
		return failure.Code
	}
	return 0
}

// tryAgain tells whether what failed may succeed later, and how much later at least.
func tryAgain(err error) (time.Duration, bool) {
	if errors.Is(err, errMoved) || errors.Is(err, errSettling) {
		return 0, true
	}
	for _, final := range []error{ErrKept, ErrReplaced} {
		if errors.Is(err, final) {
			return 0, false
		}
	}
	var layout *LayoutError
	if errors.As(err, &layout) {
		return 0, false
	}
	var failure *RequestError
	if !errors.As(err, &failure) {
		return 0, true // an answer that cannot be read, from something between here and the server perhaps
	}
	return failure.retryAfter, failure.retryable()
}

// A backoff gives pauses that grow, with jitter.
type backoff struct{ pause, limit time.Duration }

func (b *backoff) next() time.Duration {
	pause := jitter(b.pause)
	b.pause = min(2*b.pause, b.limit)
	return pause
}

// join is a context that ends with either.
func join(ctx, other context.Context) (context.Context, func()) {
	joined, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(other, cancel) // in a goroutine of its own, so a moment later
	return joined, func() { stop(); cancel() }
}

func remaining(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return ClearTimeout
	}
	return time.Until(deadline)
}
