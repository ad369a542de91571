package trial

import (
	"math"
	"testing"
)

// TestMetricsAreFoundInWhatProgramsPrint: lines as training scripts print them, with the value that
// a reader would take.
func TestMetricsAreFoundInWhatProgramsPrint(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		metric, output string
		want           float64
		readings       int
	}{
		{"loss", "loss=0.1\n", 0.1, 1},
		{"loss", "loss: 0.1\n", 0.1, 1},
		{"loss", "loss = 1e-3\n", 0.001, 1},
		{"loss", "loss 0.25\n", 0.25, 1},
		{"loss", "Loss: 0.5\n", 0.5, 1},
		{"loss", "Epoch 3/10 - loss: 0.4 - val_loss: 0.6\n", 0.4, 1},
		{"val_loss", "Epoch 3/10 - loss: 0.4 - val_loss: 0.6\n", 0.6, 1},
		{"val_loss", "val loss: 0.6\n", 0.6, 1},
		{"val_loss", "epoch 1, train loss 0.4, val/loss=0.6\n", 0.6, 1},
		{"loss", "train loss: 0.4 val loss: 0.6\n", 0.6, 1},
		{"loss", "Final loss: 0.7\n", 0.7, 1},
		{"loss", "epoch=1 loss=0.9\nepoch=2 loss=0.8\n", 0.8, 2},
		{"loss", "loss=0.9\nbest loss: 0.1\n", 0.9, 1},
		{"loss", `{"loss": 0.1, "epoch": 3}` + "\n", 0.1, 1},
		{"loss", `{"epoch": 3, "metrics": {"loss": 0.1}}` + "\n", 0.1, 1},
		{"metrics.loss", `{"metrics": {"loss": 0.1}}` + "\n", 0.1, 1},
		{"loss", `INFO result {"loss": 0.1}` + "\n", 0.1, 1},
		{"loss", `{"loss": NaN}` + "\n", nan, 1},
		{"loss", `{"loss": "0.3"}` + "\n", 0.3, 1},
		{"loss", "{'loss': 2.5, 'grad_norm': 1.0, 'epoch': 1.0}\n", 2.5, 1},
		{"eval_loss", "{'eval_loss': 2.5, 'eval_runtime': 1.0}\n", 2.5, 1},
		{"loss", "loss: tensor(0.25, grad_fn=<NllLossBackward0>)\n", 0.25, 1},
		{"loss", "loss: np.float64(0.25)\n", 0.25, 1},
		{"loss", "loss: [0.25]\n", 0.25, 1},
		{"loss", "loss: nan\n", nan, 1},
		{"loss", "loss=-inf\n", math.Inf(-1), 1},
		{"loss", "no number: loss: high\n", 0, 0},
		{"loss", "loss_weight=3 myloss=4 loss2: 5\n", 0, 0},
		{"loss", "val_loss=3\n", 0, 0},
		{"loss", "\x1b[32mloss: 0.5\x1b[0m\n", 0.5, 1},
		{"loss", "50%|#####     | 5/10 [00:01<00:01, loss=0.9]\r100%|####| 10/10 [00:02, loss=0.7]\n", 0.7, 1},
		{"loss", "1/2 [====] - loss: 0.9\r2/2 [====] - loss: 0.8\n1/2 - loss: 0.7\r2/2 - loss: 0.6", 0.6, 2},
		{"loss", "loss=0.9\n{\"loss\": 0.5}\nloss=0.1\n", 0.5, 1},
		{"loss", "loss: 0.5", 0.5, 1},
		{"loss", "loss:0.5,acc:0.9\r\n", 0.5, 1},
		{"loss", "[INFO] 2024-01-01 loss -> 0.5\n", 0.5, 1},
		{"loss", "| loss | 0.5 |\n", 0.5, 1},
		{"accuracy", "Test set: Average loss: 0.05, Accuracy: 9818/10000 (98%)\n", 0.9818, 1},
		{"acc", "acc: 98.2%\n", 98.2, 1},
		{"reward", "reward: +12\n", 12, 1},
		{"loss", "step 100: loss 3.1, lr 0.001\n", 3.1, 1},
		{"perplexity", "valid ppl 30 | perplexity=1_000.5\n", 1000.5, 1},
		{"loss", "loss: 12s\n", 12, 1},
		{"loss", "loss: 1,234.5\n", 1234.5, 1},
		{"loss", "loss: 0.25,0.5\n", 0.25, 1},
		{"loss", "loss: 0,5\n", 0, 0},
		{"loss", "loss: 1,234\n", 0, 0},
		{"loss", "loss: 2026-11-19\n", 0, 0},
		{"loss", "loss: 1.2.3\n", 0, 0},
		{"loss", "loss: 12:30\n", 0, 0},
		{"loss", "loss: nan-ish\n", 0, 0},
		{"loss", `{"loss": "0,5"}` + "\n", 0, 0},
		{"loss", "loss: 0.123.\n", 0.123, 1},
	} {
		f, err := NewFinder(c.metric, "")
		if err != nil {
			t.Fatal(err)
		}
		reader := &Reader{Finder: f}
		var found []Reading
		for i := range len(c.output) { // in the smallest pieces that a pipe can give
			found = append(found, reader.Feed([]byte(c.output[i:i+1]))...)
		}
		found = best(append(found, reader.Last()...))
		if len(found) != c.readings {
			t.Errorf("%s in %q: %d readings %v, want %d", c.metric, c.output, len(found), found,
				c.readings)
			continue
		}
		if len(found) == 0 {
			continue
		}
		got := found[len(found)-1].Value
		if got != c.want && !(math.IsNaN(got) && math.IsNaN(c.want)) {
			t.Errorf("%s in %q is %v, want %v", c.metric, c.output, got, c.want)
		}
	}
}

