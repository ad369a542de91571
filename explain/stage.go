package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// stage is a part of a program's work that a traceback shows.
type stage struct {
	names  []string // of functions
	like   *lazyregexp.Regexp
	files  []string           // parts of paths
	code   []string           // parts of source lines
	unlike *lazyregexp.Regexp // paths of frames that do not count
	sign   string             // a circumstance that shows it
	cause  Cause
	detail string
	sure   float64
	says   string
}

// in returns the innermost frame that shows the stage.
func (s *stage) in(c *trace.Crash) (int, bool) {
	for i, f := range c.Frames {
		file := strings.ReplaceAll(f.File, "\\", "/") // of Windows
		if s.unlike != nil && s.unlike.MatchString(file) {
			continue
		}
		if slices.Contains(s.names, f.Name) || containsAny(file, s.files) ||
			s.like != nil && s.like.MatchString(f.Name) ||
			i < len(c.Code) && (containsAny(c.Code[i], s.code) || s.called(c.Code[i])) {
			return i, true
		}
	}
	return 0, false
}

// called reports whether a source line calls one of the functions: tracebacks are often cut inside
// of it. Short names mean too many things.
func (s *stage) called(line string) bool {
	return slices.ContainsFunc(s.names, func(name string) bool {
		return len(name) >= 12 && strings.Contains(name, "_") && strings.Contains(line, name+"(")
	})
}

func (s *stage) judge(c *trace.Crash) (judged, bool) {
	if i, ok := s.in(c); ok {
		j := because(s.cause, s.detail, s.sure, "%s (%s in %s)", s.says, c.Frames[i].Name,
			c.Frames[i].File)
		j.frame = i
		return j, true
	}
	if s.sign != "" && has(c, s.sign) && (s.sign != trace.SignLogits || len(c.Frames) == 0) {
		return because(s.cause, s.detail, s.sure, "%s", s.says), true
	}
	return judged{}, false
}

func containsAny(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(p string) bool { return strings.Contains(text, p) })
}

// ownStages are reached by one kind of work only. They say more than figures do.
var ownStages = []stage{
	{names: []string{"gather_map"}, files: []string{"nn/parallel/comm.py",
		"parallel/scatter_gather.py"},
		code:  []string{"_C._gather(", "self.gather(outputs"},
		cause: CauseBatch, detail: "first_card", sure: 0.75,
		says: "while DataParallel gathered the outputs of all cards on the first one"},
	{sign: trace.SignReplica, cause: CauseBatch, detail: "first_card", sure: 0.6,
		says: "in a replica of DataParallel, which runs all cards from one process and gathers their " +
			"outputs on the first"},
	{names: []string{"set_device", "_lazy_init", "_cuda_init", "barrier", "init_process_group"},
		cause:  CauseNeighbour,
		detail: "context", sure: 0.6,
		says: "before this program had anything on the card: its context did not fit"},
	{names: []string{"_allocate_kv_cache", "initialize_cache", "_initialize_kv_caches",
		"initialize_kv_cache", "_allocate_kv_cache_tensors", "init_memory_pool", "allocate_gpu_cache",
		"initialize_from_config", "create_and_map", "python_create_and_map"},
		files: []string{"vllm/worker/cache_engine", "mem_cache/memory_pool", "device_allocator/cumem",
			"torch_memory_saver"},
		cause: CauseModel, detail: "kv_cache", sure: 0.75,
		says: "while an inference engine took its share of the card for the cache of keys and values"},
	{names: []string{"capture_model", "_dummy_sampler_run", "_dummy_run", "init_device_graphs",
		"capture_one_batch_size", "init_cuda_graphs", "warmup", "warm_up", "cuda_graph_warmup"},
		files: []string{"cuda_graph_runner.py"},
		cause: CauseModel, detail: "serving_warmup", sure: 0.7,
		says: "while an inference engine warmed up and recorded its CUDA graphs"},
	{names: []string{"merge_and_unload", "merge_adapter", "_unload_and_optionally_merge",
		"get_delta_weight", "merge_lora", "merge_lora_weights", "safe_merge"},
		code:  []string{"merge_and_unload(", "delta_weight"},
		cause: CauseModel, detail: "merge",
		sure: 0.8, says: "while adapters were merged into the weights"},
	{names: []string{"_full_pre_state_dict_hook", "_full_post_state_dict_hook",
		"_common_unshard_pre_state_dict_hook", "full_optim_state_dict", "_optim_state_dict",
		"summon_full_params", "_unshard_params", "full_state_dict",
		"_consolidated_16bit_state_dict",
		"_zero3_consolidated_16bit_state_dict", "save_16bit_model", "get_full_state_dict",
		"consolidate_state_dict", "gather_full_state_dict", "gather_cpu_state_dict",
		"get_model_state_dict", "_get_full_state_dict", "full_tensor"},
		files: []string{"fsdp/_state_dict_utils", "fsdp/_optim_utils", "fsdp/_unshard_param_utils"},
		sign:  trace.SignGathers,
		cause: CauseModel, detail: "full_state_dict", sure: 0.8,
		says: "while the whole state dict was gathered to save a checkpoint"},
	{names: []string{"log_images", "sample_log", "log_img", "log_validation", "log_local",
		"sample_images",
		"generate_samples", "save_samples"},
		code: []string{"log_images(", "log_validation("}, cause: CauseBatch, detail: "logged_samples",
		sure: 0.7,
		says: "while images were generated to be logged, beside all that training holds"},
	{names: []string{"unwrap_model_for_generation", "gather_deepspeed3_params"},
		code:  []string{"GatheredParameters("},
		cause: CauseModel, detail: "gathered_all", sure: 0.65,
		says: "while the parameters that ZeRO 3 divides were gathered as a whole"},
	{names: []string{"default_restore_location", "restore_location", "_cuda_deserialize",
		"_deserialize", "persistent_load", "load_tensor"}, code: []string{"torch.load("},
		unlike: mapsItself,
		cause:  CauseModel, detail: "load_to_card", sure: 0.75,
		says: "while torch.load restored a checkpoint straight to the card"},
	{names: []string{"_broadcast_state_dict", "_broadcast_tensors", "_load_model_state_dict",
		"set_model_state_dict", "set_optimizer_state_dict", "_load_optim_state_dict",
		"restore_checkpoint", "load_optimizer_state", "_load_optimizer_and_scheduler",
		"load_zero_checkpoint", "_load_zero_checkpoint", "resume_checkpoint", "load_opt_state",
		"_pre_load_state_dict_hook", "load_accelerator_state"},
		files: []string{"accelerate/checkpointing.py"},
		like:  resuming, cause: CauseModel, detail: "load_to_card", sure: 0.7,
		says: restored + " (weights or optimizer) was restored beside what the card holds"},
	{names: []string{"save_checkpoint", "save_model", "_save_checkpoint", "save_pretrained",
		"_save", "_legacy_save", "_write_checkpoint", "save_state", "save_state_dict",
		"_save_optimizer_and_scheduler", "state_dict", "async_save", "_offload_state_dict_to_cpu",
		"_create_cpu_state_dict", "_copy_state_dict", "_stage_state_dict"},
		code: []string{"torch.save(", "dcp.save(", "dcp.async_save("},
		like: saving, cause: CauseModel,
		detail: "checkpoint_save", sure: 0.7, says: "while a checkpoint was saved"},
}

