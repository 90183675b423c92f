package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/unstale/unstale/status"
)

// notBuilt names the parts of the format that this version reads but cannot do yet. To accept one in silence would let
// an operator believe that it works. A part that is built goes from here, and nothing else changes.
func notBuilt(c *Configuration) Errors {
	var found checks
	refuse := func(given bool, at location, what string) {
		if given {
			found.failf(at, "%s are not built yet in this version; remove this section", what)
		}
	}
	refuse(c.Kernel != nil && isPipe(c.Kernel.RuntimeEndpoint), "kernel.runtimeEndpoint", "questions to a container runtime through a named pipe")
	return found.errs
}

// checkBuilt validates a configuration. Of a part that is not built it says only that.
func checkBuilt(c *Configuration) Errors {
	errs := notBuilt(c)
	refused := slices.Clone(errs)
	for _, e := range validate(c) {
		inRefused := func(r FieldError) bool { return location(r.Path).contains(location(e.Path)) }
		if !slices.ContainsFunc(refused, inRefused) {
			errs = append(errs, e)
		}
	}
	return errs
}

// checkFormat says whether the document is something else than a configuration of this version.
func checkFormat(c *Configuration) Errors {
	var found checks
	if c.APIVersion != "" && c.APIVersion != APIVersion {
		found.failf("apiVersion", "must be %s, the only one that this version reads, got %s", APIVersion, quote(c.APIVersion))
	}
	if c.Kind != "" && c.Kind != Kind {
		found.failf("kind", "must be %s, got %s", Kind, quote(c.Kind))
	}
	return found.errs
}

// validate checks a completed configuration as a whole, without the targets of its presets. The errors have no lines.
func validate(c *Configuration) Errors {
	var found checks
	found.required("apiVersion", c.APIVersion, APIVersion)
	found.required("kind", c.Kind, Kind)
	found.mode("mode", c.Mode)
	found.between("sweepInterval", c.SweepInterval, time.Second, 24*time.Hour)
	found.between("grace", c.Grace, time.Second, time.Hour)
	found.inRange("maxRemovals", c.MaxRemovals, 1, status.MaxRemovalsLimit)
	found.report("report", c.Report)
	found.gossip("gossip", c.Gossip)
	found.http("http", c.HTTP)
	for i, target := range c.StatusKeys {
		found.statusKeys(location("statusKeys").item(i), target)
	}
	for i, target := range c.NodeObjects {
		found.nodeObjects(location("nodeObjects").item(i), target)
	}
	if c.Kernel != nil {
		found.kernel("kernel", *c.Kernel)
	}
	if c.NodeRecovery != nil {
		found.nodeRecovery("nodeRecovery", *c.NodeRecovery)
		if c.Report.Name == "" {
			found.failf("report.name", "must not be empty while nodeRecovery is configured, which keeps its counters in the SweepReport; give a name or remove nodeRecovery")
		}
	}
	found.targetNames(c)
	return found.errs
}

// checks gathers what is wrong.
type checks struct{ errs Errors }

func (f *checks) failf(at location, format string, args ...any) {
	f.errs = append(f.errs, FieldError{Path: string(at), Message: fmt.Sprintf(format, args...)})
}

func (f *checks) report(at location, c ReportConfig) {
	if c.Name != "" {
		f.objectName(at.field("name"), c.Name)
	}
	if c.Pods != nil {
		f.pods(at.field("pods"), *c.Pods)
	}
}

func (f *checks) pods(at location, c PodsConfig) {
	f.namespace(at.field("namespace"), c.Namespace)
	selector := at.field("labelSelector")
	if !f.required(selector, c.LabelSelector, "app=x") {
		return
	}
	if _, err := labels.Parse(c.LabelSelector); err != nil {
		f.failf(selector, "must be a label selector such as app=x, got %s: %v", quote(c.LabelSelector), err)
	}
}

