package agent

import (
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/unstale/unstale/status"
)

func (f *checks) nodeRecovery(at location, c NodeRecoveryConfig) {
	taint, prune := at.field("taint"), at.field("prune")
	f.after(taint.field("after"), c.Taint.After)
	oneOf(f, taint.field("confirm"), c.Taint.Confirm, ConfirmInfrastructure, ConfirmLabel)
	for key, value := range c.Taint.NodeSelector {
		inner := taint.field("nodeSelector").entry(key)
		f.qualifiedKey(inner, key)
		if len(validation.IsValidLabelValue(value)) > 0 {
			f.failf(inner, "must be the value of a label, got %s", quote(value))
		}
	}
	pruneIsValid := f.after(prune.field("after"), c.Prune.After)
	if pruneIsValid && c.Prune.After != nil && c.Taint.After != nil && *c.Prune.After <= *c.Taint.After {
		f.failf(prune.field("after"), "must be longer than taint.after, %s, got %s", *c.Taint.After, *c.Prune.After)
	}
	if f.required(prune.field("label"), c.Prune.Label, RemovableLabel) {
		f.qualifiedKey(prune.field("label"), c.Prune.Label)
	}
	if c.Prune.MinReadyEtcdMembers < 0 {
		f.failf(prune.field("minReadyEtcdMembers"), "must not be negative, got %d", c.Prune.MinReadyEtcdMembers)
	}
	if c.Prune.MaxUnhealthy < 1 || c.Prune.MaxUnhealthy > 100 {
		f.failf(prune.field("maxUnhealthy"), "must be from 1%% to 100%%, got %s", c.Prune.MaxUnhealthy)
	}
	f.between(prune.field("interval"), c.Prune.Interval, time.Second, 24*time.Hour)
	first := map[string]int{}
	for i, infrastructure := range c.Infrastructure {
		inner := at.field("infrastructure").item(i)
		f.infrastructure(inner, infrastructure)
		if other, taken := first[infrastructure.Name]; taken && infrastructure.Name != "" {
			f.failf(inner.field("name"), "must be unique, but %s is also the name of infrastructure[%d]", quote(infrastructure.Name), other)
			continue
		}
		first[infrastructure.Name] = i
	}
}

// after wants whole seconds, the unit in which a Node's condition has its time.
func (f *checks) after(at location, after *Duration) bool {
	if after == nil {
		return true
	}
	switch d := time.Duration(*after); {
	case d < time.Second:
		f.failf(at, "must be at least 1s, got %s; leave it out to turn this off", *after)
	case d%time.Second != 0:
		f.failf(at, "must be whole seconds, such as 120s, got %s", *after)
	default:
		return true
	}
	return false
}

func (f *checks) infrastructure(at location, c InfrastructureConfig) {
	if f.required(at.field("name"), c.Name, "metal3") {
		f.label(at.field("name"), c.Name)
	}
	f.resource(at.field("resource"), c.Resource)
	f.namespace(at.field("namespace"), c.Namespace)
	match := at.field("match")
	if (c.Match.ProviderID == "") == (c.Match.Annotation == "") {
		f.failf(match, "must be exactly one of providerID and annotation, such as {providerID: spec.providerID}")
	}
	if c.Match.ProviderID != "" {
		if _, err := status.ParseFieldPath(c.Match.ProviderID); err != nil {
			f.failf(match.field("providerID"), "%v", err)
		}
	}
	if c.Match.Annotation != "" {
		f.qualifiedKey(match.field("annotation"), c.Match.Annotation)
	}
}
