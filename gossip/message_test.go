package gossip

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What other versions send, one file each: what this version makes of it never changes. Files are only added.
func TestGoldenMessages(t *testing.T) {
	files, err := filepath.Glob("testdata/message-*.json")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	var text strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m, err := decodeMessage(data)
		fmt.Fprintf(&text, "%s\n  %s %d from %s %d to %s: %s\n  %v\n", filepath.Base(file), m.Type, m.ID, m.Sender, m.Incarnation, m.To, m.Payload, err)
	}
	golden(t, "messages.golden", text.String())
}

func TestEncodeMessage(t *testing.T) {
	good := Message{Type: "wish", ID: 7, Sender: "node-1", Incarnation: 1700000000000000000, To: "node-2", Payload: json.RawMessage(`{"key":"node-1"}`)}
	data, err := encodeMessage(good)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/message-1.0.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != strings.TrimSpace(string(want)) {
		t.Errorf("got %s\nwant %s", data, want)
	}
	for name, change := range map[string]func(*Message){
		"no type":     func(m *Message) { m.Type = "" },
		"a long type": func(m *Message) { m.Type = strings.Repeat("t", maxType+1) },
		"no sender":   func(m *Message) { m.Sender = "" },
		"no receiver": func(m *Message) { m.To = "" },
		"a long name": func(m *Message) { m.To = strings.Repeat("n", maxName+1) },
		"no JSON":     func(m *Message) { m.Payload = json.RawMessage(`{`) },
		"too large":   func(m *Message) { m.Payload = json.RawMessage(`"` + strings.Repeat("x", MaxMessage) + `"`) },
	} {
		m := good
		change(&m)
		if _, err := encodeMessage(m); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := decodeMessage([]byte(strings.Repeat(" ", MaxMessage) + string(data))); err == nil {
		t.Error("a large message was read")
	}
}

func FuzzDecodeMessage(f *testing.F) {
	files, _ := filepath.Glob("testdata/message-*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMessage(data)
		if err != nil {
			return
		}
		if m.Sender == "" || m.To == "" || m.Type == "" {
			t.Errorf("%+v", m)
		}
		again, err := encodeMessage(m)
		if err != nil && !strings.Contains(err.Error(), "at most") { // escapes may make it longer
			t.Fatal(err)
		}
		if err == nil {
			if _, err := decodeMessage(again); err != nil {
				t.Error(err)
			}
		}
	})
}