// mapsItself are files of libraries that choose themselves where a checkpoint goes.
var mapsItself = lazyregexp.New(`accelerate/checkpointing\.py`)

// restored begins what is said of a state that comes back, by whatever call.
const restored = "while a saved state"

// passThrough are parts of frameworks that every program runs through, whatever it computes.
var passThrough = lazyregexp.New(`jax/_src|jax/interpreters|tensorflow/python/(?:ops|eager|framework|client|` +
	`training|distribute|util)|keras/(?:src/)?(?:backend|engine/training|models)|jax/core|fire/core|click/core|concurrent/futures|/asyncio/|/starlette/|/uvicorn/`)

// Names that people give to functions that set up an optimizer, that save and that restore.
var (
	settingOptimizer = lazyregexp.New(`(?i)^_?(?:setup|init|initialize|create|build|configure|prepare|wrap|zero)` +
		`_\w*optim\w*$`)
	saving = lazyregexp.New(`(?i)^_?(?:\w+_)?save_?(?:\w+_)?(?:ckpt|checkpoint|model|state|weights|` +
		`all|everything)s?(?:_\w+)?$`)
	resuming = lazyregexp.New(`(?i)^_?(?:auto_)?(?:resume|restore)(?:_?(?:from_?)?(?:ckpt|checkpoint|` +
		`training|state|model|optimizer|run)s?)?$`)
)

