package probe

import (
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

func TestTensorFlowLoops(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "tensorflow")
	j := runJob(t, python, Setup{}, nil, script(t, "tf_loop.py"))
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	if want := bare(t, python, script(t, "tf_loop.py")); j.out != want || want == "" {
		t.Errorf("the losses differ with the probe:\n%s\nwithout:\n%s", j.out, want)
	}
	rows := allRows(t, j)
	// The optimizer leads at first; the compiled function takes over when it has been silent for
	// three calls.
	if len(rows) == 0 || rows[len(rows)-1].Step < 12 || rows[len(rows)-1].Step > 15 {
		t.Errorf("%d rows, the last %+v; want 6 eager steps and most of 9 compiled ones", len(rows),
			rows[max(0, len(rows)-1):])
	}
}
