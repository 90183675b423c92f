package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/unstale/unstale/gossip"
	"github.com/unstale/unstale/status"
)

// sweepMessage tells the owner of resources that a list has found to keep them clean.
const sweepMessage = "sweep"

const (
	// foundIntervals is how many intervals a resource is kept clean after it was found last: one list may fail, and one message be lost.
	foundIntervals = 3
	// maxTold is how many resources one message names: at 320 bytes each, half of what a message may have.
	maxTold = 100
	// maxFound is how many resources an agent takes of others for one target, so that what it is sent cannot grow without end.
	maxFound = 10000
)

// A sweepOrder is the payload of a sweepMessage.
type sweepOrder struct {
	Target    string   `json:"target"`
	Resources []string `json:"resources"` // NAMESPACE/NAME, or /NAME
	// Others are some of the target's other resources, for a target whose keys seem to belong to no node.
	Others []string `json:"others,omitempty"`
}

// A lister lists the resources of a target that does not name them, and tells each one's owner.
type lister struct {
	*unit
	sweeps *sweeps
	names  []types.NamespacedName          // at the last list
	owners map[types.NamespacedName]string // who was told
}

// listPass lists the unit's resources and tells their owners. It is false when the worker was told to stop before its end.
func (w *worker) listPass(ctx context.Context) (status.TargetReport, bool) {
	begun := time.Now()
	report := status.TargetReport{Target: w.unit.target.Name, Kind: w.unit.target.Kind(), State: status.OK, Resources: []status.ResourceReport{}}
	names, err := status.FindResources(ctx, w.list.sweeps.client, &w.unit.target)
	if ctx.Err() != nil {
		return report, false
	}
	var failure *status.TargetError
	switch {
	case errors.As(err, &failure):
		report.State, report.Message = failure.State, failure.Message
	case err != nil:
		report.State, report.Message = status.Unavailable, err.Error()
	case len(names) == 0:
		report.Message = "there is no such resource"
	}
	if err == nil || report.State == status.NotInstalled { // then there are none
		w.list.names = names
		w.list.tell(ctx, nil)
		w.list.sweeps.listed(ctx, &w.unit, names)
	}
	w.told(ctx, &w.unit, report, time.Since(begun))
	return report, true
}

// tellNew tells the new owners of resources, where they have other owners now.
func (w *worker) tellNew(ctx context.Context) {
	w.mu.Lock()
	w.changes = gossip.Changes{} // who left is nothing to a list
	w.mu.Unlock()
	w.list.tell(ctx, w.list.owners)
}

// tell tells the owners of the resources that were found, but for those that were told before.
func (l *lister) tell(ctx context.Context, before map[types.NamespacedName]string) {
	var owners gossip.Owners
	owners.SetEligible(gossip.Eligible(l.sweeps.cluster.Members(), gossip.Agent, gossip.Pruner))
	l.owners = make(map[types.NamespacedName]string, len(l.names))
	theirs := map[string][]types.NamespacedName{}
	for _, name := range l.names {
		owner := owners.Owner(keyOf(l.target.Resource, name))
		l.owners[name] = owner
		if before[name] != owner {
			theirs[owner] = append(theirs[owner], name)
		}
		if l.sweeps.ownsAll && owner != l.sweeps.node {
			theirs[l.sweeps.node] = append(theirs[l.sweeps.node], name)
		}
	}
	for owner, names := range theirs {
		for some := range slices.Chunk(names, maxTold) {
			order := sweepOrder{Target: l.target.Name, Resources: namesOf(some), Others: namesOf(l.names[:min(len(l.names), status.MaxOthers+1)])}
			if err := l.sweeps.order(ctx, owner, order); err != nil && ctx.Err() == nil {
				l.sweeps.log.Warn("cannot tell a member which resources it owns; it is told again at the next list",
					zap.String("target", l.target.Name), zap.String("member", owner), zap.Int("resources", len(some)), zap.Error(err))
				for _, name := range some {
					delete(l.owners, name)
				}
			}
		}
	}
}

// order tells an agent, perhaps this one, what to keep clean.
func (s *sweeps) order(ctx context.Context, owner string, order sweepOrder) error {
	if owner == s.node {
		return s.take(order)
	}
	payload, err := json.Marshal(order)
	if err != nil {
		return err
	}
	return s.cluster.Send(ctx, owner, sweepMessage, payload)
}

