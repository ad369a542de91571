package trace

import (
	"slices"
	"strconv"
	"strings"
)

// Signs are circumstances that a log shows around a crash: the system, the tools, what people say
// they did. The key names the circumstance, the value is the text that shows it.
type Signs map[string]string

// Names of signs.
const (
	SignWSL        = "wsl"         // Linux inside Windows
	SignWindows    = "windows"     //
	SignBare       = "bare"        // outside of containers, as the text claims
	SignContainer  = "container"   // Docker or the like
	SignDocker     = "docker"      // Docker or Podman, by their own words
	SignKube       = "kube"        // a pod
	SignEvaluating = "evaluating"  // evaluation or prediction was under way
	SignEvalToHost = "eval_host"   // eval_accumulation_steps is set: predictions go to the host
	SignZeRO3      = "zero3"       // ZeRO stage 3 or full sharding is configured
	SignOffload    = "offload"     // optimizer or parameters live in host memory
	SignStates     = "states"      // DeepSpeed was making the optimizer's states when it ended
	SignUnsharded  = "unsharded"   // memory does not shrink with more cards, as the text claims
	SignTrials     = "trials"      // trials, folds or models one after the other
	SignTrialNo    = "trial_no"    // trials or folds of one process; the value is the last number
	SignEpochs     = "epochs"      // whole epochs had passed; the value is the last one reached
	SignRayTune    = "ray_tune"    // trials of Ray Tune or workers of Ray Train
	SignRayData    = "ray_data"    // data sets of Ray
	SignSpilled    = "spilled"     // Ray's object store wrote objects to disk
	SignPreference = "preference"  // DPO, GRPO and their kin: pairs, a reference model
	SignNotebook   = "notebook"    //
	SignMPSLate    = "mps_late"    // a setting of MPS made inside the program
	SignGraphSizes = "graph_sizes" // CUDA graphs for many input sizes; the value is their number
	SignShuffle    = "shuffle"     // tf.data fills a shuffle buffer; the value is its size
	SignGathers    = "gathers"     // a whole state dict is gathered from its shards
	SignEvalBar    = "eval_bar"    // a progress bar of evaluation; the value is the batches done
	SignEvalLast   = "eval_last"   // the same, where no other bar stands between it and the crash
	SignDataLoad   = "data_load"   // several ranks read this file of data
	SignSmallPool  = "small_pool"  // TensorFlow found only this much free on the card
	SignEvalSaid   = "eval_said"   // it happened during evaluation, as the text claims
	SignPredicts   = "predicts"    // predict is called in a loop, as the text claims
	// TensorFlow: the driver refused the share asked for at the start
	SignRefused    = "refused"
	SignWorkerKill = "worker_kill" // a DataLoader worker was among those killed
	SignWorkers    = "workers"     // the value is the number of DataLoader workers
	SignSaveSteps  = "save_steps"  // the value is the number of steps between checkpoints
	SignResumed    = "resumed"     // training continues from a checkpoint
	SignGrowth     = "growth"      // the program's own figures of memory rise; the value is the rise
	SignMerging    = "merging"     // adapters are being merged
	SignJoining    = "joining"     // the shards of a checkpoint are being joined
	SignEngine     = "engine"      // an inference engine takes this share of the card
	SignEngineSum  = "engine_sum"  // memory that an inference engine has and needs, in its own figures
	SignCapturing  = "capturing"   // an inference engine records CUDA graphs
	SignServing    = "serving"     // a program that serves or generates
	SignTraining   = "training"    // words of training
	SignPython     = "python"      // something that runs under Python
	SignJoblib     = "joblib"      // workers of joblib
	SignDatasets   = "datasets"    // map of Hugging Face's datasets
	SignNNUNet     = "nnunet"      // workers of batchgenerators, as nnU-Net has them
	SignImages     = "images"      // a program that generates images
	SignTFInJAX    = "tf_in_jax"   // TensorFlow in the same process as JAX
	SignText       = "text"        // tokens, prompts, language models
	SignPictures   = "pictures"    // images, clips or volumes are the input
	SignPretrained = "pretrained"  // a library of pretrained models
	SignLoader     = "loader"      // a DataLoader of PyTorch
	SignCards      = "cards"       // several cards
	SignHooks      = "hooks"       // hooks are registered
	SignSGD        = "sgd"         // plain SGD
	SignDetection  = "detection"   // MMDetection and its kin
	SignMetrics    = "metrics"     // metric objects
	SignProgram    = "program"     // a server or generator; the value is its name
	SignStudy      = "study"       // trials of Optuna
	SignLearning   = "learning"    // a model is trained, in words that nothing else uses
	SignTaken      = "taken"       // a table above the end shows a full card; what was taken
	SignPacked     = "packed"      // a model whose weights have few bits already, by its name
	SignEvalLoop   = "eval_loop"   // TensorFlow's own word for a loop of evaluation or prediction
	SignInfers     = "infers"      // inference, prediction or generation, in words
	SignMaker      = "maker"       // words of a card that NVIDIA did not make
	SignScores     = "scores"      // attention, or products of all with all
	SignData       = "data"        // data sets, tables and arrays are read or held
	SignReads      = "reads"       // a file of data is read
	SignRoom       = "said_room"   // the card has room, as the text claims
	SignIndex      = "wrong_index" // an index out of range
	SignPool       = "pool"        // a pool of worker processes; the value is the number of one of them
	SignTrees      = "trees"       // boosted trees and tables on the card: XGBoost, LightGBM, RAPIDS
	SignGraphs     = "graphs"      // TensorFlow 1: graphs that run in sessions
	SignKeras      = "keras"       // Keras, by its own names
	SignFSDP       = "fsdp"        // PyTorch's own sharding
	SignSharder    = "sharder"     // another library that divides models over ranks
	SignRollouts   = "rollouts"    // workers of RLlib
	SignAdapters   = "adapters"    // adapters are trained, by a name or a word
	SignBatchVain  = "batch_vain"  // a smaller batch was tried in vain, as the text claims
	SignPinned     = "pinned"      // host memory is locked for copies
	SignCaching    = "caching"     // decoded samples are cached in host memory
	SignEvalOne    = "eval_one"    // the batch of evaluation is one, or was made smaller in vain
	SignBatches    = "batches"     // batches or epochs of a data set, by a word or a name
	SignSlurm      = "slurm"       // a job of Slurm
	SignOptax      = "optax"       // optimizers of Optax
	SignFlax       = "flax"        // models of Flax
	SignVision     = "vision"      // transforms of torchvision
	SignToolkit    = "toolkit"     // a library whose own loop trains, by its settings
	SignLengthFlag = "length_flag" // the program takes --max_seq_length
	SignTrainerCLI = "trainer_cli" // Lightning's Trainer is set on the command line
	SignSoftmax    = "softmax"     // source lines of a softmax in the backward pass
	SignMoves      = "moves"       // source lines of a model that is moved to a device
	SignLoadSaid   = "load_said"   // it happens while weights are loaded, as the text claims
	SignOldPython  = "old_python"  // a Python that newer releases of the frameworks do not run on
	SignDiffusion  = "diffusion"   // a model that makes images or clips, by its name
	SignShmRoom    = "shm_room"    // no workers run, or /dev/shm is large, as the text claims
	SignRanksSaid  = "ranks_said"  // one process a card, by a word
	SignNVMe       = "nvme"        // what is offloaded goes to a disk
	SignLines      = "lines"       // records in text, one a line
	SignNoGraphs   = "no_graphs"   // no graphs of CUDA are recorded, by a setting
	SignCompiled   = "compiled"    // graphs of CUDA are recorded, by a word
	SignCSV        = "csv"         // tables in text
	SignNPY        = "npy"         // arrays in NumPy's files
	SignShareVain  = "share_vain"  // another share of the card was tried in vain, as the text claims
	SignReplay     = "replay"      // reinforcement learning, whose experience is kept in a buffer
	SignLogits     = "logits"      // a source line of the logits over a vocabulary
	SignShares     = "shares"      // trials of Ray get parts of one card
	SignPoints     = "points"      // the program adds points while it trains, one view at a time
	SignReplica    = "replica"     // DataParallel names the replica that failed
	SignShards     = "shards"      // the shards of a state dict are saved, not the whole of it
	SignOtherBatch = "other_batch" // a batch size with which it works, as the text claims
)

