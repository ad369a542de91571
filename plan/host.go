package plan

import (
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
	// offloaded, page-locked
	Optimizer  event.Bytes `json:"optimizer,omitempty"`  // states; DeepSpeed: masters, gradients too
	Parameters event.Bytes `json:"parameters,omitempty"` // weights that are not in use
	Activation event.Bytes `json:"activations,omitempty"`

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
func hostNeed(m *models.Model, s *Setup, activations event.Bytes) *HostNeed {
	params := m.Root.Parameters()
	weights := event.Bytes(m.Root.Count() * weightType(s.Precision).Size())
	state := event.Bytes(tape.StateBytes(s.Optimizer, params, weightType(s.Precision)))
	h := &HostNeed{Checkpoint: weights + state, Processes: min(s.Ranks, nodeRanks)}
	here := func(all event.Bytes) event.Bytes { // what is cut over all ranks
		return all / event.Bytes(s.Ranks) * event.Bytes(h.Processes)
	}
	trained := event.Bytes(m.Root.Trainable())
	switch {
	case s.Offloads("optimizer") && s.zero() != nil: // masters and gradients are in fp32 there
		state = event.Bytes(tape.StateBytes(s.Optimizer, params, tape.F32))
		h.Optimizer = here(state + 8*trained)
	case s.Offloads("optimizer") && s.fullyShards():
		h.Optimizer = here(state)
	case s.Offloads("optimizer"): // every rank has all of it
		h.Optimizer = state * event.Bytes(h.Processes)
	}
	if s.Offloads("parameters") {
		half := event.Bytes(s.computeType().Size())
		h.Parameters = here(event.Bytes(m.Root.Count()) * half)
	}
	h.Activation = activations * event.Bytes(h.Processes)
	h.Loading = s.loading(m, event.Bytes(h.Processes))
	return h
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
		load.How = "weights go to the card one by one and are packed there: the largest stands beside " +
			"the packed ones in half precision"
	case s.Shard == "zero3":
		load.Host = processes * min(shardFile, load.Mapped)
		load.Card = load.Card/event.Bytes(s.Ranks) + event.Bytes(2*largest)
		load.How = "every process reads the files one after the other and keeps its part"
	case s.fullyShards():
		load.Card = load.Card/event.Bytes(s.Ranks) + event.Bytes(largest*kept)
		load.How += "; with accelerate's cpu_ram_efficient_loading only the first process reads"
	}
	return load
}
