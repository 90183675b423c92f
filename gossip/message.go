package gossip

import (
	"encoding/json"
	"errors"
	"fmt"
)

// A Message is what one member sends to another. What it means is between its sender and its receiver; nobody proves who
// the sender is, as every member holds the same key.
type Message struct {
	// Type says what it is about, and who takes it.
	Type string
	// ID is unique among the messages of one incarnation of the sender.
	ID uint64
	// Sender and Incarnation say who sent it, in which life of its process.
	Sender      string
	Incarnation uint64
	// To is the member that it is meant for. Addresses change hands; names do not.
	To string
	// Payload is JSON, perhaps none.
	Payload json.RawMessage
}

const (
	// MaxMessage is the size of an encoded message at most. memberlist itself takes 20 MiB from anybody.
	MaxMessage = 64 << 10

	messageMajor = 1
	messageMinor = 0

	maxName = 253 // a node's name is a DNS subdomain
	maxType = 63
)

// envelope is a message on the wire. Fields are only ever added, with the minor version; what one version does not know it
// skips. The names are short because thousands of these arrive within a second.
type envelope struct {
	Version     [2]int          `json:"v"` // major, minor
	Type        string          `json:"type"`
	ID          uint64          `json:"id"`
	Sender      string          `json:"sender"`
	Incarnation uint64          `json:"incarnation"`
	To          string          `json:"to"`
	Payload     json.RawMessage `json:"payload,omitempty"`
}

func encodeMessage(m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	data, err := json.Marshal(envelope{
		Version: [2]int{messageMajor, messageMinor},
		Type:    m.Type, ID: m.ID, Sender: m.Sender, Incarnation: m.Incarnation, To: m.To, Payload: m.Payload,
	})
	if err != nil {
		return nil, fmt.Errorf("the payload is not JSON: %w", err)
	}
	if len(data) > MaxMessage {
		return nil, fmt.Errorf("a message of %d bytes, at most %d can be sent", len(data), MaxMessage)
	}
	return data, nil
}

func decodeMessage(data []byte) (Message, error) {
	if len(data) > MaxMessage {
		return Message{}, fmt.Errorf("a message of %d bytes, at most %d are taken", len(data), MaxMessage)
	}
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return Message{}, fmt.Errorf("not a message: %w", err)
	}
	if e.Version[0] != messageMajor {
		return Message{}, fmt.Errorf("a message of version %d.%d, this agent understands %d.x", e.Version[0], e.Version[1], messageMajor)
	}
	m := Message{Type: e.Type, ID: e.ID, Sender: e.Sender, Incarnation: e.Incarnation, To: e.To, Payload: e.Payload}
	return m, m.check()
}

func (m *Message) check() error {
	switch {
	case m.Type == "" || len(m.Type) > maxType:
		return fmt.Errorf("a message type of %d bytes, 1 to %d are allowed", len(m.Type), maxType)
	case m.Sender == "" || len(m.Sender) > maxName:
		return fmt.Errorf("a sender's name of %d bytes, 1 to %d are allowed", len(m.Sender), maxName)
	case m.To == "" || len(m.To) > maxName:
		return fmt.Errorf("a receiver's name of %d bytes, 1 to %d are allowed", len(m.To), maxName)
	}
	return nil
}

// The types that this package keeps for itself.
const (
	reservedTypes = "gossip."

	typeReceipt = "gossip.receipt" // the answer to every other message
	typePing    = "gossip.ping"    // asks for nothing but the receipt
)

// receipt says what became of a message at its receiver.
type receipt struct {
	Of     uint64 `json:"of"`
	Result result `json:"result"`
}

type result string

const (
	taken       result = "taken"
	unknownType result = "unknownType"
	notMe       result = "notMe"
	busy        result = "busy"
)

// Why a message did not get through, besides failures of the network and the end of the context.
var (
	// ErrNotMember: no live member has that name.
	ErrNotMember = errors.New("not a live member")
	// ErrUnknownType: the receiver has nobody for this type of message. It may run another version.
	ErrUnknownType = errors.New("the receiver does not know this type of message")
	// ErrBusy: the receiver has too many messages waiting.
	ErrBusy = errors.New("the receiver is busy")
	// ErrNotRunning: this cluster has not started or has stopped.
	ErrNotRunning = errors.New("gossip is not running")

	errNotMe = errors.New("another member answers at the receiver's address")
)

func (r result) err() error {
	switch r {
	case taken:
		return nil
	case unknownType:
		return ErrUnknownType
	case busy:
		return ErrBusy
	case notMe:
		return errNotMe
	}
	return fmt.Errorf("the receiver refused the message: %q", string(r))
}