// sign is a circumstance and the expression that shows it. Where the expression has a group, the
// value is that group.
type sign struct {
	name string
	is   *expression
}

// statesBegun matches DeepSpeed's message before it creates the optimizer's states. It does not
// count if statesMade matches too.
var statesBegun = later(`(Before initializing optimizer states)`)

// statesMade matches its message once they exist.
var statesMade = later(`After initializing optimizer states|After initializing ZeRO optimizer`)

// signsNear are looked for in the lines around a crash.
var signsNear = []sign{
	{SignWSL, later(`\bWSL ?2?\b|microsoft-standard|@(?:DESKTOP|LAPTOP)-[A-Z0-9]+:[^\n]{0,120}[$#]`)},
	{SignWindows, later(`\b[A-Z]:\\{1,2}[\w .-]+\\|~\\\w+\\|\\[Ll]ib\\site-packages|\b[Ww](?:indows|in) ?(?:10|11|Server)\b|WinError|\bWDDM\b|` +
		`win_amd64|win32`)},
	{SignBare, later(`(?i)without["']? (?:using )?(?:a )?(?:docker|containers?)|` +
		`(?:not|n't) (?:using|use|in|inside) (?:a |any )?(?:docker|container)|` +
		`no docker|outside (?:of )?(?:a |any )?(?:docker|container)|bare[- ]metal`)},
	{SignContainer, later(`(?i)\bdocker\b|\bcontainer\b|/workspace/|podman|singularity|apptainer`)},
	{SignDocker, later(`(?i)\bdocker\b|\bpodman\b|"?OOMKilled"?: ?true`)},
	{SignKube, later(`(?i)\bpods?\b|kubernetes|kubectl|jupyterhub|/srv/conda|jovyan|binderhub|kubeflow`)},
	{SignEvaluating, later(`(?i)\beval(?:uation)? (?:process|loop|step|phase)|` +
		`(?:during|in|at|while) (?:the )?(?:evaluat\w+|validat\w+|testing)\b|` +
		`evaluating\b|\bevaluation:|validation:|\bvalidating\b|validation dataloader|` +
		`running evaluation|running prediction|(?:prediction|evaluation)_loop|compute_metrics|sanity check`)},
	{SignEvalToHost, later(`(?i)eval_accu\w+_steps["'` + "`" + `]?(?:\s*[=: ]\s*["']?[1-9]| to a )`)},
	{SignZeRO3, later(`(?i)zero[-_ ]?(?:stage[-_ ]?)?3|\bz3\b|_z3_|stage[-_ ]?3|"stage": ?3|full_shard|` +
		`\bfsdp\b|FullyShardedDataParallel`)},
	{SignOffload, later(`(?i)(?:z[23]|zero\w*|ds|stage\d?)[\w-]*offload|offload_(?:optimizer|param|opt)|` +
		`cpu_offload|\bcpu offload(?:ing)?\b|(?:zero[- ]?|stage[- ]?)[23][- ]+(?:\w+[- ]){0,2}offload(?:ing)?\b|DeepSpeedZeRoOffload|DeepSpeedCPUAdam|offload[\w-]*\.json|CPU Offload: True|` +
		`extension module cpu_adam|Adam Optimizer #\d+ is created with`)},
	{SignStates, statesBegun},
	{SignUnsharded, later(`(?i)(?:memory|usage|vram)[^.\n]{0,70}\b(?:stays?|remains?|is|are) ` +
		`(?:\w+ )?the same|(?:not|n't|no|without) (?:\w+ )?(?:reduc|decreas|shrink|chang|sav|lower)\w*` +
		`[^.\n]{0,40}\b(?:memory|vram)|(?:memory|vram)[^.\n]{0,60}\b(?:not|n't) ` +
		`(?:reduc|decreas|shrink|chang|go down|drop|split|shard)`)},
	{SignTrials, later(`(?i)\boptuna\b|\btrial[ _#]?\d+|\b(?:models?|networks?|nets?) (?:\w+ ){0,3}in (?:a |one )?` +
		`(?:for[- ]|python )?loop|\bloop (?:over|that (?:trains|builds|fits)) (?:\w+ )?(?:models|networks|folds)|study\.optimize|\bfold[ _:]?\d|k-?fold|` +
		`cross[-_]val|grid ?search|keras_?tuner|hyper-?parameter (?:search|tun)|wandb[ .]sweep`)},
	{SignRayTune, later(`ray[/\\.]tune|tune\.run|ray::ImplicitFunc|TrainTrainable|RayTrainWorker|` +
		`ray[/\\.]train\b|_Trainable|ray::\w*Trainer`)},
	{SignRayData, later(`ray[/\\.]data\b|object_store_memory: ?\d|iter_torch_batches|MapBatches|` +
		`ReadParquet|local_shuffle|streaming_split|/[\d.]+ ?[GM]iB object_store_memory`)},
	{SignSpilled, later(`Spilled (\d+(?:\.\d+)? ?[KMGT]iB)`)},
	{SignPreference, later(`\bDPO|dpo_trainer|\bGRPO|grpo_trainer|PPOTrainer|ppo_trainer|ref(?:erence)?_model|` +
		`_get_per_token_logps|ORPOTrainer|KTOTrainer|concatenated_forward`)},
	{SignNotebook, later(`ipykernel|<ipython-input|\bCell In ?\[|\bInput In \[`)},
	{SignMPSLate, later(`os\.environ\[\s*['"]PYTORCH_MPS_\w+|os\.environ\.setdefault\(\s*['"]PYTORCH_MPS_`)},
	{SignGraphSizes, later(`observed (\d+) distinct sizes`)},
	{SignShuffle, later(`(?i)filling up shuffle buffer[^\n]*? of (\d+)`)},
	{SignGathers, later(`Failed to clone\(\) tensor|state_dict entry could point to invalid|` +
		`(?i:(?:saving|gather\w*|consolidat\w*|collect\w*) (?:the )?(?:full|whole|complete|unsharded) ` +
		`(?:model |optimizer )?state)`)},
	{SignEvalBar, later(`(?i)\b(?:evaluat|validat|predict|test)(?:e|ion|ing)\b[^|\n]{0,40}(?:\|[^|\n]*\| *)?\b(\d+)(?:/\d+|it)? \[`)},
	{SignEvalBar, later(`(?i)\b(?:valid|val|eval|dev|inference)\b[)\]:]*\s*:?\s*\d{1,3}%[^\n]{0,200}?\b` +
		`(\d+)/\d+ \[`)},
	{SignEvalBar, later(`(?i)\b(?:evaluation|evaluating|validation|validating|test|eval|val|valid):? {1,3}\[ {0,4}` +
		`(\d+)/\d+\]`)},
	{SignEvalSaid, later(`\.(?:test|validate|evaluate|predict)\([^\n]{0,40}(?:\bOOM\b|out of memory)|` +
		`(?i)(?:train(?:ing)?|训练)[ ,，]{0,2}(?:正常|成功|没问题|可以)[^。\n]{0,20}(?:evaluat|valid|predict|inferenc|` +
		`评估|验证|预测|推理)|(?:评估|验证|预测|推理)(?:时|阶段|过程)?[^。\n]{0,6}(?:失败|报错|爆显存|爆内存|oom)`)},
	{SignPredicts, later(`(?i)\bpredict(?:ion|ions|ing)?\b[^.\n]{0,40}\b(?:in|inside|within) (?:a |the )?` +
		`(?:for |while )?loop|\b(?:loop|repeatedly|many times)\b[^.\n]{0,40}\bpredict`)},
	{SignRefused, later(`failed to allocate [\d.]+ ?[KMG]i?B? \((\d{9,}) (?:bytes|B)\) from device`)},
	{SignWorkerKill, later(`DataLoader worker \(pid[^)]*\) is killed by signal: Killed|` +
		`DataLoader worker \(pid\(s\) [^)]*\) exited unexpectedly`)},
	{SignWorkers, later(`(?i)num[_-]workers["']?[=: ]+["']?(\d{1,3})\b`)},
	{SignSaveSteps, later(`save_steps["']?[=: ]+["']?(\d{1,7})\b`)},
	{SignResumed, later(`(?i)resum(?:ed|ing)(?: training| run)? from|load(?:ing|ed)? (?:the )?saved states?\b|` +
		`\b(?:continue|resume|restart)(?:s|d|ing)? (?:the |my )?training (?:from|with|using|after)|` +
		`loaded checkpoint|loading checkpoint ['"/]|` +
		`attempting to resume|load(?:ing|ed)? (?:model|optimizer|training) (?:checkpoint|state)\b|` +
		`(?:after|when|on) (?:a |the )?resum\w*|` +
		`(?:read|load(?:ed|ing)) (?:\d+ )?(?:ZeRO|optimizer) state|` +
		`resume_from_checkpoint["']?\s?[=: ]\s?["']?(?:true\b|[\w./-]*[/-]\d+)|resuming training|` +
		`restor(?:ing|ed) (?:from )?(?:the )?(?:checkpoint|states)|=> loading checkpoint`)},
	{SignMerging, later(`(?i)\bmerg(?:e|ing)[^\n]{0,40}(?:lora|adapter|weights|model)|merge_and_unload|` +
		`\bmerge_\w*lora`)},
	{SignJoining, later(`zero_to_fp32|Processing zero checkpoint|dcp_to_torch|merge[-_]fsdp|merge-weights|` +
		`(?i:consolidat\w+ (?:the )?(?:\w+ )?(?:shards|checkpoint|weights))|convert_checkpoint_to_hf`)},
	{SignEngine, later(`(?:(?:gpu[-_]memory[-_]utilization|mem[-_]fraction[-_]static)["']?` +
		`\s?[=:(]?\s?\(?|Available KV cache memory: )(0?\.\d+|1\.0|[\d.]+ GiB)`)},
	{SignCapturing, later(`(?i)captur\w+ (?:the )?(?:cuda ?graphs?|cudagraphs?|model)|graph captur\w+`)},
	{SignServing, later(`(?i)\bvllm\b|\bsglang\b|text[-_]generation[-_](?:inference|launcher|router|server|client)\b|` +
		`tritonserver|triton[-_ ]inference|llama-server|\bollama\b|lmdeploy|tensorrt_llm|uvicorn|fastapi|api_server|EngineCore|` +
		`\bLLM\(model|\b(?:run_)?(?:inference|infer|demo|serve|server|webui|gradio_app)\.py|fooocus|` +
		`\bgradio\b|whisper\.transcribe|pipe\(prompt`)},
	{SignTraining, later(`(?i)\btrain(?:ing|er|s|ed|_\w+)?\b|fine-?tun|\bepochs?\b|\bloss\b|optimizer|` +
		`backward|gradient|lora\b`)},
	{SignPython, later(`(?i)\bpython|\.py\b|\bepoch|\btrain|data ?set|dataloader|\bconda|\bpip\b|jupyter|` +
		`notebook|torch|tensor|numpy|pandas`)},
	{SignJoblib, later(`(?i)\bjoblib\b|\bn_jobs\b|\bloky\b`)},
	{SignDatasets, later(`datasets[/\\](?:arrow_dataset|utils|builder)|died during map|` +
		`\(num_proc=\d+\)|dataset_num_proc|\.map\([^)\n]{0,120}num_proc`)},
	{SignImages, later(`(?i)fooocus|\bsd\.?next\b|automatic1111|run_hy_?video|denoise_latents|ComfyUI|\bcomfy[/\\]|stable-diffusion-webui|webui[-_]forge|InvokeAI|` +
		`KSampler|VAEDecode|diffusers[/\\]pipelines|decode_first_stage|num_inference_steps|guidance_scale|` +
		`text2video|img2img|txt2img|image2video|num_frames=|vae\.decode\(|diffusion sampling|decode\(latents`)},
	{SignPool, later(`(?:Spawn|Fork)PoolWorker-(\d+)|multiprocess(?:ing)?[/\\]pool\.py|process_pool\.|` +
		`ProcessPoolExecutor|died during map`)},
	{SignNNUNet, later(`(?i)nnu-?net|batchgenerators`)},
	{SignTrees, later(`(?i)\bxgboost|\blightgbm|\bcatboost|gpu_hist|\bcudf\b|\bcuml\b|rmm::|device_helpers\.cuh`)},
	{SignText, later(`(?i)\btokens?\b|\bunsloth\b|tokeniz|\b(?:llama|qwen|mistral|mixtral|gpt|bert|roberta|falcon|gemma|` +
		`deepseek|chatglm|bloom|phi|t5|vicuna|baichuan|internlm|yi)[-_\d]|\b(?:llm|prompts?|vocab\w*|` +
		`causal ?lm|lm_head|seq2seq|chatbot|max_(?:seq|model)_len\w*|seq_?len\w*|max_length|context (?:length|size|` +
		`window)|kv cache|language model)\b|\bopt-\d|causallm|modeling_(?:llama|qwen|gpt|bert|mistral|gemma|opt|t5)|\bn_ctx\b`)},
	{SignPictures, later(`(?i)\b(?:images?|imgs?|pictures?|pixels?|videos?|clips?|jpe?g|png|resolution|` +
		`conv[23]d|resnet\w*|unet\w*|vgg\w*|yolo\w*|detector|segment(?:ation|er|anything)|segment anything|vae|vit|diffusion|cv2|opencv|torchvision|` +
		`resiz\w*|detectron2?|mask(?:2|_)?(?:former|rcnn)\w*|mmdet\w*|mmseg\w*|nnunet\w*|imagenet|coco|latents?|faces?|volumes?|patches|voxels?|imgsz|img_size|` +
		`image_size|gan|stylegan\w*|frames per|lidar|point ?clouds?)\b|conv2d|resize(?:bilinear|nearest|bicubic)|/vision/|diffusers|comfy|pixel_values`)},
	{SignPretrained, later(`(?i)from_pretrained|site-packages[/\\](?:transformers|diffusers|accelerate|peft)[/\\]|` +
		`\bAutoModel|transformers[/\\]model|import transformers|huggingface|diffusers[/\\]|\bpeft\b|` +
		`load_in_[48]bit|loading checkpoint shards|device_map`)},
	{SignLoader, later(`DataLoader|dataloader\.py|(?i:num[_-]workers)|_utils[/\\](?:worker|collate|fetch|` +
		`pin_memory)\.py|prefetch_factor|pin_memory`)},
	{SignCards, later(`(?i)\bGPU [1-9]\d?\b|\bcuda:[1-9]|device_ids|DataParallel|` +
		`CUDA_VISIBLE_DEVICES=["']?\d+,\d|\b(?:[2-9]|1\d|two|four|eight|multi)[ -]?(?:x ?)?(?:\w+ )?` +
		`(?:gpus|cards)\b|tensor[-_]parallel(?:[-_]size)?[= ]+[2-9]|nproc[_-]per[_-]node[= ][2-9]|` +
		`--num_gpus[= ][2-9]|multi_gpu|\[rank[1-9]`)},
	{SignHooks, later(`(?i)register_(?:full_)?(?:forward|backward)\w*hook|forward hooks?\b`)},
	{SignSGD, later(`(?i)optim(?:izer)?[\w.]*["' =:(]+["']?sgd|optim\.SGD`)},
	{SignDetection, later(`(?i)\bmmdet|mmcv|mmengine|mmseg|max_iou_assigner`)},
	{SignMetrics, later(`(?i)torchmetrics|ignite[/\\.]metrics|dim_zero_cat|\bAUROC|MeanAveragePrecision`)},
	{SignProgram, later(`\b(LLM)\(model=`)},
	{SignProgram, later(`(?i)\b(vllm|sglang|text[-_]generation[-_](?:inference|server|launcher|router|client)|llama\.cpp|` +
		`llama_(?:init|model|new|kv|context|decode)|llm_load|ggml|ollama|tritonserver|triton[-_ ]inference|` +
		`comfyui|stable-diffusion-webui|webui|invokeai|fooocus|tensorrt[-_]llm|lmdeploy|koboldcpp|` +
		`localai|exllama\w*|a1111|whisper\.cpp)`)},
	{SignStudy, later(`(?i)\boptuna\b|study\.optimize`)},
	{SignLearning, later(`(?i)\.backward\(|\bbackward\b|optimizer\.step|\btrain(?:ing|er)?[ _]?(?:loop|step|epoch|` +
		`loader|batch|loss|args|data|steps|model)|\btrain(?:ing|er)?\.py|[\w/]*train\w*\.(?:py|sh|ya?ml)\b|fine-?tun(?:e|ing)\b|` +
		`\bepochs?\b ?[=:#\[(]? ?\d|\bloss["']?\s?[=:]\s?\d|lr["']?\s?[=:]\s?\d|learn(?:ing)?[ _]rate|gradient[ _-](?:accum|checkpoint)|` +
		`training_step|trainer\.(?:train|fit)|\.fit\(|gradient_accumulation|\bwhile training|during training|` +
		`(?:start|begin|run)\w* (?:the )?(?:pre-?)?training|train(?:ing)? (?:a|my|the|on|with|from)\b`)},
	{SignPacked, later(`(?i)[\w.]+[-_](fp8|awq|gptq|int[48]|w[48]a\d+|nf4|bnb-4bit|[48]bit)\b`)},
	{SignEvalLoop, later(`(?i)(?:recorded from|error in|in) (prediction_loop|evaluation_loop)`)},
	{SignInfers, later(`(?i)\binferenc\w*|\binfer(?:s|ring)?\b|[\w/]*(?:infer|predict|demo|generate|serve|sample|chat|` +
		`transcribe|detect|inpaint|upscale|synthes|convert|extract|encode|test)\w*\.py\b|\bgenerat(?:e|es|ing|ion)\b|` +
		`\bserv(?:e|er|ing)\b|\bprompt|\bchat|transcri(?:be|pt)|upscal|synthesi|\bdecoding\b|\bpredict(?:s|ing|ion|ions)?\b`)},
	{SignMaker, later(`(?i)\b(HIP out of memory|hip(?:Error|Malloc)\w*|rocm\w*|amdgpu|gfx\d{3,4}|XPU out of memory|` +
		`xpu|level[ _-]?zero\w*|UR_RESULT\w*|UR error|ipex|TPU|hbm|torch_xla|NPU out of memory|npu|ascend\w*|habana\w*|HPU)\b`)},
	{SignScores, later(`(?i)attn|attention|softmax|einsum|matmul|\bbmm\b|baddbmm|transformer|\bscores\b|` +
		`\bq @ k|modeling_|\bllama|\bqwen|\bgpt|\bbert`)},
	{SignData, later(`(?i)\bcsv\b|\.npy\b|\.npz\b|pandas|numpy|\bnp\.|\barrays?\b|data ?sets?\b|data_?loader|` +
		`data ?frame|pickle|parquet|\.jsonl\b|(?:data|train|test|val|corpus)\w*\.json\b|arrow|hdf5|\.h5\b|lmdb|tfrecord|features|preprocess|\bcorpus\b`)},
	{SignReads, later(`(?i)\bread_(?:csv|table|json|parquet|excel|feather|hdf|pickle|fwf)|\bcsv\b|\.np[yz]\b|\.parquet\b|` +
		`\.jsonl?\b|\.h5\b|\.pkl\b|\.tsv\b|\bnp\.load|\bnumpy\.load|npyio|loadtxt|genfromtxt|fromfile|pickle|h5py|hdf5|` +
		`lmdb|tfrecord|load_dataset|imread|\.readlines?\(|\.read\(|parsers?\.py`)},
	{SignGraphs, later(`tensorflow/python/client/session\.py|tensorflow\\python\\client\\session\.py|` +
		`\btf\.app\.run|tensorflow[/\\.]contrib|\btf\.(?:Session|ConfigProto|contrib)\b|\[\[Node: |python2\.7|` +
		`tensorflow_estimator|estimator[/\\]estimator\.py|tensorflow(?:-gpu|_gpu)?[ =:-]{1,3}v?1\.\d|\bTF ?1\.\d`)},
	{SignKeras, later(`(?i)keras|__inference_|\b(?:train|test|predict)_function\b|\bmodel\.(?:fit|evaluate|` +
		`predict|compile)\b|\bEpoch \d+/\d+\b|Running Trial #`)},
	{SignFSDP, later(`(?i)\bfsdp\b|FullyShardedDataParallel|fully_shard`)},
	{SignSharder, later(`(?i)megatron(?:[/.-]|_core)|\bdeepspeed\b|colossalai|\bnemo[/_-]|fairscale|torchtitan`)},
	{SignRollouts, later(`(?i)\brllib\b|RolloutWorker|PolicyEvaluator|EnvRunner`)},
	{SignAdapters, later(`(?i)[\w.]+[-_]q?lora\b|\bqlora\b|\bq?lora (?:fine-?tun|train|adapter|config|rank)\w*`)},
	{SignBatchVain, later(`(?i)\b(?:tried|trying|attempted|already|despite|even after|even though I)\b[^.\n]{0,30}?\b` +
		`(?:reduc|lower|decreas|small|halv|shrink|minim)\w* (?:the |my |a |an |of |to |down )*(?:\w+ )?(?:batch|bs\b)`)},
	{SignBatchVain, later(`(?i)(?:\bno\b|n't|not|never) (?:\w+ ){0,3}(?:find|found|have|has|see|any) (?:\w+ ){0,2}batch[ _-]?size|\beven (?:with|at|for|using) (?:\w+ ){0,3}(?:small\w*|tin(?:y|iest)|minimal|lowest) batch|` +
		`(?i)\b(?:reduc|lower|decreas|small|halv|shrink|chang)\w*\b[^.\n]{0,30}\bbatch` +
		`(?:[^.\n]|\.\w){0,60}(?:\bpersist\w*|\bstill\b|in vain|\bno (?:effect|difference)|same (?:error|problem|issue)|` +
		`(?:not|n't|never) (?:help|work|solve|fix|chang|matter|make (?:a|any) difference)\w*)`)},
	{SignPinned, later(`pin_memory|page-?locked|pinned memory`)},
	{SignCaching, later(`(?i)caching images|cach(?:ing|ed?) (?:\w+ )?(?:images|samples|dataset) (?:in|into) (?:ram|memory)|` +
		`--cache(?:[ =]ram)?(?:\s|$)|cache=['"]?ram|--cache[-_]images`)},
	{SignEvalOne, later(`(?i)\b(?:per_device_)?(?:eval|valid|val|test|evaluation|validation)[ _-]?batch[ _-]?size` +
		`["']?(?:\s*[=:]\s*["']?| (?:is|of|to|at|down to) (?:already )?)1\b|` +
		`\bbatch[ _-]?size[ _-](?:eval|val|valid|test)["']?(?:\s*[=:]\s*["']?| (?:is|of|to) )1\b|` +
		`\b(?:smaller|reduc\w+|decreas\w+|lower\w*)\b[^.\n]{0,30}\b(?:eval\w*|val(?:id\w*)?|test)[ _-]?batch` +
		`[^.\n]{0,80}(?:\bstill|\bsame|in vain|no effect|persist\w*|(?:not|n't|never) (?:help|work|solve|fix|chang)\w*)`)},
	{SignBatches, later(`(?i)(?:^|[^.\w])(?:mini|micro)?[-_]?batch(?:es)?\b|batch[_ -]?sizes?\b|\bbatch_(?:idx|index|id|i|x|y|` +
		`data|inputs?|nb)\b|\bepochs?\b|_epochs?\b|data_?loader|train(?:ing)?_(?:step|batch)\b|(?:samples|ims|imgs)_per_` +
		`(?:gpu|batch)|max[-_]duration|gradient[ _-]accum`)},
	{SignSlurm, later(`(?i)slurm|\bsrun: |\bsbatch\b`)},
	{SignOptax, later(`\boptax\b`)},
	{SignFlax, later(`(?i)\bflax\b|\blinen\b`)},
	{SignVision, later(`\btorchvision\b`)},
	{SignToolkit, toolWord},
	{SignLengthFlag, later(`--max_seq_length\b`)},
	{SignTrainerCLI, later(`LightningCLI|--trainer\.\w|lightning[/\\.]pytorch[/\\.]cli|jsonargparse`)},
	{SignRanksSaid, later(`(?i)\bddp\b|DistributedDataParallel|torchrun`)},
	{SignSoftmax, later(`\._softmax_backward_data`)},
	{SignMoves, later(`t\.to\(device, dtype if t\.is_floating_point|param_applied = fn\(param`)},
	{SignOldPython, later(`(?i)[/\\]python(?:2\.\d|3\.[0-7])[/\\]|\bpython ?(?:version)?[:= ]{0,2}(?:2\.7|3\.[4-7])\b`)},
	{SignDiffusion, later(`(?i)black-forest-labs|\bflux\.?[12]\b|stabilityai/|stable[-_ ]diffusion|\bsdxl\b|\bsd3\.?5?\b|` +
		`cogvideox|hunyuan-?video|\bwan2\.\d|\bdiffusers\b`)},
	{SignShmRoom, later(`(?i)num[_-]?workers?["'` + "`" + `]?\s?(?:=|:|to|at|is|设置为|设为|改为|改成|为)\s?0\b` +
		`[^.]{0,40}?(?:\bstill|\bsame|persist\w*|in vain|仍|还是|依然|(?:not|n't) (?:help|work|solve|fix)\w*)|` +
		`(?:/dev/shm|\bshm\b|shared memory|共享内存)[^.;，。\n]{0,30}?(?:is|has|already|已经为|已为)\s?` +
		`(?:already )?(?:[2-9]\d|1\d\d) ?(?:gi?b?)\b`)},
	{SignReplica, later(`Caught \w*Error in replica 0 on device 0`)},
	{SignShards, later(`SHARDED_STATE_DICT|ShardedStateDictConfig|save_\w*_sharded\b|state_dict_type=["']?sharded`)},
	{SignOtherBatch, later(`(?i)\bbatch[ _-]?size (?:of )?(\d+)[.,]?[^.\n]{0,20}?[., ]\s?(?:\w+ ){0,3}?(?:works|is fine|ok|runs|fits)\b`)},
	{SignOtherBatch, later(`\bBatch size (\d+) succeeded, trying`)},
	{SignOtherBatch, later(`(?i)\b(\d{1,5}) batch(?:[ _-]?s\w+)?,? (?:it |that |which )?(?:works|runs|is fine|fits)\b`)},
	{SignShareVain, later(`(?i)(?:gpu[-_ ]memory[-_ ]utilization|mem[-_]fraction[-_]static)(?:[^.\n]|\.\d){0,60}(?:\bno difference|` +
		`\bin vain|(?:n't|\bnot|\bnever) (?:seem to )?(?:help|work|solve|fix|chang|matter|make (?:a|any) difference)\w*)`)},
	{SignReplay, later(`(?i)\breplay\w*|rollout_buffer|\b(?:DQN|SAC|DDPG|TD3|PPO|A2C)\b|\bRL algorithm|reinforcement|` +
		`(?:_|\b)(?:dqn|sac|ddpg|td3)(?:_|\b)`)},
	{SignLogits, later(`self\.lm_head\(|\._nn\.cross_entropy_loss\(|\blm_logits = `)},
	{SignShares, later(`(?i)["']?(?:num_)?gpus?(?:_per_(?:trial|worker|actor))?["']?\s?[:=]\s?0?\.\d+`)},
	{SignPoints, later(`(?i)gaussian[-_ ]?splat|rasterize_gaussians|diff_(?:gaussian|surfel)\w*|\bgsplat\b|densif(?:y|ication)`)},
	{SignPredicts, later(`(?:\b1/1 \[=+\] - [^\n]{0,40}\n){4}`)},
	{SignPredicts, later(`\bfor \w+ in [^\n]{1,80}:\s*\n?[^\n]{0,60}\bmodel\.predict\(`)},
	{SignNVMe, later(`(?i)"device": ?"nvme"|nvme_path|offload\w*[ -]nvme`)},
	{SignLines, later(`(?i)\.jsonl\b|\.ndjson\b`)},
	{SignNoGraphs, later(`(?i)cudagraphs["']?\s?[=:]\s?False|--enforce-eager|disable[-_]cuda[-_]graphs?`)},
	{SignCompiled, later(`(?i)cuda ?graphs?\b|cudagraph_trees|reduce-overhead|max-autotune`)},
	{SignCSV, later(`(?i)read_csv|\.csv\b|\.tsv\b`)},
	{SignNPY, later(`(?i)\.np[yz]\b|\bnp\.load|npyio`)},
	{SignIndex, wrongIndex},
	{SignRoom, saidRoom},
	{SignSmallPool, later(`(?:Created (?:TensorFlow )?device[^\n]{0,120} with |freeMemory: ?)` +
		`(\d{1,3}(?:\.\d+)? ?Mi?B)\b`)},
	{SignTFInJAX, later(`tensorflow/(?:core|python|stream_executor)|import tensorflow|\btfds\b`)},
}

