package status

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func parsed(t *testing.T, json string, at []KeyPath) *Resource {
	t.Helper()
	r, err := ParseResource([]byte(json), at)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRemovalPatch(t *testing.T) {
	at := paths("status.nodes", "status.list|name", "status[a/b~c]|.")
	for _, test := range []struct {
		name, json string
		want       []string
	}{
		{"a map, without annotations", head + `"status":{"nodes":{"a":{"x":"<é>"}}}}`, []string{
			`{"op":"test","path":"/metadata/uid","value":"u"}`,
			`{"op":"test","path":"/metadata/annotations","value":null}`,
			`{"op":"test","path":"/status/nodes/a","value":{"x":"<é>"}}`,
			`{"op":"remove","path":"/status/nodes/a"}`,
		}},
		{"lists from the highest index down, places in order", head + `"status":{"list":[{"name":"a"},{"name":"b"}],"a/b~c":["a","b","a"],"nodes":{"b":null}}}`, []string{
			`{"op":"test","path":"/metadata/uid","value":"u"}`,
			`{"op":"test","path":"/metadata/annotations","value":null}`,
			`{"op":"test","path":"/status/nodes/b","value":null}`,
			`{"op":"remove","path":"/status/nodes/b"}`,
			`{"op":"test","path":"/status/list/1","value":{"name":"b"}}`,
			`{"op":"remove","path":"/status/list/1"}`,
			`{"op":"test","path":"/status/list/0","value":{"name":"a"}}`,
			`{"op":"remove","path":"/status/list/0"}`,
			`{"op":"test","path":"/status/a~1b~0c/2","value":"a"}`,
			`{"op":"remove","path":"/status/a~1b~0c/2"}`,
			`{"op":"test","path":"/status/a~1b~0c/1","value":"b"}`,
			`{"op":"remove","path":"/status/a~1b~0c/1"}`,
			`{"op":"test","path":"/status/a~1b~0c/0","value":"a"}`,
			`{"op":"remove","path":"/status/a~1b~0c/0"}`,
		}},
		{"annotations without ours", `{"metadata":{"name":"r","uid":"u","annotations":{"x":"y"}}}`, []string{
			`{"op":"test","path":"/metadata/uid","value":"u"}`,
			`{"op":"test","path":"/metadata/annotations/unstale.dev~1keep","value":null}`,
		}},
		{"ours, but not true", `{"metadata":{"name":"r","uid":"u","annotations":{"unstale.dev/keep":"no"}}}`, []string{
			`{"op":"test","path":"/metadata/uid","value":"u"}`,
			`{"op":"test","path":"/metadata/annotations/unstale.dev~1keep","value":"no"}`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := parsed(t, test.json, at)
			got := string(encode(removal(r, at, r.Entries)))
			if want := "[" + strings.Join(test.want, ",") + "]\n"; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// The largest patch that the limits allow is one that the server takes.
func TestRemovalPatchStaysBelowTheServersLimit(t *testing.T) {
	at := paths("status.nodes")
	r := &Resource{UID: "u", Entries: make([]Entry, MaxRemovalsLimit)}
	for i := range r.Entries {
		r.Entries[i] = Entry{Key: "a", Index: -1, Raw: []byte("1")}
	}
	if got := len(removal(r, at, r.Entries)); got > 10_000 {
		t.Errorf("%d operations, the server takes 10,000", got)
	}
}

func TestPutBack(t *testing.T) {
	at := paths("status.nodes", "status.list|name")
	r := parsed(t, head+`"status":{"nodes":{"a":{"errors":"it's"}},"list":[{"name":"b"}]}}`, at)
	target := &Target{Paths: at, Resource: schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "things"}}
	for i, want := range []string{
		`kubectl patch things.v1.g.io r --namespace ns --subresource status --type json --patch '[{"op":"test","path":"/status/nodes/a","value":null},{"op":"add","path":"/status/nodes/a","value":{"errors":"it'\''s"}}]'`,
		`kubectl patch things.v1.g.io r --namespace ns --subresource status --type json --patch '[{"op":"add","path":"/status/list/-","value":{"name":"b"}}]'`,
	} {
		if got := putBack(target, r, r.Entries[i]); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	long := Entry{Key: "a", Index: -1, Raw: quote(strings.Repeat("x", maxArgument))}
	if got := putBack(target, r, long); !strings.HasPrefix(got, "printf %s '[{") || !strings.HasSuffix(got, " --type json --patch-file /dev/stdin") {
		t.Errorf("an entry too long for an argument: %s…%s", got[:40], got[len(got)-80:])
	}
}
