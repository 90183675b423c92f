package dataplane

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A list is believed only if the kernel ended it, told of no change meanwhile, and all of it was understood.
func TestListing(t *testing.T) {
	part := func(seq uint32, flags uint16, data ...byte) netlinkMessage {
		return netlinkMessage{unix.NlMsghdr{Type: 1, Seq: seq, Flags: unix.NLM_F_MULTI | flags}, data}
	}
	end := func(kind uint16, errno unix.Errno) netlinkMessage {
		return netlinkMessage{unix.NlMsghdr{Type: kind, Seq: 7}, binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))}
	}
	done, bad := end(unix.NLMSG_DONE, 0), errors.New("bad")
	for name, test := range map[string]struct {
		answer []netlinkMessage
		heard  string
		err    error
	}{
		"nothing":                      {[]netlinkMessage{done}, "", nil},
		"two":                          {[]netlinkMessage{part(7, 0, 2, 0, 0, 0, 'a'), part(7, 0, 2, 0, 0, 0, 'b'), done}, "ab", nil},
		"another question's":           {[]netlinkMessage{part(6, 0, 2, 0, 0, 0, 'x'), {unix.NlMsghdr{Type: unix.NLMSG_DONE, Seq: 6}, nil}, part(7, 0, 2, 0, 0, 0, 'a'), done}, "a", nil},
		"changed meanwhile":            {[]netlinkMessage{part(7, unix.NLM_F_DUMP_INTR, 2, 0, 0, 0, 'a'), part(7, 0, 2, 0, 0, 0, 'b'), done}, "ab", errDisturbed},
		"changed at the end":           {[]netlinkMessage{part(7, 0, 2, 0, 0, 0, 'a'), {unix.NlMsghdr{Type: unix.NLMSG_DONE, Seq: 7, Flags: unix.NLM_F_DUMP_INTR}, nil}}, "a", errDisturbed},
		"an error at the end":          {[]netlinkMessage{part(7, 0, 2, 0, 0, 0, 'a'), end(unix.NLMSG_DONE, unix.ENOMEM)}, "a", unix.ENOMEM},
		"an error":                     {[]netlinkMessage{end(unix.NLMSG_ERROR, unix.EPERM)}, "", unix.EPERM},
		"too short":                    {[]netlinkMessage{part(7, 0, 2), part(7, 0, 2, 0, 0, 0, 'a'), done}, "", errMalformed},
		"one that is not understood":   {[]netlinkMessage{part(7, 0, 2, 0, 0, 0, '!'), part(7, 0, 2, 0, 0, 0, 'a'), done}, "", bad},
		"neither understood nor whole": {[]netlinkMessage{part(7, unix.NLM_F_DUMP_INTR, 2, 0, 0, 0, '!'), done}, "", bad},
	} {
		t.Run(name, func(t *testing.T) {
			heard := ""
			l := listing{seq: 7, each: func(family byte, attributes []byte) error {
				if family != unix.AF_INET || slices.Equal(attributes, []byte("!")) {
					return bad
				}
				heard += string(attributes)
				return nil
			}}
			ended := false
			var err error
			for _, m := range test.answer {
				if ended {
					t.Fatal("ended too early")
				}
				ended, err = l.take(m)
			}
			if got := l.ended(err); !ended || !errors.Is(got, test.err) || (got == nil) != (test.err == nil) {
				t.Errorf("ended %v with %v, want %v", ended, got, test.err)
			}
			if heard != test.heard {
				t.Errorf("heard %q, want %q", heard, test.heard)
			}
		})
	}
}

// An error says what to do: another capability, a kernel that has it, or patience.
func TestExplainNetlink(t *testing.T) {
	for _, test := range []struct {
		err   *TableError
		state TableState
		text  string
	}{
		{explainConntrack("read", unix.EPERM), StateForbidden, "read: the kernel does not allow it; the agent needs the capability CAP_NET_ADMIN"},
		{explainConntrack("read", unix.EINVAL), StateNotInstalled, "read: this kernel cannot tell of them (invalid argument); is the module nf_conntrack_netlink there?"},
		{explainConntrack("read", unix.EPROTONOSUPPORT), StateNotInstalled, "read: this kernel cannot tell of them (protocol not supported); is the module nf_conntrack_netlink there?"},
		{explainIPSet("list", unix.EOPNOTSUPP), StateNotInstalled, "list: this kernel has no ipsets (operation not supported); is the module ip_set there?"},
		{explainIPSet("list", errDisturbed), StateUnavailable, "list: it changed so much meanwhile that it could not be read to its end; it is tried again later"},
		{explainNeighbors("read", unix.EINVAL), StateUnavailable, "read: invalid argument; it is tried again later"},
		{explainNeighbors("read", netlink.ErrDumpInterrupted), StateUnavailable, "read: it changed so much meanwhile that it could not be read to its end; it is tried again later"},
	} {
		if test.err.State != test.state || test.err.Message != test.text {
			t.Errorf("%s: %s, want %s: %s", test.err.State, test.err.Message, test.state, test.text)
		}
	}
}