// best keeps the readings of the highest trust, as a trial does.
func best(all []Reading) []Reading {
	var top Trust
	for _, r := range all {
		top = max(top, r.Trust)
	}
	var out []Reading
	for _, r := range all {
		if r.Trust == top {
			out = append(out, r)
		}
	}
	return out
}

// TestTextInTheMetricsPlace is remembered until a number follows; prose is none.
func TestTextInTheMetricsPlace(t *testing.T) {
	f, _ := NewFinder("loss", "")
	for output, want := range map[string]string{"loss: abc\n": "abc", "loss: abc\nloss: 1\n": "",
		"loss: 1\nloss: diverged, acc: 2\n": "diverged", `{"acc": 1, "loss": "n/a"}` + "\n": "n/a",
		"epoch 1 - loss: 0,5, acc: 1\n": "0,5", "the loss: it fell\n": "", "val_loss: abc\n": "",
		"loss: None\n": "None", "loss 12 abc\n": ""} {
		r := &Reader{Finder: f}
		r.Feed([]byte(output))
		if r.Text != want {
			t.Errorf("%q has %q, want %q", output, r.Text, want)
		}
	}
}

func TestStepsAreRead(t *testing.T) {
	f, _ := NewFinder("loss", "")
	for line, want := range map[string]int{"Epoch 3/10 loss: 1": 3, "epoch=7 loss=1": 7,
		`{"loss": 1, "step": 12}`: 12, "Train Epoch: 2 [0/60000] Loss: 1": 2, "loss=1": -1,
		"Epoch [4/9], loss: 1": 4} {
		if r, ok := f.Line(line); !ok || r.Step != want {
			t.Errorf("%q: step %d, want %d", line, r.Step, want)
		}
	}
}

func TestPatternsOfTheUser(t *testing.T) {
	f, err := NewFinder("x", `@(?P<step>\d+) score<(?P<value>[^>]+)>`)
	if err != nil {
		t.Fatal(err)
	}
	if r, ok := f.Line("@12 score<0.5>"); !ok || r.Value != 0.5 || r.Step != 12 {
		t.Errorf("got %+v %v", r, ok)
	}
	for _, wrong := range []string{"(", "loss"} {
		if _, err := NewFinder("x", wrong); err == nil {
			t.Errorf("%q was accepted", wrong)
		}
	}
}

func TestLinesWithoutEndCostNothing(t *testing.T) {
	f, _ := NewFinder("loss", "")
	r := &Reader{Finder: f}
	for range 100 {
		r.Feed(make([]byte, 1<<20))
	}
	if cap(r.line) > 4*longestLine {
		t.Errorf("a line without an end takes %d bytes", cap(r.line))
	}
	if found := r.Feed([]byte("\nloss=1\n")); len(found) != 1 {
		t.Errorf("after it %v", found)
	}
}
