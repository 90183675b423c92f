// Package agent is the agent that runs on every node: its configuration, and its life from the start to an orderly stop.
//
// The configuration, in the order in which to read it:
//
//   - config.go, config_targets.go, config_kernel.go, config_recovery.go: the format, one Go field for each of the file's.
//   - decode.go, fields.go: strict decoding, with the line and path of every mistake. load.go: a file.
//   - validate.go and its neighbours: what a file may say. presets.go: built-in targets. errors.go: how mistakes are told.
//   - targets.go: the configured targets in the form that package status takes.
//
// The running agent:
//
//   - agent.go: from the start to where it works, in one straight line. parts.go: what runs beside one another, and the steps of a stop.
//     stop.go: the stop. reload.go: a configuration file that changes. health.go: whether this agent can do an owner's work.
//   - units.go: what one agent keeps clean on its own. sweeps.go: a worker for each unit that this agent owns. worker.go: one worker.
//     passes.go: what becomes of what the passes find.
//   - evidence.go: what gossip and the API server know of nodes, joined.
//   - publish.go: this node's key in the SweepReport. ownkeys.go: this node's keys in the targets, when the node goes or was replaced.
//     report.go: what this agent's passes found, in the SweepReport.
//   - kube.go, address.go: the agent's few plain requests, and its addresses. events.go, metrics.go, decisions.go, debug.go, http.go:
//     how others see what it does.
//
// What belongs to nobody else here: this package knows both gossip and the API server. Deciding is theirs; it joins them.
package agent
