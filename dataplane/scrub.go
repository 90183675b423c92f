package dataplane

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// Options are what a Scrubber needs. All but Recorded are required.
type Options struct {
	Cluster  Cluster
	Host     func() (HostState, error)
	Journal  JournalDir
	Boot     string   // the kernel's boot id
	Recorded Recorder // nil: nobody can tell
	// Told hears what each look found, on the Scrubber's goroutine.
	Told func(reports []TargetReport, took time.Duration)
	Log  *zap.Logger
	Now  func() time.Time
}

// A Scrubber removes the entries of addresses that pods of this node have lost. Saw, Gone, Synced and Configure may be called at any time, from any
// goroutine; they do not block.
type Scrubber struct {
	Options
	wake    chan struct{} // size 1
	unsaved chan struct{} // size 1

	mu      sync.Mutex
	owners  *Owners       // guarded by mu
	agenda  *agenda       // guarded by mu
	synced  bool          // all pods were seen; guarded by mu
	targets []Target      // guarded by mu
	grace   time.Duration // guarded by mu
	limit   int           // addresses in a pass; guarded by mu
	runtime Runtime       // nil: not asked; guarded by mu
	checkAt time.Time     // when to look whether the tables are there; guarded by mu
}

// NewScrubber loads the journal. One that is damaged is set aside; what cannot be read is an error.
func NewScrubber(options Options) (*Scrubber, error) {
	journal, err := options.Journal.Load()
	var damaged *DamagedError
	switch {
	case errors.As(err, &damaged):
		options.Log.Error("the journal", zap.Error(err))
		if err := options.Journal.SetAside(); err != nil {
			return nil, fmt.Errorf("set the damaged journal aside: %w", err)
		}
	case err != nil:
		return nil, err
	case journal.Boot != "" && journal.Boot != options.Boot:
		options.Log.Info("the journal is from before the last boot; the kernel tables of then are gone", zap.Int("pods", len(journal.Pods)))
		journal = Journal{}
	}
	return &Scrubber{
		Options: options, wake: make(chan struct{}, 1), unsaved: make(chan struct{}, 1), owners: NewOwners(journal), agenda: newAgenda(),
	}, nil
}

// Configure says what to keep clean. maxAddresses is how many addresses a pass takes at most. Without a runtime none is asked.
func (s *Scrubber) Configure(targets []Target, grace time.Duration, maxAddresses int, runtime Runtime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.targets, s.grace, s.limit, s.runtime = targets, grace, maxAddresses, runtime
	s.agenda.runtime = runtime != nil
	s.agenda.again(s.Now())
	s.checkAt = s.Now()
	signal(s.wake)
}

// Saw takes in what the API server has of a pod now.
func (s *Scrubber) Saw(p Pod) {
	s.change(func(now time.Time) { s.owners.Saw(p, now) })
}

// Gone takes in that the API server no longer has the pod of that UID.
func (s *Scrubber) Gone(uid string) {
	s.change(func(now time.Time) { s.owners.Gone(uid, now) })
}

// Synced takes in that all pods of the node were seen. Before that nothing is removed.
func (s *Scrubber) Synced() {
	s.change(func(now time.Time) {
		s.owners.Synced(now)
		s.synced = true
	})
}

func (s *Scrubber) change(do func(now time.Time)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do(s.Now())
	if s.synced && s.owners.Changed() {
		signal(s.unsaved)
	}
	signal(s.wake)
}

// Releases are the addresses that pods have lost and that may still be in a table.
func (s *Scrubber) Releases() []Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	var releases []Release
	for _, r := range s.owners.Releases() {
		releases = append(releases, *r)
	}
	return releases
}

// Run works until ctx ends, and saves the journal at the end.
func (s *Scrubber) Run(ctx context.Context) error {
	var saving sync.WaitGroup
	saving.Go(func() { s.saveJournal(ctx) })
	defer saving.Wait()
	for {
		at, any := s.next()
		var timer <-chan time.Time // nil, so never, when nothing is due
		if any {
			timer = time.After(at.Sub(s.Now()))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer:
		}
		if at, any := s.next(); any && !at.After(s.Now()) {
			s.pass(ctx)
		}
	}
}

// next is when there is something to do next.
func (s *Scrubber) next() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.synced || len(s.targets) == 0 {
		return time.Time{}, false
	}
	s.agenda.update(s.owners.Releases(), s.grace)
	next, any := s.agenda.next()
	if !any || s.checkAt.Before(next) {
		next = s.checkAt
	}
	return next, true
}

// saveInterval keeps a node with many changes from writing its journal all the time.
const saveInterval = 200 * time.Millisecond

