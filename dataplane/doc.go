// Package dataplane keeps the kernel tables of one node true: entries (ipset members, BPF map entries) that hold the address of a pod go
// when the pod has lost that address, and nobody else has it.
//
// Deciding is pure: Owners (owners.go) turns what is seen of pods into releases, addresses that a pod has lost; Decide (verdict.go) says of
// each entry with such an address whether it goes. The tables themselves stand behind one interface, Table.
package dataplane
