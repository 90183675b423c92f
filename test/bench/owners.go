package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/unstale/unstale/gossip"
)

const (
	ownersMembers = 5000
	ownersKeys    = 1000
	ownersChanges = 200 // in turn a member leaves and comes back
	ownersSample  = 200 // keys whose owner is computed anew, which stand for all
)

var owners = benchmark{
	name: "owners",
	about: fmt.Sprintf("who of %d members owns each of %d keys, asked again after each of %d changes (goal: 20 µs a key), beside the computation anew",
		ownersMembers, ownersKeys, ownersChanges),
	run: measureOwners,
}

func measureOwners(ctx context.Context, s *session) error {
	members := nodeNames(ownersMembers)
	keys := make([]string, ownersKeys)
	for i := range keys {
		keys[i] = fmt.Sprintf("config.nri/topologyawarepolicies/%s/policy-%d", namespace, i)
	}
	const micro = float64(time.Microsecond)
	var first, again, amortised, anew samples
	for run := range s.runs {
		s.logf("run %d of %d", run+1, s.runs)
		if err := ctx.Err(); err != nil {
			return err
		}
		looked, changed, err := rememberedOwners(members, keys)
		if err != nil {
			return err
		}
		first = append(first, float64(looked)/micro/ownersKeys)
		again = append(again, float64(changed)/micro/(ownersKeys*ownersChanges))
		amortised = append(amortised, float64(looked+changed)/micro/(ownersKeys*(ownersChanges+1)))

		start := time.Now()
		for _, key := range keys[:ownersSample] {
			if gossip.Owner(members, key) == "" {
				return errors.New("a key has no owner among 5,000 members")
			}
		}
		anew = append(anew, float64(time.Since(start))/micro/ownersSample)
	}
	what := fmt.Sprintf("the highest score of all members, for each key anew (%d of %d keys)", ownersSample, ownersKeys)
	s.compare("owners/perKey", "µs", amortised, what, anew)
	s.compare("owners/perKeyFirst", "µs", first, what, anew)
	s.compare("owners/perKeyAgain", "µs", again, what, anew)
	return nil
}

// rememberedOwners asks for each key's owner, and again after each change. It fails when an answer is not the one that the
// computation anew gives.
func rememberedOwners(members, keys []string) (first, again time.Duration, err error) {
	var o gossip.Owners
	start := time.Now()
	o.SetEligible(members)
	ask(&o, keys)
	first = time.Since(start)

	start = time.Now()
	for change := range ownersChanges {
		o.SetEligible(afterChange(members, change))
		ask(&o, keys)
	}
	again = time.Since(start)
	for _, key := range keys[:min(len(keys), 10)] {
		if got, want := o.Owner(key), gossip.Owner(members, key); got != want {
			return 0, 0, fmt.Errorf("%s owns %s, want %s", got, key, want)
		}
	}
	return first, again, nil
}

// afterChange are the members that are present then: all, or all but one, a different one each time.
func afterChange(members []string, change int) []string {
	if change%2 == 1 {
		return members
	}
	away := change * (len(members) / ownersChanges)
	return slices.Delete(slices.Clone(members), away, away+1)
}

func ask(o *gossip.Owners, keys []string) {
	for _, key := range keys {
		o.Owner(key)
	}
}
