package remedy

import (
	"slices"
	"strings"

	"memroom/event"
)

// Work is what a program was doing when memory ran out. The empty one is not known.
type Work string

// The kinds of work that remedies distinguish.
const (
	Training   Work = "training"
	Evaluating Work = "evaluation"
	Generating Work = "generation" // of text, sound or images, for one user
	Serving    Work = "serving"    // requests of others
	Loading    Work = "loading"    // weights come from a disk
	Saving     Work = "saving"     // weights or results go to a disk
	Preparing  Work = "preparing"  // data is read, mapped or handed over
	Tables     Work = "tables"     // arrays, frames and trees: no network, no batch
	Undecided  Work = ""
)

// Fact is a circumstance that a remedy's words take for granted. It holds only where something
// shows it.
type Fact string

// The facts that remedies ask for.
const (
	Batches    Fact = "it works in batches"
	Text       Fact = "the input is text"
	Pictures   Fact = "the input is images, clips or volumes"
	Ranks      Fact = "several ranks run"
	Cards      Fact = "several cards are used"
	Loader     Fact = "a DataLoader feeds it"
	Pretrained Fact = "a library of pretrained models loads the weights"
	OwnScript  Fact = "a script trains the parts of an image generator"
	Rays       Fact = "Ray runs it"
	Windows    Fact = "it runs on Windows"
	WSL        Fact = "it runs under WSL"
	Optuna     Fact = "a study makes trials"
	Detection  Fact = "MMDetection runs it"
	Mapped     Fact = "map of datasets runs"
	Hooks      Fact = "hooks are registered"
	Offloaded  Fact = "states are offloaded to host memory"
	Split      Fact = "weights or states are sharded"
	TorchSeen  Fact = "PyTorch is used"
	Metrics    Fact = "metric objects are used"
	SGDSeen    Fact = "plain SGD is used"
	AllAtOnce  Fact = "the optimizer's step works on all parameters at once"
	TreesSeen  Fact = "boosted trees or frames are on the card"
	Pinned     Fact = "batches are pinned"
	Networks   Fact = "a network computes"
	OnCard     Fact = "a library of another kind computes on the card"
	Engine     Fact = "an inference engine runs, whose flags we know"
	Elsewhere  Fact = "TensorFlow or JAX computes"
	Flat       Fact = "a layer's weights grow with the whole input"
	Table      Fact = "one weight has a row for every word or class"
	IdlePool   Fact = "much lies idle in the pool"
	Killed     Fact = "host memory is full, and nothing shows what held it"
	Ended      Fact = "a signal ended it, and no limit of the process refused"
	Drawing    Fact = "images or clips are generated"
	Refused    Fact = "the driver refused although memory was free"
	MayTrain   Fact = "words speak of training" // said with an if
	Scores     Fact = "attention is computed"
	DataSeen   Fact = "data is read or held"
	Arrays     Fact = "files or arrays are named"
	Reads      Fact = "a file is read"
	Tune       Fact = "trials of Ray Tune run"
	Growing    Fact = "memory grows while it runs"
	Processes  Fact = "several processes run"
	LightGBM   Fact = "LightGBM grows the trees"
	CatBoost   Fact = "CatBoost grows the trees"
	FramesOnly Fact = "tables are on the card, and no boosted trees"
	Posix      Fact = "it runs on Linux or macOS"
	Segments   Fact = "NCCL's own segments fill shared memory"

	KerasSeen     Fact = "Keras is used"
	Graphs        Fact = "TensorFlow runs graphs in sessions"
	FSDPSeen      Fact = "FSDP is used"
	OtherSharding Fact = "a library other than FSDP divides the model"
	Rollouts      Fact = "workers of RLlib play the episodes"
	Windowed      Fact = "a large input is worked through in windows"
	Caching       Fact = "decoded samples are cached in host memory"
	OthersHold    Fact = "another process may hold part of the card"
	ObjectsShared Fact = "ranks exchange Python objects"
	OptaxSeen     Fact = "Optax is used"
	FlaxSeen      Fact = "Flax is used"
	VisionSeen    Fact = "torchvision is used"
	Toolkit       Fact = "a library's own loop trains, by its settings"
	TrainerCLI    Fact = "Lightning's Trainer is set on the command line"
	LengthFlag    Fact = "the program takes --max_seq_length"
	OldPython     Fact = "a Python runs that newer releases do not support"
	Padded        Fact = "a layout makes an array many times larger"
	RayData       Fact = "data sets of Ray are used"
	DiskFull      Fact = "the disk that objects are spilled to is full"
	LinesSeen     Fact = "records in text are read"
	CSVSeen       Fact = "tables in text are read"
	NPYSeen       Fact = "arrays in NumPy's files are read"
	ToDisk        Fact = "what is offloaded goes to a disk"
	OneArray      Fact = "one array was refused"
	Gathering     Fact = "ZeRO 3 gathers parameters"
	Diffusers     Fact = "the model makes images or clips, by its name"
	DrawTrained   Fact = "parts of an image generator are trained"
	Shards        Fact = "the shards of a state dict are saved"
	OwnLoop       Fact = "a loop of the user's own runs"
)

