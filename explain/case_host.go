package explain

import (
	"memroom/lazyregexp"
	"memroom/remedy"
	"memroom/trace"
)

// oneWorker: a worker of the loader was killed, and the text sets one or none: fewer cannot help.
func oneWorker(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	k, ok := f.key(Workers)
	if c.Kind != "torch_worker" || !onHost(c) || !ok || k.Number() > 1 {
		return judged{}, false
	}
	j := judged{cause: CauseUnknown, detail: "kept_arrays"}.
		also("%s: what the data set, a buffer or the program itself keeps fills it, not the number of workers", k.Text).
		saying("the kernel killed the only worker of the loader")
	j.cures = []remedy.ID{remedy.SmallerBuffer, remedy.KeepLess}
	j.typed = map[remedy.ID]string{remedy.SmallerBuffer: "watch -n 5 free -h   # if it rises while it runs: a smaller replay or cache size, uint8 instead of " +
		"float32",
		remedy.KeepLess: "bound what is kept from step to step: lists, caches, environments that are never closed"}
	return j, true
}

// triedLimit is what people write who gave a job more host memory.
var triedLimit = lazyregexp.New(`(?:mem\w*|ram|cpu|allocat\w*|request\w*|limit)[^.\n]{0,40}\b\d{2,4} ?g(?:i?b)?\b|\b\d{2,4} ?g(?:i?b)?\b[^.\n]{0,40}(?:mem\w*|ram|cpu)\b`)

// raisedInVain: the job's limit was raised, and reached again. A higher one is no cure that can be
// shown to be enough.
func raisedInVain(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	tried := f.inVain(triedLimit)
	if tried == "" || !onHost(c) || c.Requested != nil || len(c.Frames) > 0 ||
		has(c, trace.SignWorkerKill) ||
		c.Framework != "slurm" && c.Framework != "kubernetes" {
		return judged{}, false
	}
	j := judged{cause: CauseUnknown, detail: "limit"}.
		also("more was given already (%q): what it holds grows with the data or with time", short(tried)).
		saying("a higher limit was tried: it holds too much at once")
	j.cures = []remedy.ID{remedy.StreamData, remedy.KeepLess}
	j.typed = map[remedy.ID]string{remedy.StreamData: "do not make or read all samples before the first step: convert each when it is used, or once to " +
		"disk (LMDB, memmap, Arrow)",
		remedy.KeepLess: "fewer processes that prepare data, each with its own copy"}
	return j, true
}
