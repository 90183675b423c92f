package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
)

const (
	// eventSource is who the events say that they are from.
	eventSource = "unstale"
	// maxQueuedEvents is how many events wait to be sent. They are one for each resource and pass; more are dropped.
	maxQueuedEvents = 100
	// eventStopTime is how long events may still be sent when the recorder ends.
	eventStopTime = 700 * time.Millisecond
	// maxKeysNamed and maxKeysLength bound what an event names; the API server cuts no note, it refuses a long one.
	maxKeysNamed, maxKeysLength = 10, 800
)

// A recorder records events about the shared resources. client-go's correlator counts those that are repeated, puts similar ones
// together, and lets 25 through for an object, then one in five minutes. An event is sent once: what is lost is in the log too.
//
// It does without client-go's broadcaster, whose goroutines begin with its construction and drop what is queued at its end; and
// without its newer package events, which brings the whole clientset.
type recorder struct {
	kube  *kube
	node  string
	log   *zap.Logger
	queue chan *corev1.Event
	// stopTime is how long events may still be sent when Run's context ended; it may be replaced before.
	stopTime time.Duration
}

// newRecorder makes a recorder for the agent of a node. It sends nothing before Run; what is recorded waits.
func newRecorder(k *kube, node string, log *zap.Logger) *recorder {
	return &recorder{kube: k, node: node, log: log, queue: make(chan *corev1.Event, maxQueuedEvents), stopTime: eventStopTime}
}

// removed records that keys were removed from a shared resource. It never blocks.
func (r *recorder) removed(object corev1.ObjectReference, target, reason string, keys []string) {
	r.note(object, reason, removedNote(target, keys))
}

// note records what was done to an object. It never blocks.
func (r *recorder) note(object corev1.ObjectReference, reason, note string) {
	r.record(object, corev1.EventTypeNormal, reason, note)
}

// warn records what an operator should look after at a shared resource. It never blocks.
func (r *recorder) warn(object corev1.ObjectReference, reason, note string) {
	r.record(object, corev1.EventTypeWarning, reason, note)
}

// removedNote names some of the keys that were removed.
func removedNote(target string, keys []string) string {
	var named []string
	length := 0
	for _, key := range keys {
		if length += len(key); len(named) == maxKeysNamed || length > maxKeysLength && len(named) > 0 {
			break
		}
		named = append(named, key)
	}
	what := "keys"
	if len(keys) == 1 {
		what = "key"
	}
	note := fmt.Sprintf("removed %d %s (target %s): %s", len(keys), what, target, strings.Join(named, ", "))
	if more := len(keys) - len(named); more > 0 {
		note += fmt.Sprintf(" and %d more", more)
	}
	return note
}

func (r *recorder) record(object corev1.ObjectReference, kind, reason, note string) {
	now := metav1.Now()
	namespace := object.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // where the API server wants events about cluster-scoped objects
	}
	event := &corev1.Event{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: util.GenerateEventName(object.Name, now.UnixNano()),
		},
		InvolvedObject: object, Type: kind, Reason: reason, Message: note, Count: 1, FirstTimestamp: now, LastTimestamp: now,
		Source: corev1.EventSource{Component: eventSource, Host: r.node}, ReportingController: eventSource, ReportingInstance: r.node,
	}
	select {
	case r.queue <- event:
	default: // the API server is slow, or the recorder has ended
		r.log.Debug("too many events wait; one is dropped", zap.String("name", object.Name), zap.String("reason", reason))
	}
}

// Run sends events until ctx ends, and then what is queued, for less than a second. It returns nil.
func (r *recorder) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(r.stopTime, stop) })()
	correlator := record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{})
	said := map[metav1.StatusReason]bool{} // why events were not written, as far as that is in the log
	for {
		select {
		case event := <-r.queue:
			r.write(sending, correlator, event, said)
			continue
		default:
		}
		select {
		case event := <-r.queue:
			r.write(sending, correlator, event, said)
		case <-ctx.Done():
			return nil
		}
	}
}

// write sends one event, unless the correlator thinks that it is one too many. A failure is logged once for each reason.
func (r *recorder) write(ctx context.Context, correlator *record.EventCorrelator, event *corev1.Event, said map[metav1.StatusReason]bool) {
	correlated, err := correlator.EventCorrelate(event)
	if err != nil || correlated.Skip {
		return // an error is about an update's patch, which cannot be made; the next event is a new one
	}
	err = r.send(ctx, correlator, correlated)
	reason := apierrors.ReasonForError(err)
	if err == nil || said[reason] || ctx.Err() != nil {
		return
	}
	said[reason] = true
	r.log.Warn("an event could not be written to the API server; more that fail so are not logged", zap.String("note", event.Message),
		zap.Error(r.kube.why("record an event in namespace "+event.Namespace, `"create" and "patch" on events`, err)))
}

// send writes a new event, or counts on one that is there.
func (r *recorder) send(ctx context.Context, correlator *record.EventCorrelator, e *record.EventCorrelateResult) error {
	events := []string{"/api/v1/namespaces", e.Event.Namespace, "events"}
	var body []byte
	var err error
	known := e.Event.Count > 1
	if known {
		body, err = r.kube.send(ctx, r.kube.client.Patch(types.StrategicMergePatchType).AbsPath(append(events, e.Event.Name)...).Body(e.Patch))
	}
	if !known || apierrors.IsNotFound(err) { // events live for an hour by default
		e.Event.ResourceVersion = ""
		text, marshalError := json.Marshal(e.Event)
		if marshalError != nil {
			return marshalError
		}
		body, err = r.kube.send(ctx, r.kube.client.Post().AbsPath(events...).SetHeader("Content-Type", "application/json").Body(text))
	}
	if err != nil {
		return err
	}
	var written corev1.Event
	if err := json.Unmarshal(body, &written); err != nil {
		return fmt.Errorf("the answer is no event: %w", err)
	}
	correlator.UpdateState(&written)
	return nil
}
