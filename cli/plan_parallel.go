package cli

import (
	"fmt"
	"slices"
	"strings"

	"memroom/plan"
)

// parallelFlags are the flags of plan that divide a model among cards beyond --shard.
type parallelFlags struct {
	Replicas         int  `group:"Several cards" help:"HSDP: groups of ranks, each with a whole model cut over its ranks. Default: one a machine of 8." placeholder:"N"`
	TensorParallel   int  `group:"Several cards" help:"Heads, the MLP and the vocabulary are cut over so many ranks (estimate, as all of these divisions). --ranks counts all ranks." placeholder:"N"`
	SequenceParallel bool `group:"Several cards" help:"With --tensor-parallel: tokens are cut between the cut layers."`
	LossParallel     bool `group:"Several cards" help:"With --tensor-parallel: embedding, logits and loss are cut too, as torchtitan and Megatron do. Without it the interval covers both."`
	ContextParallel  int  `group:"Several cards" help:"Each sample's tokens are dealt out to so many ranks (ring attention, Ulysses)." placeholder:"N"`
	PipelineParallel int  `group:"Several cards" help:"The layers are cut into so many stages; the peak of each kind of stage is printed." placeholder:"N"`
	Microbatches     int  `group:"Several cards" help:"With --pipeline-parallel: micro-batches of a step, run one forward and one backward in turn (1F1B). Default: --accumulate, or as many as stages." placeholder:"N"`
	ExpertParallel   int  `group:"Several cards" help:"Experts are dealt out to so many of the data-parallel ranks." placeholder:"N"`
}

// checkParallel refuses flags that would have no effect; --shard fsdp with groups is HSDP.
func (c *planCmd) checkParallel() error {
	if c.Replicas > 0 && !strings.HasPrefix(c.Shard, "fsdp") && c.Shard != "hsdp" && !c.Rehearse {
		return fmt.Errorf("--replicas counts the groups of HSDP: add --shard hsdp (or fsdp1, for its " +
			"HYBRID_SHARD)")
	}
	for _, n := range []struct {
		flag  string
		value int
	}{{"--tensor-parallel", c.TensorParallel}, {"--context-parallel", c.ContextParallel},
		{"--pipeline-parallel", c.PipelineParallel}, {"--expert-parallel", c.ExpertParallel},
		{"--microbatches", c.Microbatches}, {"--replicas", c.Replicas}} {
		if n.value < 0 {
			return fmt.Errorf("%s %d: give 1 or more", n.flag, n.value)
		}
	}
	switch {
	case c.Rehearse && (c.divided() || c.Replicas > 0):
		return fmt.Errorf("--rehearse takes the division among cards from the script: leave " +
			"out --tensor-parallel and the other flags of parallelism")
	case len(c.Devices) > 0 && c.divided():
		return fmt.Errorf("--devices finds a division by itself: leave out --tensor-parallel " +
			"and the other flags of parallelism")
	}
	if c.Shard == "fsdp" && c.Replicas > 1 {
		c.Shard = "hsdp"
	}
	return nil
}

// spread puts the flags into a setup.
func (f *parallelFlags) spread(s *plan.Setup) {
	s.Replicas = f.Replicas
	s.Division = plan.Division{Tensor: f.TensorParallel, Sequence: f.SequenceParallel,
		LossParallel: f.LossParallel, Context: f.ContextParallel, Pipeline: f.PipelineParallel,
		Microbatches: f.Microbatches, Expert: f.ExpertParallel}
}

// divided reports whether the model itself is divided among ranks.
func (f *parallelFlags) divided() bool {
	return max(f.TensorParallel, f.ContextParallel, f.PipelineParallel, f.ExpertParallel) > 1
}

// fileSpread holds a trainer file's settings for groups of cards.
type fileSpread struct {
	hybrid           bool // shards within machines only
	shards, copies   int  // degrees of sharding and of replication
	pipelineBatch    int  // samples of a pipeline's micro-batch
	lossWhole, torch bool // logits are gathered; the file is torchtitan's, which does not by default
}

// allTheRest is a degree that means all ranks that are left.
const allTheRest = -1

// degrees are the names that trainers give to the degrees of a division.
var degrees = map[string]string{
	"tensor_parallel_degree": "tensor", "tensor_parallel_size": "tensor",
	"tensor_parallel_dim": "tensor", "tensor_model_parallel_size": "tensor", "tp_size": "tensor",
	"parallelism_config_tp_size": "tensor", "autotp_size": "tensor", "tp_degree": "tensor",
	"context_parallel_degree": "context", "context_parallel_size": "context",
	"context_parallel_dim": "context", "cp_size": "context", "cp_degree": "context",
	"parallelism_config_cp_size": "context", "sequence_parallel_degree": "context",
	"sequence_parallel_size": "context", "sp_size": "context", "parallelism_config_sp_size": "context",
	"ulysses_degree": "context", "ulysses_sequence_parallel_size": "context",
	"pipeline_parallel_degree": "pipeline", "pipeline_parallel_size": "pipeline",
	"pipeline_model_parallel_size": "pipeline", "pp_size": "pipeline", "pp_degree": "pipeline",
	"expert_parallel_degree": "expert", "expert_parallel_size": "expert",
	"expert_model_parallel_size": "expert", "ep_size": "expert", "ep_degree": "expert",
	"expert_parallel": "expert", "parallelism_config_dp_shard_size": "shards",
	"dp_shard_size": "shards", "data_parallel_shard_degree": "shards",
	"data_parallel_shard_dim": "shards", "parallelism_config_dp_replicate_size": "copies",
	"dp_replicate_size": "copies", "data_parallel_replicate_degree": "copies",
	"data_parallel_replicate_dim": "copies", "num_microbatches": "microbatches",
	"pipeline_parallel_microbatch_size": "pipelineBatch",
}

