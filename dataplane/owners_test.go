package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

// A transcript is a test of Owners that people can read. Each line is one thing that happens and, after an arrow, all that it changes about which
// addresses are lost; without an arrow it changes nothing. A pod's UID is its capital letter, its name the small one, unless it says otherwise.
//
//	see A run 10.0.0.1
//	+5s gone A → lost A 10.0.0.1 PodGone not before 60s
//
//	see UID WORDS       the API server has the pod: its phase (pending run succeeded failed unknown), addresses, and host terminating
//	                    sandboxlost stopped name=a grace=45s created=5s note=10.0.0.1 (an annotation)
//	gone UID            the API server no longer has it
//	synced              all pods were seen
//	restart             the agent is another, with the journal of the one before; restart without a journal
//	done UID ADDRESS    nothing is left of a lost address; forget drops what is not needed
//	present             those that there are → each with its addresses
type transcript struct {
	owners *Owners
	now    time.Time
	known  map[string]*Release // the releases after the line before
}

func play(t *testing.T, text string) {
	t.Helper()
	s := transcript{owners: NewOwners(Journal{}), now: noon, known: map[string]*Release{}}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		command, _, _ := strings.Cut(line, "→")
		got := strings.TrimSpace(command)
		if outcome := s.step(strings.Fields(command)); outcome != "" {
			got += " → " + outcome
		}
		if strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(line), " ") {
			t.Errorf("want %s\ngot  %s", line, got)
		}
	}
}

func (s *transcript) step(words []string) string {
	if wait, has := strings.CutPrefix(words[0], "+"); has {
		s.now = s.now.Add(must(time.ParseDuration(wait)))
		words = words[1:]
	}
	o := s.owners
	switch words[0] {
	case "see":
		o.Saw(podOfWords(words[1], words[2:]), s.now)
	case "gone":
		o.Gone(words[1], s.now)
	case "synced":
		o.Synced(s.now)
	case "restart":
		journal, err := parseJournal(formatJournal(o.Journal("boot")))
		if err != nil {
			return err.Error()
		}
		if strings.Join(words, " ") == "restart without a journal" {
			journal = Journal{}
		}
		s.owners = NewOwners(journal)
	case "done":
		if r := s.known[words[1]+" "+words[2]]; r != nil {
			o.Done(r)
		}
	case "forget":
		o.Forget()
	case "present":
		var present []string
		for _, p := range o.Present() {
			slices.SortFunc(p.Addresses, netip.Addr.Compare)
			present = append(present, strings.Trim(fmt.Sprint(p.UID, " ", p.Addresses), "[]"))
		}
		return strings.NewReplacer("[", "", "]", "").Replace(strings.Join(present, ", "))
	default:
		return "what is " + words[0] + "?"
	}
	return s.changes()
}

// changes tells what became of the releases since the line before.
func (s *transcript) changes() string {
	var changes []string
	now := map[string]*Release{}
	for _, r := range s.owners.Releases() {
		id := r.Pod.UID + " " + r.Address.String()
		now[id] = r
		if s.known[id] == r {
			continue
		}
		text := "lost " + id
		if !r.First {
			text += " (second)"
		}
		text += " " + string(r.Reason)
		if !r.Since.Equal(s.now) {
			text += fmt.Sprintf(" since %s ago", s.now.Sub(r.Since))
		}
		if r.NotBefore.After(s.now) {
			text += fmt.Sprintf(" not before %s", r.NotBefore.Sub(s.now))
		}
		changes = append(changes, text)
	}
	for id := range s.known {
		if now[id] == nil {
			changes = append(changes, "not lost "+id)
		}
	}
	s.known = now
	slices.Sort(changes)
	return strings.Join(changes, ", ")
}

