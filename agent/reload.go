package agent

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"time"

	"go.uber.org/zap"
)

// reloadInterval is how often the configuration file is looked at. Reading a small file costs nothing; watching it would have to follow
// the symbolic links that Kubernetes swaps under a mounted ConfigMap, and inotify instances run out on busy nodes.
const reloadInterval = 5 * time.Second

// A reloader takes a new configuration when its file changes. A bad one changes nothing but what is said about it.
type reloader struct {
	file  string
	every time.Duration
	log   *zap.Logger
	// present is the configuration in use, and text the file's content that was looked at last; none at first, as the file may have
	// changed since present was read.
	present *Configuration
	text    []byte
	// apply takes a new configuration; failed hears why one was not taken, nil when the file is right again without being different.
	apply  func(*Configuration)
	failed func(error)

	said string // the last failure
}

func (r *reloader) run(ctx context.Context) error {
	for wait(ctx, r.every) == nil {
		r.look()
	}
	return nil
}

// look reads the file once.
func (r *reloader) look() {
	text, err := readFile(r.file)
	switch {
	case err != nil:
		r.text = nil
		r.refuse(fmt.Errorf("read the configuration file: %w", err))
		return
	case bytes.Equal(text, r.text):
		return
	}
	r.text = text
	c, err := Parse(text)
	if err != nil {
		r.refuse(fmt.Errorf("the configuration file %s is not valid:\n%w", r.file, err))
		return
	}
	for _, field := range keepFixed(c, r.present) {
		r.log.Warn("this change takes effect when the agent is restarted", zap.String("field", field))
	}
	if reflect.DeepEqual(c, r.present) {
		if r.said != "" {
			r.said = ""
			r.failed(nil)
		}
		return
	}
	r.said = ""
	r.log.Info("a new configuration", zap.String("from", r.present.Hash()), zap.String("config", c.Hash()))
	r.present = c
	r.apply(c)
}

// refuse says, once, why the file is not taken.
func (r *reloader) refuse(err error) {
	if err.Error() == r.said {
		return
	}
	r.said = err.Error()
	r.log.Error("the configuration in use stays", zap.String("config", r.present.Hash()), zap.Error(err))
	r.failed(err)
}

// keepFixed gives c the present values of what cannot change while the agent runs, and names the fields that differed.
func keepFixed(c, present *Configuration) []string {
	var fields []string
	fixed := []struct {
		name     string
		new, now any // pointers
	}{
		{"gossip.bindAddress", &c.Gossip.BindAddress, &present.Gossip.BindAddress},
		{"gossip.advertiseAddress", &c.Gossip.AdvertiseAddress, &present.Gossip.AdvertiseAddress},
		{"gossip.port", &c.Gossip.Port, &present.Gossip.Port},
		{"gossip.keyFile", &c.Gossip.KeyFile, &present.Gossip.KeyFile},
		{"gossip.insecure", &c.Gossip.Insecure, &present.Gossip.Insecure},
		{"gossip.peers", &c.Gossip.Peers, &present.Gossip.Peers},
		{"gossip.service", &c.Gossip.Service, &present.Gossip.Service},
		{"http.debugAddress", &c.HTTP.DebugAddress, &present.HTTP.DebugAddress},
		{"http.metricsAddress", &c.HTTP.MetricsAddress, &present.HTTP.MetricsAddress},
		{"http.profiling", &c.HTTP.Profiling, &present.HTTP.Profiling},
	}
	if c.Kernel != nil && present.Kernel != nil {
		fixed = append(fixed, struct {
			name     string
			new, now any
		}{"kernel.stateDir", &c.Kernel.StateDir, &present.Kernel.StateDir})
	}
	for _, f := range fixed {
		if !reflect.DeepEqual(f.new, f.now) {
			fields = append(fields, f.name)
			reflect.ValueOf(f.new).Elem().Set(reflect.ValueOf(f.now).Elem())
		}
	}
	return fields
}