// trainingStages are reached by any job; figures may say more than they do.
var trainingStages = []stage{
	{names: []string{"fetch_sub_module", "__all_gather_params", "__all_gather_params_",
		"all_gather_coalesced", "_all_gather_dtype", "__allgather_params"},
		code:  []string{"fetch_sub_module(", "all_gather_coalesced("},
		cause: CauseUnknown, detail: "gathered",
		says: "ZeRO 3 was gathering the parameters of a module: what filled the card before is not shown, the " +
			"activations of a batch or parameters that stay gathered"},
	{names: []string{"from_pretrained", "load_state_dict", "load_checkpoint",
		"_load_pretrained_model", "load_model", "load_weights", "get_sharded",
		"_load_state_dict_into_model", "load_pretrained", "_load_state_dict_into_meta_model",
		"load_checkpoint_and_dispatch", "create_quantized_param"},
		files: []string{"/utils/weights.py", "model_loader", "core_model_loading",
			"paddle/framework/io.py"},
		code:  []string{"paddle.load(", "mx.nd.load("},
		cause: CauseModel, detail: "load", sure: 0.75, says: "while weights were loaded"},
	{names: []string{"add_weight", "add_variable", "_add_variable_with_custom_getter", "create_weights",
		"reset_parameters", "variable_creator_scope"},
		files: []string{"tensorflow/python/ops/init_ops", "keras/initializers", "keras/src/initializers",
			"torch/nn/init.py"},
		code:  []string{"nn.Parameter(torch.empty", "Parameter(torch.empty", "nn.Parameter(torch.zeros"},
		cause: CauseModel, detail: "load", sure: 0.7, says: "while the weights of a model were made"},
	{names: []string{"_init_group", "_multi_tensor_adamw", "_multi_tensor_adam", "adamw",
		"_fused_adam", "_fused_adamw", "_single_tensor_adamw", "_single_tensor_adam",
		"_multi_tensor_sgd", "initialize_optimizer_states", "init_state"},
		files: []string{"torch/optim", "/optim/", "zero/stage", "bitsandbytes/optim",
			"/optimizers/", "optimizer_v2", "/optimizer/"},
		cause: CauseModel, detail: "optimizer_step", sure: 0.7, says: "in the optimizer's step"},
	{names: []string{"_configure_zero_optimizer", "_configure_optimizer",
		"_create_fp16_partitions", "_setup_for_real_optimizer", "_configure_distributed_model",
		"_sync_module_states", "_verify_param_shape_across_processes"},
		like: settingOptimizer, files: []string{"_optim.py", "_optimizer.py", "_optim/"},
		code:  []string{"fp32_flat", "fp32_from", "master_param"},
		cause: CauseModel, detail: "optimizer_step", sure: 0.65,
		says: "while the model and its optimizer were set up"},
	{names: []string{"_convert_to_fp32"}, cause: CauseBatch, detail: "logits", sure: 0.65,
		says: "while the output of the model was copied to 32 bits: of a language model the logits of every " +
			"token, over the whole vocabulary"},
	{names: []string{"eager_attention_forward"}, code: []string{"key_states.transpose",
		"key.transpose(-1", "k.transpose(-2", "k.transpose(-1", "attn_weights =",
		"attention_scores =",
		"torch.baddbmm("}, sign: trace.SignSoftmax, cause: CauseBatch, detail: "attention", sure: 0.65,
		says: "in attention that keeps the scores of all pairs of positions"},
	{names: []string{"cdist", "pairwise_distance", "bbox_overlaps", "box_iou", "generalized_box_iou",
		"distChamfer", "pairwise_iou", "mask_iou", "_get_targets_single", "euclidean_distances",
		"pairwise_distances", "knn", "get_topk_candidates", "get_box_metrics", "bbox_iou"},
		files: []string{"assigners/", "matcher.py", "iou_calculators", "utils/tal.py"},
		code:  []string{"torch.cdist(", "[:, None, :] - ", "[:, None] - ", ".unsqueeze(1) - "},
		cause: CauseBatch, detail: "pairs", sure: 0.65,
		says: "where all boxes or points are compared with all others"},
	{names: []string{"cross_entropy", "log_softmax", "nll_loss", "ForCausalLMLoss",
		"fixed_cross_entropy", "selective_log_softmax", "_get_per_token_logps",
		"get_batch_logps", "_get_per_token_logps_and_entropies", "concatenated_forward",
		"logsumexp"},
		files: []string{"loss_utils.py"}, code: []string{"self.lm_head(", "logits.float()",
			"logits = logits", "lm_logits"}, sign: trace.SignLogits,
		cause: CauseBatch, detail: "logits", sure: 0.65,
		says: "in the loss: the logits of every token, over the whole vocabulary, are in memory"},
	{names: []string{"backward", "_engine_run_backward", "_backward"},
		files: []string{"torch/autograd/__init__", "torch/autograd/graph"},
		cause: CauseBatch, detail: "backward", sure: 0.65,
		says: "in the backward pass"},
	{names: []string{"cuda", "npu", "xpu", "hpu", "mlu", "musa", "_apply", "convert", "half",
		"dispatch_model"},
		files: []string{"accelerate/big_modeling"}, code: []string{"model.cuda(", "model.to(",
			"net.cuda(", "net.to("}, sign: trace.SignMoves, cause: CauseModel, detail: "load", sure: 0.6,
		says: "while the model was moved to the card"},
	{names: []string{"forward", "_call_impl", "_wrapped_call_impl", "training_step", "__call__",
		"linear", "conv2d", "matmul", "scaled_dot_product_attention", "train_step",
		"compute_loss", "apply_model"}, files: []string{"modeling_"},
		like:   lazyregexp.New(`^_?conv\w*_forward$`),
		code:   []string{"= model(", "= net(", "self.model(", "self.net(", "model(**"},
		unlike: passThrough, cause: CauseBatch, detail: "forward", sure: 0.6, says: "in the forward pass"},
}

var (
	// windowing are functions that work through a large input in windows and join what they give
	windowing = stage{names: []string{"sliding_window_inference", "slide_inference",
		"predict_sliding_window_return_logits", "_internal_predict_sliding_window_return_logits",
		"_internal_predict_3D_3Dconv_tiled", "_internal_maybe_mirror_and_predict_3D",
		"sliding_window_predict", "predict_sliding", "predict_sliding_window", "tiled_inference"},
		like: lazyregexp.New(`(?i)^_?(?:sliding|slide)_?window\w*$`)}
	// oneImage are loops of detectors and segmenters that test one image at a time
	oneImage = stage{names: []string{"single_gpu_test", "multi_gpu_test", "inference_on_dataset"}}
	// wholeImage are functions that compute one image as a whole, whatever its size
	wholeImage = stage{names: []string{"whole_inference", "predict_whole", "inference_whole"}}
	// buffering are functions that make a buffer of fixed size: replay memories and the like
	buffering = stage{files: []string{"replay_buffer", "replay_memory", "common/buffers.py",
		"rollout_buffer", "replaybuffer", "replay_pool"},
		code: []string{"ReplayBuffer(", "ReplayMemory(", "buffer_size,", "self.buffer_size"}}
	// exchanging are functions that send Python objects from rank to rank
	exchanging = stage{names: []string{"all_gather_object", "gather_object", "broadcast_object_list",
		"scatter_object_list", "send_object_list", "recv_object_list"}}
	// waking are functions by which an engine takes back what it had given up
	waking = stage{names: []string{"wake_up", "wakeup", "_wake_up", "resume_memory_occupation"}}
)

