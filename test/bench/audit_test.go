package main

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const someEvents = `{"kind":"Event","auditID":"1","stage":"ResponseComplete","requestURI":"/apis/config.nri/v1alpha1/namespaces/bench/topologyawarepolicies/a","verb":"get","userAgent":"unstale/v1 (linux/amd64)","objectRef":{"resource":"topologyawarepolicies","namespace":"bench","name":"a","apiGroup":"config.nri","apiVersion":"v1alpha1"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-07-01T12:00:10.000000Z"}
{"auditID":"2","stage":"ResponseComplete","requestURI":"/x","verb":"patch","userAgent":"unstale/v1 (linux/amd64)","objectRef":{"resource":"topologyawarepolicies","apiGroup":"config.nri","subresource":"status"},"requestReceivedTimestamp":"2026-07-01T12:00:15.000000Z"}
{"auditID":"3","stage":"ResponseStarted","requestURI":"/api/v1/nodes?watch=1","verb":"watch","userAgent":"unstale/v1","objectRef":{"resource":"nodes"},"requestReceivedTimestamp":"2026-07-01T12:00:19.999999Z"}
{"auditID":"3","stage":"ResponseComplete","requestURI":"/api/v1/nodes?watch=1","verb":"watch","userAgent":"unstale/v1","objectRef":{"resource":"nodes"},"requestReceivedTimestamp":"2026-07-01T12:00:19.999999Z"}
{"auditID":"4","stage":"ResponseComplete","requestURI":"/version?timeout=1s","verb":"get","userAgent":"unstale/v1","requestReceivedTimestamp":"2026-07-01T12:00:12Z"}
{"auditID":"5","stage":"ResponseComplete","requestURI":"/version","verb":"get","userAgent":"unstale-other/v1","requestReceivedTimestamp":"2026-07-01T12:00:12Z"}
{"auditID":"6","stage":"ResponseComplete","requestURI":"/version","verb":"get","userAgent":"kube-apiserver/v1 unstale/v1","requestReceivedTimestamp":"2026-07-01T12:00:12Z"}
{"auditID":"7","stage":"ResponseComplete","requestURI":"/early","verb":"get","userAgent":"unstale/v1","requestReceivedTimestamp":"2026-07-01T12:00:09.999999Z"}
{"auditID":"8","stage":"ResponseComplete","requestURI":"/late","verb":"get","userAgent":"unstale/v1","requestReceivedTimestamp":"2026-07-01T12:00:20.000000Z"}
{"auditID":"9","stage":"ResponseComplete","requestURI":"/cut","verb":"get","userAgent":"unst`

func TestAuditCounts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(someEvents), 0o600); err != nil {
		t.Fatal(err)
	}
	from := time.Date(2026, 7, 1, 12, 0, 10, 0, time.UTC)
	got, err := auditLog(path).counts("unstale", from, from.Add(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"GET topologyawarepolicies.config.nri": 1, "PATCH topologyawarepolicies.config.nri/status": 1, "WATCH nodes": 1, "GET /version": 1,
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestAuditCountsOfABrokenLog(t *testing.T) {
	if _, err := auditLog(filepath.Join(t.TempDir(), "absent")).counts("unstale", time.Time{}, time.Now()); err == nil {
		t.Error("no error without a log")
	}
	_, err := countEvents(strings.NewReader("{}\nnonsense\n"), func(*auditEvent) bool { return true })
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("error %v, want one that shows the line", err)
	}
}