// signsFar are words that matter wherever they stand in a log: commands, settings and warnings that
// come long before the end.
var signsFar = []entry{
	{words: []string{"distinct sizes", "shuffle buffer", "eval_accumulation_steps",
		"offload_optimizer", "offload_param", "offload.json", "offload_config", "cpu_offload",
		"deepspeedzerooffload", "zero3_", "zero3.", "_zero3", "zero_3", "zero-3", "microsoft-standard",
		"gpu_memory_utilization", "gpu-memory-utilization", "mem_fraction_static",
		"available kv cache memory", "pytorch_mps_high", "object_store_memory",
		"spilled ", "resuming from", "created tensorflow device", "created device", "freememory",
		"resume_from_checkpoint", "save_steps", "num_workers", "num-workers",
		"eval_batch_size", "val_batch_size", "batch_size_val",
		"--max_seq_length", "lightningcli", "--trainer.", "jsonargparse",
		"index out of range in self", "indexselect", "device-side assert", "< n_classes"}, hint: hintSigns},
}

func hintSigns(h *hintCollector, p *passage) {
	if adviceAbout.MatchString(p.line()) && p.word != "distinct sizes" {
		return
	}
	h.Signs.add(cut(p.line(), 4000))
}

// notOffloaded are names of settings and files that say that nothing is offloaded, and the calls
// that move weights of a pipeline, which has no optimizer.
var notOffloaded = later(`(?i)enable_\w*cpu_offload\w*|[\w.-]*(?:no|without|wo|non)[_-]?offload[\w.-]*|` +
	`offload_\w+["']?\s?[=:]\s?["']?(?:none|false|null)\b|` +
	`offload_\w+["']?\s?[=:]\s?\{\s?["']device["']\s?:\s?["']none["']`)

