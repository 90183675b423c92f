package agent

import (
	"fmt"
	"io"
	"os"
	"reflect"
)

// maxFileSize is the most a configuration file may have, in bytes: 1 MiB, the most a ConfigMap holds. It keeps a wrong
// path (a disk image, /dev/zero) from being read into memory.
const maxFileSize = 1 << 20

// Load reads a configuration file. When the file is readable but not valid, the error wraps Errors.
func Load(file string) (*Configuration, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration file: %w", err)
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("the configuration file %s is not valid:\n%w", file, err)
	}
	return c, nil
}

func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("%w; check the path, and in a pod that the ConfigMap is mounted and readable", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory; name the file in it", file)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("%s has more than %d bytes, which no configuration has; check the path", file, maxFileSize)
	}
	return data, nil
}

// Parse reads a configuration, checks it and adds the targets of its presets. An error is of type Errors and has all
// that is wrong.
func Parse(data []byte) (*Configuration, error) {
	return parse(data, checkBuilt, (*Configuration).addPresets)
}

// parse decodes a configuration and takes it through the steps that are left. All steps run, whatever the ones before
// found, so that all errors come at once.
func parse(data []byte, steps ...func(*Configuration) Errors) (*Configuration, error) {
	var c Configuration
	applyDefaults(reflect.ValueOf(&c).Elem())
	d := newDecoder()
	d.decode(data, &c)
	if len(d.lines) == 0 {
		return nil, d.errs.orNil() // no document: the steps would only repeat it
	}
	if errs := d.located(checkFormat(&c)); len(errs) > 0 {
		return nil, errs.orNil() // something else altogether: its fields are not ours to judge
	}
	c.complete()
	errs := d.errs
	for _, step := range steps {
		errs = append(errs, d.located(step(&c))...)
	}
	if err := errs.orNil(); err != nil {
		return nil, err
	}
	return &c, nil
}

// located gives errors their lines, and drops those that the file's own mistakes caused.
func (d *decoder) located(found Errors) Errors {
	var errs Errors
	for _, e := range found {
		if d.isSpoiled(location(e.Path)) {
			continue
		}
		e.Line = d.line(location(e.Path))
		errs = append(errs, e)
	}
	return errs
}
