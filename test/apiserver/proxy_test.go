package apiserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/unstale/unstale/test/apiserver"
)

// label is a JSON merge patch.
func label(key, value string) []byte {
	return []byte(`{"metadata":{"labels":{"` + key + `":"` + value + `"}}}`)
}

func TestProxyRemembersRequests(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	node := apiserver.Unique("node")
	s.CreateNode(t, node, nil)
	c := p.Config()
	c.UserAgent = "the-test"
	nodes := client(t, c).Resource(apiserver.Nodes)
	if _, err := nodes.Get(t.Context(), node, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.List(t.Context(), metav1.ListOptions{Limit: 1}); err != nil {
		t.Fatal(err)
	}
	patch := label("a", "b")
	if _, err := nodes.Patch(t.Context(), node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := nodes.Get(t.Context(), "missing", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("error %v, want NotFound", err)
	}

	counts := p.Counts()
	if len(counts) != 3 || counts["GET nodes"] != 2 || counts["LIST nodes"] != 1 || counts["PATCH nodes"] != 1 {
		t.Errorf("counts %v", counts)
	}
	patched := p.Matching("PATCH nodes")[0]
	if patched.Method != "PATCH" || patched.Path != "/api/v1/nodes/"+node || patched.UserAgent != "the-test" ||
		patched.Status != 200 || patched.Body != string(patch) || patched.RequestBytes != int64(len(patch)) || patched.ResponseBytes == 0 {
		t.Errorf("remembered %+v", patched)
	}
	requests := p.Requests()
	if len(requests) != 4 || requests[1].Query.Get("limit") != "1" || requests[3].Status != 404 {
		t.Errorf("remembered %+v", requests)
	}
	var received int64
	for _, r := range requests {
		received += r.ResponseBytes
	}
	if sent, got := p.Bytes(); sent != int64(len(patch)) || got != received {
		t.Errorf("bytes %d and %d, want %d and %d", sent, got, len(patch), received)
	}
	p.Reset()
	if n := len(p.Requests()); n != 0 {
		t.Errorf("%d requests after Reset", n)
	}
}

func TestProxyPassesEventsOnAtOnceAndCutsThem(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	ns := s.Namespace(t)
	w, err := client(t, p.Config()).Resource(apiserver.Pods).Namespace(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	s.CreatePod(t, ns, "p", "n", nil)
	if e, ok := nextEvent(t, w); !ok || e.Type != watch.Added {
		t.Errorf("event %v, want Added", e)
	}
	seen := p.Matching("WATCH pods")
	if len(seen) != 1 || seen[0].Done || seen[0].ResponseBytes == 0 {
		t.Errorf("remembered %+v, want one watch that goes on", seen)
	}
	p.CutConnections()
	if e, ok := nextEvent(t, w); ok {
		t.Errorf("event %v after the cut, want the end", e)
	}
}

func nextEvent(t *testing.T, w watch.Interface) (watch.Event, bool) {
	t.Helper()
	select {
	case e, ok := <-w.ResultChan():
		return e, ok
	case <-time.After(time.Minute):
		t.Fatal("no event")
		panic("unreachable")
	}
}

func TestProxyHasCredentialsOfItsOwn(t *testing.T) {
	t.Parallel()
	c := apiserver.Shared(t).Proxy(t).Config()
	c.BearerToken = "nobody's"
	if _, err := client(t, c).Resource(apiserver.Nodes).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
}

func TestProxyKubeconfig(t *testing.T) {
	t.Parallel()
	p := apiserver.Shared(t).Proxy(t)
	c, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client(t, c).Resource(apiserver.Nodes).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if p.Counts()["LIST nodes"] != 1 {
		t.Errorf("the request did not pass the proxy: %v", p.Counts())
	}
}

func TestFaultAnswers(t *testing.T) {
	t.Parallel()
	p := apiserver.Shared(t).Proxy(t)
	nodes := client(t, p.Config()).Resource(apiserver.Nodes)
	get := func() error {
		_, err := nodes.Get(t.Context(), "x", metav1.GetOptions{})
		return err
	}
	p.SetFault(apiserver.On("GET nodes", apiserver.Refuse(http.StatusConflict, metav1.StatusReasonConflict, "not now")))
	if err := get(); !apierrors.IsConflict(err) || err.Error() != "not now" {
		t.Errorf("error %v, want a conflict", err)
	}
	if _, err := nodes.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a request of another class: %v", err)
	}

	p.SetFault(apiserver.OnEach(apiserver.Refuse(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "down")).Times(1))
	if err := get(); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("error %v, want ServiceUnavailable", err)
	}
	if err := get(); !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), `nodes "x" not found`) {
		t.Errorf("second request: error %v, want the server's own NotFound", err)
	}

	for _, f := range []*apiserver.Fault{apiserver.PlainNotFound, apiserver.HTMLNotFound} {
		p.SetFault(apiserver.OnEach(f))
		p.Reset()
		err := get()
		if !apierrors.IsNotFound(err) || strings.Contains(err.Error(), `nodes "x" not found`) {
			t.Errorf("error %v, want a NotFound that is not the server's own", err)
		}
		if r := p.Requests()[0]; r.Status != 404 || r.ResponseBytes != int64(len(f.Body)) {
			t.Errorf("remembered %+v", r)
		}
	}

	p.SetFault(nil)
	if err := get(); !strings.Contains(err.Error(), `nodes "x" not found`) {
		t.Errorf("without a fault: error %v, want the server's own NotFound", err)
	}
}