func namesOf(names []types.NamespacedName) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = name.String()
	}
	return all
}

// parseNames reads names, as namesOf writes them; the error tells of those that are none.
func parseNames(texts []string) (names []types.NamespacedName, odd error) {
	for _, text := range texts {
		namespace, name, ok := strings.Cut(text, "/")
		if !ok || namespace != "" && len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
			odd = errors.Join(odd, fmt.Errorf("%q is no NAMESPACE/NAME", text))
			continue
		}
		names = append(names, types.NamespacedName{Namespace: namespace, Name: name})
	}
	return names, odd
}

// ordered takes a message that says what to keep clean.
func (s *sweeps) ordered(m gossip.Message) {
	var order sweepOrder
	err := json.Unmarshal(m.Payload, &order)
	if err == nil {
		err = s.take(order)
	}
	if err != nil {
		s.log.Warn("a message that cannot be understood", zap.String("type", sweepMessage), zap.String("member", m.Sender), zap.Error(err))
	}
}

// take remembers what an agent that has listed it says is there.
func (s *sweeps) take(order sweepOrder) error {
	resources, odd := parseNames(order.Resources)
	others, _ := parseNames(order.Others)
	s.mu.Lock()
	interval := cmp.Or(s.interval, time.Minute) // before the agent is configured
	s.mu.Unlock()
	news, full := s.found.take(order.Target, resources, others, time.Now().Add(foundIntervals*interval))
	if full {
		s.log.Warn("too many resources of a target for one agent: those beyond the limit are not kept clean; divide them among targets by namespace or names",
			zap.String("target", order.Target), zap.Int("limit", maxFound))
	}
	if news {
		signal(s.wake)
	}
	return odd // the others are taken
}

// found are resources that lists have found, by target. It is safe for concurrent use.
type found struct {
	mu     sync.Mutex
	byName map[string]map[types.NamespacedName]time.Time // until when; guarded by mu
	some   map[string][]types.NamespacedName             // guarded by mu
	full   map[string]bool                               // the targets with more than are taken; guarded by mu
}

// take remembers resources until then, and tells whether any is new, and whether there are now more than are taken, which there were not before. Whether the target is known, and whether the resource may be one of it, is asked
// when they are used: the configuration that has it may be on its way.
func (f *found) take(target string, resources, others []types.NamespacedName, until time.Time) (news, full bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byName == nil {
		f.byName, f.some, f.full = map[string]map[types.NamespacedName]time.Time{}, map[string][]types.NamespacedName{}, map[string]bool{}
	}
	if f.byName[target] == nil {
		if len(f.byName) >= maxFound {
			return false, false
		}
		f.byName[target] = map[types.NamespacedName]time.Time{}
	}
	f.some[target] = others
	for _, name := range resources {
		if _, known := f.byName[target][name]; !known {
			if len(f.byName[target]) >= maxFound {
				full, f.full[target] = full || !f.full[target], true
				continue
			}
			news = true
		}
		f.byName[target][name] = until
	}
	return news, full
}

// with are the units, and those of the resources that were found of the units that list. next is when the next of these has to be forgotten; zero: never.
// What is due to be forgotten is.
func (f *found) with(units []unit, now time.Time) (all []unit, next time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	all = slices.Clone(units)
	for target, names := range f.byName {
		for name, until := range names {
			if !now.Before(until) {
				delete(names, name)
			} else if next.IsZero() || until.Before(next) {
				next = until
			}
		}
		if len(names) == 0 {
			delete(f.byName, target)
			delete(f.some, target)
			delete(f.full, target)
		}
	}
	for _, u := range units {
		if !u.lists() {
			continue
		}
		for name := range f.byName[u.target.Name] {
			if u.target.Has(name) {
				all = append(all, u.found(name))
			}
		}
	}
	return all, next
}

// others are some of the target's resources but the unit's own.
func (f *found) others(u *unit) []types.NamespacedName {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.some[u.target.Name]), func(name types.NamespacedName) bool { return name == u.name || !u.target.Has(name) })
}
