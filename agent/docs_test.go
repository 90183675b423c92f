package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// docs/observing.md has every metric, and none that is not one.
func TestMetricsAreDocumented(t *testing.T) {
	names := func(pattern string, files ...string) []string {
		var found []string
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
				found = append(found, match[1])
			}
		}
		slices.Sort(found)
		return slices.Compact(found)
	}
	files, err := filepath.Glob("metrics*.go")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return f == "metrics_test.go" })
	code, documented := names(`"(unstale_\w+)"`, files...), names("(?m)^\\| `(unstale_\\w+)` \\|", "../docs/observing.md")
	if len(code) < 10 || !slices.Equal(code, documented) {
		t.Errorf("in the code %v\ndocumented %v", code, documented)
	}
}
