package status

import "fmt"

// A Recorder tells whether the log takes what puts a removed entry back. It is called just before the lines of one removal are logged, and
// fails while the log cannot be written, so that whole entries are not logged again and again for nothing. written is called after those
// lines, and fails if one of them may be lost, whatever was written since. Several may be under way at once.
//
// Nil stands for a log of which nobody can tell.
type Recorder func() (written func() error, err error)

// begin calls the Recorder, if there is one.
func (r Recorder) begin() (written func() error, err error) {
	if r == nil {
		return func() error { return nil }, nil
	}
	ask, err := r()
	if err != nil {
		return nil, notRecorded(err)
	}
	return func() error {
		if err := ask(); err != nil {
			return notRecorded(err)
		}
		return nil
	}, nil
}

func notRecorded(err error) error {
	return fmt.Errorf("the log with what puts it back cannot be written: %w", err)
}