func podOfWords(uid string, words []string) Pod {
	p := Pod{PodRef: PodRef{Namespace: "ns", Name: strings.ToLower(uid), UID: uid}, GracePeriod: 30 * time.Second, Created: noon}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "pending":
			p.Phase = PodPending
		case "run":
			p.Phase = PodRunning
		case "succeeded":
			p.Phase = PodSucceeded
		case "failed":
			p.Phase = PodFailed
		case "unknown":
			p.Phase = "Unknown"
		case "host":
			p.HostNetwork = true
		case "terminating":
			p.Terminating = true
		case "sandboxlost":
			p.SandboxLost = true
		case "stopped":
			p.Stopped = true
		case "name":
			p.Name = value
		case "namespace":
			p.Namespace = value
		case "grace":
			p.GracePeriod = must(time.ParseDuration(value))
		case "created":
			p.Created = noon.Add(must(time.ParseDuration(value)))
		case "started":
			p.Started = noon.Add(must(time.ParseDuration(value)))
		case "note":
			p.Annotated = append(p.Annotated, addr(value))
		default:
			p.Addresses = append(p.Addresses, addr(w))
		}
	}
	return p
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// The rows of the table in the design, "Kernel state".
func TestOwnersTable(t *testing.T) {
	for name, text := range map[string]string{
		"hostNetwork": `
			see A host run 10.0.0.1
			+1s see A host run
			+1s see A host succeeded 10.0.0.1
			+1s gone A
			present`,
		"hostNetwork, its address another's before": `
			see A run 10.0.0.1
			see B host run 10.0.0.1
			gone B
			present → A 10.0.0.1`,
		"pending or running with an address, then another": `
			see A pending
			see A pending 10.0.0.1
			+1s see A run 10.0.0.1
			+5s see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			+5s see A run 10.0.0.3 → lost A 10.0.0.2 AddressLost`,
		"terminating with an address": `
			see A run 10.0.0.1
			see A run terminating 10.0.0.1
			present → A 10.0.0.1`,
		"terminating, first seen so": `
			see A run terminating 10.0.0.1
			+1s see A run terminating → lost A 10.0.0.1 AddressLost`,
		"running without its address": `
			see A run 10.0.0.1
			+3s see A run → lost A 10.0.0.1 AddressLost
			+3s see A run
			+3s see A run 10.0.0.1 → not lost A 10.0.0.1
			+3s see A run → lost A 10.0.0.1 AddressLost`,
		"terminating without its address": `
			see A pending 10.0.0.1
			see A pending terminating → lost A 10.0.0.1 AddressLost`,
		"running without an address, and never had one": `
			see A run
			gone A`,
		"running, its sandbox lost": `
			see A run 10.0.0.1
			+1s see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+1s see A run sandboxlost 10.0.0.1
			present → A 10.0.0.1`,
		"sandbox lost and back with the same address": `
			see A run 10.0.0.1
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+9s see A run 10.0.0.1 → not lost A 10.0.0.1`,
		"sandbox lost and back with another address": `
			see A run 10.0.0.1
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+9s see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			present → A 10.0.0.2`,
		"sandbox lost, then the address empty": `
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+9s see A run sandboxlost → lost A 10.0.0.1 AddressLost`,
		"address empty, then back without a sandbox": `
			see A run 10.0.0.1
			see A run → lost A 10.0.0.1 AddressLost
			+9s see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost`,
		"a sandbox that is not there yet": `
			see A pending sandboxlost
			see A pending sandboxlost 10.0.0.1
			see A run 10.0.0.1`,
		"succeeded": `
			see A run 10.0.0.1 fd00::1
			+1s see A succeeded 10.0.0.1 fd00::1 → lost A 10.0.0.1 PodFinished, lost A fd00::1 (second) PodFinished`,
		"failed, its sandbox lost before": `
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+1s see A failed sandboxlost 10.0.0.1 → lost A 10.0.0.1 PodFinished`,
		"finished, then gone": `
			see A run 10.0.0.1
			see A failed 10.0.0.1 → lost A 10.0.0.1 PodFinished
			+1s gone A → lost A 10.0.0.1 PodFinished since 1s ago`,
		// What is older than the journal is only reported.
		"finished, first seen so": `
			see A failed 10.0.0.1
			see A failed stopped 10.0.0.1
			present → A 10.0.0.1`,
		"started and finished between two looks": `
			see A pending
			see A succeeded 10.0.0.1 fd00::1 → lost A 10.0.0.1 PodFinished, lost A fd00::1 (second) PodFinished
			done A 10.0.0.1 → not lost A 10.0.0.1
			see A succeeded stopped 10.0.0.1 fd00::1`,
		"moved and finished between two looks": `
			see A run 10.0.0.1
			see A failed 10.0.0.2 → lost A 10.0.0.1 PodFinished, lost A 10.0.0.2 PodFinished`,
		"gone, its containers seen ended": `
			see A run 10.0.0.1
			see A run terminating stopped 10.0.0.1
			+1s gone A → lost A 10.0.0.1 PodGone`,
		"gone by force": `
			see A run grace=45s 10.0.0.1
			+1s gone A → lost A 10.0.0.1 PodGone not before 1m15s
			present`,
		"gone by force, its sandbox lost before": `
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+1s gone A → lost A 10.0.0.1 PodGone not before 1m0s`,
		"the same name with a new UID": `
			see A name=a 10.0.0.1 run
			+5s see B name=a created=5s run 10.0.0.2 → lost A 10.0.0.1 PodGone not before 1m0s
			present → B 10.0.0.2`,
		"the same name in another namespace": `
			see A name=a run 10.0.0.1
			see B name=a namespace=other created=5s run 10.0.0.2
			present → A 10.0.0.1, B 10.0.0.2`,
	} {
		t.Run(name, func(t *testing.T) { play(t, text) })
	}
}

