package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ClearTimeout bounds a Clear whose context has no deadline.
const ClearTimeout = 10 * time.Second

const (
	// clearAttempt bounds one request while clearing: of the 10 s, one that is never answered leaves time for another.
	clearAttempt = 4 * time.Second
	// answerTime is what a publication in flight gets to be answered when clearing begins; at most a quarter of what time there
	// is. An answer says where the key stands, a request that is cut off leaves it in doubt.
	answerTime = 2 * time.Second
	// settleTime is how long after it was given up a request may still take effect: it may be on its way, or the server may be
	// at work on it. The server gives it up with us (see timeout in write); what then remains is a commit to etcd.
	settleTime = 3 * time.Second
	// lookReserve is what the last look before the deadline takes.
	lookReserve = time.Second

	publishBackoff, maxPublishBackoff = 250 * time.Millisecond, 30 * time.Second
	clearBackoff, maxClearBackoff     = 200 * time.Millisecond, 2 * time.Second

	// maxMoves is how often in a row a write is tried again at once because the resource had changed.
	maxMoves = 3
	// maxOwnForms is how many of the last entries of ours are remembered, to tell them from somebody else's.
	maxOwnForms = 16
)

var (
	// ErrClosed is why nothing is published any more: Clear has been called.
	ErrClosed = errors.New("the key is being cleared, or has been")
	// ErrKept is why Clear left the key: the resource carries unstale.dev/keep.
	ErrKept = errors.New(`the resource carries ` + KeepAnnotation + `: "true", so nothing is removed from it`)
	// ErrReplaced is why nothing is published: the Node of that name is another one now, and the key is its agent's.
	ErrReplaced = errors.New("the Node of this name is another one now, and the key belongs to its agent")

	// errMoved: the resource changed between look and write, and has been read again.
	errMoved = errors.New("it changed between look and write, again and again")
	// errSettling: the key is gone, but a publication may be late.
	errSettling = errors.New("the key was removed, but a publication that was never answered may still be under way")
)

// A KeyPlace is where the nodes' keys stand in one shared resource.
type KeyPlace struct {
	Resource  schema.GroupVersionResource // by its plural name
	Namespace string                      // empty for a cluster-scoped resource
	Name      string
	// Paths are the places with a key per node. Publish writes to the first, which must be a map; Clear clears all.
	Paths []KeyPath
}

// An OwnKey is the key that one node's agent has in one shared resource: it is published there, and cleared when the agent
// stops. It is safe for concurrent use, and does one thing at a time.
//
//   - A publication tests the value that it replaces, or that there is none, so one that is late cannot undo a newer one (as long
//     as no two entries are equal: put a time or a counter in them). It tests nothing of other nodes' keys.
//   - Once Clear has begun nothing is published any more. When Clear returns, no request of this key is under way from here.
//   - Clear returns when its context ends, whether or not the API server answers.
//   - Clear never removes somebody else's entry: once this OwnKey has published, only what it has published itself; if it never
//     has, whatever is there, unless NodeUID says that the Node is another one by now.
//   - A publication that was never answered and found no key may take effect after the key was cleared. So in that case Clear
//     looks again, settleTime after the request was given up, and clears what it finds. A request that something between here
//     and the API server holds back for longer than that can still bring the key back; nothing in an API server can prevent
//     that, and whoever keeps the resource clean of departed nodes' keys removes it then.
type OwnKey struct {
	// NodeUID is the UID of the Node that the agent runs on, "" if it is not known. If it is, an entry that this OwnKey has
	// not published is replaced or cleared only if that Node is still the one of this name (this takes the right to get nodes).
	NodeUID string
	// Log hears of removals, with what puts them back.
	Log *zap.Logger
	// Recorded tells whether the log of a removal is written, as Sweeper.Recorded does. An entry that this OwnKey has published itself
	// needs no record; every other one does.
	Recorded Recorder
	// Now and Wait stand for the clock. All of these may be set before the first use.
	Now  func() time.Time
	Wait func(context.Context, time.Duration) error

	client *Client
	node   string
	target Target // the place, as other parts of this package know it

	// The key's own end, not a caller's. closing ends when Clear begins: no publication begins or is tried again. cut ends
	// when a publication in flight has had its time.
	closing, cut           context.Context
	beginClosing, beginCut context.CancelFunc

	// turn is taken by who works on the key; all below is theirs.
	turn       chan struct{}
	view       *ownView          // what the server said last; nil: it must be asked
	sent       json.RawMessage   // what was published last, as it was sent
	stored     json.RawMessage   // and as the server stored it: a schema may drop fields, or add defaults
	forms      []json.RawMessage // of entries that are ours: as sent, as stored, and those that they were to replace
	absent     bool              // the last sure knowledge is that there is no key; only what is unanswered can have added it since
	unanswered int               // publications that found no key, and whose outcome is unknown
	settled    time.Time         // when the last of those can no longer take effect
}

