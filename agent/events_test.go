package agent

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/unstale/unstale/status"
	"github.com/unstale/unstale/test/apiserver"
)

var coreEvents = schema.GroupVersionResource{Version: "v1", Resource: "events"}

// An eventScene is a recorder in front of a real API server, and an object that the events are about.
type eventScene struct {
	*testing.T
	server   *apiserver.Server
	proxy    *apiserver.Proxy
	object   corev1.ObjectReference
	recorder *recorder
	logs     *observer.ObservedLogs
}

func newEventScene(t *testing.T, config func(*apiserver.Proxy) *rest.Config) *eventScene {
	t.Helper()
	s := &eventScene{T: t, server: apiserver.Shared(t)}
	s.proxy = s.server.Proxy(t)
	s.object = corev1.ObjectReference{
		APIVersion: "config.nri/v1alpha1", Kind: "TopologyAwarePolicy", Namespace: s.server.Namespace(t), Name: "default", UID: "some-uid",
	}
	core, logs := observer.New(zap.InfoLevel)
	s.logs = logs
	s.recorder = newRecorder(mustKube(t, config(s.proxy)), "n1", zap.New(core))
	s.recorder.stopTime = time.Minute // on a machine that is busy
	return s
}

// run sends all that is recorded so far.
func (s *eventScene) run() {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.recorder.Run(ctx) }()
	apiserver.Eventually(s, "all events to be taken", func() error {
		if n := len(s.recorder.queue); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		s.Error(err)
	}
}

// events are those about the object in a namespace.
func (s *eventScene) events(namespace string) []corev1.Event {
	s.Helper()
	list, err := s.server.Dynamic().Resource(coreEvents).Namespace(namespace).List(s.Context(), metav1.ListOptions{})
	if err != nil {
		s.Fatal(err)
	}
	var events []corev1.Event
	for _, item := range list.Items {
		if event := s.event(&item); event.InvolvedObject.Name == s.object.Name {
			events = append(events, event)
		}
	}
	return events
}

func (s *eventScene) event(item *unstructured.Unstructured) corev1.Event {
	s.Helper()
	var event corev1.Event
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &event); err != nil {
		s.Fatal(err)
	}
	return event
}

func TestEventsAreWritten(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	s.recorder.removed(s.object, "nri", string(status.NodeGone), []string{"a", "b"})
	s.recorder.warn(s.object, string(status.MemberWithoutNode), "look after it")
	s.run()
	byReason := map[string]corev1.Event{}
	for _, e := range s.events(s.object.Namespace) {
		byReason[e.Reason] = e
	}
	if len(byReason) != 2 {
		t.Fatalf("%d kinds of events, want 2: %v; logs: %v", len(byReason), byReason, s.logs.All())
	}
	removed, warned := byReason["NodeGone"], byReason["MemberWithoutNode"]
	if removed.Type != "Normal" || removed.Message != "removed 2 keys (target nri): a, b" || removed.Count != 1 || removed.InvolvedObject != s.object ||
		removed.Source != (corev1.EventSource{Component: "unstale", Host: "n1"}) || removed.FirstTimestamp.IsZero() || removed.LastTimestamp.IsZero() {
		t.Errorf("removed: %+v", removed)
	}
	if warned.Type != "Warning" || warned.Message != "look after it" {
		t.Errorf("warned: %+v", warned)
	}
	// What reads only the newer API finds them too.
	if text := string(s.server.GetJSON(t, "/apis/events.k8s.io/v1/namespaces/"+s.object.Namespace+"/events")); !strings.Contains(text, "removed 2 keys") {
		t.Errorf("events.k8s.io/v1 has %s", text)
	}
}

func TestRepeatedEventsAreCounted(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	for range 3 {
		s.recorder.warn(s.object, "MemberWithoutNode", "look after it")
	}
	s.run()
	events := s.events(s.object.Namespace)
	if len(events) != 1 || events[0].Count != 3 {
		t.Errorf("got %+v, want one event that counts 3", events)
	}
	if n := len(s.proxy.Matching("POST events")); n > 1 {
		t.Errorf("%d POSTs", n)
	}
}

// Between two of the same, the API server may have forgotten the first.
func TestARepeatedEventThatIsGoneIsWrittenAnew(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	patches := 0
	s.proxy.SetFault(apiserver.On("PATCH events", &apiserver.Fault{Before: func(*http.Request) {
		if patches++; patches == 1 {
			for _, e := range s.events(s.object.Namespace) {
				s.server.Delete(t, coreEvents, e.Namespace, e.Name)
			}
		}
	}}))
	s.recorder.warn(s.object, "MemberWithoutNode", "look after it")
	s.recorder.warn(s.object, "MemberWithoutNode", "look after it")
	s.run()
	if events := s.events(s.object.Namespace); patches != 1 || len(events) != 1 || events[0].Count != 2 {
		t.Errorf("after %d patches: %+v, want one event that counts 2; logs: %v", patches, events, s.logs.All())
	}
}