// What must hold by the issue, and the reports of others that must come out right.
func TestOwnersMustHold(t *testing.T) {
	for name, text := range map[string]string{
		"a late delete of A, whose address B has": `
			see A run 10.0.0.1
			see B run 10.0.0.1
			gone A → lost A 10.0.0.1 PodGone not before 1m0s
			present → B 10.0.0.1`,
		"A and B with the same name: a late delete of A": `
			see A name=a run 10.0.0.1
			+5s see B name=a created=5s run 10.0.0.1 → lost A 10.0.0.1 PodGone not before 1m0s
			+1s gone A
			present → B 10.0.0.1`,
		"A and B with the same name: a late word of A": `
			see B name=a created=5s run 10.0.0.1
			see A name=a run 10.0.0.1
			see A name=a run
			gone A
			present → B 10.0.0.1`,
		"A and B with the same name: a late word of A, which was known": `
			see A name=a run 10.0.0.1
			+5s see B name=a created=5s run 10.0.0.1 → lost A 10.0.0.1 PodGone not before 1m0s
			+1s see A name=a run 10.0.0.1
			present → B 10.0.0.1`,
		"A and B with the same name, created in the same second: neither is taken for the later one": `
			see A name=a run 10.0.0.1
			see B name=a run 10.0.0.2
			see A name=a run 10.0.0.1
			present → A 10.0.0.1, B 10.0.0.2
			gone A → lost A 10.0.0.1 PodGone not before 1m0s`,
		"three of the same name": `
			see A name=a run 10.0.0.1
			+1s see C name=a created=9s run 10.0.0.3 → lost A 10.0.0.1 PodGone not before 1m0s
			+1s see B name=a created=5s run 10.0.0.2
			present → C 10.0.0.3`,
		"a word after the end": `
			see A run 10.0.0.1
			gone A → lost A 10.0.0.1 PodGone not before 1m0s
			+1s see A run 10.0.0.1
			+1s gone A
			present`,
		"an unknown pod is gone": `
			gone A`,
		"the address moves from pod to pod": `
			see A run 10.0.0.1
			+1s see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			see B run 10.0.0.1
			+1s see B run → lost B 10.0.0.1 AddressLost
			+1s see A run 10.0.0.1 → lost A 10.0.0.2 AddressLost, not lost A 10.0.0.1`,
		"dual stack: each family is on its own": `
			see A run 10.0.0.1 fd00::1
			+1s see A run 10.0.0.1 → lost A fd00::1 (second) AddressLost
			+1s see A run 10.0.0.1 fd00::2
			+1s see A run fd00::2 → lost A 10.0.0.1 AddressLost
			+1s gone A → lost A 10.0.0.1 AddressLost since 1s ago not before 1m0s, lost A fd00::1 (second) AddressLost since 3s ago not before 1m0s, lost A fd00::2 (second) PodGone not before 1m0s`,
		// Others still have it as their second, so the API server would not find them by it.
		"an address that was the second stays one, whatever is left of the first": `
			see A run 10.0.0.1 fd00::1
			see A run fd00::1 → lost A 10.0.0.1 AddressLost
			restart → not lost A 10.0.0.1
			see A run fd00::1 → lost A 10.0.0.1 AddressLost
			synced
			see A run → lost A fd00::1 (second) AddressLost`,
		"an address that was the second stays one, whatever has been forgotten": `
			see A run 10.0.0.1 fd00::1
			see A run → lost A 10.0.0.1 AddressLost, lost A fd00::1 (second) AddressLost
			done A fd00::1 → not lost A fd00::1
			see A run fd00::1
			+1s gone A → lost A 10.0.0.1 AddressLost since 1s ago not before 1m0s, lost A fd00::1 (second) PodGone not before 1m0s`,
		"an address that was the first and becomes the second is one": `
			see A run 10.0.0.1
			see A run fd00::1 10.0.0.1
			see A run fd00::1 → lost A 10.0.0.1 (second) AddressLost`,
		"an address becomes the second while the sandbox is lost": `
			see A run sandboxlost fd00::1 → lost A fd00::1 SandboxLost
			+1s see A run sandboxlost 10.0.0.1 fd00::1 → lost A 10.0.0.1 SandboxLost, lost A fd00::1 (second) SandboxLost
			+1s see A run sandboxlost 10.0.0.1 fd00::1`,
		"several addresses of one family": `
			see A run 10.0.0.1 10.0.0.2 10.0.0.3
			see A run 10.0.0.1 10.0.0.3 → lost A 10.0.0.2 (second) AddressLost`,
		"empty before it starts again": `
			see A run 10.0.0.1
			+1s see A pending
			present → A 10.0.0.1
			+1s see A run 10.0.0.1`,
		"empty on a node of which nothing is known": `
			see A run 10.0.0.1
			see A unknown
			present → A 10.0.0.1
			see A unknown 10.0.0.2 → lost A 10.0.0.1 AddressLost`,
		"a lost one is not present while the status is empty": `
			see A run 10.0.0.1
			see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			see A pending
			present → A 10.0.0.2`,
		// Its containers may have the address that its status did not show.
		"the address is empty for a moment, and then the pod is deleted by force": `
			see A run 10.0.0.1
			see A run → lost A 10.0.0.1 AddressLost
			+2s gone A → lost A 10.0.0.1 AddressLost since 2s ago not before 1m0s`,
		"the address is lost, then the pod ends": `
			see A run 10.0.0.1
			see A run → lost A 10.0.0.1 AddressLost
			+2s see A succeeded 10.0.0.1 → lost A 10.0.0.1 AddressLost since 2s ago
			+2s gone A → lost A 10.0.0.1 AddressLost since 4s ago`,
		"the address is lost, then the pod goes, its containers seen ended": `
			see A run 10.0.0.1
			see A run → lost A 10.0.0.1 AddressLost
			+2s see A run terminating stopped
			+2s gone A → lost A 10.0.0.1 AddressLost since 4s ago`,
	} {
		t.Run(name, func(t *testing.T) { play(t, text) })
	}
}

