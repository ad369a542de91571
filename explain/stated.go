package explain

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
	"memroom/lazyregexp"
	"memroom/trace"
)

// Stated is what a person states about the job beside its end. Each is in their words; nothing is
// inferred.
type Stated struct {
	Vain     []Attempt         // what did not help
	Works    []Attempt         // what does not fail
	Around   []Surrounding     // what it runs on
	Releases map[string]string // of libraries and tools, by their names in lower case
	Sizes    []Sized           // of data, of the machine
	AppUser  bool              // somebody who uses a program with windows or pages, and writes no code
}

// Attempt is a setting or a circumstance with which it was run.
type Attempt struct {
	Of    Quantity // or one of the circumstances below
	Value string   // "" where none is said
	Text  string
	Line  int64
}

// Circumstances that are no setting of a program.
const (
	OnCPU   Quantity = "cpu"
	OneCard Quantity = "one card"
	Version Quantity = "version"
	Smaller Quantity = "less data"
	Cache   Quantity = "empty cache"
	Half    Quantity = "precision"
	Others  Quantity = "another machine"
)

// Number is the value as a number, 0 where it is none.
func (a Attempt) Number() float64 { return Key{Value: a.Value}.Number() }

// Surrounding is what the job runs in or on, with limits and settings of its own.
type Surrounding string

// The surroundings that are distinguished.
const (
	WSL        Surrounding = "wsl"
	OnWindows  Surrounding = "windows"
	OnMac      Surrounding = "macos"
	Colab      Surrounding = "colab"
	Kaggle     Surrounding = "kaggle"
	Docker     Surrounding = "docker"
	Kubernetes Surrounding = "kubernetes"
	Slurm      Surrounding = "slurm"
)

// surroundings are their words, those that nobody uses of something else.
var surroundings = []struct {
	of Surrounding
	is *lazyregexp.Regexp
}{
	{WSL, re(`(?i)\bwsl ?2?\b|microsoft-standard|\.wslconfig|/mnt/[cd]/`)},
	{OnWindows,
		re(`(?i)\b(?:windows|win) ?(?:1[01]|7|8|server)\b|\b[c-h]:\\\w|on windows\b|\bwin32\b|\bpowershell\b|paging file`)},
	{OnMac,
		re(`(?i)\bmacos\b|\bmac ?os ?x?\b|\bmacbook|\bmac (?:mini|studio|pro)\b|\bapple silicon\b|\bm[1-4] (?:pro|max|ultra|mac)|\bdarwin\b`)},
	{Colab,
		re(`(?i)\b(?:google )?colab\b|/usr/local/lib/python3\.\d+/dist-packages/google|/content/\w`)},
	{Kaggle,
		re(`(?i)\bkaggle (?:kernels?|notebooks?|gpu|tpu|session)|\bon kaggle\b|/kaggle/(?:input|working)`)},
	{Docker,
		re(`(?i)\bdocker (?:run|container|compose|image)|\b(?:in|inside|with|using) (?:a |the )?(?:\w+ )?(?:docker|container)\b|--shm-size|\.dockerenv|nvidia-docker|devcontainer`)},
	{Kubernetes,
		re(`(?i)\bkube(?:ctl|rnetes|flow)\b|\bpods? \w|\bk8s\b|oomkilled|kind: (?:Pod|Job|Deployment)`)},
	{Slurm, re(`(?i)\bslurm\w*|\bsbatch\b|\bsrun\b|#SBATCH|slurmstepd`)},
}

// released are a library or tool and its release: "torch==2.1.0", "mmdet 2.11", "PyTorch
// version: 1.7".
var released = re(`(?i)\b(torch|pytorch|tensorflow(?:-gpu)?|tf|keras|jax|transformers|mmdet(?:ection)?|mmcv(?:-full)?|mmseg(?:mentation)?|mmengine|espnet|fairseq|` +
	`lightning|pytorch[-_]lightning|deepspeed|accelerate|vllm|sglang|diffusers|datasets|peft|trl|xgboost|lightgbm|catboost|dask|ray|detectron2?|` +
	`ultralytics|nnu-?net|monai|nemo|speechbrain|opennmt(?:-py)?|cudf|cuml|ollama|comfyui|bitsandbytes|python|cuda)["']?(?: ?version| ?ver\.?| ?release)?\s{0,3}(?:==|>=|[=:@(]|is|v)?\s{0,3}["']?v?(\d+\.\d+(?:\.\d+)?)\b`)

