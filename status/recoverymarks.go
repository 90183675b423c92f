package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// recoveryMarks are what has to outlive a pruner, in a SweepReport.
type recoveryMarks struct {
	HighWaterMark int64        `json:"highWaterMark"`          // the most Nodes that there were
	LastDeletion  *metav1.Time `json:"lastDeletion,omitempty"` // by the API server's clock
}

// lastDeletion is zero where there was none.
func (m *recoveryMarks) lastDeletion() time.Time {
	if m.LastDeletion == nil {
		return time.Time{}
	}
	return m.LastDeletion.Time
}

// A marksAt are marks as they stand in a SweepReport, so that a write can test that they are still those.
type marksAt struct {
	recoveryMarks
	status bool            // the report has a status
	raw    json.RawMessage // nil: there are no marks
}

// readMarks reads the marks.
func (r *Recovery) readMarks(ctx context.Context) (marksAt, error) {
	data, err := r.client.bytes(ctx, request{verb: "get", resource: SweepReports, name: r.Report, accept: acceptJSON})
	if err != nil {
		return marksAt{}, explainReport(r.Report, err)
	}
	var body struct {
		Metadata objectMeta `json:"metadata"`
		Status   *struct {
			Recovery json.RawMessage `json:"recovery"`
		} `json:"status"`
	}
	if err := json.Unmarshal(data, &body); err != nil {
		return marksAt{}, fmt.Errorf("read SweepReport %s: %w", r.Report, err)
	}
	if body.Metadata.UID == "" {
		return marksAt{}, fmt.Errorf("read SweepReport %s: the answer is none", r.Report)
	}
	at := marksAt{status: body.Status != nil}
	if at.status && len(body.Status.Recovery) > 0 && string(body.Status.Recovery) != "null" {
		at.raw = body.Status.Recovery
		if err := json.Unmarshal(at.raw, &at.recoveryMarks); err != nil {
			return marksAt{}, fmt.Errorf("read status.recovery of SweepReport %s: %w", r.Report, err)
		}
	}
	return at, nil
}

// errMarksChanged is why marks were not written: somebody else wrote them since.
var errMarksChanged = errors.New("another pruner has written status.recovery of the SweepReport meanwhile")

// writeMarks writes marks, if those that were read are still there: of two pruners at once one fails.
func (r *Recovery) writeMarks(ctx context.Context, was marksAt, next recoveryMarks) (marksAt, error) {
	value, err := json.Marshal(next)
	if err != nil {
		return was, err
	}
	null := json.RawMessage("null")
	ops := []operation{{"test", "/status/recovery", null}, {"add", "/status/recovery", value}}
	switch {
	case !was.status:
		whole, err := json.Marshal(map[string]json.RawMessage{"recovery": value})
		if err != nil {
			return was, err
		}
		ops = []operation{{"test", "/status", null}, {"add", "/status", whole}}
	case was.raw != nil:
		ops = []operation{{"test", "/status/recovery", was.raw}, {"replace", "/status/recovery", value}}
	}
	_, err = r.client.bytes(ctx, request{
		verb: "patch", resource: SweepReports, name: r.Report, subresource: "status",
		accept: acceptMetadata, contentType: "application/json-patch+json", body: encode(ops),
	})
	var failure *RequestError
	switch {
	case errors.As(err, &failure) && failure.Code == http.StatusUnprocessableEntity:
		return was, errMarksChanged
	case err != nil:
		return was, explainReport(r.Report, err)
	}
	return marksAt{next, true, value}, nil
}
