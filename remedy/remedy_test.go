package remedy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"memroom/event"
)

// everyID is written out a second time on purpose: the names are a contract with records, the probe
// and users' scripts.
const everyID = `micro_batch mixed_precision checkpointing activation_budget activation_offload optimizer_fused optimizer_8bit
optimizer_adafactor optimizer_paged optimizer_offload set_to_none quantize_8bit quantize_4bit lora prune distill
shorter_sequence smaller_image attention chunked_loss expandable_segments max_split_size roundup gc_threshold empty_cache
detach keep_less no_grad remove_hooks ddp_bucket_view fsdp zero device_map tf_growth tf_allocator tf_data_budget dataloader_workers
pin_memory shm_size share_data stream_data tree_data trial_resources raise_limit free_neighbour
eval_outputs eval_batch generation_cache autocast_cache longest_batch cuda_graph_sizes check_shapes other_version load_to_host
save_sharded save_as_it_is merge_on_host load_once shard_at_load offload_less fresh_process clear_session wait_for_gpu fewer_trials
object_store ray_blocks shuffle_buffer map_file worker_cache steady_traces map_processes select_card page_file wsl_memory serving_share smaller_layer
notebook_state fewer_processes predict_call release_models pipeline_offload fewer_pairs ddp
process_limits other_programs metric_reset newer_torch less_at_once half_weights save_parts right_device
window_on_host objects_on_host smaller_buffer fewer_points layout live_parameters unified_memory in_parts`

func TestCatalogueIsComplete(t *testing.T) {
	want := map[ID]bool{}
	for _, id := range strings.Fields(everyID) {
		want[ID(id)] = true
	}
	for _, r := range Catalogue() {
		if !want[r.ID] {
			t.Errorf("%s is not in the list, or is there twice", r.ID)
		}
		delete(want, r.ID)
		if found, ok := Find(r.ID); !ok || found != r {
			t.Errorf("Find(%s) does not give it", r.ID)
		}
	}
	for id := range want {
		t.Errorf("%s is missing", id)
	}
}

func TestEveryRemedyCanBeExplained(t *testing.T) {
	for _, r := range Catalogue() {
		if r.Title == "" || r.Why == "" || len(r.Walls) == 0 {
			t.Errorf("%s lacks a title, a reason or a wall", r.ID)
		}
		switch r.Equivalence {
		case Exact, Expected:
			if r.Consent != "" {
				t.Errorf("%s keeps the mathematics and asks for consent", r.ID)
			}
		case Changes:
			if r.Consent == "" {
				t.Errorf("%s changes the mathematics without a name for the consent", r.ID)
			}
		default:
			t.Errorf("%s has equivalence %q", r.ID, r.Equivalence)
		}
		for _, job := range jobsFor(r) {
			if how := r.HowTo(job); how.Env == "" && how.Args == "" && how.Code == "" {
				t.Errorf("%s says nothing to type for %+v", r.ID, job)
			}
		}
	}
}

// jobsFor returns the frameworks and trainers a remedy may be asked about.
func jobsFor(r *Remedy) []Job {
	var jobs []Job
	frameworks := r.Frameworks
	if len(frameworks) == 0 {
		frameworks = []Framework{"", PyTorch, TensorFlow, JAX, Python}
	}
	for _, f := range frameworks {
		for _, trainer := range []Trainer{Plain, Transformers, Lightning, DeepSpeed, Keras} {
			jobs = append(jobs, Job{Where: r.Walls[0], Framework: f, Trainer: trainer})
		}
	}
	return jobs
}

func TestRewriteTurnsItOnOnce(t *testing.T) {
	start := Setup{Batch: 8, Seq: 512, Precision: "fp32", Optimizer: "adamw", Attention: "eager",
		KeepGrads: true, Ranks: 2, Workers: 8, PinMemory: true}
	rewritten := 0
	for _, r := range Catalogue() {
		before := start.clone()
		after, ok := r.Rewrite(before)
		if !ok {
			continue
		}
		rewritten++
		if reflect.DeepEqual(after, start) {
			t.Errorf("%s says it rewrote the setup and changed nothing", r.ID)
		}
		if !reflect.DeepEqual(before, start) {
			t.Errorf("%s changed its argument", r.ID)
		}
		if r.on != nil && r.ID != MicroBatch && !r.IsOn(after) {
			t.Errorf("%s is not on after its own rewrite: %+v", r.ID, after)
		}
		if r.ID != ShorterSequence && after.EffectiveBatch() != start.EffectiveBatch() {
			t.Errorf("%s changes the effective batch from %d to %d", r.ID, start.EffectiveBatch(),
				after.EffectiveBatch())
		}
		if r.IsOn(after) && r.Applies(Job{Setup: &after}) == "" {
			t.Errorf("%s is offered where it is on", r.ID)
		}
		if f := r.Slowdown(start); f < 0.2 || f > 3 {
			t.Errorf("%s slows down by %v", r.ID, f)
		}
	}
	if rewritten < 18 {
		t.Errorf("only %d remedies rewrite a setup", rewritten)
	}
}

