package explain

import (
	"memroom/event"
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

// idleSecondCard: a loader was asked to spread a model automatically over several cards, but one
// card is full and another is nearly empty.
func idleSecondCard(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if c.Where != event.WhereGPU || !s.Full || !f.says(`device_map="auto"`, `device_map='auto'`,
		"device_map=auto", "device_map: auto") {
		return judged{}, false
	}
	idle := idleCard(f, s)
	if idle == "" {
		return judged{}, false
	}
	j := because(CauseSetting, "idle_card", 0.7,
		"device_map=\"auto\" counts weights only, fills the first card and leaves %s nearly empty", idle).
		saying("the weights lie on this card while %s is nearly empty", idle)
	j.cures = []remedy.ID{remedy.DeviceMap}
	j.typed = map[remedy.ID]string{remedy.DeviceMap: `device_map="balanced_low_0"   # or max_memory={0: "` + gib(s.Capacity*6/10) +
		`GiB", 1: "` + gib(s.Capacity*9/10) + `GiB"}: room on the first card for activations`}
	return j, true
}

func gib(b event.Bytes) string { return rounded(max(1, float64(b)/float64(event.GiB))) }

// idleCard names a nearly empty card from a table in the text, while another card is full.
func idleCard(f *Facts, s Sums) string {
	for _, row := range cardRows(f.lines) {
		if row.size > 0 && row.size >= s.Capacity/2 && row.used < row.size/20 {
			return "card " + row.number
		}
	}
	return ""
}
