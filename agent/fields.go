package agent

import (
	"reflect"
	"strings"
)

// A defaulter is a section with defaults that differ from Go's zero values.
type defaulter interface{ setDefaults() }

// applyDefaults gives a section and the sections inside it their defaults. It runs before decoding, so that a zero
// that the file gives stays one and validation sees it.
func applyDefaults(v reflect.Value) {
	if v.Kind() != reflect.Struct {
		return
	}
	for i := range v.NumField() {
		applyDefaults(v.Field(i))
	}
	if section, ok := v.Addr().Interface().(defaulter); ok {
		section.setDefaults()
	}
}

// fieldName is the name of a struct's field in the file.
func fieldName(t reflect.Type, index int) string {
	name, _, _ := strings.Cut(t.Field(index).Tag.Get("json"), ",")
	return name
}

// fieldByName finds the field of a struct by its name in the file.
func fieldByName(t reflect.Type, name string) (int, bool) {
	for i := range t.NumField() {
		if fieldName(t, i) == name {
			return i, true
		}
	}
	return 0, false
}

// fieldNames are the names in the file of a struct's fields.
func fieldNames(t reflect.Type) []string {
	names := make([]string, t.NumField())
	for i := range names {
		names[i] = fieldName(t, i)
	}
	return names
}

// fieldsOf is the list of a struct's fields as a message has it.
func fieldsOf(t reflect.Type) string {
	switch t.NumField() {
	case 0:
		return "no fields: write {}"
	case 1:
		return "the field " + fieldName(t, 0)
	default:
		return "the fields " + strings.Join(fieldNames(t), ", ")
	}
}

// nearest is the known name that a misspelt one probably stands for; empty when none is close. A third of the letters
// may be wrong, which takes two swapped letters in the format's shortest names and does not turn one field into another.
func nearest(name string, known []string) string {
	best, bestDistance := "", len(name)/3+1
	if len(name) > longestQuote {
		return ""
	}
	for _, candidate := range known {
		distance := editDistance(strings.ToLower(name), strings.ToLower(candidate))
		if distance < bestDistance {
			best, bestDistance = candidate, distance
		}
	}
	return best
}

// editDistance is how many letters must be inserted, deleted, replaced, or swapped with their neighbour to turn a into
// b (the "optimal string alignment" distance).
func editDistance(a, b string) int {
	// Row i, column j: the distance between a[:i] and b[:j]. Three rows are enough.
	var beforeLast []int
	last := make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			row[j] = min(last[j]+1, row[j-1]+1, replace)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], beforeLast[j-2]+1)
			}
		}
		beforeLast, last = last, row
	}
	return last[len(b)]
}