// condition must hold before a remedy is printed in an explanation. A remedy that is not named here
// is not printed.
type condition struct {
	work  []Work // it helps this work only; Undecided: also where the work is not known
	all   []Fact // each must be shown
	any   []Fact // at least one must be shown
	never []Fact // none may be shown
}

// Works of a network that computes: forward passes run.
var (
	trainingOnly = []Work{Training}
	forward      = []Work{Training, Evaluating, Generating, Serving, Undecided}
	inferring    = []Work{Evaluating, Generating, Serving, Undecided}
	everyWork    = []Work{Training, Evaluating, Generating, Serving, Loading, Saving, Preparing, Tables,
		Undecided}
	outsideTables = []Work{Training, Evaluating, Generating, Serving, Loading, Saving, Preparing,
		Undecided}
	fewTexts = []Fact{Text}
)

// conditions has a row for every remedy. Where memory ran out and which framework runs stand in
// Remedy itself (Walls, Frameworks); what is on already stands in Job.On.
var conditions = map[ID]condition{
	MicroBatch: {work: append([]Work{Preparing}, forward...), any: []Fact{Batches, Networks},
		never: []Fact{OnCard, Killed, Segments, TreesSeen}},
	HalfWeights: {work: []Work{Loading}, all: []Fact{Networks},
		any: []Fact{Pretrained, Elsewhere}, never: []Fact{OwnScript, OldPython}},
	RightDevice:        {work: everyWork},
	SaveParts:          {work: []Work{Saving, Evaluating, Preparing}},
	LessAtOnce:         {work: everyWork, all: []Fact{OnCard}},
	MixedPrecision:     {work: trainingOnly, never: []Fact{Graphs}},
	Checkpointing:      {work: trainingOnly},
	ActivationBudget:   {work: trainingOnly, all: []Fact{TorchSeen}},
	ActivationOffload:  {work: trainingOnly, all: []Fact{TorchSeen}},
	OptimizerFused:     {work: trainingOnly, all: []Fact{AllAtOnce}, never: []Fact{SGDSeen}},
	Optimizer8Bit:      {work: trainingOnly, never: []Fact{SGDSeen}},
	OptimizerAdafactor: {work: trainingOnly, never: []Fact{SGDSeen}},
	OptimizerPaged:     {work: trainingOnly, never: []Fact{SGDSeen}},
	OptimizerOffload:   {work: trainingOnly, never: []Fact{SGDSeen}},
	SetToNone:          {work: trainingOnly, all: []Fact{TorchSeen}},
	Quantize8Bit: {work: append([]Work{Loading}, forward...), all: []Fact{Pretrained},
		never: []Fact{OwnScript}},
	Quantize4Bit: {work: append([]Work{Loading}, forward...), all: []Fact{Pretrained},
		never: []Fact{OwnScript}},
	LoRA:    {work: trainingOnly, any: []Fact{Text, Pretrained}},
	Prune:   {work: trainingOnly, all: fewTexts},
	Distill: {work: trainingOnly},
	ShorterSequence: {work: append([]Work{Loading}, forward...), all: fewTexts,
		never: []Fact{Drawing}},
	SmallerImage:       {work: forward, all: []Fact{Pictures}},
	Attention:          {work: forward, all: []Fact{Networks, Scores}},
	ChunkedLoss:        {work: trainingOnly, all: fewTexts},
	ExpandableSegments: {work: outsideTables, all: []Fact{TorchSeen, IdlePool}, never: []Fact{Windows}},
	MaxSplitSize:       {work: outsideTables, all: []Fact{TorchSeen}},
	Roundup:            {work: outsideTables, all: []Fact{TorchSeen}},
	GCThreshold:        {work: outsideTables, all: []Fact{TorchSeen}},
	NewerTorch:         {work: outsideTables, all: []Fact{TorchSeen}},
	EmptyCache:         {work: outsideTables, all: []Fact{TorchSeen}},
	Detach:             {work: []Work{Training, Evaluating, Undecided}, all: []Fact{Networks}},
	NoGrad:             {work: inferring, all: []Fact{TorchSeen}},
	RemoveHooks:        {work: forward, all: []Fact{Hooks}},
	KeepLess:           {work: everyWork, all: []Fact{Growing}},
	DDPBucketView:      {work: trainingOnly, all: []Fact{Ranks}},
	FSDP: {work: []Work{Training, Loading}, all: []Fact{Ranks},
		never: []Fact{OtherSharding}},
	ZeRO: {work: trainingOnly, all: []Fact{Ranks}},
	DeviceMap: {work: append([]Work{Loading}, forward...), all: []Fact{Pretrained},
		never: []Fact{OwnScript}},
	TFGrowth:    {work: outsideTables},
	TFAllocator: {work: outsideTables},
	TFDataBudget: {work: []Work{Training, Evaluating, Preparing, Undecided},
		all: []Fact{DataSeen}},
	DataLoaderWorkers: {work: []Work{Training, Evaluating, Preparing, Undecided},
		any: []Fact{Loader}},
	PinMemory: {work: []Work{Training, Evaluating, Preparing, Undecided},
		all: []Fact{Pinned}},
	ShmSize: {work: everyWork},
	MapFile: {work: []Work{Training, Evaluating, Preparing, Loading, Undecided},
		all: []Fact{Ranks}},
	SteadyTraces: {work: []Work{Training, Evaluating, Undecided}},
	WorkerCache: {work: []Work{Training, Evaluating, Preparing, Undecided},
		all: []Fact{Loader}},
	ShareData: {work: []Work{Training, Evaluating, Preparing}, all: []Fact{Loader}},
	StreamData: {work: []Work{Training, Evaluating, Preparing, Tables, Undecided},
		all: []Fact{DataSeen}},
	TreeData:       {work: []Work{Tables, Training, Undecided}, all: []Fact{TreesSeen}},
	TrialResources: {work: everyWork, all: []Fact{Rays}},
	RaiseLimit:     {work: everyWork},
	FreeNeighbour:  {work: everyWork, all: []Fact{OthersHold}},
	EvalOutputs:    {work: []Work{Evaluating, Saving}},
	EvalBatch:      {work: []Work{Evaluating}},
	GenerationCache: {work: []Work{Generating, Serving, Evaluating}, all: fewTexts,
		never: []Fact{Drawing}},
	AutocastCache:  {work: forward, all: []Fact{TorchSeen}},
	LongestBatch:   {work: []Work{Training, Evaluating, Undecided}, all: []Fact{Networks}},
	CUDAGraphSizes: {work: forward},
	CheckShapes:    {work: everyWork},
	InParts:        {work: everyWork},
	OtherVersion:   {work: everyWork},
	LoadToHost:     {work: []Work{Loading, Training, Undecided}, all: []Fact{TorchSeen}},
	SaveSharded:    {work: []Work{Saving}, all: []Fact{TorchSeen}},
	SmallerBuffer:  {work: everyWork},
	WindowOnHost:   {work: []Work{Evaluating, Generating, Undecided}, all: []Fact{Windowed}},
	ObjectsOnHost:  {work: everyWork, all: []Fact{Ranks, ObjectsShared}},
	SaveAsItIs:     {work: []Work{Saving, Training, Undecided}, all: []Fact{Networks}},
	MergeOnHost:    {work: []Work{Loading, Saving, Undecided}},
	LoadOnce:       {work: []Work{Loading, Training, Undecided}, any: []Fact{Ranks, Pretrained}},
	ShardAtLoad:    {work: []Work{Loading, Training}, any: []Fact{Ranks, Split}},
	OffloadLess:    {work: everyWork, all: []Fact{Offloaded}, never: []Fact{ToDisk}},
	FreshProcess:   {work: []Work{Training, Evaluating, Loading, Preparing, Tables, Undecided}},
	ReleaseModels:  {work: []Work{Training, Evaluating, Undecided}, all: []Fact{Networks}},
	ClearSession:   {work: outsideTables},
	PredictCall:    {work: inferring},
	WaitForGPU:     {work: everyWork, all: []Fact{Rays}},
	FewerTrials:    {work: everyWork, all: []Fact{Rays}},
	ObjectStore:    {work: everyWork, all: []Fact{Rays}},
	RayBlocks:      {work: everyWork, all: []Fact{Rays, RayData}},
	ShuffleBuffer:  {work: []Work{Training, Evaluating, Preparing, Undecided}},
	MapProcesses:   {work: everyWork, all: []Fact{Mapped}},
	SelectCard:     {work: outsideTables, any: []Fact{Ranks, Cards}},
	PageFile:       {work: everyWork, any: []Fact{Windows, Refused}, never: []Fact{Posix}},
	ProcessLimits:  {work: everyWork, never: []Fact{Windows}},
	OtherPrograms:  {work: everyWork},
	WSLMemory:      {work: everyWork, all: []Fact{WSL}},
	MetricReset:    {work: []Work{Evaluating, Training}, all: []Fact{Metrics}},
	ServingShare: {work: []Work{Serving, Generating, Loading, Training, Undecided},
		all: []Fact{Engine}},
	NotebookState: {work: everyWork},
	DDP:           {work: []Work{Training, Undecided}, any: []Fact{Cards, Ranks}},
	PipelineOffload: {work: []Work{Generating, Serving, Loading, Training, Undecided},
		all: []Fact{Pictures}},
	FewerPairs:     {work: forward},
	FewerPoints:    {work: append([]Work{Loading}, forward...)},
	FewerProcesses: {work: everyWork, all: []Fact{Processes}},
	SmallerLayer:   {work: []Work{Training, Loading}, all: []Fact{Networks, Flat}},
	Layout:         {work: forward, all: []Fact{Padded}},
	LiveParameters: {work: forward, all: []Fact{Gathering, Split}},
	UnifiedMemory:  {work: forward, all: []Fact{Networks}},
}

