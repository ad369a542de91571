package explain_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"memroom/explain"
)

// backed is a word that an answer may use only where the log shows what it speaks of.
type backed struct{ said, shown *regexp.Regexp }

func wordBacked(said, shown string) backed {
	return backed{regexp.MustCompile(said), regexp.MustCompile(`(?i)` + shown)}
}

// backedWords lists libraries, devices, kinds of work and of data. What is shown is judged by the
// whole log, more widely than the rules do: a word that fails here has nothing behind it at all.
var backedWords = []backed{
	wordBacked(`DataLoader|\bnum_workers|prefetch_factor`,
		`data_?loader|num[_-]?workers|worker_loop|shared memory|`+
			`/dev/shm|torch_shm|pin_memory|utils.data|bus error|workers|lightning|</torch_|spawn`),
	wordBacked(`\btune\.|Ray Tune`, `\btune\b|trial|wait_for_gpu|gpu memory`),
	wordBacked(`\bray\.|\bRay\b`, `\bray\b|raylet|rllib|plasma|wait_for_gpu|gpu memory`),
	wordBacked(`tokenizer\(|\btokens?\b|sequences?\b`,
		`token|llm|gpt|bert|llama|qwen|mistral|gemma|max_len|seq|`+
			`text|vocab|prompt|lm_head|n_ctx|context|sentence|word|t5|lstm|rnn|gru|speech|whisper|transformer|attention|`+
			`_len|length|vllm|sglang|logits|mlx_lm`),
	wordBacked(`gradient|optimizer|backward|mixed precision`,
		`train|epoch|\bloss\b|backward|optimi[sz]er|\.fit\(|`+
			`fine-?tun|deepspeed|\bsteps?\b|grad|learn|fsdp|zero|\bddp\b|lora|it/s|batch|cuda out of memory|forward|\bcuda\b|`+
			`allocated by pytorch`),
	wordBacked(`TrainingArguments|per_device_|AutoModel|BitsAndBytes|eval_accumulation`,
		`transformers|hugging ?face|pretrained|trainer|peft|lora|accelerate|checkpoint shards|llama|qwen|gpt|bert|`+
			`eval_accu|per_device|axolotl|modeling_|diffusers|t5|mistral|load_in_|adapter|deepspeed`),
	wordBacked(`accumulate_grad_batches|def validation_step|val_dataloader`,
		`lightning|\bpl\.|validation_step`),
	wordBacked(`tf\.|\bkeras\b|Keras|TensorFlow`, `tensorflow|keras|bfc|\btf\b|jax|resource.exhausted`),
	wordBacked(`\bjax\.|jnp\.|XLA_PYTHON`, `jax|xla|flax|resource.exhausted`),
	wordBacked(`page file|Windows`,
		`windows|win32|\b[c-h]:\\|winerror|wddm|page ?file|free|file mapping|1455`),
	wordBacked(`\bWSL\b|wslconfig`, `wsl|/mnt/[a-z]/|microsoft`),
	wordBacked(`SBATCH|Slurm`, `slurm|sbatch|srun|step ?id|oom_kill|oom-kill|cgroup`),
	wordBacked(`docker run --memory`, `docker|podman|OOMKilled`),
	wordBacked(`\btorch\.|transforms\.Resize|PYTORCH_`,
		`torch|(?:cuda|hip|xpu|npu|hpu) (?:out of memory|error|oom)|`+
			`mps|transformers|diffusers|lightning|accelerate|deepspeed|dataloader|checkpoint shards|metal|outofmemoryerror|`+
			`from_pretrained|safetensors|\bgpu\b.*total capacity|nccl|cudnn|cublas|llama|lora|`+
			`\bxm\.|local_rank|adapter|\bzero\b|\branks?\b`),
	wordBacked(`\bxgb\.|DMatrix`, `xgboost|gpu_hist|\bxgb\b|device_helpers|cudf|cuml|rmm`),
	wordBacked(`LocalCluster`, `dask|distributed`),
	wordBacked(`load_dataset\(`, `datasets|arrow|num_proc|\.map\(`),
	wordBacked(`\bAdam\b|moments`, `adam|optimi|offload|train|zero|epoch|backward|loss|lr\b|steps?\b|`+
		`batch|cuda out of memory|\bcuda\b|allocated by pytorch`),
	wordBacked(`keys and values|KV cache`,
		`generat|token|llm|\bkv\b|kv_|cache|vllm|sglang|beam|prompt|llama|`+
			`n_ctx|decode|gpt|ollama|gpu.memory.utilization|max_num_seqs`),
	wordBacked(`boosted`, `xgboost|lightgbm|catboost|gpu_hist|device_helpers|cudf|cuml|rmm|\bxgb\b`),
	wordBacked(`num_beams|\.generate\(`, `generat|beam|decode|sampl`),
	wordBacked(`[Ee]valuation|validation`,
		`eval|valid|\btest|predict|infer|\bval\b|\bval_|generat|_test\b`),
	wordBacked(`Resize\(|smaller images|pixels`,
		`imag|img|pic|video|conv|frame|vae|resnet|yolo|unet|vit|clip|det|seg|`+
			`diffus|comfy|resolution|pixel|photo|point|\bcv2\b|volume|patch|height|jpg|png|face|gan|voxel|tile`),
	wordBacked(`scaled_dot_product|built-in attention`,
		`attn|attention|softmax|einsum|matmul|bmm|baddbmm|transformer|`+
			`scores|q @|q, k`),
	wordBacked(`read_csv|np\.load`,
		`csv|npy|npz|pandas|numpy|array|data|frame|pickle|parquet|json|map|arrow|hdf5|`+
			`features|load|image`),
	wordBacked(`gpu-memory-utilization|\bvLLM\b`, `vllm|gpu.memory.utilization|kv cache|cache blocks`),
	wordBacked(`notebook|earlier cells`, `ipython|notebook|colab|jupyter|cell in|kernel|kaggle`),
	wordBacked(`NVIDIA|nvidia-smi|CUDA_VISIBLE`,
		`cuda|nvidia|nccl|cublas|cudnn|gpu|tesla|geforce|bfc|jax|device|card|sglang|vllm|resource.exhausted|kv cache|cache blocks`),
}

