package gossip

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
)

// A Role says what a member may write.
type Role byte

// The roles. A pruner takes an agent's place on a control-plane node: it may do all that an agent may, and write Nodes.
const (
	UnknownRole Role = 0 // a role that this version does not know, or metadata that it cannot read
	Agent       Role = 1
	Pruner      Role = 2
)

func (r Role) String() string {
	switch r {
	case Agent:
		return "agent"
	case Pruner:
		return "pruner"
	}
	return "unknown"
}

// A Member is an agent in the cluster as this one knows it.
type Member struct {
	Name    string // the node's name
	Address netip.AddrPort
	Metadata
}

// Metadata is what a member says of itself. Every member hears of a change within a second or so.
type Metadata struct {
	Role    Role
	Leaving bool // it is about to stop, and owns nothing any more if there is anybody else
	Able    bool // it reaches the API server and its last sweeps ended, so that it can own something
	// KeySet identifies its encryption keys, see Keys.Hash. 0: it gossips in clear text.
	KeySet uint32
	// Incarnation identifies one life of the process. It is only ever compared for equality.
	Incarnation uint64
	Version     string // of the program, perhaps cut
}

// MaxMetadata is the size of encoded metadata at most. memberlist sends it with every change and every full exchange of
// state, and panics beyond 512 bytes.
const MaxMetadata = 63

// The encoding, all numbers big-endian. A later minor version appends fields or sets further flags, which earlier ones
// skip; a later major version is not understood.
//
//	0  major version
//	1  minor version
//	2  role
//	3  flags
//	4  key set, 4 bytes
//	8  incarnation, 8 bytes
//	16 length of the program's version
//	17 the program's version
const (
	metadataMajor = 1
	metadataMinor = 0
	metadataFixed = 17

	flagLeaving = 1 << 0
	flagAble    = 1 << 1
)

func (m Metadata) encode() []byte {
	var flags byte
	if m.Leaving {
		flags |= flagLeaving
	}
	if m.Able {
		flags |= flagAble
	}
	version := m.Version[:min(len(m.Version), MaxMetadata-metadataFixed)]
	data := []byte{metadataMajor, metadataMinor, byte(m.Role), flags}
	data = binary.BigEndian.AppendUint32(data, m.KeySet)
	data = binary.BigEndian.AppendUint64(data, m.Incarnation)
	data = append(data, byte(len(version)))
	return append(data, version...)
}

func decodeMetadata(data []byte) (Metadata, error) {
	if len(data) == 0 {
		return Metadata{}, errors.New("no metadata: not an agent of unstale")
	}
	if data[0] != metadataMajor {
		return Metadata{}, fmt.Errorf("metadata of major version %d, this agent understands %d", data[0], metadataMajor)
	}
	if len(data) < metadataFixed {
		return Metadata{}, fmt.Errorf("metadata of %d bytes, at least %d are needed", len(data), metadataFixed)
	}
	m := Metadata{
		Role:        Role(data[2]),
		Leaving:     data[3]&flagLeaving != 0,
		Able:        data[3]&flagAble != 0,
		KeySet:      binary.BigEndian.Uint32(data[4:]),
		Incarnation: binary.BigEndian.Uint64(data[8:]),
	}
	if m.Role != Agent && m.Role != Pruner {
		m.Role = UnknownRole
	}
	length := int(data[16])
	if len(data) < metadataFixed+length {
		return Metadata{}, fmt.Errorf("metadata ends within the version: %d bytes of %d", len(data)-metadataFixed, length)
	}
	m.Version = string(data[metadataFixed : metadataFixed+length])
	return m, nil
}
