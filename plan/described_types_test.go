package plan_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/models"
	"memroom/plan"
	"memroom/tape"
	"memroom/testenv"
	"memroom/testenv/recorded"
)

// newTypes are descriptions that no recording of a card covers: a rehearsal is their measure.
var newTypes = []string{"codegen", "umt5", "m2m_100", "esm", "mpnet", "nomic_bert",
	"audio-spectrogram-transformer", "glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss",
	"lfm2", "dinov3_vit"}

// sweptSpec is what bench/anyarch/sweep.py is asked for.
type sweptSpec struct {
	Batch         int64  `json:"batch"`
	Seq           int64  `json:"seq"`
	Precision     string `json:"precision"`
	Optimizer     string `json:"optimizer"`
	Checkpointing bool   `json:"checkpointing"`
}

// TestDescriptionsAgreeWithRehearsals: the peak of allocated bytes of descriptions is what Python
// rehearses for the same configuration, at several settings. MEMROOM_SWEEP names a folder of
// sweep.py to compare instead, with the requests in which the two differ.
func TestDescriptionsAgreeWithRehearsals(t *testing.T) {
	if given := os.Getenv("MEMROOM_SWEEP"); given != "" {
		compareSwept(t, given)
		return
	}
	if testing.Short() {
		t.Skip("needs a minute of processor time")
	}
	python := testenv.Python(t, "torch", "transformers")
	settings, err := json.Marshal([]sweptSpec{{8, 200, "amp_bf16", "sgd", false},
		{2, 96, "bf16", "adamw", true}, {4, 128, "fp32", "sgd", false}})
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	// One process for all settings: starting the libraries costs more than rehearsing a type. What
	// it answers is kept as long as neither it nor what it imports of the probe changes:
	// descriptions are compared.
	root := testenv.Root(t)
	folder, err := testenv.Program{Python: python, File: out, Code: filepath.Join(root, "probe", "py"),
		Apart: []string{"calibrate", "fit", "lint", "watch"}, // see layout_python_test.go
		Args: []string{filepath.Join(root, "bench", "anyarch", "sweep.py"), out, "--jobs", "2",
			"--types", strings.Join(newTypes, ","), "--settings", string(settings)}}.AskFolder()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		compareSwept(t, filepath.Join(folder, fmt.Sprint(i)))
		for _, name := range newTypes {
			if _, err := os.Stat(filepath.Join(folder, fmt.Sprint(i), name+".record")); err != nil {
				t.Errorf("%s was not rehearsed: %v", name, err)
			}
		}
	}
}

func compareSwept(t *testing.T, folder string) {
	records, err := filepath.Glob(filepath.Join(folder, "*.record"))
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, path := range records {
		name := strings.TrimSuffix(filepath.Base(path), ".record")
		if !models.Known(name) {
			continue
		}
		theirs, ours := bothTimelines(t, folder, name)
		got, want := peakOf(ours), peakOf(theirs)
		off := 100 * (float64(got)/float64(want) - 1)
		t.Logf("%-24s allocated %d, rehearsed %d, %+.2f %%, requests equal %v", name, got, want, off,
			slices.EqualFunc(namedRequests(ours), namedRequests(theirs), sameSize))
		most := 0.5
		if name == "dinov3_vit" { // a small model, and workspaces of its patches differ
			most = 1
		}
		if math.Abs(off) > most {
			t.Errorf("%s is off by %.2f %%:\n%s", name, off, differences(ours, theirs))
		} else if os.Getenv("MEMROOM_SWEEP") != "" {
			t.Log(differences(ours, theirs))
		}
		compared++
	}
	if compared == 0 {
		t.Errorf("no described type was rehearsed")
	}
}

