package remedy

import "memroom/event"

// evaluations: memory of evaluation and generation, which differs from that of training.
func evaluations() []*Remedy {
	return []*Remedy{{
		ID:    EvalOutputs,
		Title: "keep of each evaluation batch only what the metric needs",
		Why: "what is kept of every batch adds up until the metrics are computed; class ids are far fewer " +
			"bytes than what the model puts out",
		Equivalence: Exact,
		Walls:       anywhere,
		how:         howEvalOutputs,
	}, {
		ID:    MetricReset,
		Title: "reset metric objects before each evaluation",
		Why: "metrics such as AUROC keep every prediction they are given until they are reset; a fixed " +
			"number of thresholds keeps counts instead",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines("metric.reset()                              # before "+
			"each evaluation",
			"metric = BinaryAUROC(thresholds=200)        # counts instead of all predictions")},
	}, {
		ID:          EvalBatch,
		Title:       "use a smaller evaluation batch",
		Why:         "evaluation and prediction have a batch size of their own",
		Equivalence: Exact,
		Walls:       anywhere,
		how:         howEvalBatch,
	}, {
		ID:    WindowOnHost,
		Title: "put the results of the windows together in host memory",
		Why: "scores for every class and position of the whole input are kept on the card while its windows " +
			"are computed",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		slowdown:    constant(1.1),
		how:         howWindows,
	}, {
		ID:          GenerationCache,
		Title:       "limit what generation keeps: new tokens, beams, sequences at once",
		Why:         "the cache of keys and values grows with every token, beam and sequence",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			if flags, ok := serverFlags[job.Program]; ok {
				return How{Args: flags}
			}
			if job.Trainer == VLLM || job.Program == "vllm" {
				return How{Args: "--max-model-len 4096 --max-num-seqs 16 --kv-cache-dtype fp8"}
			}
			return How{Code: lines("model.generate(**batch, max_new_tokens=256, num_beams=1,",
				"               cache_implementation='offloaded')   # the cache waits in host memory")}
		},
	}, {
		ID:          AutocastCache,
		Title:       "open autocast inside the loop, around each batch",
		Why:         "an autocast around a whole loop keeps its copies of the weights until the end",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines("for x in loader:",
			"    with torch.no_grad(), torch.autocast('cuda', cache_enabled=False):",
			"        y = model(x)")},
	}, {
		ID:    LongestBatch,
		Title: "run the longest batch first, and group samples by length",
		Why: "padding makes every sample as long as the longest; one long batch sets the peak of " +
			"the whole run",
		Equivalence: Expected,
		Walls:       anywhere,
		how:         howLongest,
	}, {
		ID:    CUDAGraphSizes,
		Title: "record CUDA graphs for fewer input sizes, or none",
		Why: "each distinct input size records a graph with a private pool that is never given " +
			"back",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		Frameworks:  torch,
		how: func(job Job, _ Setup) How {
			switch {
			case job.Program == "sglang":
				return How{Args: "--disable-cuda-graph   # or --cuda-graph-max-bs 16: graphs for fewer sizes"}
			case job.Program == "vllm" || job.Trainer == VLLM:
				return How{Args: "--enforce-eager   # no graphs; or --max-num-seqs 64: graphs for fewer sizes"}
			}
			few := "batch = tokenizer(texts, padding='longest', pad_to_multiple_of=128)   # few fixed lengths"
			if job.Facts != nil && !(job.Facts[Text] && job.Facts[Pretrained]) {
				few = "# pad or resize inputs to a few fixed shapes, or:"
			}
			return How{Code: lines(few, "model = torch.compile(model, mode='default')                          # no CUDA graphs, or:",
				"torch._inductor.config.triton.cudagraph_skip_dynamic_graphs = True")}
		},
	}}
}

// keepWords is what to keep of a batch, in nobody's code.
const keepWords = "of each batch keep a score, a count or class ids in host memory, or write its results to a " +
	"file; no list of all outputs"

