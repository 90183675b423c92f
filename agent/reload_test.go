package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

const plainConfig = "apiVersion: unstale.dev/v1alpha1\nkind: AgentConfiguration\n"

// reloadScene is a reloader whose file the test writes.
type reloadScene struct {
	*testing.T
	*reloader
	logs    *observer.ObservedLogs
	applied []*Configuration
	whyNot  []string // what failed heard; "" for nil
}

func newReloadScene(t *testing.T, text string) *reloadScene {
	t.Helper()
	s := &reloadScene{T: t}
	file := filepath.Join(t.TempDir(), "unstale.yaml")
	core, logs := observer.New(zapcore.InfoLevel)
	s.logs = logs
	s.reloader = &reloader{
		file: file, log: zap.New(core),
		apply: func(c *Configuration) { s.applied = append(s.applied, c) },
		failed: func(err error) {
			why := ""
			if err != nil {
				why = err.Error()
			}
			s.whyNot = append(s.whyNot, why)
		},
	}
	s.write(text)
	present, err := Load(file)
	if err != nil {
		t.Fatal(err)
	}
	s.present = present
	return s
}

func (s *reloadScene) write(text string) {
	s.Helper()
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		s.Fatal(err)
	}
}

// expect looks once and checks how many configurations were applied and failures told, all told.
func (s *reloadScene) expect(what string, applied, failures int) {
	s.Helper()
	s.look()
	if len(s.applied) != applied || len(s.whyNot) != failures {
		s.Fatalf("%s: %d applied, want %d; told %q, want %d", what, len(s.applied), applied, s.whyNot, failures)
	}
}

func TestReload(t *testing.T) {
	s := newReloadScene(t, plainConfig)
	s.expect("nothing changed", 0, 0)
	s.write(plainConfig + "grace: 30s\n")
	s.expect("a change", 1, 0)
	s.expect("no further change", 1, 0)
	if got := s.applied[0].Grace.String(); got != "30s" {
		t.Errorf("the grace is %s", got)
	}
	s.write(plainConfig + "# a remark\ngrace: 30s\n")
	s.expect("a change that means nothing", 1, 0)

	s.write(plainConfig + "grace: 30d\nmode: Perhaps\n")
	s.expect("a bad file", 1, 1)
	s.expect("still bad", 1, 1)
	if !strings.Contains(s.whyNot[0], "grace") || !strings.Contains(s.whyNot[0], "mode") {
		t.Errorf("the failure does not name both fields: %s", s.whyNot[0])
	}
	if s.present.Grace.String() != "30s" {
		t.Error("a bad file changed what is in use")
	}
	s.write(plainConfig + "grace: 30s\n")
	s.expect("what is in use again", 1, 2)
	if s.whyNot[1] != "" {
		t.Errorf("told %q, not that all is well", s.whyNot[1])
	}

	if err := os.Remove(s.file); err != nil {
		t.Fatal(err)
	}
	s.expect("no file", 1, 3)
	s.write(plainConfig + "grace: 40s\n")
	s.expect("another file", 2, 3)
}

// An agent may wait long for the API server between the reading of its file and the first look at it.
func TestReloadTakesWhatChangedBeforeTheFirstLook(t *testing.T) {
	s := newReloadScene(t, plainConfig)
	s.write(plainConfig + "mode: Report\n")
	s.expect("a change before the first look", 1, 0)
}

func TestReloadKeepsWhatIsFixed(t *testing.T) {
	const fixed = "gossip: {port: 7001, peers: [\"10.0.0.1:7947\"]}\nhttp: {profiling: true}\n"
	s := newReloadScene(t, plainConfig+fixed)
	s.write(plainConfig + "mode: Report\ngossip: {port: 7002, insecure: true}\n")
	s.expect("a change with fixed fields", 1, 0)
	c := s.applied[0]
	if c.Mode != "Report" || c.Gossip.Port != 7001 || c.Gossip.Insecure || !slices.Equal(c.Gossip.Peers, []string{"10.0.0.1:7947"}) || !c.HTTP.Profiling {
		t.Errorf("applied %+v", c)
	}
	var fields []string
	for _, e := range s.logs.FilterLevelExact(zapcore.WarnLevel).All() {
		fields = append(fields, e.ContextMap()["field"].(string))
	}
	slices.Sort(fields)
	if want := []string{"gossip.insecure", "gossip.peers", "gossip.port", "http.profiling"}; !slices.Equal(fields, want) {
		t.Errorf("warned of %v, want %v", fields, want)
	}
	// A change of a fixed field alone applies nothing.
	s.write(plainConfig + "mode: Report\ngossip: {port: 7003}\n")
	s.expect("fixed fields alone", 1, 0)
}
