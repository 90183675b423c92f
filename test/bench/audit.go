package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// auditPolicy makes the server write down every request, without bodies, when it has been answered.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

// An auditLog is the server's own account of its requests, which counts what programs send past the proxies.
type auditLog string // file

// startAudited is startCluster with a server that keeps an audit log.
func (s *session) startAudited(ctx context.Context) (*cluster, auditLog, error) {
	dir, err := os.MkdirTemp(s.scratch, "audit-")
	if err != nil {
		return nil, "", fmt.Errorf("make a folder for the audit log: %w", err)
	}
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, "", fmt.Errorf("write the audit policy: %w", err)
	}
	c, err := s.startCluster(ctx, "--audit-policy-file="+policy, "--audit-log-path="+log, "--audit-log-mode=blocking")
	return c, auditLog(log), err
}

// An auditEvent is a line of the log, as far as it is used.
type auditEvent struct {
	AuditID                  string
	Verb                     string
	RequestURI               string
	UserAgent                string
	RequestReceivedTimestamp time.Time
	ObjectRef                *struct{ Resource, APIGroup, Subresource, Name string }
}

// class names what the request does, in the words of apiserver.Class.
func (e *auditEvent) class() string {
	verb := strings.ToUpper(e.Verb)
	if e.ObjectRef == nil {
		path, _, _ := strings.Cut(e.RequestURI, "?")
		return verb + " " + path
	}
	class := verb + " " + e.ObjectRef.Resource
	if e.ObjectRef.APIGroup != "" {
		class += "." + e.ObjectRef.APIGroup
	}
	if e.ObjectRef.Subresource != "" {
		class += "/" + e.ObjectRef.Subresource
	}
	return class
}

// counts are the requests of each class that the server received from this time on and before that one, from programs whose
// user agent begins with program and a slash.
func (a auditLog) counts(program string, from, before time.Time) (map[string]int, error) {
	file, err := os.Open(string(a))
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	defer file.Close()
	return countEvents(file, func(e *auditEvent) bool {
		return strings.HasPrefix(e.UserAgent, program+"/") && !e.RequestReceivedTimestamp.Before(from) && e.RequestReceivedTimestamp.Before(before)
	})
}

// countEvents counts requests by class. A watch has an event when it begins and another when it ends, and is one request. The
// server may be writing the last line.
func countEvents(r io.Reader, wanted func(*auditEvent) bool) (map[string]int, error) {
	counts, seen := map[string]int{}, map[string]bool{}
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return counts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		var e auditEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("read the audit log: %w in %.200s", err, line)
		}
		if wanted(&e) && !seen[e.AuditID] {
			seen[e.AuditID] = true
			counts[e.class()]++
		}
	}
}
