package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A TargetWriter writes what the owners of targets found into a SweepReport: when it changed, and at most once a minute for each entry. What
// it writes only informs; two that write the same entry do no harm. A minute after it first wrote an entry, and then every hour or two, it
// looks whether the entry is still as it wrote it: a former owner's write may have come after it, or somebody may have removed it.
// It is safe for concurrent use.
type TargetWriter struct {
	client   *Client
	report   string
	log      *zap.Logger
	interval time.Duration // writeInterval
	settle   time.Duration // settleInterval
	wake     chan struct{} // size 1: entries changed

	mu      sync.Mutex
	entries map[[2]string]*targetEntry // by target and resource; guarded by mu
}

// NewTargetWriter makes a TargetWriter for the SweepReport of that name. It sends nothing.
func NewTargetWriter(client *Client, report string, log *zap.Logger) *TargetWriter {
	return &TargetWriter{
		client: client, report: report, log: log, interval: writeInterval, settle: settleInterval,
		wake: make(chan struct{}, 1), entries: map[[2]string]*targetEntry{},
	}
}

// Set says what a pass found. resource is empty where the target has one owner for all its resources. It never blocks; of what is not yet
// written the latest counts, and removals add up.
func (w *TargetWriter) Set(target, resource string, s TargetStatus) {
	w.mu.Lock()
	e := w.entries[[2]string{target, resource}]
	if e == nil {
		e = &targetEntry{target: target, resource: resource}
		w.entries[[2]string{target, resource}] = e
	}
	e.removed += s.Removed
	s.Removed = 0
	e.next = s
	w.mu.Unlock()
	w.changed()
}

// Again looks soon whether the entries are as they were written: somebody saw that the SweepReport lacks what this process wrote to it. What
// the SweepReport then has as removed counts, and not what this process remembers. It never blocks.
func (w *TargetWriter) Again() {
	w.mu.Lock()
	for _, e := range w.entries {
		e.anew = true
	}
	w.mu.Unlock()
	w.changed()
}

func (w *TargetWriter) changed() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Forget says that another member owns that from now on. What is not yet written is dropped.
func (w *TargetWriter) Forget(target, resource string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.entries, [2]string{target, resource})
}

// Run writes what is due until ctx ends. What fails is logged once and tried again later.
func (w *TargetWriter) Run(ctx context.Context) error {
	retry, said := time.Duration(0), ""
	for w.await(ctx) == nil {
		err := w.writeDue(ctx)
		if err == nil {
			retry, said = 0, ""
			continue
		}
		if ctx.Err() == nil && err.Error() != said {
			w.log.Warn("cannot write to the SweepReport; all else goes on", zap.Error(err))
			said = err.Error()
		}
		retry = max(firstWriteRetry, min(2*retry, maxWriteRetry))
		if waitFor(ctx, jitter(retry)) != nil {
			return nil
		}
	}
	return nil
}

// await returns when something is due for an entry, or ctx ends.
func (w *TargetWriter) await(ctx context.Context) error {
	for ctx.Err() == nil {
		var timer <-chan time.Time // nil, so never, when there is no entry
		if at, any := w.next(); any {
			wait := time.Until(at)
			if wait <= 0 {
				return nil
			}
			timer = time.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-timer:
		}
	}
	return ctx.Err()
}

// next is when there is next something to do for an entry, if there is one.
func (w *TargetWriter) next() (next time.Time, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.entries {
		if at := e.due(w.interval); !any || at.Before(next) {
			next, any = at, true
		}
	}
	return next, any
}

// writeDue does what is due. It stops at the first failure, unless the entry is to blame: that one is tried again later, the others now.
func (w *TargetWriter) writeDue(ctx context.Context) error {
	w.mu.Lock()
	now := time.Now()
	var due []*targetEntry
	for _, e := range w.entries {
		if !e.due(w.interval).After(now) {
			due = append(due, e)
		}
	}
	w.mu.Unlock()
	// When it is needed, and once for all.
	read := sync.OnceValues(func() (map[string]targetInReport, error) {
		there, _, err := w.read(ctx)
		return there, err
	})
	for _, e := range due {
		err := w.writeEntry(ctx, e, read)
		if err != nil && !(blamesEntry(err) && ctx.Err() == nil) {
			return err
		}
		if err != nil && w.putOff(e, err) {
			w.log.Warn("cannot write an entry of the SweepReport; all else goes on",
				zap.String("target", e.target), zap.String("resource", e.resource), zap.Error(err))
		}
	}
	return nil
}

// writeEntry writes an entry, unless a look at the report was due and shows that it is there already.
func (w *TargetWriter) writeEntry(ctx context.Context, e *targetEntry, read func() (map[string]targetInReport, error)) error {
	w.mu.Lock()
	unsure, mine := e.unsure(time.Now()), w.mine(e)
	w.mu.Unlock()
	if unsure && mine {
		there, err := read()
		if err != nil {
			return err
		}
		if w.look(e, there) {
			return nil
		}
	}
	w.mu.Lock()
	s, removed, mine := e.next, e.removed, w.mine(e)
	s.Removed = e.total + removed
	w.mu.Unlock()
	if !mine { // forgotten since
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, entryTime)
	defer cancel()
	if err := w.write(ctx, e.target, e.resource, s); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	// One that took the place of an entry that was forgotten meanwhile knows nothing of this.
	e.removed -= removed
	e.isThere(s, time.Now(), w.settle)
	return nil
}