// What is known of pods outlives the agent.
func TestOwnersJournal(t *testing.T) {
	for name, text := range map[string]string{
		"the pod is there as before": `
			see A run 10.0.0.1
			restart
			see A run 10.0.0.1
			synced
			present → A 10.0.0.1`,
		"the pod is not there": `
			see A run grace=90s 10.0.0.1 fd00::1
			+1h restart
			+1s synced → lost A 10.0.0.1 PodGone not before 2m0s, lost A fd00::1 (second) PodGone not before 2m0s`,
		"the pod is not there, and its containers were seen ended": `
			see A run terminating stopped 10.0.0.1
			restart
			synced → lost A 10.0.0.1 PodGone`,
		"the pod lost its address": `
			see A run 10.0.0.1
			restart
			see A run → lost A 10.0.0.1 AddressLost
			synced`,
		"the pod changed its address": `
			see A run 10.0.0.1
			restart
			see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			synced`,
		"the pod has ended": `
			see A run 10.0.0.1
			restart
			see A failed 10.0.0.2 → lost A 10.0.0.1 PodFinished, lost A 10.0.0.2 PodFinished
			synced`,
		"the pod's sandbox is lost": `
			see A run 10.0.0.1
			restart
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			synced`,
		"the pod shows no address yet": `
			see A run 10.0.0.1
			restart
			see A pending
			synced
			present → A 10.0.0.1`,
		"another has the name": `
			see A name=a run 10.0.0.1
			restart
			see B name=a created=5s run 10.0.0.2 → lost A 10.0.0.1 PodGone not before 1m0s
			synced`,
		"another has the name, by a clock that was set back": `
			see A name=a created=5s run 10.0.0.1
			restart
			see B name=a run 10.0.0.2 → lost A 10.0.0.1 PodGone not before 1m0s
			synced`,
		"another has the address": `
			see A run 10.0.0.1
			restart
			see B run 10.0.0.1
			synced → lost A 10.0.0.1 PodGone not before 1m0s
			present → B 10.0.0.1`,
		// When it was lost is not in the journal: the grace begins anew.
		"what was lost and may have left entries": `
			see A run 10.0.0.1
			see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			+5s gone A → lost A 10.0.0.1 AddressLost since 5s ago not before 1m0s, lost A 10.0.0.2 PodGone not before 1m0s
			restart → not lost A 10.0.0.1, not lost A 10.0.0.2
			+5s synced → lost A 10.0.0.1 PodGone not before 1m0s, lost A 10.0.0.2 PodGone not before 1m0s`,
		"what was lost and has left nothing": `
			see A run 10.0.0.1
			see A run 10.0.0.2 → lost A 10.0.0.1 AddressLost
			done A 10.0.0.1 → not lost A 10.0.0.1
			restart
			synced → lost A 10.0.0.2 PodGone not before 1m0s`,
		"before all pods are seen": `
			see A run 10.0.0.1
			restart
			present
			see B run 10.0.0.2
			present → B 10.0.0.2`,
		"the journal is lost": `
			see A run 10.0.0.1
			see B run 10.0.0.2
			restart without a journal
			see B run
			synced
			present → B`,
		"a word of a pod that went while the agent was down": `
			see A run 10.0.0.1
			restart
			gone A → lost A 10.0.0.1 PodGone not before 1m0s
			synced`,
	} {
		t.Run(name, func(t *testing.T) { play(t, text) })
	}
}

