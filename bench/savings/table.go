package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"

	"memroom/allocsim"
	"memroom/event"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
)

// measured is what one setup cost on the card. Model is the complete configuration as the library
// writes it; it is given with the first setup of each model only.
type measured struct {
	Family    string         `json:"family"`
	Config    map[string]any `json:"config"`
	Setup     remedy.Setup   `json:"setup"`
	Allocated event.Bytes    `json:"allocated"`
	Reserved  event.Bytes    `json:"reserved"`
	Card      string         `json:"card"`
	Torch     string         `json:"torch"`
	Model     map[string]any `json:"model_config,omitempty"`
	Error     string         `json:"error,omitempty"`
}

// results are measurements by setup, and models by family and overrides.
type results struct {
	setups map[string]measured
	models map[string]map[string]any
	card   string
	torch  string
}

func key(parts ...any) string {
	text, _ := json.Marshal(parts)
	return string(text)
}

func newResults() *results {
	return &results{setups: map[string]measured{}, models: map[string]map[string]any{}}
}

func (r *results) add(m measured) {
	r.setups[key(m.Family, m.Config, m.Setup)] = m
	if m.Model != nil {
		r.models[key(m.Family, m.Config)] = m.Model
	}
	if m.Card != "" {
		r.card, r.torch = m.Card, m.Torch
	}
}

// readResults reads a folder that savings.py filled, or the packed file of such a folder.
func readResults(path string) (*results, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return readPacked(path)
	}
	files, err := filepath.Glob(filepath.Join(path, "*.json"))
	if err != nil {
		return nil, err
	}
	r := newResults()
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var m measured
		if err := json.Unmarshal(data, &m); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.add(m)
	}
	return r, nil
}

func readPacked(path string) (*results, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := newResults()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var m measured
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r.add(m)
	}
	return r, lines.Err()
}

// pack writes the results as lines, each model once.
func pack(r *results, out io.Writer) error {
	pairs, err := cases()
	if err != nil {
		return err
	}
	written, models := map[string]bool{}, map[string]bool{}
	enc := json.NewEncoder(out)
	for _, p := range pairs {
		for _, s := range []remedy.Setup{p.Before, p.After} {
			k, mk := key(p.Family, p.Config, s), key(p.Family, p.Config)
			m, ok := r.setups[k]
			if !ok || written[k] {
				continue
			}
			m.Model = nil
			if !models[mk] {
				m.Model = r.models[mk]
			}
			written[k], models[mk] = true, true
			if err := enc.Encode(m); err != nil {
				return err
			}
		}
	}
	return nil
}

// row is one line of the table.
type row struct {
	pair
	before, after event.Bytes // measured, reserved
	predicted     event.Bytes // saved
	problem       string
}

func (r row) saved() event.Bytes { return r.before - r.after }

// off is the relative error of the predicted saving.
func (r row) off() float64 { return float64(r.predicted-r.saved()) / float64(r.saved()) }

// compare predicts every pair and puts the measurement next to it.
func compare(r *results, pairs []pair) []row {
	var rows []row
	for _, p := range pairs {
		before, ok := r.setups[key(p.Family, p.Config, p.Before)]
		after, ok2 := r.setups[key(p.Family, p.Config, p.After)]
		line := row{pair: p, before: before.Reserved, after: after.Reserved}
		switch {
		case !ok || !ok2:
			line.problem = "not measured"
		case before.Error+after.Error != "":
			line.problem = before.Error + after.Error
		default:
			line.predict(r.models[key(p.Family, p.Config)])
		}
		rows = append(rows, line)
	}
	return rows
}

func (r *row) predict(model map[string]any) {
	config := models.ConfigOf(maps.Clone(model))
	if r.Family == "torchvision" {
		preset, err := models.Preset("torchvision/" + r.Config["name"].(string))
		if err != nil {
			r.problem = err.Error()
			return
		}
		config = preset
	}
	var peaks [2]event.Bytes
	for i, s := range []remedy.Setup{r.Before, r.After} {
		p, err := plan.Predict(plan.Setup{Model: config, Setup: s},
			plan.Target{Card: plan.DefaultCard(), Torch: "2.11", Alloc: allocsim.DefaultConfig()})
		if err != nil {
			r.problem = err.Error()
			return
		}
		peaks[i] = p.ReservedPeak
	}
	if r.predicted = peaks[0] - peaks[1]; r.predicted == 0 {
		r.problem = "plan does not model it yet"
	}
}

// table prints the comparison as Markdown, misses included, and a line that counts.
func table(r *results, pairs []pair, out io.Writer) error {
	rows := compare(r, pairs)
	fmt.Fprintf(out,
		"%s, torch %s. Reserved peaks over three steps; a prediction is the engine run before and after "+
			"the rewrite.\n\n", r.card, r.torch)
	fmt.Fprintln(out,
		"| family | setup | remedy | measured before | saved | of the peak | predicted | off |")
	fmt.Fprintln(out, "|---|---|---|--:|--:|--:|--:|--:|")
	within, remedies, families := 0, map[remedy.ID]bool{}, map[string]bool{}
	for _, line := range rows {
		fmt.Fprintf(out, "| %s | %s | `%s` |", line.Family, words(line.Before), line.Remedy)
		if line.problem != "" && line.before == 0 {
			fmt.Fprintf(out, " | | | | %s |\n", line.problem)
			continue
		}
		share := 100 * float64(line.saved()) / float64(line.before)
		fmt.Fprintf(out, " %s | %s | %.1f %% |", line.before, line.saved(), share)
		if line.problem != "" {
			fmt.Fprintf(out, " | %s |\n", line.problem)
			continue
		}
		fmt.Fprintf(out, " %s | %+.1f %% |\n", line.predicted, 100*line.off())
		if math.Abs(line.off()) <= 0.1 && share >= 5 {
			within++
			remedies[line.Remedy], families[line.Family] = true, true
		}
	}
	_, err := fmt.Fprintf(out, "\n%d of %d pairs within 10 %%, over %d remedies and %d families.\n",
		within, len(rows), len(remedies), len(families))
	return err
}

func words(s remedy.Setup) string {
	text := fmt.Sprintf("batch %d", s.Batch)
	if s.Seq > 0 {
		text += fmt.Sprintf(" x %d", s.Seq)
	}
	if s.Image > 0 {
		text += fmt.Sprintf(", %d px", s.Image)
	}
	text += ", " + s.Precision + ", " + s.Optimizer
	if s.Attention == "eager" {
		text += ", eager"
	}
	if s.KeepGrads {
		text += ", gradients kept"
	}
	return text
}
