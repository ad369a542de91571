package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"memroom/diagnose"
	"memroom/event"
	"memroom/feed/table"
	"memroom/store"
	"memroom/supervise"
)

// followed is a run with some readings, as `top` sees it.
func followed(t *testing.T, steps ...event.RankedStep) *follower {
	t.Helper()
	kept, err := store.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	folder, err := kept.Create(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(folder.Close)
	var samples []event.Sample
	for i := range event.Bytes(40) {
		samples = append(samples, event.Sample{AtMS: int64(i) * 250, Processes: 1,
			Anonymous: (i + 1) * 100 * event.MiB,
			Machine:   &event.MachineSample{Total: 8 * event.GiB, ShmUsed: event.MiB, ShmTotal: event.GiB},
			Devices: []event.DeviceSample{{Name: "card A", Total: 10 * event.GiB,
				Used: 8 * event.GiB, Utilisation: 73}}})
	}
	found := event.Finding{Kind: "leak", Title: "it grows"}
	for _, err := range []error{folder.SaveRun(event.Run{Command: []string{"python", "train.py"}}),
		folder.AppendSamples(samples), folder.AppendSteps(steps),
		folder.AppendEvent(event.Happened{Kind: "finding", Finding: &found}),
		folder.AppendEvent(event.Happened{Kind: "action", Text: "asked it to save"}),
		folder.AppendEvent(event.Happened{Kind: "other", Text: "not shown"}),
		folder.SaveProgress(supervise.Now{Forecasts: []diagnose.Prediction{{What: "host memory",
			In: 90 * time.Second, Step: 50, LowStep: 40, HighStep: 60}},
			Host: &diagnose.Account{Limit: 8 * event.GiB, Lines: []diagnose.AccountEntry{
				{Name: "anonymous", Bytes: 4 * event.GiB}, {Name: "shared"},
				{Name: "free", Bytes: 4 * event.GiB}}}})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f := newFollower(folder)
	f.update()
	return f
}

// TestWhatTopSays: in one line and as JSON, what a run holds, how fast it goes and what was found;
// before the first step nothing is said about steps.
func TestWhatTopSays(t *testing.T) {
	step := event.RankedStep{Step: event.Step{Step: 1, Duration: 250 * time.Millisecond,
		Allocated: event.GiB, Reserved: 2 * event.GiB}}
	for _, stepped := range []bool{false, true} {
		var steps []event.RankedStep
		if stepped {
			steps = append(steps, step)
		}
		f := followed(t, steps...)
		line := f.line()
		for _, want := range []string{f.folder.ID, "host 3.91GiB of 8GiB (1 process)",
			"card A 8GiB of 10GiB, 73 % busy", "found: it grows",
			"host memory: out of memory in about 1 min 30 s, at step ~50 (40 to 60)"} {
			if !strings.Contains(line, want) {
				t.Errorf("%q is not in %q", want, line)
			}
		}
		if strings.Contains(line, "step 1, 4/s") != stepped || !stepped && strings.Contains(line,
			"step 0") {
			t.Errorf("steps %v: %q", stepped, line)
		}
		var out bytes.Buffer
		if err := (&topCmd{JSON: true}).print(&session{Streams: Streams{Out: &out}}, f); err != nil {
			t.Fatal(err)
		}
		var got struct {
			Step      *event.RankedStep
			Findings  []event.Finding
			Forecasts []diagnose.Prediction
			HostLimit event.Bytes `json:"host_limit"`
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || (got.Step != nil) != stepped ||
			len(got.Findings) != 1 || len(got.Forecasts) != 1 {
			t.Errorf("%s: %v", out.String(), err)
		}
	}
}

// TestWhatTopShows: the picture fits the screen, has a bar and a graph for host memory and for each
// card, and below them what is known.
func TestWhatTopShows(t *testing.T) {
	f := followed(t, event.RankedStep{Step: event.Step{Step: 7, Duration: time.Second,
		Allocated: event.GiB, Reserved: 2 * event.GiB}})
	p := &picture{s: &session{}}
	for _, columns := range []int{20, 100} {
		lines := p.compose(f, columns, 50)
		for _, line := range lines {
			if n := utf8.RuneCountInString(line); n > columns {
				t.Errorf("%d of %d columns: %q", n, columns, line)
			}
		}
		if columns < 100 {
			continue
		}
		text := strings.Join(lines, "\n")
		for _, want := range []string{"python train.py", "host memory  3.91GiB of 8GiB (49 %)",
			"card A, 73 % busy  8GiB of 10GiB (80 %)", "/dev/shm     1MiB of 1GiB",
			"step 7, 1 a second; allocated 1GiB, reserved 2GiB", "leak: it grows", "asked it to save",
			"host account anonymous 4GiB + free 4GiB = 8GiB", "in about 1 min 30 s"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is not shown:\n%s", want, text)
			}
		}
		if strings.Contains(text, "not shown") || strings.Contains(text, "shared") {
			t.Errorf("%s", text)
		}
	}
}

// TestBarsAndGraphs: shares of a line, the highest of each span.
func TestBarsAndGraphs(t *testing.T) {
	for _, c := range []struct {
		share float64
		want  string
	}{{0, "░░░░"}, {0.24, "░░░░"}, {0.25, "█░░░"}, {0.5, "██░░"}, {1, "████"}, {1.5, "████"},
		{-1, "░░░░"}} {
		if got := bar(c.share, 4); got != c.want {
			t.Errorf("%v: %s, want %s", c.share, got, c.want)
		}
	}
	for _, c := range []struct {
		values []float64
		want   string
	}{{nil, ""}, {[]float64{0, 0.5, 1}, " ▄█"}, {[]float64{2, -1}, "█ "},
		{[]float64{0, 1, 0, 0, 0, 0.5, 0, 0}, "█ ▄ "}, {[]float64{0.06, 0.07}, " ▁"}} {
		if got := graph(c.values, 4); got != c.want {
			t.Errorf("%v: %q, want %q", c.values, got, c.want)
		}
	}
	if got := lastOf([]int{1, 2, 3}, 2); len(got) != 2 || got[0] != 2 || len(lastOf([]int{1},
		2)) != 1 {
		t.Errorf("%v", got)
	}
	for columns, want := range map[int]string{99: "sum a 1 + b 2 + c 3 = 6",
		16: "sum a 1 + b 2|    + c 3 = 6",
		11: "sum a 1|    + b 2|    + c ..."} {
		if got := strings.Join(wrapSum("sum ", "a 1 + b 2 + c 3 = 6", columns), "|"); got != want {
			t.Errorf("%d columns: %q, want %q", columns, got, want)
		}
	}
	for share, want := range map[event.Bytes]string{75: green, 76: yellow, 92: yellow, 93: red} {
		f := &follower{}
		p := &picture{s: &session{color: true}}
		lines := p.kindLines("x", f, 4, func(event.Sample) (event.Bytes, event.Bytes) {
			return share,
				100
		})
		if lines[1] != p.s.paint(want, bar(float64(share)/100, 4)) {
			t.Errorf("%d %%: %q", share, lines[1])
		}
	}
}

// TestAccountsInWords: the sum, and what is not in it.
func TestAccountsInWords(t *testing.T) {
	a := diagnose.Account{Limit: 6, Lines: []diagnose.AccountEntry{{Name: "a", Bytes: 4}, {Name: "b"},
		{Name: "free", Bytes: 2}}}
	if got := accountText(a); got != "a 4B + free 2B = 6B" {
		t.Error(got)
	}
	a.Overlap = 3
	if got := accountText(a); !strings.Contains(got, "3B that two readings claimed") {
		t.Error(got)
	}
	a.Over = 5
	if got := accountText(a); !strings.HasSuffix(got, "= 6B, and 5B more than that") {
		t.Error(got)
	}
}

// TestTypesOfStreams: as NumPy would write them.
func TestTypesOfStreams(t *testing.T) {
	for want, c := range map[string]table.Column{
		"<f4": {Kind: table.Fixed, DType: "<f4"}, "<f4[6]": {Kind: table.Fixed, DType: "<f4",
			Shape: []int{6}},
		"|u1[2,3,10]":    {Kind: table.Fixed, DType: "|u1", Shape: []int{2, 3, 10}},
		"object (<i8[])": {Kind: table.List, DType: "<i8"},
		"object (str)":   {Kind: table.Text},
		"object (bytes)": {Kind: table.Binary},
	} {
		if got := numpyName(c); got != want {
			t.Errorf("%+v is %s, want %s", c, got, want)
		}
	}
}
