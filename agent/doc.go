// Package agent is the lifecycle of one agent, and first of all its configuration.
//
// # Configuration
//
// A configuration is one YAML (or JSON) document of kind AgentConfiguration. It goes through these steps, each in a
// file of its own:
//
//   - load.go reads the file and drives the rest;
//   - config*.go are the format: one Go type per section, with the meaning, unit and default of each field;
//   - decode.go fills those types from the document, strictly, and knows the line of every field;
//   - validate*.go check the configuration as a whole;
//   - presets.go adds the built-in targets that the file asks for;
//   - targets.go turns the result into what the packages that do the work take.
//
// Every step reports all that is wrong, not only the first thing, as Errors: the path of a field, its line, and what
// to do. A Configuration that Load or Parse returned is complete: every default is filled in.
package agent
