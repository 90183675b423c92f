package gossip

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/hashicorp/memberlist"
)

// keySize is AES-256's.
const keySize = 32

// Keys are the encryption keys of a key file: the first encrypts, all decrypt. There is at least one.
type Keys struct{ list [][]byte }

// GenerateKey makes a new key in the form of a line of a key file.
func GenerateKey() string {
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	return base64.StdEncoding.EncodeToString(key)
}

// ParseKeys reads a key file: 32 bytes in base64 on each line; empty lines and lines that begin with # do not count. Its
// errors name the line and never show what stands there.
func ParseKeys(data []byte) (Keys, error) {
	var keys Keys
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.Strict().DecodeString(line)
		if err != nil {
			// The decoder's own error tells a position only, but says nothing that helps either.
			return Keys{}, fmt.Errorf("line %d: not base64", number)
		}
		if len(key) != keySize {
			return Keys{}, fmt.Errorf("line %d: a key of %d bytes, %d are needed; unstale keygen makes one", number, len(key), keySize)
		}
		for _, other := range keys.list {
			if bytes.Equal(other, key) {
				return Keys{}, fmt.Errorf("line %d: the same key as on an earlier line", number)
			}
		}
		keys.list = append(keys.list, key)
	}
	if len(keys.list) == 0 {
		return Keys{}, fmt.Errorf("no key in it; unstale keygen makes one")
	}
	return keys, nil
}

var errNoKeyFile = errors.New("no keyFile: make a key with `unstale keygen`, give the same file to all agents, and set gossip.keyFile; " +
	"only on a network that nobody else reaches set gossip.insecure: true instead")

// CheckKeys tells whether a cluster with that KeyFile and Insecure would find its keys.
func CheckKeys(file string, insecure bool) error {
	switch {
	case file != "":
		_, err := LoadKeys(file)
		return err
	case !insecure:
		return errNoKeyFile
	}
	return nil
}

// LoadKeys reads the key file at path.
func LoadKeys(path string) (Keys, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Keys{}, fmt.Errorf("read the gossip keys: %w", err)
	}
	keys, err := ParseKeys(data)
	if err != nil {
		return Keys{}, fmt.Errorf("read the gossip keys: %s: %w", path, err)
	}
	return keys, nil
}

// Hash identifies the keys and which of them is the first, so that an operator can see when a step of a rotation has
// reached every member. The order of the others makes no difference. It is never 0, which is what members without
// encryption show. Four bytes of a hash tell nothing about 32 random ones.
func (k Keys) Hash() uint32 {
	h := sha256.New()
	h.Write([]byte("unstale gossip key set v1\x00"))
	h.Write(k.list[0])
	others := slices.Clone(k.list[1:])
	slices.SortFunc(others, bytes.Compare)
	for _, key := range others {
		h.Write(key)
	}
	return max(1, binary.BigEndian.Uint32(h.Sum(nil)))
}

// String says how many keys there are, so that no log shows one.
func (k Keys) String() string { return fmt.Sprintf("%d keys", len(k.list)) }

// GoString is for %#v, which does not ask String.
func (k Keys) GoString() string { return k.String() }

func (k Keys) has(key []byte) bool {
	return slices.ContainsFunc(k.list, func(other []byte) bool { return bytes.Equal(other, key) })
}

// same tells whether both hold the same keys with the same one first.
func (k Keys) same(other Keys) bool {
	if len(k.list) != len(other.list) || !bytes.Equal(k.list[0], other.list[0]) {
		return false
	}
	return !slices.ContainsFunc(k.list, func(key []byte) bool { return !other.has(key) })
}

func newKeyring(keys Keys) (*memberlist.Keyring, error) {
	return memberlist.NewKeyring(keys.list, keys.list[0])
}

// install makes a keyring in use hold exactly these keys, with the first one first.
//
// memberlist reads the ring without a lock, and RemoveKey shifts the keys behind the removed one in place, under the eyes
// of whoever is decrypting. So only the last key is ever removed; what must go is first brought to the end. The one way
// to do that is UseKey, which puts a key in front. Every key that stays can decrypt at every moment; in front, if only
// for an instant, stand only keys that the ring already held, and the new first one.
func install(ring *memberlist.Keyring, keys Keys) error {
	first := keys.list[0]
	if err := ring.AddKey(first); err != nil {
		return err
	}
	goesBefore := false // something that goes stands before this key
	for _, key := range ring.GetKeys() {
		if !keys.has(key) {
			goesBefore = true
		} else if goesBefore && !bytes.Equal(key, first) {
			if err := ring.UseKey(key); err != nil {
				return err
			}
		}
	}
	if err := ring.UseKey(first); err != nil {
		return err
	}
	for {
		all := ring.GetKeys()
		last := all[len(all)-1]
		if keys.has(last) {
			break
		}
		if err := ring.RemoveKey(last); err != nil {
			return err
		}
	}
	for _, key := range keys.list[1:] {
		if err := ring.AddKey(key); err != nil {
			return err
		}
	}
	return nil
}
