package status

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// objectsPage is how many objects one page asks for.
	objectsPage = 200
	// DeletesPerSecond is how many objects of a target are deleted in a second at most, unless the target says otherwise.
	DeletesPerSecond = 20
	// deletesAtOnce is for how many seconds the proof that their Nodes are gone stays young while objects are deleted one after the other.
	deletesAtOnce = 2
	// maxDeleteFailures is how many deletions in a row may fail before the others are not tried in this pass.
	maxDeleteFailures = 5
)

// objects lists the target's objects, decides on each, and where the pass may write deletes those that may go, batch by batch.
func (p *pass) objects(ctx context.Context) {
	list, err := p.readObjects(ctx)
	if err != nil {
		p.failed(ctx, err) // a part of a list proves nothing of what it lacks, so what was remembered stays
		if p.report.State != Unavailable {
			p.memory = memory{} // it was another resource, or is not to be read: the next list is a whole one
		}
		return
	}
	list = slices.Clone(list) // the memory is not to change with it
	slices.SortFunc(list, func(a, b object) int { return strings.Compare(a.String(), b.String()) })
	s := objectSweep{pass: p, objects: list, index: make(map[string]int, len(list))}
	p.owners.begin(p.Now(), p.kind != enforce)
	refused := p.refused
	p.refused = map[string]failedDeletion{}
	s.look()
	for i := range list {
		if was, is := refused[list[i].uid]; is {
			p.refused[list[i].uid] = was
		}
		o := &list[i]
		p.alive = p.alive || o.node != "" && p.speaksFor(o.node)
		p.report.Resources = append(p.report.Resources, ResourceReport{Namespace: o.Namespace, Name: o.Name, Entries: 1, Findings: []Finding{{Key: o.node}}})
	}
	s.sweep(ctx)
	if len(list) > 0 && !slices.ContainsFunc(list, func(o object) bool { return o.node != "" }) {
		p.report.worsen(OK, "no object names a node; is nodeName right?")
	}
}

// An objectSweep is one pass over a target's objects.
type objectSweep struct {
	*pass
	objects []object
	index   map[string]int // of objects, by their namespace and name
	settled map[int]bool   // those that this pass is done with
	// failures is how many deletions in a row have failed.
	failures int
}

// look remembers the candidates of all objects.
func (s *objectSweep) look() {
	read, old := make(map[string]fingerprint, len(s.objects)), map[string]fingerprint{}
	s.objectNodes = make(map[string]bool, len(s.objects))
	for i := range s.objects {
		o := &s.objects[i]
		s.index[o.String()] = i
		s.objectNodes[o.node] = true
		print := sha256.Sum256([]byte(o.uid + " " + o.version + " " + o.node))
		if o.old {
			old[o.String()] = print
		} else {
			read[o.String()] = print
		}
	}
	s.settled = map[int]bool{}
	after := s.candidates[types.NamespacedName{}].look(read, func(id string) Knowledge {
		return s.nodes.Known(s.objects[s.index[id]].node)
	}, s.Now())
	maps.Copy(after.prints, old) // seen, but not in this look, so no candidates
	s.candidates[types.NamespacedName{}] = after
}

// subjects are the objects that this pass is not done with. Those that could not be deleted come last, the longest untried of them first, so that they keep no
// others from it.
func (s *objectSweep) subjects() []subject {
	candidates := s.candidates[types.NamespacedName{}]
	var subjects []subject
	var refused []refusedSubject
	for i := range s.objects {
		if o := &s.objects[i]; !s.settled[i] {
			id := o.String()
			stays := o.stays
			if stays.Verdict == "" {
				stays = s.knownOwner(o)
			}
			one := subject{id: id, node: o.node, size: 1, kept: o.keep, candidate: candidates.Of(id), stays: stays, cut: o.cut, where: id}
			if was, is := s.refused[o.uid]; is {
				refused = append(refused, refusedSubject{one, was.at})
			} else {
				subjects = append(subjects, one)
			}
		}
	}
	slices.SortStableFunc(refused, func(a, b refusedSubject) int { return a.at.Compare(b.at) })
	for _, r := range refused {
		subjects = append(subjects, r.subject)
	}
	return subjects
}

// A failedDeletion is when the deletion of an object was tried in vain, and of which version of it.
type failedDeletion struct {
	at      time.Time
	version string
}