func TestEventsAboutClusterScopedObjects(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	s.object.Namespace, s.object.Name = "", apiserver.Unique("cluster-wide")
	s.recorder.removed(s.object, "nri", string(status.NodeGone), []string{"a"})
	s.run()
	if events := s.events("default"); len(events) != 1 || events[0].Message != "removed 1 key (target nri): a" {
		t.Errorf("got %+v, want one; logs: %v", events, s.logs.All())
	}
}

func TestManyEventsAreLimited(t *testing.T) {
	s := newEventScene(t, func(p *apiserver.Proxy) *rest.Config { c := p.Config(); c.QPS = -1; return c })
	for i := range 60 {
		s.recorder.removed(s.object, "nri", string(status.NodeGone), []string{fmt.Sprint(i)})
	}
	s.run()
	requests := len(s.proxy.Requests())
	if requests < 2 || requests > 25 {
		t.Errorf("%d requests for 60 events, want no more than client-go's burst of 25", requests)
	}
	// Ten that differ only by their note, then those put together.
	if n := len(s.events(s.object.Namespace)); n > 11 {
		t.Errorf("%d events, want similar ones put together", n)
	}
}

func TestRefusedEventsAreLoggedOnce(t *testing.T) {
	user := apiserver.Unique("no-events")
	s := newEventScene(t, func(p *apiserver.Proxy) *rest.Config { return p.As(user) })
	for i := range 5 {
		s.recorder.warn(s.object, "MemberWithoutNode", fmt.Sprint("note ", i))
	}
	s.run()
	logged := s.logs.All()
	if len(logged) != 1 || !strings.Contains(fmt.Sprint(logged[0].ContextMap()["error"]), `"create" and "patch" on events`) {
		t.Errorf("logged %+v, want one line with advice", logged)
	}
	if n := len(s.proxy.Requests()); n != 5 {
		t.Errorf("%d requests, want 5: rights may come later", n)
	}
}

func TestEventsOfAnotherFailureAreLoggedToo(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	s.proxy.SetFault(apiserver.FaultFunc(func(r *http.Request) *apiserver.Fault {
		return apiserver.Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, "no")
	}).Times(2))
	s.recorder.warn(s.object, "A", "1")
	s.recorder.warn(s.object, "A", "2")
	s.run()
	s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "malformed")))
	s.recorder.warn(s.object, "A", "3")
	s.run()
	if n := s.logs.Len(); n != 2 {
		t.Errorf("%d lines are logged, want one for each reason: %+v", n, s.logs.All())
	}
}

// What is queued when the recorder ends is still sent.
func TestEventsAreSentAtTheEnd(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	s.recorder.warn(s.object, "A", "1")
	s.recorder.warn(s.object, "B", "2")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.recorder.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := len(s.events(s.object.Namespace)); n != 2 {
		t.Errorf("%d events, want 2; logs: %v", n, s.logs.All())
	}
}

// Whatever the API server does, recording never blocks and the recorder ends.
func TestRecorderIsBounded(t *testing.T) {
	s := newEventScene(t, (*apiserver.Proxy).Config)
	s.recorder.stopTime = eventStopTime
	hanging := make(chan struct{}, 1)
	s.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Before: func(*http.Request) { hanging <- struct{}{} }, Hang: true}))
	for i := range 3 * maxQueuedEvents {
		s.recorder.warn(s.object, "A", fmt.Sprint(i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.recorder.Run(ctx) }()
	<-hanging
	cancelled := time.Now()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if took := time.Since(cancelled); took > kubeTimeout/2 {
		t.Errorf("ending took %s", took)
	}
	for i := range 3 * maxQueuedEvents { // after the end
		s.recorder.warn(s.object, "A", fmt.Sprint(i))
	}
	if n := s.logs.Len(); n > 0 {
		t.Errorf("a stop is no failure, but logged: %+v", s.logs.All())
	}
}

func TestRemovedNote(t *testing.T) {
	long := strings.Repeat("x", 253)
	for name, test := range map[string]struct {
		keys []string
		want string
	}{
		"one":      {[]string{"a"}, "removed 1 key (target nri): a"},
		"ten":      {strings.Split("abcdefghij", ""), "removed 10 keys (target nri): a, b, c, d, e, f, g, h, i, j"},
		"twelve":   {strings.Split("abcdefghijkl", ""), "removed 12 keys (target nri): a, b, c, d, e, f, g, h, i, j and 2 more"},
		"long":     {[]string{long, long, long, long, long}, "removed 5 keys (target nri): " + long + ", " + long + ", " + long + " and 2 more"},
		"too long": {[]string{strings.Repeat("y", 900), "a"}, "removed 2 keys (target nri): " + strings.Repeat("y", 900) + " and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := removedNote("nri", test.keys); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
