//go:build linux && kernel

package agent

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/unstale/unstale/dataplane"
	"github.com/unstale/unstale/test/apiserver"
)

// inOwnNetwork runs the test once more, in a process with a network namespace of its own, as an agent in this process has the process's. It tells whether
// this is that one.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	const mark = "UNSTALE_TEST_IN_OWN_NETWORK"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	again := exec.Command("unshare", "--net", "sh", "-c", `ip link set lo up && exec "$0" "$@"`, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1")
	again.Env = append(os.Environ(), mark+"="+t.Name())
	var out bytes.Buffer
	again.Stdout, again.Stderr = &out, &out
	if err := again.Run(); err != nil || !strings.Contains(out.String(), "PASS") {
		t.Errorf("in a network of its own: %v\n%s", err, out.String())
	}
	return false
}

// connect makes up a connection between two ends, as 10.0.0.1:4000.
func connect(t *testing.T, protocol uint8, source, destination string) {
	t.Helper()
	a, b := netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)
	tuple := func(a, b netip.AddrPort) netlink.IPTuple {
		return netlink.IPTuple{SrcIP: a.Addr().AsSlice(), SrcPort: a.Port(), DstIP: b.Addr().AsSlice(), DstPort: b.Port(), Protocol: protocol}
	}
	flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, Forward: tuple(a, b), Reverse: tuple(b, a), TimeOut: 600}
	if protocol == unix.IPPROTO_TCP {
		flow.ProtoInfo = &netlink.ProtoInfoTCP{State: 3} // established
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow); err != nil {
		t.Fatalf("make a connection: %v", err)
	}
}

// texts are the entries of a table that the kernel makes.
func texts(t *testing.T, table dataplane.Table, filter func(dataplane.Entry) string) []string {
	t.Helper()
	var all []string
	if err := table.Read(t.Context(), nil, func(e dataplane.Entry) { all = append(all, filter(e)) }); err != nil {
		t.Fatal(err)
	}
	all = slices.DeleteFunc(all, func(s string) bool { return s == "" })
	slices.Sort(all)
	return all
}

// Connections and neighbours of a lost address go; those of other pods, of the node, of a pod that is still ending, and what a new pod with the address has
// opened, stay.
func TestKernelConnections(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	k := newKernelScene(t)
	k.scene.options += "  conntrack: {enableTimestamps: true}\n"
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "v0"}, PeerName: "v1"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v0", "v1"} {
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	index := link.Attrs().Index
	neighbor := func(n byte, state, flags int) {
		t.Helper()
		err := netlink.NeighSet(&netlink.Neigh{
			LinkIndex: index, IP: k.address(n).AsSlice(), State: state, Flags: flags, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, n},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(n byte, port int) string { return fmt.Sprintf("%s:%d", k.address(n), port) }
	const tcp, udp, peer = unix.IPPROTO_TCP, unix.IPPROTO_UDP, "192.0.2.1:80"
	awaitConnections := func(what string, want ...string) {
		t.Helper()
		apiserver.Eventually(t, what, func() error {
			got := texts(t, dataplane.Conntrack{}, func(e dataplane.Entry) string {
				if !strings.Contains(e.Text, fmt.Sprintf("10.%d.", k.net)) {
					return "" // of the API server and the agent
				}
				return e.Text
			})
			if slices.Sort(want); !slices.Equal(got, want) {
				return fmt.Errorf("the connections are %q, want %q; the agent said:\n%s", got, want, strings.Join(k.said(), "\n"))
			}
			return nil
		})
	}
	k.pod("loses", 1)
	k.pod("stays", 2)
	k.pod("ending", 3)
	k.pod("before", 4)
	k.start()
	k.awaitJournal(1, 2, 3, 4) // the kernel keeps times from now on
	connect(t, tcp, at(1, 4000), peer)
	connect(t, udp, "192.0.2.1:4000", at(1, 53))
	connect(t, tcp, at(2, 4000), peer)
	connect(t, udp, "172.16.0.1:4000", at(2, 53))
	connect(t, tcp, at(3, 4000), peer)
	connect(t, udp, at(3, 4000), peer)
	connect(t, tcp, at(4, 4000), peer)
	for _, n := range []byte{1, 2, 4} {
		neighbor(n, unix.NUD_REACHABLE, 0)
	}
	neighbor(3, unix.NUD_PERMANENT, 0)
	ofStays := []string{"tcp " + at(2, 4000) + " > " + peer, "udp 172.16.0.1:4000 > " + at(2, 53)}
	ofEnding, ofBefore := "tcp "+at(3, 4000)+" > "+peer, "tcp "+at(4, 4000)+" > "+peer

	k.has("loses", 0)
	grace := int64(30) // and nobody ends it
	err := k.server.Dynamic().Resource(apiserver.Pods).Namespace(k.namespace).Delete(t.Context(), "ending", metav1.DeleteOptions{GracePeriodSeconds: &grace})
	if err != nil {
		t.Fatal(err)
	}
	k.has("ending", 0)
	awaitConnections("the lost addresses' connections are gone", append(ofStays, ofEnding, ofBefore)...)
	k.awaitDecision(dataplane.ConntrackTarget, 3, dataplane.Terminating)

	// The next pod with the address begins when the connection is older than a second.
	started := time.Now().Add(2 * time.Second).Truncate(time.Second)
	k.pod("after", 4)
	k.status("after", fmt.Sprintf(`"startTime": %q`, metav1.NewTime(started).UTC().Format(time.RFC3339)))
	apiserver.Eventually(t, "it has begun", func() error {
		if now := time.Now(); now.Before(started) {
			return fmt.Errorf("it is %s", now)
		}
		return nil
	})
	connect(t, udp, at(4, 4000), peer)
	k.has("before", 0)
	ofAfter := "udp " + at(4, 4000) + " > " + peer
	awaitConnections("what is older than the pod is gone", append(ofStays, ofEnding, ofAfter)...)
	k.awaitDecision(dataplane.ConntrackTarget, 4, dataplane.OlderThanPod)
	k.awaitDecision(dataplane.ConntrackTarget, 4, dataplane.PodHasAddress)

	k.status("ending", ended)
	k.delete("ending")
	awaitConnections("it has ended", append(ofStays, ofAfter)...)
	neighbors := texts(t, dataplane.Neighbors{}, func(e dataplane.Entry) string { return e.Address.String() })
	if want := []string{k.address(2).String(), k.address(4).String()}; !slices.Equal(neighbors, want) {
		t.Errorf("the neighbours are %v, want %v", neighbors, want)
	}
	if all, err := netlink.NeighList(index, netlink.FAMILY_V4); err != nil || len(all) != 3 {
		t.Errorf("the permanent one is gone: %v, %v", all, err)
	}
	if err := k.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}
