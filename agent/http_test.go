package agent

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/unstale/unstale/status"
)

// A httpScene is an agent's servers, running.
type httpScene struct {
	*testing.T
	debug, metrics string // addresses
	conditions     []Condition
}

func newHTTPScene(t *testing.T, profiling bool) *httpScene {
	t.Helper()
	s := &httpScene{T: t, conditions: []Condition{{Name: "started", OK: true}}}
	d := newDecisions("n1")
	d.add(time.Now(), "nri", "ns", "one", []status.Finding{{Key: "k1"}})
	servers, err := listenHTTP(HTTPConfig{DebugAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0", Profiling: profiling}, "n1",
		func() []Condition { return s.conditions }, d, newMetrics("v1"))
	if err != nil {
		t.Fatal(err)
	}
	s.debug, s.metrics = servers.servers[0].listener.Addr().String(), servers.servers[1].listener.Addr().String()
	runHTTP(t, servers)
	return s
}

// runHTTP serves until the test ends.
func runHTTP(t *testing.T, servers *httpServers) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- servers.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// ask sends a request and returns what was answered.
func (s *httpScene) ask(method, address, path, host string) (int, string, http.Header) {
	s.Helper()
	request, err := http.NewRequestWithContext(s.Context(), method, "http://"+address+path, nil)
	if err != nil {
		s.Fatal(err)
	}
	if host != "" {
		request.Host = host
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		s.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		s.Fatal(err)
	}
	return answer.StatusCode, string(body), answer.Header
}

func TestHTTPAnswers(t *testing.T) {
	s, profiled := newHTTPScene(t, false), newHTTPScene(t, true)
	for _, test := range []struct {
		method, address, path, host string
		want                        int
		contains                    string
	}{
		{"GET", s.debug, "/healthz", "", 200, "ok"},
		{"GET", s.metrics, "/healthz", "", 200, "ok"},
		{"HEAD", s.debug, "/healthz", "", 200, ""},
		{"GET", s.debug, "/readyz", "", 200, "ready"},
		{"GET", s.debug, "/debug/decisions", "", 200, `"key": "k1"`},
		{"GET", s.debug, "/debug/decisions?key=k2", "", 200, `"items": []`},
		{"GET", s.debug, "/debug/decisions?limit=abc", "", 400, "limit must be a number from 1 to 1000"},
		{"GET", s.debug, "/debug/decisions?nod=n1", "", 400, "allowed are target, key, reason, limit"},
		{"GET", s.debug, "/debug/decisions?a;b", "", 400, "unknown parameter"},
		{"GET", s.metrics, "/metrics", "", 200, "unstale_build_info"},

		{"GET", s.debug, "/metrics", "", 404, ""},
		{"GET", s.metrics, "/debug/decisions", "", 404, ""},
		{"GET", s.metrics, "/readyz", "", 404, ""},
		{"GET", s.debug, "/", "", 404, ""},
		{"GET", s.debug, "/healthz/more", "", 404, ""},

		{"GET", s.debug, "/debug/pprof/", "", 404, ""},
		{"GET", s.debug, "/debug/pprof/cmdline", "", 404, ""},
		{"GET", profiled.debug, "/debug/pprof/", "", 200, "goroutine"},
		{"GET", profiled.debug, "/debug/pprof/heap?debug=1", "", 200, "heap profile"},
		{"GET", profiled.debug, "/debug/pprof/cmdline", "", 200, "agent.test"},
		{"GET", profiled.debug, "/debug/pprof/symbol", "", 200, "num_symbols"},
		{"GET", profiled.debug, "/debug/pprof/trace?seconds=0.01", "", 200, ""},
		{"GET", profiled.metrics, "/debug/pprof/", "", 404, ""},
		{"POST", profiled.debug, "/debug/pprof/symbol", "", 405, ""},

		{"POST", s.debug, "/debug/decisions", "", 405, "nothing can be changed here"},
		{"PUT", s.debug, "/healthz", "", 405, ""},
		{"DELETE", s.debug, "/", "", 405, ""},
		{"PATCH", s.metrics, "/metrics", "", 405, ""},
		{"OPTIONS", s.metrics, "/metrics", "", 405, ""},
		{"TRACE", s.debug, "/readyz", "", 405, ""},
		{"BREW", s.debug, "/readyz", "", 405, ""},

		{"GET", s.debug, "/debug/decisions", "evil.example", 403, "must be an IP address or localhost"},
		{"GET", s.debug, "/debug/decisions", "evil.example:9810", 403, ""},
		{"GET", s.metrics, "/metrics", "localhost.evil.example", 403, ""},
		{"GET", s.debug, "/healthz", "127.0.0.1.evil.example", 403, ""},
		{"GET", s.debug, "/healthz", "localhost", 200, ""},
		{"GET", s.debug, "/healthz", "LocalHost:9810", 200, ""},
		{"GET", s.debug, "/healthz", "192.0.2.1", 200, ""},
		{"GET", s.debug, "/healthz", "[::1]:9810", 200, ""},
		{"GET", s.debug, "/healthz", "[::1]", 200, ""},
	} {
		code, body, header := s.ask(test.method, test.address, test.path, test.host)
		if code != test.want || !strings.Contains(body, test.contains) {
			t.Errorf("%s %s (Host %q): got %d %q, want %d with %q", test.method, test.path, test.host, code, body, test.want, test.contains)
		}
		if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" || header.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: headers %v", test.method, test.path, header)
		}
		if test.want == 405 && header.Get("Allow") != "GET, HEAD" {
			t.Errorf("%s %s: Allow is %q", test.method, test.path, header.Get("Allow"))
		}
	}
}

