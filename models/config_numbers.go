package models

import (
	"bytes"
	"math"
)

// Python's json module writes numbers that JSON does not have. namedNumber stands before their
// names while the rest is read as JSON.
const namedNumber = "\x7fnumber "

var numberNames = map[string]float64{"Infinity": math.Inf(1), "-Infinity": math.Inf(-1),
	"NaN": math.NaN()}

// namedNumbers turns Infinity, -Infinity and NaN outside of strings into marked strings.
func namedNumbers(data []byte) []byte {
	if !bytes.Contains(data, []byte("Infinity")) && !bytes.Contains(data, []byte("NaN")) {
		return data
	}
	var out []byte
	inside := false
	for i := 0; i < len(data); i++ {
		switch {
		case inside && data[i] == '\\' && i+1 < len(data):
			out = append(out, data[i])
			i++
		case data[i] == '"':
			inside = !inside
		case !inside:
			if name := numberAt(data[i:]); name != "" {
				out = append(out, '"')
				out = append(out, "\\u007f"+namedNumber[1:]+name...)
				out = append(out, '"')
				i += len(name) - 1
				continue
			}
		}
		out = append(out, data[i])
	}
	return out
}

func numberAt(data []byte) string {
	for name := range numberNames {
		if bytes.HasPrefix(data, []byte(name)) {
			return name
		}
	}
	return ""
}

// numbersNamed turns marked strings back into numbers.
func numbersNamed(v any) any {
	switch v := v.(type) {
	case string:
		if len(v) > len(namedNumber) && v[:len(namedNumber)] == namedNumber {
			return numberNames[v[len(namedNumber):]]
		}
	case []any:
		for i := range v {
			v[i] = numbersNamed(v[i])
		}
	case map[string]any:
		for name := range v {
			v[name] = numbersNamed(v[name])
		}
	}
	return v
}