// NewOwnKey makes an OwnKey for a node. It sends nothing.
func NewOwnKey(client *Client, node string, at KeyPlace) (*OwnKey, error) {
	k := &OwnKey{
		Log: zap.NewNop(), Now: time.Now, Wait: waitFor, client: client, node: node, turn: make(chan struct{}, 1),
		target: Target{
			Name: "own key", Resource: at.Resource, Namespace: at.Namespace, Names: []string{at.Name}, Paths: at.Paths, Mode: Enforce,
		},
	}
	k.closing, k.beginClosing = context.WithCancel(context.Background())
	k.cut, k.beginCut = context.WithCancel(context.Background())
	invalid := func(text string, args ...any) (*OwnKey, error) {
		return nil, fmt.Errorf("a node's own key in %s %q: %s", at.Resource.Resource, at.Name, fmt.Sprintf(text, args...))
	}
	if problems := validation.IsDNS1123Subdomain(node); len(problems) > 0 {
		return invalid("%q is no node's name: %s", node, problems[0])
	}
	if at.Resource.Resource == "" || at.Resource.Version == "" {
		return invalid("the resource needs a version and a plural name, it is %q", at.Resource)
	}
	if at.Name == "" || strings.ContainsAny(at.Name+at.Namespace, "/%") {
		return invalid("the resource's name is missing, or it or the namespace %q cannot be a name", at.Namespace)
	}
	if len(at.Paths) == 0 {
		return invalid("it needs at least one path, such as status.nodes")
	}
	for _, path := range at.Paths {
		if len(path.Path) < 2 || path.Path[0] != "status" {
			return invalid("the path %q must lie below status, since keys are written through the status subresource", path.Path)
		}
	}
	return k, nil
}

// String is for messages.
func (k *OwnKey) String() string {
	r := request{verb: "in", resource: k.target.Resource, namespace: k.target.Namespace, name: k.target.Names[0]}
	return fmt.Sprintf("the key %s at %s %s", k.node, k.target.Paths[0].Path, r)
}

// Rules are the RBAC rules that the key needs, and no wider; with NodeUID also the right to get nodes.
func (k *OwnKey) Rules() []Rule {
	// A cluster-scoped resource has no namespace, which in a Target means all of them, which takes a list.
	rules := slices.DeleteFunc(Rules(&k.target), func(r Rule) bool { return slices.Contains(r.Verbs, "list") })
	if k.NodeUID == "" {
		return rules
	}
	return append(rules, Rule{PolicyRule: rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"},
	}})
}

// A KeyError says why a key is not as it should be on the server, and what to do.
type KeyError struct {
	Op      string // publish or clear
	Key     string
	State   State // of the resource, in the words for targets
	Message string
	cause   error
}

func (e *KeyError) Error() string { return e.Op + " " + e.Key + ": " + e.Message }

func (e *KeyError) Unwrap() error { return e.cause }

// failed explains a failure that is not tried again.
func (k *OwnKey) failed(ctx context.Context, op string, err error) error {
	e := &KeyError{Op: op, Key: k.String(), State: Unavailable, Message: err.Error(), cause: err}
	switch {
	case errors.Is(err, ErrClosed), errors.Is(err, ErrKept), errors.Is(err, ErrReplaced):
		e.State = OK
	case ctx.Err() == nil:
		e.State, e.Message = k.client.stateOf(ctx, &k.target, err)
		var failure *RequestError
		switch {
		case !errors.As(err, &failure):
		case failure.request.resource == nodesResource:
			e.Message = "whose entry it is could not be found out: " + e.Message
		case failure.Code == http.StatusNotFound && k.namesResource(failure):
			e.State, e.Message = NotInstalled, "the resource does not exist; create it, then publish again"
		}
	}
	return e
}

