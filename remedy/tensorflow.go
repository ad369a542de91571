package remedy

import "memroom/event"

const noTFCard = "neither TensorFlow nor JAX was available on the card we measure on"

// tensorflows: settings of TensorFlow's allocator and input pipeline.
func tensorflows() []*Remedy {
	return []*Remedy{{
		ID:    TFGrowth,
		Title: "let TensorFlow take memory as it needs it",
		titles: map[Framework]string{JAX: "let JAX have more of the card, or take memory as it " +
			"needs it"},
		Why: "by default it takes a fixed share of the card at once, which fails next to any " +
			"neighbour and starves other libraries",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  []Framework{TensorFlow, JAX},
		Levels:      []Level{LevelEnv},
		Unvalidated: noTFCard,
		env: map[Framework]string{TensorFlow: "TF_FORCE_GPU_ALLOW_GROWTH=true", JAX: lines(
			"XLA_PYTHON_CLIENT_MEM_FRACTION=0.95    # alone on the card: JAX takes 75 % of it by default",
			"XLA_PYTHON_CLIENT_PREALLOCATE=false    # next to others: takes memory as it is needed",
			"XLA_PYTHON_CLIENT_ALLOCATOR=platform   # frees everything at once; slow, to find out what "+
				"is needed")},
		code: map[Framework]string{TensorFlow: lines("for gpu in tf.config.list_physical_devices('GPU'): "+
			"  # before anything touches the card",
			"    tf.config.experimental.set_memory_growth(gpu, True)")},
	}, {
		ID: TFAllocator,
		needs: func(job Job) string {
			if job.Maker != NVIDIA {
				return "CUDA's allocator is for NVIDIA's cards"
			}
			return ""
		},
		Title:       "use CUDA's asynchronous allocator",
		Why:         "the driver's pool remaps free pages, so that fragments add up to large blocks",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  []Framework{TensorFlow, JAX},
		Levels:      []Level{LevelEnv},
		Unvalidated: noTFCard,
		slowdown:    constant(1.02),
		env: map[Framework]string{TensorFlow: "TF_GPU_ALLOCATOR=cuda_malloc_async",
			JAX: "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async"},
	}, {
		ID:    Layout,
		Title: "put a long dimension last, so that the layout pads less",
		Why: "a TPU lays the last two dimensions of an array out in tiles of 8 by 128: a last dimension of " +
			"one takes 128 times its size",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  []Framework{JAX, TensorFlow, PyTorch},
		code: map[Framework]string{
			JAX:        "x = jnp.moveaxis(x, -1, 1)   # or join short dimensions by reshape, before the operation",
			TensorFlow: "x = tf.transpose(x, perm)   # or join short dimensions by reshape, before the operation",
			PyTorch:    "x = x.movedim(-1, 1)   # or join short dimensions by reshape, before the operation"},
	}, {
		ID: UnifiedMemory,
		needs: func(job Job) string {
			if job.Maker != NVIDIA {
				return "unified memory is a matter of NVIDIA's cards"
			}
			return ""
		},
		Title:       "let what does not fit lie in host memory (unified memory)",
		Why:         "the driver moves pages between card and host, so that a program may be larger than the card",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  []Framework{JAX},
		Unvalidated: noTFCard,
		slowdown:    constant(2), // and more where much of it moves
		env: map[Framework]string{JAX: lines("TF_FORCE_UNIFIED_MEMORY=1",
			"XLA_PYTHON_CLIENT_MEM_FRACTION=4.0   # times the card; host memory must have that much")},
	}, {
		ID:    TFDataBudget,
		Title: "give tf.data a budget of host memory",
		Why: "AUTOTUNE may fill half of the machine's RAM with prefetched batches; cache() and " +
			"shuffle() hold whole elements",
		Equivalence: Exact,
		Walls:       onHost,
		Frameworks:  []Framework{TensorFlow},
		Levels:      []Level{LevelProcess},
		slowdown:    constant(1.05),
		code: map[Framework]string{TensorFlow: lines("options = tf.data.Options()",
			"options.autotune.ram_budget = 2 << 30",
			"dataset = dataset.with_options(options)")},
	}}
}
