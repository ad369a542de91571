package plan

import (
	"errors"
	"slices"
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
// micro-batch is that of one card, or of those that work on one batch together.
type Way struct {
	Cards         int      `json:"cards"`
	Card          string   `json:"card"`
	Shard         string   `json:"shard,omitempty"` // as in Setup.Shard; none on one card
	Checkpointing bool     `json:"checkpointing"`
	Replicas      int      `json:"replicas,omitempty"` // groups of HSDP
	Offload       []string `json:"offload,omitempty"`  // beyond what was asked for
	// of a machine's memory, for what is offloaded
	Host       event.Bytes `json:"host_memory,omitempty"`
	Division               // of the model itself; its figures are estimates
	DevicePeak event.Bytes `json:"device_peak,omitempty"` // of each card
	Low        event.Bytes `json:"low,omitempty"`
	High       event.Bytes `json:"high,omitempty"`
	Fits       bool        `json:"fits"`
	Refused    string      `json:"refused,omitempty"` // why this way cannot be planned
}

// shards are the ways to divide work among cards, those that communicate least first. HSDP is for
// several machines.
var shards = []string{"ddp", "zero1", "zero2", "hsdp", "fsdp"}

// FindSharding tries the setup on 1, 2, 4, ... and all of the cards of each kind. On each number it
// ends with the first way that fits, because those after it are slower. Only where nothing fits on
// any number, the model itself is divided among cards; and only where that does not fit either, its
// weights wait in host memory.
func FindSharding(s Setup, t Target, cards []Card) (*Sharding, error) {
	out := &Sharding{}
	var why error
	for _, ways := range []func(*Setup, int) []Way{plainWays, dividedWays, hostWays} {
		for _, group := range equalCards(cards) {
			for _, n := range counts(len(group)) {
				way, err := out.try(s, t, group[0], ways(&s, n))
				why = errors.Join(why, err)
				if way != nil && (out.Best == nil || way.Cards < out.Best.Cards) {
					out.Best = way
				}
			}
		}
		if out.Best != nil {
			break
		}
	}
	if out.Fits = out.Best != nil; !out.Fits && !out.answered() {
		return nil, why
	}
	return out, nil
}

// try looks for the first of some ways that fits.
func (o *Sharding) try(s Setup, t Target, card Card, ways []Way) (*Way, error) {
	t.Card, t.Given = card, true
	var why error
	for _, way := range ways {
		way.Card = card.Name
		p, err := predictOnly(s.spread(way), t)
		if err != nil {
			way.Refused, why = err.Error(), err
		} else {
			way.DevicePeak, way.Low, way.High = p.DevicePeak, p.Low, p.High
			way.Fits = p.Fits != nil && *p.Fits
			way.Host = p.Host.PerRank * event.Bytes(p.Host.Processes)
		}
		o.Ways = append(o.Ways, way)
		if way.Fits {
			return &way, nil
		}
	}
	return nil, why
}

// plainWays are those that copy or shard the model, with every rank on a batch of its own.
func plainWays(s *Setup, n int) (list []Way) {
	for _, checkpointing := range oneOrBoth(s.Checkpointing) {
		for _, shard := range kinds(s.Shard, n) {
			way := Way{Cards: n, Shard: shard, Checkpointing: checkpointing}
			if n > 1 {
				way.Replicas = s.Replicas
			}
			list = append(list, way)
		}
	}
	return list
}

// mostTensor is over how many cards tensor parallelism goes: those of one machine.
const mostTensor = 8

// dividedWays are those that come after: ranks that share a batch, by tensor parallelism within a
// machine, then by context parallelism, which saves activations alone. Pipelines are not among
// them: with FSDP next to it, a stage holds no less than a rank does without.
func dividedWays(s *Setup, n int) (list []Way) {
	add := func(way Way) { list = append(list, s.later(way, n)...) }
	for degree := 2; degree <= min(n, mostTensor); degree *= 2 {
		if n%degree == 0 {
			add(Way{Division: Division{Tensor: degree, Sequence: true,
				LossParallel: true}})
		}
	}
	for degree := 2; degree <= n; degree *= 2 {
		if n%degree == 0 {
			add(Way{Division: Division{Context: degree}})
		}
	}
	return list
}

// hostWays keep weights, gradients and optimizer state in host memory.
func hostWays(s *Setup, n int) []Way {
	if s.Offloads("parameters") {
		return nil
	}
	return s.later(Way{Offload: []string{"parameters"}}, n)
}

// later completes a way that comes after the plain ones; none where the setup does not allow it.
func (s *Setup) later(way Way, n int) []Way {
	if n == 1 || s.Shard != "" && !s.fullyShards() {
		return nil
	}
	way.Cards, way.Checkpointing = n, true
	if n > max(1, way.Tensor) {
		way.Shard = s.Shard
		setDefault(&way.Shard, "fsdp")
	}
	if made := s.spread(way); made.Check() != nil {
		return nil
	}
	return []Way{way}
}

// spread is the setup of one way, without the details of others.
func (s Setup) spread(w Way) Setup {
	s.Ranks, s.Shard, s.Checkpointing = w.Cards, w.Shard, w.Checkpointing
	s.Replicas, s.Division = w.Replicas, w.Division
	s.Offload = append(slices.Clone(s.Offload), w.Offload...)
	if !s.fullyShards() {
		s.NoReshard = false
	}
	if !strings.HasPrefix(w.Shard, "zero") {
		s.Bucket, s.Overlap = 0, false
	}
	return s
}

// Shared is how many cards work on one micro-batch together.
func (w *Way) Shared() int { return w.together() }

// answered reports whether any way could be planned at all.
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
	return slices.DeleteFunc(slices.Clone(shards), func(kind string) bool {
		return kind == "hsdp" && (n <= nodeRanks || n%nodeRanks != 0)
	})
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