func TestRefuseLaterIsTriedAgain(t *testing.T) {
	t.Parallel()
	p := apiserver.Shared(t).Proxy(t)
	p.SetFault(apiserver.OnEach(apiserver.RefuseLater(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "busy", "1")).Times(1))
	if _, err := client(t, p.Config()).Resource(apiserver.Nodes).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if n := p.Counts()["LIST nodes"]; n != 2 {
		t.Errorf("%d requests, want 2", n)
	}
}

func TestFaultHangsUntilTheClientGivesUp(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	node := apiserver.Unique("node")
	s.CreateNode(t, node, nil)
	for name, fault := range map[string]*apiserver.Fault{
		"before": {Hang: true},
		"after":  {After: func(r *http.Request, _ int) { <-r.Context().Done() }},
	} {
		p.SetFault(apiserver.OnEach(fault))
		p.Reset()
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		go func() {
			_, err := client(t, p.Config()).Resource(apiserver.Nodes).Patch(ctx, node, types.MergePatchType, label(name, "done"), metav1.PatchOptions{})
			failed <- err
		}()
		apiserver.Eventually(t, "the request and, after it was done, its effect", func() error {
			if len(p.Requests()) == 0 {
				return errors.New("no request yet")
			}
			done := s.Get(t, apiserver.Nodes, "", node).GetLabels()[name] == "done"
			if name == "after" && !done {
				return errors.New("not done yet")
			}
			if name == "before" && done {
				t.Error("the server saw the request")
			}
			return nil
		})
		cancel()
		if err := <-failed; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want the client's own", name, err)
		}
		apiserver.Eventually(t, "the proxy to let go", func() error {
			if r := p.Requests()[0]; !r.Done || r.Status != 0 {
				return fmt.Errorf("remembered %+v", r)
			}
			return nil
		})
	}
}

func TestFaultHooksRunBeforeAndAfter(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	node := apiserver.Unique("node")
	s.CreateNode(t, node, nil)
	old := s.Get(t, apiserver.Nodes, "", node).GetResourceVersion()
	var status atomic.Int64
	p.SetFault(apiserver.On("PATCH nodes", &apiserver.Fault{
		Before: func(*http.Request) {
			_, err := s.Dynamic().Resource(apiserver.Nodes).Patch(context.Background(), node, types.MergePatchType, label("meanwhile", "yes"), metav1.PatchOptions{})
			if err != nil {
				t.Error(err)
			}
		},
		After: func(_ *http.Request, code int) { status.Store(int64(code)) },
	}))
	patch := []byte(`[{"op":"test","path":"/metadata/resourceVersion","value":"` + old + `"},{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`)
	_, err := client(t, p.Config()).Resource(apiserver.Nodes).Patch(t.Context(), node, types.JSONPatchType, patch, metav1.PatchOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("error %v, want the 422 of a failed test", err)
	}
	if status.Load() != 422 {
		t.Errorf("After saw status %d, want 422", status.Load())
	}
	if got := s.Get(t, apiserver.Nodes, "", node); got.GetLabels()["meanwhile"] != "yes" || len(got.GetAnnotations()) > 0 {
		t.Errorf("labels %v, annotations %v", got.GetLabels(), got.GetAnnotations())
	}
}