// outOfTime explains that the context ended first, with err; last is what failed before, if anything did.
func (k *OwnKey) outOfTime(op string, err, last error) error {
	e := &KeyError{Op: op, Key: k.String(), State: Unavailable, cause: err}
	e.Message = fmt.Sprintf("not done in time (%v)", err)
	if last != nil {
		e.cause = errors.Join(last, err)
		e.Message += ", the last try ended with: " + last.Error()
	}
	return e
}

// Publish makes entry the node's entry: whatever encoding/json makes of it. It tries again until ctx ends or Clear begins, and
// returns at once what only a person can mend. If the entry is the one that was last published nothing is sent; see Forget.
func (k *OwnKey) Publish(ctx context.Context, entry any) error {
	raw, err := encodeEntry(entry)
	if err != nil {
		return &KeyError{Op: "publish", Key: k.String(), State: Invalid, Message: err.Error(), cause: err}
	}
	if listKey := k.target.Paths[0].ListKey; listKey != "" {
		err := fmt.Errorf("the first path is a list (listKey %q); only a map can be published to", listKey)
		return &KeyError{Op: "publish", Key: k.String(), State: Invalid, Message: err.Error(), cause: err}
	}
	trying, endTrying := join(ctx, k.closing)
	defer endTrying()
	sending, endSending := join(ctx, k.cut)
	defer endSending()

	over := func(last error) error {
		if k.closing.Err() != nil {
			return k.failed(ctx, "publish", ErrClosed)
		}
		return k.outOfTime("publish", ctx.Err(), last)
	}
	if k.take(trying) != nil {
		return over(nil)
	}
	defer k.give()
	if k.closing.Err() != nil { // not trying.Err(): that one ends a moment later
		return over(nil)
	}
	pauses := backoff{publishBackoff, maxPublishBackoff}
	for moved := 0; ; {
		err := k.publish(sending, raw)
		if err == nil {
			return nil
		}
		ended := ctx.Err() != nil || k.closing.Err() != nil
		if moved++; errors.Is(err, errMoved) && moved < maxMoves && !ended {
			continue
		}
		wait, again := tryAgain(err)
		switch {
		case sending.Err() != nil || again && ended:
			return over(err)
		case !again:
			return k.failed(sending, "publish", err)
		case k.Wait(trying, max(pauses.next(), min(wait, maxRetryAfter))) != nil:
			return over(err)
		}
		moved = 0
	}
}

// publish is one try.
func (k *OwnKey) publish(ctx context.Context, raw json.RawMessage) error {
	if err := k.look(ctx, requestTimeout); err != nil {
		return err
	}
	if k.shows(raw) {
		return nil
	}
	old := k.view.published()
	if old != nil && !k.ours(old) {
		if replaced, err := k.replaced(ctx); err != nil {
			return err
		} else if replaced {
			return ErrReplaced
		}
		k.claim(old) // it is this agent's to replace, so also to clear if that fails
	}
	k.claim(raw)
	build := func() []byte { return encode(publication(k.view, k.target.Paths[0].Path, k.node, raw)) }
	patch := build()
	view, err := k.write(ctx, requestTimeout, patch)
	switch code := codeOf(err); {
	case err == nil:
		k.view, k.absent, k.sent, k.stored = view, false, raw, view.published()
		k.claim(k.stored)
		return nil
	case outcomeUnknown(err):
		k.view = nil
		if old == nil {
			k.unanswered++
			k.settled = k.Now().Add(settleTime)
		}
		return err
	case code == http.StatusNotFound:
		k.view = nil
		return err
	case code != http.StatusUnprocessableEntity:
		return err
	}
	k.view = nil
	if readErr := k.look(ctx, requestTimeout); readErr != nil {
		return readErr
	}
	if !k.shows(raw) && bytes.Equal(patch, build()) {
		return err // all that the patch tests is as it was, so it was no test that failed
	}
	return errMoved
}