// Fits returns an empty string if an explanation may print the remedy: it can help the job, and
// everything that its words take for granted is shown. Otherwise it returns the reason. A job
// without facts was watched rather than read of, and only needs to pass Applies.
func (r *Remedy) Fits(job Job) string {
	if why := r.Applies(job); why != "" || job.Facts == nil {
		return why
	}
	if why := job.outOfReach(r.ID); why != "" {
		return why
	}
	c, ok := conditions[r.ID]
	switch {
	case !ok:
		return "nothing says when it may be printed"
	case job.perhaps(c):
	case !slices.Contains(c.work, job.Work):
		return "it is no help for this work: " + string(job.Work)
	}
	if !job.Facts[Networks] && (r.Training || len(r.Frameworks) > 0) {
		return "nothing shows a framework that it belongs to"
	}
	for _, f := range c.all {
		if !job.Facts[f] {
			return "nothing shows that " + string(f)
		}
	}
	for _, f := range c.never {
		if job.Facts[f] {
			return string(f)
		}
	}
	if len(c.any) > 0 && !slices.ContainsFunc(c.any, func(f Fact) bool { return job.Facts[f] }) {
		return "nothing shows that " + joinFacts(c.any)
	}
	if _, ok := r.heard(job, r.howTo(job)); !ok {
		return "its words belong to a library that nothing shows"
	}
	return ""
}

