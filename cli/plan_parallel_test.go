package cli

import (
	"strings"
	"testing"
)

// Flags that divide a model wrongly are refused with what to do instead.
func TestDivisionFlagsRefused(t *testing.T) {
	for want, flags := range map[string][]string{
		"add --shard hsdp":                   {"--replicas", "2"},
		"--tensor-parallel -1: give 1":       {"--tensor-parallel=-1"},
		"16 layers cannot be divided into 5": {"--pipeline-parallel", "5"},
		"--devices finds a division":         {"--devices", "8x24GiB", "--fit", "--tensor-parallel", "2"},
		"choose one of 1, 2, 4, 8":           {"--tensor-parallel", "3"},
		"choose --ranks as a multiple of 8":  {"--tensor-parallel", "8", "--ranks", "12"},
		"has no experts":                     {"--expert-parallel", "2", "--ranks", "2"},
	} {
		flags = append(flags, "--preset", "llama-3.2-1b", "--seq", "64")
		if _, said, code := planned(t, flags...); code == exitOK || !strings.Contains(said, want) {
			t.Errorf("%v: exit %d, %q; want %q", flags, code, said, want)
		}
	}
}

// The answer is marked as an estimate, with its rules and the needs of each kind of stage.
func TestDivisionIsTold(t *testing.T) {
	args := []string{"--preset", "llama-3.2-1b", "--seq", "256", "--tensor-parallel", "2",
		"--pipeline-parallel", "4", "--gpu", "A100-80"}
	p, said, code := planned(t, args...)
	if code != exitOK || p.Estimate == nil || len(p.Estimate.Rules) != 3 || len(p.Ranks) != 3 ||
		p.Setup.Ranks != 8 {
		t.Fatalf("exit %d, %s: %+v, ranks %v", code, said, p.Estimate, p.Ranks)
	}
	_, text, _ := memroom(append([]string{"plan"}, args...)...)
	for _, want := range []string{"8 ranks (tensor 2, pipeline 4 with 4 micro-batches)",
		"note: estimate by tensor:", "note: estimate by pipeline:", "not included:",
		"first stage, with the embedding", "ranks 2 to 5", "last stage, with the head", "NCCL"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in %s", want, text)
		}
	}
}

// Groups and shards: --shard fsdp with groups is HSDP.
func TestGroupsAreHSDP(t *testing.T) {
	args := []string{"--preset", "llama-3.2-1b", "--seq", "64", "--ranks", "16"}
	one, _, _ := planned(t, append(args, "--shard", "fsdp", "--replicas", "4")...)
	two, _, _ := planned(t, append(args, "--shard", "hsdp", "--replicas", "4")...)
	three, _, _ := planned(t, append(args, "--shard", "fsdp")...)
	if one.AllocatedPeak != two.AllocatedPeak || one.AllocatedPeak <= three.AllocatedPeak ||
		!strings.Contains(one.Assumed, "16 ranks (hsdp, 4 groups)") {
		t.Errorf("%s, %s, over all %s: %s", one.AllocatedPeak, two.AllocatedPeak,
			three.AllocatedPeak, one.Assumed)
	}
}
