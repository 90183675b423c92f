package dataplane

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/reasons.md explains every reason, and none that is not one.
func TestReasonsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/reasons.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "## Entries of kernel tables")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| (?:Keep|Wait|Remove) \\| `(\\w+)` \\|").FindAllStringSubmatch(section, -1) {
		documented = append(documented, row[1])
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "verdict.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, is := n.(*ast.ValueSpec); is {
			if name, is := spec.Type.(*ast.Ident); is && name.Name == "Reason" {
				value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, value)
			}
		}
		return true
	})
	slices.Sort(documented)
	documented = slices.Compact(documented) // a reason may stand for several rows
	slices.Sort(want)
	if len(want) < 15 || !slices.Equal(documented, want) {
		t.Errorf("documented %v\nin the code %v", documented, want)
	}
}
