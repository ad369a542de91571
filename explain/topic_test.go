package explain

import (
	"slices"
	"strings"
	"testing"

	"memroom/remedy"
	"memroom/trace"
)

// explainText explains a text of a few lines.
func explainText(t *testing.T, text string) *Explanation {
	t.Helper()
	log, err := trace.ReadLog(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	x := Explain(Material{Logs: []*trace.Log{log}})
	if x == nil {
		t.Fatalf("nothing was recognised in %q", text)
	}
	return x
}

// TestTopicsAreWhole: every row says what speaks for it, what it means, and what to type.
func TestTopicsAreWhole(t *testing.T) {
	for _, topic := range topicTable() {
		if len(topic.clues) == 0 || topic.says == "" || topic.shows == "" || topic.cause == "" {
			t.Errorf("the topic %q is not whole", topic.says)
		}
		for _, c := range topic.cures {
			if _, ok := remedy.Find(c.id); !ok || c.title == "" || c.args == "" && c.make == nil && !c.own {
				t.Errorf("%q: the cure %s is not whole", topic.says, c.id)
			}
		}
		for _, c := range topic.clues {
			if c.weighs <= 0 || c.weighs > 3.5 {
				t.Errorf("%q: a clue weighs %v", topic.says, c.weighs)
			}
		}
	}
}

// TestTopicsOfPosts: what a person tells leads to the topic and to a cure of its library; with
// words that speak against it, or too few, it is not named.
func TestTopicsOfPosts(t *testing.T) {
	const card, host = "CUDA out of memory\n\n", "Killed, out of memory (RAM)\n\n"
	for name, c := range map[string]struct {
		text, verdict, typed string
		not                  []string
	}{
		"workers anew": {host + "After every epoch there are more and more worker processes and RAM is full.",
			"started anew every epoch", "one loader for all epochs", []string{"keep less"}},
		"copies in workers": {host + "The higher num_workers, the more RAM memory is used. I use a torch DataLoader over a Dataset with a list of dicts.",
			"each worker of the loader", "np.memmap", []string{"keep less"}},
		"a cache": {host + "With --cache images the RAM fills up before the first epoch.", "cached in main memory", "cache setting", nil},
		"map":     {host + "ds.map(prepare, num_proc=16) of huggingface datasets with audio eats all RAM until it is killed.", "writer_batch_size", "writer_batch_size=50", []string{"stream the data"}},
		"trials": {host + "I use tune.run of ray with 8 trials. Each trial loads the dataset of 9 GB, 70 GB of memory are used.",
			"every trial or job", "max_concurrent_trials", []string{"keep less"}},
		"outputs on the host": {host + "It dies in validation.\npreds.append(out.cpu().numpy())\nmodel.eval()\n", "outputs of all evaluation batches",
			"run lengths", []string{"eval_accumulation"}},
		"the first card": {card + "GPU 0 uses much more memory than the others with DistributedDataParallel.", "the first card holds more", "set_device", []string{"end the other processes"}},
		"a saved state": {card + "It trains well with FSDP and accelerate, and runs out of memory while saving the checkpoint.", "a checkpoint is saved",
			"SHARDED_STATE_DICT", []string{"state_dict().items()"}},
		"a graph at once": {card + "I have a big graph with 400,000 nodes and use torch_geometric.\nloader = DataLoader([data], batch_size=16)", "the whole graph",
			"NeighborLoader", []string{"batch_size=8"}},
		"rays": {card + "I render novel views of a trained nerf with chunk=32768 rays.", "rays that are rendered at once", "chunk=8192 instead of 32768", nil},
		"long samples": {card + "ASR training with max-duration 300 fails after some batches. The longest utterances have 40 seconds.", "longest samples",
			"remove_short_and_long_utt", nil},
		"a flag named resume": {card + "python train.py --epochs 10 --resume --batch 4 fails.", "", "", []string{"continues from a checkpoint"}},
		"an upgrade of a regressor": {card + "I train a regression model for prices.", "", "",
			[]string{"another release"}},
	} {
		x := explainText(t, c.text)
		var typed strings.Builder
		for _, a := range x.Remedies {
			typed.WriteString(a.Title + "\n" + a.How.Args + "\n" + a.How.Code + "\n")
		}
		if !strings.Contains(x.Verdict, c.verdict) || !strings.Contains(typed.String(), c.typed) {
			t.Errorf("%s: %q %q", name, x.Verdict, typed.String())
		}
		for _, no := range c.not {
			if strings.Contains(x.Verdict+typed.String(), no) {
				t.Errorf("%s: says %q: %q %q", name, no, x.Verdict, typed.String())
			}
		}
	}
}

// TestTopicsBesideTracebacks: frames say what was done, so that a topic needs to be said outright.
func TestTopicsBesideTracebacks(t *testing.T) {
	const frames = "Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n" +
		"    y = model(x)\n" +
		"  File \"/x/site-packages/torch/nn/modules/conv.py\", line 5, in forward\n    return self._conv_forward(x)\n" +
		"RuntimeError: CUDA out of memory. Tried to allocate 400.00 MiB\n"
	if x := explainText(t, "It is slower on the first GPU.\n"+frames); x.Detail == "first_rank" {
		t.Errorf("one word beside a traceback: %q", x.Verdict)
	}
	if x := explainText(t, "Out of memory on multiple GPUs\n\nGPU 0 uses more memory than the others, all of them load model: a.pt with torchrun.\n"+frames); x.Detail != "first_rank" {
		t.Errorf("a person tells what it is: %q", x.Verdict)
	}
}

// TestRecordOfCures: what was wrong more often than once in ten, on words alone, is not said on
// them; what was never judged is, and so is what a case words itself.
func TestRecordOfCures(t *testing.T) {
	told := explainText(t, "RAM leak\n\nThe RAM usage keeps growing until the process is killed.")
	if told.has(remedy.KeepLess) || told.has(remedy.StreamData) || told.Next == "" {
		t.Errorf("words of a rise alone: %+v, next %q", told.Remedies, told.Next)
	}
	of := told.facts
	for _, c := range []struct {
		x    Explanation
		id   remedy.ID
		want bool
	}{
		{Explanation{facts: of, Confidence: 0.5}, remedy.KeepLess, false},
		{Explanation{facts: of, Confidence: 0.5}, remedy.OffloadLess, true},
		{Explanation{facts: of, Confidence: 0.5}, remedy.ClearSession, true},
		{Explanation{facts: of}, remedy.Checkpointing, false},
		{Explanation{facts: of, Confidence: 0.5, given: []remedy.ID{remedy.KeepLess}}, remedy.KeepLess,
			true},
		{Explanation{facts: of, Confidence: 0.5, words: []ownCure{{id: remedy.Detach}}}, remedy.Detach,
			true},
	} {
		if got := c.x.proved(Advice{ID: c.id}); got != c.want {
			t.Errorf("%s with confidence %v: %v", c.id, c.x.Confidence, got)
		}
	}
	seen := explainText(t, "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 GiB total capacity; 9.31 GiB already allocated; 5.00 MiB free; 9.80 GiB reserved in total by PyTorch)")
	if !(&Explanation{facts: seen.facts, Confidence: 0.5}).proved(Advice{ID: remedy.KeepLess}) {
		t.Error("the record of words was used where figures speak")
	}
}

// TestJoinsAlongTheFirst: outputs of batches are joined along the first dimension only.
func TestJoinsAlongTheFirst(t *testing.T) {
	log := func(line string) string {
		return "Traceback (most recent call last):\n  File \"v.py\", line 3, in validate\n    y = encode(x)\n  File \"v.py\", line 9, in encode\n    " +
			line + "\nRuntimeError: CUDA out of memory. Tried to allocate 3.94 GiB (GPU 0; 11.00 GiB total capacity; 4.49 GiB already allocated; 2.81 GiB free; 5.88 GiB reserved in total by PyTorch)\n"
	}
	if x := explainText(t, log("return torch.cat(parts, dim=-1)")); x.Detail == "eval_outputs" {
		t.Errorf("a join of features: %q", x.Verdict)
	}
	if x := explainText(t, log("return torch.cat(parts)")); x.Detail != "eval_outputs" ||
		!slices.ContainsFunc(x.Evidence, func(e string) bool {
			return strings.Contains(e, "joined")
		}) {
		t.Errorf("a join of batches: %q %q", x.Verdict, x.Evidence)
	}
}
