package remedy

import "memroom/event"

const oneCard = "measured on one card only; several were not available"

// sharding: states divided over ranks or cards.
func sharding() []*Remedy {
	return []*Remedy{{
		ID:          DDPBucketView,
		Title:       "share memory between DDP's buckets and the gradients (gradient_as_bucket_view)",
		Why:         "one copy of the gradients instead of two",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Unvalidated: oneCard,
		on:          func(s Setup) bool { return s.BucketView },
		needs:       needsRanks,
		rewrite: func(s Setup) (Setup, bool) {
			s.BucketView = true
			return s, s.Ranks > 1 && (s.Shard == "" || s.Shard == "ddp")
		},
		args: map[Trainer]string{Lightning: "--trainer.strategy.gradient_as_bucket_view=True"},
		code: map[Framework]string{PyTorch: "model = DistributedDataParallel(model, " +
			"gradient_as_bucket_view=True)"},
	}, {
		ID:          FSDP,
		Title:       "shard weights, gradients and optimizer state over the ranks (FSDP)",
		Why:         "each rank keeps its share and gathers one block at a time",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Unvalidated: oneCard,
		on:          func(s Setup) bool { return s.Shard == "fsdp" || s.Shard == "zero3" },
		needs:       needsRanks,
		rewrite:     func(s Setup) (Setup, bool) { s.Shard = "fsdp"; return s, s.Ranks > 1 },
		slowdown:    constant(1.2), // three times the parameters on the wire instead of two
		args: map[Trainer]string{
			Transformers: "--fsdp 'full_shard auto_wrap'",
			Accelerate:   "accelerate launch --use_fsdp --fsdp_version 2",
			Lightning:    "--trainer.strategy=fsdp",
		},
		code: map[Framework]string{PyTorch: lines("from torch.distributed.fsdp import fully_shard",
			"for block in model.layers: fully_shard(block)", "fully_shard(model)")},
	}, {
		ID:          ZeRO,
		Title:       "shard optimizer state and gradients over the ranks (ZeRO 2)",
		Why:         "each rank keeps the optimizer state and gradients of its share of the parameters",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Unvalidated: oneCard,
		on: func(s Setup) bool {
			return s.Shard == "zero2" || s.Shard == "zero3" ||
				s.Shard == "fsdp" || s.Shard == "hsdp"
		},
		needs:    needsRanks,
		rewrite:  func(s Setup) (Setup, bool) { s.Shard = "zero2"; return s, s.Ranks > 1 },
		slowdown: constant(1.05),
		args: map[Trainer]string{
			Transformers: `--deepspeed ds.json   # {"zero_optimization": {"stage": 2}}`,
			Accelerate:   "accelerate launch --use_deepspeed --zero_stage 2",
			Lightning:    "--trainer.strategy=deepspeed_stage_2",
			DeepSpeed:    `"zero_optimization": {"stage": 2}   # 3 shards the weights too`,
		},
		code: map[Framework]string{PyTorch: lines("from torch.distributed.optim import "+
			"ZeroRedundancyOptimizer",
			"optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=lr)")},
	}, {
		ID:    LiveParameters,
		Title: "let ZeRO 3 keep fewer gathered parameters at a time",
		Why: "parameters that were gathered for one module stay until a limit is reached, and those of the " +
			"next are fetched before they are needed",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Unvalidated: oneCard,
		slowdown:    constant(1.1), // parameters are gathered again
		how:         func(Job, Setup) How { return How{Args: liveParameters} },
	}, {
		ID:          DeviceMap,
		Title:       "spread the layers over the cards by what they really need",
		Why:         "an automatic map counts only weights, so the card that also gets the logits runs out",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		needs: func(job Job) string {
			if job.Facts != nil && job.Work == Training && !job.Facts[Cards] && !job.Facts[Ranks] {
				return "nothing shows a second card"
			}
			return ""
		},
		Frameworks:  torch,
		Levels:      []Level{LevelProcess},
		Unvalidated: oneCard,
		slowdown:    constant(1.3), // cards work one after the other
		how:         howDeviceMap,
	}}
}

// liveParameters are DeepSpeed's settings, which every trainer takes from its file.
const liveParameters = `"zero_optimization": {"stage3_max_live_parameters": 1e8, ` +
	`"stage3_max_reuse_distance": 1e8, "stage3_prefetch_bucket_size": 1e7}   # defaults: 1e9, 1e9, 5e7`

func needsRanks(job Job) string {
	if job.Setup != nil && job.Setup.Ranks <= 1 {
		return "there is one rank only"
	}
	return ""
}

// howDeviceMap has the flag of the server where one runs.
func howDeviceMap(job Job, _ Setup) How {
	switch {
	case job.Program == "tgi":
		return How{Args: "--num-shard 2"}
	case job.Program == "sglang":
		return How{Args: "--tp 2"}
	case job.Trainer == VLLM || job.Program == "vllm":
		return How{Args: "--tensor-parallel-size 2"}
	case job.Program != "":
		return How{}
	}
	return How{Code: lines("# memroom plan CONFIG --devices 2x24GiB --json  prints the map",
		"model = AutoModelForCausalLM.from_pretrained(name, device_map=json.load(open('map.json')))")}
}
