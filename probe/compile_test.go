package probe

import (
	"regexp"
	"testing"

	"memroom/testenv"
)

// TestCompiledAsWithoutTheProbe counts graph breaks and graphs of programs that torch.compile has
// compiled, and collects their warnings: they are what they are without the probe, and the steps
// are seen all the same.
func TestCompiledAsWithoutTheProbe(t *testing.T) {
	t.Parallel()
	python := testenv.Python(t, "torch")
	for _, part := range []string{"whole", "model", "optimizer", "call", "loss", "eval"} {
		t.Run(part, func(t *testing.T) {
			j := runJob(t, python, Setup{}, nil, script(t, "compiled_step.py"), part, "eager")
			if j.failed != nil {
				t.Fatalf("%v\n%s", j.failed, j.err)
			}
			want, errs := bareBoth(t, python, script(t, "compiled_step.py"), part, "eager")
			if j.out != want {
				t.Errorf("with the probe:\n%s\nwithout:\n%s", j.out, want)
			}
			if got := withoutTimes(j.err); got != withoutTimes(errs) {
				t.Errorf("on stderr with the probe:\n%s\nwithout:\n%s", got, withoutTimes(errs))
			}
			if rows := allRows(t, j); len(rows) == 0 || rows[len(rows)-1].Step < 15 {
				t.Errorf("of 20 steps these were seen: %v", rows)
			}
		})
	}
}

var logged = regexp.MustCompile(`(?m)^[WIE]\d+ [\d:.]+ \d+ [^\]]*\] (\[[^\]]*\] )?`)

// withoutTimes removes what torch's log puts before each line: time, process, number of the frame.
func withoutTimes(text string) string { return logged.ReplaceAllString(text, "") }
