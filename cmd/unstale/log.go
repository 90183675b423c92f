package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/unstale/unstale/status"
)

// newLogger makes a logger that writes to w as JSON, or for people as console.
func newLogger(w io.Writer, format string) (*zap.Logger, error) {
	out := zapcore.Lock(zapcore.AddSync(w)) // lines stay whole
	switch format {
	case "json":
		config := zap.NewProductionEncoderConfig()
		config.TimeKey, config.EncodeTime = "time", zapcore.RFC3339TimeEncoder
		return zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(config), out, zap.InfoLevel)), nil
	case "console":
		return zap.New(&console{LevelEnabler: zap.InfoLevel, out: out}), nil
	}
	return nil, usageError(fmt.Errorf("--log-format is %q; it must be console or json", format))
}

// console is a zap core for people: "12:00:00 info removing key=node-7 …". zap's own console encoder writes all fields as
// JSON, in which a command that puts an entry back cannot be copied to a shell; here it stands on a line of its own.
type console struct {
	zapcore.LevelEnabler
	out    zapcore.WriteSyncer
	fields []zapcore.Field
}

// A checkedWriter remembers which of its writes failed: zap itself drops the errors.
type checkedWriter struct {
	w io.Writer

	mu       sync.Mutex
	failures int   // how many writes failed; guarded by mu
	failed   error // the last write, nil if it succeeded; guarded by mu
	last     error // why the last one that failed did; guarded by mu
	torn     bool  // a line was begun and not ended; guarded by mu
}

// Write writes one line, or more.
func (c *checkedWriter) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.torn { // what comes must not be taken for the rest of it
		if _, c.failed = c.w.Write([]byte{'\n'}); c.failed != nil {
			c.failures, c.last = c.failures+1, c.failed
			return 0, c.failed
		}
		c.torn = false
	}
	n, err := c.w.Write(p)
	if c.failed = err; err != nil {
		c.failures, c.last, c.torn = c.failures+1, err, n > 0
	}
	return n, err
}

// failure is why the last write failed, nil if it did not.
func (c *checkedWriter) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

// state is the number of writes that failed so far, and why the last of them did.
func (c *checkedWriter) state() (failures int, last error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failures, c.last
}

// recorder tells by the writes since a removal began to be logged whether that was written. log must write to c. Whose line it was that
// failed nobody knows, so it counts against all removals that are under way.
func (c *checkedWriter) recorder(log *zap.Logger) status.Recorder {
	return func() (func() error, error) {
		if failed := c.failure(); failed != nil {
			// A short line shows whether it is over, and costs little if it is not.
			log.Warn("the log could not be written; what was logged meanwhile is lost", zap.Error(failed))
			if err := c.failure(); err != nil {
				return nil, err
			}
		}
		before, _ := c.state()
		return func() error {
			if failures, last := c.state(); failures != before {
				return last
			}
			return nil
		}, nil
	}
}

func (c *console) With(fields []zapcore.Field) zapcore.Core {
	return &console{c.LevelEnabler, c.out, append(slices.Clip(c.fields), fields...)}
}

func (c *console) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

func (c *console) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	var line strings.Builder
	fmt.Fprintf(&line, "%s %s %s", entry.Time.UTC().Format("15:04:05Z"), entry.Level, entry.Message)
	putBack := ""
	for _, field := range append(slices.Clip(c.fields), fields...) {
		values := zapcore.NewMapObjectEncoder()
		field.AddTo(values)
		value := fmt.Sprint(values.Fields[field.Key])
		switch {
		case field.Key == "putBack":
			putBack = value
		case value != "":
			fmt.Fprintf(&line, " %s=%s", field.Key, onOneLine(value))
		}
	}
	line.WriteByte('\n')
	if putBack != "" {
		fmt.Fprintf(&line, "    to put it back: %s\n", putBack)
	}
	_, err := io.WriteString(c.out, line.String())
	return err
}

func (c *console) Sync() error { return nil }

// onOneLine is text as it stands, or quoted where it would break the line or the terminal.
func onOneLine(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) {
		return strconv.Quote(text)
	}
	return text
}
