package status

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// An operation is one operation of a JSON Patch (RFC 6902).
type operation struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// removal is the guarded JSON Patch that takes entries out of r. The server refuses it as a whole (422) when the resource
// is another one of the same name, when the keep annotation changed, or when any of the entries is not what was seen.
// In a list an entry is addressed by its position, so the highest goes first.
func removal(r *Resource, paths []KeyPath, entries []Entry) []operation {
	ops := append(make([]operation, 0, 2+2*len(entries)),
		operation{"test", "/metadata/uid", quote(r.UID)}, keepGuard(r))
	ordered := slices.Clone(entries)
	slices.SortStableFunc(ordered, func(a, b Entry) int {
		if a.Place != b.Place {
			return a.Place - b.Place
		}
		return b.Index - a.Index
	})
	for _, e := range ordered {
		pointer := e.pointer(paths)
		ops = append(ops, operation{"test", pointer, e.Raw}, operation{"remove", pointer, nil})
	}
	return ops
}

// keepGuard tests that the keep annotation is as it was seen. A test for null passes where the field is absent, but only
// if what should hold the field is there, so without annotations it is they that must be absent still.
func keepGuard(r *Resource) operation {
	switch {
	case !r.annotated:
		return operation{"test", "/metadata/annotations", json.RawMessage("null")}
	case r.keep == nil:
		return operation{"test", "/metadata/annotations/" + escapePointer(KeepAnnotation), json.RawMessage("null")}
	}
	return operation{"test", "/metadata/annotations/" + escapePointer(KeepAnnotation), quote(*r.keep)}
}

// pointer is the entry's JSON Pointer (RFC 6901).
func (e Entry) pointer(paths []KeyPath) string {
	last := e.Key
	if e.Index >= 0 {
		last = strconv.Itoa(e.Index)
	}
	return pointer(append(slices.Clone(paths[e.Place].Path), last))
}

func pointer(path FieldPath) string {
	var b strings.Builder
	for _, step := range path {
		b.WriteString("/" + escapePointer(step))
	}
	return b.String()
}

func escapePointer(step string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
}

func quote(s string) json.RawMessage {
	text, err := json.Marshal(s)
	if err != nil {
		panic("a string cannot be written as JSON: " + err.Error()) // json.Marshal has no error for strings
	}
	return text
}

// maxArgument is how long a patch may be to be an argument of a command; Linux takes 128 KiB.
const maxArgument = 100_000

// putBack is the command that writes a removed entry again. It fails, and changes nothing, where the key has an entry again.
func putBack(t *Target, r *Resource, e Entry) string {
	var ops []operation
	at := t.Paths[e.Place].Path
	if e.Index < 0 {
		path := pointer(append(slices.Clone(at), e.Key))
		ops = []operation{{"test", path, json.RawMessage("null")}, {"add", path, e.Raw}}
	} else {
		ops = []operation{{"add", pointer(append(slices.Clone(at), "-")), e.Raw}}
	}
	patch := strings.TrimSpace(string(encode(ops)))
	var namespace string
	if r.Namespace != "" {
		namespace = " --namespace " + r.Namespace
	}
	command := fmt.Sprintf("kubectl patch %s %s%s --subresource status --type json", kubectlResource(t), r.Name, namespace)
	if len(patch) > maxArgument { // printf is the shell's own, and takes any length
		return fmt.Sprintf("printf %%s %s | %s --patch-file /dev/stdin", shellQuote(patch), command)
	}
	return command + " --patch " + shellQuote(patch)
}

// kubectlResource names the resource so that kubectl takes this version of it and no other.
func kubectlResource(t *Target) string {
	if t.Resource.Group == "" {
		return t.Resource.Resource
	}
	return t.Resource.Resource + "." + t.Resource.Version + "." + t.Resource.Group
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// encode writes a patch without escaping anything in it: the entries must reach the server as they came from it.
func encode(ops []operation) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(ops); err != nil {
		panic("a patch cannot be written as JSON: " + err.Error()) // its values are JSON that was parsed before
	}
	return b.Bytes()
}
