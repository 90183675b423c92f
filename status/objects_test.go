package status

import (
	"encoding/json"
	"strings"
	"testing"
)

// What counts of an object, from its JSON.
func TestObject(t *testing.T) {
	const head = `{"metadata": {"namespace": "ns", "name": "o", "uid": "u", "resourceVersion": "7"`
	for _, test := range []struct {
		name string
		in   NodeNameIn
		text string
		node string
		stay Reason
		err  bool
	}{
		{"by name", NodeNameIn{Name: true}, head + "}}", "o", "", false},
		{"by label", NodeNameIn{Label: "l"}, head + `, "labels": {"l": "n"}}}`, "n", "", false},
		{"without the label", NodeNameIn{Label: "l"}, head + `, "labels": null}}`, "", "", false},
		{"by an annotation", NodeNameIn{Field: FieldPath{"metadata", "annotations", "a/b"}}, head + `, "annotations": {"a/b": "n"}}}`, "n", "", false},
		{"by a label's path", NodeNameIn{Field: FieldPath{"metadata", "labels", "l"}}, head + `, "labels": {"l": "n"}}}`, "n", "", false},
		{"by the path of its name", NodeNameIn{Field: FieldPath{"metadata", "name"}}, head + `}}`, "o", "", false},
		{"by its namespace", NodeNameIn{Field: FieldPath{"metadata", "namespace"}}, head + `}}`, "ns", "", false},
		{"by other metadata", NodeNameIn{Field: FieldPath{"metadata", "generation"}}, head + `, "generation": 1}}`, "", "", false},
		{"by a field", NodeNameIn{Field: FieldPath{"spec", "nodeName"}}, head + `}, "spec": {"nodeName": "n"}}`, "n", "", false},
		{"by a field of another type", NodeNameIn{Field: FieldPath{"spec", "nodeName"}}, head + `}, "spec": {"nodeName": 1}}`, "", "", false},
		{"by a field in no object", NodeNameIn{Field: FieldPath{"spec", "nodeName"}}, head + `}, "spec": []}`, "", "", false},
		{"by the Node that owns it", NodeNameIn{Field: OwnerNode}, head + `, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Node", "name": "x"}, {"apiVersion": "v1", "kind": "Node", "name": "n"}]}}`, "n", "", false},
		{"finalizers", NodeNameIn{Name: true}, head + `, "finalizers": ["f"]}}`, "o", Finalizers, false},
		{"deleted", NodeNameIn{Name: true}, head + `, "finalizers": ["f"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}`, "o", BeingDeleted, false},
		{"kept", NodeNameIn{Name: true}, head + `, "annotations": {"keep": "x"}}}`, "o", KeptByOwner, false},
		{"no uid", NodeNameIn{Name: true}, `{"metadata": {"name": "o", "resourceVersion": "7"}}`, "", "", true},
		{"no version", NodeNameIn{Name: true}, `{"metadata": {"name": "o", "uid": "u"}}`, "", "", true},
		{"nothing", NodeNameIn{Name: true}, `{}`, "", "", true},
		{"no object", NodeNameIn{Field: FieldPath{"spec", "nodeName"}}, `[]`, "", "", true},
	} {
		o, err := (&Objects{NodeName: test.in, KeepAnnotation: "keep"}).item(json.NewDecoder(strings.NewReader(test.text)))
		if (err != nil) != test.err || o.node != test.node || o.stays.Reason != test.stay {
			t.Errorf("%s: node %q, stays %+v, error %v", test.name, o.node, o.stays, err)
		}
	}
}

// Whatever a server sends, nothing panics, and an object that is taken has what its deletion needs.
func FuzzObject(f *testing.F) {
	f.Add(`{"metadata": {"name": "o", "uid": "u", "resourceVersion": "7", "ownerReferences": [{"kind": "Node"}]}, "spec": {"nodeName": "n"}}`, "spec.nodeName")
	f.Add(`{"metadata": {"name": "o", "uid": "u", "resourceVersion": "7", "annotations": {"a": "b"}}}`, "metadata.annotations.a")
	f.Fuzz(func(t *testing.T, text, field string) {
		path, err := ParseFieldPath(field)
		if err != nil {
			return
		}
		for _, in := range []NodeNameIn{{Field: path}, {Name: true}, {Label: field}} {
			o, err := (&Objects{NodeName: in}).item(json.NewDecoder(strings.NewReader(text)))
			if err == nil && (o.Name == "" || o.uid == "" || o.version == "") {
				t.Errorf("%+v", o)
			}
		}
	})
}
