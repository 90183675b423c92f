package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
)

// An ownView is a shared resource as one node sees it: its own entries, and what else its writes test.
type ownView struct {
	*Resource // Entries are those of the node's own key only

	depth int // how many steps of the first path are there: all of them, or those before the first container that is missing
}

// viewOf takes the JSON of a resource apart for one node.
func viewOf(data []byte, paths []KeyPath, node string) (*ownView, error) {
	r, err := ParseResource(data, paths)
	if err != nil {
		return nil, err
	}
	r.Entries = slices.DeleteFunc(r.Entries, func(e Entry) bool { return e.Key != node })
	v := &ownView{Resource: r}
	for path := paths[0].Path; v.depth < len(path); v.depth++ {
		value, err := lookUp(data, path[:v.depth+1])
		if err != nil {
			return nil, err
		}
		if isNull(value) {
			break
		}
	}
	return v, nil
}

// published is the node's entry at the first path, which is the one that is published; nil where there is none.
func (v *ownView) published() json.RawMessage {
	for _, e := range v.Entries {
		if e.Place == 0 && !isNull(e.Raw) {
			return e.Raw
		}
	}
	return nil
}

// publication is the guarded JSON Patch that makes raw the node's entry in the map at path. The server refuses it as a whole
// (422) when the resource is another one of the same name, or when the entry is not what was seen. Containers that are
// missing come with it, guarded likewise: a test for null passes where a field is absent, if what should hold it is there.
// Nothing else of the resource is tested, so that nodes that publish at the same time do not refuse one another.
func publication(v *ownView, path FieldPath, node string, raw json.RawMessage) []operation {
	at := append(slices.Clone(path), node)
	op, seen, value := "add", json.RawMessage("null"), raw
	if v.depth < len(path) {
		for _, step := range slices.Backward(at[v.depth+1:]) {
			value = fmt.Appendf(nil, "{%s:%s}", quote(step), value)
		}
		at = at[:v.depth+1]
	} else if old := v.published(); old != nil {
		op, seen = "replace", old
	}
	return []operation{
		{"test", "/metadata/uid", quote(v.UID)},
		{"test", pointer(at), seen},
		{op, pointer(at), value},
	}
}

// encodeEntry is an entry's JSON.
func encodeEntry(entry any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(entry); err != nil {
		return nil, fmt.Errorf("the entry cannot be written as JSON: %w", err)
	}
	raw := bytes.TrimSpace(b.Bytes())
	if isNull(raw) {
		return nil, errors.New("the entry is null, which says the same as no entry; call Clear to take the key away")
	}
	return raw, nil
}

func isNull(raw json.RawMessage) bool {
	return raw == nil || bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

// sameJSON tells whether two JSON values say the same, whatever the order of their fields.
func sameJSON(a, b json.RawMessage) bool {
	x, errX := decodeJSON(a)
	y, errY := decodeJSON(b)
	return errX == nil && errY == nil && reflect.DeepEqual(x, y)
}

// decodeJSON keeps numbers as they are written: a float64 takes different large ones for the same.
func decodeJSON(raw json.RawMessage) (value any, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&value); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one value")
	}
	return value, nil
}
