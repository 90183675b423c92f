// Package gossip knows which agents are alive, which of them owns a key, and carries small messages between them.
//
// The order in which to read it:
//
//   - owner.go: which member owns a key, by rendezvous hashing. Pure.
//   - member.go: what a member says of itself, in 63 bytes at most. Pure.
//   - message.go: the envelope of messages. Pure.
//   - keyring.go: key files, and how a ring in use gets new keys.
//   - directory.go: this package's own copy of who is alive, and who wants to hear of changes.
//   - config.go: who this agent is, and how memberlist is set, with reasons.
//   - cluster.go: a member's life, from listening to leaving; callbacks.go: what memberlist calls; join.go: the search for peers.
//   - send.go: messages with receipts, and pings.
//   - problem.go, log.go: what goes wrong between agents, recognised and told with what to do about it.
//   - transport.go: memberlist's network, with an end and deadlines.
//
// Under it works github.com/hashicorp/memberlist: members probe one another at random, spread joins, leaves and deaths by
// gossip, and now and then exchange all they know. What this package adds:
//
//   - memberlist calls back under its own lock. Whoever asks it anything there deadlocks, whoever takes long stalls all
//     gossip. So callbacks copy into the directory and signal; even log lines are only noted. Signals coalesce, facts do
//     not: that a member departed is kept until each subscriber has taken it.
//   - A split network stays split for memberlist: it forgets the dead and never looks for them again. So members look for
//     peers that are not members again and again, about three of all members each minute.
//   - A node that comes back under a new address is refused while its old one counts as alive or only just dead, and
//     nobody asks again. So it repeats where it is for a while.
//   - memberlist reads its ring of keys without a lock, and most removals race with that. So what goes is first brought
//     to the end, where removal is safe.
//   - memberlist calls a message delivered when it is written to a socket. So each message has a receipt.
//   - That keys or labels differ, or that UDP is blocked, memberlist only logs. So its log is read, and what it means is
//     told in one clear warning a minute and peer, and counted.
//
// What gossip says is never proof. A minority of a split takes minutes to see that it is alone; one stale exchange can bring
// a dead member back for hours (memberlist#312); every member holds the same keys, so anybody who has them can claim any
// name. Ownership and membership save work; what they decide must be harmless when they are wrong.
package gossip
