package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// netlinkTimeout bounds each wait for the kernel. It answers in milliseconds, unless something is very wrong.
	netlinkTimeout = 5 * time.Second
	// netlinkBuffer takes each message whole: the kernel sends lists in pieces of at most 32 KiB, and as large as the reader's last buffer was.
	netlinkBuffer = 64 << 10
)

// A netfilterConn talks to the kernel's netfilter subsystems by netlink, in the network namespace in which it was made. The library's own socket
// copies each message of a list, and sends one message at a time.
type netfilterConn struct {
	file   *os.File
	raw    syscall.RawConn
	seq    uint32
	port   uint32
	buffer []byte
}

// A netlinkMessage is a message of the kernel. Its data is good until the next one is received.
type netlinkMessage struct {
	unix.NlMsghdr
	data []byte
}

func dialNetfilter() (*netfilterConn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	c := &netfilterConn{file: os.NewFile(uintptr(fd), "netlink"), buffer: make([]byte, netlinkBuffer)}
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	if err == nil {
		var address unix.Sockaddr
		if address, err = unix.Getsockname(fd); err == nil {
			c.port = address.(*unix.SockaddrNetlink).Pid
			c.raw, err = c.file.SyscallConn()
		}
	}
	if err != nil {
		c.file.Close()
		return nil, err
	}
	return c, nil
}

// Close ends the conversation.
func (c *netfilterConn) Close() error { return c.file.Close() }

// request adds a message to b, and returns its number. kind is the subsystem's number and the command.
func (c *netfilterConn) request(b []byte, kind, flags uint16, body []byte) ([]byte, uint32) {
	c.seq++
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = binary.NativeEndian.AppendUint32(b, c.seq)
	b = binary.NativeEndian.AppendUint32(b, c.port)
	b = append(b, body...)
	return append(b, make([]byte, -len(body)&3)...), c.seq
}

// send sends one message or several.
func (c *netfilterConn) send(b []byte) error {
	if err := c.file.SetWriteDeadline(time.Now().Add(netlinkTimeout)); err != nil {
		return err
	}
	var failure error
	err := c.raw.Write(func(fd uintptr) bool {
		failure = unix.Sendto(int(fd), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		return !errors.Is(failure, unix.EAGAIN)
	})
	return unanswered(errors.Join(err, failure))
}

// receive calls do for each message of the kernel to this conversation, until do is done.
func (c *netfilterConn) receive(ctx context.Context, do func(netlinkMessage) (done bool, err error)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := c.file.SetReadDeadline(time.Now().Add(netlinkTimeout)); err != nil {
			return err
		}
		var n, flags int
		var from unix.Sockaddr
		var failure error
		err := c.raw.Read(func(fd uintptr) bool {
			n, _, flags, from, failure = unix.Recvmsg(int(fd), c.buffer, nil, 0)
			return !errors.Is(failure, unix.EAGAIN)
		})
		if err := errors.Join(err, failure); err != nil {
			return unanswered(err)
		}
		if flags&unix.MSG_TRUNC != 0 {
			return errMalformed // larger than any that it sends
		}
		if sender, is := from.(*unix.SockaddrNetlink); !is || sender.Pid != 0 {
			continue // not the kernel
		}
		for b := c.buffer[:n]; len(b) > 0; {
			m, rest, err := nextMessage(b)
			if err != nil {
				return err
			}
			if b = rest; m.Pid != c.port {
				continue
			}
			if done, err := do(m); done || err != nil {
				return err
			}
		}
	}
}

// nextMessage cuts the first message off b.
func nextMessage(b []byte) (m netlinkMessage, rest []byte, err error) {
	if len(b) < unix.SizeofNlMsghdr {
		return m, nil, errMalformed
	}
	m.NlMsghdr = unix.NlMsghdr{
		Len: binary.NativeEndian.Uint32(b), Type: binary.NativeEndian.Uint16(b[4:]), Flags: binary.NativeEndian.Uint16(b[6:]),
		Seq: binary.NativeEndian.Uint32(b[8:]), Pid: binary.NativeEndian.Uint32(b[12:]),
	}
	size := int(m.Len)
	if size < unix.SizeofNlMsghdr || size > len(b) {
		return m, nil, errMalformed
	}
	m.data = b[unix.SizeofNlMsghdr:size]
	return m, b[min(len(b), (size+3)&^3):], nil
}

func unanswered(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the kernel does not answer within %s", netlinkTimeout)
	}
	return err
}

// errno is the kernel's error in a message that ends an answer; 0 if all is well.
func (m *netlinkMessage) errno() unix.Errno {
	if len(m.data) < 4 {
		return 0 // the end of a list
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
}

// explainNetlink turns an error into what an operator can do about it. missing says, around the error, that this kernel cannot do it at all; empty where
// each can.
func explainNetlink(what, missing string, err error) *TableError {
	switch {
	case errors.Is(err, unix.EPERM):
		return &TableError{StateForbidden, what + ": the kernel does not allow it; the agent needs the capability CAP_NET_ADMIN"}
	case missing != "" && (errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT)):
		return &TableError{StateNotInstalled, what + ": " + fmt.Sprintf(missing, err)}
	}
	return &TableError{StateUnavailable, fmt.Sprintf("%s: %v; it is tried again later", what, err)}
}

// dump asks for a list and calls each for each part of it, without its header of netfilter. After an error what each has heard proves nothing.
func (c *netfilterConn) dump(ctx context.Context, kind uint16, body []byte, each func(family byte, attributes []byte) error) error {
	b, seq := c.request(nil, kind, unix.NLM_F_DUMP, body)
	if err := c.send(b); err != nil {
		return err
	}
	l := listing{seq: seq, each: each}
	return l.ended(c.receive(ctx, l.take))
}

// A listing is the kernel's answer to a question for a list, as it comes.
type listing struct {
	seq         uint32
	each        func(family byte, attributes []byte) error
	interrupted bool  // the list changed meanwhile, so that it may lack entries
	failure     error // of each; the rest of the answer is still on its way
}

// take takes in a message and tells whether it was the last one.
func (l *listing) take(m netlinkMessage) (last bool, err error) {
	if m.Seq != l.seq {
		return false, nil
	}
	l.interrupted = l.interrupted || m.Flags&unix.NLM_F_DUMP_INTR != 0
	switch {
	case m.Type == unix.NLMSG_DONE, m.Type == unix.NLMSG_ERROR:
		if n := m.errno(); n != 0 {
			return true, n
		}
		return true, nil
	case l.failure != nil:
	case len(m.data) < sizeofNfgenmsg:
		l.failure = errMalformed
	default:
		l.failure = l.each(m.data[0], m.data[sizeofNfgenmsg:])
	}
	return false, nil
}

// ended is why the list is not to be believed; nil: it is. err is why no more came.
func (l *listing) ended(err error) error {
	switch {
	case err != nil:
		return err
	case l.failure != nil:
		return l.failure
	case l.interrupted:
		return errDisturbed
	}
	return nil
}
