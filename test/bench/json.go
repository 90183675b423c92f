package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

// The shape of bench.json, which other programs read.
type (
	jsonFigure struct {
		Name   string      `json:"name"`
		Value  float64     `json:"value"`
		Unit   string      `json:"unit"`
		Beside *jsonBeside `json:"beside"`
		Ratio  *float64    `json:"ratio"`
		Goal   *string     `json:"goal"`
		Met    *bool       `json:"met"`
	}
	jsonBeside struct {
		What  string  `json:"what"`
		Value float64 `json:"value"`
	}
)

// jsonDigits is how many significant digits the file has: fewer than the measurements are exact to, enough to compute with.
const jsonDigits = 6

func writeJSON(path string, figures []figure) error {
	text, err := encodeJSON(figures)
	if err != nil {
		return fmt.Errorf("encode the figures: %w", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	return nil
}

func encodeJSON(figures []figure) ([]byte, error) {
	list := []jsonFigure{}
	for _, f := range figures {
		j := jsonFigure{Name: f.name, Value: rounded(f.values.median(), jsonDigits), Unit: f.unit}
		if f.beside != nil {
			j.Beside = &jsonBeside{What: f.beside.what, Value: rounded(f.beside.values.median(), jsonDigits)}
		}
		if ratio, ok := f.ratio(); ok {
			ratio = rounded(ratio, jsonDigits)
			j.Ratio = &ratio
		}
		if goal, met := f.goal(); goal != "" {
			j.Goal, j.Met = &goal, &met
		}
		list = append(list, j)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // goals have a "<"
	e.SetIndent("", "  ")
	err := e.Encode(list)
	return b.Bytes(), err
}
