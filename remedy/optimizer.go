package remedy

import (
	"slices"
	"strings"

	"memroom/event"
)

const noBitsandbytes = "bitsandbytes was not available on the card we measure on"

// optimizers: smaller optimizer state, or state that lives elsewhere.
func optimizers() []*Remedy {
	return []*Remedy{optimizerFused(), optimizerOffload(), optimizerPaged(), optimizer8Bit(),
		optimizerAdafactor()}
}

func optimizerFused() *Remedy {
	return &Remedy{
		ID:    OptimizerFused,
		Title: "use the fused AdamW",
		Why: "the step works in place; the default step allocates temporary tensors as large as " +
			"all parameters",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelArgs, LevelProcess},
		on: func(s Setup) bool {
			return s.Optimizer == "adamw_fused" ||
				s.Optimizer == "adam_fused"
		},
		rewrite: func(s Setup) (Setup, bool) {
			ok := s.Adam()
			s.Optimizer = "adamw_fused"
			return s, ok
		},
		slowdown: constant(0.97),
		args: map[Trainer]string{
			Transformers: "--optim adamw_torch_fused", Axolotl: "optimizer: adamw_torch_fused",
			Torchtune: "optimizer.fused=True",
			DeepSpeed: `"optimizer": {"type": "AdamW"}   # DeepSpeed's own fused kernel`,
		},
		code: map[Framework]string{PyTorch: "optimizer = torch.optim.AdamW(model.parameters(), lr=lr, " +
			"fused=True)"},
	}
}

func optimizerOffload() *Remedy {
	return &Remedy{
		ID:    OptimizerOffload,
		Title: "offload the optimizer state to host memory",
		Why: "Adam's two moments (eight bytes a parameter) leave the card; gradients and weights " +
			"are copied once a step",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelArgs, LevelProcess},
		on:          func(s Setup) bool { return s.Offloads("optimizer") },
		rewrite: func(s Setup) (Setup, bool) {
			s.Offload = slices.Concat(s.Offload, []string{"optimizer"})
			return s, s.Optimizer != "sgd"
		},
		timeline: func(t *event.Timeline) (*event.Timeline, bool) {
			return scaleBlocks(t, map[event.Category]float64{event.CategoryOptimizer: 0})
		},
		slowdown: constant(1.4),
		args: map[Trainer]string{
			DeepSpeed:    `"zero_optimization": {"offload_optimizer": {"device": "cpu", "pin_memory": true}}   # beside its stage`,
			Transformers: `--deepspeed ds.json   # ds.json: {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}`,
			Accelerate:   "accelerate launch --use_deepspeed --zero_stage 2 --offload_optimizer_device cpu",
			Lightning:    "--trainer.strategy=deepspeed_stage_2_offload",
			Torchtune:    "optimizer=torchao.prototype.low_bit_optim.CPUOffloadOptimizer",
		},
		code: map[Framework]string{PyTorch: lines("from torchao.optim import CPUOffloadOptimizer",
			"optimizer = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)")},
	}
}

func optimizerPaged() *Remedy {
	return &Remedy{
		ID:    OptimizerPaged,
		Title: "use a paged AdamW",
		Why: "the optimizer state moves to host memory when the card is full, also during short " +
			"peaks",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Unvalidated: noBitsandbytes,
		on: func(s Setup) bool {
			return strings.HasPrefix(s.Optimizer, "paged_")
		},
		rewrite: func(s Setup) (Setup, bool) {
			ok := s.Adam()
			s.Optimizer = "paged_adamw"
			return s, ok
		},
		slowdown: constant(1.2),
		args: map[Trainer]string{Transformers: "--optim paged_adamw_32bit",
			Axolotl: "optimizer: paged_adamw_32bit"},
		code: map[Framework]string{PyTorch: lines("import bitsandbytes as bnb",
			"optimizer = bnb.optim.PagedAdamW(model.parameters(), lr=lr)")},
	}
}

func optimizer8Bit() *Remedy {
	return &Remedy{
		ID:          Optimizer8Bit,
		Title:       "use an 8-bit AdamW",
		Why:         "Adam's moments take about two bytes a parameter instead of eight",
		Equivalence: Changes,
		Consent:     "optimizer",
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Unvalidated: noBitsandbytes,
		on: func(s Setup) bool {
			return s.Optimizer == "adam8bit" ||
				s.Optimizer == "paged_adamw8bit"
		},
		rewrite: func(s Setup) (Setup, bool) {
			ok := s.Adam()
			s.Optimizer = "adam8bit"
			return s, ok
		},
		timeline: func(t *event.Timeline) (*event.Timeline, bool) {
			// two moments: one byte a value and a four-byte scale per block of 256, against four
			// bytes a value
			return scaleBlocks(t, map[event.Category]float64{event.CategoryOptimizer: (1 +
				4.0/256) / 4})
		},
		args: map[Trainer]string{
			Transformers: "--optim adamw_bnb_8bit", Axolotl: "optimizer: adamw_bnb_8bit",
			Torchtune: "optimizer=bitsandbytes.optim.AdamW8bit",
		},
		code: map[Framework]string{PyTorch: lines("import bitsandbytes as bnb",
			"optimizer = bnb.optim.AdamW8bit(model.parameters(), lr=lr)")},
	}
}

func optimizerAdafactor() *Remedy {
	return &Remedy{
		ID:          OptimizerAdafactor,
		Title:       "replace Adam with Adafactor",
		Why:         "the second moment is kept as one row and one column per matrix, the first not at all",
		Equivalence: Changes,
		Consent:     "optimizer",
		Walls:       anywhere,
		Training:    true,
		on:          func(s Setup) bool { return s.Optimizer == "adafactor" },
		rewrite: func(s Setup) (Setup, bool) {
			ok := s.Optimizer != "sgd"
			s.Optimizer = "adafactor"
			return s, ok
		},
		slowdown: constant(1.2), // 113 against 89 samples/s in transformers#14744
		args: map[Trainer]string{
			Transformers: "--optim adafactor", Axolotl: "optimizer: adafactor",
			Torchtune: "optimizer=torch.optim.Adafactor",
		},
		code: map[Framework]string{
			PyTorch:    "optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)",
			TensorFlow: "optimizer = keras.optimizers.Adafactor(1e-3)",
			JAX:        "optimizer = optax.adafactor(1e-3)",
		},
	}
}

// gradients: buffers that need not exist between steps.
func gradients() []*Remedy {
	return []*Remedy{{
		ID:    SetToNone,
		Title: "free the gradients in zero_grad instead of zeroing them",
		Why: "no gradients exist during the forward pass, so its peak is lower by one copy of " +
			"the parameters",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelProcess},
		on:          func(s Setup) bool { return !s.KeepGrads },
		rewrite:     func(s Setup) (Setup, bool) { s.KeepGrads = false; return s, true },
		needs: func(job Job) string {
			if job.Setup == nil && atLeast(job.Torch, "2.0") {
				return "the default since torch 2.0"
			}
			return ""
		},
		code: map[Framework]string{PyTorch: "optimizer.zero_grad(set_to_none=True)"},
	}}
}
