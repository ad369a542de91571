// Package recorded compares described models with real ones: small models of every family were
// trained for some steps on an H200, and every request for memory was written down in order
// (plan/testdata). Tests of tape, models and plan train the described model in the same way and
// expect the same requests.
package recorded

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
	"memroom/testenv"
)

// Case is what was trained, and how.
type Case struct {
	Family    string         `json:"family"`
	Config    map[string]any `json:"config"`
	Batch     int64          `json:"batch"`
	Seq       int64          `json:"seq"`
	Image     int64          `json:"image"`
	Precision string         `json:"precision"`
	Optim     string         `json:"optim"`
	Attn      string         `json:"attn"`
	Ckpt      bool           `json:"ckpt"`
	Accum     int64          `json:"accum"`
	Clip      bool           `json:"clip"`
	SetToNone *bool          `json:"set_to_none"`
	Freeze    []string       `json:"freeze"`
	Channels  bool           `json:"channels_last"`
	Steps     int            `json:"steps"`
	Pad       bool           `json:"pad"`
	Lora      int64          `json:"lora"`
	Head      string         `json:"head"`
	Cache     bool           `json:"cache"`
	Evaluate  int64          `json:"evaluate"` // batch of an evaluation after each step
}

// Run is one recorded training.
type Run struct {
	ID       string         `json:"id"`
	Case     Case           `json:"case"`
	Params   int64          `json:"params"`
	Peak     int64          `json:"peak_allocated"`
	Config   map[string]any `json:"config"`
	UseCache *bool          `json:"use_cache"` // nil is true
	dir      string
}

// Request is one request for memory, or the release of one.
type Request struct {
	text  string
	alloc bool
	what  string // the Python line that made it, or what our description calls it
}

func (r Request) String() string { return r.text }

// Plain returns the runs of a plain loop: forward, backward, step. Adapters, evaluations, half
// precision that needs a scaler and optimizers under other names are package plan's to test.
func Plain(t testing.TB) []*Run {
	t.Helper()
	return slices.DeleteFunc(read(t, "families", "index.jsonl"), func(r *Run) bool {
		c := r.Case
		return c.Evaluate > 0 || c.Lora > 0 || len(c.Freeze) > 0 ||
			strings.HasPrefix(c.Optim, "sgd_")
	})
}

// Vision returns runs of convolutional and recurrent networks, of which only the peak is known.
func Vision(t testing.TB) []*Run {
	t.Helper()
	return read(t, "vision.jsonl")
}

// read returns the runs that a list names. Half precision that needs a scaler is left out.
func read(t testing.TB, path ...string) (runs []*Run) {
	t.Helper()
	full := filepath.Join(testenv.Root(t), "plan", "testdata", filepath.Join(path...))
	text, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		r := &Run{dir: filepath.Dir(full)}
		if err := json.Unmarshal([]byte(line), r); err != nil {
			t.Fatal(err)
		}
		if r.Case.Precision != "amp_fp16" {
			runs = append(runs, r)
		}
	}
	return runs
}

// Model is the described model of a run.
func (r *Run) Model(t testing.TB) *models.Model {
	t.Helper()
	c, config := r.Case, r.Config
	if config == nil {
		config = c.Config
		config["model_type"] = c.Family
	}
	if c.Head != "" {
		config["architectures"] = []any{"XFor" + c.Head}
	}
	float := tape.F32
	if c.Precision == "bf16" {
		float = tape.BF16
	}
	attention := c.Attn
	if attention == "" {
		attention = "sdpa"
	}
	model, err := models.New(models.ConfigOf(config), models.Run{Batch: c.Batch, Seq: c.Seq,
		Image: c.Image, Attn: attention, Checkpointing: c.Ckpt, Float: float, Padded: c.Pad,
		ChannelsLast: c.Channels,
		Cache:        r.UseCache == nil || *r.UseCache})
	if err != nil {
		t.Fatal(err)
	}
	return model
}

// Trained are the requests of the described model, in order.
func (r *Run) Trained(m *models.Model) []Request { return Requests(r.train(m)) }

// TrainedPeak is the most bytes that the described model holds at once.
func (r *Run) TrainedPeak(m *models.Model) (peak int64) {
	var held int64
	sizes := map[int32]int64{}
	for _, op := range r.train(m).Ops {
		if op.Kind == event.OpAlloc {
			sizes[op.ID] = (op.Size + 511) / 512 * 512 // as the allocator rounds
			held += sizes[op.ID]
		} else {
			held -= sizes[op.ID]
		}
		peak = max(peak, held)
	}
	return peak
}

