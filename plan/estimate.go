package plan

import (
	"fmt"

	"memroom/event"
)

// Estimate lists the rules by which a divided model was planned. No such run was measured on cards.
type Estimate struct {
	Rules    []string `json:"rules"`
	Includes []string `json:"includes"`
	Excludes []string `json:"excludes"`
	// assumed for the communication library, in addition to PyTorch's memory; part of the device
	// peak
	Communication event.Bytes `json:"communication"`
}

// estimate describes how a divided model was planned, nil where none was.
func (s *Setup) estimate() *Estimate {
	if !s.divided() {
		return nil
	}
	e := &Estimate{Communication: s.collectives(),
		Includes: []string{"weights, gradients and optimizer state of one rank",
			"activations of one rank, request by request through the allocator",
			"results of collectives that PyTorch allocates"},
		Excludes: []string{"kernels that overlap communication with products (async tensor parallelism)",
			"what differs between trainers in what they cut"}}
	add := func(on bool, format string, args ...any) {
		if on {
			e.Rules = append(e.Rules, fmt.Sprintf(format, args...))
		}
	}
	add(s.Tensor > 1, "tensor: heads, the MLP's columns and the head's rows are cut into %d parts; norms "+
		"and the router are whole on every rank", s.Tensor)
	add(s.Tensor > 1 && !s.LossParallel, "words: the embedding is whole and every rank gathers all logits, "+
		"as transformers' own plan does; the interval goes down to both cut (--loss-parallel)")
	add(s.Tensor > 1 && s.LossParallel, "words: embedding, logits and loss are cut (loss parallelism)")
	add(s.Tensor > 1 && s.Sequence, "sequence: between the cut layers each rank has 1/%d of the tokens; "+
		"what the cut layers read is gathered and saved whole", s.Tensor)
	add(s.Context > 1, "context: each rank has %d of %d tokens; attention gathers all keys and values in a "+
		"buffer and sums in fp32", s.ownTokens(s.Seq), s.Seq)
	add(s.Pipeline > 1, "pipeline: equal stages, one forward and one backward in turn (1F1B): stage k of "+
		"%d holds %d-k+1 micro-batches at once; a buffer for each of the %d micro-batches is received "+
		"into from either side", s.Pipeline, s.Pipeline, s.Microbatches)
	add(s.Expert > 1, "expert: each rank has 1/%d of the experts and as many tokens as it sends away, once "+
		"before and once after them", s.Expert)
	if s.Expert > 1 {
		e.Excludes = append(e.Excludes, "tokens that crowd at one expert: the load is taken to be even")
	}
	if s.Pipeline > 1 {
		e.Excludes = append(e.Excludes, "other schedules (GPipe holds every micro-batch, interleaved 1F1B "+
			"more than this), and outputs of the last stage that a loop keeps")
	}
	return e
}

// estimateMargins are those of a divided model: what rank 0 keeps agrees with PyTorch's own to a
// few percent, the rest is not measured.
var estimateMargins = margins{0.15, 0.20}

// say puts the rules into the warnings of a prediction.
func (e *Estimate) say(p *Prediction) {
	p.warn("estimate: a model divided among ranks was never measured on cards here; the interval allows "+
		"for %.0f %% less to %.0f %% more", 100*estimateMargins.below, 100*estimateMargins.above)
	for _, rule := range e.Rules {
		p.warn("estimate by %s", rule)
	}
	for _, rest := range e.Excludes {
		p.warn("not included: %s", rest)
	}
}
