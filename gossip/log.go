package gossip

import (
	"log"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// bridge is where memberlist's log goes: lines such as "[WARN] memberlist: …", one a Write.
// memberlist logs under its lock too, so a line is only noted there, and dealt with by postpone: a log that nobody reads
// must not stop gossip.
type bridge struct {
	log      *zap.Logger
	problems *problems
	postpone func(func())
}

// newLogger makes the logger that memberlist takes.
func newLogger(l *zap.Logger, p *problems, postpone func(func())) *log.Logger {
	return log.New(&bridge{log: l, problems: p, postpone: postpone}, "", 0)
}

// repeatEvery is how often lines of one shape are logged. A node that is gone, or a port scanner, makes many.
const repeatEvery = 10 * time.Second

func (b *bridge) Write(line []byte) (int, error) {
	text := string(line)
	b.postpone(func() { b.handle(text) })
	return len(line), nil
}

func (b *bridge) handle(line string) {
	level, text := parseLine(line)
	problem, who, known := classify(text)
	if known {
		b.problems.met(problem, who)
	}
	// A problem has been told already in words that say what to do.
	if known || strings.HasPrefix(text, "Conflicting address") {
		level = zapcore.DebugLevel
	}
	if level <= zapcore.DebugLevel || b.problems.due("line "+shape(text), repeatEvery) {
		if entry := b.log.Check(level, text); entry != nil {
			entry.Write()
		}
	}
}

// parseLine takes memberlist's level and name off a line. What memberlist calls an error is trouble on the network, which
// it deals with, and never a failure of this agent: a warning.
func parseLine(line string) (zapcore.Level, string) {
	level := zapcore.InfoLevel
	text := strings.TrimSpace(line)
	if strings.HasPrefix(text, "[") {
		name, rest, found := strings.Cut(text[1:], "]")
		if found {
			text = strings.TrimSpace(rest)
			switch name {
			case "DEBUG":
				level = zapcore.DebugLevel
			case "WARN", "ERR", "ERROR":
				level = zapcore.WarnLevel
			}
		}
	} else if strings.HasPrefix(text, "Err: ") {
		level = zapcore.WarnLevel
	}
	return level, strings.TrimSpace(strings.TrimPrefix(text, "memberlist:"))
}

// shape is what lines that differ in a name or a number only have in common.
func shape(text string) string {
	words := strings.Fields(text)
	return strings.Join(words[:min(len(words), 3)], " ")
}
