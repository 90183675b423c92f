package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nodeWriteTime is how long a write to a Node may take; it is not tried again.
const nodeWriteTime = 5 * time.Second

// taintNode appends our taint to a Node's, if the Node is still the version that was read.
func (c *Client) taintNode(ctx context.Context, n *NodeView, now time.Time) error {
	at := metav1.NewTime(now.Truncate(time.Second))
	taint, err := json.Marshal(corev1.Taint{Key: outOfService, Value: taintValue, Effect: corev1.TaintEffectNoExecute, TimeAdded: &at})
	if err != nil {
		return err
	}
	ops := []operation{versionGuard(n)}
	if len(n.Taints) == 0 {
		ops = append(ops, operation{"add", "/spec/taints", json.RawMessage("[" + string(taint) + "]")})
	} else {
		ops = append(ops, operation{"add", "/spec/taints/-", taint})
	}
	return c.patchNode(ctx, n.Name, ops)
}

// untaintNode takes our taint off a Node, if the Node is still the version that was read.
func (c *Client) untaintNode(ctx context.Context, n *NodeView) error {
	return c.patchNode(ctx, n.Name, []operation{versionGuard(n), {"remove", fmt.Sprintf("/spec/taints/%d", n.ours()), nil}})
}

func versionGuard(n *NodeView) operation {
	return operation{"test", "/metadata/resourceVersion", quote(n.Version)}
}

func (c *Client) patchNode(ctx context.Context, name string, ops []operation) error {
	_, err := c.bytes(ctx, request{
		verb: "patch", resource: nodesResource, name: name, accept: acceptMetadata, contentType: "application/json-patch+json",
		body: encode(ops), attempts: 1, timeout: nodeWriteTime,
	})
	return err
}

// deleteNode deletes a Node, if it is still the version that was read.
func (c *Client) deleteNode(ctx context.Context, n *NodeView) error {
	uid := types.UID(n.UID)
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &n.Version},
	})
	if err != nil {
		return err
	}
	_, err = c.bytes(ctx, request{
		verb: "delete", resource: nodesResource, name: n.Name, accept: acceptMetadata, contentType: "application/json",
		body: body, attempts: 1, timeout: nodeWriteTime,
	})
	return err
}

// UntaintAll takes off every taint of ours, whatever the Nodes' condition, and returns the names of the Nodes that had one. It goes on after a Node that
// fails; the error tells of all that did.
func UntaintAll(ctx context.Context, client *Client) (untainted []string, err error) {
	nodes, err := listAll(ctx, client, listing{resource: nodesResource, full: true, page: nodesWholePage}, readNodeView)
	if err != nil {
		return nil, err
	}
	var failures []error
	for i := range nodes {
		switch had, err := client.untaintUntilDone(ctx, &nodes[i]); {
		case err != nil:
			failures = append(failures, fmt.Errorf("take the taint off Node %s: %w", nodes[i].Name, err))
		case had:
			untainted = append(untainted, nodes[i].Name)
		}
	}
	return untainted, errors.Join(failures...)
}

// untaintUntilDone takes our taint off a Node that somebody else may write meanwhile.
func (c *Client) untaintUntilDone(ctx context.Context, n *NodeView) (had bool, err error) {
	for try := 1; n.ours() >= 0; try++ {
		had = true
		err := c.untaintNode(ctx, n)
		var failure *RequestError
		again := errors.As(err, &failure) && (failure.Code == http.StatusUnprocessableEntity || failure.retryable())
		if err != nil && (!again || try == maxTries) {
			return had, err
		}
		body, err := c.bytes(ctx, briefGet(nodesResource, types.NamespacedName{Name: n.Name}, acceptJSON))
		if saysGone(err, n.Name) {
			return had, nil
		}
		if err != nil {
			return had, err
		}
		if *n, err = readNodeView(json.NewDecoder(strings.NewReader(string(body)))); err != nil {
			return had, err
		}
	}
	return had, nil
}