// saveJournal writes the journal whenever it is behind.
func (s *Scrubber) saveJournal(ctx context.Context) {
	said := ""
	for {
		select {
		case <-ctx.Done():
			s.save(&said)
			return
		case <-s.unsaved:
			s.save(&said)
		}
		select {
		case <-ctx.Done():
		case <-time.After(saveInterval):
		}
	}
}

func (s *Scrubber) save(said *string) {
	s.mu.Lock()
	if !s.synced || !s.owners.Changed() { // what is not synced knows less than the journal
		s.mu.Unlock()
		return
	}
	journal := s.owners.Journal(s.Boot)
	s.mu.Unlock()
	err := s.Options.Journal.Save(journal)
	switch {
	case err == nil:
		*said = ""
	case err.Error() != *said:
		*said = err.Error()
		s.Log.Error("what pods lose while this agent is down will not be seen", zap.Error(err))
	}
	if err != nil {
		s.mu.Lock()
		s.owners.changed = true
		s.mu.Unlock()
	}
}

// sources are who can be asked now. The caller has the lock.
func (s *Scrubber) sources() sources { return sources{s.Cluster, s.Host, s.runtime} }

// pass looks at what is due, removes what may go, and tells what it found.
func (s *Scrubber) pass(ctx context.Context) {
	s.mu.Lock()
	now := s.Now()
	for _, r := range s.owners.Forget() {
		s.Log.Warn("too many addresses were lost whose entries cannot go; one is given up", zap.Stringer("address", r.Address), zap.Stringer("pod", r.Pod))
	}
	releases := s.owners.Releases()
	l := look{sources: s.sources(), now: now, grace: s.grace, due: s.agenda.take(releases, now, s.limit), releases: byAddress(releases)}
	targets, present := s.targets, s.owners.Present()
	s.checkAt = now.Add(recheck)
	s.mu.Unlock()

	wanted := NewAddresses()
	for a := range l.due {
		wanted.add(a)
	}
	l.read(ctx, targets, wanted)
	if ctx.Err() != nil {
		return
	}
	l.ask(ctx, present, s.Now())
	reports := l.reports()
	for i := range l.tables {
		if t := &l.tables[i].target; t.Enforce && ctx.Err() == nil {
			s.remove(ctx, &l, t, reports[i].Findings)
		}
	}
	s.schedule(&l, reports)
	s.Told(reports, s.Now().Sub(now))
}

// remove removes the entries of a table whose verdict is Remove, asks once more who has their addresses, and puts back those that somebody has by
// now: who took an address in that very moment may have found the old entry and relied on it.
func (s *Scrubber) remove(ctx context.Context, l *look, t *Target, findings []Finding) {
	var going []*Finding
	for i := range findings {
		if findings[i].Verdict == Remove {
			going = append(going, &findings[i])
		}
	}
	going = s.confirm(ctx, l, t, going)
	if len(going) == 0 {
		return
	}
	if err := s.record(t, going); err != nil {
		for _, f := range going {
			f.Decision = Decision{Keep, Unconfirmed, "not removed, because it cannot be logged: " + err.Error()}
		}
		return
	}
	entries := make([]Entry, len(going))
	for i, f := range going {
		entries[i] = f.Entry
	}
	var removed []*Finding // perhaps
	// Not ended by a stop: what was begun must be known to be done or not.
	for i, outcome := range t.Table.Remove(context.WithoutCancel(ctx), entries) {
		switch f := going[i]; outcome.Result {
		case Removed:
			f.Removed = true
			removed = append(removed, f)
		case AlreadyGone:
			f.Message += "; its writer removed it first"
		case WasChanged:
			f.Decision = Decision{Wait, Changed, "the entry was changed in the moment of its removal, and stays"}
			if outcome.Err != nil {
				f.Message = outcome.Err.Error()
				s.Log.Error("a newer entry was lost", zap.String("target", t.Name), zap.Error(outcome.Err))
			}
		case Failed:
			f.Decision = Decision{Keep, Unconfirmed, "not removed: " + outcome.Err.Error()}
			removed = append(removed, f) // as far as anybody knows; one that is there still is not put back twice
		}
	}
	s.reconsider(l, t, removed)
}

// maxAnswerAge is how old the word that nobody has an address may be when its entries are removed.
const maxAnswerAge = time.Second

// confirm asks again where the answers are no longer fresh, because other tables took their time, and drops what may not go by now.
func (s *Scrubber) confirm(ctx context.Context, l *look, t *Target, going []*Finding) []*Finding {
	if len(going) == 0 {
		return nil
	}
	present, releases := s.seen()
	l.releases = releases
	if s.Now().Sub(l.askedAt) > maxAnswerAge {
		l.askAgain(ctx, present, s.Now())
	} else {
		l.pods = append(l.pods, present...)
	}
	return slices.DeleteFunc(going, func(f *Finding) bool {
		f.Decision, _ = l.decide(t, f.Entry)
		return f.Verdict != Remove
	})
}

