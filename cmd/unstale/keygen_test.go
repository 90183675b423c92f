package main

import (
	"strings"
	"testing"

	"github.com/unstale/unstale/gossip"
)

func TestKeysAreAddedToAKeyFile(t *testing.T) {
	first, second := runProgram(t, "keygen"), runProgram(t, "keygen")
	first.want(t, 0)
	if first.stderr != "" || !strings.HasPrefix(first.stdout, "# ") || strings.Count(first.stdout, "\n") != 2 || !strings.HasSuffix(first.stdout, "\n") {
		t.Errorf("it is no comment and a key:\n%s%s", first.stdout, first.stderr)
	}
	one, err := gossip.ParseKeys([]byte(first.stdout))
	if err != nil {
		t.Fatal(err)
	}
	// As its help says, a second one is added at the end. ParseKeys refuses the same key twice.
	both, err := gossip.ParseKeys([]byte(first.stdout + second.stdout))
	if err != nil {
		t.Fatal(err)
	}
	if one.Hash() == both.Hash() {
		t.Error("the second key is not read")
	}
	runProgram(t, "keygen", "--help").want(t, 0, "last line", "make\nit the first", "remove the old one")
	runProgram(t, "keygen", "32").want(t, exitUsage)
}
