package models

import "memroom/tape"

// Run is how the model is used: the part of a training setup that a forward pass depends on.
type Run struct {
	Batch, Seq, Image int64
	Attn              string // sdpa, eager or flash
	Checkpointing     bool
	Float             tape.DType // type of floating inputs: that of the weights
	// the model was loaded in half precision before its trained weights were made fp32, as packed
	// ones are: buffers stay in this type; nil is Float
	Buffers      *tape.DType
	Padded       bool // the batch has padding, so that attention needs a mask
	MaskGiven    bool // an attention mask is part of the batch, as tokenizers make it
	ChannelsLast bool
	ChunkLogits  bool // the causal loss never holds whole logits
	// use_cache is on: every decoder layer keeps copies of its keys and values until the model
	// returns
	Cache bool
	// tokens of the target of an encoder-decoder; 0 is as many as the source has
	Target int64
	// release of transformers whose loss is computed, as 100*major+minor; 0 is the newest
	Transformers int
	// release of TRL whose trainer computes the objective, as 100*major+minor; 0 is the newest
	TRL int
	// the objective of a decoder's training; "" is the next token
	Objective Objective
	// tokens at the end of each sequence that the objective needs; 0 is all
	Keep int64
	// the head to build instead of the one that the configuration names, with one label
	HeadName string
	Division // the part of the model that one rank has

	arch   string  // the head the configuration names
	labels int64   // classes of a classification head
	padID  bool    // the configuration names a padding token
	drop   float64 // dropout before a head that classifies tokens
}

// bufferType is the type of buffers that take part in the computation.
func (r Run) bufferType() tape.DType {
	if r.Buffers != nil {
		return *r.Buffers
	}
	return r.Float
}

// Model is a model that can be run on a tape.
type Model struct {
	Root   *tape.Module
	Inputs func(g *tape.Graph) []*tape.Tensor                  // a batch; the caller owns it
	Loss   func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor // forward and loss
	Run    Run

	Head      string // the head it was built with, as architectures name it; "" where there is only one
	Layers    int64  // repeated blocks, for reports
	Parts     *Parts // what of it can be divided among ranks; nil where that is not described
	Width     int64  // of the activations between blocks, where parts are known
	Tokens    int64  // what one sample counts as in the largest sequence dimension
	Notes     []string
	Loose     bool // described from the source but not verified operation by operation
	MaskCosts bool // the attention mask that batches bring decides the peak
}