// train is a plain loop over some steps.
func (r *Run) train(m *models.Model) *event.Timeline {
	c := r.Case
	options := tape.Options{SMs: 132, SMThreads: 2048, Hopper: true, BLAS: 32 << 20,
		BLASLt: 1 << 20, Training: true}
	if c.Precision == "amp_bf16" {
		options.Autocast, options.Half = true, tape.BF16
	}
	name, steps := c.Optim, c.Steps
	if name == "" {
		name = "adamw"
	}
	if steps == 0 {
		steps = 3
	}
	g := tape.New(options)
	g.Load(m.Root, m.Run.Float)
	if c.Channels {
		g.ToChannelsLast(m.Root)
	}
	optimizer := g.NewOptimizer(name, m.Root.Parameters())
	for range steps {
		for range max(c.Accum, 1) {
			Batch(g, m)
		}
		if c.Clip {
			g.ClipNorm(optimizer)
		}
		optimizer.Step()
		optimizer.ZeroGrad(c.SetToNone != nil && !*c.SetToNone)
	}
	return g.Timeline()
}

// Batch is forward and backward of one batch.
func Batch(g *tape.Graph, m *models.Model) {
	f := g.Enter()
	in := m.Inputs(g)
	for _, t := range in {
		f.Keep(t)
	}
	var loss *tape.Tensor
	f.Set(&loss, g.Scale(g.Whole(func() *tape.Tensor { return m.Loss(g, in) })))
	g.EndAutocast()
	g.Backward(loss)
	f.Leave()
}

// Asked are the requests of the real model.
func (r *Run) Asked(t testing.TB) []Request {
	t.Helper()
	return Read(t, filepath.Join(r.dir, r.ID+".trace.gz"))
}

// Read returns the requests of a recording, in order.
func Read(t testing.TB, path string) (list []Request) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var recording struct {
		Stacks []string `json:"stacks"`
		Events []string `json:"events"`
	}
	if err := json.NewDecoder(unpacked).Decode(&recording); err != nil {
		t.Fatal(err)
	}
	number := map[int]int{}
	for i, e := range recording.Events {
		var size, which int
		if n, _ := fmt.Sscanf(e, "A %d %d", &size, &which); n == 2 {
			number[i] = len(number)
			list = append(list, asked(number[i], size, recording.Stacks[which]))
		} else if n, _ := fmt.Sscanf(e, "F %d", &which); n == 1 {
			list = append(list, freed(number[which]))
		}
	}
	return ordered(list)
}

// Requests returns those of a timeline, in order.
func Requests(timeline *event.Timeline) (list []Request) {
	number := map[int32]int{}
	for _, op := range timeline.Ops {
		if op.Kind == event.OpAlloc {
			number[op.ID] = len(number)
			tag := timeline.Tags[op.Tag]
			list = append(list, asked(number[op.ID], int(op.Size), tag.Category.String()+" "+tag.Op+
				" "+tag.Module))
		} else {
			list = append(list, freed(number[op.ID]))
		}
	}
	return ordered(list)
}

func asked(number, size int, what string) Request {
	return Request{fmt.Sprintf("alloc %d: %d bytes", number, size), true, what}
}

func freed(number int) Request { return Request{text: fmt.Sprintf("free %d", number)} }

// ordered sorts the releases between two allocations: their order changes nothing.
func ordered(list []Request) []Request {
	from := 0
	for i := 0; i <= len(list); i++ {
		if i == len(list) || list[i].alloc {
			slices.SortFunc(list[from:i], func(a, b Request) int {
				return strings.Compare(a.text, b.text)
			})
			from = i + 1
		}
	}
	return list
}

// Difference returns where two lists of requests part and what is around, "" where they are equal.
func Difference(got, want []Request) string {
	n := min(len(got), len(want))
	i := 0
	for i < n && got[i].text == want[i].text {
		i++
	}
	if i == n && len(got) == len(want) {
		return ""
	}
	return fmt.Sprintf("request %d of %d differs\n  the card was asked:\n%s  ours (%d):\n%s", i,
		len(want), around(want, i), len(got), around(got, i))
}

func around(list []Request, at int) string {
	var text strings.Builder
	for i := max(at-8, 0); i < min(at+12, len(list)); i++ {
		fmt.Fprintf(&text, "    %5d %s  %s\n", i, list[i].text, list[i].what)
	}
	return text.String()
}
