package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

const (
	// entriesAtOnce is how many entries one request deletes: a few ten KB, far below what the kernel takes.
	entriesAtOnce = 500
	// ipsetSubsystem is NFNL_SUBSYS_IPSET of linux/netfilter/nfnetlink.h.
	ipsetSubsystem = 6
	// The commands (linux/netfilter/ipset/ip_set.h).
	ipsetCmdList, ipsetCmdAdd, ipsetCmdDel = 7, 9, 10
	// ipsetErrExist says that the entry is not there, or is there already.
	ipsetErrExist = 4103
)

// ipsetErrors are the kernel's own error numbers for ipsets that a removal can meet.
var ipsetErrors = map[int]string{
	4097: "the kernel does not understand the request", 4098: "the kernel does not know this type of set", 4100: "the set is in use",
	4102: "the set's type does not fit", ipsetErrExist: "the entry is not there", 4104: "the prefix length does not fit", 4106: "the address family does not fit",
	4107: "the set has no timeouts", 4109: "an IPv4 address is missing", 4110: "an IPv6 address is missing", 4111: "the set has no counters", 4112: "the set has no comments",
	4352: "the set is full",
}

// Read reads the sets.
func (s *IPSets) Read(ctx context.Context, wanted *Addresses, found func(Entry)) error {
	c, err := dialIPSet()
	if err != nil {
		return explainIPSet("list the ipsets", err)
	}
	defer c.Close()
	sets, err := s.sets(ctx, c)
	if err != nil {
		return explainIPSet("list the ipsets", err)
	}
	if len(sets) == 0 {
		return &TableError{StateNotInstalled, fmt.Sprintf("no ipset matches %q with one of the types %v; its writer may not run here", s.Match, s.Types)}
	}
	if wanted.Empty() {
		return nil
	}
	var problems []*TableError
	for _, set := range sets {
		if err := c.read(ctx, set, wanted, found); err != nil {
			problems = append(problems, explainIPSet("read ipset "+set, err))
		}
	}
	return joined(problems)
}

// sets are the names of the sets to look at.
func (s *IPSets) sets(ctx context.Context, c *ipsetConn) ([]string, error) {
	var names []string
	err := c.dump(ctx, headersRequest(), func(m setMessage) error {
		if s.Match.MatchString(m.name) && slices.Contains(s.Types, m.kind) && !m.masked && (s.MaxElemNot == 0 || m.maxElem != s.MaxElemNot) {
			names = append(names, m.name)
		}
		return nil
	})
	return names, err
}

func explainIPSet(what string, err error) *TableError {
	return explainNetlink(what, "this kernel has no ipsets (%v); is the module ip_set there?", err)
}

// headersRequest asks for the headers of all sets.
func headersRequest() []byte {
	return appendAttr(request(""), ipsetAttrFlags|attrNet, binary.BigEndian.AppendUint32(nil, ipsetFlagListHeader))
}

// Remove deletes entries, and takes the kernel's word for what it deleted. Where an entry of the same name may have become a nomatch, the set is read
// again before.
func (s *IPSets) Remove(ctx context.Context, entries []Entry) []Outcome {
	outcomes := make([]Outcome, len(entries))
	c, err := dialIPSet()
	if err != nil {
		for i := range outcomes {
			outcomes[i] = Outcome{Failed, explainIPSet("delete entries of ipsets", err)}
		}
		return outcomes
	}
	defer c.Close()
	bySet := map[string][]int{}
	for i := range entries {
		bySet[entries[i].Table] = append(bySet[entries[i].Table], i)
	}
	for set, indexes := range bySet {
		s.removeFrom(ctx, c, set, entries, indexes, outcomes)
	}
	return outcomes
}

func (s *IPSets) removeFrom(ctx context.Context, c *ipsetConn, set string, entries []Entry, indexes []int, outcomes []Outcome) {
	indexes, err := c.unchanged(ctx, set, entries, indexes, outcomes)
	if err != nil {
		for _, i := range indexes {
			outcomes[i] = Outcome{Failed, explainIPSet("read ipset "+set+" again", err)}
		}
		return
	}
	for chunk := range slices.Chunk(indexes, entriesAtOnce) {
		for len(chunk) > 0 {
			keys := make([][]byte, len(chunk))
			for k, i := range chunk {
				keys[k] = entries[i].Key
			}
			done, err := c.change(ctx, ipsetCmdDel, set, keys)
			for _, i := range chunk[:done] {
				outcomes[i] = Outcome{Result: Removed}
			}
			if chunk = chunk[done:]; err == nil {
				break
			}
			var errno unix.Errno
			switch errors.As(err, &errno); {
			case errno == ipsetErrExist:
				outcomes[chunk[0]] = Outcome{Result: AlreadyGone}
				chunk = chunk[1:]
				continue
			case errno == unix.ENOENT: // the whole set is gone
				for _, i := range chunk {
					outcomes[i] = Outcome{Result: AlreadyGone}
				}
			default:
				for _, i := range chunk {
					outcomes[i] = Outcome{Failed, explainIPSet("delete "+entries[i].Text+" from ipset "+set, err)}
				}
			}
			chunk = nil
		}
	}
}