type refusedSubject struct {
	subject
	at time.Time
}

// sweep decides and deletes until nothing is left to delete.
func (s *objectSweep) sweep(ctx context.Context) {
	for left, tries := s.target.MaxRemovals, 0; ; {
		done := len(s.settled)
		batch := s.decide(ctx, types.NamespacedName{}, s.subjects(), min(left, max(1, int(deletesAtOnce*s.deletes.Limit()))))
		for id, d := range batch.decisions {
			s.finding(s.index[id], d)
		}
		going := s.withoutOwners(ctx, batch.going)
		if s.kind != enforce || len(batch.going) == 0 {
			return
		}
		removed, err := s.delete(ctx, going, batch.proved)
		left -= removed
		if err != nil {
			s.failed(ctx, err)
			return
		}
		if removed > 0 {
			s.Progress(types.NamespacedName{}, s.report.Removed(), batch.waiting)
		}
		if tries++; len(s.settled) > done {
			tries = 0
		}
		if tries == maxTries {
			s.report.worsen(Unavailable, fmt.Sprintf("%d times in a row the proof that Nodes are gone grew too old before anything was deleted; the next sweep tries again", tries))
			return
		}
		if left > 0 {
			continue
		}
		if batch.waiting == 0 {
			return
		}
		if err := s.Wait(ctx, BatchPause); err != nil {
			s.report.worsen(Unavailable, fmt.Sprintf("stopped with %d still to delete: %v", batch.waiting, err))
			return
		}
		left = s.target.MaxRemovals
	}
}

// finding writes down what was decided on an object.
func (s *objectSweep) finding(i int, d Decision) {
	o := &s.objects[i]
	s.report.Resources[i].Findings = []Finding{{
		Key: o.node, Verdict: d.Verdict, Reason: d.Reason, Message: d.Message, Since: s.candidates[types.NamespacedName{}].Of(o.String()).Since.UTC(),
	}}
}

// withoutOwners are those of the objects that belong to nothing that exists. On the others is decided.
func (s *objectSweep) withoutOwners(ctx context.Context, ids []string) []int {
	var orphans []int
	for _, id := range ids {
		i := s.index[id]
		d, stays := s.owned(ctx, &s.objects[i])
		if stays {
			s.settled[i] = true
			s.finding(i, d)
			continue
		}
		orphans = append(orphans, i)
	}
	return orphans
}

// knownOwner keeps an object that belongs to something of which is known that it exists; zero: nothing is known.
func (s *objectSweep) knownOwner(o *object) Decision {
	for _, owner := range o.owners {
		if answer, known := s.owners.known(owner, o.Namespace); known && answer.existence == Exists {
			return ownerExists(owner)
		}
	}
	return Decision{}
}

func ownerExists(o owner) Decision {
	return Decision{Keep, OwnerExists, "the object belongs to " + o.String() + ", which exists"}
}

// owned decides on an object by what it belongs to; false: by none of that it stays.
func (s *objectSweep) owned(ctx context.Context, o *object) (Decision, bool) {
	for _, owner := range o.owners {
		switch answer := s.owners.exists(ctx, owner, o.Namespace); answer.existence {
		case Exists:
			return ownerExists(owner), true
		case Gone:
		default:
			why := "cannot prove that " + owner.String() + ", which the object belongs to, is gone: " + answer.err.Error()
			var failure *RequestError
			if errors.As(answer.err, &failure) && failure.Code != http.StatusNotFound {
				s.failed(ctx, answer.err)
			} else {
				s.report.worsen(OK, why) // a kind that is not served: no other time is better
			}
			return Decision{Keep, Unconfirmed, why}, true
		}
	}
	return Decision{}, false
}

