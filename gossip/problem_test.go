package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

func TestClassify(t *testing.T) {
	for _, test := range []struct {
		line    string
		problem Problem
		who     string
	}{
		{"Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.1:7947", WrongKey, "10.0.0.1:7947"},
		{"Decrypt packet failed: unsupported encryption version 0 from=10.0.0.1:7947", WrongKey, "10.0.0.1:7947"},
		{"failed to receive: no installed keys could decrypt the message from=10.0.0.1:41234", WrongKey, "10.0.0.1:41234"},
		{"failed to receive: encryption is configured but remote state is not encrypted from=[fd00::1]:41234", WrongKey, "[fd00::1]:41234"},
		{"failed to receive: remote state is encrypted and encryption is not configured from=10.0.0.1:41234", WrongKey, "10.0.0.1:41234"},
		{"failed to join 10.0.0.1:7947: no installed keys could decrypt the message", WrongKey, "10.0.0.1:7947"},
		{"Push/Pull with node-1 failed: no installed keys could decrypt the message", WrongKey, "node-1"},
		{`discarding packet with unacceptable label "other": from=10.0.0.1:7947`, WrongLabel, "10.0.0.1:7947"},
		{`discarding stream with unacceptable label "": from=10.0.0.1:7947`, WrongLabel, "10.0.0.1:7947"},
		{"Was able to connect to node-1 over TCP but UDP probes failed, network may be misconfigured", UDPBlocked, "node-1"},
		{"Push/Pull with node-1 failed: dial tcp 10.0.0.1:7947: i/o timeout", TCPBlocked, "node-1"},
		{"handler queue full, dropping message (3) from=10.0.0.1:7947", Overloaded, "10.0.0.1:7947"},
		{"Suspect node-1 has failed, no acks received", "", ""},
		{"failed to join 10.0.0.1:7947: dial tcp 10.0.0.1:7947: i/o timeout", "", ""},
		{"", "", ""},
	} {
		problem, who, known := classify(test.line)
		if problem != test.problem || who != test.who || known != (test.problem != "") {
			t.Errorf("%s: %s %q", test.line, problem, who)
		}
	}
	for problem := range advice {
		if problem == "" || advice[problem] == "" {
			t.Errorf("%q has no advice", problem)
		}
	}
}

func TestParseLine(t *testing.T) {
	for line, want := range map[string]string{
		"[DEBUG] memberlist: Stream connection from=1.2.3.4:5\n":    "debug Stream connection from=1.2.3.4:5",
		"[INFO] memberlist: Suspect a has failed, no acks received": "info Suspect a has failed, no acks received",
		"[WARN] memberlist: Refuting a suspect message (from: b)":   "warn Refuting a suspect message (from: b)",
		"[ERR] memberlist: Failed to send gossip to 1.2.3.4: x":     "warn Failed to send gossip to 1.2.3.4: x",
		"[ERROR] memberlist: Failed to encrypt local state: x":      "warn Failed to encrypt local state: x",
		"[ERR] Failed to shutdown transport: x":                     "warn Failed to shutdown transport: x",
		"Err: Could not set the deadline: x":                        "warn Err: Could not set the deadline: x",
		"something else":                                            "info something else",
		"[":                                                         "info [",
		"":                                                          "info ",
	} {
		level, text := parseLine(line)
		if got := level.String() + " " + text; got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

// The same warning about the same peer comes once a minute, whatever its port; another one at once.
func TestWarnsOnceAMinute(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	p := newProblems(zap.New(core))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	p.now = func() time.Time { return now }
	said := func(want int) {
		t.Helper()
		if got := logs.FilterLevelExact(zapcore.WarnLevel).Len(); got != want {
			t.Errorf("%d warnings, want %d", got, want)
		}
	}
	b := newLogger(zap.New(core), p, func(f func()) { f() })
	for i := range 50 {
		b.Printf("[ERR] memberlist: failed to receive: no installed keys could decrypt the message from=10.0.0.1:%d", i)
	}
	said(1)
	b.Printf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.2:7947")
	said(2)
	now = now.Add(warnEvery)
	b.Printf("[ERR] memberlist: Decrypt packet failed: no installed keys could decrypt the message from=10.0.0.2:7947")
	said(3)
	if n := p.count(WrongKey); n != 52 {
		t.Errorf("%d counted", n)
	}
	// Lines of one shape that are no known problem.
	for i := range 50 {
		b.Printf("[ERR] memberlist: Failed to send gossip to 10.0.0.%d: network is unreachable", i)
	}
	said(4)
	for i := range 10 * maxWarned {
		p.met(WrongKey, fmt.Sprintf("10.0.%d.%d:1", i/256, i%256))
	}
	if len(p.warned) > maxWarned {
		t.Errorf("%d remembered", len(p.warned))
	}
}

func TestWhyNotStarted(t *testing.T) {
	for text, want := range map[string]string{
		"listen tcp 10.0.0.1:7947: bind: address already in use":                                             "the port is in use, by another agent or program on this host",
		"bind: Only one usage of each socket address (protocol/network address/port) is normally permitted.": "the port is in use",
		"bind: cannot assign requested address":                                                              "set gossip.bindAddress",
		"bind: The requested address is not valid in its context.":                                           "set gossip.bindAddress",
		"bind: permission denied":                                                                            "set gossip.port to one above 1023",
		"something else":                                                                                     "gossip cannot listen on 10.0.0.1:7947: something else",
	} {
		cause := errors.New(text)
		if err := whyNotStarted("10.0.0.1:7947", cause); !strings.Contains(err.Error(), want) || !errors.Is(err, cause) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestStrangers(t *testing.T) {
	known := map[netip.AddrPort]bool{netip.MustParseAddrPort("10.0.0.1:7947"): true}
	noDNS := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no DNS here") }}
	for _, test := range []struct {
		name  string
		peers []string
		want  string
		err   string
	}{
		{"none", nil, "", ""},
		{"known, unknown, twice", []string{"10.0.0.1:7947", "10.0.0.2:7947", "10.0.0.2:7947"}, "10.0.0.2:7947", ""},
		{"known address, another port", []string{"10.0.0.1:7948"}, "10.0.0.1:7948", ""},
		{"known, as IPv6", []string{"[::ffff:10.0.0.1]:7947"}, "", ""},
		{"IPv6", []string{"[fd00::1]:7947"}, "[fd00::1]:7947", ""},
		{"a name", []string{"localhost:7947"}, "127.0.0.1:7947", ""},
		{"no port", []string{"10.0.0.2", "10.0.0.3:7947"}, "10.0.0.3:7947", `peer "10.0.0.2" is not host:port`},
		{"a bad port", []string{"host:x"}, "", `peer "host:x" is not host:port`},
		{"a name that nobody knows", []string{"nobody.invalid:7947", "10.0.0.3:7947"}, "10.0.0.3:7947", `look up peer "nobody.invalid:7947"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, err := strangers(t.Context(), noDNS, test.peers, known)
			var texts []string
			for _, a := range found {
				if a.Addr() != netip.IPv6Loopback() { // localhost may be that too
					texts = append(texts, a.String())
				}
			}
			slices.Sort(texts)
			if got := strings.Join(texts, " "); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}
