package explain

import (
	"strconv"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/remedy"
)

// workersOf are servers that start several processes, with how many.
var workersOf = lazyregexp.New(`\b(gunicorn|uwsgi|uvicorn|celery|hypercorn)\b[^\n]{0,60}?(?:\b|-w ?|--workers[ =])(\d{1,3}) ?(?:个)?(?:worker|process|$|\s)`)

// serverWorkers: a server runs several workers, and each holds a model of its own on the card.
func serverWorkers(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := workersOf.FindStringSubmatch(f.text)
	if m == nil || c.Where != event.WhereGPU || s.Asked > event.GiB || s.Full {
		return judged{}, false
	}
	n, _ := strconv.Atoi(m[2])
	if n < 2 {
		return judged{}, false
	}
	j := because(CauseNeighbour, "full_before", 0.7, "%s runs %d workers, and each loads the model for itself, on the first card unless told "+
		"otherwise", m[1], n).saying("%d workers of %s share it", n, m[1])
	j.cures = []remedy.ID{remedy.FreeNeighbour}
	j.typed = map[remedy.ID]string{remedy.FreeNeighbour: "one worker for each card (-w 1), with CUDA_VISIBLE_DEVICES=N of its own; threads or a queue for requests"}
	return j, true
}

// cardSaid is how much memory people say their card has.
var cardSaid = lazyregexp.New(`\b(?:gpus?|graphics cards?|cards?|vram)\b[^.\n]{0,30}?\b(\d{1,3}) ?(?:gb|gib|g)\b|\b(\d{1,3}) ?(?:gb|gib|g) (?:of )?(?:gpu|vram|card)`)

// beyondTheCardSaid: the message does not contain the card's size, but the user's text does, and
// the request alone is larger.
func beyondTheCardSaid(f *Facts, s Sums) (judged, bool) {
	m := cardSaid.FindStringSubmatch(f.text)
	if m == nil || s.Capacity > 0 || !onCard(f.Crash) || s.Asked < event.GiB {
		return judged{}, false
	}
	n, _ := strconv.Atoi(first(m[1:]...))
	if size := event.Bytes(n) * event.GiB; n == 0 || s.Asked <= size {
		return judged{}, false
	}
	j := because(CauseBatch, "oversized", 0.65, "%s were asked for at once, and the card has %d GB, as the text says", s.Asked, n).
		saying("one tensor alone is larger than the card")
	return j, true
}

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
