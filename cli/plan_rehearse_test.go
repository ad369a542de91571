package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
	"memroom/testenv"
	"memroom/trace"
)

// rehearsed runs `memroom plan --rehearse --json` on a script of testdata/rehearse with real torch.
func rehearsed(t *testing.T, python string, flags []string, script ...string) (p plan.Prediction,
	message string, code int) {
	t.Helper()
	t.Setenv("MEMROOM_HOME", t.TempDir())
	t.Setenv("OMP_NUM_THREADS", "1")
	args := append([]string{"plan", "--rehearse", "--json"}, flags...)
	args = append(append(args, "--", python), script...)
	var out, said bytes.Buffer
	code = Main(context.Background(), args, Streams{In: strings.NewReader(""), Out: &out,
		Err: &said})
	var failure struct{ Error string }
	if err := json.Unmarshal(out.Bytes(), &failure); err != nil {
		t.Fatalf("answer %q is not JSON: %v\n%s", out.String(), err, said.String())
	}
	if failure.Error == "" {
		if err := json.Unmarshal(out.Bytes(), &p); err != nil {
			t.Fatal(err)
		}
	}
	return p, failure.Error, code
}

// warm is a Python that has torch and what rehearsals import of it.
func warm(t *testing.T, python string) string {
	t.Helper()
	return testenv.Warm(t, python, "torch", "torch._dynamo", "torch.fx.experimental.proxy_tensor")
}

func script(name string) string { return filepath.Join("testdata", "rehearse", name) }

// The real compiler's own program is played: both peaks are those of the card, to the byte.
func TestRehearsalOfCompiledModel(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers", "triton")
	p, message, code := rehearsed(t, python, []string{"--gpu", "H200"}, script("compiled.py"))
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	if p.AllocatedPeak != 270023680 || p.ReservedPeak != 339738624 {
		t.Errorf("allocated %d, reserved %d; the card had 270023680 and 339738624: %v",
			p.AllocatedPeak, p.ReservedPeak, p.Warnings)
	}
}

// A function is compiled like a model: what its fusion never makes is not counted. A model whose
// program becomes a CUDA graph gets memory that nothing else uses.
func TestRehearsalOfCompiledParts(t *testing.T) {
	python := warm(t, testenv.Python(t, "torch", "triton"))
	peak := map[string]plan.Prediction{}
	for _, how := range []string{"eager", "compiled", "graphs"} {
		p, message, code := rehearsed(t, python, []string{"--gpu", "H200"},
			script("compiled_parts.py"), how)
		if code != exitOK {
			t.Fatalf("%s: exit %d: %s", how, code, message)
		}
		peak[how] = p
	}
	eager, compiled, graphs := peak["eager"], peak["compiled"], peak["graphs"]
	if compiled.AllocatedPeak > eager.AllocatedPeak-64<<20 { // results of 128 MiB each
		t.Errorf("allocated %s, eagerly %s: nothing was fused away: %v", compiled.AllocatedPeak,
			eager.AllocatedPeak, compiled.Warnings)
	}
	if graphs.Validated || !strings.Contains(strings.Join(graphs.Warnings, " "), "CUDA graphs") {
		t.Errorf("an answer with CUDA graphs says nothing of them: %v", graphs.Warnings)
	}
}

