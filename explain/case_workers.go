package explain

import (
	"strconv"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// poolShare matches the share of the card that Paddle's pool may take, as its message prints it.
var poolShare = lazyregexp.New(`flags_fraction_of_gpu_memory_to_use is (0\.\d+) now`)

// shareIsSmall: the pool is full at a share of the card that leaves much of it unused.
func shareIsSmall(f *Facts, _ Sums) (judged, bool) {
	m := poolShare.FindStringSubmatch(f.text)
	if m == nil || !onCard(f.Crash) {
		return judged{}, false
	}
	share, _ := strconv.ParseFloat(m[1], 64)
	if share == 0 || share > 0.8 {
		return judged{}, false
	}
	j := because(CauseSetting, "own_cap", 0.65, "FLAGS_fraction_of_gpu_memory_to_use is %s: Paddle's pool takes that share of the card first", m[1]).
		saying("its pool was sized for %.0f %% of the card", 100*share)
	j.words = []ownCure{{remedy.RaiseLimit, "let the pool have the rest of the card",
		"FLAGS_fraction_of_gpu_memory_to_use=0.9 instead of " + m[1] + ", or FLAGS_allocator_strategy=auto_growth, before the command"}}
	j.cures = []remedy.ID{remedy.MicroBatch}
	return j, true
}
