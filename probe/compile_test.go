package probe

import (
	"regexp"
	"strings"
	"testing"

	"memroom/testenv"
)

// TestCompiledAsWithoutTheProbe counts graph breaks and graphs of programs that torch.compile has
// compiled, and collects their warnings: they are what they are without the probe, and the steps
// are seen all the same.
func TestCompiledAsWithoutTheProbe(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	args := []string{script(t, "compiled_step.py"), "whole", "model", "optimizer", "call", "loss",
		"eval", "eager"}
	j := runJob(t, python, Setup{}, nil, args...)
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	want, errs := bareBoth(t, python, args...)
	got, wanted := strings.Split(j.out, "part "), strings.Split(want, "part ")
	if len(wanted) != 7 || len(got) != 7 {
		t.Fatalf("with the probe:\n%s\nwithout:\n%s", j.out, want)
	}
	for i, part := range wanted[1:] {
		if !strings.Contains(part, "\ngraphs [") {
			t.Errorf("no counts of the compiler: %s", part)
		}
		if got[i+1] != part {
			t.Errorf("with the probe:\n%s\nwithout:\n%s", got[i+1], part)
		}
	}
	if got := withoutTimes(j.err); got != withoutTimes(errs) {
		t.Errorf("on stderr with the probe:\n%s\nwithout:\n%s", got, withoutTimes(errs))
	}
	// Each part trains for 20 steps and they are counted on, so a part whose steps are not seen is
	// missing at the end: at most 100 are left. Not every step has a row, the quicker the fewer.
	if rows := allRows(t, j); len(rows) == 0 || rows[len(rows)-1].Step <= 100 {
		t.Errorf("of 120 steps these were seen: %v", rows)
	}
}

var logged = regexp.MustCompile(`(?m)^[WIE]\d+ [\d:.]+ \d+ [^\]]*\] (\[[^\]]*\] )?`)

// withoutTimes removes what torch's log puts before each line: time, process, number of the frame.
func withoutTimes(text string) string { return logged.ReplaceAllString(text, "") }

// TestCompiledStepsWithoutAWalk trains with several backward passes a step, which looked like steps
// that no hook saw: the probe never walks over the program's objects. It sees the steps, compiled
// ones too.
func TestCompiledStepsWithoutAWalk(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	for _, args := range [][]string{{"2", "0"}, {"3", "1"}} {
		args = append([]string{script(t, "compiled_heap.py")}, args...)
		j := runJob(t, python, Setup{}, nil, args...)
		if j.failed != nil {
			t.Fatalf("%v\n%s", j.failed, j.err)
		}
		if want := bare(t, python, args...); j.out != want {
			t.Errorf("%v with the probe:\n%s\nwithout:\n%s", args, j.out, want)
		}
		// a compiled step is known when the next pass begins, so the last one is not
		if rows := allRows(t, j); len(rows) == 0 || rows[len(rows)-1].Step < 22 {
			t.Errorf("%v: of 24 steps these were seen: %v", args, rows)
		}
	}
}