// shows tells whether the entry is what it should be, as far as is known.
func (k *OwnKey) shows(raw json.RawMessage) bool {
	found := k.view.published()
	return found != nil && (sameJSON(found, raw) || sameJSON(raw, k.sent) && sameJSON(found, k.stored))
}

// Forget drops what is known of the key on the server, so that the next Publish looks: for when somebody saw that it is not
// there. Without that, nothing is sent for an entry that was published already.
func (k *OwnKey) Forget(ctx context.Context) error {
	if k.take(ctx) != nil {
		return k.outOfTime("look again at", ctx.Err(), nil)
	}
	defer k.give()
	k.view = nil
	return nil
}

// Clear takes the node's key away, from all paths, and returns nil when all of it is gone, the resource or its definition are
// gone, or what is there is somebody else's. It first ends publishing for good (see ErrClosed), then tries until ctx ends, or for ClearTimeout
// if ctx has no deadline. When it fails it may be called again.
//
// A context that ended with the signal to stop is of no use here: take one of its own.
func (k *OwnKey) Clear(ctx context.Context) error {
	k.beginClosing()
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ClearTimeout)
		defer cancel()
	}
	if err := k.takeOver(ctx); err != nil {
		return k.outOfTime("clear", err, errors.New("a publication in flight did not end"))
	}
	defer k.give()
	pauses := backoff{clearBackoff, maxClearBackoff}
	var last error // that says something about the server
	for moved := 0; ; {
		err := k.clear(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		if ctx.Err() != nil {
			return k.outOfTime("clear", ctx.Err(), last)
		}
		if moved++; errors.Is(err, errMoved) && moved < maxMoves {
			continue
		}
		moved = 0
		atLeast, again := tryAgain(err)
		if !again {
			return k.failed(ctx, "clear", err)
		}
		pause := max(pauses.next(), min(atLeast, maxClearBackoff))
		if errors.Is(err, errSettling) {
			if pause = min(k.settled.Sub(k.Now()), remaining(ctx)-lookReserve); pause <= 0 {
				return k.outOfTime("clear", context.DeadlineExceeded, err)
			}
			k.view = nil // look again then
		}
		if k.Wait(ctx, pause) != nil {
			return k.outOfTime("clear", ctx.Err(), last)
		}
	}
}

// clear is one try.
func (k *OwnKey) clear(ctx context.Context) error {
	err := k.clearWhatIsSeen(ctx)
	var failure *RequestError
	if errors.As(err, &failure) && failure.Code == http.StatusNotFound && failure.request.resource == k.target.Resource {
		k.view = nil
		if whyNot := k.resourceGone(ctx, failure); whyNot != nil {
			return whyNot
		}
		return k.unlessUnsettled()
	}
	return err
}

func (k *OwnKey) clearWhatIsSeen(ctx context.Context) error {
	if k.view != nil && k.view.Kept() {
		k.view = nil // the annotation may have been taken off since
	}
	if err := k.look(ctx, clearAttempt); err != nil {
		return err
	}
	theirs, err := k.notOurs(ctx)
	switch {
	case err != nil:
		return err
	case theirs:
		k.Log.Warn("not removed: the entry is another's, since this agent published another one or the Node of this name is another one now",
			zap.String("key", k.node), zap.String("reason", string(NodeReplaced)))
		return k.unlessUnsettled()
	case len(k.view.Entries) == 0:
		return k.unlessUnsettled()
	}
	return k.remove(ctx, OwnKeyCleared)
}

// unlessUnsettled is nil unless a publication may yet take effect.
func (k *OwnKey) unlessUnsettled() error {
	if k.unanswered > 0 && k.Now().Before(k.settled) {
		return errSettling
	}
	return nil
}

// notOurs tells whether the entries found are another's, so that they must stay.
func (k *OwnKey) notOurs(ctx context.Context) (bool, error) {
	if len(k.view.Entries) == 0 {
		return false, nil
	}
	if len(k.forms) > 0 {
		published := k.view.published()
		return published != nil && !k.ours(published), nil
	}
	return k.replaced(ctx)
}

