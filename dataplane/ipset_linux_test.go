//go:build linux && kernel

package dataplane

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var allIPSetTypes = []string{"hash:ip", "hash:net", "hash:ip,port", "hash:ip,port,ip", "hash:net,port"}

func testSets(match string) *IPSets {
	return &IPSets{Match: regexp.MustCompile(match), Types: allIPSetTypes}
}

// numbers turn the few names that ipset takes from the system's lists into what is in the kernel.
var numbers = strings.NewReplacer("gre:0", "47:0", "ipv6-icmp:echo-request", "icmpv6:128/0", "icmp:echo-request", "icmp:8/0")

// members are the sets' entries as the ipset command lists them, sorted.
func members(t testing.TB) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(command(t, "", "ipset", "save")) {
		if entry, is := strings.CutPrefix(strings.TrimSpace(line), "add "); is {
			lines = append(lines, numbers.Replace(entry))
		}
	}
	slices.Sort(lines)
	return lines
}

const everyType = `
create a-ip hash:ip
add a-ip 10.0.0.1
add a-ip 10.0.0.2
create a-ip6 hash:ip family inet6
add a-ip6 fd00::1
add a-ip6 fd00::2
create a-net hash:net
add a-net 10.0.0.1
add a-net 10.0.0.0/24
add a-net 10.0.0.2
create a-net6 hash:net family inet6
add a-net6 fd00::1
add a-net6 fd00::/64
create a-ipport hash:ip,port
add a-ipport 10.0.0.1,tcp:80
add a-ipport 10.0.0.1,udp:53
add a-ipport 10.0.0.1,sctp:9
add a-ipport 10.0.0.1,icmp:8/0
add a-ipport 10.0.0.1,47:0
add a-ipport 10.0.0.2,tcp:80
create a-ipport6 hash:ip,port family inet6
add a-ipport6 fd00::1,tcp:80
add a-ipport6 fd00::1,icmpv6:128/0
create a-ipportip hash:ip,port,ip
add a-ipportip 10.0.0.1,tcp:80,10.0.0.2
add a-ipportip 10.0.0.2,tcp:80,10.0.0.1
create a-netport hash:net,port
add a-netport 10.0.0.1,tcp:80
add a-netport 10.0.0.0/24,tcp:80
create a-netport6 hash:net,port family inet6
add a-netport6 fd00::1,udplite:7
create a-list list:set
add a-list a-ip
create b-ip hash:ip
add b-ip 10.0.0.1
`

