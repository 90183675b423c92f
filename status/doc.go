// Package status keeps what the API server records about nodes true: it finds the keys that departed nodes left in the
// status of shared resources, and removes them.
//
// The order in which to read it:
//
//   - target.go, fieldpath.go: what to keep clean, and where in a resource a node's key stands.
//   - resource.go: a shared resource's JSON taken apart into entries, one per key and place.
//   - verdict.go: Decide, the table that turns evidence into Keep, Wait or Remove with a reason. Pure.
//   - candidate.go: what is remembered of a key between two looks. Pure.
//   - patch.go: the guarded JSON Patch, and the command that puts an entry back. Pure.
//   - client.go: requests to the API server; errors.go: what their failures mean for a target.
//   - nodes.go: which Nodes exist, and the proof that one is gone.
//   - sweep.go: one pass over a target: look, confirm, decide, remove. removal.go: one write, and what became of it.
//     report.go: what a pass tells.
//   - schedule.go: when to look next. Pure.
//   - rules.go: the RBAC rules a target needs.
//   - own.go, publication.go, ownrequest.go: one node's own key, published and cleared by its own agent; a library for
//     other projects' agents too (see the example). incarnation.go: a key of an earlier node of the same name.
//     leaving.go, ownnode.go: whether a stop should clear a key.
//   - sweepreport.go: what agents publish of themselves and of targets. targetwriter.go: what targets' owners write there, trim.go: what
//     they keep small.
//
// What keeps a live node's key from being removed, in the order in which it is met:
//
//   - A key is a candidate only while nothing speaks for its node, twice, a grace apart, with its entry unchanged.
//   - The Node itself is asked for, by a quorum read, at the moment of acting. Only the API server's own 404 for that very
//     Node counts, and only if in the same pass a Node known to exist could be read.
//   - The write carries what was seen: the resource's UID, the whole entry, and the absence of the keep annotation.
//     If any of it has changed the server refuses the write as a whole, and everything is looked at again.
package status
