// Package deploy holds what is applied to a cluster for the agents to work in it.
package deploy

import _ "embed"

// SweepReportCRD defines the resource in which the agents publish what they do, SweepReport is the one that they use unless their
// configuration names another. Both are YAML. The second can be created once the API server has established the first.
var (
	//go:embed crds/sweepreports.yaml
	SweepReportCRD string
	//go:embed sweepreport.yaml
	SweepReport string
)