func TestIPSetsOfEveryType(t *testing.T) {
	newNetwork(t)
	command(t, everyType, "ipset", "restore")
	sets := testSets("^a-")
	var want []string
	for _, m := range members(t) {
		if strings.HasPrefix(m, "a-") && !strings.Contains(m, "/24") && !strings.Contains(m, "/64") && !strings.HasPrefix(m, "a-list") {
			want = append(want, m)
		}
	}
	if got := texts(readAll(t, sets, nil)); !slices.Equal(got, want) {
		t.Errorf("read\n%s\nwant, as ipset prints them,\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	before := members(t)
	entries := readAll(t, sets, addresses("10.0.0.1", "fd00::1"))
	for _, e := range entries {
		if strings.HasPrefix(e.Text, "10.0.0.2") || e.Address.String() != "10.0.0.1" && e.Address.String() != "fd00::1" {
			t.Errorf("%s was found for %s", e.Text, e.Address)
		}
	}
	for i, o := range sets.Remove(t.Context(), entries) {
		if o.Result != Removed {
			t.Errorf("%s: %v", entries[i].Text, o)
		}
	}
	gone := texts(entries)
	want = slices.DeleteFunc(slices.Clone(before), func(m string) bool { return slices.Contains(gone, m) })
	if got := members(t); !slices.Equal(got, want) {
		t.Errorf("left are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if err := sets.Restore(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	if got := members(t); !slices.Equal(got, before) {
		t.Errorf("put back are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(before, "\n"))
	}
}

func TestIPSetExtensions(t *testing.T) {
	newNetwork(t)
	command(t, `
create a hash:net comment counters timeout 0 skbinfo
add a 10.0.0.1 timeout 300 packets 5 bytes 600 comment "of pod a" skbmark 0x1/0xffffffff
add a 10.0.0.2 timeout 0 packets 7 bytes 800 comment "of pod b"
add a 10.0.0.3 nomatch
add a 10.0.0.0/24
`, "ipset", "restore")
	sets := testSets("^a$")
	before := members(t)
	entries := readAll(t, sets, nil)
	if got := texts(entries); !slices.Equal(got, []string{"a 10.0.0.1", "a 10.0.0.2"}) {
		t.Fatalf("read %v", got)
	}
	wantOutcomes(t, sets.Remove(t.Context(), entries), Removed, Removed)
	if err := sets.Restore(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	// The time that is left may be a second less.
	seconds := regexp.MustCompile(`timeout (300|29\d)`)
	got, want := seconds.ReplaceAllString(strings.Join(members(t), "\n"), "timeout N"), seconds.ReplaceAllString(strings.Join(before, "\n"), "timeout N")
	if got != want {
		t.Errorf("put back are\n%s\nwant\n%s", got, want)
	}
	// What is there is left as it is.
	command(t, "del a 10.0.0.2\nadd a 10.0.0.2 comment \"new\"\n", "ipset", "restore")
	if err := sets.Restore(t.Context(), entries); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(members(t), "\n"); !strings.Contains(got, `10.0.0.2 timeout 0 packets 0 bytes 0 comment "new"`) {
		t.Errorf("the entry that its writer had added again was replaced:\n%s", got)
	}
}

// What others do between the reading and the removal.
func TestIPSetsChangeBeforeRemoval(t *testing.T) {
	for _, test := range []struct {
		name, sets, change string
		want               Result
		left               []string
	}{
		{"gone", "create a hash:ip\nadd a 10.0.0.1\n", "del a 10.0.0.1\n", AlreadyGone, nil},
		{"the whole set gone", "create a hash:ip\nadd a 10.0.0.1\n", "destroy a\n", AlreadyGone, nil},
		{"flushed", "create a hash:ip\nadd a 10.0.0.1\n", "flush a\n", AlreadyGone, nil},
		{"another type", "create a hash:ip\nadd a 10.0.0.1\n", "destroy a\ncreate a hash:ip,port\nadd a 10.0.0.1,tcp:80\n", Failed, []string{"a 10.0.0.1,tcp:80"}},
		{"a nomatch", "create a hash:net\nadd a 10.0.0.1\n", "del a 10.0.0.1\nadd a 10.0.0.1 nomatch\n", WasChanged, []string{"a 10.0.0.1 nomatch"}},
		{"swapped", "create a hash:ip\nadd a 10.0.0.1\ncreate b hash:ip\nadd b 10.0.0.2\n", "swap a b\n", AlreadyGone, []string{"a 10.0.0.2", "b 10.0.0.1"}},
		{"swapped for one with the same entry", "create a hash:ip\nadd a 10.0.0.1\ncreate b hash:ip\nadd b 10.0.0.1\nadd b 10.0.0.2\n", "swap a b\n", Removed, []string{"a 10.0.0.2", "b 10.0.0.1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			newNetwork(t)
			command(t, test.sets, "ipset", "restore")
			sets := testSets("^a$")
			entries := readAll(t, sets, addresses("10.0.0.1"))
			command(t, test.change, "ipset", "restore")
			wantOutcomes(t, sets.Remove(t.Context(), entries), test.want)
			if got := members(t); !slices.Equal(got, test.left) {
				t.Errorf("left are %v, want %v", got, test.left)
			}
		})
	}
}

func TestIPSetsThatAreLeftAlone(t *testing.T) {
	newNetwork(t)
	command(t, `
create a-cidrs hash:net maxelem 4294967295
add a-cidrs 10.0.0.1
create a-masked hash:ip netmask 24
add a-masked 10.0.0.0
create a-bitmap bitmap:ip range 10.0.0.0/24
add a-bitmap 10.0.0.1
create a-pods hash:net
add a-pods 10.0.0.1
`, "ipset", "restore")
	sets := testSets("^a-")
	sets.MaxElemNot = 4294967295
	if got := texts(readAll(t, sets, nil)); !slices.Equal(got, []string{"a-pods 10.0.0.1"}) {
		t.Errorf("read %v", got)
	}
}

func TestIPSetStates(t *testing.T) {
	newNetwork(t)
	state := func(sets *IPSets) *TableError {
		t.Helper()
		var problem *TableError
		if err := sets.Read(t.Context(), NewAddresses(), func(Entry) { t.Error("an entry was told") }); err != nil && !errors.As(err, &problem) {
			t.Errorf("the error is %v, of another type", err)
		}
		return problem
	}
	if p := state(testSets("^a$")); p == nil || p.State != StateNotInstalled || !strings.Contains(p.Message, "no ipset matches") {
		t.Errorf("without a set: %v", p)
	}
	command(t, "create a hash:ip\nadd a 10.0.0.1\n", "ipset", "restore")
	if p := state(testSets("^a$")); p != nil {
		t.Errorf("with a set: %v", p)
	}
	entries := readAll(t, testSets("^a$"), nil)

	dropCapabilities(t)
	if p := state(testSets("^a$")); p == nil || p.State != StateForbidden || !strings.Contains(p.Message, "CAP_NET_ADMIN") {
		t.Errorf("without the capability: %v", p)
	}
	if o := testSets("^a$").Remove(t.Context(), entries); o[0].Result != Failed || !strings.Contains(o[0].Err.Error(), "CAP_NET_ADMIN") {
		t.Errorf("a removal without the capability: %v", o)
	}
}

// A large set is read whole and cleaned in several requests, also where some entries are gone before.
func TestLargeIPSet(t *testing.T) {
	newNetwork(t)
	const all, going = 20000, 1300
	var lines strings.Builder
	lines.WriteString("create a hash:ip,port maxelem 100000\n")
	wanted := NewAddresses()
	for i := range all {
		fmt.Fprintf(&lines, "add a 10.%d.%d.%d,tcp:80\n", i>>16, i>>8&255, i&255)
	}
	command(t, lines.String(), "ipset", "restore")
	sets := testSets("^a$")
	everything := readAll(t, sets, nil)
	if len(everything) != all {
		t.Fatalf("read %d entries", len(everything))
	}
	for _, e := range everything[:going] {
		wanted.add(e.Address)
	}
	entries := readAll(t, sets, wanted)
	if len(entries) != going {
		t.Fatalf("found %d entries", len(entries))
	}
	missing := map[int]bool{0: true, 1: true, 499: true, 500: true, 777: true, going - 1: true}
	lines.Reset()
	for i := range missing {
		fmt.Fprintf(&lines, "del a %s\n", entries[i].Text)
	}
	command(t, lines.String(), "ipset", "restore")
	for i, o := range sets.Remove(t.Context(), entries) {
		if want := map[bool]Result{true: AlreadyGone, false: Removed}[missing[i]]; o.Result != want {
			t.Errorf("entry %d: %v, want %s", i, o, want)
		}
	}
	if left := readAll(t, sets, nil); len(left) != all-going {
		t.Errorf("%d entries are left, want %d", len(left), all-going)
	}
}

// While a writer changes other entries as fast as it can, none of those that it leaves there is ever missing.
func TestIPSetWithABusyWriter(t *testing.T) {
	newNetwork(t)
	command(t, "create a hash:ip\nadd a 10.1.0.1\n", "ipset", "restore")
	writer, err := dialIPSet() // in this namespace, wherever it is used
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	live := readAll(t, testSets("^a$"), nil)[0]
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			key := slices.Clone(live.Key)
			key[len(key)-1] = byte(2 + i%200) // 10.1.0.2 and on
			for _, cmd := range []uint16{ipsetCmdAdd, ipsetCmdDel} {
				if _, err := writer.change(t.Context(), cmd, "a", [][]byte{key}); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	sets := testSets("^a$")
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		command(t, "add a 10.2.0.1 -exist\n", "ipset", "restore")
		entries := readAll(t, sets, addresses("10.2.0.1"))
		wantOutcomes(t, sets.Remove(t.Context(), entries), Removed)
		if got := readAll(t, sets, addresses("10.1.0.1", "10.2.0.1")); len(got) != 1 || got[0].Text != "10.1.0.1" {
			t.Fatalf("got %v", texts(got))
		}
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Errorf("the writer: %v", err)
	}
}

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "tests with the tag kernel need root")
		os.Exit(1)
	}
	os.Exit(m.Run())
}
