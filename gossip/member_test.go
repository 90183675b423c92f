package gossip

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

func TestMetadata(t *testing.T) {
	for _, m := range []Metadata{
		{Role: Agent},
		{Role: Pruner, Leaving: true, Able: true, KeySet: 0xdeadbeef, Incarnation: 1<<64 - 1, Version: "v1.2.3"},
		{Role: Agent, Able: true, Version: strings.Repeat("v", MaxMetadata-metadataFixed)},
	} {
		data := m.encode()
		if len(data) > MaxMetadata {
			t.Errorf("%d bytes", len(data))
		}
		if got, err := decodeMetadata(data); err != nil || got != m {
			t.Errorf("got %+v, %v, want %+v", got, err, m)
		}
	}
	long := Metadata{Role: Agent, Version: strings.Repeat("v", 1000)}
	if n := len(long.encode()); n != MaxMetadata {
		t.Errorf("a long version makes %d bytes", n)
	}
}

// The bytes that other versions send. They never change.
func TestGoldenMetadata(t *testing.T) {
	var text strings.Builder
	for _, v := range [][2]string{
		{"this version", "01000103" + "01020304" + "1122334455667788" + "06" + hex.EncodeToString([]byte("v1.2.3"))},
		{"a later minor version with a field, a flag and a role more", "01010983" + "01020304" + "1122334455667788" + "02" + hex.EncodeToString([]byte("v2")) + "ffff"},
		{"a later major version", "02" + "00"},
		{"cut before the version", "010001030102030411223344556677"},
		{"cut within the version", "01000103" + "01020304" + "1122334455667788" + "06" + "76"},
		{"nothing", ""},
	} {
		data, err := hex.DecodeString(v[1])
		if err != nil {
			t.Fatal(err)
		}
		m, err := decodeMetadata(data)
		fmt.Fprintf(&text, "%s: %x\n  role %d %+v\n  %v\n", v[0], data, m.Role, m, err)
	}
	golden(t, "metadata.golden", text.String())
	first := Metadata{Role: Agent, Leaving: true, Able: true, KeySet: 0x01020304, Incarnation: 0x1122334455667788, Version: "v1.2.3"}
	if got := hex.EncodeToString(first.encode()); !strings.Contains(text.String(), got+"\n") {
		t.Errorf("encoded as %s", got)
	}
}

func FuzzDecodeMetadata(f *testing.F) {
	f.Add(Metadata{Role: Pruner, Able: true, Version: "v1"}.encode())
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := decodeMetadata(data)
		if err != nil {
			return
		}
		again, err := decodeMetadata(m.encode())
		m.Version = m.Version[:min(len(m.Version), MaxMetadata-metadataFixed)]
		if err != nil || again != m {
			t.Errorf("%+v became %+v, %v", m, again, err)
		}
	})
}
