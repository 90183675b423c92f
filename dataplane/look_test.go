package dataplane

import (
	"net/netip"
	"testing"
	"time"
)

// An entry of an address that a look is not for waits for another one.
func TestLookIsFull(t *testing.T) {
	r := aRelease(1, AddressLost, 0)
	l := look{now: noon.Add(time.Hour), grace: grace, releases: byAddress([]*Release{r}), due: map[netip.Addr]bool{}, answers: answers{asked: true}}
	target := Target{Scope: ScopeNode}
	if d, of := l.decide(&target, entryOf("t", "10.0.0.1")); d.Verdict != Wait || d.Reason != BatchFull || of != r {
		t.Errorf("%+v, %v", d, of)
	}
	l.due[r.Address] = true
	if d, _ := l.decide(&target, entryOf("t", "10.0.0.1")); d.Verdict != Remove {
		t.Errorf("%+v", d)
	}
}