// The scripts themselves stop with a sentence where something is not as on a card: autocast off, a
// checkpoint written.
func TestRehearsalOfScripts(t *testing.T) {
	// Weights and gradients of one_rank.py, and the buckets of DistributedDataParallel.
	const buckets event.Bytes = 3 * 4 * (2*1024*4096 + 4096 + 1024)
	alone := []string{"habits.py", "detours.py", "one_rank.py", "triton_kernels.py"}
	torch := warm(t, testenv.Python(t, "torch"))
	for _, c := range []struct {
		script, needs string
		warns         []string
		least         event.Bytes
	}{
		{"loop.py", "torch", []string{"program that Inductor wrote", "fixed finite values (",
			"checkpoints were not written", "network was off"}, 1},
		{"trainer.py", "transformers", []string{"checkpoints were not written"}, 1},
		{"lightning_fit.py", "lightning", nil, 1},
		{"accelerated.py", "accelerate", []string{"chosen by cuDNN"}, 1},
		{"habits.py", "torch", []string{"chosen by cuDNN"}, 1},
		{"detours.py", "torch", []string{"chosen by cuDNN"}, 1},
		{"one_rank.py", "torch", []string{"NCCL's buffers"}, buckets},
		{"triton_kernels.py", "triton", []string{"written in Triton"}, 256 << 20},
	} {
		t.Run(c.script, func(t *testing.T) {
			testenv.Python(t, c.needs)
			where := filepath.Join(t.TempDir(), "out")
			args := []string{script(c.script)}
			if !slices.Contains(alone, c.script) {
				args = append(args, where)
			}
			p, message, code := rehearsed(t, torch, nil, args...)
			if code != exitOK {
				t.Fatalf("exit %d: %s", code, message)
			}
			if p.Method != "rehearsal" || p.AllocatedPeak < c.least ||
				p.ReservedPeak < p.AllocatedPeak || p.DevicePeak < p.ReservedPeak ||
				p.Low > p.DevicePeak || p.High < p.DevicePeak || p.Fits != nil {
				t.Errorf("prediction %+v", p)
			}
			for _, w := range c.warns {
				if !slices.ContainsFunc(p.Warnings, func(s string) bool {
					return strings.Contains(s,
						w)
				}) {
					t.Errorf("no warning says %q: %q", w, p.Warnings)
				}
			}
			if left, _ := filepath.Glob(where + "/*.*"); len(left) > 0 {
				t.Errorf("the script wrote %v", left)
			}
		})
	}
}

// Loops that update weights themselves have steps, and end after some.
func TestRehearsalOfUpdatesByHand(t *testing.T) {
	torch := warm(t, testenv.Python(t, "torch"))
	for _, how := range []string{"in place", "replaced", "functions", "hooks"} {
		t.Run(how, func(t *testing.T) {
			p, message, code := rehearsed(t, torch, nil, script("by_hand.py"), how)
			if code != exitOK || !strings.Contains(p.Assumed, "steps") {
				t.Errorf("exit %d: %s; %s", code, message, p.Assumed)
			}
		})
	}
}

// TestRehearsalUnderOtherTorches: the newest answers, the oldest is refused with the reason.
func TestRehearsalUnderOtherTorches(t *testing.T) {
	t.Run("new", func(t *testing.T) {
		p, message, code := rehearsed(t, testenv.Torch(t, "new"), nil, script("habits.py"))
		if code != exitOK || p.ReservedPeak <= 0 {
			t.Errorf("exit %d: %s, %+v", code, message, p)
		}
	})
	t.Run("old", func(t *testing.T) {
		_, message, code := rehearsed(t, testenv.Torch(t, "old"), nil, script("habits.py"))
		if code == exitOK || !strings.Contains(message, "needs torch 2.1 or newer") {
			t.Errorf("exit %d: %s", code, message)
		}
	})
}

// TestRehearsalKnowsTheBatch: what is moved to the card between steps is neither state of the
// optimizer nor lost.
func TestRehearsalKnowsTheBatch(t *testing.T) {
	python := testenv.Python(t, "torch")
	p, message, code := rehearsed(t, python, nil, script("moved.py"))
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	const weights, batch = 4 * (256*1024 + 1024), 4 * 64 * 100_000
	if got := p.Categories["optimizer"]; got != weights {
		t.Errorf("optimizer state %d, want the momentum's %d", got, weights)
	}
	// the old batch lives until the new one is there
	if got := p.Categories["input"]; got < 2*batch {
		t.Errorf("input %d, want two batches of %d", got, batch)
	}
	var sum event.Bytes
	for _, n := range p.Categories {
		sum += n
	}
	if sum != p.DevicePeak {
		t.Errorf("the parts add up to %d of %d", sum, p.DevicePeak)
	}
}

