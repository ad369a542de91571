package report

import (
	"encoding/json"
	"io"
	"path/filepath"

	"memroom/event"
	"memroom/lint"
)

// SARIF writes findings in the Static Analysis Results Interchange Format 2.1.0, which code review
// tools show next to the lines.
func SARIF(w io.Writer, findings []lint.Finding, version string) error {
	levels := map[event.Severity]string{event.SeverityError: "error",
		event.SeverityWarning: "warning", event.SeverityInfo: "note", lint.Hint: "note"}
	type text struct {
		Text string `json:"text"`
	}
	type object = map[string]any
	rules := []object{}
	for _, r := range lint.Rules() {
		rules = append(rules, object{"id": r.ID, "shortDescription": text{r.Title},
			"fullDescription": text{r.Why}, "help": text{r.Fix},
			"defaultConfiguration": object{"level": levels[r.Severity]}})
	}
	results := []object{}
	for _, f := range findings {
		results = append(results, object{"ruleId": f.Rule, "level": levels[f.Severity],
			"message": text{f.Message + ". " + f.Why},
			"locations": []object{{"physicalLocation": object{
				"artifactLocation": object{"uri": filepath.ToSlash(f.File)},
				"region":           object{"startLine": f.Line, "startColumn": f.Column + 1}}}}})
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	return enc.Encode(object{"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs": []object{{"tool": object{"driver": object{"name": "memroom", "version": version,
			"rules": rules}}, "results": results}}})
}