// otherImages are images that nobody looks at, and a message's own words about memory.
var otherImages = later(`(?i)(?:docker|container|base|oci|disk|ami|pull\w*|push\w*) images?\b|\bimage: |` +
	`memory patches|to avoid fragmentation|memory segment\w*|segmentation fault|expandable_segments?`)

// bothSaid matches training and evaluation named together, which is evidence of neither.
var bothSaid = later(`(?i)\btrain(?:ing)? (?:or|and) (?:evaluat\w+|validat\w+|testing)`)

// installed matches paths of a Python environment: the folder it is in is no evidence about the
// program.
var installed = later(`[^\s"']*[/\\](?:\.?v?envs?|conda|miniconda3?|anaconda3?)[/\\][^\s"']*?(?:site|dist)-packages`)

// absent matches Lightning's lines about a device that is not there.
var absent = later(`(?i)\b(?:TPU|IPU|HPU|XPU|MPS|CUDA|GPU) available: (?:None|False)[^\n]*`)

func (s *Signs) add(text string) {
	if absent.MatchString(text) {
		text = absent.ReplaceAllString(text, " ")
	}
	if notOffloaded.MatchString(text) {
		text = notOffloaded.ReplaceAllString(text, " ")
	}
	text = otherImages.ReplaceAllString(text, " ")
	if bothSaid.MatchString(text) {
		text = bothSaid.ReplaceAllString(text, "training")
	}
	program := installed.ReplaceAllString(text, " ")
	lower, lowerProgram := strings.ToLower(text), strings.ToLower(program)
	for _, n := range signsNear {
		where, lowered := text, lower
		if n.name == SignImages || n.name == SignProgram || n.name == SignPictures {
			where, lowered = program, lowerProgram
		}
		if !n.is.MayMatch(lowered) {
			continue
		}
		if m := n.is.FindStringSubmatch(where); m != nil {
			if *s == nil {
				*s = Signs{}
			}
			if (*s)[n.name] == "" {
				(*s)[n.name] = cut(valueOf(m), 60)
			}
		}
	}
}

