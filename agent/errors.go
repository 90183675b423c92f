package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// A FieldError is one thing that is wrong with a configuration.
type FieldError struct {
	// Path leads to the field, as in statusKeys[0].resource.version. Empty: the file as a whole.
	Path string
	// Line is where the field stands in the file, from 1; for a field that is missing, where its section stands.
	// 0: not known.
	Line int
	// Message says what is wrong and what to do, without path and line.
	Message string
}

// Error is the one line that an operator reads.
func (e FieldError) Error() string {
	text := e.Message
	if e.Path != "" {
		text = e.Path + ": " + text
	}
	if e.Line > 0 {
		text += fmt.Sprintf(" (line %d)", e.Line)
	}
	return text
}

// Errors is everything that is wrong with a configuration.
type Errors []FieldError

// mostReported is how many errors a message lists. A file with more is not a configuration, and a log should survive it.
const mostReported = 100

// Error has one line for each error, in the order of the file.
func (e Errors) Error() string {
	sorted := slices.Clone(e)
	sorted.sort()
	var lines []string
	for i, one := range sorted {
		if i == mostReported {
			lines = append(lines, fmt.Sprintf("and %d more", len(sorted)-mostReported))
			break
		}
		lines = append(lines, one.Error())
	}
	return strings.Join(lines, "\n")
}

// sort puts the errors in the order of the file: by line, then path, then message.
func (e Errors) sort() {
	slices.SortStableFunc(e, func(a, b FieldError) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), strings.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
}

// orNil is the errors as an error, which is nil when there are none.
func (e Errors) orNil() error {
	if len(e) == 0 {
		return nil
	}
	e.sort()
	return e
}

// A location is the path of a field as it is built up while a configuration is walked. The empty location is the
// whole file.
type location string

// field is the location of a field of the section at l. A name that no field can have (it comes from the file) is quoted.
func (l location) field(name string) location {
	switch {
	case !isFieldName(name):
		return l + location("["+quote(name)+"]")
	case l == "":
		return location(name)
	default:
		return l + location("."+name)
	}
}

// item is the location of an item of the list at l.
func (l location) item(index int) location {
	return l + location("["+strconv.Itoa(index)+"]")
}

// entry is the location of an entry of the map at l. Keys of maps have dots and slashes: they stand in brackets.
func (l location) entry(key string) location {
	if key == "" || strings.ContainsFunc(key, func(r rune) bool { return !strings.ContainsRune("-._/", r) && !isAlphanumeric(r) }) {
		key = quote(key)
	}
	return l + location("["+key+"]")
}

// parent is the location of what l is a field, an item or an entry of. On the way there it may stop at places that are
// none, inside a key with dots.
func (l location) parent() location {
	return l[:max(0, strings.LastIndexAny(string(l), ".["))]
}

// contains says whether other is l or lies inside it.
func (l location) contains(other location) bool {
	if l == "" || l == other {
		return true
	}
	rest, inside := strings.CutPrefix(string(other), string(l))
	return inside && (rest[0] == '.' || rest[0] == '[')
}

func isFieldName(name string) bool {
	return name != "" && len(name) <= longestQuote && !strings.ContainsFunc(name, func(r rune) bool { return r != '-' && r != '_' && !isAlphanumeric(r) })
}

func isAlphanumeric(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9'
}

// longestQuote is how many bytes of a file's text a message repeats: enough to find it again, too few to flood a log.
const longestQuote = 60

// shorten cuts text from the file to what a message repeats of it.
func shorten(text string) string {
	if len(text) <= longestQuote {
		return text
	}
	return strings.ToValidUTF8(text[:longestQuote], "") + "…"
}

// quote is text from the file as a message shows it: short, on one line, in quotes.
func quote(text string) string {
	return strconv.Quote(shorten(text))
}