func TestRehearsalFindsTheLargestBatch(t *testing.T) {
	python := warm(t, testenv.Python(t, "torch"))
	p, message, code := rehearsed(t, python, []string{"--alloc-limit", "3GiB", "--map",
		"micro_batch=--bs"}, script("batch.py"), "--bs", "8")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, message)
	}
	if p.MaxBatch == nil {
		t.Fatalf("no largest batch; warnings %q", p.Warnings)
	}
	for n, fits := range map[int64]bool{*p.MaxBatch: true, *p.MaxBatch + 1: false} {
		again, message, _ := rehearsed(t, python, []string{"--alloc-limit", "3GiB"},
			script("batch.py"), "--bs", strconv.FormatInt(n, 10))
		if again.Fits == nil || *again.Fits != fits {
			t.Errorf("largest batch %d, but with %d the script fits: %v %s", *p.MaxBatch, n,
				again.Fits, message)
		}
	}
}

func TestRehearsalOfAModelLargerThanTheHost(t *testing.T) {
	python := testenv.Python(t, "torch", "transformers")
	p, message, code := rehearsed(t, python, []string{"--gpu", "RTX4090", "--steps", "2"},
		script("big.py"))
	if code != exitDoesNotFit {
		t.Fatalf("exit %d: %s", code, message)
	}
	// Three wide layers of Llama in fp32: as large as many narrow ones, and sooner gone through.
	const width, inner, words = 12288, 49152, 32000
	const layer = 4*width*width + 3*width*inner + 2*width
	const weights = 4 * (3*layer + 2*words*width + width)
	if got := p.Categories["weights"]; got < weights || got > weights+weights/100 {
		t.Errorf("weights %s, want %s", got, event.Bytes(weights))
	}
	if p.Fits == nil || *p.Fits {
		t.Errorf("fits %v", p.Fits)
	}
}