// valueOf is the last group that matched, or all of it where no group did.
func valueOf(m []string) string {
	for _, group := range slices.Backward(m) {
		if group = strings.Join(strings.Fields(group), " "); group != "" {
			return group
		}
	}
	return ""
}

func (s *Signs) put(name, value string) {
	if *s == nil {
		*s = Signs{}
	}
	(*s)[name] = value
}

// Bounds of the text around a crash in which signs are looked for: some twenty expressions read
// all of it.
const (
	signsAbove = 80
	signsBelow = 14
	signsLine  = 600      // bytes of each line
	signsText  = 16 << 10 // bytes in all
	signsMost  = 48       // crashes of one log
)

// around is the text near a crash, cleaned.
func (p *passage) around() string {
	text := cut(p.line(), 4000)
	for _, line := range append(p.following(signsBelow)[1:], p.above(signsAbove)...) {
		if len(text) > signsText {
			break
		}
		text += "\n" + cut(line, signsLine)
	}
	return text
}

// evalBars are progress bars of evaluation, with the batches that are done.
func evalBars() []*expression {
	var bars []*expression
	for _, s := range signsNear {
		if s.name == SignEvalBar {
			bars = append(bars, s.is)
		}
	}
	return bars
}

var anyBar = later(`\[ {0,4}\d+/\d+\]|\d{1,3}%|\b\d+/(?:\d+|\?) ?\[|\b\d+it \[`)

