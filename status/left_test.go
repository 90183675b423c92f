package status

import (
	"net/http"
	"testing"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

// A leftScene is a Node that exists and what is known of it. Its clock stands still but for what the test says.
type leftScene struct {
	*scene
	node string
}

func newLeftScene(t *testing.T) *leftScene {
	t.Helper()
	s := newScene(t, 2, `{nodes: {}}`, paths("status.nodes")...)
	s.tick(time.Minute) // after the list that the scene began with
	return &leftScene{s, s.existing[0]}
}

// leave tells that the node's agent has left, a second from now; another second goes by.
func (s *leftScene) leave() time.Time {
	s.tick(time.Second)
	s.nodes.Left(s.node)
	at := s.sweeper.Now()
	s.tick(time.Second)
	return at
}

// during has something happen when the API server has answered the next request of a class, and before the answer is read.
func (s *leftScene) during(class string, f func()) {
	s.proxy.SetFault(apiserver.On(class, &apiserver.Fault{After: func(*http.Request, int) { f() }}).Times(1))
}

func (s *leftScene) list() {
	s.Helper()
	if err := s.nodes.List(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// asks tells what is answered of the node, and whether the API server was asked for it.
func (s *leftScene) asks(fresh time.Duration) (NodeAnswer, bool) {
	s.Helper()
	s.proxy.Reset()
	answer := s.nodes.Confirm(s.Context(), []string{s.node}, fresh)[s.node]
	return answer, len(s.proxy.Matching("GET nodes")) > 0
}

func (s *leftScene) knows(what string, want Knowledge) {
	s.Helper()
	if got := s.nodes.Known(s.node); got != want {
		s.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

// That a Node was there before its agent left speaks for it no more; what was begun before then says nothing of it either. And machines die
// before their Nodes are deleted, so that it is there soon after does not mean that it stays.
func TestNodesLeft(t *testing.T) {
	there := Knowledge{Listed: true, Seen: true}
	t.Run("listed before", func(t *testing.T) {
		s := newLeftScene(t)
		s.knows("before", there)
		s.knows("it left", Knowledge{Seen: true, Left: s.leave()})
		s.knows("it left once more", Knowledge{Seen: true, Left: s.leave()})
		if got := s.nodes.Known(s.existing[1]); got != there {
			t.Errorf("another Node: %+v", got)
		}
	})
	t.Run("listed since", func(t *testing.T) {
		s := newLeftScene(t)
		at := s.leave()
		s.list()
		s.knows("listed since", Knowledge{Seen: true, Left: at})
		if answer, asked := s.asks(0); asked || answer.Existence != Exists {
			t.Errorf("%+v, asked: %t; the list had it", answer, asked)
		}
		s.tick(ListFresh)
		if answer, asked := s.asks(0); !asked || answer.Existence != Exists {
			t.Errorf("%+v, asked: %t; the list is old", answer, asked)
		}
		s.knows("read since", Knowledge{Seen: true, Left: at})
		s.tick(at.Add(leftDoubt - 1).Sub(s.sweeper.Now()))
		s.list()
		s.knows("listed too soon", Knowledge{Seen: true, Left: at})
		s.tick(1)
		s.list()
		s.knows("listed long after", there)
	})
	t.Run("a list that lacks it", func(t *testing.T) {
		s := newLeftScene(t)
		s.leave()
		s.list()
		s.server.DeleteNode(t, s.node)
		s.list()
		if answer, asked := s.asks(0); !asked || answer.Existence != Gone {
			t.Errorf("%+v, asked: %t; the last list lacks it", answer, asked)
		}
	})
	t.Run("left after the list", func(t *testing.T) {
		s := newLeftScene(t)
		s.list()
		s.leave()
		if answer, asked := s.asks(0); !asked || answer.Existence != Exists {
			t.Errorf("%+v, asked: %t; the list is of before", answer, asked)
		}
	})
	t.Run("while a list was read", func(t *testing.T) {
		s := newLeftScene(t)
		begun := s.sweeper.Now()
		var at time.Time
		s.during("LIST nodes", func() { at = s.leave() })
		s.list()
		s.knows("the list may be of before", Knowledge{Seen: true, Left: at})
		if got := s.nodes.Known(s.existing[1]); got != there {
			t.Errorf("another Node: %+v", got)
		}
		if got := s.nodes.ListedAt(); !got.Equal(begun) {
			t.Errorf("listed at %v, want when it began, %v", got, begun)
		}
		s.tick(leftDoubt)
		s.list()
		s.knows("a list long after", there)
	})
	t.Run("a list that fails", func(t *testing.T) {
		s := newLeftScene(t)
		before, at := s.nodes.ListedAt(), s.leave()
		s.proxy.SetFault(apiserver.OnEach(apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")))
		if err := s.nodes.List(t.Context()); err == nil {
			t.Error("no error")
		}
		s.knows("it says nothing", Knowledge{Seen: true, Left: at})
		if got := s.nodes.ListedAt(); !got.Equal(before) {
			t.Errorf("listed at %v, want still %v", got, before)
		}
	})
	t.Run("read since", func(t *testing.T) {
		s := newLeftScene(t)
		at := s.leave()
		if answer, _ := s.asks(0); answer.Existence != Exists {
			t.Fatalf("%+v", answer)
		}
		s.knows("read since", Knowledge{Seen: true, Left: at})
		if _, asked := s.asks(time.Hour); asked {
			t.Error("it was asked for again, although nothing happened since")
		}
	})
	t.Run("while it was read", func(t *testing.T) {
		s := newLeftScene(t)
		var at time.Time
		s.during("GET nodes", func() { at = s.leave() })
		if answer, _ := s.asks(0); answer.Existence != Exists {
			t.Fatalf("%+v", answer)
		}
		s.knows("the answer may be of before", Knowledge{Seen: true, Left: at})
		if _, asked := s.asks(time.Hour); !asked {
			t.Error("an answer that may be of before was taken")
		}
		s.knows("the next answer", Knowledge{Seen: true, Left: at})
	})
	t.Run("after it was read", func(t *testing.T) {
		s := newLeftScene(t)
		s.asks(0)
		at := s.leave()
		s.knows("left since", Knowledge{Seen: true, Left: at})
		s.server.DeleteNode(t, s.node)
		if answer, asked := s.asks(time.Hour); !asked || answer.Existence != Gone {
			t.Errorf("%+v, asked: %t; the answer of before was taken", answer, asked)
		}
		s.knows("gone", Knowledge{Seen: true, NodeGone: true, Left: at})
	})
	t.Run("after it was gone", func(t *testing.T) {
		s := newLeftScene(t)
		s.server.DeleteNode(t, s.node)
		s.asks(0)
		at := s.leave()
		s.knows("left since", Knowledge{Seen: true, NodeGone: true, Left: at})
		s.server.CreateNode(t, s.node, nil)
		if answer, asked := s.asks(time.Hour); !asked || answer.Existence != Exists {
			t.Errorf("%+v, asked: %t; the answer of before was taken", answer, asked)
		}
		s.knows("it is back", Knowledge{Seen: true, Left: at})
	})
	t.Run("listed, and gone since", func(t *testing.T) {
		s := newLeftScene(t)
		s.server.DeleteNode(t, s.node)
		s.asks(0)
		s.knows("it is asked for as a proof of others no more", Knowledge{Seen: true, NodeGone: true})
	})
	t.Run("never seen", func(t *testing.T) {
		s := newLeftScene(t)
		s.node = apiserver.Unique("gone")
		at := s.leave()
		s.knows("it left", Knowledge{Left: at})
		s.tick(leftDoubt)
		s.list()
		s.knows("a list lacks it", Knowledge{})
	})
}

// What a list says is newer than what single Nodes said before it.
func TestAListOutdatesEarlierAnswers(t *testing.T) {
	s := newLeftScene(t)
	s.asks(0)
	s.server.DeleteNode(t, s.node)
	s.list()
	s.knows("a list lacks it", Knowledge{Seen: true})
	if answer, asked := s.asks(time.Hour); !asked || answer.Existence != Gone {
		t.Errorf("%+v, asked: %t; the answer of before was taken", answer, asked)
	}
	s.knows("proved to be gone", Knowledge{Seen: true, NodeGone: true})

	s.server.CreateNode(t, s.node, nil)
	s.list()
	s.knows("a list has it again", Knowledge{Seen: true, Listed: true})
	if answer, asked := s.asks(time.Hour); !asked || answer.Existence != Exists {
		t.Errorf("%+v, asked: %t; the proof of before was taken", answer, asked)
	}
}

// A question without an answer makes the answer before it doubtful.
func TestAFailureOutdatesTheAnswerBefore(t *testing.T) {
	s := newLeftScene(t)
	s.asks(0)
	s.proxy.SetFault(apiserver.On("GET nodes", apiserver.Refuse(http.StatusForbidden, "Forbidden", "no")))
	if answer, _ := s.asks(0); answer.Existence != Unproved {
		t.Errorf("%+v", answer)
	}
	s.proxy.SetFault(nil)
	if answer, asked := s.asks(time.Hour); !asked || answer.Existence != Exists {
		t.Errorf("%+v, asked: %t; the answer of before was taken", answer, asked)
	}
}

// How old an answer may be is for whoever asks to say.
func TestAnAnswerIsFreshForSoLong(t *testing.T) {
	s := newLeftScene(t)
	for _, existence := range []Existence{Exists, Gone} {
		if answer, _ := s.asks(0); answer.Existence != existence {
			t.Fatalf("%+v", answer)
		}
		s.tick(time.Minute - 1)
		if answer, asked := s.asks(time.Minute); asked || answer.Existence != existence {
			t.Errorf("%+v, asked: %t; the answer of before was fresh enough", answer, asked)
		}
		s.tick(1)
		at := s.sweeper.Now()
		if answer, asked := s.asks(time.Minute); !asked || answer.Existence != existence || !answer.At.Equal(at) {
			t.Errorf("%+v, asked: %t; the answer of before was too old", answer, asked)
		}
		if existence == Exists {
			s.server.DeleteNode(t, s.node)
		}
	}
}

// Who asks for several gets an answer about each, those from before as well.
func TestAnswersFromBeforeAreAnswersToo(t *testing.T) {
	s := newLeftScene(t)
	s.asks(0)
	s.proxy.Reset()
	other := s.existing[1]
	answers := s.nodes.Confirm(t.Context(), []string{s.node, other, "gone"}, time.Hour)
	if len(answers) != 3 || answers[s.node].Existence != Exists || answers[other].Existence != Exists || answers["gone"].Existence != Gone {
		t.Errorf("%+v", answers)
	}
	if n := len(s.proxy.Matching("GET nodes")); n != 2 {
		t.Errorf("%d requests, want two", n)
	}
}
