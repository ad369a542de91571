package store

import (
	"regexp"
	"strings"
	"sync"
)

// masked stands for a value that is not kept.
const masked = "***"

// secretName recognises the name of a flag or variable whose value is a secret.
var secretName = later(`(?i)(token|secret|passw(or)?d|passphrase|api[-_]?key|access[-_]?key|private[-_]?key|credential|auth([-_]|$)|\bpwd\b)`)

// notSecret are names that only look like one: language models count tokens.
var notSecret = later(`(?i)(tokens|tokenizer|tokeniz|token[-_](id|count|len|limit|budget|per)|num[-_]token|max[-_]token|(pad|eos|bos|unk|mask|cls|sep)[-_]token)`)

// secretValue recognises values by the shape that services give them.
var secretValue = later(`^(hf_|sk-|ghp_|gho_|ghs_|github_pat_|glpat-|xox[abpr]-|AKIA|ASIA|AIza|eyJ[\w-]+\.eyJ)[\w.\-]{8,}`)

// credentialsInURL is the user:password part of an address.
var credentialsInURL = later(`(\w+://)[^/\s:@]*:[^/\s@]+@`)

// later compiles a pattern when it is first used: the supervisor's processes carry this package and
// never mask anything.
func later(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

func isSecretName(name string) bool {
	return secretName().MatchString(name) && !notSecret().MatchString(name)
}

// MaskArguments gives a command line as it may be kept: values that look like secrets are replaced.
func MaskArguments(args []string) []string {
	out := make([]string, len(args))
	for i, arg := range args {
		name, _, pair := strings.Cut(arg, "=")
		switch {
		case i > 0 && isFlag(args[i-1]) && !strings.Contains(args[i-1], "=") &&
			isSecretName(args[i-1]) && !isFlag(arg):
			out[i] = masked
		case pair && isSecretName(name) && !strings.ContainsAny(name, " \t\n"):
			out[i] = name + "=" + masked
		default:
			out[i] = MaskText(arg)
		}
	}
	return out
}

func isFlag(arg string) bool { return strings.HasPrefix(arg, "-") }

// Inside one longer argument, such as the script of `sh -c`: name=value, and --name value.
var (
	assignment = later(`([\w-]+)(=)("[^"]*"|'[^']*'|[^\s;&|"']+)`)
	flagValue  = later(`(--?[\w-]+)(\s+)("[^"]*"|'[^']*'|[^\s;&|"'-][^\s;&|"']*)`)
)

// MaskText replaces what looks like a secret inside a text.
func MaskText(text string) string {
	text = credentialsInURL().ReplaceAllString(text, "${1}"+masked+"@")
	if secretValue().MatchString(text) {
		return masked
	}
	for _, pattern := range []func() *regexp.Regexp{assignment, flagValue} {
		text = pattern().ReplaceAllStringFunc(text, func(word string) string {
			parts := pattern().FindStringSubmatch(word)
			if isSecretName(parts[1]) || secretValue().MatchString(strings.Trim(parts[3], `"'`)) {
				return parts[1] + parts[2] + masked
			}
			return word
		})
	}
	return text
}

// keptVariables are the environment variables that bear on memory. Everything else stays with the
// user.
var keptVariables = []string{
	"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
	"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
	"PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TF_FORCE_GPU_ALLOW_GROWTH",
	"TF_GPU_ALLOCATOR", "XLA_FLAGS",
	"XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION",
	"XLA_PYTHON_CLIENT_ALLOCATOR", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
	"MALLOC_ARENA_MAX", "LD_PRELOAD", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK",
	"SLURM_JOB_ID", "SLURM_MEM_PER_NODE", "SLURM_NNODES",
	"KUBERNETES_SERVICE_HOST", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "NCCL_BUFFSIZE",
	"CUBLAS_WORKSPACE_CONFIG",
}

// KeptEnvironment reduces an environment (as os.Environ) to the variables that are kept.
func KeptEnvironment(environ []string) map[string]string {
	kept := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		for _, k := range keptVariables {
			if name == k && value != "" {
				kept[name] = MaskText(value)
			}
		}
	}
	return kept
}
