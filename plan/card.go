package plan

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"memroom/event"
	"memroom/tape"
)

// Card is a GPU as far as predictions go.
type Card struct {
	Name       string      `json:"name"`
	Total      event.Bytes `json:"total"` // what a process can use when the card is otherwise idle
	SMs        int64       `json:"sms,omitempty"`
	Capability int         `json:"capability,omitempty"` // compute capability times ten
	// beyond the allocator: context, kernels, library handles
	Context event.Bytes `json:"context,omitempty"`
	Doubt   event.Bytes `json:"doubt,omitempty"` // how far Context may be off, either way
	// how much less than Context the least of the cards it stands for takes
	Less     event.Bytes `json:"less,omitempty"`
	DNN      event.Bytes `json:"dnn,omitempty"`    // added once cuDNN is used
	BLAS     event.Bytes `json:"blas,omitempty"`   // workspace of cuBLAS, one a thread
	BLASLt   event.Bytes `json:"blaslt,omitempty"` // workspace of cuBLASLt, one a thread
	Measured bool        `json:"measured"`
	Sized    bool        `json:"sized,omitempty"` // only the size was given
	// set aside for the screen or, on boards such as Jetson, for the host
	Shared event.Bytes `json:"shared,omitempty"`
	Like   string      `json:"like,omitempty"` // known cards of that size
}

// The H200 was measured: 750.8 MiB beyond the allocator without cuDNN, 766.8 MiB with it, in 44 of
// 47 runs; three convolutional networks took 2 or 4 MiB more.
const (
	hopperContext = 787283968 * event.Bytes(1)
	hopperDNN     = 16 * event.MiB
)

// On other cards the bare context is computed: the driver sets memory aside for every thread that
// can be resident. An H200 (132 multiprocessors of 2048 threads) takes 619 MiB, an RTX 6000 Ada
// (142 of 1536) 426 MiB with torch 2.10 (unslothai/unsloth-zoo#1053), an RTX 3090 (82 of 1536) 256
// MiB with torch 2.7 (invoke-ai/InvokeAI#9413), a Titan V (80 of 2048) 319 MiB without any library
// (pytorch/pytorch#28394): 2.0 to 2.4 KiB a thread. Kernels and libraries that training loads came
// to 132 MiB on the H200; elsewhere they were not measured.
const (
	threadContext      = 2150 * event.Bytes(1)
	threadContextDoubt = 300 * event.Bytes(1)
	kernelBytes        = 132 * event.MiB
	kernelDoubt        = 66 * event.MiB
)

