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
// it writes only informs; two that write the same entry do no harm. It is safe for concurrent use.
type TargetWriter struct {
	client   *Client
	report   string
	log      *zap.Logger
	interval time.Duration // writeInterval
	wake     chan struct{} // size 1: entries changed

	mu      sync.Mutex
	entries map[[2]string]*targetEntry // by target and resource; guarded by mu
}

// NewTargetWriter makes a TargetWriter for the SweepReport of that name. It sends nothing.
func NewTargetWriter(client *Client, report string, log *zap.Logger) *TargetWriter {
	return &TargetWriter{
		client: client, report: report, log: log, interval: writeInterval,
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

// await returns when an entry is due, or ctx ends.
func (w *TargetWriter) await(ctx context.Context) error {
	for ctx.Err() == nil {
		var timer <-chan time.Time // nil, so never, when nothing is due
		if at, due := w.next(); due {
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

// next is when the next entry is due, if one is.
func (w *TargetWriter) next() (next time.Time, any bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.entries {
		if at, due := e.due(w.interval); due && (!any || at.Before(next)) {
			next, any = at, true
		}
	}
	return next, any
}

// writeDue writes the entries that are due. It stops at the first that fails.
func (w *TargetWriter) writeDue(ctx context.Context) error {
	w.mu.Lock()
	now := time.Now()
	var due []*targetEntry
	for _, e := range w.entries {
		if at, changed := e.due(w.interval); changed && !at.After(now) {
			due = append(due, e)
		}
	}
	w.mu.Unlock()
	var before map[string]targetInReport // as it was in the report; read when it is needed
	for _, e := range due {
		if !e.known {
			if before == nil {
				var err error
				if before, _, err = w.read(ctx); err != nil {
					return err
				}
			}
			// Once, and not again when the write fails: it may have been done all the same, and would then count twice.
			e.known, e.total = true, before[e.target].Removed
			if e.resource != "" {
				e.total = before[e.target].Resources[e.resource].Removed
			}
		}
		w.mu.Lock()
		s, removed, mine := e.next, e.removed, w.entries[[2]string{e.target, e.resource}] == e
		w.mu.Unlock()
		if !mine { // forgotten since
			continue
		}
		s.Removed = e.total + removed
		if err := w.write(ctx, e.target, e.resource, s); err != nil {
			return err
		}
		w.written(e, s, removed)
	}
	return nil
}

// written remembers what was written. An entry that was forgotten meanwhile is nobody's; one that took its place knows nothing of this.
func (w *TargetWriter) written(e *targetEntry, s TargetStatus, removed int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e.removed -= removed
	e.total = s.Removed
	s.Removed = 0
	e.written, e.writtenAt = &s, time.Now()
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

// explain says what to do about a failure.
func (w *TargetWriter) explain(err error) error {
	var failure *RequestError
	if !errors.As(err, &failure) {
		return err
	}
	switch failure.Code {
	case http.StatusNotFound:
		return fmt.Errorf("there is no SweepReport %s; `unstale crd` prints what to apply: %w", w.report, err)
	case http.StatusForbidden:
		return fmt.Errorf("%w; the agents need get on sweepreports.unstale.dev and patch on its status", err)
	}
	return err
}

// Drop removes the entries of targets other than those, as they were read: what somebody wrote meanwhile stays.
func (w *TargetWriter) Drop(ctx context.Context, keep []string) error {
	_, body, err := w.read(ctx)
	if err != nil {
		return err
	}
	ops := []operation{{"test", "/metadata/uid", quote(body.Metadata.UID)}}
	for _, name := range sortedKeys(body.Status.Targets) {
		if !slices.Contains(keep, name) {
			at := pointer(FieldPath{"status", "targets", name})
			ops = append(ops, operation{"test", at, body.Status.Targets[name]}, operation{"remove", at, nil})
		}
	}
	if len(ops) == 1 {
		return nil
	}
	return w.patchJSON(ctx, ops)
}

func (w *TargetWriter) patchJSON(ctx context.Context, ops []operation) error {
	_, err := w.client.bytes(ctx, request{
		verb: "patch", resource: SweepReports, name: w.report, subresource: "status",
		accept: acceptMetadata, contentType: "application/json-patch+json", body: encode(ops),
	})
	return w.explain(err)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
