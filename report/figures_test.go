package report

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"strings"
	"testing"

	"memroom/event"
	"memroom/fit"
	"memroom/plan"
	"memroom/remedy"
)

// TestSharesAreRounded: one decimal below ten percent.
func TestSharesAreRounded(t *testing.T) {
	for _, c := range []struct {
		part, whole float64
		want        string
	}{{0, 0, "0 %"}, {1, 0, "0 %"}, {1, -1, "0 %"}, {0, 10, "0.0 %"}, {1, 1000, "0.1 %"},
		{99, 1000, "9.9 %"}, {99.4, 1000, "9.9 %"}, {99.5, 1000, "10 %"}, {1, 10, "10 %"},
		{1, 3, "33 %"}, {5, 5, "100 %"}, {6, 5, "120 %"}} {
		if got := percent(c.part, c.whole); got != c.want {
			t.Errorf("%v of %v: %s, want %s", c.part, c.whole, got, c.want)
		}
	}
}

func TestNumbersForPeople(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 55047: "55,047",
		1234567: "1,234,567", -999: "-999", -1000: "-1,000", -123456: "-123,456"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for s, want := range map[float64]string{0: "0.0 s", 59.94: "59.9 s", 60: "1 min 0 s",
		3599: "59 min 59 s", 3600: "1 h 0 min", 90061: "25 h 1 min"} {
		if got := seconds(s); got != want {
			t.Errorf("%v: %s, want %s", s, got, want)
		}
	}
	for n, want := range map[event.Bytes]string{0: "-", 1: "1B", event.GiB: "1GiB"} {
		if got := orDash(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
	for n, want := range map[int]string{1: "1 step", 0: "0 steps", 2000: "2,000 steps"} {
		if got := counted(n, "step", "steps"); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestNamesOfFunctions(t *testing.T) {
	for name, want := range map[string]string{"forward": "forward", "f(x)": "f(x)",
		"at::native::add(Tensor const&)":      "at::native::add",
		"(anonymous namespace)::run(int)":     "run(int)",
		"c10::(anonymous namespace)::go(int)": "c10::go", "<lambda>": "<lambda>"} {
		if got := shortName(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestEventsOfTensorBoard: records with their checksums, and messages with the fields that
// TensorBoard reads, by number.
func TestEventsOfTensorBoard(t *testing.T) {
	var out bytes.Buffer
	board := NewTensorBoard(&out, 12.5)
	board.Scalar("loss", 300, 13, 0.25)
	board.Text("note", 7, 14, "a sentence")
	if board.Err() != nil {
		t.Fatal(board.Err())
	}
	var got []string
	for data := out.Bytes(); len(data) > 0; {
		size := binary.LittleEndian.Uint64(data)
		checkMasked(t, data[:8], data[8:])
		message := data[12 : 12+size]
		checkMasked(t, message, data[12+size:])
		got = append(got, fields(message, ""))
		data = data[16+size:]
	}
	want := []string{"1=12.5 3=brain.Event:2", "1=13 2=300 5.1.1=loss 5.1.2=0.25",
		"1=14 2=7 5.1.1=note 5.1.9.1.1=text 5.1.8.1=7 5.1.8.2.2.1=1 5.1.8.8=a sentence"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	broken := NewTensorBoard(failing{}, 1)
	broken.Scalar("x", 1, 1, 1)
	if !errors.Is(broken.Err(), errFull) {
		t.Errorf("a full disk: %v", broken.Err())
	}
}

var errFull = errors.New("full")

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errFull }

// checkMasked compares with the checksum of TensorFlow's records.
func checkMasked(t *testing.T, data, stored []byte) {
	t.Helper()
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	if want := (sum>>15 | sum<<17) + 0xa282ead8; binary.LittleEndian.Uint32(stored) != want {
		t.Errorf("the checksum of %q is %x, want %x", data, stored[:4], want)
	}
}

// nested are the fields that are messages themselves.
var nested = map[string]bool{"5": true, "5.1": true, "5.1.9": true, "5.1.9.1": true, "5.1.8": true,
	"5.1.8.2": true, "5.1.8.2.2": true}

// fields writes a message of protocol buffers as its fields.
func fields(data []byte, above string) string {
	var list []string
	for len(data) > 0 {
		key, n := binary.Uvarint(data)
		data = data[n:]
		name := fmt.Sprint(above, key>>3)
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(data)
			list = append(list, fmt.Sprintf("%s=%d", name, v))
			data = data[n:]
		case 1:
			v := math.Float64frombits(binary.LittleEndian.Uint64(data))
			list = append(list, fmt.Sprintf("%s=%v", name, v))
			data = data[8:]
		case 5:
			v := math.Float32frombits(binary.LittleEndian.Uint32(data))
			list = append(list, fmt.Sprintf("%s=%v", name, v))
			data = data[4:]
		case 2:
			size, n := binary.Uvarint(data)
			inner := data[n : n+int(size)]
			if nested[name] {
				list = append(list, fields(inner, name+"."))
			} else {
				list = append(list, name+"="+string(inner))
			}
			data = data[n+int(size):]
		}
	}
	return strings.Join(list, " ")
}

// TestPictureOfAStep: the highest of each column in eight rows of eighths, the phases below.
func TestPictureOfAStep(t *testing.T) {
	p := &plan.Prediction{}
	for i := range 72 {
		phase := "forward"
		if i >= 36 {
			phase = "backward"
		}
		if i >= 70 {
			phase = "optimizer"
		}
		p.Series = append(p.Series, plan.SeriesPoint{Op: i, Phase: phase,
			Allocated: event.Bytes(min(i, 64)) * event.MiB})
	}
	var out bytes.Buffer
	NewText(&out, false).planTimeline(p)
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 11 {
		t.Fatalf("%d lines: %s", len(lines), out.String())
	}
	for row, line := range lines[2:10] {
		from := (7 - row) * 8 // cells below are full, those above empty
		want := "  " + strings.Repeat(" ", from+1) + "▁▂▃▄▅▆▇" + strings.Repeat("█", 72-from-8)
		if row == 0 {
			want += " 64MiB"
		}
		if line != want {
			t.Errorf("row %d: %q, want %q", row, line, want)
		}
	}
	want := "  forward" + strings.Repeat(" ", 29) + "backward" + strings.Repeat(" ", 26) + "o "
	if lines[10] != want {
		t.Errorf("%q, want %q", lines[10], want)
	}
	out.Reset()
	NewText(&out, false).planTimeline(&plan.Prediction{Series: p.Series[:3]})
	if out.Len() > 0 {
		t.Errorf("three points: %q", out.String())
	}
	NewText(&out, false).planTimeline(&plan.Prediction{Series: p.Series[:4]})
	if out.Len() == 0 {
		t.Error("four points have no picture")
	}
}

// TestBarOfAPage: parts in percent of the card, or of the need where that is more.
func TestBarOfAPage(t *testing.T) {
	p := &plan.Prediction{High: 50, Categories: map[string]event.Bytes{"context": 5, "weights": 20,
		"loss": 0}}
	words := func() string {
		text := fmt.Sprintf("%d %.1f", planWhole(p), planCardEnd(p))
		for _, part := range planParts(p) {
			text += fmt.Sprintf(" %s %.1f", part.Name, part.Width)
		}
		return text + " " + planWhere(p)
	}
	if got := words(); got != "50 0.0 weights 40.0 context 10.0 " {
		t.Errorf("no card: %s", got)
	}
	p.Card = &plan.Card{Name: "A10", Total: 100}
	if got := words(); got != "100 100.0 weights 20.0 context 5.0 A10 (100B)" {
		t.Errorf("a larger card: %s", got)
	}
	p.Card.Total = 25
	if got := words(); got != "50 50.0 weights 40.0 context 10.0 A10 (25B)" {
		t.Errorf("a smaller card: %s", got)
	}
	p.Card.Name = "25B"
	if got := planWhere(p); got != "25B" {
		t.Errorf("a card by its size: %s", got)
	}
	p.Card, p.AllocLimit = nil, event.GiB
	if got := planWhere(p); !strings.Contains(got, "1GiB") {
		t.Errorf("a limit: %s", got)
	}
}

// TestWaysToShare: in words and in flags that plan takes.
func TestWaysToShare(t *testing.T) {
	for _, c := range []struct {
		way          plan.Way
		shard, flags string
	}{
		{plan.Way{Cards: 1}, "-", ""},
		{plan.Way{Cards: 1, Checkpointing: true}, "-", " --checkpointing"},
		{plan.Way{Cards: 4, Shard: "fsdp"}, "fsdp", " --shard fsdp --ranks 4"},
		{plan.Way{Cards: 2}, "-", " --ranks 2"},
		{plan.Way{Cards: 8, Shard: "zero3", Division: plan.Division{Tensor: 2, Sequence: true, Context: 4},
			Offload: []string{"optimizer", "parameters"}, Checkpointing: true},
			"zero3, tensor 2, sequence, context 4, optimizer, parameters in host memory",
			" --shard zero3 --ranks 8 --tensor-parallel 2 --sequence-parallel --loss-parallel" +
				" --context-parallel 4 --offload optimizer,parameters --checkpointing"},
		{plan.Way{Cards: 1, Division: plan.Division{Tensor: 1, Context: 1}}, "-", ""},
	} {
		if got := wayShard(c.way); got != c.shard {
			t.Errorf("%q, want %q", got, c.shard)
		}
		if got := wayFlags(c.way); got != c.flags {
			t.Errorf("%q, want %q", got, c.flags)
		}
	}
}

// TestChangesAloneAreShown: next to changes that are needed, or where nothing helps; not where it
// fits as it is.
func TestChangesAloneAreShown(t *testing.T) {
	rung := []plan.Rung{{ID: remedy.MicroBatch, Saves: event.GiB, DevicePeak: 2 * event.GiB,
		Slowdown: 1.25, Pieces: 2, Fits: true}}
	for name, c := range map[string]struct {
		ladder plan.Ladder
		rungs  int // how often the remedy stands there
	}{
		"fits as it is": {plan.Ladder{Fits: true, Alone: rung}, 0},
		"with a change": {plan.Ladder{Fits: true, Alone: rung, Rungs: rung,
			Setup: &plan.Setup{}}, 2},
		"nothing helps":        {plan.Ladder{Alone: rung}, 1},
		"nothing at all":       {plan.Ladder{}, 0},
		"a change, none alone": {plan.Ladder{Fits: true, Rungs: rung, Setup: &plan.Setup{}}, 1},
	} {
		c.ladder.After = &plan.Prediction{}
		var out bytes.Buffer
		if err := Ladder(&out, &c.ladder, false); err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%-22s %12s %12s %9.2fx", remedy.MicroBatch+" x2", "1GiB", "2GiB", 1.25)
		if got := strings.Count(out.String(), line); got != c.rungs {
			t.Errorf("%s: %d times in\n%s", name, got, out.String())
		}
	}
}

// TestTimesAsLong: next to an attempt without remedies that made enough steps.
func TestTimesAsLong(t *testing.T) {
	now := fit.Tried{StepMS: 30}
	plain := fit.Tried{StepMS: 20, Steps: 3}
	with := func(change func(*fit.Tried)) fit.Tried {
		b := plain
		change(&b)
		return b
	}
	for name, c := range map[string]struct {
		now    fit.Tried
		before []fit.Tried
		want   float64
	}{
		"none before":      {now, nil, 0},
		"one":              {now, []fit.Tried{plain}, 1.5},
		"too few steps":    {now, []fit.Tried{with(func(b *fit.Tried) { b.Steps = 2 })}, 0},
		"not measured":     {now, []fit.Tried{with(func(b *fit.Tried) { b.StepMS = 0 })}, 0},
		"now not":          {fit.Tried{}, []fit.Tried{plain}, 0},
		"ran out now":      {fit.Tried{StepMS: 30, OutOf: "gpu"}, []fit.Tried{plain}, 0},
		"the first counts": {now, []fit.Tried{plain, {StepMS: 1, Steps: 9}}, 1.5},
		"remedies before": {now, []fit.Tried{with(func(b *fit.Tried) {
			b.Remedies = []fit.Remedy{{}}
		})}, 0},
	} {
		if got := timesAsLong(c.now, c.before); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestWhatIsWorthKeeping: applied in the process, or a setting of a card that was used; not what
// is in the command already.
func TestWhatIsWorthKeeping(t *testing.T) {
	said := []fit.Sentence{{ID: remedy.MicroBatch, Kind: "applied"}, {ID: remedy.Checkpointing,
		Kind: "declined"}}
	remedies := []fit.Remedy{{ID: remedy.MicroBatch, Level: remedy.LevelProcess},
		{ID: remedy.Checkpointing, Level: remedy.LevelProcess},
		{ID: remedy.ExpandableSegments, Level: remedy.LevelEnv},
		{ID: remedy.OptimizerFused, Level: remedy.LevelArgs}}
	for reserved, want := range map[event.Bytes]string{
		0: fmt.Sprint(remedy.MicroBatch),
		1: fmt.Sprint(remedy.MicroBatch, " ", remedy.ExpandableSegments)} {
		tried := fit.Tried{Said: said, Remedies: remedies, Reserved: reserved}
		var got []string
		for _, r := range keepable(tried) {
			got = append(got, string(r.ID))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%d reserved: %v, want %s", reserved, got, want)
		}
		if len(tried.Remedies) != 4 || tried.Remedies[1].ID != remedy.Checkpointing {
			t.Error("the record itself was changed")
		}
	}
}