// Stages of evaluation, and inside it of generation and of what is kept of each batch.
var (
	evaluation = stage{names: []string{"evaluate", "evaluation_loop", "prediction_loop",
		"prediction_step", "validation_step", "validate", "eval_epoch", "predict", "test_step",
		"evaluation_step", "run_evaluation", "val_epoch", "eval_model", "run_validation",
		"validation_loop", "predict_loop", "do_evaluate", "eval_one_epoch", "inference_on_dataset",
		"eval_step", "test_epoch", "valid_step", "evaluate_model", "_evaluate", "predict_step",
		"single_gpu_test", "multi_gpu_test", "validation", "val", "estimate_loss", "test",
		"_run_evaluate", "_run_sanity_check"},
		files: []string{"loops/evaluation_loop", "loops/prediction_loop"}}
	generation = stage{names: []string{"generate", "_sample", "sample", "beam_search",
		"_beam_search", "greedy_search", "_greedy_search", "contrastive_search", "generate_step"},
		files: []string{"generation/utils.py", "cache_utils.py", "generation_utils.py"}}
	gathering = stage{names: []string{"nested_concat", "torch_pad_and_concatenate", "nested_gather",
		"_nested_gather", "gather_for_metrics", "pad_across_processes", "_pad_across_processes",
		"distributed_concat", "nested_xla_mesh_reduce", "numpy_pad_and_concatenate",
		"nested_numpify", "nested_new_like", "all_gather_object", "_gpu_gather", "gather_object",
		"dim_zero_cat", "compute", "evaluate_predictions"},
		code: []string{"torch.cat(", "torch.stack(", "torch.vstack(", "np.concatenate(",
			".extend(", "tf.concat(", "preds_host", "all_outputs ="}}
	// metricState are metric objects that keep what they are given until they are reset
	metricState = stage{files: []string{"torchmetrics/", "ignite/metrics"},
		names: []string{"dim_zero_cat"}}
	// gatheredOnly are reached in evaluation only, so that a traceback cut around them is enough
	gatheredOnly = stage{names: []string{"nested_concat", "torch_pad_and_concatenate",
		"numpy_pad_and_concatenate", "distributed_concat", "gather_for_metrics", "nested_xla_mesh_reduce",
		"evaluate_predictions", "validation_epoch_end", "on_validation_epoch_end", "test_epoch_end",
		"on_test_epoch_end"}}
	forwarding = stage{names: []string{"forward", "_call_impl", "_wrapped_call_impl"},
		files: []string{"modeling_"}}
	withoutGraph = stage{names: []string{"decorate_context"},
		files: []string{"autograd/grad_mode.py", "utils/_contextlib.py"},
		code:  []string{"no_grad", "inference_mode"}}
)

// joinsBatches finds the frame in which outputs are joined. Batches are joined along the first
// dimension: what is joined along another is a part of one computation.
func joinsBatches(c *trace.Crash) (int, bool) {
	i, ok := gathering.in(c)
	return i, ok && (i >= len(c.Code) || !otherAxis.MatchString(c.Code[i]))
}

var otherAxis = lazyregexp.New(`(?:dim|axis)\s*=\s*-?[1-9]|,\s*-?[1-9]\)`)

// byStage knows the stages that only one kind of work reaches.
func byStage(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if c.Where == event.WhereShm || c.Kind == "pool_worker" { // the frames are those of who waits
		return judged{}, false
	}
	_, evaluating := evaluationIn(c)
	if at, ok := frameOf(c, exchanging); ok && onCard(c) && !evaluating {
		return because(CauseSetting, "objects", 0.65,
			"Python objects were exchanged between ranks, which NCCL does in tensors on the card (%s)",
			at), true
	}
	for i := range ownStages {
		j, ok := ownStages[i].judge(c)
		if _, wakes := waking.in(c); ok && j.detail == "kv_cache" && wakes {
			j.detail = "engine_wakes"
			j.evidence[0] = strings.Replace(j.evidence[0], ownStages[i].says,
				"while an inference engine took back the share of the card that it had given up", 1)
			return j, true
		}
		if ok && j.detail == "full_state_dict" && has(c, trace.SignShards) {
			j.detail = "checkpoint_save"
			j.evidence[0] = strings.Replace(j.evidence[0], ownStages[i].says,
				"while the shards of a checkpoint were put together", 1)
		}
		if ok && j.detail == "load_to_card" && strings.HasPrefix(ownStages[i].says, restored) {
			j = j.saying("a saved state was restored beside what the card holds")
		}
		if ok && j.detail == "load_to_card" && onHost(c) {
			return because(CauseModel, "load_host", 0.65,
				"while a checkpoint was read into host memory (%s in %s)", c.Frames[j.frame].Name,
				c.Frames[j.frame].File), true
		}
		if ok {
			return j, true
		}
	}
	if j, ok := byEvaluation(c, h); ok {
		return j, true
	}
	if j, ok := byMovedData(c); ok {
		return j, true
	}
	return byTrials(c)
}

