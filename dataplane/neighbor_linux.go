package dataplane

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// lasting are the states of neighbours that somebody set for good, or that need no hardware address; unknown those of which none is known.
	lasting = unix.NUD_PERMANENT | unix.NUD_NOARP
	unknown = unix.NUD_INCOMPLETE | unix.NUD_FAILED
	// special are the flags of neighbours that are more than an answer that was once heard: routers, what is answered for others, and what
	// another program or the hardware keeps.
	special = netlink.NTF_ROUTER | netlink.NTF_PROXY | netlink.NTF_EXT_LEARNED | netlink.NTF_OFFLOADED
)

// Read reads the tables of both families.
func (Neighbors) Read(_ context.Context, wanted *Addresses, found func(Entry)) error {
	if wanted.Empty() {
		return nil
	}
	all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
	if err != nil {
		return explainNeighbors("read the neighbours", err)
	}
	for i := range all {
		if e, is := neighborEntry(&all[i]); is && wanted.Has(e.Address) {
			found(e)
		}
	}
	return nil
}

// neighborEntry is what is told of a neighbour; false for those that nobody may remove.
func neighborEntry(n *netlink.Neigh) (Entry, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	if a = a.Unmap(); !ok || a.IsUnspecified() || a.IsMulticast() || n.State&(lasting|unknown) != 0 || n.State == unix.NUD_NONE || n.Flags&special != 0 || n.FlagsExt != 0 {
		return Entry{}, false
	}
	index := binary.NativeEndian.AppendUint32(nil, uint32(n.LinkIndex))
	return Entry{
		Table: NeighborsTarget, Address: a, Text: fmt.Sprintf("%s on interface %d, %s", a, n.LinkIndex, n.HardwareAddr),
		Key: append(index, a.AsSlice()...), Value: n.HardwareAddr,
	}, true
}

func explainNeighbors(what string, err error) *TableError {
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = errDisturbed
	}
	return explainNetlink(what, "", err)
}

// Remove deletes neighbours that still have the same hardware address, and that nobody has made lasting.
func (n Neighbors) Remove(ctx context.Context, entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	now := map[string]Entry{}
	err := n.Read(ctx, nil, func(e Entry) { now[string(e.Key)] = e })
	for i, e := range entries {
		there, is := now[string(e.Key)]
		switch {
		case err != nil:
			outcomes[i] = Outcome{Failed, err}
		case !is:
			outcomes[i] = Outcome{Result: AlreadyGone} // or of a kind that stays: whoever looks again does not find it
		case !bytes.Equal(there.Value, e.Value):
			outcomes[i] = Outcome{Result: WasChanged}
		default:
			outcomes[i] = deleteNeighbor(e)
		}
	}
	return outcomes
}

func deleteNeighbor(e Entry) Outcome {
	index := binary.NativeEndian.Uint32(e.Key)
	err := netlink.NeighDel(&netlink.Neigh{LinkIndex: int(index), IP: e.Address.AsSlice()})
	switch {
	case err == nil:
		return Outcome{Result: Removed}
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV):
		return Outcome{Result: AlreadyGone}
	}
	return Outcome{Failed, explainNeighbors("delete neighbour "+e.Text, err)}
}

// Restore has nothing to do.
func (Neighbors) Restore(context.Context, []Entry) error { return ErrMadeAnew }
