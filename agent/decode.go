package agent

import (
	"bytes"
	"encoding"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// A decoder fills a Configuration from a YAML tree. It goes on after an error, so that a file's errors all come at
// once; a field in error keeps its default. Why not the YAML package's own strict decoding: that stops at a repeated
// key, knows lines but no paths, and takes a number for a string.
type decoder struct {
	errs Errors
	// lines has the line of every field of the file.
	lines map[location]int
	// spoiled are fields whose value is not what the file meant to say; what validation says about them helps nobody.
	// aroundSpoiled are the sections that they are in.
	spoiled, aroundSpoiled map[location]bool
}

func newDecoder() *decoder {
	return &decoder{lines: map[location]int{}, spoiled: map[location]bool{}, aroundSpoiled: map[location]bool{}}
}

// decode reads the one document of a file into c, which has its defaults already.
func (d *decoder) decode(data []byte, c *Configuration) {
	root, err := readDocument(data)
	if err != nil {
		d.errs = append(d.errs, *err)
		return
	}
	d.lines[""] = root.Line
	if root.Kind != yaml.MappingNode {
		d.failf("", root, "the file must have fields such as apiVersion and kind at its top, got %s", describe(root))
		return
	}
	d.value("", root, reflect.ValueOf(c).Elem())
}

// readDocument is the root of the file's one YAML document.
func readDocument(data []byte) (*yaml.Node, *FieldError) {
	parser := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	err := parser.Decode(&document)
	if errors.Is(err, io.EOF) || err == nil && isNull(document.Content[0]) {
		return nil, &FieldError{Message: fmt.Sprintf("the file is empty; the least is apiVersion: %s and kind: %s", APIVersion, Kind)}
	}
	if err != nil {
		return nil, syntaxError(err)
	}
	switch err := parser.Decode(&second); {
	case errors.Is(err, io.EOF):
		return document.Content[0], nil
	case err != nil:
		return nil, syntaxError(err)
	default:
		return nil, &FieldError{Line: second.Line, Message: "a second YAML document begins here (---); a configuration is one document: put the other in a file of its own"}
	}
}

var yamlMessage = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// syntaxError is the YAML package's error with its line, where it knows one.
func syntaxError(err error) *FieldError {
	line, text := 0, err.Error()
	if parts := yamlMessage.FindStringSubmatch(text); parts != nil {
		line, _ = strconv.Atoi(parts[1]) // without a line: 0, which is what "not known" is
		text = parts[2]
	}
	return &FieldError{Line: line, Message: "the file is not YAML: " + text}
}

// failf reports what is wrong at a location.
func (d *decoder) failf(at location, node *yaml.Node, format string, args ...any) {
	line := node.Line
	if known, ok := d.lines[at]; ok {
		line = known
	}
	d.errs = append(d.errs, FieldError{Path: string(at), Line: line, Message: fmt.Sprintf(format, args...)})
	d.spoil(at)
}

// value decodes a node into v. A null leaves v as it is, which is its default.
func (d *decoder) value(at location, node *yaml.Node, v reflect.Value) {
	if !d.isPlain(at, node) || isNull(node) {
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(at, node, text)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		applyDefaults(v.Elem())
		d.value(at, node, v.Elem())
	case reflect.Struct:
		d.section(at, node, v)
	case reflect.Slice:
		d.list(at, node, v)
	case reflect.Map:
		d.stringMap(at, node, v)
	default:
		d.scalar(at, node, v)
	}
}

// isPlain refuses what YAML has and the format does not. An anchor would let a reader overlook what a field says.
func (d *decoder) isPlain(at location, node *yaml.Node) bool {
	switch {
	case node.Kind == yaml.AliasNode:
		d.failf(at, node, "is the YAML alias *%s; aliases are not supported: write the value out", node.Value)
	case node.Anchor != "":
		d.failf(at, node, "has the YAML anchor &%s; anchors are not supported: remove it and write the value out wherever it is used", node.Anchor)
	case node.Style&yaml.TaggedStyle != 0:
		d.failf(at, node, "has the YAML tag %s; tags are not supported: remove it", node.Tag)
	default:
		return true
	}
	return false
}

// section decodes a mapping into the fields of a struct.
func (d *decoder) section(at location, node *yaml.Node, v reflect.Value) {
	if node.Kind != yaml.MappingNode {
		d.failf(at, node, "must be a section with %s, got %s", fieldsOf(v.Type()), describe(node))
		return
	}
	d.entries(at, node, location.field, func(key string, inner location, keyNode, valueNode *yaml.Node) {
		index, ok := fieldByName(v.Type(), key)
		if !ok {
			d.unknownField(at, inner, keyNode, v.Type())
			return
		}
		d.value(inner, valueNode, v.Field(index))
	})
}

// entries calls each for the entries of a mapping whose keys are sound and not repeated.
func (d *decoder) entries(at location, node *yaml.Node, locate func(location, string) location,
	each func(key string, inner location, keyNode, valueNode *yaml.Node)) {
	seen := map[string]int{} // the line of each key
	for i := 0; i+1 < len(node.Content); i += 2 {
		keyNode, valueNode := node.Content[i], node.Content[i+1]
		switch {
		case keyNode.ShortTag() == "!!merge":
			d.failf(at, keyNode, "has the YAML merge key <<; merge keys are not supported: write the fields out")
			continue
		case keyNode.Kind != yaml.ScalarNode:
			d.failf(at, keyNode, "has %s as the name of a field; names are plain text", describe(keyNode))
			continue
		}
		key := keyNode.Value
		inner := locate(at, key)
		if !d.isPlain(inner, keyNode) {
			continue
		}
		if first, repeated := seen[key]; repeated {
			d.errs = append(d.errs, FieldError{Path: string(inner), Line: keyNode.Line,
				Message: fmt.Sprintf("is given more than once, first on line %d; keep one", first)})
			d.spoil(inner)
			continue
		}
		seen[key] = keyNode.Line
		d.lines[inner] = keyNode.Line
		each(key, inner, keyNode, valueNode)
	}
}

// unknownField reports a field that the section does not have, and which one may have been meant.
func (d *decoder) unknownField(section, at location, node *yaml.Node, t reflect.Type) {
	if near := nearest(node.Value, fieldNames(t)); near != "" {
		d.failf(at, node, "unknown field; did you mean %s?", near)
		d.spoil(section.field(near))
		return
	}
	d.failf(at, node, "unknown field; this section has %s", fieldsOf(t))
}

// list decodes a sequence. A list in the file replaces a default list. An item in error stays, so that the positions
// of the others are those in the file.
func (d *decoder) list(at location, node *yaml.Node, v reflect.Value) {
	if node.Kind != yaml.SequenceNode {
		d.failf(at, node, "must be a list, got %s", describe(node))
		return
	}
	items := reflect.MakeSlice(v.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		inner := at.item(i)
		d.lines[inner] = item.Line
		applyDefaults(items.Index(i))
		if isNull(item) {
			d.failf(inner, item, "is empty; fill it in or remove it")
			continue
		}
		d.value(inner, item, items.Index(i))
	}
	v.Set(items)
}

// stringMap decodes a mapping of text to text, such as labels.
func (d *decoder) stringMap(at location, node *yaml.Node, v reflect.Value) {
	if node.Kind != yaml.MappingNode {
		d.failf(at, node, "must be names and values such as {name: \"value\"}, got %s", describe(node))
		return
	}
	v.Set(reflect.MakeMap(v.Type()))
	d.entries(at, node, location.entry, func(key string, inner location, _, valueNode *yaml.Node) {
		var value string
		d.value(inner, valueNode, reflect.ValueOf(&value).Elem())
		v.SetMapIndex(reflect.ValueOf(key), reflect.ValueOf(value))
	})
}

// text decodes a value whose type knows its own written form, and says in its error what that is.
func (d *decoder) text(at location, node *yaml.Node, into encoding.TextUnmarshaler) {
	value := node.Value
	if node.Kind != yaml.ScalarNode {
		value = "" // no such type takes this, and the error says what it does take
	}
	if err := into.UnmarshalText([]byte(value)); err != nil {
		d.failf(at, node, "%v, got %s", err, describe(node))
	}
}

// scalar decodes text, a number, or true and false.
func (d *decoder) scalar(at location, node *yaml.Node, v reflect.Value) {
	tag := node.ShortTag()
	switch v.Kind() {
	case reflect.String:
		if tag == "!!str" {
			v.SetString(node.Value)
			return
		}
		if node.Kind == yaml.ScalarNode {
			d.failf(at, node, "must be text, got %s; put it in quotes", describe(node))
			return
		}
		d.failf(at, node, "must be text, got %s", describe(node))
	case reflect.Bool:
		var value bool
		if tag != "!!bool" || node.Decode(&value) != nil {
			d.failf(at, node, "must be true or false, got %s", describe(node))
			return
		}
		v.SetBool(value)
	case reflect.Int:
		var value int64
		if tag != "!!int" || node.Decode(&value) != nil || v.OverflowInt(value) {
			d.failf(at, node, "must be a whole number, got %s", describe(node))
			return
		}
		v.SetInt(value)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		var value uint64
		if tag != "!!int" || node.Decode(&value) != nil || v.OverflowUint(value) {
			d.failf(at, node, "must be a whole number from 0 to %d, got %s", ^uint64(0)>>(64-v.Type().Bits()), describe(node))
			return
		}
		v.SetUint(value)
	default:
		// A mistake in a Go type, which the first test that uses it finds.
		panic(fmt.Sprintf("agent: the configuration format has no %s", v.Kind()))
	}
}

// line is where a location stands in the file; for one that is not in it, where the innermost section around it does.
func (d *decoder) line(at location) int {
	for at != "" {
		if line, ok := d.lines[at]; ok {
			return line
		}
		at = at.parent()
	}
	return d.lines[""]
}

// spoil marks a field whose mistake has been reported.
func (d *decoder) spoil(at location) {
	d.spoiled[at] = true
	for at != "" {
		at = at.parent()
		d.aroundSpoiled[at] = true
	}
}

// isSpoiled says whether the file's own mistake at a location, or inside or around it, was reported already.
func (d *decoder) isSpoiled(at location) bool {
	if d.aroundSpoiled[at] || d.spoiled[""] {
		return true
	}
	for at != "" {
		if d.spoiled[at] {
			return true
		}
		at = at.parent()
	}
	return false
}

func isNull(node *yaml.Node) bool {
	return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null"
}

// describe is what a message says that the file has.
func describe(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a section with fields"
	case yaml.SequenceNode:
		return "a list"
	}
	switch node.ShortTag() {
	case "!!null":
		return "nothing"
	case "!!bool":
		return "the truth value " + node.Value
	case "!!int", "!!float":
		return "the number " + shorten(node.Value)
	case "!!timestamp":
		return "the date " + shorten(node.Value)
	default:
		return "the string " + quote(node.Value)
	}
}
