package gossip

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares text with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s\nwant\n%s", path, got, want)
	}
}

// Agents of two versions must agree on every owner: these vectors never change. They were checked against
// an independent implementation of XXH64.
func TestGoldenOwners(t *testing.T) {
	var text strings.Builder
	for _, v := range [][2]string{
		{"node-1", "config.nri/topologyawarepolicies//default"},
		{"node-2", "config.nri/topologyawarepolicies//default"},
		{"node-1", ""},
		{"", ""},
		{"node-ö", "nfd.k8s-sigs.io/nodefeatures/node-feature-discovery/node-1"},
		{strings.Repeat("n", 253), strings.Repeat("k", 500)},
	} {
		fmt.Fprintf(&text, "score %.40q %.60q %016x\n", v[0], v[1], Score(v[0], v[1]))
	}
	members := names("node-", 10)
	for i := range 20 {
		key := fmt.Sprintf("config.nri/balloonspolicies/kube-system/policy-%d", i)
		fmt.Fprintf(&text, "owner %s %s\n", key, Owner(members, key))
	}
	golden(t, "owners.golden", text.String())
}

func names(prefix string, n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("%s%d", prefix, i))
	}
	return all
}

func TestOwner(t *testing.T) {
	if got := Owner(nil, "key"); got != "" {
		t.Errorf("nobody: %q", got)
	}
	if got := Owner([]string{"a"}, "key"); got != "a" {
		t.Errorf("one: %q", got)
	}
	// The same score: the smaller name.
	if !beats(1, "a", 1, "b") || beats(1, "b", 1, "a") || !beats(2, "b", 1, "a") || beats(1, "a", 2, "b") || beats(1, "a", 1, "a") {
		t.Error("the stronger claim does not win")
	}
}

// Whoever owns a key keeps it when another leaves; all orders of the members agree; the keys are spread evenly.
func TestOwnerProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	members := names("node-", 100)
	keys := names("group/resource/ns/", 3000)
	owned := make(map[string]int)
	before := make(map[string]string)
	for _, key := range keys {
		before[key] = Owner(members, key)
		owned[before[key]]++
	}
	for _, m := range members {
		if n := owned[m]; n < 10 || n > 60 {
			t.Errorf("%s owns %d of 3000 keys", m, n)
		}
	}
	for range 3 {
		shuffled := slices.Clone(members)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		gone := shuffled[0]
		for _, key := range keys {
			if got := Owner(shuffled, key); got != before[key] {
				t.Fatalf("another order of the members: %s owns %s, was %s", got, key, before[key])
			}
			got := Owner(shuffled[1:], key)
			if before[key] != gone && got != before[key] {
				t.Fatalf("%s left, and %s went from %s to %s", gone, key, before[key], got)
			}
			if got == gone {
				t.Fatalf("%s left and owns %s", gone, key)
			}
		}
	}
}

// Owners and Owner never differ, whatever comes and goes.
func TestOwnersIsOwner(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		var owners Owners
		pool, keys := names("node-", 40), names("key-", 30)
		var eligible []string
		for step := range 200 {
			switch n := r.IntN(10); {
			case n == 0:
				eligible = nil
			case n == 1:
				eligible = slices.Clone(pool)
			case n < 6 && len(eligible) > 0:
				i := r.IntN(len(eligible))
				eligible = slices.Delete(slices.Clone(eligible), i, i+1)
			default: // perhaps one that is there already
				eligible = append(slices.Clone(eligible), pool[r.IntN(len(pool))])
			}
			r.Shuffle(len(eligible), func(i, j int) { eligible[i], eligible[j] = eligible[j], eligible[i] })
			given := slices.Clone(eligible)
			owners.SetEligible(eligible)
			if owners.SetEligible(eligible) || owners.SetEligible(append(given, eligible...)) {
				t.Fatal("the same members again are a change")
			}
			if !slices.Equal(given, eligible) {
				t.Fatal("the caller's slice was changed")
			}
			for range 10 {
				key := keys[r.IntN(len(keys))]
				if r.IntN(8) == 0 {
					owners.Forget(key)
				}
				if got, want := owners.Owner(key), Owner(eligible, key); got != want {
					t.Fatalf("seed %d, step %d: %s owns %s, want %s", seed, step, got, key, want)
				}
			}
		}
	}
}

func TestEligible(t *testing.T) {
	member := func(name string, role Role, able, leaving bool) Member {
		return Member{Name: name, Metadata: Metadata{Role: role, Able: able, Leaving: leaving}}
	}
	for _, test := range []struct {
		name    string
		members []Member
		roles   []Role
		want    string
	}{
		{"nobody", nil, []Role{Agent, Pruner}, ""},
		{"all, sorted", []Member{member("b", Agent, true, false), member("a", Pruner, true, false)}, []Role{Agent, Pruner}, "a b"},
		{"of one role", []Member{member("b", Agent, true, false), member("a", Pruner, true, false)}, []Role{Pruner}, "a"},
		{"not the one that cannot work", []Member{member("a", Agent, false, false), member("b", Agent, true, false)}, []Role{Agent}, "b"},
		{"not the leaving one", []Member{member("a", Agent, true, true), member("b", Agent, true, false)}, []Role{Agent}, "b"},
		{"only leaving ones", []Member{member("a", Agent, true, true), member("b", Agent, true, true)}, []Role{Agent}, "a b"},
		{"leaving ones that can work", []Member{member("a", Agent, true, true), member("b", Agent, false, true), member("c", Agent, false, false)}, []Role{Agent}, "a"},
		{"one whose metadata cannot be read", []Member{{Name: "a"}}, []Role{Agent, Pruner}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := strings.Join(Eligible(test.members, test.roles...), " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// The slow, obvious form: every member for every key.
func BenchmarkOwner(b *testing.B) {
	for _, n := range []int{1000, 5000} {
		members := names("worker-", n)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				Owner(members, fmt.Sprintf("config.nri/topologyawarepolicies/kube-system/policy-%d", i%1000))
			}
		})
	}
}

// 1,000 keys over members that come and go, one at each look; the time is that for one key. "first" is a key's first look.
func BenchmarkOwners(b *testing.B) {
	const keys = 1000
	policies := names("config.nri/topologyawarepolicies/kube-system/policy-", keys)
	for _, n := range []int{1000, 5000} {
		members := names("worker-", n)
		b.Run(fmt.Sprintf("%d/change", n), func(b *testing.B) {
			var owners Owners
			owners.SetEligible(members)
			for _, key := range policies {
				owners.Owner(key)
			}
			b.ResetTimer()
			for i := range b.N/keys + 1 {
				if i%2 == 0 {
					owners.SetEligible(members[1:])
				} else {
					owners.SetEligible(members)
				}
				for _, key := range policies {
					owners.Owner(key)
				}
			}
		})
		b.Run(fmt.Sprintf("%d/first", n), func(b *testing.B) {
			var owners Owners
			owners.SetEligible(members)
			for i := 0; b.Loop(); i++ {
				owners.Forget(policies[i%keys])
				owners.Owner(policies[i%keys])
			}
		})
	}
}