// cards are the GPUs known by name, of those that share a beginning the usual one first. Totals are
// what the driver reports on an idle card.
var cards = []Card{
	{Name: "H200", Total: 150109880320, SMs: 132, Capability: 90, Measured: true},
	{Name: "H100", Total: 81079 * event.MiB, SMs: 132, Capability: 90},
	{Name: "H100-PCIe", Total: 81079 * event.MiB, SMs: 114, Capability: 90},
	{Name: "H100-NVL", Total: 95000 * event.MiB, SMs: 132, Capability: 90},
	{Name: "GH200", Total: 97000 * event.MiB, SMs: 132, Capability: 90},
	{Name: "H20", Total: 97000 * event.MiB, SMs: 78, Capability: 90},
	{Name: "B200", Total: 182000 * event.MiB, SMs: 148, Capability: 100},
	{Name: "A100-80", Total: 81050 * event.MiB, SMs: 108, Capability: 80},
	{Name: "A100-40", Total: 40330 * event.MiB, SMs: 108, Capability: 80},
	{Name: "A30", Total: 24060 * event.MiB, SMs: 56, Capability: 80},
	{Name: "A10", Total: 22502 * event.MiB, SMs: 72, Capability: 86},
	{Name: "A10G", Total: 22502 * event.MiB, SMs: 80, Capability: 86},
	{Name: "A40", Total: 45403 * event.MiB, SMs: 84, Capability: 86},
	{Name: "A6000", Total: 48533 * event.MiB, SMs: 84, Capability: 86},
	{Name: "A5000", Total: 24240 * event.MiB, SMs: 64, Capability: 86},
	{Name: "A4000", Total: 16100 * event.MiB, SMs: 48, Capability: 86},
	{Name: "L4", Total: 22565 * event.MiB, SMs: 58, Capability: 89},
	{Name: "L40", Total: 45495 * event.MiB, SMs: 142, Capability: 89},
	{Name: "L40S", Total: 45495 * event.MiB, SMs: 142, Capability: 89},
	{Name: "RTX6000Ada", Total: 48506 * event.MiB, SMs: 142, Capability: 89},
	{Name: "RTX5090", Total: 32100 * event.MiB, SMs: 170, Capability: 120},
	{Name: "RTX5080", Total: 15990 * event.MiB, SMs: 84, Capability: 120},
	{Name: "RTX5070Ti", Total: 15990 * event.MiB, SMs: 70, Capability: 120},
	{Name: "RTX5070", Total: 11990 * event.MiB, SMs: 48, Capability: 120},
	{Name: "RTX4090", Total: 24080 * event.MiB, SMs: 128, Capability: 89},
	{Name: "RTX4080", Total: 15990 * event.MiB, SMs: 76, Capability: 89},
	{Name: "RTX4070Ti", Total: 11990 * event.MiB, SMs: 60, Capability: 89},
	{Name: "RTX4070", Total: 11990 * event.MiB, SMs: 46, Capability: 89},
	{Name: "RTX4060Ti-16", Total: 15990 * event.MiB, SMs: 34, Capability: 89},
	{Name: "RTX4060", Total: 7800 * event.MiB, SMs: 24, Capability: 89},
	{Name: "RTX3090Ti", Total: 24250 * event.MiB, SMs: 84, Capability: 86},
	{Name: "RTX3090", Total: 24250 * event.MiB, SMs: 82, Capability: 86},
	{Name: "RTX3080", Total: 9990 * event.MiB, SMs: 68, Capability: 86},
	{Name: "RTX3070", Total: 7970 * event.MiB, SMs: 46, Capability: 86},
	{Name: "RTX3060", Total: 11990 * event.MiB, SMs: 28, Capability: 86},
	{Name: "RTX2080Ti", Total: 11010 * event.MiB, SMs: 68, Capability: 75},
	{Name: "RTX8000", Total: 48500 * event.MiB, SMs: 72, Capability: 75},
	{Name: "V100-32", Total: 32480 * event.MiB, SMs: 80, Capability: 70},
	{Name: "V100-16", Total: 16150 * event.MiB, SMs: 80, Capability: 70},
	{Name: "P100", Total: 16270 * event.MiB, SMs: 56, Capability: 60},
	{Name: "T4", Total: 14910 * event.MiB, SMs: 40, Capability: 75},
}

// DefaultCard is what a prediction assumes where only a size, or nothing, is given.
func DefaultCard() Card { return cards[0].filled() }

// Cards lists the known cards.
func Cards() []Card {
	list := slices.Clone(cards)
	for i := range list {
		list[i] = list[i].filled()
	}
	return list
}