// bothTimelines returns the requests of a type: Python's and those of the description.
func bothTimelines(t *testing.T, folder, name string) (theirs, ours *event.Timeline) {
	t.Helper()
	var asked sweptSpec
	for file, into := range map[string]any{"spec.json": &asked} {
		text := testenv.Read(t, filepath.Join(folder, file))
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatal(err)
		}
	}
	text := testenv.Read(t, filepath.Join(folder, name+".config"))
	config, err := models.ParseConfig(text)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(folder, name+".record"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := plan.ReadRehearsal(file)
	if err != nil {
		t.Fatal(err)
	}
	return &r.Timeline, trainedDescription(t, config, asked)
}

// trainedDescription trains a description for the two steps of sweep.py.
func trainedDescription(t *testing.T, config *models.Config, s sweptSpec) *event.Timeline {
	t.Helper()
	seq := min(config.DefaultSeq(), s.Seq)
	if config.DefaultSeq() > 16000 { // samples of sound
		seq = 16000
	}
	float := tape.F32
	if s.Precision == "bf16" {
		float = tape.BF16
	}
	m, err := models.New(config, models.Run{Batch: s.Batch, Seq: seq, Attn: "sdpa", Float: float,
		Checkpointing: s.Checkpointing})
	if err != nil {
		t.Fatal(err)
	}
	g := tape.New(tape.Options{SMs: 132, SMThreads: 2048, Hopper: true, Training: true,
		BLAS: 32 << 20, BLASLt: 1 << 20, Autocast: s.Precision == "amp_bf16", Half: tape.BF16})
	g.Load(m.Root, float)
	optimizer := g.NewOptimizer(s.Optimizer, m.Root.Parameters())
	for range 2 {
		recorded.Batch(g, m)
		optimizer.Step()
		optimizer.ZeroGrad(false)
	}
	return g.Timeline()
}

// rounded is a request as the allocator rounds it.
func rounded(n int64) int64 { return (n + 511) / 512 * 512 }

func peakOf(t *event.Timeline) (peak int64) {
	var held int64
	sizes := map[int32]int64{}
	for _, op := range t.Ops {
		if op.Kind == event.OpAlloc {
			sizes[op.ID] = rounded(op.Size)
			held += sizes[op.ID]
		} else {
			held -= sizes[op.ID]
		}
		peak = max(peak, held)
	}
	return peak
}

// namedRequests lists requests in order, without empty ones: the size, then what made it.
func namedRequests(t *event.Timeline) (list []string) {
	for _, op := range t.Ops {
		if op.Kind == event.OpAlloc && op.Size > 0 {
			tag := t.Tags[op.Tag]
			list = append(list, fmt.Sprintf("%d %s %s", rounded(op.Size), tag.Module, tag.Op))
		}
	}
	return list
}

func sameSize(a, b string) bool {
	x, _, _ := strings.Cut(a, " ")
	y, _, _ := strings.Cut(b, " ")
	return x == y
}

// differences lists the requests around which the two timelines differ.
func differences(ours, theirs *event.Timeline) string {
	const most = 60 // lines
	a, b := namedRequests(ours), namedRequests(theirs)
	var lines []string
	for i, j := 0, 0; (i < len(a) || j < len(b)) && len(lines) < most; {
		if i < len(a) && j < len(b) && sameSize(a[i], b[j]) {
			i, j = i+1, j+1
			continue
		}
		di, dj := resume(a[i:], b[j:])
		for _, line := range a[i : i+di] {
			lines = append(lines, "  ours   "+line)
		}
		for _, line := range b[j : j+dj] {
			lines = append(lines, "  theirs "+line)
		}
		lines = append(lines, "  --")
		i, j = i+di, j+dj
	}
	return strings.Join(lines[:min(len(lines), most)], "\n")
}

// resume finds the nearest place at which both lists go on alike for some requests.
func resume(a, b []string) (i, j int) {
	const alike, far = 4, 200
	for total := 1; total < far; total++ {
		for i := 0; i <= total; i++ {
			j := total - i
			if i+alike <= len(a) && j+alike <= len(b) && slices.EqualFunc(a[i:i+alike],
				b[j:j+alike], sameSize) {
				return i, j
			}
		}
	}
	return len(a), len(b)
}
