package status

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"go.uber.org/zap"
)

// A removalResult is what one write came to.
type removalResult struct {
	removed []Entry
	next    *Resource // as it is afterwards
	again   bool      // not all was removed, for a reason that may have passed: decide again on next
	why     string    // for again
}

// writeTime is how much longer than maxAnswerAge after the Nodes were asked for a write may take effect.
const writeTime = time.Second

// remove takes the entries out of r by one guarded patch, which takes effect before the proof, from the time proved, has grown too old: the
// server gives it up with us. It never sends the patch again by itself: what it relies on would have to
// be confirmed again, so the caller decides anew.
func (p *pass) remove(ctx context.Context, r *Resource, entries []Entry, proved time.Time) (removalResult, error) {
	log := p.log.With(zap.String("namespace", r.Namespace), zap.String("name", r.Name))
	written, err := p.Recorded.begin()
	if err != nil {
		return removalResult{}, fmt.Errorf("nothing was removed from %s: %w", r.NamespacedName, err)
	}
	for _, e := range entries {
		// Before the write, so that nothing is lost whatever happens in it.
		log.Info("removing", zap.String("key", e.Key), zap.Stringer("path", p.target.Paths[e.Place].Path),
			zap.String("reason", string(p.target.gone())), zap.ByteString("entry", e.Raw), zap.String("putBack", putBack(&p.target, r, e)))
	}
	if err := written(); err != nil {
		return removalResult{}, fmt.Errorf("nothing was removed from %s: %w", r.NamespacedName, err)
	}
	left := (maxAnswerAge + writeTime - p.Now().Sub(proved)).Truncate(time.Millisecond)
	if left <= 0 {
		log.Info("not removed; looking again: the proof that the Nodes are gone is too old to act on")
		return removalResult{next: r, again: true, why: "the proof that the Nodes are gone grew too old before the write"}, nil
	}
	patch := encode(removal(r, p.target.Paths, entries))
	writing, cancel := context.WithTimeout(ctx, left) // also while the client waits for its turn
	body, err := p.client.bytes(writing, request{
		verb: "patch", resource: p.target.Resource, namespace: r.Namespace, name: r.Name, subresource: "status",
		query: url.Values{"timeout": {left.String()}}, accept: acceptJSON, contentType: "application/json-patch+json", body: patch, attempts: 1,
	})
	cancel()
	if err == nil {
		log.Info("removed", zap.Int("entries", len(entries)))
		next, err := p.parse(r.NamespacedName, body)
		return removalResult{removed: entries, next: next}, err
	}
	var failure *RequestError
	if !errors.As(err, &failure) || failure.Code != http.StatusUnprocessableEntity && !failure.retryable() {
		log.Warn("not removed", zap.Error(err))
		return removalResult{}, err
	}
	unanswered := failure.Code == 0 || failure.Code == http.StatusOK || failure.Code >= 500
	if failure.Code != http.StatusUnprocessableEntity {
		if p.client.wait(ctx, min(max(jitter(2*firstBackoff), failure.retryAfter), maxRetryAfter)) != nil {
			return removalResult{}, perhaps(log, unanswered, err)
		}
	}
	next, readErr := p.read(ctx, r.NamespacedName)
	if readErr != nil {
		return removalResult{}, perhaps(log, unanswered, readErr)
	}
	result := removalResult{next: next, again: true, why: err.Error()}
	if unanswered && next.UID == r.UID {
		if result.removed = missing(entries, next); len(result.removed) > 0 {
			log.Info("removed, as the resource shows; the answer to the write was lost", zap.Int("entries", len(result.removed)), zap.Error(err))
			result.again = len(result.removed) < len(entries)
			return result, nil
		}
	}
	if failure.Code == http.StatusUnprocessableEntity && bytes.Equal(patch, encode(removal(next, p.target.Paths, next.ofKeys(entries)))) {
		log.Warn("not removed", zap.Error(err))
		return removalResult{}, err // all that the patch tests is as it was, so it was no test that failed
	}
	if failure.Code == http.StatusUnprocessableEntity {
		result.why = "it had changed between look and write"
	}
	log.Info("not removed; looking again", zap.Error(err))
	return result, nil
}

// perhaps says that nobody can tell whether a write was done.
func perhaps(log *zap.Logger, unanswered bool, err error) error {
	if !unanswered {
		log.Warn("not removed", zap.Error(err))
		return err
	}
	log.Warn("perhaps removed: the write was not answered", zap.Error(err))
	return &unansweredError{fmt.Errorf("perhaps removed, because the write was not answered; the next sweep shows: %w", err)}
}

// An unansweredError is why nobody can tell whether a write was done.
type unansweredError struct{ error }

func (e *unansweredError) Unwrap() error { return e.error }

// missing are the entries whose key has none at that place any more.
func missing(entries []Entry, r *Resource) []Entry {
	type spot struct {
		key   string
		place int
	}
	there := map[spot]bool{}
	for _, e := range r.Entries {
		there[spot{e.Key, e.Place}] = true
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return there[spot{e.Key, e.Place}] })
}

// ofKeys are r's entries of the keys that the given entries have.
func (r *Resource) ofKeys(entries []Entry) []Entry {
	keys := make([]string, len(entries))
	for i, e := range entries {
		keys[i] = e.Key
	}
	return r.of(keys)
}

// of are r's entries of those keys.
func (r *Resource) of(keys []string) []Entry {
	wanted := map[string]bool{}
	for _, key := range keys {
		wanted[key] = true
	}
	var found []Entry
	for _, e := range r.Entries {
		if wanted[e.Key] {
			found = append(found, e)
		}
	}
	return found
}