func TestFaultsThatCut(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	for name, c := range map[string]struct {
		fault *apiserver.Fault
		done  bool // the server did what it was asked
	}{
		"drop":          {&apiserver.Fault{Drop: true}, false},
		"lose":          {&apiserver.Fault{Lose: true}, true},
		"cut at once":   {&apiserver.Fault{Cut: true}, true},
		"cut in middle": {&apiserver.Fault{Cut: true, CutAfter: 100}, true},
	} {
		node := apiserver.Unique("node")
		s.CreateNode(t, node, nil)
		p.SetFault(apiserver.OnEach(c.fault))
		p.Reset()
		_, err := client(t, p.Config()).Resource(apiserver.Nodes).Patch(t.Context(), node, types.MergePatchType, label("a", "b"), metav1.PatchOptions{})
		var refusal apierrors.APIStatus
		if err == nil || errors.As(err, &refusal) {
			t.Errorf("%s: error %v, want one of the connection", name, err)
		}
		if got := s.Get(t, apiserver.Nodes, "", node).GetLabels()["a"] == "b"; got != c.done {
			t.Errorf("%s: done %t, want %t", name, got, c.done)
		}
		if r := p.Requests(); len(r) != 1 || r[0].ResponseBytes != c.fault.CutAfter {
			t.Errorf("%s: remembered %+v", name, r)
		}
	}
}

func TestCutInTheMiddleOfAList(t *testing.T) {
	t.Parallel()
	s := apiserver.Shared(t)
	p := s.Proxy(t)
	s.CreateNode(t, apiserver.Unique("node"), nil)
	p.SetFault(apiserver.OnEach(&apiserver.Fault{Cut: true, CutAfter: 200}))
	resp, err := http.Get(p.Config().Host + "/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if len(body) != 200 || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read %d bytes, error %v; want 200 and an unexpected end", len(body), err)
	}
}

func TestClass(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ method, url, want string }{
		{"GET", "/api/v1/nodes", "LIST nodes"},
		{"GET", "/api/v1/nodes?watch=true", "WATCH nodes"},
		{"GET", "/api/v1/nodes?watch=1", "WATCH nodes"},
		{"GET", "/api/v1/nodes/a", "GET nodes"},
		{"GET", "/api/v1/namespaces", "LIST namespaces"},
		{"GET", "/api/v1/namespaces/kube-system", "GET namespaces"},
		{"PUT", "/api/v1/namespaces/x/status", "UPDATE namespaces/status"},
		{"GET", "/api/v1/namespaces/x/pods", "LIST pods"},
		{"DELETE", "/api/v1/namespaces/x/pods/p", "DELETE pods"},
		{"DELETE", "/api/v1/namespaces/x/pods", "DELETECOLLECTION pods"},
		{"POST", "/apis/a.b/v1/things", "CREATE things.a.b"},
		{"PATCH", "/apis/a.b/v1/namespaces/x/things/t/status", "PATCH things.a.b/status"},
		{"GET", "/apis/a.b/v1", "GET /apis/a.b/v1"},
		{"GET", "/api", "GET /api"},
		{"GET", "/version", "GET /version"},
	} {
		r, err := http.NewRequest(c.method, c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := apiserver.Class(r); got != c.want {
			t.Errorf("%s %s is %q, want %q", c.method, c.url, got, c.want)
		}
	}
}