// unchanged settles the outcome of entries that are no longer what was read, and returns the others. After an error it returns all.
func (c *ipsetConn) unchanged(ctx context.Context, set string, entries []Entry, indexes []int, outcomes []Outcome) ([]int, error) {
	if !slices.ContainsFunc(indexes, func(i int) bool { return mayBeNoMatch(entries[i].Key) }) {
		return indexes, nil // a name says all of such an entry
	}
	wanted := NewAddresses()
	for _, i := range indexes {
		wanted.add(entries[i].Address)
	}
	there := map[string]bool{}
	if err := c.read(ctx, set, wanted, func(e Entry) { there[string(e.Key)] = true }); err != nil {
		return indexes, err
	}
	var same []int
	for _, i := range indexes {
		if there[string(entries[i].Key)] {
			same = append(same, i)
		} else {
			outcomes[i] = Outcome{Result: WasChanged} // or gone: whoever looks again sees which
		}
	}
	return same, nil
}

// mayBeNoMatch tells whether the entry is of a type that has networks, and so also exceptions from them.
func mayBeNoMatch(key []byte) bool {
	m, err := parseMember(key)
	return err == nil && m.cidr != nil
}

// Restore adds entries with what was kept beside them.
func (s *IPSets) Restore(ctx context.Context, entries []Entry) error {
	c, err := dialIPSet()
	if err != nil {
		return explainIPSet("put entries back into ipsets", err)
	}
	defer c.Close()
	var errs []error
	for _, e := range entries {
		_, err := c.change(ctx, ipsetCmdAdd, e.Table, [][]byte{slices.Concat(e.Key, e.Value)})
		if errno := unix.Errno(0); err != nil && !(errors.As(err, &errno) && errno == ipsetErrExist) {
			errs = append(errs, explainIPSet("put "+e.Text+" back into ipset "+e.Table, err))
		}
	}
	return errors.Join(errs...)
}

// An ipsetConn talks to the kernel about ipsets.
type ipsetConn struct{ *netfilterConn }

func dialIPSet() (*ipsetConn, error) {
	c, err := dialNetfilter()
	return &ipsetConn{c}, err
}

// ipsetError puts the kernel's own numbers into words.
func ipsetError(n unix.Errno) error {
	if text, own := ipsetErrors[int(n)]; own {
		return fmt.Errorf("%s (%w)", text, n)
	}
	return n
}

// dump lists sets. After an error what do has heard proves nothing.
func (c *ipsetConn) dump(ctx context.Context, body []byte, do func(setMessage) error) error {
	err := c.netfilterConn.dump(ctx, ipsetSubsystem<<8|ipsetCmdList, body, func(_ byte, attributes []byte) error {
		m, err := parseSetMessage(attributes)
		if err != nil {
			return err
		}
		return do(m)
	})
	if n := unix.Errno(0); errors.As(err, &n) {
		return ipsetError(n)
	}
	return err
}

// read calls found for a set's entries of the wanted addresses. A set that is gone has none.
func (c *ipsetConn) read(ctx context.Context, set string, wanted *Addresses, found func(Entry)) error {
	err := c.dump(ctx, request(set), func(m setMessage) error {
		return eachEntry(m.entries, func(data []byte) error {
			member, err := parseMember(data)
			if err != nil {
				return err
			}
			if a, is := member.hostOf(wanted); is {
				key, value := parts(data)
				found(Entry{Table: set, Address: a, Text: member.text(), Key: key, Value: value})
			}
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// change adds or deletes entries of a set, and returns how many were done before an error. An entry that is there already, or not there, is an error.
func (c *ipsetConn) change(ctx context.Context, command uint16, set string, entries [][]byte) (done int, err error) {
	b, seq := c.request(nil, ipsetSubsystem<<8|command, unix.NLM_F_ACK|unix.NLM_F_EXCL, entriesRequest(set, entries, 1))
	if err := c.send(b); err != nil {
		return 0, err
	}
	err = c.receive(ctx, func(m netlinkMessage) (bool, error) {
		if m.Seq != seq || m.Type != unix.NLMSG_ERROR {
			return false, nil
		}
		n := m.errno()
		if n == 0 {
			done = len(entries)
			return true, nil
		}
		if at, numbered := stoppedAt(m.data); numbered {
			done = min(at-1, len(entries)-1)
		}
		return true, ipsetError(n)
	})
	return done, err
}
