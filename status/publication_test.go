package status

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPublicationPatch(t *testing.T) {
	at := paths("status.nodes", "status.list|.")
	for _, test := range []struct{ name, json, want string }{
		{"nothing there", head + `"spec":{}}`, `{"op":"test","path":"/status","value":null},{"op":"add","path":"/status","value":{"nodes":{"n1":{"x":1}}}}`},
		{"a status that is null", head + `"status":null}`, `{"op":"test","path":"/status","value":null},{"op":"add","path":"/status","value":{"nodes":{"n1":{"x":1}}}}`},
		{"no map", head + `"status":{}}`, `{"op":"test","path":"/status/nodes","value":null},{"op":"add","path":"/status/nodes","value":{"n1":{"x":1}}}`},
		{"no entry", head + `"status":{"nodes":{"n2":1}}}`, `{"op":"test","path":"/status/nodes/n1","value":null},{"op":"add","path":"/status/nodes/n1","value":{"x":1}}`},
		{"a null", head + `"status":{"nodes":{"n1":null}}}`, `{"op":"test","path":"/status/nodes/n1","value":null},{"op":"add","path":"/status/nodes/n1","value":{"x":1}}`},
		{"an entry, byte for byte", head + `"status":{"nodes":{"n1":{"b":1.0,"a":"\u003c"}}}}`, `{"op":"test","path":"/status/nodes/n1","value":{"b":1.0,"a":"\u003c"}},{"op":"replace","path":"/status/nodes/n1","value":{"x":1}}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, err := viewOf([]byte(test.json), at, "n1")
			if err != nil {
				t.Fatal(err)
			}
			got := strings.TrimSpace(string(encode(publication(v, at[0].Path, "n1", []byte(`{"x":1}`)))))
			if want := `[{"op":"test","path":"/metadata/uid","value":"u"},` + test.want + `]`; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

func TestSameJSON(t *testing.T) {
	for _, test := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[1,{"c":null}]}`, ` {"b":[1,{"c":null}],"a":1} `, true},
		{`"<"`, `"\u003c"`, true},
		{`{"a":1}`, `{"a":2}`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`{"a":1}`, `{"a":1} {}`, false},
		{`{"a":1}`, ``, false},
		{``, ``, false},
	} {
		if got := sameJSON([]byte(test.a), []byte(test.b)); got != test.same {
			t.Errorf("%s and %s: %t", test.a, test.b, got)
		}
	}
}

func FuzzViewOf(f *testing.F) {
	for _, seed := range []string{head + `"status":{"nodes":{"n1":{"x":1}}}}`, head + `"status":{}}`, head + `"status":null}`, head + `"status":[]}`, `{`} {
		f.Add([]byte(seed))
	}
	at := paths("status.nodes")
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := viewOf(data, at, "n1")
		if err != nil {
			return
		}
		patch := encode(publication(v, at[0].Path, "n1", []byte(`{"x":1}`)))
		if !json.Valid(patch) {
			t.Errorf("%s: the patch is no JSON: %s", data, patch)
		}
	})
}
