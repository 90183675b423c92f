package main

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"
)

// A figure is one thing that was measured, and what it is compared with.
type figure struct {
	name   string
	unit   string // s, ms, bytes, requests
	values samples
	beside *contrast // nil: nothing
	atMost float64   // the goal for the ratio; 0: none
}

// A contrast is what the same work took otherwise.
type contrast struct {
	what   string
	values samples
}

// samples are the values of several runs.
type samples []float64

// median is the middle one, or the mean of the two in the middle; 0 for none.
func (s samples) median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// ratio is how many times what stands beside it the figure is; ok tells whether there is such a thing.
func (f figure) ratio() (ratio float64, ok bool) {
	if f.beside == nil || f.beside.values.median() == 0 {
		return 0, false
	}
	return f.values.median() / f.beside.values.median(), true
}

// goal is the goal in words and whether it is met; "" where there is none.
func (f figure) goal() (text string, met bool) {
	if f.atMost == 0 {
		return "", false
	}
	ratio, ok := f.ratio()
	return fmt.Sprintf("<= %sx", strconv.FormatFloat(f.atMost, 'g', -1, 64)), ok && ratio <= f.atMost
}

func printTable(w io.Writer, figures []figure) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "FIGURE\tUNSTALE\tMIN–MAX\tBESIDE\tMIN–MAX\tRATIO\tWHAT STANDS BESIDE")
	for _, f := range figures {
		value, spread := shown(f.values, f.unit)
		beside, besideSpread, ratioText, what := "-", "-", "-", "-"
		if f.beside != nil {
			beside, besideSpread = shown(f.beside.values, f.unit)
			what = f.beside.what
		}
		if ratio, ok := f.ratio(); ok {
			ratioText = significant(ratio) + "x"
			if goal, met := f.goal(); goal != "" {
				ratioText += fmt.Sprintf(" (goal %s, met: %t)", goal, met)
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", f.name, value, spread, beside, besideSpread, ratioText, what)
	}
	return table.Flush()
}

// shown is the median and the spread for people, bytes in a unit that makes them short.
func shown(s samples, unit string) (median, spread string) {
	scale := 1.0
	if unit == "bytes" {
		switch m := s.median(); {
		case m >= 1e6:
			scale, unit = 1e6, "MB"
		case m >= 1e3:
			scale, unit = 1e3, "kB"
		}
	}
	least, greatest := slices.Min(s), slices.Max(s)
	spread = significant(least / scale)
	if least != greatest {
		spread += "–" + significant(greatest/scale)
	}
	return significant(s.median()/scale) + " " + unit, spread
}

// significant writes a number with three significant digits, and whole numbers in full.
func significant(v float64) string {
	if v == float64(int64(v)) {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(rounded(v, 3), 'f', -1, 64)
}

// rounded is v with that many significant digits.
func rounded(v float64, digits int) float64 {
	r, err := strconv.ParseFloat(strconv.FormatFloat(v, 'e', digits-1, 64), 64)
	if err != nil {
		panic("a number cannot be read back: " + err.Error()) // strconv reads what it wrote
	}
	return r
}