// generations are signs of a generation in settings and paths, where no release is said.
var generations = []struct {
	tool, release string
	is            *lazyregexp.Regexp
}{
	{"mmdet", "1", re(`(?i)\bimgs_per_gpu\b|mmdet/core/evaluation/eval_hooks\.py.*_dist_test`)},
	{"mmdet", "2", re(`(?i)\bsamples_per_gpu\b|data\.workers_per_gpu`)},
	{"mmdet", "3", re(`(?i)\btrain_dataloader ?= ?dict|mmengine/runner|train_cfg\.val_interval`)},
	{"espnet", "2", re(`(?i)\bespnet2\b|\b[a-z]+2/[A-Z]*\w*\.sh|egs2/`)},
	{"espnet", "1", re(`(?i)\begs/\w+/\w+|espnet/(?:bin|asr|tts|mt)/|asr_train\.py`)},
	{"tensorflow", "1",
		re(`(?i)tf\.Session|tf\.contrib|ConfigProto|tensorflow/contrib|tensorflow_core/contrib`)},
	{"yolo", "5", re(`(?i)\byolov5\b`)}, {"nnunet", "1", re(`(?i)\bnnUNet_train\b`)},
	{"nnunet", "2", re(`(?i)\bnnUNetv2_\w+`)},
}

// appWords are those of somebody who uses a program that others wrote, by its windows or pages.
var appWords = re(`(?i)\b(?:click(?:ed|ing)?|button|drop ?down|check ?box|tab\b|web ?ui|gui\b|installer|\.bat\b|one-click|portable version|prompt box|workflow|lora node|slider|app\b|settings? menu|the ui\b)`)

// programmed are words of somebody who writes or starts code.
var programmed = re(`(?m)^\s*(?:import |from [\w.]+ import|def |class |for \w+ in )|\bmy (?:code|script|model|custom|dataset class)|\btorchrun\b|python3? [\w./-]+\.py`)

// sized are sizes of data and machines with the noun that they are of.
var sized = []struct {
	of string
	is *lazyregexp.Regexp
}{
	{"data",
		re(`(?i)\b(?:data ?sets?|data|corpus|csv|tsv|parquet|json(?:l)?|h5|hdf5|npy|lmdb|files?|index|database|tfrecords?)\b[^.\n,;]{0,30}?\b(\d+(?:\.\d+)?) ?(GB|GiB|G|TB|TiB|MB|MiB)\b`)},
	{"data",
		re(`(?i)\b(\d+(?:\.\d+)?) ?(GB|GiB|G|TB|TiB|MB|MiB)\b(?: of| large| big)? (?:\w+ )?(?:data ?sets?|data|corpus|csv|tsv|parquet|jsonl?|h5|hdf5|files?|database)\b`)},
	{"host",
		re(`(?i)\b(\d+(?:\.\d+)?) ?(GB|GiB|G|TB|TiB)\b(?: of)?(?: ddr\d)? ?(?:system |host |cpu |main |physical |total )?(?:RAM|memory)\b`)},
	{"host",
		re(`(?i)\b(?:RAM|(?:system|host|cpu|main) memory)\b(?: size)?(?: is| of|:|=| \()? ?(\d+(?:\.\d+)?) ?(GB|GiB|G|TB|TiB)\b`)},
}

// Sized is a size with what it is of: data, host.
type Sized struct {
	Of    string
	Bytes event.Bytes
	Text  string
	Line  int64
}

// outcome are clauses about what was tried and how it went.
var (
	inVainSaid = re(`(?i)\b(?:still|same (?:error|problem|issue|result)|no (?:luck|effect|difference|success)|in vain|persist\w*|(?:did|does|do|is)(?:n't| not) (?:help|work|solve|fix|change)|not (?:help|work|solve)\w*|` +
		`regardless of|no matter|even (?:with|when|if|after|using|on|at)|already (?:tried|set|using|use|reduced|lowered))\b`)
	worksSaid = re(`(?i)\b(?:works?|worked|runs? (?:fine|well|ok|okay|normally|without|smoothly|through)|fine|no (?:problem|error|issue|oom)s?|succe\w+|fits?|can (?:be )?train\w*|is ok(?:ay)?)\b`)
	notWorks  = re(`(?i)(?:n't|\bnot|\bnever|\bno longer) (?:\w+ ){0,2}?(?:works?|worked|run|fine|fit|train\w*|succe\w+|ok)\b`)
)

