package gossip

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/memberlist"
)

func TestParseKeys(t *testing.T) {
	one, two := GenerateKey(), GenerateKey()
	for _, test := range []struct {
		name, file string
		keys       int
		want       string
	}{
		{"one", one, 1, ""},
		{"two, comments, empty lines, Windows's line ends", "# old\r\n\r\n " + one + " \r\n#\n" + two + "\n\n", 2, ""},
		{"nothing", "", 0, "no key in it; unstale keygen makes one"},
		{"only comments", "# " + one, 0, "no key in it"},
		{"no base64", one + "\n\nsecret!" + two, 0, "line 3: not base64"},
		{"base64 that does not end well", one[:len(one)-2] + "B=", 0, "line 1: not base64"},
		{"16 bytes", "AAAAAAAAAAAAAAAAAAAAAA==", 0, "line 1: a key of 16 bytes, 32 are needed"},
		{"twice", one + "\n" + two + "\n" + one, 0, "line 3: the same key as on an earlier line"},
		{"two on a line", one + " " + two, 0, "line 1: not base64"},
	} {
		t.Run(test.name, func(t *testing.T) {
			keys, err := ParseKeys([]byte(test.file))
			if test.want == "" {
				if err != nil || len(keys.list) != test.keys {
					t.Errorf("%v, %v", keys, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want %q", err, test.want)
			}
			for _, secret := range []string{one[:12], two[:12], "secret", "AAAA"} {
				if strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows a key: %v", err)
				}
			}
		})
	}
	keys, _ := ParseKeys([]byte(one))
	if text := fmt.Sprintf("%v %+v %#v %s %d", keys, keys, keys, keys, keys.Hash()); strings.Contains(text, one[:12]) || strings.Contains(text, strings.Trim(fmt.Sprint(keys.list[0][:4]), "[]")) || strings.Contains(text, "uint8") {
		t.Errorf("a key is printed: %s", text)
	}
}

func TestKeySet(t *testing.T) {
	a, b, c := GenerateKey(), GenerateKey(), GenerateKey()
	hash := func(lines ...string) uint32 {
		keys, err := ParseKeys([]byte(strings.Join(lines, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		return keys.Hash()
	}
	if hash(a, b, c) != hash(a, c, b) {
		t.Error("the order of the others makes a difference")
	}
	if hash(a) == hash(b) {
		t.Error("two keys look the same")
	}
	for _, other := range []uint32{hash(a), hash(a, b), hash(b, a, c), hash(c, a, b), 0} {
		if hash(a, b, c) == other {
			t.Error("two sets look the same")
		}
	}
}

// Whatever ring stands before it, install makes the wanted one, while others encrypt and decrypt with it (the race detector
// watches), and no key that stays is ever missing.
func TestInstall(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var pool [][]byte
	for i := range byte(6) {
		pool = append(pool, bytes.Repeat([]byte{i}, keySize))
	}
	ring, err := memberlist.NewKeyring(pool[:3], pool[0])
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	var mu sync.Mutex
	var stay [][]byte // guarded by mu
	for range 2 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				mu.Lock()
				want := stay
				keys := ring.GetKeys()
				same := slices.Clone(keys)
				mu.Unlock()
				for _, key := range want {
					if !slices.ContainsFunc(same, func(k []byte) bool { return bytes.Equal(k, key) }) {
						t.Error("a key that stays is missing")
					}
				}
				for i := range keys { // as memberlist does, without a lock
					if !bytes.Equal(keys[i], same[i]) {
						t.Error("a ring in use has changed")
					}
				}
			}
		})
	}
	for range 500 {
		before := ring.GetKeys()
		r.Shuffle(len(pool), func(i, j int) { pool[i], pool[j] = pool[j], pool[i] })
		want := Keys{slices.Clone(pool[:1+r.IntN(len(pool))])}
		mu.Lock()
		stay = nil
		for _, key := range before {
			if want.has(key) {
				stay = append(stay, key)
			}
		}
		mu.Unlock()
		if err := install(ring, want); err != nil {
			t.Fatal(err)
		}
		after := ring.GetKeys()
		if len(after) != len(want.list) || !bytes.Equal(after[0], want.list[0]) || slices.ContainsFunc(after, func(k []byte) bool { return !want.has(k) }) {
			t.Fatalf("%v became %v, want %v", before, after, want.list)
		}
	}
}

func FuzzParseKeys(f *testing.F) {
	f.Add([]byte("# comment\n" + GenerateKey() + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, err := ParseKeys(data)
		if err != nil {
			return
		}
		for _, key := range keys.list {
			if len(key) != keySize {
				t.Errorf("a key of %d bytes", len(key))
			}
		}
		if _, err := newKeyring(keys); err != nil || keys.Hash() == 0 {
			t.Errorf("%v, %d", err, keys.Hash())
		}
	})
}
