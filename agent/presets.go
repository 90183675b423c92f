package agent

import (
	"embed"
	"fmt"
	"path"
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
	// Targets are its targets, complete and valid.
	Targets []StatusKeysConfig
}

// Presets are all built-in sets of targets, sorted by name. The caller may change what it gets.
func Presets() []Preset {
	files, err := presetFiles.ReadDir("presets")
	if err != nil {
		panic(fmt.Sprintf("agent: the embedded presets cannot be read: %v", err)) // not built correctly
	}
	presets := make([]Preset, len(files)) // ReadDir has sorted them
	for i, file := range files {
		data, err := presetFiles.ReadFile("presets/" + file.Name())
		if err != nil {
			panic(fmt.Sprintf("agent: the embedded presets cannot be read: %v", err))
		}
		presets[i] = newPreset(strings.TrimSuffix(file.Name(), path.Ext(file.Name())), string(data))
	}
	return presets
}

// newPreset makes a preset from its file, which a test has shown to be valid.
func newPreset(name, text string) Preset {
	c, err := parse([]byte(text), checkBuilt)
	if err != nil {
		panic(fmt.Sprintf("agent: the built-in preset %s is not valid:\n%v", name, err))
	}
	return Preset{Name: name, Summary: leadingComment(text), YAML: text, Targets: c.StatusKeys}
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
	var added []StatusKeysConfig
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
		for _, target := range known[index].Targets {
			if isOwn[target.Name] {
				continue
			}
			if other, taken := from[target.Name]; taken {
				found.failf(at, "the presets %s and %s both have a target %s; remove one preset, or give a target of that name in this file, which replaces both", other, name, target.Name)
				continue
			}
			from[target.Name] = name
			added = append(added, target)
		}
	}
	c.StatusKeys = append(added, c.StatusKeys...)
	return found.errs
}

func presetNames(presets []Preset) []string {
	names := make([]string, len(presets))
	for i, preset := range presets {
		names[i] = preset.Name
	}
	return names
}
