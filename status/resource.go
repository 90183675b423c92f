package status

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// KeepAnnotation on a shared resource, set to "true", keeps everything in it.
const KeepAnnotation = "unstale.dev/keep"

// A Resource is one shared resource as it was read at one moment. Only what concerns the target is kept of it.
type Resource struct {
	types.NamespacedName
	Type    metav1.TypeMeta // as the object says it
	UID     string
	Entries []Entry

	has       []bool  // for each of the target's paths: there is something
	annotated bool    // it has annotations
	keep      *string // the value of KeepAnnotation, nil where it is absent
}

// An Entry is what one key has at one place of the resource.
type Entry struct {
	Key   string          // the node name; "" for an item of a list that names none
	Place int             // which of the target's paths, from 0
	Index int             // in a list: the position from 0; in a map: -1
	Raw   json.RawMessage // the whole entry, byte for byte as the API server sent it
}

// Kept tells whether the resource carries the keep annotation.
func (r *Resource) Kept() bool { return r.keep != nil && *r.keep == "true" }

// A LayoutError says that a resource does not look as the target's configuration says.
type LayoutError struct {
	Path FieldPath
	Text string
}

func (e *LayoutError) Error() string { return e.Path.String() + " " + e.Text }

// ParseResource takes the JSON of a resource apart. A path that is absent or null has no entries; one that holds another
// kind of value than the target says is a *LayoutError. Any bytes may be passed.
func ParseResource(data []byte, paths []KeyPath) (*Resource, error) {
	var head struct {
		metav1.TypeMeta
		Metadata struct {
			Namespace   string            `json:"namespace"`
			Name        string            `json:"name"`
			UID         string            `json:"uid"`
			Annotations map[string]string `json:"annotations"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("read the resource's JSON: %w", err)
	}
	m := head.Metadata
	if m.Name == "" || m.UID == "" {
		return nil, errors.New("read the resource's JSON: it has no metadata.name or no metadata.uid")
	}
	r := &Resource{
		NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name},
		Type:           head.TypeMeta,
		UID:            m.UID,
		annotated:      m.Annotations != nil,
	}
	if value, ok := m.Annotations[KeepAnnotation]; ok {
		r.keep = &value
	}
	for place, path := range paths {
		entries, found, err := path.entries(data, place)
		if err != nil {
			return nil, err
		}
		r.has = append(r.has, found)
		r.Entries = append(r.Entries, entries...)
	}
	return r, nil
}

// entries are what stands at the path, and whether anything does.
func (p KeyPath) entries(data json.RawMessage, place int) (entries []Entry, found bool, err error) {
	value, err := lookUp(data, p.Path)
	if err != nil || value == nil {
		return nil, false, err
	}
	if p.ListKey == "" {
		var byKey map[string]json.RawMessage
		if err := json.Unmarshal(value, &byKey); err != nil {
			return nil, true, &LayoutError{p.Path, "is not a map keyed by node name; if it is a list, set listKey"}
		}
		for key, raw := range byKey {
			entries = append(entries, Entry{Key: key, Place: place, Index: -1, Raw: raw})
		}
		slices.SortFunc(entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
		return entries, true, nil
	}
	var items []json.RawMessage
	if err := json.Unmarshal(value, &items); err != nil {
		return nil, true, &LayoutError{p.Path, "is not a list; if it is a map keyed by node name, leave listKey empty"}
	}
	for i, raw := range items {
		entries = append(entries, Entry{Key: itemKey(raw, p.ListKey), Place: place, Index: i, Raw: raw})
	}
	return entries, true, nil
}

// itemKey is the node name of a list's item, "" where it has none.
func itemKey(item json.RawMessage, listKey string) string {
	name := item
	if listKey != ListOfStrings {
		var fields map[string]json.RawMessage
		if json.Unmarshal(item, &fields) != nil {
			return ""
		}
		name = fields[listKey]
	}
	var key string
	if json.Unmarshal(name, &key) != nil {
		return ""
	}
	return key
}

// lookUp returns the value at path, nil where a step is absent. A null is a value without fields or items.
func lookUp(data json.RawMessage, path FieldPath) (json.RawMessage, error) {
	for i, step := range path {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(data, &fields); err != nil {
			return nil, &LayoutError{path, fmt.Sprintf("does not exist: %s has no fields", path[:i])}
		}
		if data = fields[step]; data == nil {
			return nil, nil
		}
	}
	return data, nil
}

// fingerprints tells, for each key, whether any of its entries changed between two looks.
func (r *Resource) fingerprints() map[string]fingerprint {
	sums := map[string]hash.Hash{}
	for _, e := range r.Entries {
		sum := sums[e.Key]
		if sum == nil {
			sum = sha256.New()
			sums[e.Key] = sum
		}
		// The place is part of it, the position in a list is not: others come and go before it.
		fmt.Fprintf(sum, "%d %d ", e.Place, len(e.Raw))
		sum.Write(e.Raw)
	}
	prints := make(map[string]fingerprint, len(sums))
	for key, sum := range sums {
		prints[key] = fingerprint(sum.Sum(nil))
	}
	return prints
}

// keys are the distinct keys of the resource, sorted. Items without a name have none.
func (r *Resource) keys() []string {
	var keys []string
	for _, e := range r.Entries {
		if e.Key != "" {
			keys = append(keys, e.Key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
