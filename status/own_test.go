package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/unstale/unstale/test/apiserver"
)

// An ownScene is a scene with the key of the node KEEP0, whose clock moves only when it waits.
type ownScene struct {
	*scene
	key    *OwnKey
	clock  atomic.Int64 // nanoseconds since noon
	onWait func(ctx context.Context, d time.Duration)
}

// An entry such as agents publish.
type entry struct {
	N int    `json:"n"`
	S string `json:"s,omitempty"`
}

func newOwnScene(t *testing.T, text string, at ...KeyPath) *ownScene {
	t.Helper()
	s := &ownScene{scene: newScene(t, 1, text, at...)}
	s.key = s.newKey(s.existing[0])
	s.proxy.Reset()
	return s
}

func (s *ownScene) newKey(node string) *OwnKey {
	s.Helper()
	k, err := NewOwnKey(newTestClient(s.T, s.proxy.Config()), node, s.place())
	if err != nil {
		s.Fatal(err)
	}
	k.Now = func() time.Time { return noon.Add(s.waited()) }
	k.Wait = func(ctx context.Context, d time.Duration) error {
		s.clock.Add(int64(d))
		if s.onWait != nil {
			s.onWait(ctx, d)
		}
		return ctx.Err()
	}
	return k
}

func (s *ownScene) place() KeyPlace {
	return KeyPlace{Resource: s.target.Resource, Namespace: s.target.Namespace, Name: s.name, Paths: s.target.Paths}
}

// waited is for how long keys have waited in all.
func (s *ownScene) waited() time.Duration { return time.Duration(s.clock.Load()) }

func (s *ownScene) patchClass() string { return "PATCH widgets." + s.target.Resource.Group + "/status" }
func (s *ownScene) getClass() string   { return "GET widgets." + s.target.Resource.Group }

func (s *ownScene) publish(n int) {
	s.Helper()
	if err := s.key.Publish(s.Context(), entry{N: n}); err != nil {
		s.Fatal(err)
	}
}

