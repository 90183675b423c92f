package dataplane

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"pgregory.net/rapid"
)

// aJournal is one with all that a journal can have.
func aJournal() Journal {
	return Journal{Boot: "8c0b1f6e", Pods: []JournalPod{
		{PodRef: PodRef{"default", "web-0", "u1"}, Addresses: []netip.Addr{addr("10.0.0.1")}, Others: []netip.Addr{addr("fd00::1")}, GraceSeconds: 30},
		{PodRef: PodRef{"kube-system", "dns", "u2"}, Others: []netip.Addr{addr("fd00::2")}, Stopped: true},
	}}
}

func journalFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// options are those of a Scrubber that has nothing to do.
func options(dir string) (Options, *observer.ObservedLogs) {
	core, logs := observer.New(zap.InfoLevel)
	return Options{
		Cluster: &Snapshot{}, Host: func() (HostState, error) { return HostState{}, nil }, Journal: JournalDir(dir), Boot: "8c0b1f6e",
		Recorded: func() (func() error, error) { return func() error { return nil }, nil },
		Told:     func([]TargetReport, time.Duration) {}, Log: zap.New(core), Now: time.Now,
	}, logs
}

func TestJournalText(t *testing.T) {
	const body = `{"boot": "8c0b1f6e", "pods": [
{"namespace":"default","name":"web-0","uid":"u1","addresses":["10.0.0.1"],"others":["fd00::1"],"graceSeconds":30,"stopped":false},
{"namespace":"kube-system","name":"dns","uid":"u2","others":["fd00::2"],"graceSeconds":0,"stopped":true}
]}
`
	first, got, _ := strings.Cut(string(formatJournal(aJournal())), "\n")
	if got != body || first != journalStart+checksum([]byte(body)) {
		t.Errorf("got\n%s\n%s", first, got)
	}
	if got := string(formatJournal(Journal{})); !strings.HasSuffix(got, "\n{\"boot\": \"\", \"pods\": [\n]}\n") {
		t.Errorf("an empty one: %q", got)
	}
}

// drawJournal draws one as Owners write them.
func drawJournal(t *rapid.T) Journal {
	name := rapid.StringMatching(`[a-z0-9.-]{0,20}|\PC{0,8}`)
	address := rapid.Map(rapid.SliceOfN(rapid.Byte(), 4, 4), func(b []byte) netip.Addr { return netip.AddrFrom4([4]byte(b)) })
	address6 := rapid.Map(rapid.SliceOfN(rapid.Byte(), 15, 15), func(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(append([]byte{0xfd}, b...))) })
	j := Journal{Boot: name.Draw(t, "boot")}
	for i := range rapid.IntRange(0, 5).Draw(t, "pods") {
		p := JournalPod{
			PodRef:    PodRef{name.Draw(t, "namespace"), name.Draw(t, "name"), fmt.Sprint("uid", i)},
			Addresses: rapid.SliceOfN(address, 1, 3).Draw(t, "addresses"), GraceSeconds: rapid.Int64Min(0).Draw(t, "grace"), Stopped: rapid.Bool().Draw(t, "stopped"),
		}
		if others := rapid.SliceOfN(address6, 0, 3).Draw(t, "others"); len(others) > 0 {
			p.Others = others
		}
		j.Pods = append(j.Pods, p)
	}
	return j
}

func TestJournalIsReadAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawJournal(t)
		got, err := parseJournal(formatJournal(want))
		if err != nil {
			t.Fatal(err)
		}
		if len(want.Pods) == 0 { // a list without pods is read as an empty one
			want.Pods = []JournalPod{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	})
}

