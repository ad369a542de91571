package explain

import (
	"memroom/lazyregexp"
	"memroom/remedy"
)

// windowSaid are functions that work through a large input in windows.
var windowSaid = lazyregexp.New(`\b(sliding_window_inference|slide_inference|predict_sliding_window\w*)\b`)

// windowsJoined: a traceback that was cut down to a line speaks of windows that are put together.
func windowsJoined(f *Facts, _ Sums) (judged, bool) {
	m := windowSaid.FindStringSubmatch(f.text)
	if m == nil || !onCard(f.Crash) || len(f.Crash.Frames) > 0 || !f.says("torch.zeros(", "count_map",
		"output_image") {
		return judged{}, false
	}
	j := because(CauseBatch, "eval_window", 0.65, "the line stands in %s, which puts the windows of one input together on the card",
		m[1])
	if m[1] == "sliding_window_inference" {
		j.typed = map[remedy.ID]string{remedy.WindowOnHost: "sliding_window_inference(..., sw_device='cuda', device='cpu')"}
	}
	return j, true
}