// byTrials knows trials and folds that follow each other in one process.
func byTrials(c *trace.Crash) (judged, bool) {
	number, err := strconv.Atoi(c.Signs[trace.SignTrialNo])
	if err != nil || number < 2 || has(c, trace.SignRayTune) {
		return judged{}, false
	}
	j := because(CauseLeak, "trials_in_process", 0.6,
		"this is trial or fold %d of one process: models, trainers or results of earlier ones may still "+
			"be referenced", number)
	return j, true
}

// evaluating are names of functions that evaluate; tests of a test suite begin with test_.
var evaluating = lazyregexp.New(`(?i)(?:^|_)(?:eval|evaluate|evaluation|evaluator|valid|validate|` +
	`validator|validation|val|predict|prediction)(?:_|$)|_test$`)

// checking are names of functions that check a structure, not a model.
var checking = lazyregexp.New(`(?i)validat\w*_(?:\w+_)?(?:shard\w*|state\w*|config\w*|arg\w*|inputs?|param\w*|` +
	`keys?|metadata|integrity|schema|checkpoint\w*|shapes?|device\w*|options?|environment)`)

// evaluationIn returns the frame that shows an evaluation. Frames inside a forward pass do not
// count, because models have methods with such names too.
func evaluationIn(c *trace.Crash) (int, bool) {
	for i, f := range c.Frames {
		shows := slices.Contains(evaluation.names, f.Name) ||
			containsAny(f.File, evaluation.files) ||
			i < len(c.Code) && (evaluationCall(c.Code[i]) || evaluatedLine.MatchString(c.Code[i])) ||
			evaluationFile(f) ||
			evaluating.MatchString(f.Name) && !containsAny(f.Name, []string{"train", "save", "fit"}) &&
				!checking.MatchString(f.Name)
		if shows && !slices.ContainsFunc(c.Frames[i+1:], func(outer event.Frame) bool {
			return outer.Name == "forward" || outer.Name == "training_step"
		}) {
			return i, true
		}
	}
	return 0, false
}

// evaluationFile reports whether a frame runs in a script that does nothing else.
func evaluationFile(f event.Frame) bool {
	name := strings.ToLower(base(f.File))
	return (name == "val.py" || name == "validate.py" || name == "evaluate.py" || name == "eval.py") &&
		!strings.Contains(f.File, "site-packages")
}

// calledEvaluation are calls in source lines that begin an evaluation, where the frames inside
// of it were cut.
var calledEvaluation = lazyregexp.New(`\b(?:evaluate|validate|run_eval|run_validation|` +
	`evaluation_loop|single_gpu_test|multi_gpu_test|inference_on_dataset|eval_one_epoch|` +
	`validation_step|prediction_step|run_test|do_eval|do_evaluate|eval_epoch|val_epoch|valid_epoch|` +
	`validation_epoch|validation_loop)\(`)

// evaluatedLine are source lines that make a result of an evaluation, in a loop that trains too.
var evaluatedLine = lazyregexp.New(`^(?:val|valid|validation|eval)_(?:loss|out\w*|pred\w*|logits|score\w*|acc\w*)\s*[=,]`)

func evaluationCall(line string) bool {
	return calledEvaluation.MatchString(line) && !strings.HasPrefix(line, "def ")
}