// A release ends when nothing is left of it, and only that one.
func TestOwnersDone(t *testing.T) {
	for name, text := range map[string]string{
		"of a pod that is gone": `
			see A run 10.0.0.1 10.0.0.2
			gone A → lost A 10.0.0.1 PodGone not before 1m0s, lost A 10.0.0.2 (second) PodGone not before 1m0s
			done A 10.0.0.1 → not lost A 10.0.0.1
			forget
			done A 10.0.0.2 → not lost A 10.0.0.2
			forget
			see A run 10.0.0.1
			present → A 10.0.0.1`,
		"of a pod that lives: lost again, it is a new one": `
			see A run 10.0.0.1
			see A run → lost A 10.0.0.1 AddressLost
			done A 10.0.0.1 → not lost A 10.0.0.1
			+1s see A run
			+1s see A run 10.0.0.1
			+1s see A run → lost A 10.0.0.1 AddressLost`,
		"of a lost sandbox: it stays, so that it is not taken for a new one": `
			see A run sandboxlost 10.0.0.1 → lost A 10.0.0.1 SandboxLost
			+1s done A 10.0.0.1
			+1s see A run sandboxlost 10.0.0.1`,
	} {
		t.Run(name, func(t *testing.T) { play(t, text) })
	}
	o := NewOwners(Journal{})
	o.Saw(podOfWords("A", strings.Fields("run 10.0.0.1")), noon)
	o.Saw(podOfWords("A", strings.Fields("run")), noon)
	late := o.Releases()[0]
	o.Saw(podOfWords("A", strings.Fields("run 10.0.0.1")), noon)
	o.Done(late)
	o.Gone("A", noon)
	if releases := o.Releases(); len(releases) != 1 || releases[0].Reason != PodGone {
		t.Errorf("a release that ended long ago took the address with it: %v", releases)
	}
	o.Done(late)
	if len(o.Releases()) != 1 {
		t.Error("a release that ended long ago ended the one that there is")
	}
}