func (s *ownScene) clear() {
	s.Helper()
	if err := s.key.Clear(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// requests checks how many GETs and PATCHes of the resource there were since the last call.
func (s *ownScene) requests(what string, gets, patches int) {
	s.Helper()
	counts := s.proxy.Counts()
	if counts[s.getClass()] != gets || counts[s.patchClass()] != patches {
		s.Errorf("%s: requests %v, want %d GETs and %d PATCHes", what, counts, gets, patches)
	}
	s.proxy.Reset()
}

// replay sends a write again that the proxy has seen, as a network does that held it back. It returns the server's error.
func (s *ownScene) replay(r apiserver.Request) error {
	_, err := s.server.Dynamic().Resource(s.target.Resource).Namespace(s.target.Namespace).
		Patch(context.Background(), s.name, types.JSONPatchType, []byte(r.Body), metav1.PatchOptions{}, "status")
	return err
}

// failsWith checks an error: that it is the cause, and that it has the words.
func (s *ownScene) failsWith(err, cause error, words ...string) {
	s.Helper()
	if err == nil {
		s.Error("no error")
		return
	}
	if cause != nil && !errors.Is(err, cause) {
		s.Errorf("the error %q is not: %v", err, cause)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			s.Errorf("the error %q does not say %q", err, w)
		}
	}
}

func TestPublishAndClear(t *testing.T) {
	for _, test := range []struct{ name, status, path, published, cleared string }{
		{"a status is missing", `null`, "status.nodes", `{"KEEP0":{"n":1}}`, `{}`},
		{"a status that is empty", `{}`, "status.nodes", `{"KEEP0":{"n":1}}`, `{}`},
		{"a map that is empty", `{nodes: {}}`, "status.nodes", `{"KEEP0":{"n":1}}`, `{}`},
		{"containers two deep", `{x: 1}`, "status[a/b].c", `{"KEEP0":{"n":1}}`, `{}`},
		{"a container that is null", `{a: null}`, "status.a.b", `{"KEEP0":{"n":1}}`, `{}`},
		{"others", `{nodes: {other: 1}}`, "status.nodes", `{"KEEP0":{"n":1},"other":1}`, `{"other":1}`},
		{"an old entry", `{nodes: {KEEP0: {old: true}, other: 1}}`, "status.nodes", `{"KEEP0":{"n":1},"other":1}`, `{"other":1}`},
		{"an entry that is null", `{nodes: {KEEP0: null, other: 1}}`, "status.nodes", `{"KEEP0":{"n":1},"other":1}`, `{"other":1}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOwnScene(t, test.status, paths(test.path)...)
			s.publish(1)
			s.equal("published", s.left(), test.published)
			s.requests("the first", 1, 1)
			s.publish(1)
			s.requests("the same again", 0, 0)
			s.publish(2)
			s.requests("another", 0, 1)
			s.clear()
			s.requests("the end", 0, 1)
			s.equal("cleared", s.left(), test.cleared)
			s.failsWith(s.key.Publish(t.Context(), entry{N: 3}), ErrClosed)
			s.clear()
			s.requests("after the end", 0, 0)
		})
	}
}

// A new process that finds its entry as it should be writes nothing; one that was told to look again does.
func TestPublishLooksWhereItMust(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"s": "<&>", "n": 1}}}`, paths("status.nodes")...)
	if err := s.key.Publish(t.Context(), entry{N: 1, S: "<&>"}); err != nil {
		t.Fatal(err)
	}
	s.requests("as it should be", 1, 0)
	s.merge(fmt.Sprintf(`{"status":{"nodes":{%q:null}}}`, s.existing[0]))
	if err := s.key.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.key.Publish(t.Context(), entry{N: 1, S: "<&>"}); err != nil {
		t.Fatal(err)
	}
	s.requests("lost", 1, 1)
	s.equal("left", s.left(), `{"KEEP0":{"n":1,"s":"\u003c\u0026\u003e"}}`)
}

// Others' keys stay the bytes that they are.
func TestOwnKeyKeepsOthersByteForByte(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}, list: ["KEEP0"]}`, paths("status.nodes")...)
	s.merge(`{"status":{"nodes":{"other":{"f":1.50,"big":9007199254740993,"s":"\u2028<&>é\"\\","l":[1,{"b":1,"a":2}]},"x~y/z":1e3}}}`)
	others := func() string {
		body := s.server.GetJSON(t, fmt.Sprintf("/apis/%s/v1/namespaces/%s/widgets/%s", s.target.Resource.Group, s.target.Namespace, s.name))
		r := parsed(t, string(body), paths("status.nodes", "status.list|.", "spec"))
		var all strings.Builder
		for _, e := range r.Entries {
			if e.Key != s.existing[0] || e.Place != 0 {
				fmt.Fprintf(&all, "%d %s %s\n", e.Place, e.Key, e.Raw)
			}
		}
		return all.String()
	}
	before := others()
	if !strings.Contains(before, "9007199254740993") {
		t.Fatalf("the scene is not as meant: %s", before)
	}
	s.publish(1)
	s.publish(2)
	s.equal("after publishing", others(), before)
	s.clear()
	s.equal("after clearing", others(), before)
}

// firstFaults are what an API server in trouble does at first.
func firstFaults() map[string]apiserver.FaultFunc {
	busy := apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", "1")
	conflict := apiserver.Refuse(409, metav1.StatusReasonConflict, "the object has been modified")
	later := apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")
	return map[string]apiserver.FaultFunc{
		"409 three times":         apiserver.OnEach(conflict).Times(3),
		"429 three times":         apiserver.OnEach(busy).Times(3),
		"429 for a day":           apiserver.OnEach(apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "tomorrow", "86400")).Times(2),
		"503 four times":          apiserver.OnEach(later).Times(4),
		"503 without a Status":    apiserver.OnEach(&apiserver.Fault{Status: 503, Body: "upstream connect error"}).Times(3),
		"500":                     apiserver.OnEach(apiserver.Refuse(500, metav1.StatusReasonInternalError, "etcdserver: request timed out")).Times(2),
		"dropped":                 apiserver.OnEach(&apiserver.Fault{Drop: true}).Times(2),
		"done, the answer lost":   apiserver.OnEach(&apiserver.Fault{Lose: true}).Times(1),
		"done, the answer cut":    apiserver.OnEach(&apiserver.Fault{Cut: true, CutAfter: 10}).Times(1),
		"a page instead":          apiserver.OnEach(&apiserver.Fault{Status: 200, Body: "<html>login</html>"}).Times(1),
		"a 404 of something else": apiserver.OnEach(apiserver.HTMLNotFound).Times(3),
		"409, 429, 503 in turn":   turns(conflict, busy, later),
	}
}

// turns gives each request the next of the faults, and the later ones none.
func turns(faults ...*apiserver.Fault) apiserver.FaultFunc {
	var n atomic.Int64
	return func(*http.Request) *apiserver.Fault {
		if i := n.Add(1); i <= int64(len(faults)) {
			return faults[i-1]
		}
		return nil
	}
}

func TestPublishInTrouble(t *testing.T) {
	for _, verb := range []string{http.MethodGet, http.MethodPatch} {
		for name, fault := range firstFaults() {
			if name == "a 404 of something else" {
				continue // for a person to mend; see TestPublishSaysWhatToDo
			}
			t.Run(verb+" "+name, func(t *testing.T) {
				s := newOwnScene(t, `{nodes: {other: 1}}`, paths("status.nodes")...)
				s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
					if r.Method != verb {
						return nil
					}
					return fault(r)
				})
				s.publish(1)
				s.equal("published", s.left(), `{"KEEP0":{"n":1},"other":1}`)
				s.publish(2)
				s.clear()
				s.equal("cleared", s.left(), `{"other":1}`)
				if n := len(s.proxy.Requests()); n > 14 {
					t.Errorf("%d requests", n)
				}
			})
		}
	}
}

// An agent that is stopped while the API server is in trouble clears its key within 10 s.
func TestClearInTrouble(t *testing.T) {
	for _, known := range []bool{true, false} {
		for name, fault := range firstFaults() {
			t.Run(fmt.Sprintf("%s, known %t", name, known), func(t *testing.T) {
				s := newOwnScene(t, `{nodes: {KEEP0: {"n": 1}, other: 1}}`, paths("status.nodes")...)
				if known {
					s.publish(2)
				}
				start, before := time.Now(), s.waited()
				s.proxy.SetFault(fault)
				s.clear()
				if took := s.waited() - before + time.Since(start); took > ClearTimeout {
					t.Errorf("it took %s", took)
				}
				s.equal("cleared", s.left(), `{"other":1}`)
			})
		}
	}
}

// The waits between tries grow, differ, and are bounded, and so are the tries.
func TestOwnKeyBackoff(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(1)
	s.proxy.SetFault(apiserver.On(s.patchClass(), apiserver.Refuse(409, metav1.StatusReasonConflict, "conflict")))
	ctx, cancel := context.WithCancel(t.Context())
	var waits []time.Duration
	s.onWait = func(_ context.Context, d time.Duration) {
		if waits = append(waits, d); len(waits) == 12 {
			cancel()
		}
	}
	check := func(first, limit time.Duration) {
		t.Helper()
		jittered := false
		for i, wait := range waits {
			full := min(first<<i, limit)
			if wait < full/2 || wait > full {
				t.Errorf("wait %d was %s, want %s to %s", i, wait, full/2, full)
			}
			jittered = jittered || wait != full
		}
		if !jittered {
			t.Error("the waits are without jitter")
		}
	}
	s.failsWith(s.key.Publish(ctx, entry{N: 2}), context.Canceled, "publish the key "+s.existing[0]+" at status.nodes in widgets", "not done in time", "conflict (409)")
	check(publishBackoff, maxPublishBackoff)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	waits = nil
	s.failsWith(s.key.Clear(ctx), context.Canceled, "clear the key", "conflict (409)")
	check(clearBackoff, maxClearBackoff)
}

// When the server says how long to wait, that long is waited, within reason: less at a stop.
func TestOwnKeyWaitsAsTheServerSays(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	for _, test := range []struct {
		seconds        string
		publish, clear time.Duration
	}{{"2", 2 * time.Second, 2 * time.Second}, {"5", 5 * time.Second, maxClearBackoff}, {"86400", maxRetryAfter, maxClearBackoff}} {
		key := s.newKey(s.existing[0])
		busy := apiserver.OnEach(apiserver.RefuseLater(429, metav1.StatusReasonTooManyRequests, "slowly", test.seconds))
		wait := func(do func(context.Context) error) time.Duration {
			t.Helper()
			s.proxy.SetFault(busy.Times(1))
			before := s.waited()
			if err := do(t.Context()); err != nil {
				t.Error(err)
			}
			return s.waited() - before
		}
		if got := wait(func(ctx context.Context) error { return key.Publish(ctx, entry{N: 1}) }); got != test.publish {
			t.Errorf("told to wait for %s s, a publication waited %s", test.seconds, got)
		}
		if got := wait(key.Clear); got != test.clear {
			t.Errorf("told to wait for %s s, clearing waited %s", test.seconds, got)
		}
	}
}

// Whatever is published while clearing begins, and after, nothing is there in the end.
func TestNothingIsPublishedAfterClear(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(0)
	var events sync.WaitGroup
	underWay := make(chan bool, 8)
	for worker := range 8 {
		events.Go(func() {
			for n := 1; ; n++ {
				err := s.key.Publish(s.Context(), entry{N: 1000*worker + n})
				if n == 1 {
					underWay <- true
				}
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	<-underWay
	s.clear()
	s.proxy.Reset()
	s.equal("cleared", s.left(), `{}`)
	events.Wait()
	s.equal("still", s.left(), `{}`)
	if n := len(s.proxy.Requests()); n != 0 {
		t.Errorf("%d requests after Clear had returned", n)
	}
}

// A publication in flight when clearing begins gets its answer; so there is no doubt, and no wait.
func TestClearLetsAPublicationBeAnswered(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	cleared := make(chan error, 1)
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Before: func(*http.Request) {
		go func() { cleared <- s.key.Clear(s.Context()) }()
		<-s.key.closing.Done()
	}}).Times(1))
	s.publish(1)
	if err := <-cleared; err != nil {
		t.Error(err)
	}
	s.equal("left", s.left(), `{}`)
	s.requests("in all", 1, 2)
	if s.waited() != 0 {
		t.Errorf("waited %s", s.waited())
	}
}

// withheld makes the next write one that the network holds back: it is not answered, and replay sends it later.
func (s *ownScene) withheld() <-chan apiserver.Request {
	held := make(chan apiserver.Request, 1)
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Hang: true, Before: func(*http.Request) {
		seen := s.proxy.Matching(s.patchClass())
		held <- seen[len(seen)-1]
	}}).Times(1))
	return held
}

// A publication that arrives after a newer one changes nothing, whether it replaced an entry or found none.
func TestLatePublicationDoesNotUndoANewerOne(t *testing.T) {
	for _, before := range []string{`{}`, `{nodes: {}}`, `{nodes: {KEEP0: {"n": 0}}}`} {
		t.Run(before, func(t *testing.T) {
			s := newOwnScene(t, before, paths("status.nodes")...)
			held := s.withheld()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- s.key.Publish(ctx, entry{N: 1}) }()
			late := <-held
			cancel()
			s.failsWith(<-ended, context.Canceled, "not done in time")
			s.publish(2)
			if err := s.replay(late); err == nil {
				t.Error("the late one was done")
			}
			s.equal("left", s.left(), `{"KEEP0":{"n":2}}`)
		})
	}
}

// One that arrives while its key is being cleared is cleared too.
func TestLatePublicationIsClearedToo(t *testing.T) {
	s := newOwnScene(t, `{nodes: {other: 1}}`, paths("status.nodes")...)
	held := s.withheld()
	ended := make(chan error, 1)
	go func() { ended <- s.key.Publish(t.Context(), entry{N: 1}) }()
	late := <-held
	arrived := false
	s.onWait = func(context.Context, time.Duration) {
		if s.equal("before it arrives", s.left(), `{"other":1}`); arrived {
			return
		}
		arrived = true
		if err := s.replay(late); err != nil {
			t.Error(err)
		}
		s.equal("as it arrives", s.left(), `{"KEEP0":{"n":1},"other":1}`)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	if err := s.key.Clear(ctx); err != nil {
		t.Error(err)
	}
	s.failsWith(<-ended, ErrClosed)
	s.equal("left", s.left(), `{"other":1}`)
	if !arrived {
		t.Error("Clear did not wait for it")
	}
	if s.waited() > settleTime {
		t.Errorf("waited %s", s.waited())
	}
	// It is accounted for, so a second Clear waits for nothing.
	before := s.waited()
	s.clear()
	if s.waited() != before {
		t.Errorf("waited %s more", s.waited()-before)
	}
}

// An answer of 5xx does not say that the write was not done, nor that it will not be.
func TestPublicationThatTimedOutOnTheServerMayBeLate(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.On(s.patchClass(), apiserver.Refuse(504, metav1.StatusReasonTimeout, "request did not complete within requested timeout")).Times(1))
	ctx, cancel := context.WithCancel(t.Context())
	s.onWait = func(context.Context, time.Duration) { cancel() }
	s.failsWith(s.key.Publish(ctx, entry{N: 1}), context.Canceled)
	late := s.proxy.Matching(s.patchClass())[0]
	s.onWait = func(context.Context, time.Duration) {
		s.onWait = nil
		if err := s.replay(late); err != nil {
			t.Error(err)
		}
	}
	s.clear()
	if s.onWait != nil {
		t.Error("Clear did not wait for it")
	}
	s.equal("left", s.left(), `{}`)
}

// If there is no time to see whether one is late, Clear says so.
func TestClearSaysThatAPublicationMayBeLate(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	held := s.withheld()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.key.Publish(ctx, entry{N: 1}) }()
	<-held
	cancel()
	<-ended
	short, cancel := context.WithTimeout(t.Context(), lookReserve/2)
	defer cancel()
	s.failsWith(s.key.Clear(short), context.DeadlineExceeded, "never answered may still be under way")
	s.clear() // given more time
	if s.waited() != settleTime {
		t.Errorf("waited %s, want %s", s.waited(), settleTime)
	}
}

// A publication whose answer was lost, and that turned out to be done, leaves no doubt.
func TestLostAnswerThatWasFoundOutLeavesNoDoubt(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Lose: true}).Times(1))
	s.publish(1)
	before := s.waited()
	s.clear()
	s.equal("left", s.left(), `{}`)
	if s.waited() != before {
		t.Errorf("waited %s", s.waited()-before)
	}
}

// No answer at all: Clear returns when its time is over, whatever a publication in flight does.
func TestClearWithoutAnyAnswer(t *testing.T) {
	for _, publishing := range []bool{false, true} {
		t.Run(fmt.Sprintf("publishing %t", publishing), func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
			arrived := make(chan bool, 100)
			s.proxy.SetFault(apiserver.OnEach(&apiserver.Fault{Hang: true, Before: func(*http.Request) { arrived <- true }}))
			ended := make(chan error, 1)
			if publishing {
				go func() { ended <- s.key.Publish(t.Context(), entry{N: 1}) }()
				<-arrived
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			s.failsWith(s.key.Clear(ctx), context.DeadlineExceeded, "not done in time", "no answer")
			if took := time.Since(start); took > 5*time.Second { // what it takes to schedule a goroutine on a busy machine
				t.Errorf("it took %s", took)
			}
			if publishing {
				s.failsWith(<-ended, ErrClosed)
			}
			// The server back, what is left is cleared.
			s.proxy.SetFault(nil)
			s.clear()
			s.equal("left", s.left(), `{}`)
		})
	}
}

// One request that is never answered does not take all the time there is.
func TestClearTriesAgainAfterARequestWithoutAnswer(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Hang: true}).Times(1))
	s.clear()
	s.equal("left", s.left(), `{}`)
	for _, r := range s.proxy.Matching(s.patchClass()) {
		if r.Query.Get("timeout") != clearAttempt.String() {
			t.Errorf("the server was not told when to give up: %v", r.Query)
		}
	}
}

// Without a deadline of the caller's it gives itself one.
func TestClearBoundsItself(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")).Times(1))
	bounded := false
	s.onWait = func(ctx context.Context, _ time.Duration) {
		deadline, ok := ctx.Deadline()
		bounded = ok && time.Until(deadline) <= ClearTimeout
	}
	s.clear()
	if !bounded {
		t.Error("it would have gone on for ever")
	}
}

// untilManyRequests is a context that ends when 20 requests were sent: where a test's clock waits for nothing, that is what time is.
func (s *ownScene) untilManyRequests() (context.Context, func()) {
	ctx, cancel := context.WithCancel(s.Context())
	s.onWait = func(context.Context, time.Duration) {
		if len(s.proxy.Requests()) > 20 {
			cancel()
		}
	}
	return ctx, cancel
}

func TestClearWhereNothingIs(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*ownScene)
		words   []string // none: cleared
	}{
		{"the resource is gone", func(s *ownScene) { s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name) }, nil},
		{"the definition is gone", func(s *ownScene) { s.server.Uninstall(s, s.target.Resource) }, nil},
		{"the status is gone", func(s *ownScene) { s.merge(`{"status":null}`) }, nil},
		{"a proxy says 404", func(s *ownScene) { s.proxy.SetFault(apiserver.OnEach(apiserver.HTMLNotFound)) }, []string{"is this address an API server's?"}},
		{"another resource's 404", func(s *ownScene) {
			s.proxy.SetFault(apiserver.On(s.patchClass(), refusal(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: "not found",
				Details: &metav1.StatusDetails{Group: s.target.Resource.Group, Kind: "gadgets", Name: s.name}})))
		}, []string{"although the resource is served"}},
		{"another version", func(s *ownScene) { s.key.target.Resource.Version = "v9" }, []string{"version v9", "only v1; set resource.version"}},
		{"not a map", func(s *ownScene) { s.merge(`{"status":{"nodes":["a"]}}`); s.key.view = nil }, []string{"status.nodes is not a map"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
			s.publish(1)
			test.prepare(s)
			ctx, cancel := s.untilManyRequests()
			defer cancel()
			err := s.key.Clear(ctx)
			if len(test.words) > 0 {
				s.failsWith(err, nil, test.words...)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

// The resource is replaced by one of the same name, between a look and a write or between two publications.
func TestOwnKeyInARecreatedResource(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	recreate := func(*http.Request) {
		s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name)
		s.create(`{nodes: {other: 1}}`)
	}
	between := apiserver.On(s.patchClass(), &apiserver.Fault{Before: recreate})
	s.proxy.SetFault(between.Times(1))
	s.publish(1)
	s.equal("published", s.left(), `{"KEEP0":{"n":1},"other":1}`)
	recreate(nil)
	s.publish(2)
	s.equal("published again", s.left(), `{"KEEP0":{"n":2},"other":1}`)
	s.proxy.SetFault(between.Times(1))
	s.clear()
	s.equal("cleared", s.left(), `{"other":1}`)

	s = newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(1)
	s.server.Delete(t, s.target.Resource, s.target.Namespace, s.name)
	err := s.key.Publish(t.Context(), entry{N: 2})
	s.failsWith(err, nil, "the resource does not exist; create it")
	var keyError *KeyError
	if !errors.As(err, &keyError) || keyError.State != NotInstalled {
		t.Errorf("%#v", err)
	}
	s.create(`{}`)
	s.publish(2)
	s.equal("created again", s.left(), `{"KEEP0":{"n":2}}`)
}

// While another process of this node's agent runs (a rolling update with maxSurge), or this node's successor, their entry stays.
func TestClearLeavesWhatOthersPublished(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(1)
	next := s.newKey(s.existing[0])
	if err := next.Publish(t.Context(), entry{N: 7}); err != nil {
		t.Fatal(err)
	}
	s.clear()
	s.equal("left", s.left(), `{"KEEP0":{"n":7}}`)
}

// replaceNode gives the node's name to another Node.
func (s *ownScene) replaceNode() {
	s.Helper()
	s.server.DeleteNode(s, s.existing[0])
	s.server.CreateNode(s, s.existing[0], nil)
}

func (s *ownScene) nodeUID() string {
	s.Helper()
	return string(s.server.Get(s, apiserver.Nodes, "", s.existing[0]).GetUID())
}

// An agent whose Node was replaced neither replaces nor clears the new Node's entry, not even one that was written this moment.
func TestReplacedNodesAgent(t *testing.T) {
	for _, published := range []bool{true, false} {
		t.Run(fmt.Sprintf("published %t", published), func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
			s.key.NodeUID = s.nodeUID()
			if published {
				s.publish(1)
			}
			s.replaceNode()
			s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Before: func(*http.Request) {
				s.merge(fmt.Sprintf(`{"status":{"nodes":{%q:{"n":9}}}}`, s.existing[0]))
			}}).Times(1))
			if published {
				s.failsWith(s.key.Publish(t.Context(), entry{N: 2}), ErrReplaced)
				s.equal("left", s.left(), `{"KEEP0":{"n":9}}`)
			} else {
				s.merge(fmt.Sprintf(`{"status":{"nodes":{%q:{"n":9}}}}`, s.existing[0]))
				s.failsWith(s.key.Publish(t.Context(), entry{N: 2}), ErrReplaced)
			}
			s.clear()
			s.equal("left", s.left(), `{"KEEP0":{"n":9}}`)
		})
	}
}

// An agent that never published clears what its Node has there, also when the Node is gone; if it cannot know, it leaves it.
func TestClearOfWhatWasNeverPublished(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*ownScene)
		left    string
		words   []string
	}{
		{"the Node is there", func(*ownScene) {}, `{"other":1}`, nil},
		{"the Node is gone", func(s *ownScene) { s.server.DeleteNode(s, s.existing[0]) }, `{"other":1}`, nil},
		{"the Node is another one", func(s *ownScene) { s.replaceNode() }, `{"KEEP0":{"n":0},"other":1}`, nil},
		{"the Node cannot be read", func(s *ownScene) {
			s.proxy.SetFault(apiserver.On("GET nodes", apiserver.Refuse(403, metav1.StatusReasonForbidden, `nodes is forbidden: User "u" cannot get resource "nodes"`)))
		}, `{"KEEP0":{"n":0},"other":1}`, []string{"not allowed to get nodes", "this rule is missing"}},
		{"a proxy's 404", func(s *ownScene) { s.proxy.SetFault(apiserver.On("GET nodes", apiserver.HTMLNotFound)) },
			`{"KEEP0":{"n":0},"other":1}`, []string{"whose entry it is could not be found out"}},
		{"not the Node", func(s *ownScene) {
			s.proxy.SetFault(apiserver.On("GET nodes", &apiserver.Fault{Status: 200, Body: `{"metadata":{"name":"x","uid":"1"}}`}).Times(1))
		}, `{"other":1}`, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}, other: 1}}`, paths("status.nodes")...)
			s.key.NodeUID = s.nodeUID()
			test.prepare(s)
			ctx, cancel := s.untilManyRequests()
			defer cancel()
			err := s.key.Clear(ctx)
			if len(test.words) > 0 {
				s.failsWith(err, nil, test.words...)
			} else if err != nil {
				t.Error(err)
			}
			s.equal("left", s.left(), test.left)
		})
	}
}

