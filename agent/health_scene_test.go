package agent

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/test/apiserver"
)

// A resource that the API server cannot serve (its conversion webhook is dead, say) costs its own target and no other: ownership
// stays where it is.
func TestATargetThatCannotBeReadCostsNoOther(t *testing.T) {
	s := newScene(t, quick)
	defer s.dump()
	broken := apiserver.CRD{Group: apiserver.Unique("broken") + ".example.com"}
	s.server.Install(t, broken.YAML())
	names := []string{s.node(), s.node(), s.node()}
	s.create(names...)
	var members []*member
	for _, name := range names {
		members = append(members, s.member(name))
	}
	failing := "GET " + broken.GVR().Resource + "." + broken.Group
	for _, m := range members {
		m.config()
		text, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		target := fmt.Sprintf("- name: broken\n  resource: {group: %s, version: v1, resource: %s}\n  namespace: %s\n  names: [one, two, three, four]\n"+
			"  paths: [{path: status.nodes}]\n", broken.Group, broken.GVR().Resource, s.namespace)
		if err := os.WriteFile(m.file, []byte(strings.Replace(string(text), "- name: shared\n", target+"- name: shared\n", 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		m.proxy.SetFault(apiserver.On(failing, apiserver.Refuse(500, metav1.StatusReasonInternalError, "conversion webhook failed")))
		m.start()
	}
	s.awaitMembers(3)
	owner := s.owner()
	apiserver.Eventually(t, "each of the five resources has one owner", func() error {
		owned := 0
		for _, m := range members {
			owned += m.logs.FilterMessage("owns").Len() - m.logs.FilterMessage("no longer owns").Len()
		}
		if owned != 5 {
			return fmt.Errorf("they have %d in all", owned)
		}
		return nil
	})
	before := map[*member]int{}
	for _, m := range members {
		before[m] = m.logs.Len()
	}
	apiserver.Eventually(t, "many passes read nothing", func() error {
		if n := s.counts(failing); n < 20 {
			return fmt.Errorf("%d requests failed", n)
		}
		return nil
	})
	s.write("gone")
	s.await("the orphan is gone", names...)
	if s.owner() != owner {
		t.Errorf("%s does not own it any more", owner.name)
	}
	for _, m := range members {
		for _, e := range m.logs.All()[before[m]:] {
			if e.Message == "owns" || e.Message == "no longer owns" || strings.Contains(e.Message, "cannot work") {
				t.Errorf("%s: %s %v", m.name, e.Message, e.ContextMap())
			}
		}
	}
}

// An agent whose credentials are not accepted is passed over; one that may read nothing is not, as the others may not either.
func TestAnOwnerThatIsRefused(t *testing.T) {
	for name, test := range map[string]struct {
		fault      *apiserver.Fault
		passedOver bool
	}{
		"not known":   {apiserver.Refuse(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized"), true},
		"not allowed": {apiserver.Refuse(http.StatusForbidden, metav1.StatusReasonForbidden, `User "u" cannot get resource`), false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, quick)
			defer s.dump()
			names := []string{s.node(), s.node()}
			s.create(names...)
			s.startAll(names...)
			first := s.owner()
			first.proxy.Reset()
			first.proxy.SetFault(apiserver.OnEach(test.fault))
			apiserver.Eventually(t, "it has asked whether the API server answers", func() error {
				if n := len(first.proxy.Matching("GET namespaces")); n < 2 {
					return fmt.Errorf("%d times", n)
				}
				return nil
			})
			if !test.passedOver {
				if c := first.agent.health.condition(); !c.OK || !first.owns() {
					t.Errorf("it no longer owns; condition %+v", c)
				}
				return
			}
			apiserver.Eventually(t, "another owner", func() error {
				if first.owns() {
					return fmt.Errorf("the first still owns")
				}
				return nil
			})
			s.write("gone")
			s.await("the orphan is gone", names...)
		})
	}
}
