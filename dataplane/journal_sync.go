//go:build !windows

package dataplane

import (
	"errors"
	"os"
)

// syncDir makes a rename in the directory last through a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
