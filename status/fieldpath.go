package status

import (
	"fmt"
	"strings"
)

// A FieldPath leads to a field of an object, one element per step: status.nodes is {"status", "nodes"}. Steps that are
// not plain names are written in brackets: metadata.annotations[example.com/node] is {"metadata", "annotations",
// "example.com/node"}. Steps name fields of objects, never positions in lists.
type FieldPath []string

// ParseFieldPath reads the written form of a FieldPath. The error says what is wrong and where (in characters from 1).
func ParseFieldPath(text string) (FieldPath, error) {
	if text == "" {
		return nil, fmt.Errorf("is empty; write a path such as status.nodes")
	}
	var path FieldPath
	rest := text
	for first := true; rest != ""; first = false {
		at := len(text) - len(rest) + 1
		switch {
		case rest[0] == '[':
			end := strings.IndexByte(rest, ']')
			if end < 0 {
				return nil, fmt.Errorf("%q: the bracket at character %d is not closed", text, at)
			}
			if end == 1 {
				return nil, fmt.Errorf("%q: nothing between the brackets at character %d", text, at)
			}
			if strings.ContainsAny(rest[1:end], `"'`) {
				return nil, fmt.Errorf("%q: what stands in the bracket at character %d needs no quotes", text, at)
			}
			if first {
				return nil, fmt.Errorf("%q: starts with a bracket; the first step is a plain name", text)
			}
			path = append(path, rest[1:end])
			rest = rest[end+1:]
			continue
		case rest[0] == '.' && !first:
			rest = rest[1:]
			at++
		case !first:
			return nil, fmt.Errorf("%q: a dot or a bracket is missing before character %d", text, at)
		}
		end := strings.IndexAny(rest, ".[]")
		if end < 0 {
			end = len(rest)
		}
		if end == 0 {
			return nil, fmt.Errorf("%q: a name is missing at character %d", text, at)
		}
		if bad := strings.IndexFunc(rest[:end], notPlain); bad >= 0 {
			return nil, fmt.Errorf("%q: character %d cannot stand in a plain name; put the step in brackets", text, at+bad)
		}
		path = append(path, rest[:end])
		rest = rest[end:]
	}
	return path, nil
}

// notPlain tells which characters cannot stand in a plain name.
func notPlain(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '$')
}

// String is the written form; ParseFieldPath reads it back.
func (p FieldPath) String() string {
	var b strings.Builder
	for i, step := range p {
		switch {
		case i > 0 && strings.ContainsFunc(step, notPlain):
			b.WriteString("[" + step + "]")
		case i > 0:
			b.WriteString("." + step)
		default:
			b.WriteString(step)
		}
	}
	return b.String()
}