// Whatever a loss of power leaves of the file, it is not believed.
func TestJournalDamagedAnywhere(t *testing.T) {
	text := formatJournal(aJournal())
	for i := range text {
		if j, err := parseJournal(text[:i]); err == nil {
			t.Errorf("cut at byte %d of %d: %+v", i, len(text), j)
		}
		for _, flip := range []byte{0x01, 0x20, 0x80, 0xff, text[i]} { // the last makes it 0
			damaged := bytes.Clone(text)
			damaged[i] ^= flip
			if j, err := parseJournal(damaged); err == nil {
				t.Errorf("byte %d is %q instead of %q: %+v", i, damaged[i], text[i], j)
			}
		}
		if j, err := parseJournal(slices.Concat(text[:i], text[i+1:])); err == nil {
			t.Errorf("byte %d left out: %+v", i, j)
		}
		if j, err := parseJournal(slices.Concat(text[:i], make([]byte, len(text)-i))); err == nil { // blocks that were never written
			t.Errorf("zeros from byte %d: %+v", i, j)
		}
	}
	for _, more := range []string{"\n", " ", "{}", string(text)} {
		if j, err := parseJournal(append(bytes.Clone(text), more...)); err == nil {
			t.Errorf("with %q at its end: %+v", more, j)
		}
	}
}

// What has the right checksum may still be what no agent wrote.
func TestJournalThatCannotBe(t *testing.T) {
	for body, word := range map[string]string{
		``:                                  "JSON",
		`{"boot": "b", "pods": [}`:          "invalid",
		`{"boot": "b", "pods": []} {}`:      "after top-level",
		`{"boot": 7, "pods": []}`:           "boot",
		`{"boot": "b", "pods": [{"uid":""}`: "JSON",
		`{"pods": [{"namespace":"n","name":"p","uid":"","addresses":["10.0.0.1"]}]}`:                                     "pod n/p (UID ) cannot be",
		`{"pods": [{"name":"p","uid":"u","addresses":["10.0.0.1"]},{"name":"q","uid":"u","addresses":["10.0.0.2"]}]}`:    "pod /q (UID u) cannot be",
		`{"pods": [{"namespace":"n","name":"p","uid":"u","addresses":["10.0.0.1"],"graceSeconds":-1}]}`:                  "pod n/p (UID u) cannot be",
		`{"pods": [{"namespace":"n","name":"p","uid":"u"}]}`:                                                             "pod n/p (UID u) cannot be",
		`{"pods": [{"namespace":"n","name":"p","uid":"u","addresses":["10.0.0.1",""]}]}`:                                 "an address of pod n/p is empty",
		`{"pods": [{"namespace":"n","name":"p","uid":"u","others":[""]}]}`:                                               "an address of pod n/p is empty",
		`{"pods": [{"namespace":"n","name":"p","uid":"u","addresses":["10.0.0.256"]}]}`:                                  "10.0.0.256",
		`{"pods": [{"namespace":"n","name":"p","uid":"u","addresses":["10.0.0.1"],"graceSeconds":9223372036854775808}]}`: "graceSeconds",
	} {
		j, err := parseJournal(withChecksum(body))
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, %+v; want an error with %q", body, err, j, word)
		}
	}
	j, err := parseJournal(withChecksum(`{"pods": [{"uid":"u","addresses":["::ffff:10.0.0.1","fe80::1%eth0"],"others":["::ffff:10.0.0.2"]}]}`))
	if err != nil || fmt.Sprint(j.Pods[0].Addresses, j.Pods[0].Others) != "[10.0.0.1 fe80::1] [10.0.0.2]" {
		t.Errorf("%v, %+v", err, j)
	}
}

func withChecksum(body string) []byte {
	return []byte(journalStart + checksum([]byte(body)) + "\n" + body)
}

