package gossip

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"
)

// inbox is a handler that keeps what it gets.
type inbox struct {
	mu       sync.Mutex
	messages []Message // guarded by mu
}

func (b *inbox) handle(m Message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.messages = append(b.messages, m)
}

func (b *inbox) texts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var texts []string
	for _, m := range b.messages {
		texts = append(texts, fmt.Sprintf("%s %s", m.Sender, m.Payload))
	}
	return texts
}

func TestSend(t *testing.T) {
	s := newScene(t)
	var box inbox
	a := s.start(s.config("a"))
	b := s.start(s.config("b"), func(c *Cluster) { c.Handle("test", box.handle) })
	sees(t, "a b", a, b)
	for _, test := range []struct {
		name, to, messageType, payload string
		want                           error
	}{
		{"arrives", "b", "test", `"one"`, nil},
		{"without payload", "b", "test", ``, nil},
		{"large", "b", "test", `"` + strings.Repeat("x", MaxMessage-200) + `"`, nil},
		{"a type that the receiver does not know", "b", "other", `1`, ErrUnknownType},
		{"a type that the sender itself does not know", "a", "test", `1`, ErrUnknownType},
		{"nobody of that name", "c", "test", `1`, ErrNotMember},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := a.Send(t.Context(), test.to, test.messageType, json.RawMessage(test.payload)); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
	if err := b.Send(t.Context(), "b", "test", json.RawMessage(`"self"`)); err != nil {
		t.Error(err)
	}
	want := []string{`a "one"`, `a `, `a "` + strings.Repeat("x", MaxMessage-200) + `"`, `b "self"`}
	eventually(t, func() (bool, string) { return slices.Equal(box.texts(), want), fmt.Sprintf("%.200q", box.texts()) })
	box.mu.Lock()
	if m := box.messages[0]; m.Incarnation != a.metadata().Incarnation || m.To != "b" || m.Type != "test" || m.ID == box.messages[1].ID {
		t.Errorf("%+v", m)
	}
	box.mu.Unlock()
	if err := a.Send(t.Context(), "b", "test", json.RawMessage(`{`)); err == nil || !strings.Contains(err.Error(), "send test to b: the payload is not JSON") {
		t.Error(err)
	}
	if got := b.Stats(); got.Received != 4 || got.Unknown != 1 || got.Invalid != 0 {
		t.Errorf("%+v", got)
	}
	if got := a.Stats(); got.Sent != 3 || got.Failed != 4 || got.Unknown != 1 {
		t.Errorf("%+v", got)
	}
}

// Many messages at once while receivers come and go: each arrived, or its sender has an error, and none twice.
func TestArrivesOrFails(t *testing.T) {
	s := newScene(t)
	var box inbox
	handle := func(c *Cluster) { c.Handle("test", box.handle) }
	a := s.start(s.config("a"))
	b := s.start(s.config("b"), handle)
	sees(t, "a b", a, b)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var arrived []string
	failed := 0
	for i := range 8 {
		wg.Go(func() {
			for n := range 40 {
				payload := fmt.Sprintf(`"%d-%d"`, i, n)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				err := a.Send(ctx, "b", "test", json.RawMessage(payload))
				cancel()
				mu.Lock()
				if err == nil {
					arrived = append(arrived, "a "+payload)
				} else {
					failed++
				}
				mu.Unlock()
			}
		})
	}
	eventually(t, func() (bool, string) { return len(box.texts()) >= 80, "few arrive" })
	b.Close()
	eventually(t, func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return failed >= 8, "nothing fails"
	})
	s.startBox(b, handle)
	wg.Wait()
	// What b took before it was killed may have died with it, in the queue of its handler: the last few at most.
	got := box.texts()
	slices.Sort(got)
	if n := len(slices.Compact(slices.Clone(got))); n != len(got) {
		t.Errorf("%d messages arrived twice", len(got)-n)
	}
	missing := 0
	for _, text := range arrived {
		if _, ok := slices.BinarySearch(got, text); !ok {
			missing++
		}
	}
	if missing > 8 {
		t.Errorf("%d of %d did not arrive, and their sender was not told", missing, len(arrived))
	}
	t.Logf("%d arrived, %d failed", len(arrived), failed)
}

func (s *scene) startBox(a *agent, before func(*Cluster)) *agent {
	config := a.config
	config.Port = int(a.Address().Port())
	return s.start(config, before)
}

// The receiver's address is another's by now.
func TestSendToAnother(t *testing.T) {
	s := newScene(t)
	var box inbox
	a := s.start(s.config("a"))
	b := s.start(s.config("b"), func(c *Cluster) { c.Handle("test", box.handle) })
	sees(t, "a b", a, b)
	err := a.sendTo(t.Context(), "c", b.Address(), "test", nil)
	if !errors.Is(err, errNotMe) || len(box.texts()) > 0 {
		t.Errorf("%v, %v", err, box.texts())
	}
}

// Without a receipt there is an error, however well the message was written.
func TestNoReceipt(t *testing.T) {
	s := newScene(t)
	a, b := s.start(s.config("a")), s.start(s.config("b"), func(c *Cluster) { c.Handle("test", func(Message) {}) })
	sees(t, "a b", a, b)
	b.replies <- struct{}{}
	for range maxReceipts - 1 {
		b.replies <- struct{}{} // too many are on their way already
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := a.Send(ctx, "b", "test", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if got := b.Stats(); got.Received != 1 || got.Dropped == 0 {
		t.Errorf("%+v", got)
	}
	// A receiver that takes no connection.
	s.net.set(false, true)
	if err := a.Send(t.Context(), "b", "test", nil); err == nil || !strings.Contains(err.Error(), "dial tcp") {
		t.Error(err)
	}
}

// What is no message is counted and ignored, and so is what memberlist delivers by packet.
func TestInvalidMessages(t *testing.T) {
	s := newScene(t)
	var box inbox
	a, b := s.start(s.config("a")), s.start(s.config("b"), func(c *Cluster) { c.Handle("test", box.handle) })
	sees(t, "a b", a, b)
	list, err := a.memberlist()
	if err != nil {
		t.Fatal(err)
	}
	address := b.Address()
	for _, data := range []string{"nonsense", `{"v":[2,0]}`, `{"v":[1,0],"type":"gossip.receipt","sender":"a","to":"b","payload":[]}`} {
		if err := list.SendReliable(&memberlist.Node{Name: "b", Addr: address.Addr().AsSlice(), Port: address.Port()}, []byte(data)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() (bool, string) { return b.Stats().Invalid == 3, fmt.Sprintf("%+v", b.Stats()) })
	if err := a.Send(t.Context(), "b", "test", nil); err != nil {
		t.Error(err)
	}
}