// otherDevices are words of one maker's devices, and the logs of others where they have no place.
var otherDevices = []struct{ said, other, own *regexp.Regexp }{
	{regexp.MustCompile(`nvidia-smi|CUDA_VISIBLE_DEVICES=N|torch\.cuda\.set_per_process|'cuda'`),
		regexp.MustCompile(`(?i)HIP out of|rocm|\bxpu\b|level.?zero|\btpu\b|\bhbm\b|MPS backend|\bhpu\b|\bnpu\b`),
		regexp.MustCompile(`(?i)cuda (?:out of|error)|nvidia|cublas|cudnn|cudaMalloc`)},
	{regexp.MustCompile(`memroom run`), regexp.MustCompile(`(?i)\bTPU\b|\bhbm\b|mlx_lm`),
		regexp.MustCompile(`(?i)cuda (?:out of|error)|nvidia`)}, // whose memory nothing of ours reads
	{regexp.MustCompile(`PYTORCH_MPS|Apple`), regexp.MustCompile(`.`),
		regexp.MustCompile(`(?i)\bmps\b|metal|apple|macos|\bM[1-4]\b|invalid buffer size|ndarray >`)},
}

// TestWordsHaveEvidence goes over every sample log and looks for words in the answers that nothing
// in the log speaks of.
func TestWordsHaveEvidence(t *testing.T) {
	checkWordsIn(t, "testdata/situations", 60)
	checkWordsIn(t, "testdata/reports", 40)
	checkWordsIn(t, "testdata/kinds", 40)
	for _, more := range strings.Fields(os.Getenv("MEMROOM_TEST_LOGS")) { // folders of further logs
		checkWordsIn(t, more, 1)
	}
}

func checkWordsIn(t *testing.T, folder string, least int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil || len(files) < least {
		t.Fatalf("%d logs in %s, %v", len(files), folder, err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		x := explainFile(t, path)
		if !x.IsOOM {
			continue
		}
		for _, said := range statements(x) {
			for _, w := range backedWords {
				if m := w.said.FindString(said); m != "" && !w.shown.Match(text) {
					t.Errorf("%s: %q has nothing behind it: %q", path, m, said)
				}
			}
			for _, d := range otherDevices {
				if m := d.said.FindString(said); m != "" && d.other.Match(text) && !d.own.Match(text) {
					t.Errorf("%s: %q belongs to another device: %q", path, m, said)
				}
			}
		}
	}
}

// statements are the words of an answer that are its own.
func statements(x *explain.Explanation) []string {
	all := append([]string{x.Verdict, x.Next}, x.Evidence...)
	for _, a := range x.Remedies {
		all = append(all, strings.Join([]string{string(a.ID), a.Title, a.Why, a.How.Env, a.How.Args,
			a.How.Code, a.How.Fit}, " | "))
	}
	return all
}
