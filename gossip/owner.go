package gossip

import (
	"slices"

	"github.com/cespare/xxhash/v2"
)

// Score is how strongly a member claims a key: the member with the highest score owns it, and of two with the same score
// the one with the smaller name. It is xxhash64("v1\0" + member + "\0" + key), part of what agents of different versions
// must agree on; golden vectors hold it.
func Score(member, key string) uint64 {
	s := newScorer(member)
	return s.score(key)
}

// A scorer is a member's name, hashed once for all keys. Hashing is most of the cost of finding an owner.
type scorer struct {
	name  string
	state xxhash.Digest
}

func newScorer(member string) scorer {
	s := scorer{name: member}
	s.state.Reset()
	// Writes to a hash never fail.
	s.state.WriteString("v1\x00")
	s.state.WriteString(member)
	s.state.WriteString("\x00")
	return s
}

// score works on a copy of the state, which is a plain value.
func (s *scorer) score(key string) uint64 {
	state := s.state
	state.WriteString(key)
	return state.Sum64()
}

// beats tells whether the first claim is the stronger one.
func beats(score uint64, member string, other uint64, otherMember string) bool {
	return score > other || score == other && member < otherMember
}

// Owner is the member that owns key among the eligible ones, "" when there is none. Their order does not matter.
// Owners finds the same, faster where keys are asked for again and again.
func Owner(eligible []string, key string) string {
	var best string
	var bestScore uint64
	for i, member := range eligible {
		if score := Score(member, key); i == 0 || beats(score, member, bestScore, best) {
			best, bestScore = member, score
		}
	}
	return best
}

// Eligible are the names of the members that may own something that members of the given roles may write: those that
// are able to do their work and not leaving; when there are none, the leaving ones that are able. It is sorted.
func Eligible(members []Member, roles ...Role) []string {
	var staying, leaving []string
	for _, m := range members {
		switch {
		case !m.Able || !slices.Contains(roles, m.Role):
		case m.Leaving:
			leaving = append(leaving, m.Name)
		default:
			staying = append(staying, m.Name)
		}
	}
	if len(staying) == 0 {
		staying = leaving
	}
	slices.Sort(staying)
	return staying
}

// Owners answers who owns a key, again and again, while members come and go. It keeps each key's winner: a join costs one
// hash for each key, a leave costs something only for the leaver's keys. An Owners is not safe for concurrent use; the
// zero value has no members and no keys.
type Owners struct {
	members []scorer         // the eligible members, sorted by name
	claims  map[string]claim // the keys asked for so far
}

// claim is a key's winner. The zero value is a key without one.
type claim struct {
	member string
	score  uint64
}

// SetEligible replaces the eligible members. It tells whether that changed anything.
func (o *Owners) SetEligible(names []string) bool {
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	next := make([]scorer, 0, len(names))
	var joined []scorer
	left := make(map[string]bool)
	// Both lists are sorted: walk them side by side.
	old := o.members
	for _, name := range names {
		for len(old) > 0 && old[0].name < name {
			left[old[0].name] = true
			old = old[1:]
		}
		if len(old) > 0 && old[0].name == name {
			next = append(next, old[0])
			old = old[1:]
			continue
		}
		s := newScorer(name)
		next, joined = append(next, s), append(joined, s)
	}
	for _, s := range old {
		left[s.name] = true
	}
	if len(joined) == 0 && len(left) == 0 {
		return false
	}
	o.members = next
	for key, c := range o.claims {
		if c.member == "" || left[c.member] {
			o.claims[key] = o.find(key)
			continue
		}
		for i := range joined {
			if score := joined[i].score(key); beats(score, joined[i].name, c.score, c.member) {
				c = claim{joined[i].name, score}
			}
		}
		o.claims[key] = c
	}
	return true
}

// Owner is the member that owns key, "" when nobody is eligible. The key is remembered until Forget.
func (o *Owners) Owner(key string) string {
	c, known := o.claims[key]
	if !known {
		c = o.find(key)
		if o.claims == nil {
			o.claims = make(map[string]claim)
		}
		o.claims[key] = c
	}
	return c.member
}

// Forget drops a key that will not be asked for any more.
func (o *Owners) Forget(key string) { delete(o.claims, key) }

// find looks at every member.
func (o *Owners) find(key string) claim {
	var c claim
	for i := range o.members {
		m := &o.members[i]
		if score := m.score(key); i == 0 || beats(score, m.name, c.score, c.member) {
			c = claim{m.name, score}
		}
	}
	return c
}