// An entry that a publication was to replace and did not goes at the stop all the same.
func TestClearOfWhatWasToBeReplaced(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
	s.proxy.SetFault(apiserver.On(s.patchClass(), apiserver.Refuse(503, metav1.StatusReasonServiceUnavailable, "later")))
	ctx, cancel := context.WithCancel(t.Context())
	s.onWait = func(context.Context, time.Duration) { cancel() }
	s.failsWith(s.key.Publish(ctx, entry{N: 1}), context.Canceled)
	s.proxy.SetFault(nil)
	before := s.waited()
	s.clear()
	s.equal("left", s.left(), `{}`)
	if s.waited() != before { // that publication tests for the old entry, so it cannot come late
		t.Errorf("waited %s", s.waited()-before)
	}
}

func TestClearInListsAndSeveralPlaces(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 1}, other: 1}, items: [{name: other}, {name: KEEP0}, {x: 1}, {name: KEEP0, y: 1}], good: [KEEP0, other, KEEP0]}`,
		paths("status.nodes", "status.items|name", "status.good|.", "status.absent|.")...)
	s.proxy.SetFault(apiserver.On(s.patchClass(), &apiserver.Fault{Before: func(*http.Request) {
		s.merge(`{"status":{"good":["other","` + s.existing[0] + `","new"]}}`)
	}}).Times(1))
	s.clear()
	for i, want := range []string{`{"other":1}`, `[{"name":"other"},{"x":1}]`, `["other","new"]`, `null`} {
		s.equal("left", s.leftAt(s.target.Paths[i]), want)
	}

	s = newOwnScene(t, `{good: [KEEP0, other]}`, paths("status.good|.")...)
	s.failsWith(s.key.Publish(t.Context(), entry{}), nil, "only a map can be published to")
	s.clear()
	s.equal("left", s.left(), `["other"]`)
}

func TestClearObeysTheKeepAnnotation(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(1)
	s.annotate("true") // after the key's last look
	s.failsWith(s.key.Clear(t.Context()), ErrKept, KeepAnnotation)
	s.equal("left", s.left(), `{"KEEP0":{"n":1}}`)
	s.annotate("false")
	s.clear()
	s.equal("left", s.left(), `{}`)
}

// What only a person can mend is said at once, with what to do.
func TestPublishSaysWhatToDo(t *testing.T) {
	for _, test := range []struct {
		name    string
		prepare func(*ownScene)
		state   State
		words   []string
	}{
		{"no right", func(s *ownScene) { s.key.client = newTestClient(s.T, s.proxy.As(apiserver.Unique("nobody"))) }, Forbidden,
			[]string{"this rule is missing", `verbs: ["get"]`, `resourceNames: ["default"]`}},
		{"no such resource", func(s *ownScene) { s.server.Delete(s, s.target.Resource, s.target.Namespace, s.name) }, NotInstalled, []string{"create it"}},
		{"no such definition", func(s *ownScene) { s.server.Uninstall(s, s.target.Resource) }, NotInstalled, []string{"is not installed"}},
		{"not an API server", func(s *ownScene) { s.proxy.SetFault(apiserver.OnEach(apiserver.HTMLNotFound)) }, Unavailable, []string{"is this address an API server's?"}},
		{"a list", func(s *ownScene) { s.merge(`{"status":{"nodes":["a"]}}`) }, Invalid, []string{"status.nodes is not a map"}},
		{"refused by a schema", func(s *ownScene) {
			s.proxy.SetFault(apiserver.On(s.patchClass(), apiserver.Refuse(422, metav1.StatusReasonInvalid, "n must be positive")))
		}, Forbidden, []string{"although nothing had changed", "n must be positive"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
			test.prepare(s)
			err := s.key.Publish(t.Context(), entry{N: 1})
			s.failsWith(err, nil, test.words...)
			var keyError *KeyError
			if !errors.As(err, &keyError) || keyError.State != test.state {
				t.Errorf("%#v, want state %s", err, test.state)
			}
			if s.waited() != 0 {
				t.Errorf("it waited %s", s.waited())
			}
			s.clearUnlessRefused(test.name)
		})
	}
	s := newOwnScene(t, `{}`, paths("status.nodes")...)
	s.failsWith(s.key.Publish(t.Context(), nil), nil, "call Clear to take the key away")
	s.failsWith(s.key.Publish(t.Context(), func() {}), nil, "cannot be written as JSON")
	s.requests("of what cannot be published", 0, 0)
}

// clearUnlessRefused does not let what was only tried stay.
func (s *ownScene) clearUnlessRefused(name string) {
	s.Helper()
	if name == "refused by a schema" {
		s.clear() // there is nothing, so nothing to refuse
	}
}

// With the rules that Rules gives nothing is missing.
func TestOwnKeyRules(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
	user := apiserver.Unique("agent")
	s.key.client, s.key.NodeUID = newTestClient(t, s.proxy.As(user)), s.nodeUID()
	for _, rule := range s.key.Rules() {
		s.server.Grant(t, user, rule.PolicyRule)
	}
	s.publish(1)
	s.clear()
	s.equal("left", s.left(), `{}`)
	if n := len(s.key.Rules()); n != 3 {
		t.Errorf("%d rules: %v", n, s.key.Rules())
	}
}

func TestNewOwnKeyRefuses(t *testing.T) {
	good := KeyPlace{Resource: schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "things"}, Name: "x", Paths: paths("status.nodes")}
	for want, change := range map[string]func(*KeyPlace, *string){
		"is no node's name":              func(_ *KeyPlace, node *string) { *node = "Node_1" },
		"needs a version":                func(p *KeyPlace, _ *string) { p.Resource.Version = "" },
		"name is missing":                func(p *KeyPlace, _ *string) { p.Name = "" },
		"cannot be a name":               func(p *KeyPlace, _ *string) { p.Namespace = "a/b" },
		"needs at least one path":        func(p *KeyPlace, _ *string) { p.Paths = nil },
		"must lie below status":          func(p *KeyPlace, _ *string) { p.Paths = paths("spec.nodes") },
		`"status" must lie below status`: func(p *KeyPlace, _ *string) { p.Paths = paths("status") },
	} {
		place, node := good, "n1"
		change(&place, &node)
		if _, err := NewOwnKey(nil, node, place); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
	if k, err := NewOwnKey(nil, "n1", good); err != nil || k.String() != "the key n1 at status.nodes in things.g.io x" {
		t.Errorf("%v, %v", k, err)
	}
}

func TestClearElsewhere(t *testing.T) {
	s := newOwnScene(t, `{nodes: {}}`, paths("status.nodes")...)
	s.publish(1)
	for name, status := range map[string]string{"old": `{nodes: {KEEP0: {"n": 0}, other: 1}}`, "older": `{nodes: {KEEP0: {"n": 0}}}`, "unrelated": `{nodes: {other: 1}}`} {
		s.name = name
		s.create(status)
	}
	s.proxy.Reset()
	if err := s.key.ClearElsewhere(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"default": `{"KEEP0":{"n":1}}`, "old": `{"other":1}`, "older": `{}`, "unrelated": `{"other":1}`} {
		s.name = name
		s.equal(name, s.left(), want)
	}
	s.requests("elsewhere", 3, 2)
	s.name = "default"
	s.publish(2)
	s.clear()
}

// Each removal is logged with what puts it back.
func TestClearIsLogged(t *testing.T) {
	s := newOwnScene(t, `{nodes: {KEEP0: {"n": 0}}}`, paths("status.nodes")...)
	core, logs := observer.New(zapcore.InfoLevel)
	s.key.Log = zap.New(core)
	s.clear()
	removing := logs.FilterMessage("removing").All()
	if len(removing) != 1 {
		t.Fatalf("%d removals logged", len(removing))
	}
	fields := removing[0].ContextMap()
	if fields["key"] != s.existing[0] || fields["entry"] != `{"n":0}` || fields["reason"] != string(OwnKeyCleared) || !strings.Contains(fields["putBack"].(string), "kubectl patch") {
		t.Errorf("logged %v", fields)
	}
}

// Fifty agents publish at once into a resource without a status, and are stopped at once.
func TestFiftyAgentsAtOnce(t *testing.T) {
	const agents = 50
	s := newOwnScene(t, `null`, paths("status.nodes")...)
	keys := make([]*OwnKey, agents)
	for i := range keys {
		keys[i] = s.newKey(fmt.Sprintf("agent-%d", i))
		keys[i].Wait = waitFor // with 50 at once, the jitter of real pauses is what is looked at
	}
	all := func(do func(*OwnKey) error) (took time.Duration) {
		t.Helper()
		start := time.Now()
		var running sync.WaitGroup
		for _, key := range keys {
			running.Go(func() {
				if err := do(key); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		return time.Since(start)
	}
	for round, do := range []func(*OwnKey) error{
		func(k *OwnKey) error { return k.Publish(t.Context(), entry{N: 1, S: k.node}) },
		func(k *OwnKey) error { return k.Publish(t.Context(), entry{N: 2, S: k.node}) },
		func(k *OwnKey) error { return k.Clear(t.Context()) },
	} {
		s.proxy.Reset()
		took := all(do)
		statuses := map[int]int{}
		for _, r := range s.proxy.Matching(s.patchClass()) {
			statuses[r.Status]++
		}
		counts := s.proxy.Counts()
		t.Logf("round %d of %d agents: %s, %v, answers to writes %v", round, agents, took.Round(time.Millisecond), counts, statuses)
		// Each agent's own write, and one more for each time that others came between; a few apiece are plenty.
		if n := len(s.proxy.Requests()); n > 12*agents {
			t.Errorf("%d requests", n)
		}
		var entries map[string]entry
		if err := json.Unmarshal([]byte(s.left()), &entries); err != nil {
			t.Fatal(err)
		}
		want := agents
		if round == 2 {
			want = 0
		}
		if len(entries) != want {
			t.Errorf("round %d: %d keys, want %d", round, len(entries), want)
		}
		for name, e := range entries {
			if e != (entry{N: round + 1, S: name}) {
				t.Errorf("round %d: %s has %+v", round, name, e)
			}
		}
	}
}
