package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"memroom/event"
)

const sampleOOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 " +
	"has a total capacity of 23.69 GiB of which 1.01 GiB is free. " +
	"Of the allocated memory 21.00 GiB is allocated by PyTorch, and 312.00 MiB is reserved by PyTorch but unallocated."

func readText(t testing.TB, text string) *Log {
	t.Helper()
	log, err := ReadLog(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func TestWordsAreFoundAsByBruteForce(t *testing.T) {
	var list []*telling
	for _, w := range []string{"killed", "out of memory", "oom_kill event", "memoryerror",
		"code 137", "sigkill"} {
		list = append(list, &telling{text: w})
	}
	w := newWords(list)
	random := rand.New(rand.NewSource(3))
	pieces := []string{"killed", "KILLED", "kill", "out of mem", "Out Of Memory", "oom_kill event",
		"MemoryError", "emory", "code 137", "code 13", " ", "\n", "sigkil", "SIGKILL", "x"}
	for range 2000 {
		var text strings.Builder
		for range random.Intn(30) {
			text.WriteString(pieces[random.Intn(len(pieces))])
		}
		checkWords(t, w, list, text.String())
	}
}

func TestTellingWordsAreLong(t *testing.T) {
	if shortest := vocabulary().shortest; shortest < 6 {
		t.Errorf("the shortest telling word has %d bytes: reading becomes slow", shortest)
	}
}

func checkWords(t *testing.T, w *words, list []*telling, text string) {
	t.Helper()
	lower := strings.ToLower(text)
	for from := 0; ; {
		want := -1
		for _, l := range list {
			if i := strings.Index(lower[min(from, len(lower)):], l.text); i >= 0 &&
				(want < 0 || from+i < want) {
				want = from + i
			}
		}
		at, word := w.find([]byte(text), from)
		if (word == nil) != (want < 0) || word != nil && at != want {
			t.Fatalf("in %q from %d: found %v at %d, want %d", text, from, word, at, want)
		}
		if word == nil {
			return
		}
		from = at + 1
	}
}

func TestCrashIsFoundAnywhere(t *testing.T) {
	filler := strings.Repeat("step 1 loss 0.123 lr 1e-4 memory: 9231 MiB, killed time\n", 64)
	for _, before := range []int{0, 1, 63 << 10, 1<<20 - 40, 1 << 20, 3<<20 + 17} {
		text := strings.Repeat(filler, before/len(filler)+1)[:before] + "\n" + sampleOOM + "\n" +
			filler
		for name, r := range map[string]io.Reader{"whole": strings.NewReader(text),
			"halves": iotest.HalfReader(strings.NewReader(text))} {
			log, err := ReadLog(r)
			if err != nil || len(log.Crashes) != 1 || log.Crashes[0].Requested == nil ||
				*log.Crashes[0].Requested != 2*event.GiB || *log.Crashes[0].Idle != 312*event.MiB {
				t.Fatalf("%s after %d bytes: %+v, %v", name, before, log.Crashes, err)
			}
			if want := int64(strings.Count(text[:strings.Index(text, sampleOOM)], "\n") +
				1); log.Crashes[0].Line != want {
				t.Errorf("%s after %d bytes: line %d, want %d", name, before, log.Crashes[0].Line,
					want)
			}
			if log.Bytes != int64(len(text)) || log.Lines != int64(strings.Count(text, "\n")) {
				t.Errorf("%s: counted %d bytes and %d lines", name, log.Bytes, log.Lines)
			}
		}
	}
}

func TestHugeLinesAndJunk(t *testing.T) {
	junk := make([]byte, 300<<10)
	random := rand.New(rand.NewSource(1))
	for i := range junk {
		junk[i] = byte(random.Intn(256))
	}
	long := strings.Repeat("x", 10<<20)
	for name, text := range map[string]string{
		"ten megabytes before": long + " RuntimeError: " + sampleOOM,
		"ten megabytes after":  "RuntimeError: " + sampleOOM + " " + long,
		"junk around":          string(junk) + "\n" + sampleOOM + "\n" + string(junk),
		"carriage returns":     strings.Repeat("\r 50%|##### | 1/2", 40000) + "\r" + sampleOOM,
		"words on words":       strings.Repeat(`"killed": 0, `, 1<<18) + sampleOOM,
		"json string":          `{"log":"` + strings.Repeat(`step\n`, 100000) + sampleOOM + `\nbye"}`,
	} {
		log := readText(t, text)
		first := log.First()
		if first < 0 || log.Crashes[first].Capacity == nil {
			t.Errorf("%s: not found: %d crashes", name, len(log.Crashes))
		}
	}
}

func TestBoundedMemoryOnRepetition(t *testing.T) {
	var text strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&text,
			"W step %d: CUDA out of memory. Tried to allocate %d.00 MiB (GPU 0; 10.00 GiB total capacity; "+
				"9.00 GiB already allocated; 1.00 MiB free; 9.50 GiB reserved in total by PyTorch)\n", i, i+1)
	}
	log := readText(t, text.String())
	if len(log.Crashes) > maxPerKind {
		t.Errorf("%d crashes kept", len(log.Crashes))
	}
	if len(log.Crashes[0].Text) > maxCrashText+8 {
		t.Errorf("%d bytes of text kept", len(log.Crashes[0].Text))
	}
}

