package apiserver

import (
	_ "embed"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TopologyAwarePolicyCRD defines a namespaced resource with a map of nodes in its status; see TopologyAwarePolicies.
//
//go:embed crds/topologyawarepolicies.yaml
var TopologyAwarePolicyCRD string

// NodeFeatureGroupCRD defines a namespaced resource with a list of nodes in its status; see NodeFeatureGroups.
//
//go:embed crds/nodefeaturegroups.yaml
var NodeFeatureGroupCRD string

// NodeFeatureCRD defines a namespaced resource with an object per node; see NodeFeatures.
//
//go:embed crds/nodefeatures.yaml
var NodeFeatureCRD string

// NodeResourceTopologyCRD defines a cluster-scoped resource with an object per node; see NodeResourceTopologies.
//
//go:embed crds/noderesourcetopologies.yaml
var NodeResourceTopologyCRD string

// Resources that tests use.
var (
	Nodes                  = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	Namespaces             = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	Pods                   = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	CRDs                   = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	TopologyAwarePolicies  = schema.GroupVersionResource{Group: "config.nri", Version: "v1alpha1", Resource: "topologyawarepolicies"}
	NodeFeatures           = schema.GroupVersionResource{Group: "nfd.k8s-sigs.io", Version: "v1alpha1", Resource: "nodefeatures"}
	NodeResourceTopologies = schema.GroupVersionResource{Group: "topology.node.k8s.io", Version: "v1alpha2", Resource: "noderesourcetopologies"}
	NodeFeatureGroups      = schema.GroupVersionResource{Group: "nfd.k8s-sigs.io", Version: "v1alpha1", Resource: "nodefeaturegroups"}
)

// A CRD describes a resource with a free-form spec and status, for tests that need a group of their own: one that is
// installed late, deleted, whose version goes away, and so on. The zero values mean what is usual.
type CRD struct {
	Group         string   // required
	Plural        string   // default: widgets
	Kind          string   // default: Widget
	Versions      []string // served; the first is stored; default: v1
	Unserved      []string // defined but no longer served
	ClusterScoped bool
	NoStatus      bool // without a status subresource
}

// GVR is the resource in its first version.
func (c CRD) GVR() schema.GroupVersionResource {
	c.setDefaults()
	return schema.GroupVersionResource{Group: c.Group, Version: c.Versions[0], Resource: c.Plural}
}

// Name is the definition's own name.
func (c CRD) Name() string {
	c.setDefaults()
	return c.Plural + "." + c.Group
}

// YAML is the definition for Install.
func (c CRD) YAML() string {
	c.setDefaults()
	scope := "Namespaced"
	if c.ClusterScoped {
		scope = "Cluster"
	}
	subresources := "{status: {}}"
	if c.NoStatus {
		subresources = "{}"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: %s.%s
  annotations: {api-approved.kubernetes.io: "unapproved, for tests only"}
spec:
  group: %s
  names: {plural: %s, singular: %s, kind: %s, listKind: %sList}
  scope: %s
  versions:
`, c.Plural, c.Group, c.Group, c.Plural, strings.ToLower(c.Kind), c.Kind, c.Kind, scope)
	for i, version := range append(append([]string{}, c.Versions...), c.Unserved...) {
		fmt.Fprintf(&b, `  - name: %s
    served: %t
    storage: %t
    subresources: %s
    schema:
      openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
`, version, i < len(c.Versions), i == 0, subresources)
	}
	return b.String()
}

func (c *CRD) setDefaults() {
	if c.Plural == "" {
		c.Plural = "widgets"
	}
	if c.Kind == "" {
		c.Kind = "Widget"
	}
	if len(c.Versions) == 0 {
		c.Versions = []string{"v1"}
	}
}
