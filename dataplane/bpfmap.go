package dataplane

// BPFMaps are the pinned BPF maps of one layout.
type BPFMaps struct {
	Pin    string // the absolute path of the pin, or a glob as path/filepath has them
	Layout Layout
}
