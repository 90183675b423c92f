package status

import (
	"slices"
	"strings"
	"testing"
)

func TestParseFieldPath(t *testing.T) {
	for text, want := range map[string][]string{
		"status":                        {"status"},
		"status.nodes":                  {"status", "nodes"},
		"metadata.annotations[a.io/b]":  {"metadata", "annotations", "a.io/b"},
		"status[a.b].nodes[c][d].e-f_g": {"status", "a.b", "nodes", "c", "d", "e-f_g"},
	} {
		got, err := ParseFieldPath(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":              "is empty",
		".status":       "a name is missing at character 1",
		"status.":       "a name is missing at character 8",
		"status..nodes": "a name is missing at character 8",
		"status[x":      "the bracket at character 7 is not closed",
		"status[]":      "nothing between the brackets at character 7",
		"[status]":      "starts with a bracket",
		"status[x]y":    "a dot or a bracket is missing before character 10",
		"status]":       "a dot or a bracket is missing before character 7",
		"status. nodes": "character 8 cannot stand in a plain name",
		"status.a/b":    "character 9 cannot stand in a plain name; put the step in brackets",
		`status["a.b"]`: "needs no quotes",
	} {
		if _, err := ParseFieldPath(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want an error with %q", text, err, want)
		}
	}
}

func FuzzParseFieldPath(f *testing.F) {
	for _, seed := range []string{"status.nodes", "a[b/c].d", "a..b", "[", "a]b", "a[b", "\x80."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := ParseFieldPath(text)
		if err != nil {
			return
		}
		again, err := ParseFieldPath(path.String())
		if err != nil || !slices.Equal(path, again) {
			t.Errorf("%q is %q, written %q, read back as %q, %v", text, path, path, again, err)
		}
	})
}