// look compares an entry with what the report has, and tells whether there is nothing to write.
func (w *TargetWriter) look(e *targetEntry, there map[string]targetInReport) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.look(there, time.Now(), w.settle)
}

// putOff makes an entry wait, and tells whether the reason is news.
func (w *TargetWriter) putOff(e *targetEntry, why error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return e.putOff(why, time.Now())
}

// mine tells whether the entry is still this process's. The caller holds mu.
func (w *TargetWriter) mine(e *targetEntry) bool {
	return w.entries[[2]string{e.target, e.resource}] == e
}

// A targetInReport is a target's entry as a SweepReport has it.
type targetInReport struct {
	TargetStatus
	Resources map[string]TargetStatus `json:"resources"`
}

// read reads the targets' entries, also as they stand there.
func (w *TargetWriter) read(ctx context.Context) (map[string]targetInReport, *reportBody, error) {
	data, err := w.client.bytes(ctx, request{verb: "get", resource: SweepReports, name: w.report, accept: acceptJSON})
	if err != nil {
		return nil, nil, w.explain(err)
	}
	body, err := parseReport(data)
	if err != nil {
		return nil, nil, err
	}
	targets := map[string]targetInReport{}
	for name, raw := range body.Status.Targets {
		var t targetInReport
		if json.Unmarshal(raw, &t) == nil { // one that cannot be read is written anew
			targets[name] = t
		}
	}
	return targets, body, nil
}

// reportBody is what is read of a SweepReport.
type reportBody struct {
	Metadata objectMeta `json:"metadata"`
	Status   struct {
		Targets    map[string]json.RawMessage `json:"targets"`
		Conditions []metav1.Condition         `json:"conditions"`
	} `json:"status"`
}

func parseReport(data []byte) (*reportBody, error) {
	var body reportBody
	if err := json.Unmarshal(data, &body); err != nil {
		return nil, fmt.Errorf("the answer is no SweepReport: %w", err)
	}
	if body.Metadata.UID == "" {
		return nil, errors.New("the answer is no SweepReport: it has no metadata.uid")
	}
	return &body, nil
}

// write writes one entry, and where the target's resources have owners of their own brings the target's sum up to date.
func (w *TargetWriter) write(ctx context.Context, target, resource string, s TargetStatus) error {
	if resource == "" {
		type whole struct {
			TargetStatus
			Resources *struct{} `json:"resources"` // null: there are none any more
		}
		_, err := w.patch(ctx, target, whole{s, nil}, acceptMetadata)
		return err
	}
	answer, err := w.patch(ctx, target, map[string]any{"resources": map[string]any{resource: s}}, acceptJSON)
	if err != nil {
		return err
	}
	body, err := parseReport(answer)
	if err != nil {
		return err
	}
	var t targetInReport
	if err := json.Unmarshal(body.Status.Targets[target], &t); err != nil {
		return fmt.Errorf("read the entry of target %s in the SweepReport: %w", target, err)
	}
	if total := sum(t.Resources); !total.sameBut(t.TargetStatus) {
		_, err = w.patch(ctx, target, total, acceptMetadata)
	}
	return err
}

// patch merges something into a target's entry.
func (w *TargetWriter) patch(ctx context.Context, target string, entry any, accept string) ([]byte, error) {
	return w.merge(ctx, map[string]any{"targets": map[string]any{target: entry}}, accept)
}

func (w *TargetWriter) merge(ctx context.Context, status map[string]any, accept string) ([]byte, error) {
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return nil, fmt.Errorf("encode the patch of SweepReport %s: %w", w.report, err)
	}
	answer, err := w.client.bytes(ctx, request{
		verb: "patch", resource: SweepReports, name: w.report, subresource: "status",
		accept: accept, contentType: "application/merge-patch+json", body: body,
	})
	return answer, w.explain(err)
}

func (w *TargetWriter) explain(err error) error { return explainReport(w.report, err) }

// explainReport says what to do about a failure to read or write a SweepReport.
func explainReport(report string, err error) error {
	var failure *RequestError
	if !errors.As(err, &failure) {
		return err
	}
	switch failure.Code {
	case http.StatusNotFound:
		return fmt.Errorf("there is no SweepReport %s; `unstale crd` prints what to apply: %w", report, err)
	case http.StatusForbidden:
		return fmt.Errorf("%w; the agents need get on sweepreports.unstale.dev and patch on its status", err)
	}
	return err
}

// blamesEntry tells whether a failure is about what was to be written, so that something else may well be written.
func blamesEntry(err error) bool {
	var failure *RequestError
	if !errors.As(err, &failure) || failure.request.verb != "patch" {
		return false
	}
	switch failure.Code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests:
		return false
	}
	return failure.Code/100 == 4
}

func (w *TargetWriter) patchJSON(ctx context.Context, ops []operation) error {
	_, err := w.client.bytes(ctx, request{
		verb: "patch", resource: SweepReports, name: w.report, subresource: "status",
		accept: acceptMetadata, contentType: "application/json-patch+json", body: encode(ops),
	})
	return w.explain(err)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
