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

// A checkedWriter remembers the first error of its writes: zap itself drops it.
type checkedWriter struct {
	w   io.Writer
	mu  sync.Mutex
	err error // guarded by mu
}

func (c *checkedWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	if err != nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.err == nil {
			c.err = err
		}
	}
	return n, err
}

// Err is the first error of a write.
func (c *checkedWriter) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
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
