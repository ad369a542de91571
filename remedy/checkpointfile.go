package remedy

import "memroom/event"

// checkpointFiles: weights on their way from and to a disk.
func checkpointFiles() []*Remedy {
	return []*Remedy{{
		ID:    LoadToHost,
		Title: "load checkpoints into host memory and let go of them",
		Why: "torch.load puts tensors back on the card they were saved from, in addition to the model; " +
			"the loaded dict stays alive while a name holds it",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			if job.Trainer == Accelerate && job.Facts != nil && !job.Facts[OwnLoop] {
				return How{Code: "accelerator.load_state(path, map_location='cpu')   # in versions that have it"}
			}
			if job.Facts != nil && !job.Facts[OwnLoop] && job.Trainer != Plain {
				return How{Args: inSettings[LoadToHost]}
			}
			return How{Code: lines("checkpoint = torch.load(path, map_location='cpu')",
				"model.load_state_dict(checkpoint['model'])",
				"del checkpoint   # as soon as it is loaded")}
		},
	}, {
		ID:          SaveSharded,
		Title:       "save the shards, or gather the whole state dict in host memory of rank 0",
		Why:         "a full state dict on the card needs room for all weights at once",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		needs: func(job Job) string {
			if job.onHost() && !job.shards() {
				return "it moves weights to host memory, which is what ran out"
			}
			return ""
		},
		how: howSave,
	}, {
		ID:    ObjectsOnHost,
		Title: "exchange Python objects over a group that works in host memory",
		Why: "over NCCL, objects are pickled into tensors on the card, and all ranks' at once where they " +
			"are gathered",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines("group = torch.distributed.new_group(backend='gloo')",
			"torch.distributed.all_gather_object(results, item, group=group)")},
	}, {
		ID:    SaveAsItIs,
		Title: "write the weights straight into the file, without a second copy in memory",
		Why: "a clone of every weight, or a file that is built in memory first, needs the size of " +
			"the checkpoint once more",
		Equivalence: Exact,
		Walls:       onHost,
		Frameworks:  []Framework{PyTorch, TensorFlow},
		how:         howSaveAsItIs,
	}, {
		ID:          MergeOnHost,
		Title:       "merge the adapters in half precision, in a process of its own, outside of the card",
		Why:         "merging needs the full-precision weights in addition to what the card holds already",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			place := "device_map='cpu')"
			if job.Where == event.WhereHost || job.Where == event.WhereCgroup {
				place = "low_cpu_mem_usage=True, device_map='auto', offload_folder='offload')"
			}
			return How{Code: lines("base = AutoModelForCausalLM.from_pretrained(name, "+
				"torch_dtype=torch.bfloat16, "+place,
				"PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(out)")}
		},
	}, {
		ID:          LoadOnce,
		Title:       "do not load the whole model once per rank",
		Why:         "every rank builds and reads the whole model in host memory before it is divided",
		Equivalence: Exact,
		Walls:       onHost,
		Frameworks:  torch,
		how:         howLoadOnce,
	}, {
		ID:    ShardAtLoad,
		Title: "make the ZeRO or FSDP settings known before the model is built",
		Why: "a model that is loaded first is whole on every card; zero.Init divides it only " +
			"while it is built",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU, event.WhereHost, event.WhereCgroup},
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			if job.Facts != nil && !job.Facts[Pretrained] {
				return How{Code: "with deepspeed.zero.Init(): model = build()   # FSDP: build on the meta device"}
			}
			return How{Code: lines("args = TrainingArguments(..., deepspeed='zero3.json') "+
				"  # before from_pretrained; or keep HfDeepSpeedConfig(config) alive",
				"model = AutoModelForCausalLM.from_pretrained(name)     # now under deepspeed.zero.Init")}
		},
	}, {
		ID:    OffloadLess,
		Title: "offload less to host memory, or offload to NVMe",
		Why: "offloaded Adam keeps 12 bytes a parameter in host memory (fp32 weights and two " +
			"moments), and pinned buffers",
		Equivalence: Exact,
		Walls:       onHost,
		Frameworks:  torch,
		slowdown:    constant(1.2),
		args: map[Trainer]string{
			DeepSpeed:    `"offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": false}`,
			Transformers: `"offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme"}   # in the DeepSpeed configuration`,
		},
		code: map[Framework]string{PyTorch: "# a machine with more memory: 16 to 20 bytes a parameter in " +
			"all; or LoRA, which offloads little; or more cards without offload"},
	}}
}

