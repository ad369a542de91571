package diagnose

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"memroom/event"
	"memroom/testenv"
	"memroom/trace"
)

// truth is what was known about a recorded program, from its own model and optimizer.
type truth struct {
	ID   string `json:"id"`
	Case struct {
		Optim     string `json:"optim"`
		Precision string `json:"precision"`
	} `json:"case"`
	ParamBytes  int64 `json:"param_bytes"`
	BufferBytes int64 `json:"buffer_bytes"`
	// What torch.cuda.memory_stats said.
	PeakAllocated event.Bytes `json:"peak_allocated"`
	PeakReserved  event.Bytes `json:"peak_reserved"`
}

// optimizerBytes is what the optimizer keeps: two moments for AdamW, one for SGD with momentum, in
// the precision of the parameters. In the run with fp16 the gradient scaler skipped both steps, so
// that the state was never made.
func (tr truth) optimizerBytes() int64 {
	switch {
	case tr.Case.Precision == "amp_fp16":
		return 0
	case tr.Case.Optim == "sgdm":
		return tr.ParamBytes
	default:
		return 2 * tr.ParamBytes
	}
}

func readTruths(t *testing.T) []truth {
	t.Helper()
	f, err := os.Open(testenv.Shared(t, "traces", "ops", "index.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var truths []truth
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var tr truth
		if err := json.Unmarshal(lines.Bytes(), &tr); err != nil {
			t.Fatal(err)
		}
		truths = append(truths, tr)
	}
	return truths
}

func openSnapshot(t testing.TB, path string) *Snapshot {
	t.Helper()
	read, err := trace.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(read.Recordings) != 1 {
		t.Fatalf("%s: %d devices", path, len(read.Recordings))
	}
	s, replayed := ReplaySnapshot(read, &read.Recordings[0])
	if replayed == nil || !replayed.Exact() {
		t.Errorf("%s: the model does not follow it: %q", path, s.Warnings)
	}
	return s
}

// requestedAt sums what the program asked for in one category, live after an entry.
func (l *Ledger) requestedAt(at int32, category event.Category) (sum int64) {
	for i := range l.Allocs {
		if a := &l.Allocs[i]; a.Category == category && a.LiveAt(at) {
			sum += a.Requested()
		}
	}
	return sum
}

// mostOf is the most that one category ever held, as requested.
func (l *Ledger) mostOf(category event.Category) (most int64) {
	var sum int64
	l.WalkBlocks(func(_ int32, a *Allocation, freed bool) {
		if a.Category != category {
			return
		}
		if freed {
			sum -= a.Requested()
		} else {
			sum += a.Requested()
		}
		most = max(most, sum)
	})
	return most
}

// TestCategoriesOfKnownModels compares the inferred bytes with what the recorded programs knew of
// themselves.
func TestCategoriesOfKnownModels(t *testing.T) {
	t.Logf("%-22s %14s %14s %14s", "inferred / true", "weights", "optimizer", "gradients")
	for _, tr := range readTruths(t) {
		s := openSnapshot(t, testenv.Shared(t, "traces", "ops", tr.ID+".pickle.gz"))
		l := s.Ledger()
		weights := ratio(l.requestedAt(int32(s.Peak.At), event.CategoryWeights),
			tr.ParamBytes+tr.BufferBytes)
		optimizer := ratio(l.requestedAt(int32(s.End.At), event.CategoryOptimizer),
			tr.optimizerBytes())
		gradients := ratio(l.mostOf(event.CategoryGradients), tr.ParamBytes)
		t.Logf("%-22s %14.4f %14.4f %14.4f", tr.ID, weights, optimizer, gradients)
		for name, r := range map[string]float64{"weights": weights, "optimizer": optimizer,
			"gradients": gradients} {
			if math.Abs(r-1) > 0.005 {
				t.Errorf("%s: inferred %s are %.4f of the truth", tr.ID, name, r)
			}
		}
		if s.AllocatedPeak != tr.PeakAllocated || s.ReservedPeak != tr.PeakReserved {
			t.Errorf("%s: peaks %d and %d, PyTorch counted %d and %d", tr.ID, s.AllocatedPeak,
				s.ReservedPeak, tr.PeakAllocated, tr.PeakReserved)
		}
		if len(s.Steps) != 2 {
			t.Errorf("%s: %d steps recognised, two were run", tr.ID, len(s.Steps))
		}
		var unknown event.Bytes
		for _, c := range s.Categories {
			if c.Category == event.CategoryUnknown {
				unknown = c.Bytes
			}
		}
		if unknown*100 > s.AllocatedPeak {
			t.Errorf("%s: %s of %s at the peak are unknown", tr.ID, unknown, s.AllocatedPeak)
		}
	}
}

func ratio(got, want int64) float64 {
	if got == 0 && want == 0 {
		return 1
	}
	return float64(got) / float64(want)
}

// TestGrowthOfKnownPrograms: of the recorded programs these leak, and these do not.
func TestGrowthOfKnownPrograms(t *testing.T) {
	for name, leaks := range map[string]bool{
		"leak-loss_sum": true, "leak-append_outputs": true, "leak-hook_keeps": true,
		"oom-leak":       true,
		"dynseq-default": false, "dynseq-expandable": false, "dynseq-limit-split128": false,
	} {
		s := openSnapshot(t, testenv.Shared(t, "traces", name+".pickle.gz"))
		if (s.Growth != nil) != leaks {
			t.Errorf("%s: growth %+v, want leak %v", name, s.Growth, leaks)
		} else if leaks {
			t.Logf("%s: %s a step, %d suspects", name, s.Growth.PerStep, len(s.Growth.Suspects))
			if len(s.Growth.Suspects) == 0 {
				t.Errorf("%s: no line is named", name)
			}
		}
	}
}

// TestFailuresOfKnownPrograms: the limits are known from outside the snapshots.
func TestFailuresOfKnownPrograms(t *testing.T) {
	for _, c := range []struct {
		name       string
		limit      event.Bytes
		fragmented bool
	}{{"dynseq-limit-default", 9 * event.GiB, true}, {"oom-batch", 16 * event.GiB, false}} {
		s := openSnapshot(t, filepath.Join(testenv.Shared(t, "traces"), c.name+".pickle.gz"))
		if len(s.OOMs) == 0 {
			t.Errorf("%s: no failure found", c.name)
			continue
		}
		o := s.OOMs[len(s.OOMs)-1]
		if o.Fragmented != c.fragmented || !o.Limited || o.LimitLow > c.limit ||
			o.LimitHigh <= c.limit {
			t.Errorf("%s: fragmented %v, limit in [%s, %s); want fragmented %v and %s", c.name,
				o.Fragmented, o.LimitLow, o.LimitHigh, c.fragmented, c.limit)
		}
	}
}

// knownBlocks has the blocks of a snapshot with the categories that the program itself noted: its
// parameters and buffers, gradients, optimizer state and the tensors saved for the backward pass.
// The programs ran on an H200 and were stopped in their third step, before the optimizer and inside
// the forward pass.
type knownBlocks struct {
	ID        string            `json:"id"`
	Truth     map[string]string `json:"truth"` // address -> category
	Allocated event.Bytes       `json:"allocated"`
	Peak      event.Bytes       `json:"peak"`
}

func readKnown(t *testing.T) (known []knownBlocks) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "known", "truth.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	unpacked, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	for decoder := json.NewDecoder(unpacked); decoder.More(); {
		var k knownBlocks
		if err := decoder.Decode(&k); err != nil {
			t.Fatal(err)
		}
		known = append(known, k)
	}
	return known
}

