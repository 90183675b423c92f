package dataplane

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
)

// A Journal is what one agent leaves to the next on the same node: which pod has which address, or had it and may have left entries.
type Journal struct {
	// Boot is the kernel's boot id. After another boot the kernel tables are new, and what was written before says nothing about them.
	Boot string       `json:"boot"`
	Pods []JournalPod `json:"pods"`
}

// A JournalPod is what the journal says of one pod.
type JournalPod struct {
	PodRef
	Addresses    []netip.Addr `json:"addresses,omitempty"` // the first ones, which the API server can be asked for
	Others       []netip.Addr `json:"others,omitempty"`
	GraceSeconds int64        `json:"graceSeconds"` // its terminationGracePeriodSeconds
	Stopped      bool         `json:"stopped"`      // its containers were seen ended
}

const (
	journalName  = "journal"
	damagedName  = "journal.damaged"
	journalStart = "unstale journal v1 sha256:"
	// maxJournal is the most that is read, in bytes: far more than maxReleases and the pods of a node need.
	maxJournal = 16 << 20
)

// A JournalDir is the directory in which an agent keeps its journal: one file that people can read.
type JournalDir string

// A DamagedError says that there is a journal, but not one to believe.
type DamagedError struct {
	File string
	Why  string
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("the journal %s is damaged and is not used: %s; addresses that pods lost before now are only reported", e.File, e.Why)
}

// Load reads the journal. Where there is none it returns an empty one. One that is damaged is a *DamagedError.
func (d JournalDir) Load() (Journal, error) {
	file := filepath.Join(string(d), journalName)
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Journal{}, nil
	case err != nil:
		return Journal{}, fmt.Errorf("read the journal: %w; check kernel.stateDir", err)
	case !info.Mode().IsRegular():
		return Journal{}, &DamagedError{file, "it is not a file"}
	case info.Size() > maxJournal:
		return Journal{}, &DamagedError{file, fmt.Sprintf("it has %d bytes, more than the %d that are ever written", info.Size(), maxJournal)}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return Journal{}, fmt.Errorf("read the journal: %w; check kernel.stateDir", err)
	}
	j, err := parseJournal(data)
	if err != nil {
		return Journal{}, &DamagedError{file, err.Error()}
	}
	return j, nil
}

// SetAside keeps a damaged journal for people, under the name journal.damaged; one from before is replaced.
func (d JournalDir) SetAside() error {
	return os.Rename(filepath.Join(string(d), journalName), filepath.Join(string(d), damagedName))
}

// Save writes the journal so that at every moment, whatever happens, the file is whole: the one before or this one.
func (d JournalDir) Save(j Journal) error {
	if err := d.save(formatJournal(j)); err != nil {
		return fmt.Errorf("write the journal: %w; check kernel.stateDir and its disk", err)
	}
	return nil
}

func (d JournalDir) save(data []byte) (err error) {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return err
	}
	file := filepath.Join(string(d), journalName)
	// Always the same name, so that killed processes leave one such file at most.
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	return syncDir(string(d))
}

// formatJournal is the journal's text: a line with the checksum of the rest, then JSON with a line for each pod.
func formatJournal(j Journal) []byte {
	var body bytes.Buffer
	fmt.Fprintf(&body, "{\"boot\": %s, \"pods\": [", mustJSON(j.Boot))
	for i, p := range j.Pods {
		if i > 0 {
			body.WriteByte(',')
		}
		body.WriteByte('\n')
		body.Write(mustJSON(p))
	}
	body.WriteString("\n]}\n")
	return append(fmt.Appendf(nil, "%s%s\n", journalStart, checksum(body.Bytes())), body.Bytes()...)
}

func mustJSON(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("dataplane: a journal has no JSON form: %v", err)) // strings, numbers and addresses all have one
	}
	return text
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// parseJournal reads the text. Only what formatJournal wrote, whole, is accepted.
func parseJournal(data []byte) (Journal, error) {
	first, body, _ := bytes.Cut(data, []byte{'\n'})
	sum, ok := bytes.CutPrefix(first, []byte(journalStart))
	switch {
	case len(data) == 0:
		return Journal{}, errors.New("it is empty")
	case !ok:
		return Journal{}, fmt.Errorf("its first line is not %q and a checksum; another version of unstale may have written it", journalStart)
	case string(sum) != checksum(body):
		return Journal{}, errors.New("its checksum does not fit its text")
	}
	var j Journal
	if err := json.Unmarshal(body, &j); err != nil {
		return Journal{}, err
	}
	seen := map[string]bool{}
	for i := range j.Pods {
		p := &j.Pods[i]
		if p.UID == "" || seen[p.UID] || p.GraceSeconds < 0 || len(p.Addresses)+len(p.Others) == 0 {
			return Journal{}, fmt.Errorf("what it says of pod %s (UID %s) cannot be", p.PodRef, p.UID)
		}
		seen[p.UID] = true
		for _, list := range [][]netip.Addr{p.Addresses, p.Others} {
			for k, a := range list {
				if !a.IsValid() {
					return Journal{}, fmt.Errorf("an address of pod %s is empty", p.PodRef)
				}
				list[k] = a.Unmap().WithZone("")
			}
		}
	}
	return j, nil
}