// halfWeights: weights in half precision, or on several devices, in every framework's words.
func halfWeights() []*Remedy {
	return []*Remedy{{
		ID:          HalfWeights,
		Title:       "load the weights in half precision, or spread them over several devices",
		Why:         "bfloat16 takes half of float32; each device then holds its share only",
		Equivalence: Changes,
		Consent:     "precision",
		Walls:       anywhere,
		Frameworks:  []Framework{PyTorch, TensorFlow, JAX},
		args:        map[Trainer]string{VLLM: "--dtype bfloat16 --tensor-parallel-size 2"},
		code: map[Framework]string{
			PyTorch: "model = AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16, device_map='auto')",
			TensorFlow: lines("keras.config.set_floatx('bfloat16')   # before the model is built",
				"keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))"),
			JAX: lines("params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), params)   # in host memory first",
				"params = jax.device_put(params, NamedSharding(mesh, PartitionSpec('model')))   # each device "+
					"its share"),
		},
	}, {
		ID:    SaveParts,
		Title: "write it in parts, in a format that needs no copy",
		Why: "pickle builds the bytes of the whole object in memory, a second copy; arrays in files of their own " +
			"are written as they are",
		Equivalence: Exact,
		Walls:       onHost,
		how: func(Job, Setup) How {
			return How{Code: lines("for i, part in enumerate(parts):",
				"    np.save(f'part-{i}.npy', part)   # one array a file; or pickle with protocol=5, part by part")}
		},
	}}
}

func howSave(job Job, _ Setup) How {
	if !job.shards() {
		return How{Code: "torch.save({name: t.cpu() for name, t in model.state_dict().items()}, path)"}
	}
	args := map[Trainer]string{
		Transformers: "fsdp_state_dict_type: SHARDED_STATE_DICT   # in the accelerate configuration",
		Accelerate:   "accelerate launch --fsdp_state_dict_type SHARDED_STATE_DICT",
		Lightning:    "--trainer.strategy.state_dict_type=sharded",
		DeepSpeed:    `"zero_optimization": {"stage3_gather_16bit_weights_on_model_save": false}`,
	}
	if job.Facts[Shards] {
		return How{Code: lines("FSDP.set_state_dict_type(model, StateDictType.SHARDED_STATE_DICT, "+
			"ShardedStateDictConfig(offload_to_cpu=True),",
			"                         ShardedOptimStateDictConfig(offload_to_cpu=True))")}
	}
	if job.onHost() { // the whole state dict is what did not fit there
		return How{Args: args[job.Trainer], Code: "torch.distributed.checkpoint.save(state, " +
			"checkpoint_id=path)   # every rank writes its shards"}
	}
	return How{Args: args[job.Trainer], Code: lines("policy = FullStateDictConfig(offload_to_cpu=True, "+
		"rank0_only=True)",
		"with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, policy):",
		"    state = model.state_dict()   # or torch.distributed.checkpoint.save(...) for shards")}
}

func howSaveAsItIs(job Job, _ Setup) How {
	switch {
	case job.Framework == TensorFlow:
		return How{Code: "model.save_weights('weights.h5')   # variable by variable, into a file on disk"}
	case job.Trainer == Lightning:
		// Lightning builds the file in memory, for stores that cannot append
		return How{Code: lines("class Straight(TorchCheckpointIO):",
			"    def save_checkpoint(self, checkpoint, path, storage_options=None):",
			"        torch.save(checkpoint, path)   # tensor by tensor",
			"trainer = Trainer(..., plugins=[Straight()])")}
	}
	return How{Code: lines("torch.save(model.state_dict(), path)   # no clone(), no deepcopy, no io.BytesIO",
		"safetensors.torch.save_file(model.state_dict(), path)   # likewise")}
}

func howLoadOnce(job Job, _ Setup) How {
	one := "model = AutoModel.from_pretrained(name, low_cpu_mem_usage=True, torch_dtype='auto')   # one " +
		"copy, from safetensors"
	if job.Facts != nil && !job.Facts[Ranks] {
		return How{Code: one}
	}
	if job.Facts != nil && !job.Facts[Pretrained] {
		one = "state = torch.load(path, map_location='cpu', mmap=True)   # pages of the file, not a copy a rank"
	}
	args := map[Trainer]string{
		DeepSpeed: "with deepspeed.zero.Init(): ...   # builds the model in shards (ZeRO 3)",
		Accelerate: "accelerate launch --use_fsdp --fsdp_cpu_ram_efficient_loading true   # rank 0 " +
			"reads, the others wait on meta",
	}
	return How{Args: args[job.Trainer], Code: lines(one,
		"with torch.device('meta'): model = build()   # on ranks other than 0; or let ranks load one at "+
			"a time")}
}
