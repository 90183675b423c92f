package main

// connectionLossMode, before the unstale to measure and a folder, makes this program the benchmark connection-losses in the network namespace that it
// runs in.
const connectionLossMode = "connection-losses-here"