// FindCard reads --gpu: a card by any of its usual names (4090, RTX 4090, A100-80GB, NVIDIA H100
// 80GB HBM3), or the size of the whole card, in GiB where no unit is given.
func FindCard(text string) (Card, error) {
	if card, ok := namedCard(text); ok {
		return card.filled(), nil
	}
	if several.MatchString(strings.TrimSpace(text)) {
		return Card{}, fmt.Errorf("--gpu names one card: --devices %s plans several", text)
	}
	size, err := event.ParseBytes(text)
	bare := allDigits(text)
	if bare && size < maxBareSize {
		size, bare = size*event.GiB, false
	}
	if err != nil || bare {
		known := append(names(cards), strings.Fields(strings.ReplaceAll(cardNames(), "RTX", ""))...)
		if near := event.Nearest(text, known); near != "" {
			return Card{}, fmt.Errorf("no card is known by the name %q, did you mean %q? A size such as "+
				"24GiB will do too", text, strings.TrimSuffix(near, ","))
		}
		return Card{}, fmt.Errorf("card %q is neither a known name (%s) nor a size such as 24GiB",
			text, cardNames())
	}
	if size < event.GiB {
		return Card{},
			fmt.Errorf("a card of %s is too small to train on: the CUDA context alone takes %s on the H200. "+
				"Give the whole card, 1GiB or more (24GiB), or cap the allocator alone (--alloc-limit %s)",
				size, DefaultCard().Context, size)
	}
	return cardOfSize(size), nil
}

// maxBareSize is the number below which a size without a unit counts GiB: no card has more.
const maxBareSize = 1000

// namedCard finds a card by one of its usual names: its own, without RTX before it, with its size
// behind it, with the words of its maker and its board around it, or the beginning of it.
func namedCard(text string) (Card, bool) {
	key := cardKey(text)
	if key == "" || strings.Contains(key, "laptop") {
		return Card{}, false
	}
	for _, c := range cards {
		own := cardKey(c.Name)
		size := fmt.Sprint(c.nominal())
		for _, k := range []string{own, strings.TrimPrefix(own, "rtx")} {
			if key == k || key == k+size || key == "rtx"+k || key == "rtx"+k+size {
				return c, true
			}
		}
	}
	for _, c := range cards { // the first of several is the largest or the usual one
		own := cardKey(c.Name)
		if len(key) >= shortestName && !allDigits(key) && strings.HasPrefix(own, key) ||
			strings.HasPrefix(strings.TrimPrefix(own, "rtx"), key+"ti") {
			return c, true
		}
	}
	if board := strings.ReplaceAll(key, "pcie", ""); board != key {
		return namedCard(board)
	}
	return Card{}, false
}

// shortestName is how many letters of a name must be there to mean the card.
const shortestName = 2

func allDigits(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

// nominal is the size that the card is sold with, in GiB.
func (c Card) nominal() int64 {
	for _, size := range []int64{8, 10, 11, 12, 16, 24, 32, 40, 48, 80, 94, 96, 141, 180} {
		if c.Total <= event.Bytes(size)*event.GiB {
			return size
		}
	}
	return 0
}

// cardOfSize stands for a card of which only the size is known: the one of that size that takes
// most beyond the allocator, with doubt down to the one that takes least; the default card where no
// known one has that size.
func cardOfSize(size event.Bytes) Card {
	var alike []Card
	for _, c := range Cards() {
		if c.Total > size*94/100 && c.Total < size*103/100 {
			alike = append(alike, c)
		}
	}
	if len(alike) == 0 {
		alike = Cards()
	}
	byContext := func(a, b Card) int { return cmp.Compare(a.Context, b.Context) }
	card, least := slices.MaxFunc(alike, byContext), slices.MinFunc(alike, byContext)
	if len(alike) == len(cards) {
		card = DefaultCard()
	} else {
		card.Like = strings.Join(names(alike), ", ")
	}
	card.Measured = card.Measured && len(alike) == 1
	card.Less = max(0, card.Context-least.Context)
	card.Name, card.Total, card.Sized = size.String(), size, true
	if size <= smallCard {
		card.Shared = size / 8
	}
	return card
}

// smallCard is the size up to which no card was made for computing alone in years: those of it
// drive a screen, whose desktop holds 0.5 to 1.5 GiB of 8, or are boards whose one memory serves
// the host too.
const smallCard = 8 * event.GiB

// Assumed describes whose context is taken off the card's memory, and how well that is known.
func (c Card) Assumed() string {
	whose := "as measured on this card"
	switch {
	case c.Like != "" && !c.Measured:
		whose = "the most that one of this size takes (" + c.Like + ")"
	case c.Sized && c.Like == "":
		whose = "as on the " + DefaultCard().Name + ", because no card of this size is known"
	case !c.Measured:
		whose = fmt.Sprintf("computed, known to ±%s", c.Doubt)
	}
	return fmt.Sprintf("of the card's %s, %s are taken off for the CUDA context and libraries: %s",
		c.Total, c.Context, whose)
}

// cardWords are what makers and drivers put around the name of a card.
var cardWords = regexp.MustCompile(`nvidia|geforce|tesla|quadro|generation|gpu|-?sxm\d?|hbm\d?e?|gi?b\b|[ _-]`)

func cardKey(s string) string {
	return cardWords.ReplaceAllString(strings.ToLower(strings.TrimSpace(s)), "")
}

func cardNames() string { return strings.Join(names(cards), ", ") }

func names(list []Card) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.Name)
	}
	return out
}

