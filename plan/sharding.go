package plan

import (
	"errors"
	"strings"

	"memroom/event"
)

// Sharding is the answer to "how many cards of which kind, sharded how?".
type Sharding struct {
	Fits bool  `json:"fits"`
	Best *Way  `json:"best,omitempty"` // on the fewest cards
	Ways []Way `json:"ways"`           // in the order tried: few cards first, on each the fastest first
}

// Way is one way to spread a training over equal cards, and what each of them needs then. The
// micro-batch is that of one card.
type Way struct {
	Cards         int         `json:"cards"`
	Card          string      `json:"card"`
	Shard         string      `json:"shard,omitempty"` // as in Setup.Shard; none on one card
	Checkpointing bool        `json:"checkpointing"`
	DevicePeak    event.Bytes `json:"device_peak,omitempty"` // of each card
	Low           event.Bytes `json:"low,omitempty"`
	High          event.Bytes `json:"high,omitempty"`
	Fits          bool        `json:"fits"`
	Refused       string      `json:"refused,omitempty"` // why this way cannot be planned
}

// shards are the ways to divide work among cards, those that communicate least first.
var shards = []string{"ddp", "zero1", "zero2", "fsdp"}

// FindSharding tries the setup on 1, 2, 4, ... and all of the cards of each kind. On each number it
// ends with the first way that fits, because those after it are slower.
func FindSharding(s Setup, t Target, cards []Card) (*Sharding, error) {
	out := &Sharding{}
	var why error
	for _, group := range equalCards(cards) {
		for _, n := range counts(len(group)) {
			way, err := out.try(s, t, group[0], n)
			why = errors.Join(why, err)
			if way != nil && (out.Best == nil || way.Cards < out.Best.Cards) {
				out.Best = way
			}
		}
	}
	if out.Fits = out.Best != nil; !out.Fits && !out.answered() {
		return nil, why
	}
	return out, nil
}

// try looks for the first way that fits on n cards.
func (o *Sharding) try(s Setup, t Target, card Card, n int) (*Way, error) {
	t.Card, t.Given = card, true
	var why error
	for _, checkpointing := range oneOrBoth(s.Checkpointing) {
		for _, shard := range kinds(s.Shard, n) {
			way := Way{Cards: n, Card: card.Name, Shard: shard, Checkpointing: checkpointing}
			p, err := predictOnly(s.spread(way), t)
			if err != nil {
				way.Refused, why = err.Error(), err
			} else {
				way.DevicePeak, way.Low, way.High = p.DevicePeak, p.Low, p.High
				way.Fits = p.Fits != nil && *p.Fits
			}
			o.Ways = append(o.Ways, way)
			if way.Fits {
				return &way, nil
			}
		}
	}
	return nil, why
}

// spread is the setup of one way, without the details of others.
func (s Setup) spread(w Way) Setup {
	s.Ranks, s.Shard, s.Checkpointing = w.Cards, w.Shard, w.Checkpointing
	if !s.fullyShards() {
		s.NoReshard = false
	}
	if !strings.HasPrefix(w.Shard, "zero") {
		s.Bucket, s.Overlap = 0, false
	}
	return s
}

// answered says whether any way could be planned at all.
func (o *Sharding) answered() bool {
	for _, w := range o.Ways {
		if w.Refused == "" {
			return true
		}
	}
	return false
}

// oneOrBoth: checkpointing that is asked for stays; else it is tried where nothing fits without.
func oneOrBoth(asked bool) []bool {
	if asked {
		return []bool{true}
	}
	return []bool{false, true}
}

// kinds are the ways to divide work among n cards: the one asked for, or all.
func kinds(asked string, n int) []string {
	switch {
	case n == 1:
		return []string{""}
	case asked != "":
		return []string{asked}
	}
	return shards
}

// equalCards groups cards of one kind, in the order in which they are named.
func equalCards(cards []Card) (groups [][]Card) {
	at := map[string]int{}
	for _, c := range cards {
		i, known := at[c.Name]
		if !known {
			i = len(groups)
			at[c.Name] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}

// counts are the numbers of cards that are tried: powers of two, and all of them.
func counts(n int) (list []int) {
	for i := 1; i < n; i *= 2 {
		list = append(list, i)
	}
	return append(list, n)
}