// remove takes the entries out that were seen, and leaves k.view as it is then. Only what the server holds now is removed: the patch tests
// each whole entry.
func (k *OwnKey) remove(ctx context.Context, why Reason) error {
	if k.view.Kept() {
		return ErrKept
	}
	paths := k.target.Paths
	var record Recorder
	if slices.ContainsFunc(k.view.Entries, func(e Entry) bool { return !k.ours(e.Raw) }) {
		record = k.Recorded
	}
	written, err := record.begin()
	if err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	for _, e := range k.view.Entries {
		// Before the write, so that nothing is lost whatever happens in it.
		k.Log.Info("removing", zap.String("key", e.Key), zap.Stringer("path", paths[e.Place].Path), zap.String("reason", string(why)),
			zap.ByteString("entry", e.Raw), zap.String("putBack", putBack(&k.target, k.view.Resource, e)))
	}
	if err := written(); err != nil {
		return fmt.Errorf("nothing was removed: %w", err)
	}
	build := func() []byte { return encode(removal(k.view.Resource, paths, k.view.Entries)) }
	patch := build()
	view, err := k.write(ctx, clearAttempt, patch)
	switch code := codeOf(err); {
	case err == nil:
		k.Log.Info("removed", zap.Int("entries", len(k.view.Entries)), zap.String("reason", string(why)))
		k.see(view)
		return k.unlessUnsettled()
	case code == http.StatusUnprocessableEntity:
		k.view = nil
		if readErr := k.look(ctx, clearAttempt); readErr != nil {
			return readErr
		}
		if bytes.Equal(patch, build()) {
			return err // all that the patch tests is as it was, so it was no test that failed
		}
		return errMoved
	case code != http.StatusConflict && code != http.StatusTooManyRequests:
		k.view = nil
	}
	return err
}

// ClearElsewhere clears the node's key in all other resources of the same kind in its namespace: those that it was published in
// before the agent was given another name. It costs one list, and a GET and a PATCH for each other one that has the key.
func (k *OwnKey) ClearElsewhere(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ClearTimeout)
		defer cancel()
	}
	objects, err := k.client.list(ctx, k.target.Resource, k.target.Namespace)
	if err != nil {
		return k.failed(ctx, "clear others of", err)
	}
	var failures []error
	for _, o := range objects {
		if o.Name == k.target.Names[0] {
			continue
		}
		other, err := NewOwnKey(k.client, k.node, KeyPlace{Resource: k.target.Resource, Namespace: o.Namespace, Name: o.Name, Paths: k.target.Paths})
		if err != nil {
			return err
		}
		other.NodeUID, other.Log, other.Now, other.Wait = k.NodeUID, k.Log, k.Now, k.Wait
		failures = append(failures, other.Clear(ctx))
	}
	return errors.Join(failures...)
}

// see takes in what the server holds, and what that says of publications whose outcome was unknown.
func (k *OwnKey) see(view *ownView) {
	published := view.published()
	if published != nil && k.absent && k.ours(published) {
		k.unanswered = max(0, k.unanswered-1) // it was this one, and each takes effect once at most
	}
	k.view, k.absent = view, published == nil
}

// ours tells whether an entry is one that this OwnKey has published, has tried to, or was to replace.
func (k *OwnKey) ours(raw json.RawMessage) bool {
	return slices.ContainsFunc(k.forms, func(form json.RawMessage) bool { return sameJSON(form, raw) })
}

// claim remembers an entry as one of ours.
func (k *OwnKey) claim(raw json.RawMessage) {
	if raw == nil || k.ours(raw) {
		return
	}
	k.forms = append(k.forms, raw)
	if len(k.forms) > maxOwnForms {
		k.forms = slices.Delete(k.forms, 0, len(k.forms)-maxOwnForms)
	}
}

// take waits for the turn to work on the key.
func (k *OwnKey) take(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := ctx.Err(); err != nil { // both were so, and select took either
		k.give()
		return err
	}
	return nil
}

func (k *OwnKey) give() { <-k.turn }

// takeOver takes the turn from a publication: it lets one in flight have its answer for a while, then cuts it off.
func (k *OwnKey) takeOver(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, min(answerTime, remaining(ctx)/4))
	defer cancel()
	err := k.take(waiting)
	k.beginCut()
	if err != nil {
		err = k.take(ctx)
	}
	return err
}
