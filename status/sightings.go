package status

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// sightings are since when Nodes have been as they are, as far as this process saw it. It is pure: whoever keeps it tells what was seen, and when. The times
// are all of one clock, this process's, and only compared with one another.
type sightings struct {
	of map[string]*sighting // by the Node's name
}

// A sighting is what was seen of one Node.
type sighting struct {
	uid        string
	ready      corev1.ConditionStatus
	readySince time.Time // its last transition, as the Node has it
	since      time.Time // when it was first seen so

	lease        string    // what its Lease looked like; "" before the first look
	leaseSince   time.Time // when it first did
	leaseChanged bool      // it looked different before
}

// saw takes in all Nodes. What was known of others is forgotten, and so is what was known of one that is another now, or whose condition changed.
func (s *sightings) saw(nodes []NodeView, now time.Time) {
	of := make(map[string]*sighting, len(nodes))
	for i := range nodes {
		n := &nodes[i]
		was := s.of[n.Name]
		if was == nil || !was.shows(n) {
			was = &sighting{uid: n.UID, ready: n.Ready, readySince: n.ReadySince, since: now}
		}
		of[n.Name] = was
	}
	s.of = of
}

// shows tells whether the Node is still as it was seen.
func (s *sighting) shows(n *NodeView) bool {
	return s.uid == n.UID && s.ready == n.Ready && s.readySince.Equal(n.ReadySince)
}

// outage forgets since when: what happened meanwhile was not seen.
func (s *sightings) outage() { s.of = nil }

// observed is how long the Node has been seen as it is.
func (s *sightings) observed(name string, now time.Time) time.Duration {
	if was := s.of[name]; was != nil {
		return now.Sub(was.since)
	}
	return 0
}

// sawLease takes in what the Node's Lease looks like: text that differs with each renewal, and not empty.
func (s *sightings) sawLease(name, lease string, now time.Time) {
	if was := s.of[name]; was != nil && was.lease != lease {
		was.leaseChanged = was.lease != ""
		was.lease, was.leaseSince = lease, now
	}
}

// leaseState is what the looks at the Node's Lease have shown.
func (s *sightings) leaseState(name string, now time.Time) LeaseState {
	was := s.of[name]
	switch {
	case was == nil || was.lease == "":
		return LeaseOnce
	case now.Sub(was.leaseSince) >= leaseWatch:
		return LeaseStill
	case was.leaseChanged:
		return LeaseChanged
	}
	return LeaseOnce
}
