package agent

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/unstale/unstale/status"
)

// numbered are findings with the keys k<from> up to, not including, k<to>.
func numbered(from, to int) []status.Finding {
	var findings []status.Finding
	for i := from; i < to; i++ {
		findings = append(findings, status.Finding{Key: fmt.Sprintf("k%d", i), Verdict: status.Wait, Reason: status.Waiting})
	}
	return findings
}

func keysOf(decisions []Decision) string {
	var keys []string
	for _, d := range decisions {
		keys = append(keys, d.Key)
	}
	return strings.Join(keys, " ")
}

func TestDecisionsAreTheLatest(t *testing.T) {
	all := decisionFilter{limit: maxDecisions}
	d := newDecisions("n1")
	if found := d.find(all); found == nil || len(found) != 0 {
		t.Errorf("at first: %v, want an empty list", found)
	}
	now := time.Now()
	d.add(now, "a", "ns", "one", numbered(0, 3))
	if got := keysOf(d.find(all)); got != "k2 k1 k0" {
		t.Errorf("got %q, want the newest first", got)
	}
	d.add(now, "a", "ns", "one", numbered(3, maxDecisions+5))
	found := d.find(all)
	if len(found) != maxDecisions || found[0].Key != fmt.Sprintf("k%d", maxDecisions+4) || found[maxDecisions-1].Key != "k5" {
		t.Errorf("got %d from %s to %s, want the last %d", len(found), found[0].Key, found[len(found)-1].Key, maxDecisions)
	}
	d.add(now, "a", "ns", "one", numbered(maxDecisions+5, 5*maxDecisions))
	if found := d.find(decisionFilter{limit: 2}); keysOf(found) != fmt.Sprintf("k%d k%d", 5*maxDecisions-1, 5*maxDecisions-2) {
		t.Errorf("got %q, want the last two", keysOf(found))
	}
}

func TestDecisionsAreFiltered(t *testing.T) {
	d := newDecisions("n1")
	now := time.Now()
	d.add(now, "a", "ns", "one", []status.Finding{{Key: "k1", Reason: status.NodeGone}, {Key: "k2", Reason: status.Waiting}})
	d.add(now, "b", "ns", "one", []status.Finding{{Key: "k1", Reason: status.Waiting}, {Key: "k3", Reason: status.NodeGone}})
	for query, want := range map[string]string{
		"":                                    "k3 k1 k2 k1",
		"target=a":                            "k2 k1",
		"key=k1":                              "k1 k1",
		"reason=NodeGone":                     "k3 k1",
		"target=b&key=k1&reason=Waiting":      "k1",
		"target=b&key=k2":                     "",
		"limit=3":                             "k3 k1 k2",
		"limit=1&reason=NodeGone&target=a":    "k1",
		"key=":                                "k3 k1 k2 k1",
		fmt.Sprintf("limit=%d", maxDecisions): "k3 k1 k2 k1",
	} {
		filter, err := parseDecisionFilter(query)
		if err != nil {
			t.Errorf("?%s: %v", query, err)
		} else if got := keysOf(d.find(filter)); got != want {
			t.Errorf("?%s: got %q, want %q", query, got, want)
		}
	}
}

func TestDecisionFilterErrors(t *testing.T) {
	for query, want := range map[string]string{
		"limit=abc":        "limit must be a number from 1 to 1000",
		"limit=0":          "limit must be a number from 1 to 1000",
		"limit=-1":         "limit must be a number from 1 to 1000",
		"limit=1001":       "limit must be a number from 1 to 1000",
		"limit=":           "limit must be a number from 1 to 1000",
		"node=n1":          "allowed are target, key, reason, limit",
		"Key=n1":           "allowed are target, key, reason, limit",
		"key=n1&key=n2":    "parameter key is given 2 times",
		"key=%zz":          "the query cannot be read",
		"limit=1;limit=2":  "the query cannot be read",
		"=":                "allowed are target, key, reason, limit",
		"limit=1&limit=99": "parameter limit is given 2 times",
	} {
		if _, err := parseDecisionFilter(query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("?%s: got %v, want an error with %q", query, err, want)
		}
	}
	if _, err := parseDecisionFilter("x" + strings.Repeat("%00", 5000)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("a huge parameter makes an error of %d bytes", len(err.Error()))
	}
}

func FuzzDecisionFilter(f *testing.F) {
	for _, query := range []string{"", "target=a&limit=2", "limit=abc", "key=%zz", "a;b", "reason=NodeGone&reason=x"} {
		f.Add(query)
	}
	d := newDecisions("n1")
	d.add(time.Now(), "a", "ns", "one", numbered(0, 10))
	f.Fuzz(func(t *testing.T, query string) {
		filter, err := parseDecisionFilter(query)
		if err == nil && (filter.limit < 1 || filter.limit > maxDecisions) {
			t.Fatalf("%q gives the limit %d", query, filter.limit)
		}
		d.find(filter)
	})
}

// What is read while others write is whole. The race detector holds the rest.
func TestDecisionsAtTheSameTime(t *testing.T) {
	d := newDecisions("n1")
	var working sync.WaitGroup
	for range 4 {
		working.Go(func() {
			for i := range 500 {
				d.add(time.Now(), "a", "ns", "one", numbered(i, i+3))
			}
		})
		working.Go(func() {
			for range 100 {
				for _, found := range d.find(decisionFilter{limit: 10}) {
					if found.Target != "a" || found.Key == "" {
						t.Errorf("half a decision: %+v", found)
					}
				}
			}
		})
	}
	working.Wait()
	if n := len(d.find(decisionFilter{limit: maxDecisions})); n != maxDecisions {
		t.Errorf("%d decisions are left, want %d", n, maxDecisions)
	}
}

// TestDecisionsAnswer holds the JSON that others read. go test ./agent -update writes the golden file.
func TestDecisionsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // for the clock
		d := newDecisions("n1")
		since := time.Now().Add(-time.Minute)
		local := time.Now().In(time.FixedZone("elsewhere", 3600))
		d.add(local, "nri", "ns", "default", []status.Finding{
			{Key: "gone", Path: "status.nodes", Verdict: status.Remove, Reason: status.NodeGone, Message: "its Node is gone", Since: since.UTC(), Removed: true},
			{Key: "alive", Path: "status.nodes", Verdict: status.Keep, Reason: status.MemberAlive, Message: `<its "agent" is alive>`},
		})
		for query, file := range map[string]string{"": "decisions.json", "?key=nobody": "decisions-none.json"} {
			answer := httptest.NewRecorder()
			newDebugHandler("n1", nil, d, false).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/debug/decisions"+query, nil))
			if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != "application/json" {
				t.Errorf("status %d, content type %s", answer.Code, answer.Header().Get("Content-Type"))
			}
			checkGolden(t, file, answer.Body.String())
		}
	})
}

// checkGolden compares with a file in testdata, or writes it.
func checkGolden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(filepath.Join("testdata", file), []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := string(readTestFile(t, file)); got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", file, got, want)
	}
}