func TestTwoCrashesInOrder(t *testing.T) {
	log := readText(t, `[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB.
[rank0]:[E ProcessGroupNCCL.cpp:523] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9) ran for 600000 milliseconds
slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.
`)
	if len(log.Crashes) != 3 || log.First() != 0 || log.Crashes[0].Rank != 2 ||
		log.Crashes[2].Framework != "slurm" {
		t.Errorf("first %d of %+v", log.First(), log.Crashes)
	}
}

// TestWordsBeforeTheMessage: a person's sentence in another language does not decide how the
// figures of the message after it are read.
func TestWordsBeforeTheMessage(t *testing.T) {
	log := readText(t, `训练（数据集 A）没有问题，评估时 GPU 0 显存不足：

torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.00 GiB total capacity; `+
		`8.50 GiB already allocated; 7.00 MiB free; 9.00 GiB reserved in total by PyTorch)
`)
	for _, c := range log.Crashes {
		if c.Free != nil && *c.Free != 7*event.MiB {
			t.Errorf("free %v in %q", *c.Free, c.Text)
		}
	}
	if first := log.First(); first < 0 || log.Crashes[first].Free == nil {
		t.Errorf("the message was not read: %+v", log.Crashes)
	}
}

func TestUserFrameIsToldFromLibraries(t *testing.T) {
	log := readText(t, `Traceback (most recent call last):
  File "/home/eva/proj/train.py", line 10, in <module>
    main()
  File "/home/eva/proj/loop.py", line 77, in step
    y = net(x)
  File "/home/eva/.venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _wrapped_call_impl
    return self._call_impl(*args, **kwargs)
`+sampleOOM)
	f, ok := log.Crashes[0].UserFrame()
	if want := (event.Frame{File: "/home/eva/proj/loop.py", Name: "step", Line: 77}); !ok ||
		f != want {
		t.Errorf("user's frame %+v, want %+v", f, want)
	}
	if len(log.Crashes[0].Frames) != 3 {
		t.Errorf("frames %+v", log.Crashes[0].Frames)
	}
}

func TestHintsOfTheJob(t *testing.T) {
	log := readText(t, `accelerate launch train.py --per_device_train_batch_size=6 --gradient_accumulation_steps 4 --max_seq_length 1024 --gradient_checkpointing True --fp16
env: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64
torch version 2.3.1
`+sampleOOM+" try setting PYTORCH_CUDA_ALLOC_CONF=garbage_collection_threshold:0.8")
	h := log.Hints
	if h.Batch != 6 || h.Accumulate != 4 || h.Seq != 1024 || h.Torch != "2.3.1" ||
		h.Trainer != "transformers" ||
		h.AllocConf != "expandable_segments:True,max_split_size_mb:64" {
		t.Errorf("hints %+v", h)
	}
	for _, id := range []string{"checkpointing", "mixed_precision"} {
		if h.Settings[id] == "" {
			t.Errorf("%s is on and was not seen: %+v", id, h.Settings)
		}
	}
}

func TestReadErrorKeepsWhatWasRead(t *testing.T) {
	broken := errors.New("disk on fire")
	log, err := ReadLog(io.MultiReader(strings.NewReader(sampleOOM+"\n"), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(log.Crashes) != 1 {
		t.Errorf("%v, %+v", err, log.Crashes)
	}
}

func FuzzReadLog(f *testing.F) {
	samples, _ := filepath.Glob(filepath.Join("..", "explain", "testdata", "logs", "*.txt"))
	for _, path := range samples {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		log, err := ReadLog(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range log.Crashes {
			for _, b := range []*event.Bytes{c.Requested, c.Capacity, c.Allocated, c.Idle, c.Free} {
				if b != nil && *b < 0 {
					t.Fatalf("negative size in %+v", c)
				}
			}
			if c.Where == "" || c.Framework == "" || c.Class == "" {
				t.Fatalf("unfinished %+v", c)
			}
		}
		if first := log.First(); first >= len(log.Crashes) {
			t.Fatalf("first is %d of %d", first, len(log.Crashes))
		}
	})
}

// logText is an endless training log with a crash now and then.
type logText struct {
	line []byte
	left int64
	at   int
}

func (l *logText) Read(p []byte) (int, error) {
	if l.left <= 0 {
		return 0, io.EOF
	}
	n := 0
	for n < len(p) && l.left > 0 {
		c := copy(p[n:], l.line[l.at:])
		l.at = (l.at + c) % len(l.line)
		n, l.left = n+c, l.left-int64(c)
	}
	return n, nil
}

// BenchmarkReadLog reads two gigabytes that are made on the fly. "plain" has no telling words,
// "mmdet" one hint a line.
func BenchmarkReadLog(b *testing.B) {
	for name, line := range map[string]string{
		"plain": "[2025-03-01 10:00:00,123][train][INFO] - Train step 48123/100000 loss=2.31831 " +
			"lr=1.25e-05 grad_norm=0.981 tok/s=91834.2 mem=62.1\n",
		"mmdet": "2025/03/01 10:00:00 - mmengine - INFO - Epoch(train) [3][ 1250/7330]  lr: 1.0e-02  " +
			"eta: 9:12:07  time: 0.3310  memory: 9231  loss: 0.7311\n",
		"tqdm": "Epoch 3:  41%|####1     | 220/536 [02:17<03:16,  1.61it/s, loss=0.123]\r",
	} {
		b.Run(name, func(b *testing.B) {
			total := int64(2 << 30)
			if testing.Short() {
				total = 64 << 20
			}
			b.SetBytes(total)
			for b.Loop() {
				if _, err := ReadLog(&logText{line: []byte(strings.Repeat(line, 200)),
					left: total}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
