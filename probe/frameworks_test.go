package probe

import (
	"regexp"
	"testing"

	"memroom/testenv"
)

// TestFrameworks runs unmodified scripts of trainers people use: the printed losses must not change
// by a bit, and every rank must be heard with its steps.
func TestFrameworks(t *testing.T) {
	losses := regexp.MustCompile(`LOSSES .*`)
	for name, c := range map[string]struct {
		needs []string
		args  func(t *testing.T) []string
		steps int64
		ranks int
	}{
		"hugging face trainer": {[]string{"torch", "transformers", "accelerate"},
			func(t *testing.T) []string {
				return []string{script(t, "hf_trainer.py"),
					t.TempDir()}
			}, 6, 1},
		"lightning": {[]string{"torch", "lightning"},
			func(t *testing.T) []string { return []string{script(t, "lightning_fit.py")} }, 16, 1},
		"torchrun, two ranks": {[]string{"torch"}, func(t *testing.T) []string {
			return []string{"-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
				script(t, "ddp_gloo.py")}
		}, 8, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			python := testenv.Python(t, c.needs...)
			j := runJob(t, python, Setup{}, nil, c.args(t)...)
			if j.failed != nil {
				t.Fatalf("%v\n%s", j.failed, j.err)
			}
			if got, want := losses.FindString(j.out), losses.FindString(bare(t, python,
				c.args(t)...)); got != want || got == "" {
				t.Errorf("with the probe %q, without %q", got, want)
			}
			steps, ranks := map[int]int64{}, map[int]bool{}
			for _, h := range j.heard {
				switch m := h.Message.(type) {
				case *Steps:
					for _, row := range m.Rows {
						steps[h.Conn.PID] = max(steps[h.Conn.PID], row.Step)
					}
				case *Hello:
					if m.Rank != nil {
						ranks[*m.Rank] = true
					}
				case *Fault:
					t.Errorf("the probe broke: %+v", *m)
				}
			}
			if len(steps) != c.ranks || c.ranks > 1 && len(ranks) != c.ranks {
				t.Errorf("%d processes told steps, ranks %v; want %d", len(steps), ranks, c.ranks)
			}
			for pid, n := range steps {
				if n < c.steps-1 || n > c.steps {
					t.Errorf("process %d told %d steps, want %d", pid, n, c.steps)
				}
			}
		})
	}
}
