package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/remedy"
)

// cutBar is a progress bar that a kill cut short: its words, how far it came, and of how many.
var cutBar = re(`^(.{0,60}?)\d{1,3}% ?\|[^|]*\|\s*(\d+)/(\d+) \[[^\]]*\](.{0,40}?)\s*killed`)

// itemsHeld: the kernel killed a program while a bar counted items, more than once at about the
// same place: memory fills with what is read, and all of it needs as many times more.
func itemsHeld(f *Facts, _ Sums) (judged, bool) {
	c := f.Crash
	if !onHost(c) || len(c.Frames) > 0 {
		return judged{}, false
	}
	var shares []float64
	var last []string
	for line := range strings.Lines(f.text) {
		m := cutBar.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || strings.Contains(m[0], "loss") || containsAny(m[1], []string{"epoch", "step",
			"train"}) {
			continue
		}
		n, _ := strconv.ParseFloat(m[2], 64)
		all, _ := strconv.ParseFloat(m[3], 64)
		if n > 0 && n < all {
			shares, last = append(shares, n/all), m
		}
	}
	if len(shares) < 2 || slices.Max(shares) > 2*slices.Min(shares) {
		return judged{}, false
	}
	times := 1 / slices.Max(shares)
	j := because(CauseHostData, "kept_arrays", 0.6,
		"%d attempts were killed at about the same item (the last at %s of %s): memory fills as items are read, and all of them "+
			"need about %.1f times what there is", len(shares), last[2], last[3], times).
		saying("what is read stays in memory until it is full")
	j.words = []ownCure{{remedy.StreamData, "read fewer or smaller items, or each one when it is used",
		fmt.Sprintf("less than %.0f %% of them, or half the width and height of images, before they are kept; uint8 instead of float32", 100*slices.Min(shares))},
		{remedy.RaiseLimit, fmt.Sprintf("about %.0f times the memory, or swap on a fast disk", max(2, times+0.5)), "free -h   # what there is now"}}
	return j, true
}

// saidVRAM is the memory of a card as people and drivers write it.
var saidVRAM = re(`\b(\d{2,4}) ?(?:gb|gib|g)\b(?: of)? (?:v?ram|memory)?[^.\n]{0,24}\b(?:available to|for|to) the gpu|vram: (\d{4,7})m\b|(\d{4,7})m of vram\b|(?:gpu|vram|uma)\b[^.\n]{0,20}\b(?:set to|allocat\w+|reserv\w+|carve\w*)[^.\n]{0,12}\b(\d{2,3}) ?gb`)

// seesLess: the runtime's figure of the card is far below what the system says that the card has.
func seesLess(f *Facts, s Sums) (judged, bool) {
	if f.Crash.Where != event.WhereGPU || s.Capacity == 0 || f.Crash.Capped || f.Crash.Pooled {
		return judged{}, false
	}
	var most event.Bytes
	for _, m := range saidVRAM.FindAllStringSubmatch(f.text, 20) {
		gib, _ := strconv.Atoi(first(m[1], m[4]))
		mib, _ := strconv.Atoi(first(m[2], m[3]))
		most = max(most, event.Bytes(gib)*event.GiB, event.Bytes(mib)*event.MiB)
	}
	if float64(most) < 1.6*float64(s.Capacity) {
		return judged{}, false
	}
	j := because(CauseSetting, "other_card", 0.7, "the text speaks of %s for the GPU, and the message counts %s", most, s.Capacity).
		saying("the runtime sees only %s of the %s that the GPU is meant to have", s.Capacity, most)
	j.words = []ownCure{{remedy.RightDevice, "find out why it sees so little before the program is changed",
		"python -c \"import torch; print(torch.cuda.get_device_properties(0), torch.cuda.mem_get_info())\""},
		{remedy.OtherVersion, "a newer driver, kernel and build of PyTorch for this very chip",
			"with memory that host and GPU share, the kernel's limit on it (ttm.pages_limit, amdgpu.gttsize) counts too"}}
	return j, true
}

// shapeLine is a shape of four numbers that a program printed.
var shapeLine = re(`(?:size|shape|top|blob)\w*[^\d\n\[(]{0,12}[\[(]?(\d{1,6})[, x]+(\d{1,5})[, x]+(\d{1,5})[, x]+(\d{1,5})\b`)

// printedLast: the last tensor whose shape a program printed before the end is a large part of a
// card by itself.
func printedLast(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	if !onCard(c) || s.Asked > 0 || len(c.Frames) > 0 {
		return judged{}, false
	}
	for _, l := range slices.Backward(f.lines) {
		m := shapeLine.FindStringSubmatch(strings.ToLower(l.Text))
		if m == nil {
			continue
		}
		bytes := event.Bytes(4 * product(m[1:]))
		n, _ := strconv.Atoi(m[1])
		if bytes < event.GiB || n < 2 {
			return judged{}, false
		}
		j := because(CauseBatch, "one_sample", 0.7, "line %d prints a tensor of %s: %s in 32 bits, and as much again for each layer of that size and for gradients",
			l.Number, strings.Join(m[1:], " x "), bytes).
			saying("a batch of %s samples of %s is %s before anything is computed", m[1], strings.Join(m[2:], " x "), bytes)
		less := strconv.Itoa(max(1, n/64))
		where := "where the batch is set"
		if f.says("prototxt", "caffe") {
			where = "batch_size: " + less + " in that layer of the prototxt; test_iter times as large"
		}
		j.words = []ownCure{{remedy.MicroBatch, "a batch of " + less + " or so instead of " + m[1], where}}
		return j, true
	}
	return judged{}, false
}

// counted are the images that people say they have.
var counted = re(`\b(\d{1,3}(?:[ ,]?\d{3})+|\d{2,6}) (?:[a-z-]+ )?(?:photos?|images?|pictures?|frames|views|scans)\b`)

// imagesKept: what is allocated is so many images of a plausible size, far beyond the card.
func imagesKept(f *Facts, s Sums) (judged, bool) {
	c := f.Crash
	m := counted.FindStringSubmatch(f.Said.Of + f.Said.Near)
	if m == nil || c.Over == nil || s.Capacity == 0 {
		return judged{}, false
	}
	n, _ := strconv.Atoi(strings.NewReplacer(",", "", " ", "").Replace(m[1]))
	if n < 50 {
		return judged{}, false
	}
	each := *c.Over / event.Bytes(n)
	if each < event.MiB || each > 128*event.MiB {
		return judged{}, false
	}
	j := because(CauseHostData, "data_on_card", 0.55,
		"%s for %s images are %s each, what one of %.1f megapixels takes in 32 bits: it looks as if all of them lie on the card",
		*c.Over, thousands(int64(n)), each, float64(each)/12e6).
		saying("all images seem to be kept on the card, and the driver moved %s of them to host memory", *c.Over-s.Capacity)
	j.words = []ownCure{{remedy.StreamData, "keep the images in host memory", "Gaussian splatting: --data_device cpu; elsewhere .to(device) on one image where it is used"},
		{remedy.SmallerImage, "half the width and height of the images", "Gaussian splatting: -r 2"}}
	return j, true
}

// pointsTrained: a message without a traceback stands in a text about points that are trained.
func pointsTrained(f *Facts, _ Sums) (judged, bool) {
	if len(f.Crash.Frames) > 0 {
		return judged{}, false // the stages of a traceback ask for more
	}
	return byPoints(f.Crash, f.Hints)
}