// What is read as a journal is written as the same one; what is not never panics.
func FuzzParseJournal(f *testing.F) {
	f.Add([]byte(`{"boot": "b", "pods": [{"namespace":"n","name":"p","uid":"u","addresses":["10.0.0.1","fe80::1%1"],"others":["::ffff:10.0.0.2"],"graceSeconds":1,"stopped":true}]}`))
	f.Add([]byte(`{"boot": "b", "pods": null}`))
	f.Add(formatJournal(aJournal()))
	_, body, _ := bytes.Cut(formatJournal(aJournal()), []byte("\n"))
	f.Add(body)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, text := range [][]byte{data, withChecksum(string(data))} {
			j, err := parseJournal(text)
			if err != nil {
				if len(j.Pods) > 0 {
					t.Errorf("an error, and pods: %+v", j)
				}
				continue
			}
			again, err := parseJournal(formatJournal(j))
			if err != nil {
				t.Fatalf("%v: %+v", err, j)
			}
			if len(j.Pods) == 0 {
				j.Pods, again.Pods = nil, nil
			}
			for _, pods := range [][]JournalPod{j.Pods, again.Pods} {
				for i := range pods { // empty lists are not written
					if len(pods[i].Addresses) == 0 {
						pods[i].Addresses = nil
					}
					if len(pods[i].Others) == 0 {
						pods[i].Others = nil
					}
				}
			}
			if !reflect.DeepEqual(again, j) {
				t.Errorf("read  %+v\nagain %+v", j, again)
			}
			NewOwners(j).Synced(noon)
		}
	})
}

func TestJournalSaveAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "lib", "unstale")
	d := JournalDir(dir)
	if j, err := d.Load(); err != nil || !reflect.DeepEqual(j, Journal{}) {
		t.Errorf("where there is none: %+v, %v", j, err)
	}
	for _, j := range []Journal{aJournal(), {Boot: "b", Pods: []JournalPod{}}, aJournal()} {
		if err := d.Save(j); err != nil {
			t.Fatal(err)
		}
		if got, err := d.Load(); err != nil || !reflect.DeepEqual(got, j) {
			t.Errorf("%v\ngot  %+v\nwant %+v", err, got, j)
		}
	}
	if names := journalFiles(t, dir); !slices.Equal(names, []string{"journal"}) {
		t.Error(names)
	}
	info, err := os.Stat(filepath.Join(dir, "journal"))
	if err != nil || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v: it tells of all pods, so it is nobody else's to read", info.Mode(), err)
	}
	// What a killed process leaves does no harm.
	if err := os.WriteFile(filepath.Join(dir, "journal.new"), []byte("unstale journal v1 sha2"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Load(); err != nil || !reflect.DeepEqual(got, aJournal()) {
		t.Errorf("%+v, %v", got, err)
	}
	if err := d.Save(Journal{Boot: "c"}); err != nil {
		t.Error(err)
	}
	if got, err := d.Load(); err != nil || got.Boot != "c" || !slices.Equal(journalFiles(t, dir), []string{"journal"}) {
		t.Errorf("%+v, %v, %v", got, err, journalFiles(t, dir))
	}
}

// A journal that cannot be believed is set aside, with a message, and the agent starts without one.
func TestJournalSetAside(t *testing.T) {
	whole := formatJournal(aJournal())
	for name, test := range map[string]struct {
		make func(file string) error
		word string
	}{
		"empty":           {func(f string) error { return os.WriteFile(f, nil, 0o600) }, "it is empty"},
		"cut":             {func(f string) error { return os.WriteFile(f, whole[:len(whole)/2], 0o600) }, "its checksum does not fit its text"},
		"another version": {func(f string) error { return os.WriteFile(f, []byte("unstale journal v2 crc:1\n{}\n"), 0o600) }, "another version of unstale may have written it"},
		"not to be read":  {func(f string) error { return os.WriteFile(f, withChecksum("[]"), 0o600) }, "cannot unmarshal array"},
		"too large":       {func(f string) error { return errors.Join(os.WriteFile(f, whole, 0o600), os.Truncate(f, maxJournal+1)) }, "it has 16777217 bytes, more than the 16777216"},
		"a folder":        {func(f string) error { return os.Mkdir(f, 0o700) }, "it is not a file"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "journal")
			if err := test.make(file); err != nil {
				t.Fatal(err)
			}
			before, _ := os.ReadFile(file)
			var damaged *DamagedError
			if _, err := JournalDir(dir).Load(); !errors.As(err, &damaged) || damaged.File != file || !strings.Contains(damaged.Why, test.word) {
				t.Fatalf("%v; want %q", err, test.word)
			}
			o, logs := options(dir)
			s, err := NewScrubber(o)
			if err != nil {
				t.Fatal(err)
			}
			s.Synced()
			if r := s.Releases(); len(r) != 0 {
				t.Errorf("it was believed: %v", r)
			}
			if names := journalFiles(t, dir); !slices.Equal(names, []string{"journal.damaged"}) {
				t.Errorf("%v", names)
			}
			after, _ := os.ReadFile(filepath.Join(dir, "journal.damaged"))
			if !bytes.Equal(before, after) {
				t.Error("what was set aside is not what there was")
			}
			if all := logs.All(); len(all) != 1 || !strings.Contains(fmt.Sprint(all[0].ContextMap()["error"]), damaged.Error()) || !strings.Contains(damaged.Error(), "is damaged and is not used: "+damaged.Why) {
				t.Errorf("logged: %v", all)
			}
		})
	}
}

