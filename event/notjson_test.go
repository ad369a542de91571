package event

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestNotJSONNamesThePlace(t *testing.T) {
	for text, want := range map[string]string{
		"{bad":                       `line 1, column 2 has 'b'`,
		"{\n  \"a\": 1\n  \"b\": 2}": `line 3, column 3 has '"'`,
		"{\"a\": }":                  `line 1, column 7 has '}'`,
		"{\"a\": 1":                  "ends too early",
		"":                           "ends too early",
		"[1]":                        "not an object (array)",
		"{\"layers\":\n \"two\"}":    `line 2, column 6 has a string for "layers"`,
	} {
		var fields struct {
			Layers int `json:"layers"`
		}
		err := json.Unmarshal([]byte(text), &fields)
		if err == nil {
			t.Fatalf("%q is read", text)
		}
		if said := NotJSON([]byte(text), err).Error(); !strings.Contains(said, want) {
			t.Errorf("%q: %s, want %s", text, said, want)
		}
	}
}