// On another address than loopback a Host may be any name, of a Service for instance.
func TestHostOnOtherAddresses(t *testing.T) {
	for local, want := range map[string]bool{
		"127.0.0.1:9810": true, "127.8.8.8:9810": true, "[::1]:9810": true, "[::ffff:127.0.0.1]:9810": true,
		"192.0.2.1:9810": false, "[2001:db8::1]:9810": false,
	} {
		address, err := net.ResolveTCPAddr("tcp", local)
		if err != nil {
			t.Fatal(err)
		}
		r := new(http.Request).WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, net.Addr(address)))
		if got := onLoopback(r); got != want {
			t.Errorf("%s: loopback %t, want %t", local, got, want)
		}
	}
	if !onLoopback(new(http.Request)) {
		t.Error("an unknown address does not count as loopback")
	}
}

func TestReadiness(t *testing.T) {
	s := newHTTPScene(t, false)
	for _, test := range []struct {
		conditions    []Condition
		want          int
		text, verbose string
	}{
		{nil, 200, "ready\n", "ready\n"},
		{[]Condition{{"started", true, ""}, {"configuration", true, "the earlier one is in use"}}, 200, "ready\n",
			"[+] started: ok\n[+] configuration: the earlier one is in use\nready\n"},
		{[]Condition{{"started", true, ""}, {"api-server", false, "no answer"}, {"other", false, "broken"}}, 503, "api-server: no answer\nother: broken\n",
			"[+] started: ok\n[-] api-server: no answer\n[-] other: broken\nnot ready\n"},
	} {
		s.conditions = test.conditions
		if code, body, _ := s.ask("GET", s.debug, "/readyz", ""); code != test.want || body != test.text {
			t.Errorf("%v: got %d %q, want %d %q", test.conditions, code, body, test.want, test.text)
		}
		if code, body, _ := s.ask("GET", s.debug, "/readyz?verbose", ""); code != test.want || body != test.verbose {
			t.Errorf("%v: got %d %q, want %d %q", test.conditions, code, body, test.want, test.verbose)
		}
	}
}

