package status

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// docs/reasons.md explains every reason and state, and none that is not one.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	reasons, states, _ := strings.Cut(string(text), "A target is in one of these states")
	_, nodes, _ := strings.Cut(states, "## Nodes")
	nodes, _, _ = strings.Cut(nodes, "## Entries of kernel tables")
	states, _, _ = strings.Cut(states, "## Nodes")
	for _, part := range []struct {
		typeName string
		files    []string
		text     string
		row      string
	}{
		{"Reason", []string{"verdict.go"}, reasons, "(?m)^\\| (?:Keep|Wait|Remove|object|pods) \\| `(\\w+)` \\|"},
		{"Reason", []string{"incarnation.go", "leaving.go"}, reasons, "(?m)^\\| (?:stop|clear|start) \\| `(\\w+)` \\|"},
		{"Reason", []string{"recovery.go"}, nodes, "(?m)^\\| (?:Keep|Refuse|Taint|Untaint|Prune) \\| `(\\w+)` \\|"},
		{"State", []string{"report.go"}, states, "(?m)^\\| `(\\w+)` \\|"},
	} {
		var documented []string
		for _, row := range regexp.MustCompile(part.row).FindAllStringSubmatch(part.text, -1) {
			documented = append(documented, row[1])
		}
		slices.Sort(documented)
		documented = slices.Compact(documented) // a reason may stand for two rows
		var want []string
		for _, file := range part.files {
			want = append(want, constants(t, file, part.typeName)...)
		}
		slices.Sort(want)
		if !slices.Equal(documented, want) {
			t.Errorf("%s: documented %v\nin the code %v", part.typeName, documented, want)
		}
	}
}

// constants are the values of the string constants of that type, sorted.
func constants(t *testing.T, file, typeName string) []string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var values []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == typeName {
			for _, value := range spec.Values {
				values = append(values, strings.Trim(value.(*ast.BasicLit).Value, `"`))
			}
		}
		return true
	})
	slices.Sort(values)
	if len(values) < 5 {
		t.Fatalf("only %d constants of type %s in %s", len(values), typeName, file)
	}
	return values
}