func TestMicroBatchKeepsTheEffectiveBatch(t *testing.T) {
	r, _ := Find(MicroBatch)
	s := Setup{Batch: 32, Accumulate: 3}
	for s.Batch > 1 {
		next, ok := r.Rewrite(s)
		if !ok || next.Batch >= s.Batch || next.EffectiveBatch() != 96 {
			t.Fatalf("from %+v to %+v, %v", s, next, ok)
		}
		s = next
	}
	if _, ok := r.Rewrite(s); ok {
		t.Error("a batch of one was halved")
	}
	how := r.HowTo(Job{Framework: PyTorch, Trainer: Transformers,
		Setup: &Setup{Batch: 16, Accumulate: 2}})
	if want := "--per_device_train_batch_size 8 --gradient_accumulation_steps 4"; how.Args != want {
		t.Errorf("arguments %q, want %q", how.Args, want)
	}
}

func TestAllocatorStringKeepsTheUsersKeys(t *testing.T) {
	r, _ := Find(ExpandableSegments)
	for before, want := range map[string]string{
		"":                                       "expandable_segments:True",
		"max_split_size_mb:64":                   "max_split_size_mb:64,expandable_segments:True",
		"expandable_segments:False":              "expandable_segments:False",
		"roundup_power2_divisions:[256:1,512:2]": "roundup_power2_divisions:[256:1,512:2],expandable_segments:True",
	} {
		if got, _ := r.RewriteConf(before); got != want {
			t.Errorf("%q became %q, want %q", before, got, want)
		}
	}
}

func TestOldTorchIsNotOfferedWhatItDoesNotKnow(t *testing.T) {
	r, _ := Find(ExpandableSegments)
	for version, offered := range map[string]bool{"1.13": false, "2.0": false, "2.1": true,
		"2.11.0+cu130": true, "": true} {
		if got := r.Applies(Job{Where: event.WhereGPU, Framework: PyTorch,
			Torch: version}) == ""; got != offered {
			t.Errorf("torch %q: offered %v, want %v", version, got, offered)
		}
	}
}

// TestWhatFitClaimsTheProbeDoes: the remedies that --fit claims to apply are those in the probe's
// tables.
func TestWhatFitClaimsTheProbeDoes(t *testing.T) {
	var tables string
	for _, name := range []string{"settings.py", filepath.Join("fit", "registry.py"),
		filepath.Join("fit", "__init__.py")} {
		text, err := os.ReadFile(filepath.Join("..", "probe", "py", "_memroom_probe", name))
		if err != nil {
			t.Fatal(err)
		}
		tables += string(text)
	}
	for _, r := range Catalogue() {
		if there := strings.Contains(tables, `"`+string(r.ID)+`"`); (len(r.Levels) > 0) != there {
			t.Errorf("%s: levels %v, in the probe's tables: %v", r.ID, r.Levels, there)
		}
	}
}

func TestRaisedLimitIsLarger(t *testing.T) {
	r, _ := Find(RaiseLimit)
	for want, job := range map[string]Job{
		"#SBATCH --mem=96G":      {Slurm: true, Limit: 64 * event.GiB},
		"limits: {memory: 18Gi}": {Kube: true, Where: event.WhereCgroup, Limit: 12 * event.GiB},
		"limits: {memory: 38Mi}": {Kube: true, Where: event.WhereCgroup, Limit: 25 * event.MiB},
		"--memory=3g":            {Where: event.WhereCgroup, Limit: 2 * event.GiB},
		"--memory=MORE":          {Where: event.WhereCgroup},
	} {
		if got := r.HowTo(job).Args; !strings.Contains(got, want) {
			t.Errorf("%+v: %q does not say %q", job, got, want)
		}
	}
}

func TestTimelineRewrites(t *testing.T) {
	timeline := &event.Timeline{
		Tags: []event.Tag{{}, {Category: event.CategoryOptimizer},
			{Category: event.CategoryActivations}},
		Ops: []event.Op{{ID: 1, Size: 4096, Tag: 1}, {ID: 2, Size: 1000, Tag: 2},
			{ID: 2, Kind: event.OpFree},
			{ID: 3, Size: 77}, {ID: 1, Kind: event.OpFree}},
		Marks: []event.Mark{{At: 1, Step: 1}, {At: 3, Step: 2}},
	}
	offload, _ := Find(OptimizerOffload)
	after, ok := offload.RewriteTimeline(timeline)
	if !ok || len(after.Ops) != 3 || after.Marks[0].At != 0 || after.Marks[1].At != 2 ||
		after.Ops[2].Size != 77 {
		t.Errorf("without optimizer state: %+v, %v", after, ok)
	}
	batch, _ := Find(MicroBatch)
	if after, ok = batch.RewriteTimeline(timeline); !ok || after.Ops[1].Size != 500 ||
		after.Ops[0].Size != 4096 || timeline.Ops[1].Size != 1000 {
		t.Errorf("half the batch: %+v, %v", after, ok)
	}
	if _, ok = batch.RewriteTimeline(&event.Timeline{Ops: timeline.Ops[3:4],
		Tags: timeline.Tags[:1]}); ok {
		t.Error("an untagged timeline was rewritten")
	}
	empty, _ := Find(EmptyCache)
	if after, ok = empty.RewriteTimeline(timeline); !ok || len(after.Ops) != 7 ||
		after.Ops[1].Kind != event.OpEmptyCache || after.Ops[4].Kind != event.OpEmptyCache {
		t.Errorf("with an emptied cache: %+v, %v", after, ok)
	}
}

// TestTitlesLeaveTheIDOut: a title is printed next to its id and must not say it a second time.
func TestTitlesLeaveTheIDOut(t *testing.T) {
	for _, r := range Catalogue() {
		if strings.Contains(r.Title, "("+string(r.ID)) {
			t.Errorf("%s: %s", r.ID, r.Title)
		}
	}
}