func (f *checks) gossip(at location, c GossipConfig) {
	for name, address := range map[string]string{"bindAddress": c.BindAddress, "advertiseAddress": c.AdvertiseAddress} {
		parsed, err := netip.ParseAddr(address)
		switch {
		case address == "":
		case err != nil:
			f.failf(at.field(name), "must be an IP address such as 192.0.2.1, got %s", quote(address))
		case parsed.IsUnspecified() && name == "advertiseAddress":
			f.failf(at.field(name), "must be an address that other nodes can reach, got %s; leave it out for this node's own", address)
		}
	}
	f.inRange(at.field("port"), c.Port, 1, 65535)
	if c.Insecure && c.KeyFile != "" {
		f.failf(at.field("insecure"), "contradicts keyFile; remove insecure to encrypt, or keyFile to go without")
	}
	for i, peer := range c.Peers {
		inner := at.field("peers").item(i)
		if f.hostPort(inner, peer, 1) && strings.HasPrefix(peer, ":") {
			f.failf(inner, "must name a host, such as 192.0.2.1%s, got %s", peer, quote(peer))
		}
	}
	if c.Service != nil {
		service := at.field("service")
		if f.required(service.field("namespace"), c.Service.Namespace, "unstale") {
			f.namespace(service.field("namespace"), c.Service.Namespace)
		}
		if f.required(service.field("name"), c.Service.Name, "unstale-gossip") {
			f.label(service.field("name"), c.Service.Name)
		}
		if len(c.Peers) > 0 {
			f.failf(service, "cannot be combined with peers; keep one of the two")
		}
	}
}

func (f *checks) http(at location, c HTTPConfig) {
	debug := c.DebugAddress == "" || f.hostPort(at.field("debugAddress"), c.DebugAddress, 0)
	metrics := c.MetricsAddress == "" || f.hostPort(at.field("metricsAddress"), c.MetricsAddress, 0)
	if debug && metrics && c.MetricsAddress != "" && c.MetricsAddress == c.DebugAddress && !strings.HasSuffix(c.DebugAddress, ":0") {
		f.failf(at.field("metricsAddress"), "is the same as debugAddress; give each a port of its own")
	}
	if c.Profiling && c.DebugAddress == "" {
		f.failf(at.field("profiling"), "needs debugAddress, which serves it; give an address or turn profiling off")
	}
}

// hostPort wants host:port with a port from lowest up, where the host is an IP address, a DNS name, or absent.
func (f *checks) hostPort(at location, address string, lowest uint64) bool {
	host, portText, err := net.SplitHostPort(address)
	port, portErr := strconv.ParseUint(portText, 10, 32) // unlike Atoi it takes no sign
	switch {
	case err != nil || portErr != nil:
		f.failf(at, "must be host:port such as 192.0.2.1:9810 or [2001:db8::1]:9810, got %s", quote(address))
	case port < lowest || port > 65535:
		f.failf(at, "must have a port from %d to 65535, got %s", lowest, quote(address))
	case host != "" && !isHost(host):
		f.failf(at, "must have an IP address or a DNS name before the port, got %s", quote(address))
	default:
		return true
	}
	return false
}

func isHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	return len(validation.IsDNS1123Subdomain(strings.ToLower(host))) == 0
}

func (f *checks) mode(at location, mode status.Mode) {
	oneOf(f, at, mode, status.Enforce, status.Report)
}

// oneOf wants one of a few words.
func oneOf[T ~string](f *checks, at location, value T, allowed ...T) {
	if slices.Contains(allowed, value) {
		return
	}
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}
	choice := strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
	if value == "" {
		f.failf(at, "is required: %s", choice)
		return
	}
	f.failf(at, "must be %s, got %s", choice, quote(string(value)))
}

func (f *checks) between(at location, value Duration, least, most time.Duration) {
	if d := time.Duration(value); d < least || d > most {
		f.failf(at, "must be from %s to %s, got %s", Duration(least), Duration(most), value)
	}
}

func (f *checks) inRange(at location, value, least, most int) {
	if value < least || value > most {
		f.failf(at, "must be from %d to %d, got %d", least, most, value)
	}
}

// required says whether there is a value to look at.
func (f *checks) required(at location, value, example string) bool {
	if value == "" {
		f.failf(at, "is required, such as %s", example)
	}
	return value != ""
}

// label wants what Kubernetes takes as the name of a namespace or a Service.
func (f *checks) label(at location, value string) {
	if len(validation.IsDNS1123Label(value)) > 0 {
		f.failf(at, "must be lower-case letters, digits and -, at most 63, with no - at either end, got %s", quote(value))
	}
}

func (f *checks) namespace(at location, value string) {
	if value != "" {
		f.label(at, value)
	}
}

// objectName wants what Kubernetes takes as the name of most objects.
func (f *checks) objectName(at location, value string) {
	if len(validation.IsDNS1123Subdomain(value)) > 0 {
		f.failf(at, "must be lower-case letters, digits, - and ., at most 253, got %s", quote(value))
	}
}

// qualifiedKey wants the key of a label or an annotation.
func (f *checks) qualifiedKey(at location, value string) {
	if len(validation.IsQualifiedName(value)) > 0 {
		f.failf(at, "must be the key of a label or annotation, such as example.com/name, got %s", quote(value))
	}
}
