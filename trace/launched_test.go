package trace

import (
	"strings"
	"testing"

	"memroom/event"
)

// TestLaunchersThatEndTheirRanks: a launcher's kill counts as running out of memory on two
// conditions. Work that fills host memory appears in the forty lines above it, and no other reason
// appears around it, down to twelve lines below.
func TestLaunchersThatEndTheirRanks(t *testing.T) {
	const work, kill = "Loading checkpoint shards: 3/9", "[INFO] Killing subprocess 4242"
	filler := func(n int) string { return strings.Repeat("a line of another kind\n", n) }
	for name, c := range map[string]struct {
		text  string
		ended bool
	}{
		"after loading":        {work + "\n" + kill, true},
		"40 lines after it":    {work + "\n" + filler(39) + kill, true},
		"41 lines after it":    {work + "\n" + filler(40) + kill, false},
		"with a reason":        {work + "\n" + kill + "\n" + "ValueError: x", false},
		"12 lines before one":  {work + "\n" + kill + "\n" + filler(11) + "ValueError: x", false},
		"13 lines before one":  {work + "\n" + kill + "\n" + filler(12) + "ValueError: x", true},
		"without such work":    {filler(3) + kill, false},
		"in its own handler":   {work + "\n" + kill + "\nin sigkill_handler", true},
		"below another signal": {work + "\nexited with signal 15\n" + kill, false},
	} {
		log := readText(t, c.text+"\n")
		ended := false
		for _, crash := range log.Crashes {
			if crash.Kind == "launcher_kill" {
				ended = crash.Class == Exhausted && crash.Sure == 0.5 && crash.Where == event.WhereHost &&
					crash.Framework == "pytorch"
			}
		}
		if ended != c.ended {
			t.Errorf("%s: %+v", name, log.Crashes)
		}
	}
}

// TestFrameworksOfKills: words of a launcher up to twelve lines above a kill identify the program.
func TestFrameworksOfKills(t *testing.T) {
	for above, framework := range map[string]string{"local_rank=3": "pytorch",
		"python a.py": "python"} {
		for between, want := range map[int]string{0: framework, 11: framework, 12: "other"} {
			text := above + "\n" + strings.Repeat("a line of another kind\n", between) + "Killed\n"
			log := readText(t, text)
			got := log.Crashes[log.First()].Framework
			if got != want {
				t.Errorf("%q, %d lines above: %s, want %s", above, between, got, want)
			}
		}
	}
	for text, want := range map[string]string{"torchrun a.py": "pytorch",
		"accelerate launch a.py": "pytorch", "DeepSpeed": "pytorch", "Local_Rank: 0": "pytorch",
		"exited with <Signals.SIGKILL: 9>": "python", "make: ***": "", "": ""} {
		if got := launcherOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestAdviceOfRay: the end of Ray's message quoted alone counts, with its name near and without the
// message itself.
func TestAdviceOfRay(t *testing.T) {
	const advice = "Refer to the documentation on how to address the out of memory issue\n"
	for name, c := range map[string]struct {
		text string
		sure float64
	}{
		"alone":             {"ray: a worker died\n" + advice, 0.85},
		"without its name":  {"a worker died\n" + advice, 0},
		"40 lines below it": {"ray: x\n" + strings.Repeat("a line\n", 39) + advice, 0.85},
		"41 lines below it": {"ray: x\n" + strings.Repeat("a line\n", 40) + advice, 0},
	} {
		sure := 0.0
		for _, crash := range readText(t, c.text).Crashes {
			if crash.Kind == "ray_oom" {
				sure = crash.Sure
			}
		}
		if sure != c.sure {
			t.Errorf("%s: sure to %g, want %g", name, sure, c.sure)
		}
	}
}

// TestTrainersByRank: the one that means most is the log's, whatever the order.
func TestTrainersByRank(t *testing.T) {
	for _, order := range [][]string{{"accelerate", "deepspeed", "lightning"},
		{"lightning", "deepspeed", "accelerate"}, {"deepspeed", "lightning", "transformers"}} {
		h := &hintCollector{}
		for _, name := range order {
			trainer(name)(h, nil)
		}
		if h.Trainer != "lightning" {
			t.Errorf("%v: %s", order, h.Trainer)
		}
	}
	h := &hintCollector{}
	trainer("vllm")(h, nil)
	if trainer("llamafactory")(h, nil); h.Trainer != "vllm" {
		t.Errorf("of two that mean as much the first counts, not %s", h.Trainer)
	}
	if trainer("nobody")(h, nil); h.Trainer != "vllm" {
		t.Errorf("%s", h.Trainer)
	}
	names := &hintCollector{}
	if trainer("accelerate")(names, nil); names.Trainer != "accelerate" {
		t.Errorf("%q", names.Trainer)
	}
}

// TestWhereLinesBegin: behind a newline, a carriage return or the two characters of a JSON string.
func TestWhereLinesBegin(t *testing.T) {
	for text, want := range map[string]string{"a\nbXc\nd": "bXc", "a\rbXc\rd": "bXc", `a\nbXc\nd`: "bXc",
		"bXc": "bXc", "\nXc": "Xc", "\rXc": "Xc", `\nXc`: "Xc", "X": "X", `a\tbX`: `a\tbX`,
		"a\n\rX\n": "X", "a\r\nX\r\n": "X"} {
		w := &window{buf: []byte(text), eof: true}
		if got := string(w.lineAround(strings.Index(text, "X"))); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
