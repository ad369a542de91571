package explain

import (
	"maps"
	"strings"
	"sync"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// settings are what a tool's user writes for a remedy.
type settings map[remedy.ID]string

// Tool is a program or library that owns the loop, and so the settings.
type Tool struct {
	Name string
	is   *lazyregexp.Regexp // in the text, lower case: commands and paths, no lists of packages
	set  settings
	// its user writes no code: a remedy without a setting is not offered
	closed bool
}

// Short names for rows of tools.
const (
	batch, length, image, evalB, workers = remedy.MicroBatch, remedy.ShorterSequence,
		remedy.SmallerImage, remedy.EvalBatch, remedy.DataLoaderWorkers
	ckpt, half, adam8, offload, shard = remedy.Checkpointing, remedy.MixedPrecision,
		remedy.Optimizer8Bit,
		remedy.OptimizerOffload, remedy.ZeRO
	engine, chunked, flash, lora, q4 = remedy.ServingShare, remedy.ChunkedLoss, remedy.Attention,
		remedy.LoRA, remedy.Quantize4Bit
	fewer, parts, buffer, stream, answers = remedy.FewerPairs, remedy.InParts, remedy.SmallerBuffer,
		remedy.StreamData, remedy.GenerationCache
)

// trainerArgs are what all programs on Hugging Face's Trainer have.
func trainerArgs(more settings) settings {
	all := settings{batch: "--per_device_train_batch_size HALF --gradient_accumulation_steps TWICE", ckpt: "--gradient_checkpointing True",
		half: "--bf16 True", adam8: "--optim adamw_bnb_8bit", evalB: "--per_device_eval_batch_size 1",
		workers:            "--dataloader_num_workers 2",
		remedy.EvalOutputs: "--eval_accumulation_steps 8   # or --prediction_loss_only True", shard: "--deepspeed ds_zero3.json", chunked: "--use_liger_kernel True"}
	maps.Copy(all, more)
	return all
}

// flagsOf are the flags that the remedies have for a trainer, with what only an explanation names.
func flagsOf(trainer remedy.Trainer, more settings) settings {
	all := settings{}
	for id, text := range remedy.Flags(trainer) {
		all[id] = strings.NewReplacer("HALF_YOUR_BATCH", "HALF", "HALF_YOUR_LENGTH", "HALF",
			"HALF_YOUR_SIZE", "HALF").Replace(text)
	}
	maps.Copy(all, more)
	return all
}

// tools has a row for every tool whose settings we know. The first whose words stand in the text
// counts, so programs come before the libraries that they are built on.
var tools = sync.OnceValue(func() []Tool {
	return []Tool{
		// language models: reinforcement and preference training
		{Name: "verl", is: re(`\bverl[/\\](?:trainer|workers|utils)|verl\.trainer|actor_rollout_ref`),
			closed: true, set: settings{
				batch:  "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=HALF   # with use_dynamic_bsz=True; else actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1; for log-probabilities rollout.log_prob_micro_batch_size_per_gpu and ref.log_prob_micro_batch_size_per_gpu",
				length: "data.max_response_length=HALF   # and data.max_prompt_length", ckpt: "actor_rollout_ref.model.enable_gradient_checkpointing=True",
				engine:  "actor_rollout_ref.rollout.gpu_memory_utilization=0.4   # and rollout.free_cache_engine=True",
				offload: "actor_rollout_ref.actor.fsdp_config.param_offload=True actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
				chunked: "actor_rollout_ref.actor.entropy_from_logits_with_chunking=True actor_rollout_ref.actor.entropy_checkpointing=True", parts: "actor_rollout_ref.ref.entropy_from_logits_with_chunking=True",
				answers: "actor_rollout_ref.rollout.n=HALF"}},
		{Name: "NeMo RL", is: re(`nemo_rl[/\\]|nemo-rl`), closed: true, set: settings{batch: "policy.train_micro_batch_size=1 policy.logprob_batch_size=1", length: "policy.max_total_sequence_length=HALF",
			ckpt: "policy.dtensor_cfg.activation_checkpointing=true", parts: "policy.logprob_chunk_size=1024", engine: "policy.generation.vllm_cfg.gpu_memory_utilization=0.5"}},
		{Name: "OpenRLHF", is: re(`openrlhf[/\\.]|openrlhf\.cli`), closed: true, set: settings{batch: "--micro_train_batch_size 1 --micro_rollout_batch_size 1", length: "--generate_max_len HALF --prompt_max_len HALF",
			ckpt: "--gradient_checkpointing", offload: "--adam_offload", shard: "--zero_stage 3",
			engine: "--vllm_gpu_memory_utilization 0.5", half: "--bf16", flash: "--flash_attn"}},
		{Name: "slime", is: re(`\bslime[/\\](?:backends|utils|ray)|--max-tokens-per-gpu`), closed: true, set: settings{batch: "--use-dynamic-batch-size --max-tokens-per-gpu HALF", parts: "--log-probs-chunk-size 1024",
			length: "--rollout-max-response-len HALF", engine: "--sglang-mem-fraction-static 0.5", ckpt: "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"}},
		{Name: "unsloth", is: re(`unsloth[/\\]|unsloth_compiled|fastlanguagemodel`), set: trainerArgs(settings{batch: "per_device_train_batch_size=HALF, gradient_accumulation_steps=TWICE", length: "max_seq_length=HALF", q4: "load_in_4bit=True",
			ckpt: `use_gradient_checkpointing="unsloth"`, adam8: `optim="adamw_8bit"`, evalB: "per_device_eval_batch_size=1", remedy.EvalOutputs: "eval_accumulation_steps=4   # fp16_full_eval=True halves the outputs", half: "bf16=True",
			chunked: "", shard: "", workers: "dataloader_num_workers=2",
			remedy.MapProcesses: "dataset_num_proc=2 in SFTConfig"})},
		{Name: "ms-swift", is: re(`\bswift[/\\](?:llm|trainers|cli)|\bswift (?:sft|rlhf|pt)\b`), closed: true, set: trainerArgs(settings{length: "--max_length HALF", flash: "--attn_impl flash_attn", lora: "--train_type lora", image: "MAX_PIXELS=602112 before the command",
			shard: "--deepspeed zero3", q4: "--quant_method bnb --quant_bits 4"})},
		{Name: "LLaMA-Factory", is: re(`llama[-_]?factory|llmtuner|finetuning_type`), closed: true,
			set: flagsOf(remedy.LlamaFactory, settings{})},
		{Name: "axolotl", is: re(`axolotl[/\\.]|axolotl train`), closed: true, set: settings{batch: "micro_batch_size: 1   # and gradient_accumulation_steps: TWICE", length: "sequence_len: HALF", ckpt: "gradient_checkpointing: true",
			adam8: "optimizer: adamw_bnb_8bit", q4: "load_in_4bit: true   # with adapter: qlora",
			lora: "adapter: lora", shard: "deepspeed: deepspeed_configs/zero3_bf16.json",
			remedy.FSDP:        "deepspeed: deepspeed_configs/zero3_bf16.json",
			remedy.ShardAtLoad: "deepspeed: deepspeed_configs/zero3_bf16.json", offload: "deepspeed: deepspeed_configs/zero3_bf16_cpuoffload_params.json", flash: "flash_attention: true", half: "bf16: auto",
			chunked: "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", evalB: "eval_batch_size: 1", workers: "dataloader_num_workers: 2", remedy.MapProcesses: "dataset_processes: 2", remedy.EvalOutputs: "eval_sample_packing: false   # and eval_batch_size: 1"}},
		{Name: "torchtune", is: re(`torchtune[/\\.]|\btune run\b`), closed: true, set: settings{batch: "batch_size=HALF gradient_accumulation_steps=TWICE", length: "tokenizer.max_seq_len=HALF", ckpt: "enable_activation_checkpointing=True",
			remedy.ActivationOffload: "enable_activation_offloading=True", adam8: "optimizer=bitsandbytes.optim.PagedAdamW8bit", half: "dtype=bf16", chunked: "loss=torchtune.modules.loss.LinearCrossEntropyLoss", remedy.OptimizerFused: "optimizer_in_bwd=True"}},
		{Name: "LitGPT", is: re(`litgpt[/\\ ]`), closed: true, set: settings{batch: "--train.micro_batch_size 1", length: "--train.max_seq_length HALF", half: "--precision bf16-true", q4: "--quantize bnb.nf4"}},
		{Name: "XTuner", is: re(`xtuner[/\\ ]`), closed: true, set: settings{batch: "batch_size = 1 in the config, with accumulative_counts = TWICE", length: "max_length = HALF in the config", shard: "--deepspeed deepspeed_zero3", offload: "--deepspeed deepspeed_zero3_offload"}},
		{Name: "LLaVA", is: re(`llava[/\\](?:train|model)`), set: trainerArgs(settings{length: "--model_max_length HALF", shard: "--deepspeed ./scripts/zero3.json", offload: "--deepspeed ./scripts/zero3_offload.json", lora: "--lora_enable True --lora_r 128"})},
		{Name: "FastChat", is: re(`fastchat[/\\]train`), set: trainerArgs(settings{length: "--model_max_length HALF"})},
		{Name: "NeMo", is: re(`nemo[/\\]collections|\bnemo\.(?:collections|core)|\[nemo `), closed: true,
			set: settings{
				batch:  "model.train_ds.batch_size=HALF   # with Lhotse: model.train_ds.batch_duration=HALF; trainer.accumulate_grad_batches=2 keeps the effective batch",
				length: "model.train_ds.max_duration=16   # seconds; longer utterances are left out", evalB: "model.validation_ds.batch_size=2", half: "trainer.precision=bf16-mixed",
				parts: "model.joint.fuse_loss_wer=true model.joint.fused_batch_size=4", ckpt: "", workers: "model.train_ds.num_workers=2", remedy.LongestBatch: "model.train_ds.max_duration=16"}},
		{Name: "Megatron", is: re(`megatron[/\\](?:core|training|model|legacy)|pretrain_gpt\.py`), closed: true, set: settings{batch: "--micro-batch-size 1", length: "--seq-length HALF", ckpt: "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
			shard: "--use-distributed-optimizer", remedy.FSDP: "--tensor-model-parallel-size TWICE --sequence-parallel", half: "--bf16", offload: "--optimizer-cpu-offload --use-precision-aware-optimizer", flash: "--use-flash-attn", workers: "--num-workers 1"}},
		{Name: "GPT-NeoX", is: re(`gpt-neox|megatron_config`), closed: true, set: settings{batch: `"train_micro_batch_size_per_gpu": 1`, ckpt: `"checkpoint-activations": true`, shard: `"zero_optimization": {"stage": 1}`}},
		{Name: "LLM Foundry", is: re(`llmfoundry|llm-foundry|composer[/\\]trainer`), closed: true, set: settings{batch: "device_train_microbatch_size: auto", length: "max_seq_len: HALF", evalB: "device_eval_batch_size: 1", ckpt: "fsdp_config.activation_checkpointing: true"}},
		{Name: "ColossalAI", is: re(`colossalai[/\\]`), set: settings{batch: "--batch_size HALF", shard: "-p zero2_cpu   # or gemini", ckpt: "--grad_checkpoint"}},
		{Name: "MaxText", is: re(`maxtext[/\\]`), closed: true, set: settings{batch: "per_device_batch_size=HALF", length: "max_target_length=HALF", ckpt: "remat_policy=full", shard: "ici_fsdp_parallelism=-1"}},
		{Name: "T5X", is: re(`\bt5x[/\\]`), closed: true, set: settings{batch: "--gin.trainer.Trainer.num_microbatches=2", length: `--gin.TASK_FEATURE_LENGTHS="{'inputs': HALF, 'targets': HALF}"`, shard: "--gin.partitioning.PjitPartitioner.num_partitions=2"}},
		{Name: "sentence-transformers", is: re(`sentence_transformers[/\\]`), set: settings{batch: "batch_size=HALF in encode() or the DataLoader; for in-batch negatives CachedMultipleNegativesRankingLoss(model, mini_batch_size=8)", length: "model.max_seq_length = 256", half: "use_amp=True"}},
		{Name: "TRL", is: re(`\btrl[/\\](?:trainer|scripts)|\btrl (?:sft|dpo|grpo)\b|(?:sft|dpo|grpo)trainer`), set: trainerArgs(settings{length: "max_length=HALF   # GRPO: max_prompt_length and max_completion_length", engine: "vllm_gpu_memory_utilization=0.3   # or a card for vLLM alone: num_processes one less than there are cards",
			answers: "num_generations=HALF", chunked: "use_liger_kernel=True", batch: "per_device_train_batch_size=HALF, gradient_accumulation_steps=TWICE", ckpt: "gradient_checkpointing=True", half: "bf16=True", adam8: `optim="adamw_bnb_8bit"`,
			evalB: "per_device_eval_batch_size=1", remedy.EvalOutputs: "eval_accumulation_steps=4, prediction_loss_only=True", workers: "dataloader_num_workers=2", remedy.MapProcesses: "dataset_num_proc=2", shard: "deepspeed='ds_zero3.json'"})},
		{Name: "nanoGPT", is: re(`nanogpt`), set: settings{batch: "--batch_size=HALF --gradient_accumulation_steps=TWICE", length: "--block_size=HALF", half: "--dtype=bfloat16"}},
		// translation and speech
		{Name: "fairseq", is: re(`fairseq(?:_cli)?[/\\]|fairseq-(?:train|generate|hydra|interactive)|fairseq2?\.`), closed: true, set: settings{batch: "--max-tokens HALF --update-freq 2", length: "--max-source-positions HALF --max-target-positions HALF --skip-invalid-size-inputs-valid-test",
			evalB: "--max-tokens-valid HALF", half: "--fp16", ckpt: "--checkpoint-activations", workers: "--num-workers 0", answers: "--beam 1 --max-tokens HALF", shard: "--ddp-backend fully_sharded", remedy.LongestBatch: "--max-tokens HALF   # and --max-source-positions: longer samples are skipped"}},
		{Name: "OpenNMT", is: re(`\bonmt[/\\_]|opennmt`), closed: true, set: settings{batch: "-batch_type tokens -batch_size HALF -accum_count 2", length: "-src_seq_length 150 -tgt_seq_length 150", evalB: "-valid_batch_size 8", half: "-model_dtype fp16", workers: "num_workers: 0   # and a smaller bucket_size"}},
		{Name: "Tensor2Tensor", is: re(`tensor2tensor|t2t-trainer`), closed: true, set: settings{batch: "--hparams='batch_size=1024'   # tokens, not sentences", length: "--hparams='max_length=128'", evalB: "--hparams='eval_drop_long_sequences=True,max_length=128'", answers: "--decode_hparams='batch_size=1,beam_size=1'", remedy.LongestBatch: "--hparams='max_length=128'"}},
		{Name: "FunASR", is: re(`funasr[/\\]`), closed: true, set: settings{batch: "batch_size_s=60   # seconds of speech at once; in training dataset_conf.batch_size=HALF",
			remedy.LessAtOnce: "batch_size_s=60   # seconds of speech at once", evalB: "batch_size_s=60",
			length: `vad_kwargs={"max_single_segment_time": 15000}   # milliseconds`,
			parts:  `batch_size_s=60, and vad_kwargs={"max_single_segment_time": 15000}`}},
		{Name: "ESPnet 1", is: re(`espnet[/\\]bin|\begs[/\\]|train_nodev_pytorch|--ngpu? \d[^\n]*run\.sh|run\.sh[^\n]*--ngpu? \d`), closed: true, set: settings{batch: "batch-size: HALF, or batch-bins: HALF with batch-count: bin   # in conf/train.yaml; accum-grad: 2", length: "maxlen-in: 600, maxlen-out: 120   # beyond that a batch has fewer samples", remedy.LongestBatch: "remove_longshortdata.sh --maxframes 3000 --maxchars 400 in the stage that prepares the data"}},
		{Name: "ESPnet", is: re(`espnet2?[/\\.]`), closed: true, set: settings{batch: "batch_bins: HALF   # batch_type: numel; else batch_size: HALF; accum_grad: 2", half: "use_amp: true", workers: "num_workers: 1", length: "--max_wav_duration 15", parts: "a transducer: joint_network with fused or pruned loss", remedy.LongestBatch: "--max_wav_duration 15"}},
		{Name: "SpeechBrain", is: re(`speechbrain[/\\.]|\brecipes/[\w-]+/(?:asr|tts|st|enhance|speakerrec)\b`), closed: true, set: settings{batch: "--batch_size HALF --grad_accumulation_factor 2   # dynamic batching: max_batch_length", length: "avoid_if_longer_than: 15 in the recipe's yaml, where it has it", half: "--precision fp16", workers: "--num_workers 1", remedy.LongestBatch: "avoid_if_longer_than: 15 in the recipe's yaml, where it has it; else leave longer ones out of the manifest"}},
		{Name: "WeNet", is: re(`wenet[/\\]`), closed: true, set: settings{batch: "dataset_conf.batch_conf.max_frames_in_batch: HALF   # or batch_size; accum_grad: 2", length: "dataset_conf.filter_conf.max_length: 2000", half: "--use_amp", workers: "--num_workers 1 --prefetch 50"}},
		{Name: "icefall", is: re(`icefall[/\\]|pruned_transducer|\bmax-duration\b`), closed: true, set: settings{batch: "--max-duration HALF", remedy.LongestBatch: "the filter remove_short_and_long_utt in train.py, with 15 s", half: "--use-fp16 1", workers: "--num-workers 2", length: "the filter remove_short_and_long_utt, with 15 s"}},
		{Name: "Coqui TTS", is: re(`\btts[/\\](?:tts|bin|utils)[/\\]|coqui`), set: settings{batch: "batch_size=HALF   # and grad_accum_steps of the Trainer", length: "max_audio_len=HALF, max_text_len=HALF", evalB: "eval_batch_size=2", half: "mixed_precision=True", workers: "num_loader_workers=2"}},
		{Name: "Whisper", is: re(`whisper[/\\](?:transcribe|model|decoding)|faster_whisper`), set: settings{remedy.Quantize8Bit: `--model small   # faster-whisper: compute_type="int8_float16"`, q4: "--model small", batch: "--beam_size 1 --best_of 1"}},
		// images: detection, segmentation, classification
		{Name: "MMDetection 1", is: re(`imgs_per_gpu|mmdet[/\\]apis[/\\]train\.py[^\n]*batch_processor`), closed: true, set: settings{batch: "imgs_per_gpu = 1 in data of the config", workers: "workers_per_gpu = 1 in data of the config", image: "a smaller img_scale in the pipeline",
			fewer: "gpu_assign_thr=200 in the assigner of train_cfg   # more boxes than that are assigned on the CPU", evalB: "", ckpt: "with_cp=True of the backbone", half: "fp16 = dict(loss_scale=512.)", shard: "", remedy.EvalOutputs: ""}},
		{Name: "OpenMMLab", is: re(`\bmm(?:det(?:ection)?(?:3d)?|seg(?:mentation)?|cls|pretrain|pose|action2?|ocr|yolo|rotate|engine|cv|agic|editing)[/\\]`), closed: true, set: settings{
			batch: "--cfg-options train_dataloader.batch_size=1   # before 3.x: data.samples_per_gpu=1", ckpt: "--cfg-options model.backbone.with_cp=True", half: "--amp   # before 3.x: fp16 = dict(loss_scale=512.)",
			workers: "--cfg-options train_dataloader.num_workers=1   # before 3.x: data.workers_per_gpu=1", image: "a smaller scale of Resize, or crop_size, in the pipeline",
			fewer: "gpu_assign_thr=200 in the assigner of train_cfg   # more boxes than that are assigned on the CPU", evalB: "--cfg-options test_dataloader.batch_size=1", parts: "--cfg-options model.test_cfg.rcnn.max_per_img=50   # or model.test_cfg.max_per_img",
			remedy.WindowOnHost: "--cfg-options model.test_cfg.mode=slide model.test_cfg.crop_size='(512,512)' model.test_cfg.stride='(341,341)'", shard: "", remedy.EvalOutputs: "", remedy.LongestBatch: "a smaller scale of Resize in the pipeline, or images with fewer objects"}},
		{Name: "Detectron2", is: re(`detectron2[/\\]|ims_per_batch`), closed: true, set: settings{batch: "SOLVER.IMS_PER_BATCH HALF   # of all cards together", image: `INPUT.MIN_SIZE_TRAIN "(640,)" INPUT.MAX_SIZE_TRAIN 1000`, half: "SOLVER.AMP.ENABLED True",
			workers: "DATALOADER.NUM_WORKERS 2", fewer: "MODEL.ROI_HEADS.BATCH_SIZE_PER_IMAGE 128 MODEL.RPN.PRE_NMS_TOPK_TRAIN 1000", parts: "TEST.DETECTIONS_PER_IMAGE 50", evalB: `INPUT.MIN_SIZE_TEST 640   # the batch of evaluation is one`}},
		{Name: "YOLOv5", is: re(`yolov5[/\\]|yolov7[/\\]`), closed: true, set: settings{batch: "--batch-size HALF", image: "--img 512", workers: "--workers 2", stream: "leave out --cache, or --cache disk", evalB: "--batch-size HALF   # validation takes twice of it", fewer: "--batch-size HALF; or images with fewer objects"}},
		{Name: "YOLOX", is: re(`yolox[/\\]`), closed: true, set: settings{batch: "-b HALF", half: "--fp16", image: "self.input_size = (512, 512) in the Exp file", fewer: "-b HALF; images with many objects are then assigned on the CPU", workers: "self.data_num_workers = 2 in the Exp file", stream: "leave out --cache"}},
		{Name: "Ultralytics", is: re(`ultralytics[/\\]|\byolo (?:task=|detect|segment|train|pose|obb)|imgsz=|from ultralytics`), closed: true, set: flagsOf(remedy.Ultralytics, settings{parts: "max_det=100   # fewer masks; retina_masks=False"})},
		{Name: "RF-DETR", is: re(`rfdetr[/\\]`),
			set: settings{batch: "batch_size=HALF, grad_accum_steps=TWICE", image: "resolution=448",
				ckpt: "gradient_checkpointing=True"}},
		{Name: "timm", is: re(`pytorch-image-models|timm[/\\](?:data|utils|optim)`), set: settings{batch: "-b HALF --grad-accum-steps 2", ckpt: "--grad-checkpointing", half: "--amp", image: "--img-size 192", workers: "-j 2", evalB: "-vb HALF"}},
		{Name: "nnU-Net", is: re(`nnunet`), closed: true, set: settings{batch: "nnUNetv2_plan_experiment -d ID -gpu_memory_target 6 -overwrite_plans_name nnUNetPlans_6G   # a plan for a smaller card; train with -p nnUNetPlans_6G",
			image: "nnUNetv2_plan_experiment -d ID -gpu_memory_target 6 -overwrite_plans_name nnUNetPlans_6G", workers: "nnUNet_n_proc_DA=4 before the command", remedy.FewerProcesses: "nnUNetv2_predict ... -npp 1 -nps 1   # preprocessing: -np 2",
			evalB: "nnUNetv2_predict ... --not_on_device -npp 1 -nps 1", parts: "nnUNetv2_predict ... --not_on_device", remedy.MapProcesses: "nnUNetv2_preprocess -np 2"}},
		{Name: "MONAI", is: re(`monai[/\\](?:inferers|transforms|data|networks|apps)|import monai|from monai`), set: settings{evalB: "sw_batch_size=1", parts: "sliding_window_inference(..., sw_device='cuda', device='cpu')",
			stream: "CacheDataset(..., cache_rate=0.2)   # or PersistentDataset", image: "a smaller roi_size and spatial_size of the crops", batch: "batch_size=1 and num_samples=1 of RandCropByPosNegLabeld   # their product is the batch", workers: "num_workers=1"}},
		{Name: "open_clip", is: re(`open_clip`), closed: true, set: settings{batch: "--batch-size HALF --accum-freq 2", ckpt: "--grad-checkpointing", half: "--precision amp_bf16", fewer: "--local-loss --gather-with-grad", image: "--force-image-size 224", workers: "--workers 2"}},
		{Name: "Segment Anything", is: re(`segment_anything|sam2[/\\]|automatic_mask_generator`), set: settings{batch: "points_per_batch=16", image: "a smaller image, or crop_n_layers=0", fewer: "points_per_side=16, points_per_batch=16", parts: "points_per_batch=16; output_mode='coco_rle' keeps masks packed"}},
		{Name: "PaddleOCR", is: re(`paddleocr|ppocr`), closed: true, set: settings{batch: "-o Train.loader.batch_size_per_card=HALF", evalB: "-o Eval.loader.batch_size_per_card=1", workers: "-o Train.loader.num_workers=2", image: "rec_image_shape / limit_side_len smaller"}},
		{Name: "PaddleDetection", is: re(`paddledetection|ppdet`), closed: true, set: settings{batch: "-o TrainReader.batch_size=HALF", workers: "-o worker_num=1", evalB: "-o EvalReader.batch_size=1", image: "smaller sizes of BatchRandomResize"}},
		{Name: "Paddle", is: re(`paddle[/\\](?:fluid|base|nn|optimizer|phi)|paddlenlp|import paddle|flags_\w+`), set: settings{batch: "batch_size=HALF", half: "use_amp: True", remedy.ExpandableSegments: "FLAGS_allocator_strategy=auto_growth before the command", remedy.TFGrowth: "FLAGS_allocator_strategy=auto_growth before the command",
			engine: "FLAGS_fraction_of_gpu_memory_to_use=0.8 before the command", evalB: "a smaller batch_size of the eval loader"}},
		// image generation
		{Name: "kohya sd-scripts", is: re(`sd-scripts|kohya|library[/\\]train_util|train_network\.py|sdxl_train|flux_train|musubi`), closed: true, set: flagsOf(remedy.Kohya, settings{remedy.PipelineOffload: "--cache_latents --cache_text_encoder_outputs   # blocks of Flux and SD3: --blocks_to_swap 16", workers: "--max_data_loader_n_workers 1"})},
		{Name: "SimpleTuner", is: re(`simpletuner`), closed: true, set: settings{batch: "--train_batch_size=1", ckpt: "--gradient_checkpointing", image: "--resolution=512", remedy.Quantize8Bit: "--base_model_precision=int8-quanto", adam8: "--optimizer=adamw_bf16"}},
		{Name: "ai-toolkit", is: re(`ai-toolkit|ostris`), closed: true, set: settings{batch: "batch_size: 1", image: "resolution: [512]", remedy.Quantize8Bit: "quantize: true", remedy.PipelineOffload: "low_vram: true", ckpt: "gradient_checkpointing: true"}},
		{Name: "diffusers' training scripts", is: re(`train_(?:text_to_image|dreambooth|controlnet|instruct_pix2pix|unconditional)\w*\.py|diffusers[/\\]examples`), closed: true, set: settings{batch: "--train_batch_size 1 --gradient_accumulation_steps 4", ckpt: "--gradient_checkpointing",
			adam8: "--use_8bit_adam", image: "--resolution 512", half: "--mixed_precision bf16",
			flash: "--enable_xformers_memory_efficient_attention", workers: "--dataloader_num_workers 0",
			evalB: "--num_validation_images 1", remedy.PipelineOffload: "leave out --train_text_encoder"}},
		// engines
		{Name: "vLLM", is: re(`\bvllm[/\\](?:v1|worker|engine|executor|model_executor|entrypoints)|vllm\.entrypoints|vllm serve`), closed: true, set: settings{batch: "--max-num-seqs 32 --max-num-batched-tokens 2048"}},
		{Name: "SGLang", is: re(`sglang[/\\.]`), closed: true, set: settings{batch: "--max-running-requests 16 --chunked-prefill-size 2048", engine: "--mem-fraction-static 0.7", length: "--context-length HALF", remedy.CUDAGraphSizes: "--cuda-graph-max-bs 16", remedy.DeviceMap: "--tp 2"}},
		// graphs, play, scenes, molecules
		{Name: "GraphStorm", is: re(`graphstorm[/\\]`), closed: true, set: settings{batch: "--batch-size HALF", remedy.LessAtOnce: `--fanout "10,5"`, evalB: `--eval-batch-size HALF --eval-fanout "10,5"`, parts: `--fanout "10,5" --batch-size HALF   # inference: --use-mini-batch-infer true`}},
		{Name: "PyTorch Geometric", is: re(`torch_geometric[/\\]`), set: settings{parts: "NeighborLoader(data, num_neighbors=[10, 5], batch_size=512) instead of the whole graph", batch: "batch_size=HALF and fewer num_neighbors"}},
		{Name: "DGL", is: re(`\bdgl[/\\](?:nn|backend|dataloading|ops)`), set: settings{parts: "dgl.dataloading.DataLoader(g, ids, NeighborSampler([10, 5]), batch_size=512) instead of the whole graph", batch: "batch_size=HALF and a smaller fan-out"}},
		{Name: "Stable-Baselines3", is: re(`stable_baselines3[/\\]`), set: settings{buffer: "buffer_size=100_000, and optimize_memory_usage=True for images; PPO and A2C: a smaller n_steps or n_envs", batch: "batch_size=HALF", remedy.LessAtOnce: "fewer n_envs, or a smaller n_steps"}},
		{Name: "RLlib", is: re(`rllib[/\\]`),
			set: settings{batch: "train_batch_size=HALF, minibatch_size=HALF",
				remedy.FewerTrials: "num_env_runners=2", buffer: `replay_buffer_config={"capacity": 50_000}`,
				remedy.FewerProcesses: "num_env_runners=2"}},
		{Name: "Isaac Lab", is: re(`isaac(?:lab|gym|sim)|rsl_rl|legged_gym`), set: settings{batch: "--num_envs HALF", remedy.LessAtOnce: "--num_envs HALF"}},
		{Name: "CleanRL", is: re(`cleanrl[/\\]`), closed: true, set: settings{buffer: "--buffer-size 100000", batch: "--batch-size HALF", remedy.LessAtOnce: "--num-envs HALF"}},
		{Name: "splatfacto", is: re(`splatfacto`), closed: true, set: settings{batch: "", evalB: "", half: "", ckpt: "",
			image:              "--pipeline.datamanager.dataparser.downscale-factor 2",
			remedy.FewerPoints: "--pipeline.model.max-gs-num 1000000 with --pipeline.model.strategy mcmc; else --pipeline.model.densify-grad-thresh 0.001",
			stream:             "--pipeline.datamanager.cache-images cpu"}},
		{Name: "nerfstudio", is: re(`nerfstudio[/\\]|ns-train`), closed: true, set: settings{batch: "--pipeline.datamanager.train-num-rays-per-batch HALF", evalB: "--pipeline.model.eval-num-rays-per-chunk 1024", image: "--pipeline.datamanager.dataparser.downscale-factor 2", remedy.FewerPoints: "splatfacto: --pipeline.model.cull-alpha-thresh 0.2 --pipeline.model.densify-grad-thresh 0.001", stream: "--pipeline.datamanager.cache-images cpu"}},
		{Name: "3D Gaussian Splatting", is: re(`diff_gaussian_rasterization|gaussian-splatting|gaussian_model|scene\(dataset, gaussians|cameralist_from_caminfos|rasterize_gaussians|diff_surfel`), set: settings{image: "-r 2   # half the resolution", remedy.FewerPoints: "--densify_grad_threshold 0.0004 --densify_until_iter 10000", stream: "--data_device cpu   # moves images only, points stay on the card"}},
		{Name: "AlphaFold", is: re(`alphafold3?[/\\]|colabfold|run_alphafold`), closed: true, set: settings{batch: "", evalB: "", remedy.EvalOutputs: "", half: "", ckpt: "", remedy.NoGrad: "", length: "fewer residues in one job: split the complex; ColabFold: --max-msa 256:512"}},
		{Name: "ESMFold", is: re(`esmfold|esm-fold`), closed: true, set: settings{batch: "", evalB: "", half: "", ckpt: "",
			remedy.LessAtOnce: "model.set_chunk_size(32); what is left grows with the square of the residues: fewer in one job",
			length:            "fewer residues in one job: its pairs grow with their square", parts: "model.set_chunk_size(32)"}},
		{Name: "ESM", is: re(`\besm[/\\]|esmfold`), set: settings{length: "shorter sequences, or model.set_chunk_size(64)", parts: "model.set_chunk_size(64)", batch: "--toks_per_batch 1024   # esm-fold: --max-tokens-per-batch 512"}},
		{Name: "OpenFold", is: re(`openfold[/\\]`), set: settings{parts: "globals.chunk_size = 4; globals.use_lma or use_flash = True", length: "data.train.crop_size = 256"}},
		{Name: "Boltz", is: re(`\bboltz[/\\ ]`), closed: true, set: settings{length: "--max_msa_seqs 2048", parts: "--max_msa_seqs 2048 --subsample_msa", batch: "--diffusion_samples 1 --max_parallel_samples 1"}},
		{Name: "DeePMD", is: re(`deepmd[/\\]`), closed: true, set: settings{batch: `"batch_size": "auto:32" in training_data`, evalB: "DP_INFER_BATCH_SIZE=1024 before the command"}},
		{Name: "MACE", is: re(`\bmace[/\\]|mace_run_train`), closed: true, set: settings{batch: "--batch_size HALF", evalB: "--valid_batch_size HALF"}},
		// language processing, tables, others
		{Name: "spaCy", is: re(`\bspacy[/\\](?:cli|training|language|pipeline|ml)|spacy train|nlp\.pipe|spacy_transformers|thinc[/\\]`), set: settings{batch: "--training.batcher.size 500   # in inference nlp.pipe(texts, batch_size=32)", length: "shorter texts: split them before nlp.pipe; get_spans.window of the transformer smaller", remedy.KeepLess: "doc._.trf_data = None after each doc (the component doc_cleaner), and nlp.memory_zone()",
			remedy.FewerProcesses: "nlp.pipe(..., n_process=1)", remedy.LongestBatch: "--training.batcher.discard_oversize true --training.batcher.size 1000", evalB: "--nlp.batch_size 64"}},
		{Name: "Flair", is: re(`\bflair[/\\]`), set: settings{batch: "mini_batch_chunk_size=1", length: "max_sequence_length of the embeddings, or shorter sentences", remedy.KeepLess: "embeddings_storage_mode='none'"}},
		{Name: "AllenNLP", is: re(`allennlp[/\\ ]`), closed: true, set: settings{batch: `"batch_size": HALF in data_loader, "num_gradient_accumulation_steps": 2 in trainer`, half: `"use_amp": true in trainer`}},
		{Name: "fastai", is: re(`\bfastai[/\\]|from fastai`), set: settings{batch: "dls = ...dataloaders(bs=HALF), cbs=GradientAccumulation(64)", half: "learn.to_fp16()", image: "item_tfms=Resize(224)", workers: "num_workers=0"}},
		{Name: "AutoGluon", is: re(`autogluon[/\\.]`), set: settings{batch: "hyperparameters={'env.per_gpu_batch_size': 2}", remedy.FewerTrials: "ag_args_ensemble={'fold_fitting_strategy': 'sequential_local'}", remedy.RaiseLimit: "ag_args_fit={'ag.max_memory_usage_ratio': 1.5}"}},
		{Name: "TensorFlow Object Detection", is: re(`object_detection[/\\]|model_main_tf2`), closed: true, set: settings{batch: "train_config { batch_size: HALF } in pipeline.config", image: "image_resizer smaller in pipeline.config", workers: "num_readers, prefetch and shuffle_buffer_size smaller in train_input_reader", remedy.ShuffleBuffer: "shuffle_buffer_size: 256 in train_input_reader"}},
		{Name: "DeepLabCut", is: re(`deeplabcut[/\\]`), set: settings{batch: "batch_size: HALF in the configuration", image: "a smaller global_scale, or cropped videos"}},
		{Name: "Rasa", is: re(`\brasa[/\\]`), closed: true, set: settings{batch: "batch_size: [16, 32] of DIETClassifier", remedy.LessAtOnce: "evaluate_on_number_of_examples: 0; fewer features of the featurizers"}},
		{Name: "mlx_lm", is: re(`mlx_lm|mlx-lm|mlx_vlm`), closed: true, set: flagsOf(remedy.MLX,
			settings{})},
		{Name: "DeepSpeed-Chat", is: re(`deepspeed-?chat|deepspeedexamples`), closed: true, set: settings{batch: "--per_device_train_batch_size HALF --gradient_accumulation_steps TWICE", length: "--max_seq_len HALF", ckpt: "--gradient_checkpointing", shard: "--zero_stage 3", offload: "--offload", lora: "--lora_dim 128 --only_optimize_lora"}},
	}
})

// onlyLength reports whether what a tool works on has a length, and no batch that could be smaller.
func (t *Tool) onlyLength() bool {
	text, batched := t.set[batch]
	return batched && text == "" && t.set[length] != ""
}

// toolOf finds the tool whose settings the job has. Paths of frames count for more than words of
// the text: people name tools that they do not run.
func toolOf(f *Facts) *Tool {
	var frames strings.Builder
	for _, fr := range f.Crash.Frames {
		frames.WriteString(strings.ToLower(strings.ReplaceAll(fr.File, "\\", "/")))
		frames.WriteByte('\n')
	}
	for _, where := range []string{frames.String(), f.text} {
		if where == "" {
			continue
		}
		for i, all := 0, tools(); i < len(all); i++ {
			if all[i].is.MatchString(where) {
				return &all[i]
			}
		}
	}
	return nil
}
