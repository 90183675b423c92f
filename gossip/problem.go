package gossip

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// A Problem is something that keeps agents from gossiping and that an operator can mend. Metrics and logs use these words.
type Problem string

// The problems.
const (
	WrongKey     Problem = "WrongKey"     // another agent encrypts with a key that this one lacks, or only one of the two encrypts
	WrongLabel   Problem = "WrongLabel"   // another cluster's agents are reachable from here
	UDPBlocked   Problem = "UDPBlocked"   // TCP gets through to a member, UDP does not
	TCPBlocked   Problem = "TCPBlocked"   // UDP gets through to a member, TCP does not
	NameConflict Problem = "NameConflict" // two agents have one name
	Unreachable  Problem = "Unreachable"  // none of the peers could be joined
	Overloaded   Problem = "Overloaded"   // messages are dropped, here
)

// from is how memberlist ends a line about somebody.
var from = regexp.MustCompile(`from=(\S+)`)

// classify recognises the lines of memberlist's log that tell of a problem: it has no other way to tell. who is an address
// or a member's name. Tests over real sockets hold the lines to the version in use.
func classify(line string) (p Problem, who string, ok bool) {
	if match := from.FindStringSubmatch(line); match != nil {
		who = match[1]
	}
	switch {
	case strings.Contains(line, "Decrypt packet failed"),
		strings.Contains(line, "no installed keys could decrypt"),
		strings.Contains(line, "encryption is configured but remote state is not encrypted"),
		strings.Contains(line, "remote state is encrypted and encryption is not configured"):
		if who == "" {
			who = between(line, "failed to join ", ": ")
		}
		if who == "" {
			who = between(line, "Push/Pull with ", " failed")
		}
		return WrongKey, who, true
	case strings.Contains(line, "with unacceptable label"):
		return WrongLabel, who, true
	case strings.Contains(line, "over TCP but UDP probes failed"):
		return UDPBlocked, between(line, "able to connect to ", " over TCP"), true
	case strings.Contains(line, "Push/Pull with ") && (strings.Contains(line, "dial ") || strings.Contains(line, "timeout")):
		return TCPBlocked, between(line, "Push/Pull with ", " failed"), true
	case strings.Contains(line, "handler queue full"):
		return Overloaded, who, true
	}
	return "", "", false
}

// between is what stands in s after the one and before the other mark, "" when they do not stand there.
func between(s, after, before string) string {
	_, s, ok := strings.Cut(s, after)
	if !ok {
		return ""
	}
	found, _, ok := strings.Cut(s, before)
	if !ok {
		return ""
	}
	return found
}

// advice says what a problem means and what to do.
var advice = map[Problem]string{
	WrongKey: "an agent encrypts gossip with a key that is not in this agent's key file, or one of the two does not encrypt: " +
		"give all agents the same keys; to rotate, add the new key everywhere before it becomes the first",
	WrongLabel: "gossip arrives from an agent of another cluster (the label is the UID of namespace kube-system); " +
		"it is ignored, but its list of peers should not lead here",
	UDPBlocked:   "a member answers over TCP but not over UDP: let UDP through on the gossip port, in both directions",
	TCPBlocked:   "a member gossips over UDP but cannot be reached over TCP: let TCP through on the gossip port, in both directions",
	NameConflict: "two agents have this name; each node needs its own. If the node came back under a new address, this ends within a minute",
	Unreachable:  "no peer could be joined; this agent goes on alone and tries again",
	Overloaded:   "messages are being dropped: this agent has too little CPU, or somebody floods it",
}

const (
	// warnEvery is how often the same warning about the same peer is logged.
	warnEvery = time.Minute
	// maxWarned bounds what is remembered to that end. Whoever can make up addresses must not fill the memory.
	maxWarned = 1024
)

// problems counts problems and logs them, each kind and peer once in a while.
type problems struct {
	log *zap.Logger
	now func() time.Time

	mu     sync.Mutex
	counts map[Problem]int64    // guarded by mu
	warned map[string]time.Time // guarded by mu; when the same was last logged
}

func newProblems(log *zap.Logger) *problems {
	return &problems{log: log, now: time.Now, counts: make(map[Problem]int64), warned: make(map[string]time.Time)}
}

// met counts a problem and logs it unless the same was just logged. It is called from memberlist's callbacks too, so it
// must not take long.
func (p *problems) met(problem Problem, who string, more ...zap.Field) {
	p.mu.Lock()
	p.counts[problem]++
	p.mu.Unlock()
	// A stream's port differs each time.
	host := who
	if h, _, err := net.SplitHostPort(who); err == nil {
		host = h
	}
	if p.due(string(problem)+" "+host, warnEvery) {
		p.log.Warn(advice[problem], append([]zap.Field{zap.String("problem", string(problem)), zap.String("peer", who)}, more...)...)
	}
}

// due tells whether something may be logged again, and notes that it was.
func (p *problems) due(what string, every time.Duration) bool {
	now := p.now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if last, ok := p.warned[what]; ok && now.Sub(last) < every {
		return false
	}
	if len(p.warned) >= maxWarned {
		clear(p.warned) // at worst a warning comes again early
	}
	p.warned[what] = now
	return true
}

func (p *problems) count(problem Problem) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts[problem]
}

// whyNotStarted says what to do about an error of listening, where that is known.
func whyNotStarted(address string, err error) error {
	text := err.Error()
	switch {
	// memberlist keeps only the text. The second is Windows's.
	case strings.Contains(text, "address already in use"), strings.Contains(text, "Only one usage of each socket address"):
		return fmt.Errorf("gossip cannot listen on %s: the port is in use, by another agent or program on this host; "+
			"stop it, or set gossip.port to another one for all agents: %w", address, err)
	case strings.Contains(text, "cannot assign requested address"), strings.Contains(text, "not valid in its context"):
		return fmt.Errorf("gossip cannot listen on %s: no interface of this host has this address; set gossip.bindAddress: %w", address, err)
	case strings.Contains(text, "permission denied"):
		return fmt.Errorf("gossip cannot listen on %s: not permitted; set gossip.port to one above 1023: %w", address, err)
	}
	return fmt.Errorf("gossip cannot listen on %s: %w", address, err)
}

// whyNotJoined says what an error of joining most likely means.
func whyNotJoined(address netip.AddrPort, err error) error {
	text := err.Error()
	hint := ""
	switch {
	case strings.Contains(text, "no installed keys"), strings.Contains(text, "is not encrypted"), strings.Contains(text, "is encrypted"):
		hint = ": its encryption keys differ"
	case strings.Contains(text, "EOF"), strings.Contains(text, "reset by peer"), strings.Contains(text, "forcibly closed"):
		hint = ": it hung up, so its label differs (another cluster's agent) or it is no agent of unstale"
	case strings.Contains(text, "refused"):
		hint = ": nothing listens there"
	case strings.Contains(text, "timeout"), strings.Contains(text, "no route"), strings.Contains(text, "unreachable"):
		hint = ": nothing answers there over TCP; the host is down, or a firewall blocks the gossip port"
	}
	return fmt.Errorf("join %s%s: %w", address, hint, err)
}