func TestHTTPAddresses(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	for _, test := range []struct {
		config HTTPConfig
		want   string
	}{
		{HTTPConfig{DebugAddress: address}, "http.debugAddress: cannot listen on " + address},
		{HTTPConfig{DebugAddress: "127.0.0.1:0", MetricsAddress: address}, "http.metricsAddress: cannot listen on " + address},
	} {
		if _, err := listenHTTP(test.config, "n1", nil, newDecisions("n1"), newMetrics("v1")); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: got %v, want an error with %q", test.config, err, test.want)
		}
	}
	servers, err := listenHTTP(HTTPConfig{}, "n1", nil, newDecisions("n1"), newMetrics("v1"))
	if err != nil || len(servers.servers) != 0 {
		t.Errorf("without addresses: %d servers, %v", len(servers.servers), err)
	}
	runHTTP(t, servers) // ends only with the test
}

// The address of a server that could not be started beside it is free again.
func TestHTTPAddressesAreGivenBack(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	if _, err := listenHTTP(HTTPConfig{DebugAddress: address, MetricsAddress: address}, "n1", nil, newDecisions("n1"), newMetrics("v1")); err == nil {
		t.Fatal("two servers on one address")
	}
	again, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

func TestHTTPRefusesWhatIsHuge(t *testing.T) {
	s := newHTTPScene(t, false)
	if code, _, _ := s.ask("GET", s.debug, "/debug/decisions?key="+strings.Repeat("x", 64<<10), ""); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %d, want %d", code, http.StatusRequestHeaderFieldsTooLarge)
	}
}

func TestHTTPTimeouts(t *testing.T) {
	servers, err := listenHTTP(HTTPConfig{DebugAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0"}, "n1", nil, newDecisions("n1"), newMetrics("v1"))
	if err != nil {
		t.Fatal(err)
	}
	defer servers.close()
	for _, one := range servers.servers {
		if s := one.server; s.ReadHeaderTimeout <= 0 || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
			t.Errorf("%s: a bound is missing: %+v", one.field, s)
		}
	}
}

// An answer that does not end is cut off, one that does is waited for.
func TestHTTPStops(t *testing.T) {
	servers := &httpServers{}
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/endless", func(_ http.ResponseWriter, r *http.Request) { begun <- struct{}{}; <-r.Context().Done() })
	mux.HandleFunc("/slow", func(w http.ResponseWriter, _ *http.Request) { begun <- struct{}{}; <-finish; fmt.Fprint(w, "done") })
	if err := servers.listen("http.debugAddress", "127.0.0.1:0", mux); err != nil {
		t.Fatal(err)
	}
	base := "http://" + servers.servers[0].listener.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- servers.Run(ctx) }()
	get := func(path string) <-chan string {
		result := make(chan string, 1)
		go func() {
			answer, err := http.Get(base + path)
			if err != nil {
				result <- "cut off"
				return
			}
			defer answer.Body.Close()
			body, _ := io.ReadAll(answer.Body)
			result <- string(body)
		}()
		<-begun
		return result
	}
	endless, slow := get("/endless"), get("/slow")
	cancelled := time.Now()
	cancel()
	close(finish)
	if got := <-slow; got != "done" {
		t.Errorf("the slow answer is %q, want it whole", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := <-endless; got != "cut off" {
		t.Errorf("the endless answer is %q, want it cut off", got)
	}
	if took := time.Since(cancelled); took > 10*time.Second {
		t.Errorf("stopping took %s", took)
	}
	if _, err := http.Get(base + "/slow"); err == nil {
		t.Error("still serves")
	}
}

// One server that ends by itself ends the others, and says which it was.
func TestHTTPFails(t *testing.T) {
	servers, err := listenHTTP(HTTPConfig{DebugAddress: "127.0.0.1:0", MetricsAddress: "127.0.0.1:0"}, "n1", nil, newDecisions("n1"), newMetrics("v1"))
	if err != nil {
		t.Fatal(err)
	}
	servers.servers[1].listener.Close()
	if err := servers.Run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "http.metricsAddress: ") {
		t.Errorf("got %v, want an error that names http.metricsAddress", err)
	}
}
