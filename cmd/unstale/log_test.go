package main

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
)

func TestConsoleLog(t *testing.T) {
	var out strings.Builder
	log, err := newLogger(&out, "console")
	if err != nil {
		t.Fatal(err)
	}
	log = log.With(zap.String("target", "nri"))
	one := log.With(zap.String("name", "a"))
	log.With(zap.String("name", "b")).Debug("not at this level")
	one.Info("removing", zap.ByteString("entry", []byte(`{"errors":"it's"}`)), zap.String("empty", ""),
		zap.String("putBack", `kubectl patch x --patch '{"errors":"it'\''s"}'`))
	log.Warn("not removed", zap.Error(errors.New("line 1\nline 2\x1b[31m")))
	got := out.String()
	want := []string{
		`Z info removing target=nri name=a entry={"errors":"it's"}` + "\n",
		`    to put it back: kubectl patch x --patch '{"errors":"it'\''s"}'` + "\n",
		`Z warn not removed target=nri error="line 1\nline 2\x1b[31m"` + "\n",
	}
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("not logged: %s", w)
		}
	}
	if strings.Count(got, "\n") != len(want) {
		t.Errorf("logged:\n%s", got)
	}
}
