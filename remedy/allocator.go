package remedy

import "memroom/event"

// allocators: settings of PyTorch's caching allocator, and emptying its cache.
func allocators() []*Remedy {
	return []*Remedy{
		setting(ExpandableSegments, "expandable_segments", "True", "let segments grow in place",
			"free space between blocks can be handed out again whatever the size asked for", "2.1",
			1),
		setting(MaxSplitSize, "max_split_size_mb", "128", "forbid splitting large cached blocks",
			"a small request no longer cuts a large block in two that later nothing large fits into", "1.10", 1.02),
		setting(Roundup, "roundup_power2_divisions", "4",
			"round sizes up so that blocks are reused",
			"requests of varying length fall into few sizes and find a cached block instead of asking for a "+
				"new segment", "2.0", 1),
		setting(GCThreshold, "garbage_collection_threshold", "0.8",
			"give unused cached blocks back early",
			"the oldest cached segments are released one by one before everything is flushed",
			"1.12", 1.02),
		{
			ID:    NewerTorch,
			Title: "use a newer PyTorch, whose allocator can avoid the pieces",
			Why: "this version has no expandable segments (2.1) and few or none of the settings against " +
				"pieces that do not fit",
			Equivalence: Exact,
			Walls:       []event.Where{event.WhereGPU},
			Frameworks:  torch,
			needs: func(job Job) string {
				if job.Torch == "" || atLeast(job.Torch, "2.1") {
					return "nothing shows an old version"
				}
				return ""
			},
			how: func(Job, Setup) How {
				return How{Args: "pip install --upgrade torch",
					Env: "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   # after that"}
			},
		},
		{
			ID:    EmptyCache,
			Title: "empty the allocator's cache between phases",
			Why: "cached blocks go back to the driver, so that allocations of other sizes and other " +
				"processes can use them",
			Equivalence: Exact,
			Walls:       onDevice,
			Frameworks:  torch,
			Levels:      []Level{LevelProcess},
			timeline:    emptyAtSteps,
			slowdown:    constant(1.1), // Hugging Face's own figure for every step
			how: func(job Job, _ Setup) How {
				how := How{Code: "torch." + job.device() + ".empty_cache()   # between phases, not in the inner " +
					"loop"}
				if job.Trainer == Transformers && job.Facts == nil && job.trains() {
					how.Args = "--torch_empty_cache_steps 50"
				}
				return how
			},
		},
	}
}

func setting(id ID, key, value, title, why, since string, slowdown float64) *Remedy {
	return &Remedy{
		ID:          id,
		Title:       title,
		Why:         why,
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Levels:      []Level{LevelEnv},
		on:          func(s Setup) bool { return confHas(s.AllocConf, key) },
		conf:        func(conf string) string { return confWith(conf, key, value) },
		slowdown:    constant(slowdown),
		needs: func(job Job) string {
			if job.Torch != "" && !atLeast(job.Torch, since) {
				return "torch " + job.Torch + " does not know it: it came with " + since
			}
			return ""
		},
		env: map[Framework]string{PyTorch: "PYTORCH_CUDA_ALLOC_CONF=" + key + ":" + value},
	}
}
