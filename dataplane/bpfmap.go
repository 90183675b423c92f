package dataplane

// BPFMaps are the pinned BPF maps of one layout.
type BPFMaps struct {
	Target string // its name, for messages
	Pin    string // the absolute path of the pin, or a glob as path/filepath has them
	Layout Layout

	withoutBatches bool // for tests: as on a kernel that has no batch operations
}
