package status

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// What one Client asks of an API server at most. At client-go's own default of 5 a second, asking for 3,000 Nodes takes ten
// minutes; no more than confirmParallel requests are under way at once, and the server's fairness queues slow us down further.
const (
	requestsPerSecond = 100
	requestBurst      = 200
)

const (
	// requestTimeout bounds one attempt, from the first byte sent to the last byte read.
	requestTimeout = 15 * time.Second
	// maxAttempts bounds how often a request is sent that got no answer, 429 or 5xx.
	maxAttempts = 3
	// firstBackoff is doubled after each attempt; half of it is jitter.
	firstBackoff = 500 * time.Millisecond
	// maxRetryAfter bounds what the server's Retry-After may ask for.
	maxRetryAfter = 10 * time.Second
	// maxAnswer bounds what is read of one answer. An object is at most 1.5 MiB in etcd; etcd can be told to take more.
	maxAnswer = 32 << 20
)

// A Client sends this package's few requests to an API server. It is safe for concurrent use.
//
// It speaks HTTP itself, over client-go's authentication and transport, for two reasons: entries must stay the bytes that
// the server sent, and a 404 must be seen as it came (client-go fills in the missing details of a 404 that is not the API server's).
type Client struct {
	http    *http.Client
	base    *url.URL
	agent   string
	limiter flowcontrol.RateLimiter
	wait    func(context.Context, time.Duration) error
}

// NewClient makes a Client. userAgent is how the API server's logs and metrics name it.
func NewClient(config *rest.Config, userAgent string) (*Client, error) {
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	config.Timeout = 0 // each request has its own
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare requests to %s: %w", config.Host, err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare requests to %q: %w", config.Host, err)
	}
	return &Client{
		http: httpClient, base: base, agent: userAgent,
		limiter: flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestBurst),
		wait:    waitFor,
	}, nil
}

// A request is one request in RBAC's words.
type request struct {
	verb        string // get, list, patch or delete
	resource    schema.GroupVersionResource
	namespace   string
	name        string
	subresource string
	rawPath     string // instead of all of the above but the verb

	attempts int           // how often it may be sent; 0: maxAttempts
	timeout  time.Duration // of one attempt; 0: requestTimeout
	patience time.Duration // the longest pause between two attempts; 0: maxRetryAfter

	query       url.Values
	accept      string
	contentType string
	body        []byte
}

const (
	acceptJSON         = "application/json"
	acceptMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	acceptMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
)

// path is the request's URL path. Names have been checked to be names: none holds a slash.
func (r request) path() string {
	if r.rawPath != "" {
		return r.rawPath
	}
	p := "/apis/" + r.resource.Group + "/" + r.resource.Version
	if r.resource.Group == "" {
		p = "/api/" + r.resource.Version
	}
	if r.namespace != "" {
		p = path.Join(p, "namespaces", r.namespace)
	}
	return path.Join(p, r.resource.Resource, r.name, r.subresource)
}

// String is for messages: "get nodes n1".
func (r request) String() string {
	if r.rawPath != "" {
		return r.verb + " " + r.rawPath
	}
	s := r.verb + " " + r.rbacResource()
	if r.resource.Group != "" {
		s += "." + r.resource.Group
	}
	if r.name != "" {
		s += " " + r.name
	}
	if r.namespace != "" {
		s += " in namespace " + r.namespace
	}
	return s
}

func (r request) rbacResource() string { return path.Join(r.resource.Resource, r.subresource) }

// A RequestError is a request that was not answered with success.
type RequestError struct {
	request request
	// Code is the HTTP status, 0 where no answer came.
	Code int
	// Status is what the API server says of the failure; nil where the answer is not an API server's.
	Status *metav1.Status

	cause      error
	text       string // what was answered instead of a Status, cut short
	retryAfter time.Duration
}

func (e *RequestError) Error() string {
	switch {
	case e.Status != nil:
		return fmt.Sprintf("%s: %s (%d)", e.request, e.Status.Message, e.Code)
	case e.Code == 0:
		return fmt.Sprintf("%s: no answer: %v", e.request, e.cause)
	case e.cause != nil:
		return fmt.Sprintf("%s: read the answer: %v", e.request, e.cause)
	}
	return fmt.Sprintf("%s: HTTP status %d, not in an API server's words: %q", e.request, e.Code, e.text)
}

func (e *RequestError) Unwrap() error { return e.cause }

// retryable tells whether the same request may succeed when it is sent again a little later.
func (e *RequestError) retryable() bool {
	return e.Code == 0 || e.Code == http.StatusTooManyRequests || e.Code >= 500 ||
		e.Code == http.StatusConflict || e.Code == http.StatusOK
}

// do sends the request, again if need be, and hands the body of a successful answer to read. An error of read is an
// answer cut short or garbled, and counts as one that may be tried again; read must start afresh each time.
func (c *Client) do(ctx context.Context, r request, read func(io.Reader) error) error {
	backoff := firstBackoff
	attempts, patience := cmp.Or(r.attempts, maxAttempts), cmp.Or(r.patience, maxRetryAfter)
	for attempt := 1; ; attempt++ {
		if err := c.limiter.Wait(ctx); err != nil {
			return &RequestError{request: r, cause: err}
		}
		err := c.once(ctx, r, read)
		if err == nil {
			return nil
		}
		if attempt == attempts || !err.retryable() || ctx.Err() != nil {
			return err
		}
		pause := min(max(jitter(backoff), err.retryAfter), patience)
		backoff *= 2
		if c.wait(ctx, pause) != nil {
			return err // the context ended; what failed says more than that it did
		}
	}
}

// jitter is between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// once sends the request one time.
func (c *Client) once(ctx context.Context, r request, read func(io.Reader) error) *RequestError {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(r.timeout, requestTimeout))
	defer cancel()
	method := http.MethodGet
	switch r.verb {
	case "patch":
		method = http.MethodPatch
	case "delete":
		method = http.MethodDelete
	}
	target := c.base.JoinPath(r.path())
	target.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, method, target.String(), bytes.NewReader(r.body))
	if err != nil {
		return &RequestError{request: r, cause: err}
	}
	req.Header.Set("Accept", r.accept)
	req.Header.Set("User-Agent", c.agent)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return &RequestError{request: r, cause: err}
	}
	defer resp.Body.Close()
	body := io.LimitReader(resp.Body, maxAnswer)
	if resp.StatusCode/100 == 2 {
		if err := read(body); err != nil {
			return &RequestError{request: r, Code: http.StatusOK, cause: err}
		}
		return nil
	}
	failure := &RequestError{request: r, Code: resp.StatusCode}
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		failure.retryAfter = time.Duration(seconds) * time.Second
	}
	text, _ := io.ReadAll(io.LimitReader(body, 64<<10)) // half an error message is better than none
	var status metav1.Status
	if json.Unmarshal(text, &status) == nil && status.Kind == "Status" && status.APIVersion == "v1" {
		failure.Status = &status
	} else {
		failure.text = string(text[:min(len(text), 200)])
	}
	return failure
}

// bytes sends the request and returns the whole body of a successful answer.
func (c *Client) bytes(ctx context.Context, r request) ([]byte, error) {
	var body []byte
	err := c.do(ctx, r, func(from io.Reader) (err error) {
		body, err = io.ReadAll(from)
		if err == nil && len(body) == maxAnswer {
			err = fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
		}
		return err
	})
	return body, err
}

// waitFor returns after d, or with the context's error when that ends first.
func waitFor(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