// byEvaluation distinguishes three things that fill memory in an evaluation: results kept of all
// batches, a single batch, and generation.
func byEvaluation(c *trace.Crash, h *trace.Hints) (judged, bool) {
	at, evaluating := evaluationIn(c)
	if frame, ok := frameOf(c, generation); ok && timesCard(c) >= largerThanCard {
		return because(CauseBatch, "oversized", 0.65,
			"in generation (%s) one tensor alone is asked for that is larger than the card, %.1f times: the "+
				"scores of attention over a long input, or a wrong shape", frame, timesCard(c)), true
	}
	if frame, ok := frameOf(c, generation); ok && writesText(c, h) {
		j := because(CauseBatch, "generation", 0.7,
			"in generation (%s): the cache of keys and values grows with every token", frame)
		if evaluating {
			j = j.also("evaluation generates text: num_beams and the generation length multiply its batch")
		}
		return j, true
	}
	if i, ok := windowing.in(c); ok && onCard(c) && !passIn(c.Frames[:i]) {
		return because(CauseBatch, "eval_window", 0.65,
			"where the results of windows are put together for a whole input (%s in %s)", c.Frames[i].Name,
			c.Frames[i].File), true
	}
	if !evaluating {
		if i, ok := gatheredOnly.in(c); ok {
			return because(CauseBatch, "eval_outputs", 0.75,
				"where the outputs of all evaluation batches are joined (%s in %s)",
				c.Frames[i].Name, c.Frames[i].File), true
		}
		return judged{}, false
	}
	if times := timesCard(c); times >= largerThanCard {
		j := because(CauseBatch, "oversized", 0.6,
			"in evaluation (%s in %s) one tensor alone is asked for that is larger than the card, %.1f times",
			c.Frames[at].Name, c.Frames[at].File, times)
		j.beside = "eval_batch"
		if c.Pooled {
			j = j.saying("one tensor alone is larger than TensorFlow's share of the card")
		}
		return j, true
	}
	if j, ok := beforeFirstBatch(c, at); ok {
		return j, true
	}
	if grown := c.Signs[trace.SignGrowth]; grown != "" || collects(c, at) {
		j := because(CauseBatch, "eval_outputs", 0.7,
			"in evaluation (%s in %s), which keeps something of every batch", c.Frames[at].Name,
			c.Frames[at].File).saying("something of every evaluation batch is kept")
		if grown != "" {
			j = j.also("the program's own figures of memory rise until the end: %s", grown)
		}
		return j, true
	}
	if i, ok := metricState.in(c); ok && slices.Contains(h.Says, string(CauseLeak)) {
		return because(CauseLeak, "metric_kept", 0.65,
			"in evaluation, in a metric object that keeps the predictions it is given (%s in %s), and memory is "+
				"said to rise: without reset() it keeps those of every evaluation", c.Frames[i].Name,
			c.Frames[i].File), true
	}
	if i, ok := joinsBatches(c); ok {
		if f, deeper := forwarding.in(c); !deeper || f > i {
			return because(CauseBatch, "eval_outputs", 0.8,
				"in evaluation, where the outputs of all batches are joined (%s in %s)",
				c.Frames[i].Name, c.Frames[i].File), true
		}
	}
	if done, err := strconv.Atoi(c.Signs[trace.SignEvalLast]); err == nil && done >= lateEval {
		return lateInEval(done).also("in %s of %s", c.Frames[at].Name, c.Frames[at].File), true
	}
	if m := predicting.FindStringSubmatch(c.Text); m != nil && has(c, trace.SignPredicts) {
		return calledInLoop(first(m[1:]...)), true
	}
	if onHost(c) && c.Requested != nil && *c.Requested >= largeOnHost {
		return because(CauseBatch, "eval_host", 0.65,
			"during evaluation or prediction (%s in %s), where one tensor of %s is asked for in host memory",
			c.Frames[at].Name, c.Frames[at].File, *c.Requested), true
	}
	if m := leadingShape.FindStringSubmatch(c.Text); m != nil && m[1] == "1" &&
		strings.Count(m[2], ",") >= 2 {
		return because(CauseBatch, "eval_sample", 0.65,
			"during evaluation or prediction (%s in %s); the tensor holds one sample (shape [1%s])",
			c.Frames[at].Name, c.Frames[at].File, m[2]), true
	}
	if i, ok := oneImage.in(c); ok && onCard(c) {
		return because(CauseBatch, "eval_sample", 0.65,
			"during evaluation or prediction, in a loop that takes one image at a time (%s in %s): a large one, or one "+
				"with many objects", c.Frames[i].Name, c.Frames[i].File), true
	}
	if i, ok := wholeImage.in(c); ok {
		return because(CauseBatch, "eval_sample", 0.65,
			"during evaluation or prediction, where one image is computed as a whole (%s in %s)",
			c.Frames[i].Name, c.Frames[i].File), true
	}
	if oneByOne(c, h) {
		return because(CauseBatch, "eval_each", 0.6,
			"during evaluation or prediction (%s in %s), whose line hands over one sample after the other: "+
				"what is kept of each, or one that is larger than the others", c.Frames[at].Name,
			c.Frames[at].File), true
	}
	j := because(CauseBatch, "eval_batch", 0.65,
		"during evaluation or prediction (%s in %s), which has a batch size of its own",
		c.Frames[at].Name, c.Frames[at].File)
	if _, forward := forwarding.in(c); !forward && at > 0 && boxesLeft.MatchString(c.Frames[0].Name) {
		j = j.also("in %s, after the forward pass: fewer outputs (a higher threshold) help too",
			c.Frames[0].Name)
	}
	if h.Trainer == "transformers" {
		j = j.also("per_device_eval_batch_size is 8 unless it is set")
	}
	return j, true
}

// eachSample are lines that hand the elements of a list to a function, one by one; batches are
// elements of a loader too, and are named so.
var eachSample = lazyregexp.New(`\((?:self, )?(\w+)(?:, [^()]*)?\)[^()\n]{0,20} for (\w+) in `)

// oneByOne: a line of a frame takes samples one after the other.
func oneByOne(c *trace.Crash, _ *trace.Hints) bool {
	return slices.ContainsFunc(c.Code, func(line string) bool {
		m := eachSample.FindStringSubmatch(line)
		return m != nil && m[1] == m[2] && !severalIn.MatchString(m[1])
	})
}

var severalIn = lazyregexp.New(`(?i)batch|data|inputs|chunk|b$|xs$|x$`)