// part is a share of the memory that figures of a message count.
type part int

const (
	heldPart part = iota + 1 // the program's own memory: the failed request stays as large as it is
	idlePart                 // what lies idle in the allocator's pool
)

// frees has the remedies that free one part only. One is ruled out where that part is smaller than
// what was missing.
var frees = map[ID]part{
	Checkpointing: heldPart, ActivationBudget: heldPart, ActivationOffload: heldPart,
	OptimizerFused: heldPart, Optimizer8Bit: heldPart, OptimizerAdafactor: heldPart,
	OptimizerPaged: heldPart, OptimizerOffload: heldPart, SetToNone: heldPart,
	Quantize8Bit: heldPart, Quantize4Bit: heldPart, LoRA: heldPart, Prune: heldPart,
	Detach: heldPart, RemoveHooks: heldPart, KeepLess: heldPart, ZeRO: heldPart, FSDP: heldPart,
	ReleaseModels: heldPart, NotebookState: heldPart, EvalOutputs: heldPart, NoGrad: heldPart,
	EmptyCache: idlePart, ExpandableSegments: idlePart, MaxSplitSize: idlePart, Roundup: idlePart,
	GCThreshold: idlePart,
}

// outOfReach returns a reason where the figures show that the remedy cannot free what was missing.
func (job Job) outOfReach(id ID) string {
	switch part := frees[id]; {
	case job.Missing <= 0:
	case part == heldPart && job.Held != nil && *job.Held+job.idle() < job.Missing:
		return "less is held than was missing"
	case part == idlePart && job.Idle != nil && *job.Idle < job.Missing:
		return "less lies idle than was missing"
	}
	return ""
}

func (job Job) idle() event.Bytes {
	if job.Idle == nil {
		return 0
	}
	return *job.Idle
}

// perhaps reports whether a remedy of training may be printed with an "if": the log shows no work
// at all, and nothing speaks against training.
func (job Job) perhaps(c condition) bool {
	return job.Work == Undecided && job.Facts[MayTrain] && slices.Equal(c.work, trainingOnly)
}

func joinFacts(facts []Fact) string {
	var words []string
	for _, f := range facts {
		words = append(words, string(f))
	}
	return strings.Join(words, " or that ")
}