// A file of the largest size is read; a damaged one from before is replaced.
func TestJournalSetAsideAgain(t *testing.T) {
	dir := t.TempDir()
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, "journal"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, _ := options(dir)
		if _, err := NewScrubber(o); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "journal.damaged")); err != nil || string(got) != "two" || len(journalFiles(t, dir)) != 1 {
		t.Errorf("%q, %v, %v", got, err, journalFiles(t, dir))
	}
	if err := os.WriteFile(filepath.Join(dir, "journal"), make([]byte, maxJournal), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := JournalDir(dir).Load(); err == nil || strings.Contains(err.Error(), "more than") {
		t.Error(err)
	}
}

// The largest journal that there can be is read again.
func TestJournalOfTheLargestNode(t *testing.T) {
	j := Journal{Boot: "b"}
	a, b := addr("10.0.0.0"), addr("fd00:1111:2222:3333:4444:5555:6666:0")
	for i := range maxReleases + 1000 {
		a, b = a.Next(), b.Next()
		j.Pods = append(j.Pods, JournalPod{
			PodRef: PodRef{strings.Repeat("n", 63), strings.Repeat("p", 253), fmt.Sprint("01234567-0123-0123-0123-0123456789ab", i)}, Addresses: []netip.Addr{a}, Others: []netip.Addr{b},
		})
	}
	if text := formatJournal(j); len(text) > maxJournal/2 {
		t.Errorf("%d bytes", len(text))
	}
	d := JournalDir(t.TempDir())
	if err := d.Save(j); err != nil {
		t.Fatal(err)
	}
	if got, err := d.Load(); err != nil || !reflect.DeepEqual(got, j) {
		t.Error(err)
	}
}