// TestRehearsalOfFiles: the script finds what it has written, and nobody else does. It ends as it
// would by itself.
func TestRehearsalOfFiles(t *testing.T) {
	python := warm(t, testenv.Python(t, "torch"))
	for _, status := range []string{"0", "3"} {
		dir := t.TempDir()
		kept := filepath.Join(dir, "kept.txt")
		testenv.Write(t, kept, []byte("as it was"))
		train := testenv.Read(t, script("files.py"))
		home := filepath.Join(dir, "train.py") // a script's own folder is not one for temporary files
		testenv.Write(t, home, train)
		p, message, code := rehearsed(t, python, nil, home, dir, status)
		told := strings.Join(p.Warnings, "; ")
		if code != exitOK || strings.Contains(told, "raised") ||
			strings.Contains(told, "signal") ||
			strings.Contains(told, "ended with exit status 3") != (status == "3") {
			t.Errorf("exit %d, %q, %q", code, message, told)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 2 {
			t.Errorf("files were written: %q", left)
		}
		if data, _ := os.ReadFile(kept); string(data) != "as it was" {
			t.Errorf("a file of the user's is %q now", data)
		}
	}
}

func TestRehearsalsThatCannotBeAnswered(t *testing.T) {
	torch := warm(t, testenv.Python(t, "torch"))
	for _, c := range []struct{ script, needs, says string }{
		{"cpu.py", "torch", "put nothing on a GPU"},
		{"trainer_cpu.py", "transformers", "put nothing on a GPU"},
		{"nostep.py", "torch", "before its first optimizer step"},
		{"raises.py", "torch", "raised an error before its first optimizer step: RuntimeError: "},
		{"spawns.py", "torch", "starts 4 ranks"},
		{"pretrained.py", "transformers",
			"the configuration of nobody/has-this-model-31415 is not on this machine"},
		{"absent.py", "torch", "exit status 2"},
	} {
		t.Run(c.script, func(t *testing.T) {
			python := torch
			if testenv.Python(t, c.needs); c.script == "absent.py" { // Python itself says so
				python = testenv.Python(t, "torch")
			}
			_, message, code := rehearsed(t, python, nil, script(c.script))
			if code != exitUsage || !strings.Contains(message, c.says) ||
				strings.Contains(message, "Traceback") {
				t.Errorf("exit %d, %q; want %d and %q", code, message, exitUsage, c.says)
			}
		})
	}
}

// TestRehearsalOfKeras: the traced step through TensorFlow's allocator, nothing trained, and said
// to be unvalidated.
func TestRehearsalOfKeras(t *testing.T) {
	python := testenv.Warm(t, testenv.Python(t, "tensorflow"), "tensorflow")
	keras := func(kind, batch string) plan.Prediction {
		t.Helper()
		p, message, code := rehearsed(t, python, nil, script("keras_fit.py"), kind, batch)
		if code != exitOK {
			t.Fatalf("%s: exit %d: %s", kind, code, message)
		}
		if p.Validated || !slices.ContainsFunc(p.Warnings,
			func(w string) bool { return strings.HasPrefix(w, "unvalidated: ") }) {
			t.Errorf("%s: validated %v, warnings %q", kind, p.Validated, p.Warnings)
		}
		return p
	}
	// convolution, normalization with its averages, dense layer
	const weights = 4 * (16*28 + 2*16*2 + 10*(16*16*16+1))
	small, large := keras("sequential", "64"), keras("sequential", "128")
	if got := small.Categories["weights"]; got < weights || got > weights+1024 {
		t.Errorf("weights %d, want %d and a few counters", got, weights)
	}
	if got := small.Categories["optimizer"]; got < 2*(weights-128) || got > 2*weights+1024 {
		t.Errorf("optimizer state %d, want two of the weights' %d", got, weights)
	}
	if s, l := small.Categories["activations"], large.Categories["activations"]; l < s*19/10 ||
		l > s*21/10 || s < 64*32*32*16*4 {
		t.Errorf("activations %s for 64 samples, %s for 128", s, l)
	}
	if phases := small.Phases; len(phases) != 4 {
		t.Errorf("phases %+v, want forward, backward, optimizer and eval", phases)
	}
	const dense = 4 * (32*(32*32*3+1) + 10*33)
	if got := keras("unbuilt", "64").Categories["weights"]; got < dense || got > dense+1024 {
		t.Errorf("weights %d of a model that fit builds, want %d and a few counters", got, dense)
	}
	if p := keras("functional", "64"); p.Categories["activations"] < 64*32*32*16*2*2 {
		t.Errorf("half-precision activations %s", p.Categories["activations"])
	}
	// gates, cell and output of every step
	if p := keras("lstm", "64"); p.Categories["activations"] < 20*64*32*4*5 {
		t.Errorf("activations of a recurrent layer %s", p.Categories["activations"])
	}
	unbuilt := keras("unbuilt", "64")
	for _, kind := range []string{"loop-eager", "loop-function"} {
		p := keras(kind, "64")
		if got := p.Categories["weights"]; got < dense || got > dense+1024 {
			t.Errorf("%s: weights %d, want %d and a few counters", kind, got, dense)
		}
		if a, b := p.AllocatedPeak, unbuilt.AllocatedPeak; a < b*80/100 || a > b*105/100 {
			t.Errorf("%s: peak %s, %s where fit trains the same model", kind, a, b)
		}
	}
	for kind, why := range map[string]string{"loop-asks": "line 40 asks for a value of a step",
		"session":   "in a session of TensorFlow 1",
		"loop-idle": "asks for a value of a step before it is over"} {
		_, message, code := rehearsed(t, python, nil, script("keras_fit.py"), kind, "4")
		if code != exitUsage || !strings.Contains(message, why) {
			t.Errorf("%s: exit %d, %q", kind, code, message)
		}
	}
}

func TestRehearsalRefusesWrongUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
		code int
	}{
		{[]string{"plan", "--rehearse"}, "needs the training command", exitUsage},
		{[]string{"plan", "--rehearse", "--preset", "gpt2", "--", "python"}, "leave out --preset",
			exitUsage},
		{[]string{"plan", "--rehearse", "--steps", "0", "--", "python"}, "between 1 and 1000",
			exitUsage},
		{[]string{"plan", "--rehearse", "--", "no-such-command-here"}, "not found", exitNotFound},
		{[]string{"plan", "--rehearse", "--", "true"}, "without memroom's probe", exitUsage},
		{[]string{"plan", "--rehearse", "--map", "batch=--bs", "--", "python"},
			"write micro_batch=--FLAG", exitUsage},
		{[]string{"plan", "--rehearse", "--map", "micro_batch=--bs", "--", "python", "train.py"},
			"does not say how large --bs is", exitUsage},
	} {
		t.Setenv("MEMROOM_HOME", t.TempDir())
		var out, said bytes.Buffer
		code := Main(context.Background(), c.args, Streams{In: strings.NewReader(""), Out: &out,
			Err: &said})
		if code != c.code || !strings.Contains(said.String(), c.says) {
			t.Errorf("%v: exit %d, %q; want %d and %q", c.args, code, said.String(), c.code, c.says)
		}
	}
}

