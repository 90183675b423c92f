package main

import (
	"maps"
	"slices"
	"time"

	"github.com/unstale/unstale/test/apiserver"
)

// A measurement is what one run of one side took.
type measurement struct {
	usage
	requests       map[string]int // by class
	sent, received int64          // bytes
	batches        int            // writes that the server took
}

// traffic notes what went through the proxy since its last Reset.
func (m *measurement) traffic(p *apiserver.Proxy) {
	m.requests = p.Counts()
	m.sent, m.received = p.Bytes()
	m.batches = 0
	for _, r := range p.Requests() {
		if r.Method == "PATCH" && r.Status == 200 {
			m.batches++
		}
	}
}

func (m measurement) allRequests() int {
	sum := 0
	for n := range maps.Values(m.requests) {
		sum += n
	}
	return sum
}

// per makes samples of runs, each divided by n.
func per(n int, runs []measurement, value func(measurement) float64) samples {
	var s samples
	for _, m := range runs {
		s = append(s, value(m)/float64(n))
	}
	return s
}

// What can be asked of a measurement.
func wallSeconds(m measurement) float64  { return m.wall.Seconds() }
func wallMillis(m measurement) float64   { return float64(m.wall) / float64(time.Millisecond) }
func cpuSeconds(m measurement) float64   { return m.cpu.Seconds() }
func cpuMillis(m measurement) float64    { return float64(m.cpu) / float64(time.Millisecond) }
func peakBytes(m measurement) float64    { return float64(m.memory) }
func bytesOut(m measurement) float64     { return float64(m.sent) }
func bytesIn(m measurement) float64      { return float64(m.received) }
func requestCount(m measurement) float64 { return float64(m.allRequests()) }

// add gives the session a figure without anything beside it.
func (s *session) add(name, unit string, values samples) {
	s.figures = append(s.figures, figure{name: name, unit: unit, values: values})
}

// compare gives the session a figure with something beside it.
func (s *session) compare(name, unit string, values samples, what string, beside samples) {
	s.figures = append(s.figures, figure{name: name, unit: unit, values: values, beside: &contrast{what, beside}})
}

// addRequests gives the session a figure for each class of requests.
func (s *session) addRequests(name string, runs []measurement) {
	for _, class := range classes(runs) {
		s.add(name+"/"+class, "requests", per(1, runs, inClass(class)))
	}
}

// compareRequests is addRequests with what stands beside it.
func (s *session) compareRequests(name string, runs []measurement, what string, beside []measurement) {
	for _, class := range classes(runs, beside) {
		s.compare(name+"/"+class, "requests", per(1, runs, inClass(class)), what, per(1, beside, inClass(class)))
	}
}

// classes are those of all requests, sorted.
func classes(sides ...[]measurement) []string {
	found := map[string]bool{}
	for _, side := range sides {
		for _, m := range side {
			for class := range m.requests {
				found[class] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func inClass(class string) func(measurement) float64 {
	return func(m measurement) float64 { return float64(m.requests[class]) }
}

// knowsMemory tells whether the peak was seen in all runs.
func knowsMemory(runs []measurement) bool {
	return !slices.ContainsFunc(runs, func(m measurement) bool { return m.memory == 0 })
}