// writesText reports whether what is generated is text: frames of a library that keeps keys and
// values, or words of text and none of images.
func writesText(c *trace.Crash, h *trace.Hints) bool {
	if slices.ContainsFunc(c.Frames, func(f event.Frame) bool {
		return containsAny(f.File, generation.files)
	}) {
		return true
	}
	return seen(c, h, trace.SignText) && !has(c, trace.SignImages) && !drawing(c, h) &&
		!slices.ContainsFunc(c.Code, drawnCode.MatchString)
}

// drawnCode are lines that only generators of images and clips have.
var drawnCode = lazyregexp.New(`(?i)\bvae\b|latents?\b|\bheight=|num_frames|upsample|denois|\bunet\b`)

// movingModel are frames that put a model on a card.
var movingModel = stage{names: []string{"_apply", "convert", "_move_model_to_device",
	"dispatch_model"}}

// largeOnHost is a tensor in host memory that is more than one batch of results.
const largeOnHost = 4 * event.GiB

// boxesLeft are functions that sort out what a detector found.
var boxesLeft = lazyregexp.New(`(?i)nms|non_max|suppress|box_iou|post_?process|paste_mask|masks?_in_image|process_mask`)

// beforeFirstBatch distinguishes two requests of an evaluation that are not for a batch: for a
// model that is being moved to the card, and for one result larger than half the card.
func beforeFirstBatch(c *trace.Crash, at int) (judged, bool) {
	if !onCard(c) {
		return judged{}, false
	}
	if i, ok := movingModel.in(c); ok && i < at && !passIn(c.Frames[:at]) {
		return because(CauseModel, "load", 0.7,
			"before the first batch of an evaluation or prediction, while the model was put on the card (%s in "+
				"%s): its weights do not fit there", c.Frames[i].Name, c.Frames[i].File), true
	}
	_, inside := forwarding.in(c)
	if c.Requested == nil || c.Capacity == nil || 2**c.Requested <= *c.Capacity || inside ||
		boxesLeft.MatchString(c.Frames[0].Name) {
		return judged{}, false
	}
	return because(CauseBatch, "eval_tensor", 0.65,
		"in evaluation or prediction (%s in %s) one tensor of %s is asked for, %.0f %% of the card: a result "+
			"for the whole input at once", c.Frames[at].Name, c.Frames[at].File, *c.Requested,
		100*float64(*c.Requested)/float64(*c.Capacity)), true
}

// collects reports whether the user's line inside an evaluation appends the model's outputs to a
// list.
func collects(c *trace.Crash, at int) bool {
	for i := 0; i <= at && i < len(c.Code); i++ {
		if collected.MatchString(c.Code[i]) {
			return true
		}
	}
	return false
}

var collected = lazyregexp.New(`\.append\(\s*(?:self\.)?(?:model|net|network|encoder|backbone|` +
	`classifier|forward)\w*(?:\.\w+)?\(`)

// byMovedData knows a whole data set that is copied to the card in one call.
func byMovedData(c *trace.Crash) (judged, bool) {
	if len(c.Code) == 0 || !onCard(c) {
		return judged{}, false
	}
	line := c.Code[0]
	moved := strings.Contains(line, ".cuda(") || strings.Contains(line, ".to(")
	whole := containsAny(line, []string{"from_numpy(", "torch.tensor(", "as_tensor(",
		"FloatTensor(",
		"x_train", "X_train", "train_x", "train_data", "dataset", "all_data"})
	if !moved || !whole || partOf.MatchString(line) {
		return judged{}, false
	}
	sure := 0.5 // a short array may be what meets a card that others fill
	if large(c) {
		sure = 0.6
	}
	return because(CauseHostData, "data_on_card", sure,
		"a whole array was moved to the card in one call: %s", short(line)), true
}

// partOf are lines that move a piece of the data: one element, or what a loop takes from it.
var partOf = lazyregexp.New(`(?i)(?:x_train|train_x|train_data|dataset|all_data)\w*(?:\.\w+)?\[|` +
	`^\s*for\b|\bbatch|\bsample|\bidx\b|\bindices\b`)

// filledBefore reports whether most of the card is live in this process.
func filledBefore(c *trace.Crash) bool {
	return c.Allocated != nil && c.Capacity != nil &&
		float64(*c.Allocated) >= 0.7*float64(*c.Capacity)
}

// tinyAsk is smaller than any activation. The code that made such a small request is no evidence of
// the cause.
const tinyAsk = event.MiB

// anyLoss are losses and outputs of every classifier, not only of those over a vocabulary.
var anyLoss = lazyregexp.New(`^(?:_convert_to_fp32|cross_entropy|log_softmax|nll_loss|logsumexp)$`)

// pairsOf are the methods that train on a chosen and a rejected answer; GRPO and PPO do not.
var pairsOf = lazyregexp.New(`(?i)dpo|orpo|concatenated`)

// setsUp reports whether a function puts an optimizer together rather than makes its step.
func setsUp(name string) bool {
	return settingName.MatchString(name) && !makesStates.MatchString(name)
}

// aTenth reports whether the request is a tenth of the card, more than weights and gradients of one
// layer are.
func aTenth(c *trace.Crash) bool {
	return c.Requested != nil && c.Capacity != nil && 10**c.Requested >= *c.Capacity
}

