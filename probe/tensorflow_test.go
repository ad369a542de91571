package probe

import (
	"fmt"
	"strings"
	"testing"

	"memroom/testenv"
)

func TestKerasFit(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "tensorflow")
	j := runJob(t, python, Setup{}, nil, script(t, "keras_fit.py"))
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	if want := bare(t, python, script(t, "keras_fit.py")); j.out != want || want == "" {
		t.Errorf("the losses differ with the probe:\n%s\nwithout:\n%s", j.out, want)
	}
	rows := allRows(t, j)
	if len(rows) < 5 || rows[len(rows)-1].Step != 20 {
		t.Errorf("%d rows, the last %+v; want 20 steps", len(rows), rows[max(0, len(rows)-1):])
	}
	var phases []string
	for _, p := range messages[*Phase](t, j) {
		phases = append(phases, p.Phase+map[bool]string{true: "+", false: "-"}[p.Begin])
	}
	if got := strings.Join(phases, " "); got != "eval+ eval- eval+ eval-" {
		t.Errorf("phases %q", got)
	}
}

// TestTensorFlowLoops: steps and phases of every way to write a loop, in one process.
func TestTensorFlowLoops(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "tensorflow")
	j := runJob(t, python, Setup{}, nil, script(t, "tf_kinds.py"))
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	if want := bare(t, python, script(t, "tf_kinds.py")); j.out != want || want == "" {
		t.Errorf("the losses differ with the probe:\n%s\nwithout:\n%s", j.out, want)
	}
	before := 0
	for _, c := range []struct {
		name        string
		least, most int
	}{ // another optimizer takes over when the one before has been silent for three steps
		{"eager", 12, 12}, {"compiled", 9, 12}, {"evaluated", 0, 0}, {"old optimizer", 9, 14},
		{"train_step", 12, 12}, {"train_on_batch", 9, 12}, {"strategy", 9, 12},
		{"by hand", 8, 16}, {"session", 12, 16},
	} {
		_, text, _ := strings.Cut(j.err, "counted "+c.name+" ")
		total := 0
		fmt.Sscan(text, &total)
		if made := total - before; made < c.least || made > c.most {
			t.Errorf("%s: %d steps, want %d to %d", c.name, made, c.least, c.most)
		}
		before = total
	}
	var phases []string
	for _, p := range messages[*Phase](t, j) {
		phases = append(phases, p.Phase+map[bool]string{true: "+", false: "-"}[p.Begin])
	}
	if got := strings.Join(phases, " "); got != "eval+ eval- save+ save-" {
		t.Errorf("phases %q", got)
	}
}
