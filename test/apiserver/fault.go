package apiserver

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Fault is what happens to one request. The steps are taken in the order of the fields; an empty Fault does nothing.
type Fault struct {
	// Before runs before the request goes on, for what another client does between a look and a write.
	Before func(*http.Request)
	// Hang gives no answer until the client gives up. The server never sees the request.
	Hang bool
	// Drop cuts the connection. The server never sees the request.
	Drop bool
	// Status, when it is not 0, is answered with Header and Body. The server never sees the request.
	Status int
	Header http.Header
	Body   string
	// After runs when the server has begun to answer and before the client hears of it. One that waits for the request's
	// context to end makes the client give up on a write that was done.
	After func(r *http.Request, status int)
	// Lose cuts the connection when the server has answered: the client cannot know whether its write was done.
	Lose bool
	// Cut cuts the connection in the middle of the answer, CutAfter bytes after the start of its body.
	Cut      bool
	CutAfter int64
}

// A FaultFunc chooses a request's fault; nil means none. Many requests may call it at once. It must leave the request's
// body alone; the body is in the Request that the proxy keeps.
type FaultFunc func(*http.Request) *Fault

// On gives the fault to requests of a class, such as "PATCH nodes/status"; see Class.
func On(class string, f *Fault) FaultFunc {
	return func(r *http.Request) *Fault {
		if Class(r) == class {
			return f
		}
		return nil
	}
}

// OnEach gives the fault to every request.
func OnEach(f *Fault) FaultFunc { return func(*http.Request) *Fault { return f } }

// Times lets no more than n requests have a fault.
func (choose FaultFunc) Times(n int) FaultFunc {
	var used atomic.Int64
	return func(r *http.Request) *Fault {
		f := choose(r)
		if f == nil || used.Add(1) > int64(n) {
			return nil
		}
		return f
	}
}

// Refuse answers as an API server refuses: with a Status object.
func Refuse(code int, reason metav1.StatusReason, message string) *Fault {
	body, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	})
	if err != nil {
		panic(err) // a fixed type of strings and numbers
	}
	return &Fault{Status: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: string(body)}
}

// RefuseLater is a refusal that tells the client to come back after so many seconds.
func RefuseLater(code int, reason metav1.StatusReason, message, seconds string) *Fault {
	f := Refuse(code, reason, message)
	f.Header.Set("Retry-After", seconds)
	return f
}

// The 404s of something that is not an API server: what a misdirected proxy or an ingress without a backend answers.
var (
	PlainNotFound = &Fault{
		Status: http.StatusNotFound,
		Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: "404 page not found\n",
	}
	HTMLNotFound = &Fault{
		Status: http.StatusNotFound,
		Header: http.Header{"Content-Type": {"text/html"}},
		Body:   "<html><head><title>404 Not Found</title></head><body><center><h1>404 Not Found</h1></center></body></html>\n",
	}
)

// Class names what a request does: the Kubernetes verb in capitals, then the resource with its group and subresource, as
// in "LIST nodes", "WATCH pods", "PATCH topologyawarepolicies.config.nri/status". Other paths keep their method: "GET /version".
func Class(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group string
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		group, parts = "."+parts[1], parts[3:]
	default:
		return r.Method + " " + r.URL.Path
	}
	// namespaces/NS/pods/NAME is about pods, namespaces/NS and namespaces/NS/status are about the namespace.
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}
	class := parts[0] + group
	if len(parts) > 2 {
		class += "/" + parts[2]
	}
	named := len(parts) > 1
	verb := r.Method
	switch {
	case r.Method == http.MethodGet && !named && (r.URL.Query().Get("watch") == "true" || r.URL.Query().Get("watch") == "1"):
		verb = "WATCH"
	case r.Method == http.MethodGet && !named:
		verb = "LIST"
	case r.Method == http.MethodPost:
		verb = "CREATE"
	case r.Method == http.MethodPut:
		verb = "UPDATE"
	case r.Method == http.MethodDelete && !named:
		verb = "DELETECOLLECTION"
	}
	return verb + " " + class
}
