package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

const head = `{"metadata":{"namespace":"ns","name":"r","uid":"u"},`

func paths(specs ...string) []KeyPath {
	var all []KeyPath
	for _, spec := range specs {
		text, listKey, _ := strings.Cut(spec, "|")
		path, err := ParseFieldPath(text)
		if err != nil {
			panic(err)
		}
		all = append(all, KeyPath{Path: path, ListKey: listKey})
	}
	return all
}

func TestParseResource(t *testing.T) {
	for _, test := range []struct {
		name string
		json string
		at   []KeyPath
		want string // entries as place:key:index:raw
	}{
		{"a map", head + `"status":{"nodes":{"b":{"x":1.0},"a":{}}}}`, paths("status.nodes"), `0:a:-1:{} 0:b:-1:{"x":1.0}`},
		{"items", head + `"status":{"nodes":[{"name":"b"},{"name":"a","y":null}]}}`, paths("status.nodes|name"), `0:b:0:{"name":"b"} 0:a:1:{"name":"a","y":null}`},
		{"strings", head + `"status":{"nodes":["b","a","b"]}}`, paths("status.nodes|."), `0:b:0:"b" 0:a:1:"a" 0:b:2:"b"`},
		{"two places", head + `"status":{"ok":["a"],"bad":{"a":2}}}`, paths("status.ok|.", "status.bad"), `0:a:0:"a" 1:a:-1:2`},
		{"items without a name", head + `"status":{"nodes":[{"name":7},{},null,"x",{"name":"a"}]}}`, paths("status.nodes|name"), `0::0:{"name":7} 0::1:{} 0::2:null 0::3:"x" 0:a:4:{"name":"a"}`},
		{"strings that are none", head + `"status":{"nodes":[1,null,{"name":"a"},"a"]}}`, paths("status.nodes|."), `0::0:1 0::1:null 0::2:{"name":"a"} 0:a:3:"a"`},
		{"a step with dots", head + `"status":{"example.com/x":{"a":1}}}`, paths("status[example.com/x]"), `0:a:-1:1`},
		{"no status", head + `"spec":{}}`, paths("status.nodes"), ``},
		{"a null", head + `"status":{"nodes":null}}`, paths("status.nodes"), ``},
		{"an empty key", head + `"status":{"nodes":{"":1}}}`, paths("status.nodes"), `0::-1:1`},
		{"escapes kept as they came", head + `"status":{"nodes":{"a":"\u003c\u00e9"}}}`, paths("status.nodes"), `0:a:-1:"\u003c\u00e9"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, err := ParseResource([]byte(test.json), test.at)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range r.Entries {
				got = append(got, fmt.Sprintf("%d:%s:%d:%s", e.Place, e.Key, e.Index, e.Raw))
			}
			if strings.Join(got, " ") != test.want {
				t.Errorf("got  %s\nwant %s", strings.Join(got, " "), test.want)
			}
		})
	}
}

func TestParseResourceRefuses(t *testing.T) {
	for _, test := range []struct {
		name, json, want string
		at               []KeyPath
		layout           bool
	}{
		{"a list where a map is meant", head + `"status":{"nodes":[]}}`, "set listKey", paths("status.nodes"), true},
		{"a map where a list is meant", head + `"status":{"nodes":{}}}`, "leave listKey empty", paths("status.nodes|name"), true},
		{"a number on the way", head + `"status":{"nodes":7}}`, "status.nodes has no fields", paths("status.nodes.deep"), true},
		{"no uid", `{"metadata":{"name":"r"}}`, "no metadata.uid", nil, false},
		{"not JSON", `<html>`, "invalid character", nil, false},
		{"cut short", head + `"status":{"nodes":{"a":`, "unexpected end", paths("status.nodes"), false},
		{"a list", `[]`, "cannot unmarshal", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := ParseResource([]byte(test.json), test.at)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			var layout *LayoutError
			if errors.As(err, &layout) != test.layout {
				t.Errorf("a *LayoutError: %v, want %v", !test.layout, test.layout)
			}
		})
	}
}

func TestKept(t *testing.T) {
	for value, want := range map[string]bool{`"true"`: true, `"false"`: false, `""`: false, `"True"`: false} {
		r, err := ParseResource([]byte(`{"metadata":{"name":"r","uid":"u","annotations":{"unstale.dev/keep":`+value+`}}}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		if r.Kept() != want {
			t.Errorf("%s: kept %v, want %v", value, r.Kept(), want)
		}
	}
}

// Whatever the bytes: no panic, and a removal of all entries is a JSON document.
func FuzzParseResource(f *testing.F) {
	f.Add([]byte(head + `"status":{"nodes":{"a":{"x":[1,2]}},"l":[{"name":"a"}],"s":["a"]}}`))
	f.Add([]byte(`{"metadata":{"name":"r","uid":"u","annotations":{"unstale.dev/keep":"true"}},"status":{"l":[null]}}`))
	f.Add([]byte(`{"metadata":{"name":"\ud800","uid":"\\"},"status":{"nodes":{"~/":0}}}`))
	at := paths("status.nodes", "status.l|name", "status.s|.")
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseResource(data, at)
		if err != nil {
			return
		}
		if patch := encode(removal(r, at, r.Entries)); !json.Valid(patch) {
			t.Errorf("the patch is no JSON: %s", patch)
		}
		target := &Target{Paths: at}
		for _, e := range r.Entries {
			if putBack(target, r, e) == "" {
				t.Error("nothing puts it back")
			}
		}
	})
}