// The journal is behind after all that may change it, and after nothing else.
func TestOwnersChanged(t *testing.T) {
	o := NewOwners(Journal{Pods: []JournalPod{{PodRef: PodRef{"ns", "z", "Z"}, Addresses: []netip.Addr{addr("10.0.0.9")}}}})
	for _, step := range []struct {
		what string
		do   func()
		want bool
	}{
		{"nothing", func() {}, false},
		{"a pod", func() { o.Saw(podOfWords("A", strings.Fields("run 10.0.0.1")), noon) }, true},
		{"an unknown pod is gone", func() { o.Gone("X", noon) }, false},
		{"all seen", func() { o.Synced(noon) }, true},
		{"all seen again", func() { o.Synced(noon) }, false},
		{"the pod goes", func() { o.Gone("A", noon) }, true},
		{"the pod goes again", func() { o.Gone("A", noon) }, false},
		{"it comes late", func() { o.Saw(podOfWords("A", strings.Fields("run 10.0.0.1")), noon) }, false},
		{"nothing to forget", func() { o.Forget() }, false},
		{"a release ends", func() { o.Done(o.Releases()[0]) }, true},
		{"the other ends", func() { o.Done(o.Releases()[0]) }, true},
		{"gone pods are forgotten", func() { o.Forget() }, false},
	} {
		step.do()
		if got := o.Changed(); got != step.want {
			t.Errorf("%s: changed %v", step.what, got)
		}
		o.Journal("")
	}
	if len(o.pods) != 0 {
		t.Errorf("left: %v", o.pods)
	}
}

