package agent

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/unstale/unstale/test/apiserver"
)

// A resource with orphans only is cleaned by its owner when another resource of its target, with an owner of its own, shows that the
// target's keys are nodes' names. Until then it is held.
func TestOthersOfAUnitAreLookedAt(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name := s.node()
	s.create("gone-1", "gone-2")
	s.server.Apply(t, s.namespace, fmt.Sprintf("apiVersion: %s/v1\nkind: Widget\nmetadata: {name: second}\nstatus: {nodes: {gone-3: {}}}\n", s.resource.Group))
	m := s.member(name)
	m.config()
	text, err := os.ReadFile(m.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.file, []byte(strings.Replace(string(text), "names: [shared]", "names: [shared, second]", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	m.start()
	apiserver.Eventually(t, "both are held", func() error {
		if n := m.logs.FilterField(zap.String("state", "Held")).Len(); n < 2 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	s.await("nothing is removed", "gone-1", "gone-2")
	s.server.PatchStatus(t, s.resource, s.namespace, "second", fmt.Sprintf(`{"status": {"nodes": {%q: {}}}}`, name))
	s.await("the orphans are gone")
}

// What cannot be logged is not removed: the log has the only copy.
func TestWhatCannotBeRecordedIsNotRemoved(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	name := s.node()
	s.create(name, "gone")
	m := s.member(name)
	m.start(func(o *Options) {
		o.Recorded = func() (func() error, error) {
			return func() error { return errors.New("no space left on device") }, nil
		}
	})
	apiserver.Eventually(t, "it says so", func() error {
		for _, e := range m.logs.FilterMessage("state").All() {
			if strings.Contains(fmt.Sprint(e.ContextMap()["message"]), "no space left on device") {
				return nil
			}
		}
		return errors.New("it does not")
	})
	s.await("nothing is removed", name, "gone")
	if n := m.proxy.Counts()[s.class("PATCH")+"/status"]; n != 0 {
		t.Errorf("%d writes", n)
	}
}

// The answer to a ping goes with the proof that the Node is gone, which is good for five seconds.
func TestAPingIsNoOlderThanTheProof(t *testing.T) {
	if pingFresh >= 5*time.Second {
		t.Errorf("the answer to a ping is taken for %s", pingFresh)
	}
}
