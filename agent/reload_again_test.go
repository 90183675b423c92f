package agent

import (
	"os"
	"testing"
)

// A file that was away for a while and is back as it was is in use, and what was said of it is taken back.
func TestAFileThatIsBackAsItWas(t *testing.T) {
	const text = plainConfig + "grace: 30s\n"
	s := newReloadScene(t, text)
	s.expect("nothing changed", 0, 0)
	for i := range 2 {
		if err := os.Remove(s.file); err != nil {
			t.Fatal(err)
		}
		s.expect("no file", 0, 2*i+1)
		s.expect("still none", 0, 2*i+1)
		s.write(text)
		s.expect("it is back", 0, 2*i+2)
		if why := s.whyNot[2*i+1]; why != "" {
			t.Errorf("told %q, not that all is well", why)
		}
		s.expect("still there", 0, 2*i+2)
	}
}

// The same mistake after a good file is told again.
func TestTheSameMistakeTwice(t *testing.T) {
	s := newReloadScene(t, plainConfig)
	s.write(plainConfig + "mode: Perhaps\n")
	s.expect("a bad file", 0, 1)
	s.write(plainConfig + "# still\nmode: Perhaps\n")
	s.expect("bad for the same reason, but in another line", 0, 2)
	s.write(plainConfig + "grace: 30s\n")
	s.expect("a good one, which is applied and so not told", 1, 2)
	s.write(plainConfig + "# still\nmode: Perhaps\n")
	s.expect("the same mistake as before it", 1, 3)
	if s.present.Grace.String() != "30s" {
		t.Error("a bad file changed what is in use")
	}
}