// Of another boot only the pods' own words count: the tables are new.
func TestJournalOfAnotherBoot(t *testing.T) {
	for boot, releases := range map[string]int{"8c0b1f6e": 3, "another": 0, "": 3} {
		dir := t.TempDir()
		j := aJournal()
		j.Boot = boot
		if err := JournalDir(dir).Save(j); err != nil {
			t.Fatal(err)
		}
		o, logs := options(dir)
		s, err := NewScrubber(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Synced()
		if got := len(s.Releases()); got != releases {
			t.Errorf("boot id %q: %d releases", boot, got)
		}
		if told := logs.FilterMessageSnippet("before the last boot").Len(); (told == 1) != (releases == 0) {
			t.Errorf("boot id %q: told %d times", boot, told)
		}
	}
}

// What goes wrong with the directory is said with what to do, and takes away no journal.
func TestJournalDirFails(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := JournalDir(filepath.Join(file, "unstale"))
	_, loadErr := d.Load()
	var damaged *DamagedError
	if loadErr == nil || errors.As(loadErr, &damaged) || !strings.HasPrefix(loadErr.Error(), "read the journal: ") || !strings.Contains(loadErr.Error(), "check kernel.stateDir") {
		t.Errorf("load: %v", loadErr)
	}
	if err := d.Save(aJournal()); err == nil || !strings.HasPrefix(err.Error(), "write the journal: ") || !strings.Contains(err.Error(), "check kernel.stateDir and its disk") {
		t.Errorf("save: %v", err)
	}
	o, _ := options(string(d))
	if s, err := NewScrubber(o); err == nil || s != nil || err.Error() != loadErr.Error() {
		t.Errorf("without knowing what there was, nothing may start: %v", err)
	}
	// A new file that is in the way of the next.
	d = JournalDir(dir)
	if err := errors.Join(d.Save(aJournal()), os.Mkdir(filepath.Join(dir, "journal.new"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := d.Save(Journal{}); err == nil || !strings.Contains(err.Error(), "journal.new") {
		t.Error(err)
	}
	if j, err := d.Load(); err != nil || !reflect.DeepEqual(j, aJournal()) {
		t.Errorf("%+v, %v", j, err)
	}
	// One that is damaged and cannot be set aside.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "journal"), nil, 0o600), os.MkdirAll(filepath.Join(dir, "journal.damaged", "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	o, _ = options(dir)
	if _, err := NewScrubber(o); err == nil || !strings.HasPrefix(err.Error(), "set the damaged journal aside: ") {
		t.Error(err)
	}
}

// generation is the n-th journal that TestJournalWriter writes: each has another size.
func generation(n int) Journal {
	j := Journal{Boot: strconv.Itoa(n)}
	for i := range n * 7 % 120 {
		j.Pods = append(j.Pods, JournalPod{PodRef: PodRef{"ns", fmt.Sprint("pod-", n), fmt.Sprint(i)}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(n), byte(i)})}})
	}
	return j
}

const journalWriterDir = "UNSTALE_TEST_JOURNAL_WRITER"

// TestJournalWriter is the process that TestJournalSurvivesKill kills. By itself it does nothing.
func TestJournalWriter(t *testing.T) {
	dir, asked := os.LookupEnv(journalWriterDir)
	for n := 1; asked; n++ {
		if err := JournalDir(dir).Save(generation(n)); err != nil {
			t.Fatal(err)
		}
		fmt.Println("saved", n)
	}
}

// Killed at any moment, a process leaves the last journal that it wrote, or the next one, whole.
func TestJournalSurvivesKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	found := map[int]int{} // how far beyond the last one that was told
	for i := range 50 {
		c := exec.Command(os.Args[0], "-test.run=^TestJournalWriter$")
		c.Env = append(os.Environ(), journalWriterDir+"="+dir)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		told := 0
		lines := bufio.NewScanner(out)
		for told < 1+i%17 && lines.Scan() {
			if _, err := fmt.Sscanf(lines.Text(), "saved %d", &told); err != nil {
				t.Fatalf("%q: %v", lines.Text(), err)
			}
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for lines.Scan() { // what it wrote until it was killed
			_, _ = fmt.Sscanf(lines.Text(), "saved %d", &told)
		}
		_ = c.Wait() // it was killed
		j, err := JournalDir(dir).Load()
		if err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		n, err := strconv.Atoi(j.Boot)
		if err != nil || n < told || n > told+1 || !reflect.DeepEqual(j, generation(n)) {
			t.Fatalf("kill %d: %d were saved, and found is number %s with %d pods", i, told, j.Boot, len(j.Pods))
		}
		found[n-told]++
		for _, name := range journalFiles(t, dir) {
			if name != "journal" && name != "journal.new" {
				t.Errorf("left: %s", name)
			}
		}
	}
	t.Logf("beyond the last save that was told: %v", slices.Sorted(maps.Keys(found)))
}
