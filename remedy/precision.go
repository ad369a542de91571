package remedy

import (
	"strings"

	"slices"

	"memroom/event"
)

// precisions: half-width activations.
func precisions() []*Remedy {
	return []*Remedy{{
		ID:    MixedPrecision,
		Title: "train in mixed precision (bfloat16 autocast)",
		Why: "activations of matrix products take two bytes instead of four; weights and " +
			"optimizer state stay in fp32",
		Equivalence: Changes,
		Consent:     "precision",
		Walls:       onDevice,
		Training:    true,
		Levels:      []Level{LevelArgs, LevelProcess},
		on:          func(s Setup) bool { return s.Precision != "" && s.Precision != "fp32" },
		rewrite:     func(s Setup) (Setup, bool) { s.Precision = "amp_bf16"; return s, true },
		// tensor cores: from 2x faster on matrix-bound models to nothing on small ones
		slowdown: constant(0.6),
		how:      howMixed,
	}}
}

func howMixed(job Job, _ Setup) How {
	how := How{Args: mixedArgs[job.Trainer]}
	if job.Trainer == Transformers && job.Where == event.WhereMPS {
		how.Args = "--bf16 True   # on macOS 14 or later"
	}
	if job.Facts != nil && how.Args != "" {
		return how // a trainer owns the loop
	}
	switch job.Framework {
	case TensorFlow:
		how.Code = "tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')   # before the model is built"
	case JAX:
		how.Code = "logits = model.apply(jax.tree.map(lambda p: p.astype(jnp.bfloat16), params), x)"
	default:
		how.Code = lines("with torch.autocast('"+job.device()+"', dtype=torch.bfloat16):",
			"    loss = loss_fn(model(x), y)",
			"loss.backward()        # float16 needs torch.amp.GradScaler around this and the step")
	}
	return how
}

var mixedArgs = map[Trainer]string{
	Transformers: "--bf16 True   # --fp16 True on cards before Ampere",
	Accelerate:   "accelerate launch --mixed_precision bf16",
	Lightning:    "--trainer.precision=bf16-mixed",
	DeepSpeed:    `"bf16": {"enabled": true}`,
	Torchtune:    "dtype=bf16        # casts the weights too",
	Axolotl:      "bf16: true",
	Keras:        "keras.config.set_dtype_policy('mixed_bfloat16')",
}

// checkpoints: activations that are computed again, or offloaded.
func checkpoints() []*Remedy {
	return []*Remedy{{
		ID:    Checkpointing,
		Title: "use activation checkpointing (gradient checkpointing)",
		Why: "only the inputs of each block are kept; its activations are computed again in the " +
			"backward pass",
		Equivalence: Exact,
		Walls:       anywhere,
		Training:    true,
		Levels:      []Level{LevelArgs, LevelProcess},
		on:          func(s Setup) bool { return s.Checkpointing },
		rewrite:     func(s Setup) (Setup, bool) { s.Checkpointing = true; return s, true },
		// one more forward pass: 8 instead of 6 operations per parameter and token
		slowdown: constant(1.33),
		how:      howCheckpointing,
	}, {
		ID:    ActivationBudget,
		Title: "give torch.compile an activation memory budget",
		Why: "the compiler keeps fewer activations for the backward pass and computes the rest " +
			"again",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelProcess},
		// cheap operations are computed again first
		slowdown: constant(1.2),
		code: map[Framework]string{
			PyTorch: lines("import torch._functorch.config",
				"torch._functorch.config.activation_memory_budget = 0.5   # before torch.compile"),
		},
	}, {
		ID:    ActivationOffload,
		Title: "offload activations to pinned host memory",
		Why: "activations wait in host memory and are copied back when the backward pass needs " +
			"them",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		Training:    true,
		Levels:      []Level{LevelProcess},
		on:          func(s Setup) bool { return s.Offloads("activations") },
		rewrite: func(s Setup) (Setup, bool) {
			s.Offload = slices.Concat(s.Offload, []string{"activations"})
			return s, true
		},
		// bound by the bus unless each layer computes longer than it copies
		slowdown: constant(1.5),
		args: map[Trainer]string{
			Torchtune: "enable_activation_offloading=True",
			Axolotl:   "gradient_checkpointing: offload",
		},
		code: map[Framework]string{
			PyTorch: lines("with torch.autograd.graph.save_on_cpu(pin_memory=True):",
				"    loss = loss_fn(model(x), y)", "loss.backward()"),
		},
	}}
}

func howCheckpointing(job Job, _ Setup) How {
	how := How{Args: checkpointArgs[job.Trainer]}
	if job.Facts[DrawTrained] && job.Trainer == Accelerate {
		return How{Args: "--gradient_checkpointing   # a setting of diffusers' scripts"}
	}
	if job.Facts != nil && !job.Facts[Pretrained] && !job.Facts[Text] &&
		strings.HasPrefix(how.Args, "model.") {
		// its method is one of transformers and diffusers
		how.Args = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False) around the blocks, in the " +
			"model's forward"
	}
	switch {
	case job.Facts != nil && how.Args != "": // a trainer owns the loop
	case job.Facts[DrawTrained] && job.Framework == PyTorch:
		how.Code = "unet.enable_gradient_checkpointing()   # diffusers; its scripts: --gradient_checkpointing"
	case job.Facts[Pretrained] && job.Framework == PyTorch:
		how.Code = "model.gradient_checkpointing_enable()   # of a model that the library loaded"
	case checkpointCode[job.Framework] != "":
		how.Code = checkpointCode[job.Framework]
	default:
		how.Code = checkpointCode[PyTorch]
	}
	return how
}

var checkpointArgs = map[Trainer]string{
	Transformers: "--gradient_checkpointing True --gradient_checkpointing_kwargs " +
		"'{\"use_reentrant\": false}'",
	Accelerate: "model.gradient_checkpointing_enable()   # before accelerator.prepare",
	Lightning:  "model.gradient_checkpointing_enable()   # in configure_model",
	DeepSpeed:  "model.gradient_checkpointing_enable()   # before deepspeed.initialize",
	Torchtune:  "enable_activation_checkpointing=True",
	Axolotl:    "gradient_checkpointing: true",
}

var checkpointCode = map[Framework]string{
	PyTorch: lines("from torch.utils.checkpoint import checkpoint",
		"for block in self.blocks:",
		"    x = checkpoint(block, x, use_reentrant=False)"),
	TensorFlow: "block = tf.recompute_grad(block)",
	JAX:        "block = jax.checkpoint(block)",
}