func howEvalOutputs(job Job, _ Setup) How {
	if job.Framework == JAX {
		return How{Code: "results.append(np.asarray(jnp.argmax(logits, -1)))   # of each batch, in host memory"}
	}
	if job.Framework == TensorFlow {
		return How{Code: lines("for batch in dataset:                # predictions of one batch at a time",
			"    metric.update_state(labels, model.predict_on_batch(batch))")}
	}
	if (job.onHost() || job.Framework == Python || !job.Facts[Loader]) && job.Trainer == Plain &&
		job.Facts != nil {
		return How{Args: keepWords}
	}
	switch job.Trainer {
	case Transformers, Axolotl:
		keep := "trainer = Trainer(..., preprocess_logits_for_metrics=lambda logits, labels: " +
			"logits.argmax(dim=-1))"
		if job.onHost() {
			return How{Args: "--prediction_loss_only True   # where only the loss is needed", Code: keep}
		}
		return How{
			Args: "--eval_accumulation_steps 8   # logits go to host memory; --prediction_loss_only True " +
				"keeps none; --predict_with_generate True for seq2seq",
			Code: keep}
	case Lightning:
		return How{Code: lines("def validation_step(self, batch, _):",
			"    self.metric.update(self(batch).argmax(-1), batch['y'])   # no list of outputs")}
	}
	return How{Code: lines("with torch.no_grad():", "    for x, y in loader:",
		"        predictions.append(model(x).argmax(-1).cpu())   # not the logits, and not on the card")}
}

func howEvalBatch(job Job, _ Setup) How {
	switch job.Trainer {
	case Transformers:
		return How{Args: "--per_device_eval_batch_size 1   # its default is 8"}
	case Axolotl:
		return How{Args: "eval_batch_size: 1"}
	case Lightning:
		return How{Code: "def val_dataloader(self): return DataLoader(self.val, batch_size=1)"}
	}
	if job.Framework == JAX || job.Framework == Python {
		return How{Args: "a smaller batch_size where the batches of evaluation are made"}
	}
	if job.Framework == TensorFlow {
		return How{Code: "model.evaluate(x, y, batch_size=8)   # or model.predict(x, batch_size=8): each takes " +
			"a batch size of its own"}
	}
	if job.Facts != nil && !job.Facts[Loader] {
		return How{Args: "a smaller batch_size where the batches of evaluation are made"}
	}
	return How{Code: "eval_loader = DataLoader(dataset, batch_size=HALF_YOUR_EVALUATION_BATCH)"}
}

// howWindows has the arguments of the libraries that work through large inputs in windows.
func howWindows(job Job, _ Setup) How {
	switch job.Windows {
	case "monai":
		return How{Code: "sliding_window_inference(x, roi_size, sw_batch_size=1, predictor=model, " +
			"sw_device='" + job.device() + "', device='cpu')"}
	case "nnunet":
		return How{Code: "nnUNetPredictor(..., perform_everything_on_device=False)   # flag: " +
			"--not_on_device"}
	case "mmseg":
		return How{Args: "test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341))   # and " +
			"smaller images in the test pipeline"}
	}
	return How{Args: "the device of the result: the CPU; fewer windows at once"}
}

func howLongest(job Job, _ Setup) How {
	switch job.Trainer {
	case Transformers:
		grouped := "--group_by_length True"
		if job.written("--max_seq_length") {
			grouped += " --max_seq_length YOUR_LIMIT"
		}
		return How{Args: grouped + "   # the longest batch comes first"}
	case Axolotl:
		return How{Args: "group_by_length: true\nsample_packing: true"}
	}
	if job.Framework == TensorFlow {
		return How{Code: "dataset = dataset.bucket_by_sequence_length(len_of, bucket_boundaries=[64, " +
			"128, 256, 512], bucket_batch_sizes=[64, 32, 16, 8, 4])"}
	}
	if job.Facts != nil && !(job.Facts[Text] && job.Facts[Loader]) {
		return How{Args: "the longest or largest samples first, as a rehearsal; then a bound on their size, or " +
			"batches of samples that are alike"}
	}
	return How{Code: lines("order = sorted(range(len(dataset)), key=lambda i: -length(dataset[i]))   "+
		"# a rehearsal: longest first",
		"dataset = [s for s in dataset if length(s) <= LIMIT]                     # or cut what is longer")}
}