// seen is what was seen of pods until now: those that there are, and what was lost. A pod may have come, taken an address, and gone since a look began.
func (s *Scrubber) seen() ([]Pod, map[netip.Addr][]*Release) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners.Present(), byAddress(s.owners.Releases())
}

// reconsiderTime is how long the question after a removal may take.
const reconsiderTime = 3 * time.Second

// reconsider asks once more about what was removed.
func (s *Scrubber) reconsider(l *look, t *Target, removed []*Finding) {
	if len(removed) == 0 {
		return
	}
	// Also when the agent is told to stop: what was begun is ended.
	ctx, cancel := context.WithTimeout(context.Background(), reconsiderTime)
	defer cancel()
	needs := map[netip.Addr]bool{}
	for _, f := range removed {
		needs[f.Address] = t.Scope == ScopeCluster
	}
	present, releases := s.seen()
	after := look{sources: l.sources, now: l.now, grace: l.grace, releases: releases, due: l.due}
	after.answers = after.askAbout(ctx, needs, releases, present)
	var back []*Finding
	var entries []Entry
	for _, f := range removed {
		d, _ := after.decide(t, f.Entry)
		switch {
		case d.Verdict == Remove:
		case !f.Removed: // it failed, and its message says so
			entries = append(entries, f.Entry)
		default:
			f.Decision, f.Removed = Decision{d.Verdict, d.Reason, "put back, because right after its removal " + d.Message}, false
			back, entries = append(back, f), append(entries, f.Entry)
		}
	}
	if len(entries) == 0 {
		return
	}
	switch err := t.Table.Restore(ctx, entries); {
	case errors.Is(err, ErrMadeAnew):
		for _, f := range back {
			f.Removed = true
			f.Message = "removed, though" + strings.TrimPrefix(f.Message, "put back, because") + "; " + err.Error()
		}
	case err != nil:
		for _, f := range back {
			f.Message += ", but that failed: " + err.Error()
		}
		for _, e := range entries {
			s.Log.Error("an entry could not be put back", zap.String("target", t.Name), zap.String("table", e.Table), zap.String("entry", e.Text), zap.Error(err))
		}
	}
}

// record logs what is about to be removed, with all that is needed to put it back.
func (s *Scrubber) record(t *Target, going []*Finding) error {
	written := func() error { return nil }
	if s.Recorded != nil {
		var err error
		if written, err = s.Recorded(); err != nil {
			return err
		}
	}
	for _, f := range going {
		s.Log.Info("removing", zap.String("target", t.Name), zap.String("table", f.Table), zap.Stringer("address", f.Address), zap.String("entry", f.Text),
			zap.String("reason", string(f.Reason)), zap.Stringer("pod", f.Pod), zap.String("uid", f.Pod.UID),
			zap.String("key", hex.EncodeToString(f.Key)), zap.String("value", hex.EncodeToString(f.Value)))
	}
	return written()
}

// schedule takes in what became of each release that the look was for.
func (s *Scrubber) schedule(l *look, reports []TargetReport) {
	upshots := map[netip.Addr]upshot{}
	incomplete := false
	for i := range l.tables {
		incomplete = incomplete || !l.tables[i].complete()
		for _, f := range reports[i].Findings {
			upshots[f.Address] = upshots[f.Address].with(f)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.agenda.passed(s.Now(), s.Now().Sub(l.now))
	for a := range l.due {
		u := upshots[a]
		u.failed = u.failed || incomplete
		var ready time.Time
		for _, r := range l.releases[a] {
			if at := r.Due(l.grace, l.runtime != nil); at.After(ready) {
				ready = at
			}
		}
		for _, r := range l.releases[a] {
			if s.agenda.passedBy(r, u, ready, l.now, l.grace) {
				s.owners.Done(r)
			}
		}
	}
	if s.owners.Changed() {
		signal(s.unsaved)
	}
}

// with adds what a finding means for its release.
func (u upshot) with(f Finding) upshot {
	switch {
	case f.Removed:
		u.removed = true
	case f.Reason == Unconfirmed, f.Reason == Changed, f.Reason == StillRuns, f.Reason == SandboxHas:
		u.failed = true
	case f.Verdict == Wait:
		u.waits = true
	case f.Verdict == Remove, f.Reason == InterfaceExists, f.Reason == Annotated, f.Reason == SandboxLost, f.Reason == Terminating:
		u.kept = true
	}
	return u
}

// signal wakes whoever listens to c, a channel of size 1, without waiting for it.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
