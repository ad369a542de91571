package remedy

import (
	"fmt"

	"memroom/event"
)

// systems: limits of the operating system and of other programs, and which card is used.
func systems() []*Remedy {
	return []*Remedy{{
		ID:    PageFile,
		Title: "enlarge Windows' page file",
		Why: "Windows promises no more memory than RAM and page file together; CUDA needs such a " +
			"promise even for memory on the card",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereGPU},
		how: func(job Job, _ Setup) How {
			how := How{Args: "System > Advanced system settings > Performance > Advanced > Virtual memory: " +
				"page file of 1.5 times the RAM or more, then restart"}
			if job.Facts == nil && job.ofTorch() || job.Facts[Loader] {
				how.Code = "DataLoader(dataset, num_workers=0)   # every worker loads the CUDA libraries and " +
					"counts against the limit"
			}
			return how
		},
	}, {
		ID:          RightDevice,
		Title:       "run it on the discrete card",
		Why:         "an integrated GPU has only the small share of host memory that the firmware assigns",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		how: func(job Job, _ Setup) How {
			variable, _ := job.visible()
			if variable == "" {
				variable = "CUDA_VISIBLE_DEVICES"
			}
			return How{Env: variable + "=N   # N: the card that has more memory",
				Args: "or give the integrated one more in the firmware (UMA frame buffer), or decode on the CPU"}
		},
	}, {
		ID:    WSLMemory,
		Title: "give WSL more of the machine's memory and swap",
		Why: "WSL has half of the RAM by default, and locks only part of that for the " +
			"card",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereGPU},
		how: func(Job, Setup) How {
			return How{Args: lines("memory=48GB and swap=64GB below [wsl2] in %UserProfile%\\.wslconfig",
				"wsl --shutdown   # then start it again")}
		},
	}, {
		ID:    SelectCard,
		Title: "put each process on its own card from the first line",
		Why: ".cuda() without a number, torch.load and a context land on card 0, whichever card " +
			"you mean",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  []Framework{PyTorch, TensorFlow},
		how: func(job Job, _ Setup) How {
			if job.Framework == TensorFlow {
				return How{Env: "CUDA_VISIBLE_DEVICES=N   # the process sees this card only",
					Code: lines("gpus = tf.config.list_physical_devices('GPU')   # before anything touches a card",
						"tf.config.set_visible_devices(gpus[local_rank], 'GPU')   # Horovod: hvd.local_rank()")}
			}
			return How{Env: "CUDA_VISIBLE_DEVICES=N   # the process sees this card only, as cuda:0",
				Code: "torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))   # before anything touches a " +
					"card"}
		},
	}, {
		ID:    DDP,
		Title: "use DistributedDataParallel, or compute the loss inside the model's forward",
		Why: "DataParallel gathers the outputs of all cards, their gradients and the loss on the first " +
			"card; one process a card gathers nothing",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			if job.Facts != nil && !job.Facts[OwnLoop] && job.Facts[Pretrained] || job.Trainer != Plain {
				return How{Args: "torchrun --nproc_per_node=N train.py   # one process a card; the library does " +
					"the rest"}
			}
			return How{Code: lines("model = DistributedDataParallel(model.cuda(rank), "+
				"device_ids=[rank])   # torchrun --nproc_per_node=N train.py",
				"# or: forward(self, x, y) returns loss.unsqueeze(0), so that numbers are gathered, not "+
					"outputs")}
		},
	}, {
		ID:    ServingShare,
		Title: "set the share of the card that the server takes, or a shorter context",
		Why: "the server refuses to start where its share is not free, or leaves too little for " +
			"the cache of keys and values",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU, event.WhereHost, event.WhereCgroup},
		how: func(job Job, _ Setup) How {
			if flags, ok := serverFlags[job.Program]; ok {
				return How{Args: flags}
			}
			share, length := "0.95", "YOUR_LIMIT"
			switch {
			case job.Share == LessShare:
				share = "LESS_THAN_NOW"
			case job.Share > 0:
				share = fmt.Sprintf("%.2f", job.Share)
			}
			if job.Fits > 0 {
				length = fmt.Sprint(job.Fits)
			}
			return How{Args: "--gpu-memory-utilization " + share + " --max-model-len " + length +
				"   # in code: gpu_memory_utilization, max_model_len, max_num_seqs; --enforce-eager records no " +
				"CUDA graphs"}
		},
	}}
}

// serverFlags are what servers other than vLLM call their share of the card and their context.
var serverFlags = map[string]string{
	"sglang": "--mem-fraction-static N   # more where the cache finds no room at the start, less where a " +
		"request runs out; --context-length and --max-running-requests bound the cache",
	"tgi": "--max-total-tokens YOUR_LIMIT --max-batch-prefill-tokens YOUR_LIMIT   # --cuda-memory-fraction " +
		"0.9 leaves room for the rest; --num-shard N spreads it over cards",
	"llama.cpp": "-ngl N   # fewer layers on the card; -c 4096 is a shorter context, -ub 256 a smaller " +
		"batch of the prompt; in Python: n_gpu_layers, n_ctx, n_batch",
	"ollama": "num_ctx 4096, num_gpu N   # a shorter context, fewer layers on the card; " +
		"OLLAMA_NUM_PARALLEL=1 keeps one cache",
	"triton": "instance_group [{count: 1}], max_batch_size   # in config.pbtxt: fewer copies of the model, " +
		"smaller batches; --cuda-memory-pool-byte-size for its own pool",
	"tensorrt-llm": "kv_cache_free_gpu_memory_fraction=0.8   # max_batch_size and max_num_tokens when the " +
		"engine is built",
	"lmdeploy": "--cache-max-entry-count 0.4 --session-len YOUR_LIMIT",
}

// mistakes: sizes that nobody meant.
func mistakes() []*Remedy {
	return []*Remedy{{
		ID:          InParts,
		Title:       "make that tensor in parts, or not at all",
		Why:         "one tensor is what does not fit: only its own size counts",
		Equivalence: Exact,
		Walls:       anywhere,
		needs: func(job Job) string {
			if job.Facts != nil && job.Parts == "" {
				return "nothing shows which tensor it is"
			}
			return ""
		},
		how: func(job Job, _ Setup) How {
			if job.Parts == "" {
				return How{Args: inWords[InParts]}
			}
			return How{Code: job.Parts}
		},
	}, {
		ID:    CheckShapes,
		Title: "print and check the shapes at that line",
		Why: "such a size comes from a wrong shape, an index used as a size, broadcasting or all " +
			"pairs at once (cdist)",
		Equivalence: Exact,
		Walls:       append([]event.Where{event.WhereShm}, anywhere...),
		how: func(job Job, _ Setup) How {
			switch job.Framework {
			case TensorFlow:
				return How{Code: "tf.debugging.assert_shapes([(x, ('B', 'N'))]); tf.print(tf.shape(x))"}
			case JAX:
				return How{Code: "print(jax.eval_shape(f, x))   # shapes without running it"}
			}
			return How{Code: "print(a.shape, b.shape, index.min(), index.max())   # (N, 1) with (1, M) " +
				"broadcasts to (N, M)"}
		},
	}, {
		ID:          OtherVersion,
		Title:       "try another version of the library at that line",
		Why:         "a size that no machine has, asked for inside a library, is a bug of that version",
		Equivalence: Exact,
		Walls:       append([]event.Where{event.WhereShm}, anywhere...),
		how: func(Job, Setup) How {
			return How{Args: "pip install --upgrade LIBRARY   # or the last stable version instead of a " +
				"nightly; or another way to save or load"}
		},
	}}
}