// byPoints knows programs that train points instead of a network: they take one view at a time and
// add points as they go, so neither a batch nor blocks of a model can be made smaller.
func byPoints(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if !seen(c, h, trace.SignPoints) || !onCard(c) ||
		!passIn(c.Frames) && !learns(c, h) && len(c.Frames) > 0 {
		return judged{}, false
	}
	return because(CauseUnknown, "points", 0,
		"the program trains points (%s), and adds more while it runs: their number and the size of the views "+
			"decide what it needs", first(c.Signs[trace.SignPoints], h.Signs[trace.SignPoints])), true
}

// byTraceback uses the stages that any training goes through.
func byTraceback(c *trace.Crash, h *trace.Hints) (judged, bool) {
	if len(c.Frames) == 0 && !has(c, trace.SignMoves) && !has(c, trace.SignLogits) ||
		c.Where == event.WhereShm {
		return judged{}, false
	}
	if c.Kind == "torch_cpu" && c.Requested != nil && *c.Requested < 64*event.MiB {
		return because(CauseUnknown, "limit", 0,
			"only %s were refused: a limit of the process or a full machine, not a large tensor",
			*c.Requested), true
	}
	if j, ok := byTaken(c); ok {
		return j, true
	}
	if j, ok := byPoints(c, h); ok {
		return j, true
	}
	for i := range trainingStages {
		j, ok := trainingStages[i].judge(c)
		if !ok || j.detail == "optimizer_step" && deeper.is(c, h, j) { // the pass inside counts
			continue
		}
		if _, framed := trainingStages[i].in(c); j.detail == "attention" && !framed &&
			!seen(c, h, trace.SignText) { // a softmax of something else
			continue
		}
		if j.detail == "optimizer_step" && setsUp(c.Frames[j.frame].Name) {
			j.evidence[0] = strings.Replace(j.evidence[0], "in the optimizer's step",
				"while the optimizer was set up", 1)
		}
		if (j.detail == "forward" || j.detail == "backward") && timesCard(c) >= largerThanCard {
			j.detail = "oversized"
		}
		if (j.detail == "logits" || j.detail == "attention") && c.Requested != nil &&
			*c.Requested < 64*event.MiB {
			j.detail = "forward"
		}
		if (j.detail == "forward" || j.detail == "backward") && c.Requested != nil &&
			*c.Requested < tinyAsk && onCard(c) {
			return because(CauseUnknown, "open", 0,
				"only %s were refused (%s): what filled it was there before", *c.Requested,
				trainingStages[i].says), true
		}
		if j.detail == "load" && has(c, trace.SignNotebook) && onCard(c) && !large(c) &&
			filledBefore(c) {
			return because(CauseUnknown, "cells", 0,
				"the process had %s on the card already when a model was moved there: what earlier cells of the "+
					"notebook hold, or the part of this model that had been moved", *c.Allocated), true
		}
		if j.detail == "load" && c.Steps >= 2 && onCard(c) && c.Framework == "pytorch" {
			j.detail = "load_to_card"
			j = j.also("%s steps had passed: the model fits, what was loaded came on top of it",
				thousands(c.Steps))
		}
		pass := j.detail == "forward" || j.detail == "backward"
		if pass && onCard(c) && c.Allocated == nil && c.Capacity == nil && (c.Kind == "torch_raw" ||
			c.Framework == "pytorch") || pass && c.Allocated != nil && (c.Steps == 0 && !aTenth(c) ||
			c.Steps > 0 && c.Requested != nil && !large(c)) || j.detail == "logits" && onCard(c) &&
			c.Capacity != nil && c.Requested != nil && !large(c) {
			j.confidence = 0.5 // the card may have been full before
		}
		if (j.detail == "forward" || j.detail == "backward" || j.detail == "logits") && large(c) &&
			c.Steps >= 10*lateSteps {
			j.beside = j.detail
			j.detail, j.confidence = "longest_batch", 0.55 // or the card had filled up before it
			j = j.also("it ran for %s steps before %s were asked for at once: a batch with longer samples "+
				"than before", thousands(c.Steps), *c.Requested)
		}
		if j.detail == "logits" && len(c.Frames) > 0 && anyLoss.MatchString(c.Frames[j.frame].Name) &&
			!seen(c, h, trace.SignText) && h.Seq == 0 && (c.Requested == nil ||
			*c.Requested < event.GiB || seen(c, h, trace.SignPictures)) {
			j.detail = "forward"
			j.evidence[0] = strings.Replace(j.evidence[0], trainingStages[i].says,
				"where the output of the model is used", 1)
		}
		method := first(c.Signs[trace.SignPreference], h.Signs[trace.SignPreference])
		if j.detail == "logits" && pairsOf.MatchString(method) {
			j = j.also("preference training doubles it: chosen and rejected samples, and a reference model")
		} else if j.detail == "logits" && method != "" {
			j = j.also("a reference model, where one is used, has logits of its own")
		}
		return j, true
	}
	return judged{}, false
}

// pointsTrained: a message without a traceback stands in a text about points that are trained.
func pointsTrained(f *Facts, _ Sums) (judged, bool) {
	if len(f.Crash.Frames) > 0 {
		return judged{}, false // the stages of a traceback ask for more
	}
	return byPoints(f.Crash, f.Hints)
}
