package explain

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
	"memroom/trace"
)

func stated(text string) Stated {
	var lines []trace.Line
	for i, line := range strings.Split(text, "\n") {
		lines = append(lines, trace.Line{Number: int64(i + 1), Text: line})
	}
	return statedIn(lines, strings.ToLower(text))
}

// TestAttempts: what was tried in vain and what works, each with its value.
func TestAttempts(t *testing.T) {
	for text, want := range map[string]struct {
		of    Quantity
		value string
		works bool
	}{
		"I set batch size to 2 and it still runs out":    {Samples, "2", false},
		"Even with batch size 1 the error comes":         {Samples, "1", false},
		"reduced the sequence length to 256, same error": {Length, "256", false},
		"--num_workers 0 does not help":                  {Workers, "0", false},
		"it works with a batch size of 3":                {Samples, "3", true},
		"On a single GPU it runs fine":                   {OneCard, "", true},
		"with version 1.8.1 there is no problem":         {Version, "1.8.1", true},
		"It works on CPU":                                {OnCPU, "", true},
		"torch.cuda.empty_cache() didn't help":           {Cache, "", false},
		"a smaller dataset works":                        {Smaller, "", true},
		"it does not work on one GPU either":             {OneCard, "", false},
		"fp16 is on already, no difference":              {Half, "", false},
		"On another machine the same config works":       {Others, "", true},
		"batch_size=4 works, the largest that does":      {Samples, "4", true},
	} {
		s := stated(text)
		from, other := s.Vain, s.Works
		if want.works {
			from, other = other, from
		}
		holds := func(a Attempt) bool { return a.Of == want.of && a.Value == want.value }
		if !slices.ContainsFunc(from, holds) || slices.ContainsFunc(other, holds) {
			t.Errorf("%q: in vain %v, works %v", text, s.Vain, s.Works)
		}
	}
}

// TestSurroundings: words of a system that nobody uses of another thing.
func TestSurroundings(t *testing.T) {
	for text, want := range map[string][]Surrounding{
		"I use WSL2 on Windows 11":                         {WSL, OnWindows},
		"C:\\Users\\me\\train.py":                          {OnWindows},
		"the window of 7 days is open, the sliding window": nil,
		"a MacBook with an M2 Max":                         {OnMac},
		"free Colab session":                               {Colab},
		"the data comes from a Kaggle competition":         nil,
		"docker run --gpus all image":                      {Docker},
		"kubectl get pods shows it":                        {Kubernetes},
		"#SBATCH --mem=64G":                                {Slurm},
	} {
		if s := stated(text); !slices.Equal(s.Around, want) {
			t.Errorf("%q: %v, want %v", text, s.Around, want)
		}
	}
}

// TestReleases: the release of a tool as it is said, or the generation that its settings show.
func TestReleases(t *testing.T) {
	for text, want := range map[string]struct {
		tool       string
		generation int
	}{
		"torch==1.13.1": {"torch", 1}, "PyTorch version: 2.3.0": {"pytorch", 2},
		"mmdet 2.11.0 and mmcv":               {"mmdet", 2},
		"imgs_per_gpu=2, workers_per_gpu=2":   {"mmdet", 1},
		"cd egs/librispeech/asr1 && ./run.sh": {"espnet", 1},
		"./egs2/TEMPLATE/asr1/asr.sh":         {"espnet", 2}, "nnUNet_train 3d_fullres": {"nnunet", 1},
		"tf.ConfigProto(allow_soft_placement=True)": {"tensorflow", 1},
		"an mmdet model": {"mmdet", 0},
	} {
		if s := stated(text); s.Generation(want.tool) != want.generation {
			t.Errorf("%q: %v", text, s.Releases)
		}
	}
}

// TestSizes: sizes with the noun that they are of; one of a card is no host's.
func TestSizes(t *testing.T) {
	for text, want := range map[string]Sized{
		"a CSV file of 40GB":             {Of: "data", Bytes: 40 * event.GiB},
		"my machine has 64 GB of RAM":    {Of: "host", Bytes: 64 * event.GiB},
		"RAM: 16 GB":                     {Of: "host", Bytes: 16 * event.GiB},
		"an 8 GB GPU memory card":        {},
		"we have 300GB dataset on a SSD": {Of: "data", Bytes: 300 * event.GiB},
	} {
		s := stated(text)
		if want.Of == "" {
			if len(s.Sizes) > 0 {
				t.Errorf("%q: %v", text, s.Sizes)
			}
		} else if !slices.ContainsFunc(s.Sizes,
			func(z Sized) bool { return z.Of == want.Of && z.Bytes == want.Bytes }) {
			t.Errorf("%q: %v", text, s.Sizes)
		}
	}
	if !stated("I click the generate button in the webui").AppUser ||
		stated("my script has a button").AppUser {
		t.Error("who uses an application is not told from who writes code")
	}
}