// evalLast returns the number of batches on the nearest progress bar above, or "" if that bar does
// not belong to an evaluation.
func (p *passage) evalLast() string {
	for _, line := range p.above(60) { // the nearest comes first
		line = line[max(0, len(line)-signsLine):]
		if !anyBar.MatchString(line) {
			continue
		}
		for _, is := range evalBars() {
			if m := is.FindStringSubmatch(line); m != nil {
				return m[len(m)-1]
			}
		}
		return ""
	}
	return ""
}

// Lines that announce an evaluation, and those of a traceback, which stand between it and the end.
var (
	evalAnnounced = later(`(?i)\b(?:evaluating|validating)\b|\b(?:start\w*|begin\w*|running|run) (?:the )?` +
		`(?:evaluation|validation|eval)\b|\*{3,} (?:eval|valid)`)
	ofTraceback = later(`^\s+\S|Traceback \(most recent call last\)|^\s*$|During handling of`)
)

// evalNext reports whether the last line before the traceback announces an evaluation.
func (p *passage) evalNext() bool {
	left := 2
	for _, line := range p.above(60) { // the nearest comes first
		if ofTraceback.MatchString(line) {
			continue
		}
		if evalAnnounced.MatchString(line) {
			return true
		}
		if left--; left == 0 {
			return false
		}
	}
	return false
}

