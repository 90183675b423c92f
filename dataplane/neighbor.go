package dataplane

// Neighbors are the kernel's tables of which hardware address an address has, on all of the node's interfaces.
type Neighbors struct{}

// NeighborsTarget is the name of the target.
const NeighborsTarget = "neighbors"
