package dataplane

import "time"

// A TargetReport is what was found in one configured table, and what was done about it.
type TargetReport struct {
	Target   string
	State    TableState
	Message  string
	Findings []Finding
}

// A Finding is what was decided on one entry.
type Finding struct {
	Entry
	Decision
	Since   time.Time // since when the address counts as lost; zero if it does not
	Pod     PodRef    // which lost it, or has it; zero if nobody is known
	Removed bool      // by this look
}
