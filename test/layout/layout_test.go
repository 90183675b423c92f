// Package layout holds what ARCHITECTURE.md says about the folders.
package layout

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/unstale/unstale/"

// Each rule says which packages may import what begins with a path. Packages below test and tests are free.
var rules = []struct {
	path string
	may  []string
}{
	{module + "status", []string{"agent", "cmd"}},
	{module + "gossip", []string{"agent", "cmd"}},
	{module + "dataplane", []string{"agent", "cmd"}},
	{module + "agent", []string{"cmd"}},
	{module + "cmd", nil},
	{module + "test", nil},
	{"k8s.io/client-go", []string{"status", "agent", "cmd"}},
	{"github.com/hashicorp/memberlist", []string{"gossip"}},
	{"github.com/cilium/ebpf", []string{"dataplane"}},
	{"github.com/vishvananda/netlink", []string{"dataplane"}},
	{"github.com/Microsoft/hnslib", []string{"dataplane"}},
}

func TestImportDirections(t *testing.T) {
	for _, system := range []string{"linux", "windows"} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...")
		cmd.Env = append(cmd.Environ(), "GOOS="+system, "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("list the packages: %v\n%s", err, out)
		}
		packages := 0
		for line := range strings.Lines(string(out)) {
			fields := strings.Fields(line)
			importer, inModule := strings.CutPrefix(fields[0], module)
			top, _, _ := strings.Cut(importer, "/")
			if !inModule || top == "test" {
				continue
			}
			packages++
			for _, imported := range fields[1:] {
				if why := forbidden(top, imported); why != "" {
					t.Errorf("%s: %s imports %s: %s", system, importer, imported, why)
				}
			}
		}
		if packages < 3 {
			t.Errorf("%s: only %d packages were looked at", system, packages)
		}
	}
}

// forbidden tells why a package in the folder top may not import that path; "" if it may.
func forbidden(top, imported string) string {
	for _, rule := range rules {
		if imported != rule.path && !strings.HasPrefix(imported, rule.path+"/") {
			continue
		}
		allowed := imported == module+top || strings.HasPrefix(imported, module+top+"/")
		for _, may := range rule.may {
			allowed = allowed || top == may
		}
		if !allowed {
			return "only " + strings.Join(rule.may, ", ") + " may"
		}
	}
	return ""
}

func TestForbidden(t *testing.T) {
	for _, test := range []struct {
		top, imported string
		want          bool
	}{
		{"status", module + "agent", true},
		{"status", module + "gossip", true},
		{"status", module + "status/internal", false},
		{"agent", module + "status", false},
		{"agent", module + "cmd/unstale", true},
		{"cmd", module + "agent", false},
		{"gossip", "k8s.io/client-go/rest", true},
		{"status", "k8s.io/client-go/rest", false},
		{"status", "k8s.io/apimachinery/pkg/types", false},
		{"agent", "github.com/hashicorp/memberlist", true},
		{"status", module + "test/apiserver", true},
	} {
		if got := forbidden(test.top, test.imported) != ""; got != test.want {
			t.Errorf("%s imports %s: forbidden %v, want %v", test.top, test.imported, got, test.want)
		}
	}
}
