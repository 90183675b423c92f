package status

import (
	"fmt"
	"strings"
	"testing"
)

func TestReadMetadataPage(t *testing.T) {
	for _, test := range []struct {
		name, json, want, err string
	}{
		{"a page", `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"continue":"next"},"items":[{"metadata":{"name":"a","uid":"1","managedFields":[{"x":1}]}},{"metadata":{"name":"b","namespace":"n","uid":"2"}}]}`, "a/1 n:b/2 -> next", ""},
		{"the fields in another order", `{"items":[{"metadata":{"name":"a","uid":"1"}}],"metadata":{},"kind":"PartialObjectMetadataList"}`, "a/1 -> ", ""},
		{"no items", `{"kind":"PartialObjectMetadataList","metadata":{},"items":null}`, "-> ", ""},
		{"another kind", `{"kind":"NodeList","items":[]}`, "", `not a list of metadata but "NodeList"`},
		{"no kind", `{"items":[]}`, "", "not a list of metadata"},
		{"an item without a uid", `{"kind":"PartialObjectMetadataList","items":[{"metadata":{"name":"a"}}]}`, "", "no uid"},
		{"cut between items", `{"kind":"PartialObjectMetadataList","items":[{"metadata":{"name":"a","uid":"1"}}`, "", "unexpected EOF"},
		{"cut after the items", `{"kind":"PartialObjectMetadataList","items":[]`, "", "unexpected EOF"},
		{"cut within an item", `{"kind":"PartialObjectMetadataList","items":[{"meta`, "", "EOF"},
		{"nothing", ``, "", "unexpected EOF"},
		{"HTML", `<html>`, "", "invalid character"},
		{"items that are no list", `{"kind":"PartialObjectMetadataList","items":{}}`, "", "not a list"},
	} {
		t.Run(test.name, func(t *testing.T) {
			page, err := readPage(strings.NewReader(test.json), false, nameItem)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("got %v, want an error with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got strings.Builder
			for _, o := range page.items {
				if o.Namespace != "" {
					got.WriteString(o.Namespace + ":")
				}
				fmt.Fprintf(&got, "%s/%s ", o.Name, o.UID)
			}
			if got := got.String() + "-> " + page.next; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func FuzzReadMetadataPage(f *testing.F) {
	f.Add([]byte(`{"kind":"PartialObjectMetadataList","metadata":{"continue":"x"},"items":[{"metadata":{"name":"a","uid":"1"}}]}`))
	f.Add([]byte(`{"kind":"PartialObjectMetadataList","items":[`))
	f.Fuzz(func(t *testing.T, data []byte) {
		page, err := readPage(strings.NewReader(string(data)), false, nameItem)
		for _, o := range page.items {
			if err == nil && (o.Name == "" || o.UID == "") {
				t.Errorf("an object without a name or uid: %+v", o)
			}
		}
	})
}
