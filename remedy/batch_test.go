package remedy

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestSplitsKeepTheEffectiveBatch: whatever the batch, a smaller micro-batch times more of them is
// the batch that was asked for, and no smaller split into at least two would do.
func TestSplitsKeepTheEffectiveBatch(t *testing.T) {
	r, _ := Find(MicroBatch)
	for batch := 2; batch <= 300; batch++ {
		for _, accumulate := range []int{0, 1, 3} {
			before := Setup{Batch: batch, Accumulate: accumulate}
			after, ok := r.Rewrite(before)
			if !ok || after.EffectiveBatch() != before.EffectiveBatch() || after.Batch >= batch {
				t.Fatalf("%+v became %+v", before, after)
			}
			for larger := after.Batch + 1; larger <= batch/2; larger++ {
				if batch%larger == 0 {
					t.Fatalf("batch %d became %d, %d divides it too", batch, after.Batch, larger)
				}
			}
		}
	}
	if _, ok := r.Rewrite(Setup{Batch: 1}); ok {
		t.Error("a batch of one was split")
	}
}

var number = regexp.MustCompile(`\d+`)

// TestEditsMultiplyToTheBatch: the two numbers that a trainer is given multiply to the batch, also
// where the batch was split into pieces that are not equal.
func TestEditsMultiplyToTheBatch(t *testing.T) {
	r, _ := Find(MicroBatch)
	for _, trainer := range []Trainer{Transformers, Lightning, DeepSpeed, Torchtune, Axolotl} {
		for batch, pieces := range map[int]int{4096: 3, 100: 7, 64: 4, 30: 30, 13: 2} {
			args := r.HowTo(Job{Framework: PyTorch, Trainer: trainer, Batch: batch,
				Pieces: pieces}).Args
			product, given := 1, number.FindAllString(args, -1)
			for _, text := range given {
				n, _ := strconv.Atoi(text)
				product *= n
			}
			if len(given) != 2 || product != batch {
				t.Errorf("%s, %d in %d: %s", trainer, batch, pieces, args)
			}
			title := r.TitleFor(Job{Trainer: trainer, Batch: batch, Pieces: pieces})
			if n, _ := strconv.Atoi(number.FindString(title)); n < pieces || batch%n != 0 ||
				!strings.Contains(args, fmt.Sprint(n)) {
				t.Errorf("%s, %d in %d: the title says %q, the arguments %q", trainer, batch, pieces,
					title, args)
			}
		}
	}
}

// TestTheLoopEditTrainsTheSame runs the code that we print, in real PyTorch, next to the loop as it
// was: batches that do not divide, and a last one that is smaller.
func TestTheLoopEditTrainsTheSame(t *testing.T) {
	if testing.Short() {
		testenv.Needs(t, "time", "-short leaves real PyTorch out")
	}
	python := testenv.Python(t, "torch")
	r, _ := Find(MicroBatch)
	edit := r.HowTo(Job{Framework: PyTorch, Batch: 10, Pieces: 3}).Code
	script := `
import torch
torch.manual_seed(0)
data = [(torch.randn(n, 6, dtype=torch.float64), torch.randn(n, 1, dtype=torch.float64)) for n in (10, 10, 7)]
loss_fn = torch.nn.functional.mse_loss

def trained(edited):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = data
    if edited:
` + indent(edit, "        ") + `
    else:
        for x, y in loader:
            loss_fn(model(x), y).backward()
            optimizer.step(); optimizer.zero_grad()
    return torch.cat([p.detach().flatten() for p in model.parameters()])

print(float((trained(True) - trained(False)).abs().max()))
`
	out := testenv.Program{Python: python, Args: []string{"-c", script}}.MustAsk(t).Out
	if off, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64); err != nil || off > 1e-14 {
		t.Errorf("the weights differ by %s", out)
	}
}

func indent(text, by string) string { return by + strings.ReplaceAll(text, "\n", "\n"+by) }
