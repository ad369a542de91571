package trace

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
)

// ownFigure is a figure of memory that a program prints as it goes: mem=3.1G, "max_mem: 5411M",
// RSS 3012 MB, GPU memory: 4.2 GiB, memory: 5123 (megabytes, as MMDetection prints them).
var ownFigure = later(`(?i)\b((?:gpu|cuda|host|cpu|max|peak|process|used|current)?[ _-]?` +
	`(?:gpu|cuda|max|cpu)?[ _-]?(?:mem(?:ory)?|rss|vram|ram)(?:[ _](?:usage|used|allocated|` +
	`reserved|alloc|in use|percent))?|(?:gpu|cuda|torch|device)[ _.](?:allocated|reserved|used))` +
	`\b(?: is| was| (?:after|at|in|before) (?:\w+ #?\d+|#?\d+ \w+(?:\(s\))?))?["']?\s{0,3}[=:(]?\s{0,3}~?(\d+(?:\.\d+)?)\s?` +
	`(GiB|GB|G|MiB|MB|M|%)?(?:\b|$)`)

// ownCurrent is the same behind a longer name: "Memory info of GPU 0: current: 0.18, peak: 2.55".
var ownCurrent = later(`(?i)\b(mem(?:ory)?\b[^\n|,=]{0,60}?\b(?:current|used|in use|allocated))\s?[:=]\s?(\d+(?:\.\d+)?)` +
	`\s?(GiB|GB|G|MiB|MB|M|%)?(?:\b|$)`)

// ownPlain is a figure without the word memory: "allocated 7.9 GiB". Its unit makes it one.
var ownPlain = later(`(?i)\b(allocated|reserved|alloc|in use)\s?[:=]?\s{0,3}(\d+(?:\.\d+)?)\s?(GiB|GB|MiB|MB)\b`)

// Bounds of a rise that is reported as growth: the number of figures under one name, the ratio of
// the last to the first, and the share that may be below the one before. The last third must still
// rise, because memory rises at the beginning of every run.
const (
	growthFigures = 5
	growthTimes   = 1.3
	growthFalls   = 0.15
	growthStill   = 1.04
	steadyFigures = 8 // on a line a smaller rise is enough
	steadyTimes   = 1.01
)

// growth returns how far a program's own figures of memory rise before its end, or "" if they do
// not. The kernel's figure for a killed process counts as the last figure of its host memory.
func (p *passage) growth(killed *event.Bytes) string {
	series, units := map[string][]float64{}, map[string]string{}
	lines := p.above(200)
	slices.Reverse(lines)
	for _, line := range lines {
		for _, m := range ownFigure.FindAllStringSubmatch(cut(line, 400), 4) {
			name := strings.ToLower(m[1])
			value, unit, ok := figure(m[2], m[3])
			if !ok || units[name] != "" && units[name] != unit {
				continue
			}
			units[name] = unit
			series[name] = append(series[name], value)
		}
		if m := ownPlain.FindStringSubmatch(cut(line, 400)); m != nil {
			name := "plain " + strings.ToLower(m[1])
			if value, unit, ok := figure(m[2], m[3]); ok {
				units[name] = unit
				series[name] = append(series[name], value)
			}
		}
		if m := ownCurrent.FindStringSubmatch(cut(line, 400)); m != nil {
			name := strings.ToLower(m[1])
			value, unit, ok := figure(m[2], m[3])
			if m[3] == "" {
				value, unit = value/float64(event.MiB), "plain" // of what, only its author knows
			}
			if ok && (units[name] == "" || units[name] == unit) {
				units[name] = unit
				series[name] = append(series[name], value)
			}
		}
	}
	if values := series["rss"]; killed != nil && len(values) > 1 && units["rss"] == "bytes" {
		series["rss"] = append(values, float64(*killed))
	}
	best := ""
	for name, values := range series {
		if !rises(values) {
			continue
		}
		first, last := values[0], values[len(values)-1]
		text := fmt.Sprintf("%s to %s in %d lines", written(first, units[name]),
			written(last, units[name]), len(values))
		if best == "" || text < best { // one answer, whatever the order of the map
			best = text
		}
	}
	return best
}

// figure returns a value in bytes, or in percent.
func figure(number, unit string) (float64, string, bool) {
	if unit == "%" {
		b := parseSize(number, "MiB")
		if b == nil {
			return 0, "", false
		}
		return float64(*b) / float64(event.MiB), "%", true
	}
	if unit == "" {
		unit = "MiB"
	}
	b := parseSize(number, unit)
	if b == nil || *b <= 0 {
		return 0, "", false
	}
	return float64(*b), "bytes", true
}

func written(value float64, unit string) string {
	switch unit {
	case "%":
		return fmt.Sprintf("%.0f %%", value)
	case "plain":
		return fmt.Sprintf("%.2f", value)
	}
	return event.Bytes(value).String()
}

// even reports whether values rise by about as much each time.
func even(values []float64) bool {
	least, most := values[1]-values[0], values[1]-values[0]
	for i := 2; i < len(values); i++ {
		least, most = min(least, values[i]-values[i-1]), max(most, values[i]-values[i-1])
	}
	return least > 0 && least >= 0.5*most
}

func rises(values []float64) bool {
	n := len(values)
	if n >= 3 && n < growthFigures && values[0] > 0 && values[n-1] >= 1.5*values[0] &&
		even(values) {
		return true // few, but on a line
	}
	if n == growthFigures-1 && slices.IsSorted(values) && values[n-1] >= 2*values[0] &&
		values[n-1] >= growthTimes*values[n-2] { // few, but without doubt
		return values[0] > 0
	}
	if n >= steadyFigures && values[0] > 0 && values[n-1] >= steadyTimes*values[0] && even(values) {
		return true // by as much each time, which no cache does
	}
	if n < growthFigures || values[0] <= 0 || values[n-1] < growthTimes*values[0] {
		return false
	}
	falls := 0
	for i := 1; i < n; i++ {
		if values[i] < values[i-1] {
			falls++
		}
	}
	late := values[n-1-n/3]
	return float64(falls) <= growthFalls*float64(n) && values[n-1] >= growthStill*late
}
