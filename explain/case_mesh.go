package explain

import (
	"strconv"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// parametersSaid is how many parameters a program prints that its model has.
var parametersSaid = lazyregexp.New(`(\d+(?:\.\d+)?) {0,2}(billion|million|[bm]) ?(?:total |trainable )?param`)

// perWeight is what training in 32 bits with Adam keeps for each weight, in bytes.
const perWeight = 16

// notDivided: a compiled step needs far more than one core of a TPU has. Weights and states that
// every core holds as a whole are the first thing to look at.
func notDivided(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if c.Kind != "jax_exhausted" || !ofTPU.MatchString(c.Text) || s.Capacity == 0 ||
		2*s.Asked < 3*s.Capacity || !parametersSaid.MatchString(f.text) &&
		!f.says("fsdp", "mesh", "partition", "pjit", "shard") ||
		padded.MatchString(c.Text) {
		return judged{}, false
	}
	j := because(CauseModel, "", 0.55, "the compiled program needs %s where one core has %s", s.Asked, s.Capacity).
		saying("weights, optimizer states and a step's activations, as divided now, are %.1f times what one core has",
			float64(s.Asked)/float64(s.Capacity))
	if m := parametersSaid.FindStringSubmatch(f.text); m != nil {
		n, _ := strconv.ParseFloat(m[1], 64)
		scale := 1e9
		if m[2][0] == 'm' {
			scale = 1e6
		}
		if states := event.Bytes(n * scale * perWeight); states > s.Capacity {
			j = j.also("%s %s parameters with Adam in 32 bits are %s with their gradients: more than one core has, so they must be divided",
				m[1], m[2], states)
		}
	}
	j.words = []ownCure{{remedy.FSDP, "divide weights and optimizer states over all cores",
		"a mesh whose fsdp axis has all of jax.device_count(), with partition rules for parameters and opt_state"},
		{remedy.MicroBatch, "less in one step", "a smaller batch for each core, shorter sequences, rematerialisation (jax.checkpoint), bfloat16"}}
	return j, true
}
