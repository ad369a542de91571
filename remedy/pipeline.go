package remedy

import "memroom/event"

// pipelines: buffers between the disk and the model.
func pipelines() []*Remedy {
	return []*Remedy{{
		ID:          ShuffleBuffer,
		Title:       "use a smaller shuffle buffer, and shuffle before decoding",
		Why:         "shuffle(n) holds n whole elements; decoded images are many times larger than files",
		Equivalence: Expected,
		Walls:       onHost,
		Frameworks:  []Framework{TensorFlow, PyTorch},
		code: map[Framework]string{
			TensorFlow: "dataset = files.shuffle(10_000).map(decode).shuffle(256)   # names first, few " +
				"decoded elements after; cache() to a file",
			PyTorch: "dataset = dataset.shuffle(buffer_size=1000)   # webdataset, datasets: elements held " +
				"at once, in every worker",
		},
	}, {
		ID:    MapProcesses,
		Title: "run map with fewer processes and write its results more often",
		Why: "each of num_proc processes holds writer_batch_size results and a copy of what the " +
			"function captures",
		Equivalence: Exact,
		Walls:       onHost,
		slowdown:    constant(1.3),
		how: func(job Job, _ Setup) How {
			how := How{Code: lines("ds.map(f, num_proc=2, batch_size=100, writer_batch_size=100, "+
				"keep_in_memory=False)",
				"# large tables the function needs: as a data set in Arrow files, not as a dict that is copied "+
					"to every process")}
			if job.Forked {
				how.Args = "sysctl vm.overcommit_memory=1   # root may let the kernel promise more"
			}
			return how
		},
	}, {
		ID:    PipelineOffload,
		Title: "decode in tiles, and keep the parts of the pipeline that wait in host memory",
		Why: "text encoder, denoiser and decoder work one after the other; decoding a whole image or " +
			"clip at once is the peak",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		slowdown:    constant(1.3),
		needs: func(job Job) string {
			if !job.Images && job.Trainer != Kohya && !job.Facts[DrawTrained] {
				return "no images are generated here"
			}
			return ""
		},
		how: howPipeline,
	}, {
		ID:          FewerPoints,
		Title:       "let the program keep fewer points",
		Why:         "each point has values and states of its own, and more are added while it runs",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       onDevice,
		how: func(Job, Setup) How {
			return How{Args: "a higher threshold for adding points, an earlier end of it, or a bound on their " +
				"number"}
		},
	}, {
		ID:    FewerPairs,
		Title: "compare fewer boxes or points at once, or compare them on the CPU",
		Why: "comparing all with all needs memory for every pair: one sample with very many objects " +
			"sets the peak, whatever the batch",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		slowdown:    constant(1.1),
		how: func(job Job, _ Setup) How {
			how := How{Code: "torch.cat([f(part, b) for part in a.split(1024)])   # in chunks instead of all at " +
				"once"}
			if job.Facts == nil || job.Facts[Detection] {
				how.Args = "MMDetection: gpu_assign_thr=300 in the assigner   # more objects than that are " +
					"matched on the CPU; or crop, or drop samples with more"
			}
			return how
		},
	}, {
		ID:          FewerProcesses,
		Title:       "use fewer worker processes, or give each less to hold",
		Why:         "every process of a pool has its own copy of what it touches, and its own results",
		Equivalence: Exact,
		Walls:       onHost,
		slowdown:    constant(1.3),
		how: func(job Job, _ Setup) How {
			switch job.Pool {
			case "joblib":
				return How{Code: "Parallel(n_jobs=2, max_nbytes='10M')(...)   # large arrays go to workers as " +
					"memory maps; batches of tasks stay small"}
			case "nnunet":
				return How{Args: "nnUNetv2_plan_and_preprocess -np 2; nnUNetv2_predict -npp 1 -nps 1",
					Env: "nnUNet_n_proc_DA=2   # workers of the loader in training; 0: none"}
			case "datasets":
				return How{Code: "ds.map(f, num_proc=2, batch_size=100, writer_batch_size=100)"}
			}
			return How{Args: "fewer of them where they are started: max_workers, processes, n_jobs, num_proc"}
		},
	}, {
		ID:          SmallerLayer,
		Title:       "make the largest layer smaller",
		Why:         "one weight matrix over the whole flattened input is as large as all others together",
		Equivalence: Changes,
		Consent:     "model",
		Walls:       anywhere,
		Frameworks:  []Framework{TensorFlow, PyTorch, JAX},
		how: func(job Job, _ Setup) How {
			if job.Facts[Table] {
				return How{Args: "fewer words or classes (the frequent ones), or shorter vectors"}
			}
			framework := job.Framework
			if flatCode[framework] == "" {
				framework = TensorFlow
			}
			return How{Code: flatCode[framework]}
		},
	}}
}

// flatCode pools instead of flattening.
var flatCode = map[Framework]string{
	TensorFlow: "x = layers.GlobalAveragePooling2D()(x)   # pooling instead of Flatten; fewer units " +
		"in Dense",
	PyTorch: "x = F.adaptive_avg_pool2d(x, 1).flatten(1)   # pooling instead of a flatten over " +
		"all pixels",
	JAX: "x = x.mean(axis=(1, 2))   # pooling instead of a reshape over all pixels",
}

// howPipeline has the flags of the program that draws; diffusers is a library, whose code it is.
func howPipeline(job Job, _ Setup) How {
	code := "pipe.enable_model_cpu_offload(); pipe.vae.enable_tiling(); pipe.vae.enable_slicing()   # " +
		"diffusers; a smaller image or fewer frames otherwise"
	if job.Where == event.WhereMPS { // batches that wait on the host take the same memory
		return How{Args: "tiled decoding, weights of fewer bits, a smaller image or fewer frames, fewer models loaded at " +
			"once"}
	}
	if job.Facts[DrawTrained] {
		return How{Args: "texts and images encoded beforehand, with the encoders off the card; a base model of " +
			"fewer bits (fp8, nf4) under the adapters; settings of the script"}
	}
	switch job.Program {
	case "comfyui":
		return How{Args: "--lowvram   # and the node VAE Decode (Tiled), weights in fp8, a smaller image or " +
			"fewer frames"}
	case "webui":
		return How{Args: "--medvram   # or --lowvram; Tiled VAE, a smaller image"}
	case "invokeai":
		return How{Args: "invokeai.yaml: enable_partial_loading: true   # tiled decoding, a smaller image"}
	case "":
		return How{Code: code}
	}
	return How{Args: "its own low-memory mode, tiled decoding, a smaller image or fewer frames"}
}