// useDegrees takes how a file divides the model itself.
func (c *planCmd) useDegrees(r *recipe, s setting, name string) bool {
	n, isNumber := asNumber(s.value)
	to := map[string]*int{"tensor": &c.TensorParallel, "context": &c.ContextParallel,
		"pipeline": &c.PipelineParallel, "expert": &c.ExpertParallel, "shards": &c.file.shards,
		"copies": &c.file.copies, "microbatches": &c.Microbatches,
		"pipelineBatch": &c.file.pipelineBatch}[degrees[name]]
	switch {
	case to != nil && isNumber:
		if *to == 0 && (n > 1 || n == allTheRest && degrees[name] == "shards") ||
			name == "pipeline_parallel_microbatch_size" {
			*to = n
		}
		c.file.torch = c.file.torch || name == "tensor_parallel_degree" && s.within() == "parallelism"
	case to != nil:
		c.unplanned(r, asBool(s.value), strings.Join(s.path, ".")+" without a number")
	case name == "sequence_parallel" && isNumber:
		setInt(&c.ContextParallel, 0, n, n > 1)
	case name == "sequence_parallel":
		c.SequenceParallel = c.SequenceParallel || asBool(s.value)
	case name == "disable_loss_parallel":
		c.file.lossWhole = asBool(s.value)
	case name == "enable_loss_parallel":
		c.LossParallel = c.LossParallel || asBool(s.value)
	case name == "pipeline_parallel_schedule":
		if text := fmt.Sprint(s.value); !strings.EqualFold(text, "1f1b") {
			r.unknown = append(r.unknown, strings.Join(s.path, ".")+": "+text+" (planned as 1F1B)")
		}
	case strings.HasPrefix(name, "parallelism_config_"), name == "enable_async_tensor_parallel",
		name == "context_parallel_rotate_method", name == "cp_comm_strategy",
		name == "ring_attn_func", name == "heads_k_stride", name == "sequence_parallel_mode",
		name == "pipeline_parallel_split_points", name == "use_parallelism_config":
		// these settings choose how the work is carried out, which the plan ignores
	default:
		return false
	}
	return true
}

// settleDegrees decides how many ranks a file's degrees take, and how they shard.
func (c *planCmd) settleDegrees() {
	if c.TensorParallel < 2 { // Megatron's switch means nothing without it
		c.SequenceParallel, c.LossParallel = false, false
	}
	c.LossParallel = c.LossParallel || c.TensorParallel > 1 && c.file.torch && !c.file.lossWhole
	if c.PipelineParallel < 2 {
		c.Microbatches = 0
	} else if n := c.file.pipelineBatch; n > 0 && c.Batch%n == 0 && c.Microbatches == 0 {
		c.Batch, c.Microbatches = n, c.Batch/n
	}
	together := max(1, c.TensorParallel) * max(1, c.ContextParallel) * max(1, c.PipelineParallel) *
		max(1, c.file.copies)
	if c.file.shards == allTheRest {
		c.file.shards = max(1, c.Ranks/together)
	}
	switch {
	case c.file.shards > 1 && c.file.copies > 1:
		if c.useShard("hsdp"); c.Shard == "fsdp" {
			c.Shard = "hsdp"
		}
		setInt(&c.Replicas, 0, c.file.copies, true)
	case c.file.shards > 1:
		c.useShard("fsdp")
	case c.file.copies > 1:
		c.useShard("ddp")
	}
	if c.Ranks == 1 {
		c.Ranks = together * max(1, c.file.shards)
	}
}

// settleSpread derives the settings that follow from all of a file's settings about cards taken
// together.
func (c *planCmd) settleSpread(r *recipe) {
	c.settleDegrees()
	fsdp := strings.HasPrefix(c.Shard, "fsdp") || c.Shard == "hsdp"
	if at := slices.Index(c.Offload, "parameters"); at >= 0 && !fsdp && c.Shard != "zero3" {
		c.Offload = slices.Delete(slices.Clone(c.Offload), at, at+1)
	}
	if c.file.hybrid && fsdp && c.Replicas == 0 {
		c.Replicas = machines(r.all, c.Ranks)
		if c.Replicas > 1 && c.Shard == "fsdp" {
			c.Shard = "hsdp"
		}
		if c.Replicas == 1 { // one machine: all of its cards are one group
			c.Replicas = 0
		}
	}
}

// machines is on how many machines a file's job runs: those it names, or as many as have 8 cards.
func machines(all map[string]any, ranks int) int {
	for _, name := range []string{"num_machines", "num_nodes", "nnodes"} {
		if n, ok := asNumber(all[name]); ok && n > 0 {
			return n
		}
	}
	if ranks%8 == 0 {
		return max(1, ranks/8)
	}
	return 1
}
