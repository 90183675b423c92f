package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"testing"

	"k8s.io/client-go/rest"
)

// A Proxy passes requests to the API server over plain HTTP and with the server's own credentials, remembers each one,
// and fails those that SetFault chooses. A client's impersonation headers reach the server, its credentials do not.
type Proxy struct {
	url     string
	server  *http.Server
	forward *httputil.ReverseProxy
	serving sync.WaitGroup

	mu     sync.Mutex
	closed bool                            // guarded by mu: no request is taken any more
	fault  FaultFunc                       // guarded by mu
	seen   []*Request                      // guarded by mu, and so are the fields of its elements
	active map[*Request]context.CancelFunc // guarded by mu
}

// A Request is what a Proxy remembers of one. Bytes are those of bodies as they were sent, compressed if they were, without headers.
type Request struct {
	Class         string // see Class
	Method        string
	Path          string
	Query         url.Values
	UserAgent     string
	User          string // whom the client impersonates
	Body          string // of a write
	Status        int    // 0: none was answered (yet)
	RequestBytes  int64
	ResponseBytes int64
	Done          bool
}

// Proxy starts a proxy in front of the server and ends it with the test.
func (s *Server) Proxy(t testing.TB) *Proxy {
	t.Helper()
	p, err := NewProxy(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy starts a proxy in front of an API server, for programs; tests call Server.Proxy. Close ends it.
func NewProxy(upstream *rest.Config) (*Proxy, error) {
	transport, err := rest.TransportFor(upstream)
	if err != nil {
		return nil, fmt.Errorf("make the proxy's transport: %w", err)
	}
	target, err := url.Parse(upstream.Host)
	if err != nil {
		return nil, fmt.Errorf("parse the API server's address: %w", err)
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the proxy: %w", err)
	}
	p := &Proxy{
		url:    "http://" + listener.Addr().String(),
		active: map[*Request]context.CancelFunc{},
	}
	silent := log.New(io.Discard, "", 0) // each cut connection would be a line
	p.forward = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Header.Del("Authorization") // the transport adds its own only where there is none
		},
		Transport:      transport,
		FlushInterval:  -1, // a watch's event goes on at once
		ErrorLog:       silent,
		ModifyResponse: afterAnswer,
		// No answer from the server is none from the proxy: a status would be one that the server never sent.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	p.server = &http.Server{Handler: p, ErrorLog: silent}
	p.serving.Go(func() { p.server.Serve(listener) })
	return p, nil
}

// Close ends the proxy with every request that it is serving.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.server.Close()
	p.CutConnections()
	p.serving.Wait()
}

// Config is a client configuration for the proxy with every right and no limit on the client's side.
func (p *Proxy) Config() *rest.Config { return &rest.Config{Host: p.url, QPS: -1} }

// As is a configuration for the proxy as a user; see Server.As.
func (p *Proxy) As(user string) *rest.Config { return impersonate(p.Config(), user) }

// Kubeconfig is a file for the proxy with every right.
func (p *Proxy) Kubeconfig(t testing.TB) string {
	t.Helper()
	return WriteKubeconfig(t, p.Config())
}

// SetFault chooses which of the requests from now on fail, and how; nil: none.
func (p *Proxy) SetFault(choose FaultFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = choose
}

// CutConnections ends every request that is being served, watches too.
func (p *Proxy) CutConnections() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.active {
		cancel()
	}
}

// Requests are those that arrived since the start or the last Reset, in this order. Those that are being served are not Done.
func (p *Proxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Request, len(p.seen))
	for i, r := range p.seen {
		out[i] = *r
	}
	return out
}

// Matching are the requests of a class.
func (p *Proxy) Matching(class string) []Request {
	var out []Request
	for _, r := range p.Requests() {
		if r.Class == class {
			out = append(out, r)
		}
	}
	return out
}

// Counts tells how many requests of each class arrived.
func (p *Proxy) Counts() map[string]int {
	counts := map[string]int{}
	for _, r := range p.Requests() {
		counts[r.Class]++
	}
	return counts
}

// Bytes are the sums over all requests: of what clients sent, and of what they received.
func (p *Proxy) Bytes() (sent, received int64) {
	for _, r := range p.Requests() {
		sent += r.RequestBytes
		received += r.ResponseBytes
	}
	return sent, received
}

// Reset forgets the requests seen so far.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = nil
}

// ServeHTTP passes one request on.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()

	// A body read to its end lets net/http notice a client that gives up. No body here is large.
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	rec := &Request{
		Class: Class(r), Method: r.Method, Path: r.URL.Path, Query: r.URL.Query(),
		UserAgent: r.UserAgent(), User: r.Header.Get("Impersonate-User"),
		Body: string(body), RequestBytes: int64(len(body)),
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		panic(http.ErrAbortHandler)
	}
	p.serving.Add(1)
	defer p.serving.Done()
	p.seen = append(p.seen, rec)
	p.active[rec] = cancel
	choose := p.fault
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		rec.Done = true
		delete(p.active, rec)
	}()

	fault := &Fault{}
	r = r.WithContext(ctx)
	if choose != nil {
		if f := choose(r); f != nil {
			fault = f
		}
	}
	if fault.Before != nil {
		fault.Before(r)
	}
	if fault.Hang {
		<-ctx.Done()
		panic(http.ErrAbortHandler)
	}
	if fault.Drop {
		panic(http.ErrAbortHandler)
	}
	counted := &countingWriter{ResponseWriter: w, proxy: p, request: rec}
	if fault.Status != 0 {
		for name, values := range fault.Header {
			counted.Header()[name] = values
		}
		counted.WriteHeader(fault.Status)
		io.WriteString(counted, fault.Body)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	r.ContentLength = int64(len(body))
	p.forward.ServeHTTP(counted, r.WithContext(context.WithValue(ctx, faultKey{}, fault)))
}

type faultKey struct{}

// afterAnswer takes those steps of the request's fault that come when the server has answered.
func afterAnswer(resp *http.Response) error {
	fault := resp.Request.Context().Value(faultKey{}).(*Fault)
	if fault.After != nil {
		fault.After(resp.Request, resp.StatusCode)
		if err := resp.Request.Context().Err(); err != nil {
			return err // the client is gone: nobody is answered
		}
	}
	if fault.Lose {
		return errors.New("answer lost on purpose")
	}
	if fault.Cut {
		resp.Body = &cutBody{ReadCloser: resp.Body, left: fault.CutAfter}
	}
	return nil
}

// A cutBody fails after some bytes.
type cutBody struct {
	io.ReadCloser
	left int64
}

func (b *cutBody) Read(buf []byte) (int, error) {
	if b.left <= 0 {
		return 0, errors.New("cut on purpose")
	}
	n, err := b.ReadCloser.Read(buf[:min(int64(len(buf)), b.left)])
	b.left -= int64(n)
	return n, err
}

// A countingWriter notes the answer's status and size in the request.
type countingWriter struct {
	http.ResponseWriter
	proxy   *Proxy
	request *Request
}

func (w *countingWriter) WriteHeader(status int) {
	w.proxy.mu.Lock()
	w.request.Status = status
	w.proxy.mu.Unlock()
	w.ResponseWriter.WriteHeader(status)
}

func (w *countingWriter) Write(buf []byte) (int, error) {
	n, err := w.ResponseWriter.Write(buf)
	w.proxy.mu.Lock()
	w.request.ResponseBytes += int64(n)
	w.proxy.mu.Unlock()
	return n, err
}

// Unwrap lets http.ResponseController flush.
func (w *countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
