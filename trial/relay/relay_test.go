package relay

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"memroom/event"
	"memroom/trial"
)

// TestStreamSurvivesAnyCut: the program's bytes come out as they went in, wherever reading stops.
func TestStreamSurvivesAnyCut(t *testing.T) {
	var stream bytes.Buffer
	w := Writer{Out: &stream, ID: "a-1"}
	program := []string{"loss=0.", "5\n", "bar \x1e 10%\r", "\x1ememroom:b-1 {\"end\":{}}\n",
		"\x1ememroom:a-1 not json\n", "last line without its end \x1ememro"}
	w.Begin(Begin{Host: "node3", Run: "run7"})
	for i, text := range program {
		w.Happened(trial.Happening{Output: []byte(text), Step: -1})
		w.Happened(trial.Happening{Values: map[string]float64{"loss": float64(i), "x": math.NaN()},
			Step: i + 1})
	}
	w.Usage(trial.Usage{Host: 100 * event.MiB})
	w.Usage(trial.Usage{Host: 101 * event.MiB}) // hardly more: not written
	w.End(trial.Outcome{ExitCode: 3, OOM: true, Where: event.WhereGPU, PeakHost: 5 * event.GiB})
	if n := bytes.Count(stream.Bytes(), []byte(`"usage"`)); n != 1 {
		t.Errorf("memory was told %d times", n)
	}
	for seed := range uint64(200) {
		checkCut(t, stream.Bytes(), program, rand.New(rand.NewPCG(seed, 1)))
	}
}

func checkCut(t *testing.T, data []byte, program []string, random *rand.Rand) {
	t.Helper()
	p := Parser{ID: "a-1"}
	var output bytes.Buffer
	reports := 0
	for len(data) > 0 {
		n := min(len(data), 1+random.IntN(40))
		for _, h := range p.Feed(data[:n]) {
			output.Write(h.Output)
			if h.Values == nil {
				continue
			}
			if h.Values["loss"] != float64(reports) || !math.IsNaN(h.Values["x"]) {
				t.Fatalf("report %d: %v", reports, h.Values)
			}
			reports++
			if h.Step != reports {
				t.Fatalf("step %d, want %d", h.Step, reports)
			}
		}
		data = data[n:]
	}
	want := ""
	for _, text := range program {
		want += text
	}
	if output.String() != want {
		t.Fatalf("the program's output became %q, want %q", output.String(), want)
	}
	if reports != len(program) || p.Begun == nil || p.Begun.Host != "node3" || p.End == nil ||
		p.End.PeakHost != 5*event.GiB || !p.End.OOM || p.Usage.Host != 100*event.MiB {
		t.Fatalf("reports %d, begin %v, end %+v", reports, p.Begun, p.End)
	}
}