// TestRehearsalAsksWhatTheCardWasAsked compares timelines with recordings of the same training on
// an H200, request by request: every allocation in order, and between two allocations the same
// releases.
func TestRehearsalAsksWhatTheCardWasAsked(t *testing.T) {
	python := warm(t, testenv.Python(t, "torch", "transformers"))
	for _, name := range []string{"op-mlp", "op-gpt2-fp32", "op-llama-bf16-ckpt"} {
		t.Run(name, func(t *testing.T) {
			index := testenv.Shared(t, "traces", "ops", "index.jsonl")
			snapshot, err := trace.Open(testenv.Shared(t, "traces", "ops", name+".pickle.gz"))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "record")
			training := filepath.Join(testenv.Root(t), "bench", "rehearse", "train_case.py")
			_, message, code := rehearsed(t, python, []string{"--steps", "2", "--record", file},
				training, caseFile(t, index, name))
			if code != exitOK {
				t.Fatalf("exit %d: %s", code, message)
			}
			want, got := recordedRequests(snapshot), rehearsedRequests(t, file)
			for i := range min(len(want), len(got)) {
				if want[i] != got[i] {
					t.Fatalf("request %d of %d: the card was asked %s, the rehearsal %s", i,
						len(want), want[i], got[i])
				}
			}
			if len(want) != len(got) {
				t.Errorf("%d requests, the card had %d", len(got), len(want))
			}
		})
	}
}

// caseFile writes the training setup of one recording where the script can read it.
func caseFile(t *testing.T, index, name string) string {
	t.Helper()
	text := testenv.Read(t, index)
	for _, line := range bytes.Split(text, []byte("\n")) {
		var row struct {
			ID   string
			Case json.RawMessage
		}
		if json.Unmarshal(line, &row) == nil && row.ID == name {
			path := filepath.Join(t.TempDir(), "case.json")
			testenv.Write(t, path, row.Case)
			return path
		}
	}
	t.Fatalf("%s has no %s", index, name)
	return ""
}

// recordedRequests are the requests of a recording as text, see inOrder.
func recordedRequests(s *trace.Snapshot) []string {
	made := map[uint64]bool{}
	var list []string
	for _, e := range s.Recordings[0].History.All() {
		switch {
		case e.Kind == event.KindAlloc:
			made[e.Addr] = true
			list = append(list, fmt.Sprintf("+%d", e.Size))
		case e.Kind == event.KindFreeCompleted && made[e.Addr]:
			list = append(list, fmt.Sprintf("-%d", e.Size))
		}
	}
	return inOrder(list)
}

func rehearsedRequests(t *testing.T, path string) []string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := plan.ReadRehearsal(file)
	if err != nil {
		t.Fatal(err)
	}
	size := map[int32]int64{}
	var list []string
	for _, op := range r.Timeline.Ops {
		switch op.Kind {
		case event.OpAlloc:
			size[op.ID] = op.Size
			list = append(list, fmt.Sprintf("+%d", op.Size))
		case event.OpFree:
			list = append(list, fmt.Sprintf("-%d", size[op.ID]))
		}
	}
	return inOrder(list)
}

// inOrder sorts the releases between two allocations, whose order means nothing, and drops those
// after the last one: the rehearsal ends with the optimizer's step, the recording with the
// gradients' release.
func inOrder(list []string) []string {
	from := 0
	for i := 0; i <= len(list); i++ {
		if i == len(list) || list[i][0] == '+' {
			slices.Sort(list[from:i])
			from = i + 1
		}
	}
	last := len(list)
	for last > 0 && list[last-1][0] == '-' {
		last--
	}
	return list[:last]
}
