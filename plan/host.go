package plan

import (
	"math/bits"
	"strings"

	"memroom/event"
	"memroom/models"
	"memroom/tape"
)

// nodeRanks is how many cards a machine is taken to have.
const nodeRanks = 8

// shardFile is the size at which checkpoints are cut into files, by default for years.
const shardFile = event.Bytes(5_000_000_000)

// HostNeed is what the setup needs of the memory of one machine, for all of its processes.
type HostNeed struct {
	Processes int `json:"processes"` // ranks on the machine
	// to save weights and optimizer state in one piece
	Checkpoint event.Bytes `json:"checkpoint"`
	// offloaded
	Optimizer  event.Bytes `json:"optimizer,omitempty"`  // states; DeepSpeed: masters, gradients too
	Parameters event.Bytes `json:"parameters,omitempty"` // weights that are not in use
	Gradients  event.Bytes `json:"gradients,omitempty"`  // FSDP's, of such weights
	Activation event.Bytes `json:"activations,omitempty"`
	// page-locked of that, with the rounding of PyTorch's allocator of such memory
	Pinned  event.Bytes `json:"pinned,omitempty"`
	PerRank event.Bytes `json:"per_rank,omitempty"` // all of it, of one process

	Loading LoadNeed `json:"loading"`
}

// LoadNeed is the peak while the model is read from its files.
type LoadNeed struct {
	Host   event.Bytes `json:"host"`   // private memory of all processes of a machine
	Mapped event.Bytes `json:"mapped"` // files that are mapped: once for all, and the kernel may drop it
	Card   event.Bytes `json:"card"`   // allocated on each card
	How    string      `json:"how"`
}

// hostNeed is the need of one machine; the activations are those of one rank.
// whole is the model before it was divided among ranks.
func hostNeed(m, whole *models.Model, s *Setup, activations event.Bytes) *HostNeed {
	params := m.Root.Parameters()
	kept := func(m *models.Model) event.Bytes {
		return event.Bytes(tape.StateBytes(s.Optimizer, m.Root.Parameters(), weightType(s.Precision)))
	}
	weights := event.Bytes(whole.Root.Count() * weightType(s.Precision).Size())
	state := kept(m)
	h := &HostNeed{Checkpoint: weights + kept(whole), Processes: min(s.Ranks, nodeRanks)}
	here := func(all event.Bytes) event.Bytes { // what is cut over all ranks that share it
		return all / event.Bytes(s.spreadRanks()) * event.Bytes(h.Processes)
	}
	trained := event.Bytes(m.Root.Trainable())
	switch {
	case s.Offloads("optimizer") && s.zero() != nil: // masters and gradients are in fp32 there
		state = event.Bytes(tape.StateBytes(s.Optimizer, params, tape.F32))
		h.Optimizer = here(state + 8*trained)
	case s.fullyShards() && s.Offloads("parameters"):
		h.keepParts(m, s)
	case s.Offloads("optimizer") && s.fullyShards():
		h.Optimizer = state / event.Bytes(s.cut()) * event.Bytes(h.Processes)
	case s.Offloads("optimizer"): // every rank has all of it
		h.Optimizer = state * event.Bytes(h.Processes)
	}
	if s.Offloads("parameters") && !s.fullyShards() {
		half := event.Bytes(s.computeType().Size())
		h.Parameters = here(event.Bytes(m.Root.Count()) * half)
	}
	h.Activation = activations * event.Bytes(h.Processes)
	h.sum()
	h.Loading = s.loading(whole, event.Bytes(h.Processes))
	if s.divided() {
		h.Loading.Card = event.Bytes(m.Root.Count() * weightType(s.Precision).Size())
	}
	return h
}

// keepParts is FSDP's CPUOffloadPolicy: a rank's part of the weights and of their gradients is
// page-locked, each piece rounded up to a power of two; the optimizer's states are not.
func (h *HostNeed) keepParts(m *models.Model, s *Setup) {
	f, err := s.fsdp()
	if err != nil {
		return
	}
	n := event.Bytes(h.Processes)
	for _, piece := range f.Pieces(m.Root) {
		locked := event.Bytes(nextPower(piece.Bytes))
		h.Parameters, h.Pinned = h.Parameters+n*event.Bytes(piece.Bytes), h.Pinned+n*locked
		if piece.Trained {
			h.Gradients, h.Pinned = h.Gradients+n*event.Bytes(piece.Bytes), h.Pinned+n*locked
		}
	}
	state := event.Bytes(tape.StateBytes(s.Optimizer, m.Root.Parameters(),
		weightType(s.Precision)))
	h.Optimizer = state / event.Bytes(s.cut()) * n
}

// nextPower is the smallest power of two that is not below n.
func nextPower(n int64) int64 {
	if n <= 1 {
		return 1
	}
	const largest = 62 // in 64 bits with a sign
	return 1 << min(bits.Len64(uint64(n-1)), largest)
}

// sum adds up what one process has in host memory, and what of it is page-locked where that was
// not counted piece by piece.
func (h *HostNeed) sum() {
	all := h.Optimizer + h.Parameters + h.Gradients + h.Activation
	if h.Pinned == 0 {
		h.Pinned = all
	} else {
		h.Pinned += h.Activation
	}
	h.PerRank = all / event.Bytes(h.Processes)
}

// loading is the peak of from_pretrained. Files of safetensors are mapped: where the type stays,
// the mapped pages are the weights; where it changes, the new ones are private memory. Measured
// with transformers 5.17 on the host (docs/measurements.md).
func (s *Setup) loading(m *models.Model, processes event.Bytes) LoadNeed {
	var count, largest, packed, unpacked int64
	for _, p := range m.Root.Parameters() {
		if strings.Contains(p.Name, "lora_") { // made, not read
			continue
		}
		count, largest = count+p.Numel(), max(largest, p.Numel())
		if p.Bits > 0 {
			packed += p.Numel() * p.Bits / 8
			unpacked = max(unpacked, 2*p.Numel())
		} else {
			packed += p.Numel() * 2
		}
	}
	kept := weightType(s.Precision).Size()
	stored := kept
	switch s.Model.DType() {
	case "bfloat16", "float16":
		stored = 2
	case "float32":
		stored = 4
	}
	load := LoadNeed{Mapped: event.Bytes(count * stored), Card: event.Bytes(count * kept),
		How: "the files are mapped and moved to the card"}
	if stored != kept {
		load.Host = processes * event.Bytes(count*kept)
		load.How = "the type changes, so every process has weights of its own in memory"
	}
	switch {
	case s.LoadIn != "":
		load.Host = 0
		load.Card = event.Bytes(packed + unpacked)
		load.How = "weights go to the card one by one, in half precision, and are packed there"
	case s.Shard == "zero3":
		load.Host = processes * min(shardFile, load.Mapped)
		load.Card = load.Card/event.Bytes(s.spreadRanks()) + event.Bytes(2*largest)
		load.How = "every process reads the files one after the other and keeps its part"
	case s.fullyShards():
		load.Card = load.Card/event.Bytes(s.cut()) + event.Bytes(largest*kept)
		if s.Offloads("parameters") {
			load.Card = event.Bytes(largest * kept)
		}
		load.How += "; with accelerate's cpu_ram_efficient_loading only the first process reads"
	}
	return load
}
