package remedy

import (
	"strings"
	"testing"
)

// TestFlagsOfLightningsCommandLine: a log must show that the command line sets the Trainer; plans
// without a log name its flags.
func TestFlagsOfLightningsCommandLine(t *testing.T) {
	read, shown := everyFact(), everyFact()
	read[TrainerCLI], shown[TrainerCLI] = false, true
	for _, c := range []struct {
		id    ID
		facts map[Fact]bool
		want  string // begins so
	}{
		{MicroBatch, nil, "--trainer.accumulate_grad_batches=2"},
		{MicroBatch, shown, "--trainer.accumulate_grad_batches=2"},
		{MicroBatch, read, "trainer = Trainer(accumulate_grad_batches=2)"},
		{MixedPrecision, nil, "--trainer.precision=bf16-mixed"},
		{MixedPrecision, read, "Trainer(precision='bf16-mixed')"},
		{FSDP, read, "Trainer(strategy='fsdp')"},
		{DDPBucketView, read, "with LightningCLI: --trainer.strategy.gradient_as_bucket_view"},
	} {
		r, known := Find(c.id)
		if !known {
			t.Fatal(c.id)
		}
		how := r.howTo(Job{Framework: PyTorch, Trainer: Lightning, Work: Training,
			Facts: c.facts})
		if said := how.Args + how.Code; !strings.HasPrefix(said, c.want) {
			t.Errorf("%s: %q, want %q", c.id, said, c.want)
		}
	}
}