var dataRead = later(`(?i)rank[ :_=]?(\d{1,4})\b[^\n]{0,60}\b(?:load|read|open|unpickl)\w* [^\n]{0,80}?` +
	`([\w./-]+\.(?:pkl|pickle|npy|npz|csv|tsv|parquet|feather|jsonl?|h5|hdf5|arrow|lmdb|txt|zarr))\b`)

// dataHeld is the same in words: "rank 3: dataset loaded in memory".
var dataHeld = later(`(?i)rank[ :_=]?(\d{1,4})\b[^\n]{0,40}\b(data ?set|data|corpus|features|samples|tokens)\b` +
	`[^\n]{0,20}\b(?:loaded|read|cached|held)\b[^\n]{0,20}\b(?:memory|RAM)\b`)

// dataLoad names what at least two ranks say they read whole: a file, or data.
func dataLoad(text string) string {
	ranks := map[string]map[string]bool{}
	for _, m := range append(dataRead.FindAllStringSubmatch(text, 64),
		dataHeld.FindAllStringSubmatch(text, 64)...) {
		if ranks[m[2]] == nil {
			ranks[m[2]] = map[string]bool{}
		}
		ranks[m[2]][m[1]] = true
		if len(ranks[m[2]]) > 1 {
			return m[2]
		}
	}
	return ""
}