// circumstances are what a clause may speak of besides a setting.
var circumstances = []struct {
	of Quantity
	is *lazyregexp.Regexp
}{
	{OneCard, re(`(?i)\b(?:one|single|1|only one)[ -](?:gpu|card|device|node)\b`)},
	{OnCPU, re(`(?i)\b(?:on|with|using|in) (?:the )?cpu\b|cpu (?:mode|only|version)`)},
	{Version,
		re(`(?i)\b(?:version|release|v) ?(\d+\.\d+(?:\.\d+)?)\b|\b(?:torch|tensorflow|keras|transformers|mmcv|mmdet|cuda) ?(?:==)? ?v?(\d+\.\d+(?:\.\d+)?)\b|\b(?:older|previous|earlier|old) (?:version|release|commit)`)},
	{Smaller,
		re(`(?i)\b(?:small(?:er)?|fewer|less|subset|part|half|\d+ ?%) (?:of )?(?:the |my )?(?:data|dataset|data set|files|samples|images|rows|subset)\b|\btoy (?:data|example)`)},
	{Cache, re(`(?i)empty_?cache|gc\.collect|clear(?:ing|ed)? (?:the )?(?:gpu |cuda )?cache`)},
	{Half, re(`(?i)\b(?:fp16|bf16|half precision|mixed precision|amp|float16|bfloat16)\b`)},
	{Others,
		re(`(?i)\b(?:another|other|different|my (?:old|new|local)) (?:machine|server|computer|gpu|card|pc|laptop)\b`)},
}

// attemptsIn reads clauses about what was tried and what works, with the values that stand there.
func attemptsIn(lines []trace.Line) (vain, works []Attempt) {
	for _, l := range lines {
		if framed.MatchString(l.Text) || len(vain)+len(works) > 60 {
			continue
		}
		for _, clause := range splitAt(l.Text, clauseEnds) {
			failed := inVainSaid.MatchString(clause) || notWorks.MatchString(clause)
			if !failed && !worksSaid.MatchString(clause) {
				continue
			}
			for _, a := range attemptsOf(clause, l.Number) {
				if failed {
					vain = append(vain, a)
				} else {
					works = append(works, a)
				}
			}
		}
	}
	return vain, works
}

// clauseEnds divides a line where something else begins to be said. A comma does not:
// what was tried
// stands before it and how it went behind.
var clauseEnds = re(`[.;!?](?:\s|$)|\b(?:but|however|whereas|while|although|though)\b`)

func splitAt(text string, at *lazyregexp.Regexp) []string {
	var parts []string
	from := 0
	for _, end := range at.FindAllStringIndex(text, 60) {
		parts = append(parts, text[from:end[0]])
		from = end[1]
	}
	return append(parts, text[from:])
}

func attemptsOf(clause string, line int64) []Attempt {
	var all []Attempt
	add := func(of Quantity, value, text string) {
		all = append(all, Attempt{of, value, strings.TrimSpace(text), line})
	}
	for _, row := range saidKeys {
		if m := row.is.FindStringSubmatch(clause); m != nil {
			add(row.of, m[2], m[0])
		}
	}
	for _, m := range append(flagKey.FindAllStringSubmatch(clause, 8),
		assignKey.FindAllStringSubmatch(clause, 8)...) {
		name := m[1][strings.LastIndexByte(m[1], '.')+1:]
		if of := quantityOf(name); of != "" && !slices.ContainsFunc(all,
			func(a Attempt) bool { return a.Of == of }) {
			add(of, strings.Trim(m[2], ".-"), m[0])
		}
	}
	for _, c := range circumstances {
		if m := c.is.FindStringSubmatch(clause); m != nil {
			add(c.of, first(append(m[1:], "")...), m[0])
		}
	}
	return all
}

// statedIn reads all of it.
func statedIn(lines []trace.Line, text string) Stated {
	s := Stated{Releases: map[string]string{}}
	s.Vain, s.Works = attemptsIn(lines)
	for _, row := range surroundings {
		if row.is.MatchString(text) {
			s.Around = append(s.Around, row.of)
		}
	}
	for _, l := range lines {
		for _, m := range released.FindAllStringSubmatch(l.Text, 8) {
			if name := strings.ToLower(m[1]); s.Releases[name] == "" {
				s.Releases[name] = m[2]
			}
		}
		for _, row := range sized {
			m := row.is.FindStringSubmatch(l.Text)
			if m == nil || gpuWord.MatchString(m[0]) {
				continue
			}
			if b, err := event.ParseBytes(m[1] + strings.ToUpper(m[2])); err == nil {
				s.Sizes = append(s.Sizes, Sized{row.of, b, m[0], l.Number})
			}
		}
	}
	for _, g := range generations {
		if s.Releases[g.tool] == "" && g.is.MatchString(text) {
			s.Releases[g.tool] = g.release
		}
	}
	s.AppUser = appWords.MatchString(text) && !programmed.MatchString(text)
	return s
}

var gpuWord = re(`(?i)\bgpu|cuda|vram`)

// On reports whether the job runs on a system.
func (s *Stated) On(of Surrounding) bool { return slices.Contains(s.Around, of) }

// Generation is the first number of a tool's release, 0 where none is said.
func (s *Stated) Generation(tool string) int {
	major, _, _ := strings.Cut(s.Releases[tool], ".")
	n, _ := strconv.Atoi(major)
	return n
}
