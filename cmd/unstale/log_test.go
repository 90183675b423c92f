package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
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

// A disk is a writer that is full now and then, and takes part of a line then.
type disk struct {
	text strings.Builder
	full bool
	fits int // bytes of a line that still go on it while it is full
}

func (d *disk) Write(p []byte) (int, error) {
	if !d.full || len(p) <= d.fits {
		return d.text.Write(p)
	}
	n, _ := d.text.Write(p[:d.fits])
	return n, errors.New("no space left on device")
}

// What counts for a removal are the writes since it began to be logged: an earlier failure does not, and a later success hides none.
func TestRecorder(t *testing.T) {
	var d disk
	out := &checkedWriter{w: &d}
	log, err := newLogger(out, "json")
	if err != nil {
		t.Fatal(err)
	}
	recorder := out.recorder(log)
	begin := func() func() error {
		t.Helper()
		written, err := recorder()
		if err != nil {
			t.Fatal(err)
		}
		return written
	}
	check := func(what string, err error, bad bool) {
		t.Helper()
		if (err != nil) != bad || bad && err.Error() != "no space left on device" {
			t.Errorf("%s: %v", what, err)
		}
	}

	first := begin()
	log.Info("removing")
	check("all is well", first(), false)

	second, third := begin(), begin()
	d.full, d.fits = true, 5
	log.Info("removing")
	check("the log failed, for all we know in the second", out.failure(), true)
	d.full = false
	log.Info("something else")
	check("and works again", out.failure(), false)
	check("the second", second(), true)
	check("the third", third(), true)
	check("a removal that begins later", begin()(), false)

	d.full, d.fits = true, 0
	log.Info("removing")
	lines := strings.Count(d.text.String(), "\n")
	_, err = recorder()
	check("nothing can be logged", err, true)
	d.full = false
	if got := strings.Count(d.text.String(), "\n"); got != lines {
		t.Errorf("%d lines", got-lines)
	}
	fourth := begin()
	check("it works again, as a short line has shown", out.failure(), false)
	log.Info("removing")
	check("the fourth", fourth(), false)

	// The torn line does not spoil the next.
	valid := 0
	for _, line := range strings.Split(strings.TrimSpace(d.text.String()), "\n") {
		if json.Valid([]byte(line)) {
			valid++
		}
	}
	if total := strings.Count(d.text.String(), "\n"); valid != total-1 {
		t.Errorf("%d of %d lines are whole:\n%s", valid, total, d.text.String())
	}
}

// While a torn line cannot be ended nothing else is written.
func TestALineStaysTornWhileTheDiskIsFull(t *testing.T) {
	d := disk{full: true, fits: 3}
	out := &checkedWriter{w: &d}
	out.Write([]byte("first\n"))
	d.fits = 0
	if _, err := out.Write([]byte("second\n")); err == nil {
		t.Error("no error")
	}
	d.full = false
	out.Write([]byte("third\n"))
	if got := d.text.String(); got != "fir\nthird\n" {
		t.Errorf("wrote %q", got)
	}
}

// Removals that are logged at the same time do not hide one another's failures.
func TestRecorderOfSeveralAtOnce(t *testing.T) {
	var d lossy
	out := &checkedWriter{w: &d}
	log, err := newLogger(out, "json")
	if err != nil {
		t.Fatal(err)
	}
	recorder := out.recorder(log)
	var working sync.WaitGroup
	for worker := range 4 {
		working.Go(func() {
			for n := range 200 {
				name := fmt.Sprintf("%d-%d", worker, n)
				written, err := recorder()
				if err != nil {
					continue
				}
				log.Info("removing", zap.String("key", name))
				if written() == nil && !d.has(`"`+name+`"`) {
					t.Errorf("%s counts as written and is not", name)
				}
			}
		})
	}
	working.Wait()
}

// lossy fails every third write.
type lossy struct {
	mu     sync.Mutex
	text   strings.Builder // guarded by mu
	writes int             // guarded by mu
}

func (l *lossy) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.writes++; l.writes%3 == 0 {
		return 0, errors.New("no space left on device")
	}
	return l.text.Write(p)
}

func (l *lossy) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}