var (
	bar  = later(`(\d+)(?:/(?:\d+|\?) ?|it )\[\d+:\d\d`)
	rate = later(`\d(?:it/s|s/it|batch/s|step/s)\b`)
	// not with a point in the number, as Slurm numbers the steps of a job
	stepWords = later(`(?i)\b(?:global_)?(?:step|iter(?:ation)?|it)s?["']?\]?\s?[=:]?\s?\[?(\d{1,9})(?:[^.\w]|\.(?:\D|$)|$)`)
	batchWord = later(`(?i)\bepoch:?\s?\[?\d+(?:/\d+)?[\],:]*\s?(?:batch|iter|step)e?s?[:#]?\s?\[?(\d{1,9})\b`)
	epochPair = later(`(?i)\bepoch:?\s?\[\d+\]\s?\[(\d{1,7})/\d+\]`)
	stepSaid  = later(`(?i)\b(?:at|after|around|about|until|reach\w*|for) (?:about |around |the )?(\d{1,7})(k)?(?:th)? (?:iter(?:ation)?s?|steps?)\b`)
	lossSeen  = later(`(?i)['"]?\b(?:train_)?loss['"]?\s?[=:]\s?\d`)
	notSteps  = later(`(?i)total (?:\w+ )?steps|accumulation steps|warm-?up steps|max(?:imum)? steps|` +
		`steps per |number of (?:\w+ )?steps|num steps|loading|resum|download|fetching|\bmap\b|tokeniz|shards|filter|saving|preprocess|` +
		`exited|non-zero|--\w*steps\b|["']\w*steps["']\s?[:=]|generating|capturing|evaluat|validat|predict|caching|sanity|layers|\btest`)
)

// steps returns the largest number of training steps in the lines above the passage, 0 where there
// is none.
func (p *passage) steps() int64 {
	most := int64(0)
	for _, line := range append(p.above(40), p.line()) {
		line = line[max(0, len(line)-signsLine):] // a bar that was drawn over many times ends last
		if notSteps.MatchString(line) {
			continue
		}
		for _, re := range []*expression{bar, stepWords, batchWord, epochPair} {
			for _, m := range re.FindAllStringSubmatch(line, 4) {
				if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
					most = max(most, n)
				}
			}
		}
		if m := stepSaid.FindStringSubmatch(line); m != nil {
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				if m[2] != "" {
					n *= 1000
				}
				most = max(most, n)
			}
		}
		if most == 0 && lossSeen.MatchString(line) {
			most = 1
		}
	}
	for _, line := range p.following(3)[1:] { // a bar that is drawn once more when its loop ends
		line = line[max(0, len(line)-signsLine):]
		if m := bar.FindStringSubmatch(line); m != nil && rate.MatchString(line) &&
			!notSteps.MatchString(line) {
			if n, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				most = max(most, n)
			}
		}
	}
	return most
}

var localRanks = later(`(?i)local_rank["']?\s?[=:]\s?["']?(\d{1,4})|\brank(\d{1,4})\]|` +
	`nproc[_-]per[_-]node[= ](\d{1,4})|num_processes[= ](\d{1,4})|--num_gpus[= ](\d{1,4})|` +
	`dist_world_size=(\d{1,4})|world_size["']?[=: ]+(\d{1,4})`)

// endedToo is what torchrun prints for each other rank of the machine when one has failed.
var endedToo = later(`Sending process (\d+) closing signal`)

// ranksIn returns the number of ranks on one machine that a text mentions, or 0 if it mentions
// none.
func ranksIn(text string) int {
	most := 0
	for _, m := range localRanks.FindAllStringSubmatch(text, 64) {
		for i, digits := range m[1:] {
			n, err := strconv.Atoi(digits)
			if err != nil {
				continue
			}
			if i < 2 { // numbers of ranks begin at 0
				n++
			}
			most = max(most, n)
		}
	}
	others := map[string]bool{}
	for _, m := range endedToo.FindAllStringSubmatch(text, 64) {
		others[m[1]] = true
	}
	if len(others) > 0 {
		most = max(most, len(others)+1)
	}
	return most
}
