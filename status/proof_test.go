package status

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// That a Node is gone is proved by any Node that exists, of a few that are asked for; an API server on which none of those can be read
// is not asked for all.
func TestAProofTriesAFew(t *testing.T) {
	s := newScene(t, proofTries, `{nodes: {}}`, paths("status.nodes")...)
	confirm := func() NodeAnswer { return s.nodes.Confirm(t.Context(), []string{"gone"}, 0)["gone"] }
	for _, name := range s.existing[1:] { // listed, and gone since
		s.server.DeleteNode(t, name)
	}
	if got := confirm(); got.Existence != Gone {
		t.Errorf("%+v, although one of the Nodes known to exist can be read", got)
	}

	// Likely Nodes are asked for where none is listed, each once.
	s.nodes = NewNodes(s.sweeper.client)
	likely := []string{"gone", "likely-0", "likely-0", s.existing[0]}
	s.nodes.Likely = func() []string { return likely }
	s.proxy.Reset()
	if got := confirm(); got.Existence != Gone || len(s.proxy.Requests()) != 3 {
		t.Errorf("%+v after %d requests", got, len(s.proxy.Requests()))
	}
	if got := s.nodes.Known(s.existing[0]); !got.Listed || !got.Seen {
		t.Errorf("a Node that was read is not known to exist: %+v", got)
	}
	likely = nil
	for i := range 10 * proofTries {
		likely = append(likely, fmt.Sprintf("likely-%d", i))
	}
	s.nodes = NewNodes(s.sweeper.client)
	s.nodes.Likely = func() []string { return likely }
	s.proxy.Reset()
	if got := confirm(); got.Existence != Unproved || !strings.Contains(got.Why, "get nodes likely-2: not found") {
		t.Errorf("%+v, although no Node can be read", got)
	}
	if n := len(s.proxy.Requests()); n != 1+proofTries {
		t.Errorf("%d requests, want one and %d for the proof", n, proofTries)
	}
}

// Where Nodes were listed and none of them can be read any more, the likely ones are not asked for on top.
func TestAProofTriesNoMoreThanAFew(t *testing.T) {
	s := newScene(t, proofTries, `{nodes: {}}`, paths("status.nodes")...)
	for _, name := range s.existing {
		s.server.DeleteNode(t, name)
	}
	s.nodes.Likely = func() []string { return []string{"likely-0", "likely-1", "likely-2", "likely-3"} }
	s.proxy.Reset()
	s.nodes.Confirm(t.Context(), []string{"gone"}, 0)
	if n := len(s.proxy.Requests()); n > 1+proofTries {
		t.Errorf("%d requests, want one and %d for the proof at most", n, proofTries)
	}
}

// What is no Node's metadata is no proof that the API server answers for Nodes, whatever its status.
func TestWhatProvesNothing(t *testing.T) {
	s := newScene(t, 1, `{nodes: {}}`, paths("status.nodes")...)
	node := s.existing[0]
	good := fmt.Sprintf(`{"kind": "PartialObjectMetadata", "metadata": {"name": %q, "uid": "u"}}`, node)
	for _, test := range []struct {
		body   string
		proves bool
	}{
		{good, true},
		{strings.Replace(good, "PartialObjectMetadata", "Status", 1), false},
		{strings.Replace(good, "PartialObjectMetadata", "Node", 1), false},
		{strings.Replace(good, node, "another", 1), false},
		{strings.Replace(good, `"u"`, `""`, 1), false},
		{`{}`, false},
		{`[]`, false},
	} {
		s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
			if r.URL.Path == nodeNamed(node) {
				return &apiserver.Fault{Status: http.StatusOK, Body: test.body}
			}
			return nil
		})
		got := s.nodes.Confirm(t.Context(), []string{"gone"}, 0)["gone"]
		if (got.Existence == Gone) != test.proves || got.Existence != Gone && got.Existence != Unproved {
			t.Errorf("%s: %+v", test.body, got)
		}
	}
}

// An answer is as old as its question.
func TestAnAnswerIsAsOldAsItsQuestion(t *testing.T) {
	s := newLeftScene(t)
	for _, existence := range []Existence{Exists, Gone} {
		at := s.sweeper.Now()
		s.during("GET nodes", func() { s.tick(time.Second) })
		if answer, _ := s.asks(0); answer.Existence != existence || !answer.At.Equal(at) {
			t.Errorf("%+v, asked at %v", answer, at)
		}
		if existence == Exists {
			s.server.DeleteNode(t, s.node)
		}
	}
}

// A 404 that names a Node of another API group is no answer about the Node: metrics.k8s.io, say, has nodes too.
func TestA404OfAnotherGroup(t *testing.T) {
	s := newScene(t, 1, `{nodes: {}}`, paths("status.nodes")...)
	for group, want := range map[string]Existence{"": Gone, "metrics.k8s.io": Unproved} {
		s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
			if r.URL.Path != nodeNamed("gone") {
				return nil
			}
			return refusal(metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Details: &metav1.StatusDetails{Group: group, Kind: "nodes", Name: "gone"}})
		})
		if got := s.nodes.Confirm(t.Context(), []string{"gone"}, 0)["gone"]; got.Existence != want {
			t.Errorf("group %q: %+v", group, got)
		}
	}
}

// Where nothing is said to be gone nothing needs a proof.
func TestNoProofIsAskedForWithoutNeed(t *testing.T) {
	s := newScene(t, 1, `{nodes: {}}`, paths("status.nodes")...)
	s.proxy.SetFault(func(r *http.Request) *apiserver.Fault {
		if r.URL.Path == nodeNamed("closed") {
			return apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")
		}
		return nil
	})
	s.proxy.Reset()
	if got := s.nodes.Confirm(t.Context(), []string{"closed"}, 0)["closed"]; got.Existence != Unproved {
		t.Errorf("%+v", got)
	}
	if n := len(s.proxy.Requests()); n != 1 {
		t.Errorf("%d requests, want one", n)
	}
}

// A plan is about to do nothing, so its answers do not grow old, and it tells of every key however long that takes.
func TestAPlanTakesItsTime(t *testing.T) {
	s := newScene(t, 1, `{nodes: {}}`, paths("status.nodes")...)
	const keys = confirmChunk + 5
	s.mergeKeys(keysOf(1, keys))
	s.restart()
	s.proxy.SetFault(apiserver.On("GET nodes", &apiserver.Fault{Before: func(*http.Request) { s.tick(confirmTime / 10) }}))
	report := s.sweeper.Plan(t.Context())
	if n := report.Count(Remove); n != keys {
		t.Errorf("%d keys would be removed, want %d; %d wait", n, keys, report.Count(Wait))
	}
}