// delete deletes objects one after the other while the proof that their Nodes are gone, from the time proved, is young. The others are decided on
// anew. It returns how many it deleted.
func (s *objectSweep) delete(ctx context.Context, going []int, proved time.Time) (removed int, err error) {
	if len(going) == 0 {
		return 0, nil
	}
	written, err := s.Recorded.begin()
	if err != nil {
		return 0, fmt.Errorf("nothing was deleted: %w", err)
	}
	for _, i := range going {
		o := &s.objects[i]
		s.log.Info("deleting", zap.String("namespace", o.Namespace), zap.String("name", o.Name), zap.String("uid", o.uid), zap.String("resourceVersion", o.version),
			zap.String("node", o.node), zap.String("reason", string(s.target.gone())))
	}
	if err := written(); err != nil {
		return 0, fmt.Errorf("nothing was deleted: %w", err)
	}
	for _, i := range going {
		if err := s.deletes.Wait(ctx); err != nil {
			return removed, err
		}
		left := (maxAnswerAge + writeTime - s.Now().Sub(proved)).Truncate(time.Millisecond)
		if left <= 0 {
			return removed, nil
		}
		gone, err := s.deleteOne(ctx, i, left)
		var failure *RequestError
		switch {
		case err == nil:
			s.failures = 0
		case ctx.Err() != nil || !errors.As(err, &failure) || !failure.ofOneObject():
			return removed, err
		default:
			s.refused[s.objects[i].uid] = failedDeletion{s.Now(), s.objects[i].version}
			if s.failures++; s.failures == 1 { // the findings tell of each
				s.failed(ctx, err)
			}
			if s.failures == maxDeleteFailures {
				return removed, fmt.Errorf("%d deletions in a row failed; the others were not tried", s.failures)
			}
		}
		if gone {
			removed++
		}
	}
	return removed, nil
}

// ofOneObject tells whether others may be written although this one could not be: by right, by admission, which may answer with any code, or because no
// answer came.
func (e *RequestError) ofOneObject() bool {
	return e.Code == http.StatusOK || e.Code == 0 || e.Code >= 500 || e.refusesObject()
}

// refusesObject tells whether the API server has refused to write this object, and may take others.
func (e *RequestError) refusesObject() bool {
	switch e.Code {
	case http.StatusUnauthorized, http.StatusNotFound, http.StatusTooManyRequests:
		return false
	}
	return e.Code/100 == 4 && e.Status != nil
}

// deleteOne deletes an object, if it is still the one that was listed, within the time that is left.
func (s *objectSweep) deleteOne(ctx context.Context, i int, left time.Duration) (gone bool, err error) {
	o := &s.objects[i]
	uid := types.UID(o.uid)
	background := metav1.DeletePropagationBackground
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions:     &metav1.Preconditions{UID: &uid, ResourceVersion: &o.version},
		PropagationPolicy: &background,
	})
	if err != nil {
		return false, err
	}
	deleting, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	_, err = s.client.bytes(deleting, request{
		verb: "delete", resource: s.target.Resource, namespace: o.Namespace, name: o.Name, query: url.Values{"timeout": {left.String()}},
		accept: acceptMetadata, contentType: "application/json", body: body, attempts: 1,
	})
	s.settled[i] = true
	log := s.log.With(zap.String("namespace", o.Namespace), zap.String("name", o.Name), zap.String("node", o.node))
	var failure *RequestError
	switch {
	case err == nil:
		log.Info("deleted")
		s.memory.forget(o.uid)
		delete(s.refused, o.uid)
		s.report.Resources[i].Findings[0].Removed = true
		s.report.Resources[i].Removed = 1
		return true, nil
	case !errors.As(err, &failure):
		return false, err
	case failure.Code == http.StatusNotFound && namesObject(failure):
		s.finding(i, Decision{Keep, s.target.gone(), "somebody else deleted it first"})
		s.memory.forget(o.uid)
		return false, nil
	case failure.Code == http.StatusConflict && s.refused[o.uid].version != o.version: // again for the same version: somebody refuses it in these words
		s.refused[o.uid] = failedDeletion{s.Now(), o.version}
		s.finding(i, Decision{Wait, Changed, "it was written between look and delete, so somebody still writes it"})
		log.Info("not deleted; it was written meanwhile")
		return false, nil
	}
	s.finding(i, Decision{Keep, Unconfirmed, "not deleted: " + failure.Error()})
	if failure.Code == 0 || failure.Code == http.StatusOK || failure.Code >= 500 {
		log.Warn("perhaps deleted: the request was not answered", zap.Error(err))
		return false, &unansweredError{fmt.Errorf("%s is perhaps deleted; the next sweep shows: %w", o, err)}
	}
	log.Warn("not deleted", zap.Error(err))
	return false, err
}
