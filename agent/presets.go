package agent

import (
	"embed"
	"fmt"
	"path"
	"reflect"
	"slices"
	"strings"
)

// The presets are fragments of configurations, one file each, named after the preset. Their first lines, comments, say
// what they clean and for whom.
//
//go:embed presets/*.yaml
var presetFiles embed.FS

// A Preset is a built-in set of targets.
type Preset struct {
	// Name by which a configuration asks for it.
	Name string
	// Summary says what it cleans and for whom.
	Summary string
	// YAML is the preset as a configuration, ready to be copied and changed.
	YAML string
	// StatusKeys and NodeObjects are its targets in the cluster, complete and valid.
	StatusKeys  []StatusKeysConfig
	NodeObjects []NodeObjectsConfig
	// Kernel are its kernel tables, without modes: those are the configuration's. Nil: none.
	Kernel *KernelConfig
}

// Presets are all built-in sets of targets, sorted by name. The caller may change what it gets.
func Presets() []Preset {
	files, err := presetFiles.ReadDir("presets")
	if err != nil {
		panic(fmt.Sprintf("agent: the embedded presets cannot be read: %v", err)) // not built correctly
	}
	presets := make([]Preset, len(files))
	for i, file := range files {
		data, err := presetFiles.ReadFile("presets/" + file.Name())
		if err != nil {
			panic(fmt.Sprintf("agent: the embedded presets cannot be read: %v", err))
		}
		presets[i] = newPreset(strings.TrimSuffix(file.Name(), path.Ext(file.Name())), string(data))
	}
	slices.SortFunc(presets, func(a, b Preset) int { return strings.Compare(a.Name, b.Name) })
	return presets
}

// newPreset makes a preset from its file, which a test has shown to be valid.
func newPreset(name, text string) Preset {
	c, err := parse([]byte(text), checkBuilt)
	if err != nil {
		panic(fmt.Sprintf("agent: the built-in preset %s is not valid:\n%v", name, err))
	}
	p := Preset{Name: name, Summary: leadingComment(text), YAML: text, StatusKeys: c.StatusKeys, NodeObjects: c.NodeObjects, Kernel: c.Kernel}
	if p.Kernel != nil {
		p.Kernel.setModes("")
	}
	return p
}

// leadingComment is the text of the comment lines that a file begins with.
func leadingComment(text string) string {
	var words []string
	for line := range strings.Lines(text) {
		comment, ok := strings.CutPrefix(line, "#")
		if !ok {
			break
		}
		words = append(words, strings.TrimSpace(comment))
	}
	return strings.Join(words, " ")
}

// addPresets puts the targets of the presets that the configuration names before its own.
func (c *Configuration) addPresets() Errors {
	return c.addPresetsOf(Presets())
}

func (c *Configuration) addPresetsOf(known []Preset) Errors {
	var found checks
	isOwn := map[string]bool{} // these override
	for _, target := range c.namedTargets() {
		isOwn[target.name] = true
	}
	from := map[string]string{} // the preset of each target that was added
	var added Configuration
	for i, name := range c.Presets {
		at := location("presets").item(i)
		index := slices.IndexFunc(known, func(p Preset) bool { return p.Name == name })
		switch {
		case index < 0:
			found.failf(at, "unknown preset %s; there are %s", quote(name), strings.Join(presetNames(known), ", "))
			continue
		case slices.Contains(c.Presets[:i], name):
			found.failf(at, "repeats the preset %s; keep one", name)
			continue
		}
		take := func(target string) bool {
			if isOwn[target] {
				return false
			}
			if other, taken := from[target]; taken {
				found.failf(at, "the presets %s and %s both have a target %s; remove one preset, or give a target of that name in this file, which replaces both", other, name, target)
				return false
			}
			from[target] = name
			return true
		}
		known[index].addTo(&added, take)
	}
	c.StatusKeys = append(added.StatusKeys, c.StatusKeys...)
	c.NodeObjects = append(added.NodeObjects, c.NodeObjects...)
	if added.Kernel == nil {
		return found.errs
	}
	if c.Kernel == nil {
		c.Kernel = &KernelConfig{}
		applyDefaults(reflect.ValueOf(c.Kernel).Elem())
	}
	c.Kernel.IPSets = append(added.Kernel.IPSets, c.Kernel.IPSets...)
	c.Kernel.BPFMaps = append(added.Kernel.BPFMaps, c.Kernel.BPFMaps...)
	c.Kernel.complete()
	return found.errs
}

// addTo adds the targets that take agrees to, by their names.
func (p *Preset) addTo(c *Configuration, take func(target string) bool) {
	for _, t := range p.StatusKeys {
		if take(t.Name) {
			c.StatusKeys = append(c.StatusKeys, t)
		}
	}
	for _, t := range p.NodeObjects {
		if take(t.Name) {
			c.NodeObjects = append(c.NodeObjects, t)
		}
	}
	if p.Kernel == nil {
		return
	}
	if c.Kernel == nil {
		c.Kernel = &KernelConfig{}
	}
	for _, t := range p.Kernel.IPSets {
		if take(t.Name) {
			c.Kernel.IPSets = append(c.Kernel.IPSets, t)
		}
	}
	for _, t := range p.Kernel.BPFMaps {
		if take(t.Name) {
			c.Kernel.BPFMaps = append(c.Kernel.BPFMaps, t)
		}
	}
}

func presetNames(presets []Preset) []string {
	names := make([]string, len(presets))
	for i, preset := range presets {
		names[i] = preset.Name
	}
	return names
}
