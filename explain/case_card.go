package explain

import (
	"memroom/remedy"
)

// otherCardMeant: the person names a card that is far larger than the one that is full.
func otherCardMeant(f *Facts, s Sums) (judged, bool) {
	if s.Named == nil {
		return judged{}, false
	}
	j := because(CauseSetting, "other_card", 0.8,
		"the full card has %s, and line %d speaks of %s with %s", s.Capacity, s.Named.Line, s.Named.Name,
		s.Named.Size).
		saying("the job runs on another card than the %s that is meant", s.Named.Name)
	j.cures = []remedy.ID{remedy.RightDevice}
	j.typed = map[remedy.ID]string{remedy.RightDevice: "nvidia-smi -L   # then CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=N before the command: " +
		"CUDA counts the fastest card first, nvidia-smi by slot"}
	return j, true
}
