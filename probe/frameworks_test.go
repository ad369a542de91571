package probe

import (
	"regexp"
	"testing"

	"memroom/testenv"
)

// TestFrameworks runs a script under torchrun: the printed losses must not change by a bit, and
// every rank must be heard with all its steps. Trainers of one process are supervise's to test.
func TestFrameworks(t *testing.T) {
	const ranks, most = 2, 8
	python := testenv.Python(t, "torch")
	args := []string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
		script(t, "ddp_gloo.py")}
	j := runJob(t, python, Setup{}, nil, args...)
	if j.failed != nil {
		t.Fatalf("%v\n%s", j.failed, j.err)
	}
	losses := regexp.MustCompile(`LOSSES .*`)
	if got, want := losses.FindString(j.out), losses.FindString(bare(t, python,
		args...)); got != want || got == "" {
		t.Errorf("with the probe %q, without %q", got, want)
	}
	steps, heard := map[int]int64{}, map[int]bool{}
	for _, h := range j.heard {
		switch m := h.Message.(type) {
		case *Steps:
			for _, row := range m.Rows {
				steps[h.Conn.PID] = max(steps[h.Conn.PID], row.Step)
			}
		case *Hello:
			if m.Rank != nil {
				heard[*m.Rank] = true
			}
		case *Fault:
			t.Errorf("the probe broke: %+v", *m)
		}
	}
	if len(steps) != ranks || len(heard) != ranks {
		t.Errorf("%d processes told steps, ranks %v; want %d", len(steps), heard, ranks)
	}
	for pid, n := range steps {
		if n < most-1 || n > most {
			t.Errorf("process %d told %d steps, want %d", pid, n, most)
		}
	}
}
