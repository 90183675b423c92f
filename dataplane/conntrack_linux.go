package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// conntrackSubsystem is NFNL_SUBSYS_CTNETLINK of linux/netfilter/nfnetlink.h.
	conntrackSubsystem = 1
	// The commands: for a list, for a deletion, for the table's size.
	conntrackGet, conntrackDelete, conntrackStats = 1, 2, 5
	// flowsAtOnce is how many deletions are sent before their answers are read: these must fit into the socket's buffer.
	flowsAtOnce = 100
	// timestampFile turns the keeping of connections' starts on, in this network namespace.
	timestampFile = "/proc/sys/net/netfilter/nf_conntrack_timestamp"
)

// Read reads the table, once for all addresses, of both families.
func (Conntrack) Read(ctx context.Context, wanted *Addresses, found func(Entry)) error {
	const what = "read the connections"
	c, err := dialNetfilter()
	if err != nil {
		return explainConntrack(what, err)
	}
	defer c.Close()
	anyFamily := []byte{unix.AF_UNSPEC, 0, 0, 0}
	if wanted.Empty() {
		if err := c.ask(ctx, conntrackSubsystem<<8|conntrackStats, anyFamily); err != nil {
			return explainConntrack(what, err)
		}
		return nil
	}
	err = c.dump(ctx, conntrackSubsystem<<8|conntrackGet, anyFamily, func(family byte, attributes []byte) error {
		f, err := parseFlow(attributes, false)
		if err != nil {
			return err
		}
		if a, is := f.endOf(wanted); is {
			if f, err = parseFlow(attributes, true); err != nil {
				return err
			}
			found(f.entry(a, family))
		}
		return nil
	})
	if err != nil {
		return explainConntrack(what, err)
	}
	return nil
}

// ask sends a request and returns the kernel's error.
func (c *netfilterConn) ask(ctx context.Context, kind uint16, body []byte) error {
	b, seq := c.request(nil, kind, unix.NLM_F_ACK, body)
	if err := c.send(b); err != nil {
		return err
	}
	return c.receive(ctx, func(m netlinkMessage) (bool, error) {
		if m.Seq != seq || m.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		if n := m.errno(); n != 0 {
			return true, n
		}
		return true, nil
	})
}

func explainConntrack(what string, err error) *TableError {
	return explainNetlink(what, "this kernel cannot tell of them (%v); is the module nf_conntrack_netlink there?", err)
}

// Remove deletes connections by their kernel's numbers: one that has ended, and was opened again, is another.
func (Conntrack) Remove(ctx context.Context, entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	for i := range outcomes {
		outcomes[i] = Outcome{Failed, errors.New("not tried")}
	}
	c, err := dialNetfilter()
	if err == nil {
		defer c.Close()
	}
	for first := 0; first < len(entries); first += flowsAtOnce {
		last := min(first+flowsAtOnce, len(entries))
		if err == nil {
			err = c.deleteFlows(ctx, entries[first:last], outcomes[first:last])
		}
		if err != nil {
			for i := first; i < last; i++ {
				if outcomes[i].Result == Failed {
					outcomes[i].Err = explainConntrack("delete "+entries[i].Text, err)
				}
			}
		}
	}
	return outcomes
}

// deleteFlows sends all deletions at once and reads their answers.
func (c *netfilterConn) deleteFlows(ctx context.Context, entries []Entry, outcomes []Outcome) error {
	var b []byte
	numbers := make([]uint32, len(entries))
	for i, e := range entries {
		body := append([]byte{e.Key[0], 0, 0, 0}, e.Key[1:]...)
		b, numbers[i] = c.request(b, conntrackSubsystem<<8|conntrackDelete, unix.NLM_F_ACK, body)
	}
	if err := c.send(b); err != nil {
		return err
	}
	answers := 0
	return c.receive(ctx, func(m netlinkMessage) (bool, error) {
		i := slices.Index(numbers, m.Seq)
		if i < 0 || m.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		switch n := m.errno(); n {
		case 0:
			outcomes[i] = Outcome{Result: Removed}
		case unix.ENOENT:
			outcomes[i] = Outcome{Result: AlreadyGone}
		default:
			outcomes[i] = Outcome{Failed, explainConntrack("delete "+entries[i].Text, n)}
		}
		answers++
		return answers == len(entries), nil
	})
}

// Restore has nothing to do.
func (Conntrack) Restore(context.Context, []Entry) error { return ErrMadeAnew }

// EnableTimestamps has the kernel keep when connections begin, in the network namespace of the caller. It returns whether that was not so before.
func EnableTimestamps() (changed bool, err error) {
	before, err := os.ReadFile(timestampFile)
	if err != nil {
		return false, fmt.Errorf("read whether the kernel keeps when connections begin: %w", err)
	}
	if len(before) > 0 && before[0] == '1' {
		return false, nil
	}
	if err := os.WriteFile(timestampFile, []byte("1\n"), 0o644); err != nil {
		return false, fmt.Errorf("have the kernel keep when connections begin: %w; it needs a writable /proc/sys, or set net.netfilter.nf_conntrack_timestamp=1 on the node", err)
	}
	return true, nil
}