// filled sets the constants of a card by its generation.
func (c Card) filled() Card {
	if c.Context != 0 {
		return c
	}
	c.DNN = hopperDNN
	resident := event.Bytes(c.SMs * c.threads())
	switch {
	case c.Measured:
		c.Context = hopperContext
	case c.Capability == 90 && c.SMs == 132: // the H200's chip, with other memory
		c.Context, c.Doubt = hopperContext, kernelDoubt/2
	default:
		c.Context, c.Doubt = threadContext*resident+kernelBytes,
			threadContextDoubt*resident+kernelDoubt
	}
	return c
}

// margins are what is added to an interval because the card was not measured, and why; nothing for
// one that was.
func (c Card) margins(convolutions bool) (margins, string) {
	if c.Measured {
		return margins{}, ""
	}
	m := otherCard
	if c.Capability == 90 && c.Less == 0 {
		m = sameGeneration
	} else if convolutions {
		m = m.plus(otherConvolutions)
	}
	what := c.Name + " was not measured"
	switch {
	case c.Like != "":
		what = fmt.Sprintf("only the size of the card is known (as of %s)", c.Like)
	case c.Sized:
		what = fmt.Sprintf("only the size of the card is known, and no known card has it (an %s is "+
			"assumed)", cards[0].Name)
	}
	return m, fmt.Sprintf("%s: its CUDA context is estimated at %s (%s to %s), which widens the "+
		"interval; `memroom calibrate` on the card measures it",
		what, c.Context, c.Context-c.Less-c.Doubt, c.Context+c.Doubt)
}

// threads is how many threads a multiprocessor keeps resident.
func (c Card) threads() int64 {
	switch {
	case c.Capability == 75:
		return 1024
	case c.Capability == 86 || c.Capability == 89 || c.Capability == 120:
		return 1536
	}
	return 2048
}

// options are the card's constants for the tape.
func (c Card) options() tape.Options {
	o := tape.Options{SMs: c.SMs, SMThreads: c.threads(), Hopper: c.Capability == 90 ||
		c.Capability == 100, BLAS: 8519680, BLASLt: 1 << 20}
	if c.Capability == 90 && c.Less == 0 {
		o.BLAS = 32 << 20
	}
	if c.BLAS > 0 {
		o.BLAS, o.BLASLt = int64(c.BLAS), int64(c.BLASLt)
	}
	return o
}

// Played are the facts of the card that a rehearsal plays, by the names that the probe reads. They
// are those of the tape, so that a plan and a rehearsal of the same card agree.
func (c Card) Played() map[string]any {
	o := c.options()
	return map[string]any{"name": "NVIDIA " + c.Name, "total_memory": int64(c.Total),
		"sms": o.SMs, "threads": o.SMThreads, "blas": o.BLAS, "blaslt": o.BLASLt,
		"major": c.Capability / 10, "minor": c.Capability % 10}
}