// The journal has each pod that has or had an address, in the same order each time, and no other.
func TestOwnersJournalText(t *testing.T) {
	o := NewOwners(Journal{})
	for _, line := range []string{"C run 10.0.0.3 fd00::3", "A run stopped grace=5s 10.0.0.2 10.0.0.1", "B run", "H host run 10.0.0.9"} {
		words := strings.Fields(line)
		o.Saw(podOfWords(words[0], words[1:]), noon)
	}
	o.Saw(podOfWords("A", strings.Fields("run stopped grace=5s 10.0.0.2")), noon)
	o.Gone("C", noon)
	_, got, _ := strings.Cut(string(formatJournal(o.Journal("b"))), "\n")
	want := `{"boot": "b", "pods": [
{"namespace":"ns","name":"a","uid":"A","addresses":["10.0.0.2"],"others":["10.0.0.1"],"graceSeconds":5,"stopped":true},
{"namespace":"ns","name":"c","uid":"C","addresses":["10.0.0.3"],"others":["fd00::3"],"graceSeconds":30,"stopped":false}
]}
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Too many releases: the oldest go, and nothing of the pods that live.
func TestOwnersForget(t *testing.T) {
	o := NewOwners(Journal{})
	a := addr("10.0.0.0")
	for i := range maxReleases + 3 {
		a = a.Next()
		p := podOfWords(fmt.Sprint("P", i), []string{"run"})
		p.Addresses = []netip.Addr{a}
		o.Saw(p, noon)
		if i < maxReleases {
			o.Gone(p.UID, noon.Add(time.Duration(i)*time.Second))
		}
	}
	if given := o.Forget(); len(given) != 0 || len(o.Releases()) != maxReleases {
		t.Fatalf("%d given up, %d left", len(given), len(o.Releases()))
	}
	for uid, oldest := range map[string]string{fmt.Sprint("P", maxReleases): "P0", fmt.Sprint("P", maxReleases+1): fmt.Sprint("P", maxReleases+1)} {
		at := noon.Add(time.Hour)
		if uid == oldest {
			at = noon.Add(-time.Second) // by a clock that was set back
		}
		o.Gone(uid, at)
		o.Journal("")
		if given := o.Forget(); len(given) != 1 || given[0].Pod.UID != oldest || len(o.Releases()) != maxReleases || !o.Changed() {
			t.Errorf("given up: %v; %d left", given, len(o.Releases()))
		}
	}
	if len(o.pods) != maxReleases+1 || len(o.Journal("").Pods) != maxReleases+1 || o.Present()[0].UID != fmt.Sprint("P", maxReleases+2) {
		t.Errorf("%d pods, present %v", len(o.pods), o.Present())
	}
}

// Releases come in the order in which they were seen, those of one moment by address.
func TestOwnersOrder(t *testing.T) {
	o := NewOwners(Journal{})
	for _, line := range []string{"A run 10.0.0.3", "B run 10.0.0.1", "C run 10.0.0.2", "D run 10.0.0.1"} {
		words := strings.Fields(line)
		o.Saw(podOfWords(words[0], words[1:]), noon)
	}
	o.Gone("A", noon)
	for _, uid := range []string{"D", "C", "B"} {
		o.Gone(uid, noon.Add(time.Second))
	}
	var got []string
	for _, r := range o.Releases() {
		got = append(got, r.Pod.UID)
	}
	if fmt.Sprint(got) != "[A B D C]" {
		t.Error(got)
	}
}

// Ready is when the grace is over and the containers cannot run any more.
func TestReleaseReady(t *testing.T) {
	for _, test := range []struct{ grace, notBefore, want time.Duration }{
		{10 * time.Second, 0, 10 * time.Second}, {10 * time.Second, 10 * time.Second, 10 * time.Second}, {10 * time.Second, 60 * time.Second, 60 * time.Second}, {time.Minute, 10 * time.Second, time.Minute},
	} {
		r := Release{Since: noon, NotBefore: noon.Add(test.notBefore)}
		if got := r.Ready(test.grace).Sub(noon); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}

// Most updates of a pod say nothing about its addresses.
func TestRelevant(t *testing.T) {
	for _, test := range []struct {
		before, after string
		want          bool
	}{
		{"A pending", "A pending", false},
		{"A pending", "A pending sandboxlost", false},
		{"A pending note=10.0.0.1", "A pending note=10.0.0.1", false},
		{"A pending note=10.0.0.1", "A pending", true},
		{"A pending", "A pending note=10.0.0.1", true},
		{"A unknown", "A pending", false},
		{"A pending", "A run", true},
		{"A pending", "A pending 10.0.0.1", true},
		{"A pending", "A pending terminating", true},
		{"A pending", "A failed", true},
		{"A run 10.0.0.1", "A run 10.0.0.1", false},
		{"A run", "A run", false},
		{"A run 10.0.0.1", "A run", true},
		{"A run 10.0.0.1", "A pending", true},
		{"A run 10.0.0.1", "A run 10.0.0.2", true},
		{"A run 10.0.0.1", "A run 10.0.0.1 fd00::1", true},
		{"A run 10.0.0.1 fd00::1", "A run fd00::1 10.0.0.1", true},
		{"A run 10.0.0.1", "A run sandboxlost 10.0.0.1", true},
		{"A run sandboxlost 10.0.0.1", "A run 10.0.0.1", true},
		{"A run 10.0.0.1", "A run terminating 10.0.0.1", true},
		{"A run 10.0.0.1", "A run stopped 10.0.0.1", true},
		{"A run 10.0.0.1", "A run grace=5s 10.0.0.1", true},
		{"A run 10.0.0.1", "A run note=10.0.0.1 10.0.0.1", true},
		{"A run 10.0.0.1", "A run started=5s 10.0.0.1", true},
		{"A run started=5s 10.0.0.1", "A run started=5s 10.0.0.1", false},
		{"A pending", "A pending started=5s", false},
		{"A run 10.0.0.1", "A succeeded 10.0.0.1", true},
		{"A host run 10.0.0.1", "A host run", false},
		{"A host run 10.0.0.1", "A host failed", false},
		{"A name=a run", "B name=a run", true},
		{"A name=a pending", "B name=a pending", true},
		{"A name=a host run", "B name=a host run", true},
	} {
		before, after := strings.Fields(test.before), strings.Fields(test.after)
		if got := Relevant(podOfWords(before[0], before[1:]), podOfWords(after[0], after[1:])); got != test.want {
			t.Errorf("from %q to %q: %v", test.before, test.after, got)
		}
	}
}
