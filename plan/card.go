package plan

import (
	"fmt"
	"slices"
	"strings"

	"memroom/event"
	"memroom/plan/tape"
)

// Card is a GPU as far as predictions go.
type Card struct {
	Name       string      `json:"name"`
	Total      event.Bytes `json:"total"` // what a process can use when the card is otherwise idle
	SMs        int64       `json:"sms,omitempty"`
	Capability int         `json:"capability,omitempty"` // compute capability times ten
	Context    event.Bytes `json:"context,omitempty"`    // beyond the allocator: context, kernels, library handles
	DNN        event.Bytes `json:"dnn,omitempty"`        // added once cuDNN is used
	BLAS       event.Bytes `json:"blas,omitempty"`       // workspace of cuBLAS, one a thread
	BLASLt     event.Bytes `json:"blaslt,omitempty"`     // workspace of cuBLASLt, one a thread
	Measured   bool        `json:"measured"`
}

// The H200 was measured: 750.8 MiB beyond the allocator without cuDNN, 766.8 MiB with it, in 44 of 47 runs; three
// convolutional networks took 2 or 4 MiB more.
const (
	hopperContext = 787283968 * event.Bytes(1)
	hopperDNN     = 16 * event.MiB
)

// cards are the GPUs known by name. Totals are what the driver reports on an idle card.
var cards = []Card{
	{Name: "H200", Total: 150109880320, SMs: 132, Capability: 90, Measured: true},
	{Name: "H100", Total: 81079 * event.MiB, SMs: 132, Capability: 90},
	{Name: "H100-PCIe", Total: 81079 * event.MiB, SMs: 114, Capability: 90},
	{Name: "H100-NVL", Total: 95000 * event.MiB, SMs: 132, Capability: 90},
	{Name: "GH200", Total: 97000 * event.MiB, SMs: 132, Capability: 90},
	{Name: "B200", Total: 182000 * event.MiB, SMs: 148, Capability: 100},
	{Name: "A100-80", Total: 81050 * event.MiB, SMs: 108, Capability: 80},
	{Name: "A100-40", Total: 40330 * event.MiB, SMs: 108, Capability: 80},
	{Name: "A10", Total: 22502 * event.MiB, SMs: 72, Capability: 86},
	{Name: "A10G", Total: 22502 * event.MiB, SMs: 80, Capability: 86},
	{Name: "A40", Total: 45403 * event.MiB, SMs: 84, Capability: 86},
	{Name: "A6000", Total: 48533 * event.MiB, SMs: 84, Capability: 86},
	{Name: "L4", Total: 22565 * event.MiB, SMs: 58, Capability: 89},
	{Name: "L40S", Total: 45495 * event.MiB, SMs: 142, Capability: 89},
	{Name: "RTX6000Ada", Total: 48506 * event.MiB, SMs: 142, Capability: 89},
	{Name: "RTX5090", Total: 32100 * event.MiB, SMs: 170, Capability: 120},
	{Name: "RTX4090", Total: 24080 * event.MiB, SMs: 128, Capability: 89},
	{Name: "RTX4080", Total: 15990 * event.MiB, SMs: 76, Capability: 89},
	{Name: "RTX4070", Total: 11990 * event.MiB, SMs: 46, Capability: 89},
	{Name: "RTX4060Ti-16", Total: 15990 * event.MiB, SMs: 34, Capability: 89},
	{Name: "RTX3090", Total: 24250 * event.MiB, SMs: 82, Capability: 86},
	{Name: "RTX3080", Total: 9990 * event.MiB, SMs: 68, Capability: 86},
	{Name: "RTX3060", Total: 11990 * event.MiB, SMs: 28, Capability: 86},
	{Name: "V100-32", Total: 32480 * event.MiB, SMs: 80, Capability: 70},
	{Name: "V100-16", Total: 16150 * event.MiB, SMs: 80, Capability: 70},
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

// FindCard reads --gpu: a name, or the size of the whole card.
func FindCard(text string) (Card, error) {
	key := cardKey(text)
	var matches []Card
	for _, c := range cards {
		switch k := cardKey(c.Name); {
		case k == key:
			return c.filled(), nil
		case strings.HasPrefix(k, key):
			matches = append(matches, c)
		}
	}
	if len(matches) > 0 && key != "" && (key[0] < '0' || key[0] > '9') {
		return matches[0].filled(), nil // the first of several is the largest or the usual one
	}
	size, err := event.ParseBytes(text)
	if err != nil {
		return Card{}, fmt.Errorf("card %q is neither a known name (%s) nor a size such as 24GiB", text, cardNames())
	}
	if size < event.GiB {
		return Card{}, fmt.Errorf("a card of %s is smaller than a CUDA context: write the size like 24GiB", size)
	}
	c := DefaultCard()
	c.Name, c.Total, c.Measured = size.String(), size, true
	return c, nil
}

func cardKey(s string) string {
	s = strings.ToLower(s)
	for _, drop := range []string{"nvidia", "geforce", "tesla", " ", "-", "_", "gb", "gib"} {
		s = strings.ReplaceAll(s, drop, "")
	}
	return s
}

func cardNames() string {
	var names []string
	for _, c := range cards {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

// filled gives a card the constants of its generation. Only Hopper's were measured; others are what users report for
// recent drivers, 300 to 450 MiB with lazy loading, and make the interval wider.
func (c Card) filled() Card {
	if c.Context != 0 {
		return c
	}
	switch {
	case c.Capability >= 90:
		c.Context, c.DNN = hopperContext, hopperDNN
	default:
		c.Context, c.DNN = 480*event.MiB, 16*event.MiB
	}
	return c
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
	o := tape.Options{SMs: c.SMs, SMThreads: c.threads(), Hopper: c.Capability == 90 || c.Capability == 100, BLAS: 8519680, BLASLt: 1 << 20}
	if c.Capability == 90 {
		o.BLAS = 32 << 20
	}
	if c.BLAS > 0 {
		o.BLAS, o.BLASLt = int64(c.BLAS), int64(c.BLASLt)
	}
	return o
}
