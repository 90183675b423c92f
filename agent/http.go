package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// readTimeout bounds the reading of a request, writeTimeout the answer to it; profiles extend that for themselves.
	readTimeout  = 5 * time.Second
	writeTimeout = time.Minute
	idleTimeout  = 2 * time.Minute
	// maxHeader bounds a request's line and headers. The longest that makes sense is a query with a key in it.
	maxHeader = 16 << 10
	// httpStopTime is how long answers that have begun may take when the servers end. The connections are cut then.
	httpStopTime = 1500 * time.Millisecond
)

// httpServers answer what others ask of the agent. Nothing that they serve can change anything.
type httpServers struct {
	servers []*httpServer
}

// An httpServer is one of them.
type httpServer struct {
	field    string // of the configuration, that holds its address
	listener net.Listener
	server   *http.Server
}

// listenHTTP listens on the configured addresses, so that one in use is known at the start. Run serves; who does not call it calls close.
func listenHTTP(c HTTPConfig, node string, conditions func() []Condition, d *decisions, m *metrics) (*httpServers, error) {
	debug := newDebugHandler(node, conditions, d, c.Profiling)
	s := &httpServers{}
	if c.DebugAddress != "" {
		if err := s.listen("http.debugAddress", c.DebugAddress, debug); err != nil {
			return nil, err
		}
	}
	if c.MetricsAddress != "" {
		if err := s.listen("http.metricsAddress", c.MetricsAddress, newMetricsHandler(m)); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *httpServers) listen(field, address string, handler http.Handler) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s: cannot listen on %s: %w; is another agent or program there? "+
			"Stop it, set another address, or \"\" to go without", field, address, err)
	}
	s.servers = append(s.servers, &httpServer{field: field, listener: listener, server: &http.Server{
		// AllowQuerySemicolons keeps the server from logging each query that has one.
		Handler:           http.AllowQuerySemicolons(guard(handler)),
		ReadHeaderTimeout: readTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}})
	return nil
}

// close gives the addresses back without having served.
func (s *httpServers) close() {
	for _, one := range s.servers {
		one.listener.Close()
	}
}

// Run serves until ctx ends, then for as long as answers take that have begun, two seconds at most. An error says that a server ended by itself.
func (s *httpServers) Run(ctx context.Context) error {
	failed := make(chan error, len(s.servers))
	var serving sync.WaitGroup
	for _, one := range s.servers {
		serving.Go(func() {
			if err := one.server.Serve(one.listener); !errors.Is(err, http.ErrServerClosed) {
				failed <- fmt.Errorf("%s: serve on %s: %w", one.field, one.listener.Addr(), err)
			}
		})
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTime)
	defer cancel()
	for _, one := range s.servers {
		serving.Go(func() {
			if one.server.Shutdown(stopping) != nil {
				one.server.Close()
			}
		})
	}
	serving.Wait()
	return err
}

// guard lets only reading requests through, and on loopback only those that mean loopback: a web page can make a browser on this
// host send requests to 127.0.0.1 under a name of the page's choice, and read the answers as its own.
func guard(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("Cache-Control", "no-store")
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "only GET and HEAD: nothing can be changed here", http.StatusMethodNotAllowed)
		case onLoopback(r) && !namesAddress(r.Host):
			http.Error(w, "on a loopback address the Host header must be an IP address or localhost", http.StatusForbidden)
		default:
			handler.ServeHTTP(w, r)
		}
	})
}

// onLoopback tells whether the request came in on a loopback address. If that cannot be told it counts as one.
func onLoopback(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local == nil {
		return true
	}
	address, err := netip.ParseAddrPort(local.String())
	return err != nil || address.Addr().Unmap().IsLoopback()
}

// namesAddress tells whether a Host header, with or without a port, has an IP address or localhost.
func namesAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	} else if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
