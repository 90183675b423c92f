//go:build !unix

package apiserver

import "os"

// newFolder makes a folder for one server's data. The function that it returns removes the folder.
func newFolder() (string, func() error, error) {
	dir, err := os.MkdirTemp("", "unstale-apiserver-")
	return dir, func() error { return os.RemoveAll(dir) }, err
}
