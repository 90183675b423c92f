package agent

import (
	"strings"
	"testing"
)

func TestErrorsAreSortedOnePerLine(t *testing.T) {
	errs := Errors{
		{Path: "b", Line: 3, Message: "third"},
		{Path: "b", Line: 2, Message: "second"},
		{Path: "a", Line: 3, Message: "is between"},
		{Message: "of the file"},
	}
	want := "of the file\nb: second (line 2)\na: is between (line 3)\nb: third (line 3)"
	if got := errs.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if errs[0].Message != "third" {
		t.Error("Error has changed the order of its receiver")
	}
}

func TestErrorsOfAFileThatIsNoConfiguration(t *testing.T) {
	errs := make(Errors, mostReported)
	if got := strings.Split(errs.Error(), "\n"); len(got) != mostReported {
		t.Errorf("%d errors have %d lines", mostReported, len(got))
	}
	errs = make(Errors, mostReported+7)
	got := strings.Split(errs.Error(), "\n")
	if len(got) != mostReported+1 || got[mostReported] != "and 7 more" {
		t.Errorf("%d errors have %d lines, and the last is %q", len(errs), len(got), got[len(got)-1])
	}
}

func TestLocation(t *testing.T) {
	long := strings.Repeat("x", 100)
	for _, test := range []struct{ got, want location }{
		{location("").field("a").field("b").item(3).field("c"), "a.b[3].c"},
		{location("a").entry("example.com/b"), "a[example.com/b]"},
		{location("a").entry("b]c"), `a["b]c"]`},
		{location("a").entry(""), `a[""]`},
		{location("a").field("b\nc"), `a["b\nc"]`},
		{location("a").field("b.c"), `a["b.c"]`},
		{location("").field(""), `[""]`},
		{location("a").field(long), location(`a["` + long[:longestQuote] + `…"]`)},
	} {
		if test.got != test.want {
			t.Errorf("got %s, want %s", test.got, test.want)
		}
	}
}

func TestLocationContains(t *testing.T) {
	for _, test := range []struct {
		outer, inner location
		want         bool
	}{
		{"a", "a", true},
		{"a", "a.b", true},
		{"a", "a[0]", true},
		{"", "a", true},
		{"a", "ab", false},
		{"a[1]", "a[10]", false},
		{"a.b", "a", false},
	} {
		if got := test.outer.contains(test.inner); got != test.want {
			t.Errorf("%q contains %q: got %v, want %v", test.outer, test.inner, got, test.want)
		}
	}
}

func TestQuoteCutsBetweenCharacters(t *testing.T) {
	text := strings.Repeat("x", longestQuote-1) + "é"
	if got, want := quote(text), `"`+strings.Repeat("x", longestQuote-1)+`…"`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
