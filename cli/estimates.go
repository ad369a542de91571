package cli

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"memroom/event"
	"memroom/plan"
	"memroom/report"
)

// estimatesWord starts the process that answers the Python package: memroom.estimate and the
// pytest plugin rehearse in a process of their own and ask here for the card and for the peaks.
const estimatesWord = "_estimates"

// estimateAsked is one line on standard input.
type estimateAsked struct {
	Ask        string `json:"ask"` // "target" before a rehearsal, "predict" after it
	GPU        string `json:"gpu"`
	AllocLimit string `json:"alloc_limit"`
	AllocConf  string `json:"alloc_conf"`
	Torch      string `json:"torch"`
	Steps      int    `json:"steps"`
	Record     string `json:"record"` // with "predict"
}

// estimateAnswer is one line on standard output.
type estimateAnswer struct {
	Error      string           `json:"error,omitempty"`
	Dir        string           `json:"dir,omitempty"` // of this rehearsal: who asked removes it
	Target     json.RawMessage  `json:"target,omitempty"`
	Prediction *plan.Prediction `json:"prediction,omitempty"`
	Curve      []curvePoint     `json:"curve,omitempty"`
	Text       string           `json:"text,omitempty"`
}

// curvePoint is the allocated bytes after an operation of the step that holds the peak.
type curvePoint struct {
	Op        int         `json:"op"`
	Allocated event.Bytes `json:"allocated"`
	Phase     string      `json:"phase"`
}

// estimates answers until standard input ends. The folders of rehearsals lie in one that goes then,
// also when the asking process was killed.
func estimates(streams Streams) error {
	dir, remove, err := temporaryFolder("estimate")
	if err != nil {
		return err
	}
	defer remove()
	lines := bufio.NewScanner(streams.In)
	lines.Buffer(nil, 1<<20)
	out := json.NewEncoder(streams.Out)
	for lines.Scan() {
		var asked estimateAsked
		answer := &estimateAnswer{}
		err := json.Unmarshal(lines.Bytes(), &asked)
		if err == nil {
			answer, err = asked.answer(dir)
		}
		if err != nil {
			answer = &estimateAnswer{Error: plainWords(err)}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func (a *estimateAsked) answer(dir string) (*estimateAnswer, error) {
	c := &planCmd{GPU: a.GPU, AllocConf: a.AllocConf, Torch: a.Torch, Ranks: 1}
	c.Steps = a.Steps
	if err := checkTorch(a.Torch); err != nil {
		return nil, err
	}
	if a.AllocLimit != "" {
		limit, err := event.ParseBytes(a.AllocLimit)
		if err != nil {
			return nil, err
		}
		c.AllocLimit = limit
	}
	target, err := c.target()
	if err != nil {
		return nil, err
	}
	switch a.Ask {
	case "target":
		if dir, err = os.MkdirTemp(dir, ""); err != nil {
			return nil, err
		}
		path := filepath.Join(dir, "target.json")
		if err := c.writeTarget(path, target); err != nil {
			return nil, err
		}
		text, err := os.ReadFile(path)
		return &estimateAnswer{Dir: dir, Target: text}, err
	case "predict":
		return predictRecord(a.Record, target)
	}
	return nil, fmt.Errorf("unknown question %q", a.Ask)
}

// predictRecord answers from the record of a rehearsal.
func predictRecord(path string, target plan.Target) (*estimateAnswer, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	record, err := plan.ReadRehearsal(f)
	if err != nil {
		return nil, err
	}
	record.Part = true
	p, err := record.Predict(target)
	if err != nil {
		return nil, err
	}
	var text strings.Builder
	if err := report.Plan(&text, p, false); err != nil {
		return nil, err
	}
	return &estimateAnswer{Prediction: p, Curve: curve(p.Series), Text: text.String()}, nil
}

// curvePoints bounds a curve: pictures are not wider.
const curvePoints = 1000

// curve thins a series out: the highest point of each stretch stays.
func curve(series []plan.SeriesPoint) []curvePoint {
	stretch := (len(series) + curvePoints - 1) / curvePoints
	var out []curvePoint
	for i, s := range series {
		point := curvePoint(s)
		if last := len(out) - 1; i%max(stretch, 1) != 0 && out[last].Phase == s.Phase {
			if point.Allocated > out[last].Allocated {
				out[last] = point
			}
			continue
		}
		out = append(out, point)
	}
	return out
}