// share is the part of the known bytes, live at the end, whose category was inferred right. Saved
// tensors that are the loss's or the input count as activations.
func (k *knownBlocks) share(s *Snapshot) float64 {
	var right, all int64
	l := s.Ledger()
	for i := range l.Allocs {
		a := &l.Allocs[i]
		want, known := k.Truth[strconv.FormatUint(a.Addr, 10)]
		if !known || !a.LiveAt(int32(s.End.At)) {
			continue
		}
		all += a.Size()
		got := a.Category
		if got.String() == want || want == "activations" && (got == event.CategoryLoss ||
			got == event.CategoryInput) {
			right += a.Size()
		}
	}
	return float64(right) / float64(all)
}

// TestCategoriesBlockByBlock: programs of many kinds, stopped in the middle of a forward pass and
// before an optimizer step, against what they knew of each block.
func TestCategoriesBlockByBlock(t *testing.T) {
	for _, k := range readKnown(t) {
		s := openSnapshot(t, filepath.Join("testdata", "known", k.ID+".pickle.gz"))
		share := k.share(s)
		t.Logf("%-28s %7.3f %% of the known bytes right", k.ID, 100*share)
		if share < 0.99 {
			t.Errorf("%s: only %.2f %% of the bytes have the right category", k.ID, 100*share)
		}
		if s.End.Allocated != k.Allocated || s.AllocatedPeak != k.Peak {
			t.Errorf("%s: %d allocated, peak %d; PyTorch counted %d and %d", k.ID, s.End.Allocated,
				s.AllocatedPeak, k.Allocated, k.Peak)
		}
	}
}
