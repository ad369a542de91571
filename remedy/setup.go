package remedy

import (
	"slices"
	"strings"
)

// Setup is how a training job is configured, in the words of `memroom plan`'s flags. Zero values
// mean the framework's default. Precision is fp32, amp_bf16, amp_fp16 or bf16; Optimizer adamw,
// adamw_fused, adamw_loop, sgd, sgdm, rmsprop, adafactor, adam8bit, paged_adamw, lion, ...;
// Attention sdpa, eager or flash; LoadIn 8bit or 4bit; Shard ddp, fsdp, zero1, zero2 or zero3;
// Offload holds "optimizer" and "activations".
type Setup struct {
	Batch         int    `json:"batch,omitempty"` // micro-batch of one rank
	Seq           int    `json:"seq,omitempty"`
	Image         int    `json:"image,omitempty"` // side in pixels
	Precision     string `json:"precision,omitempty"`
	Optimizer     string `json:"optimizer,omitempty"`
	Checkpointing bool   `json:"checkpointing,omitempty"`
	Attention     string `json:"attn,omitempty"`
	// micro-batches per optimizer step; 0 and 1 mean one
	Accumulate int  `json:"accumulate,omitempty"`
	Clip       bool `json:"clip,omitempty"`
	KeepGrads  bool `json:"keep_grads,omitempty"` // zero_grad(set_to_none=False)
	// only parameters whose name contains one of these are trained
	TrainOnly    []string `json:"train_only,omitempty"`
	LoRARank     int      `json:"lora_rank,omitempty"`
	LoadIn       string   `json:"load_in,omitempty"`
	ChunkedLoss  bool     `json:"chunked_loss,omitempty"` // logits are never whole in memory
	Ranks        int      `json:"ranks,omitempty"`
	Shard        string   `json:"shard,omitempty"`
	BucketView   bool     `json:"bucket_view,omitempty"` // DDP's gradient_as_bucket_view
	Offload      []string `json:"offload,omitempty"`
	ChannelsLast bool     `json:"channels_last,omitempty"`
	AllocConf    string   `json:"alloc_conf,omitempty"`
	Torch        string   `json:"torch,omitempty"` // version, such as "2.11"
	Workers      int      `json:"workers,omitempty"`
	PinMemory    bool     `json:"pin_memory,omitempty"`
	Eval         bool     `json:"eval,omitempty"` // an evaluation phase is part of the job
	Save         bool     `json:"save,omitempty"` // so is saving a checkpoint
}

// EffectiveBatch is the number of samples per optimizer step over all ranks: what remedies keep.
func (s Setup) EffectiveBatch() int { return s.Batch * max(1, s.Accumulate) * max(1, s.Ranks) }

// Offloads reports whether this kind of state lives in host memory.
func (s Setup) Offloads(what string) bool { return slices.Contains(s.Offload, what) }

// Adam reports whether the optimizer keeps two moments per parameter in full precision. The empty
// name is AdamW, plan's default.
func (s Setup) Adam() bool {
	switch s.Optimizer {
	case "", "adam", "adamw", "adamw_fused", "adamw_loop", "adam_fused", "adam_loop":
		return true
	}
	return false
}

// clone returns a copy whose slices can be changed.
func (s Setup) clone() Setup {
	s.TrainOnly, s.Offload = slices.Clone(s.TrainOnly), slices.Clone(s.Offload)
	return s
}

// confHas reports whether an allocator string sets a key.
func confHas(conf, key string) bool {
	for _, part := range splitConf(conf) {
		name, _, _ := strings.Cut(part, ":")
		if strings.TrimSpace(name) == key {
			return true
		}
	}
	return false
}

// confWith adds key:value to an allocator string unless the user has set the key, whose word wins.
func confWith(conf, key, value string) string {
	if confHas(conf, key) {
		return conf
	}
	if strings.TrimSpace(conf) == "" {
		return key + ":" + value
	}
	return conf + "," + key + ":" + value
}

// splitConf cuts an allocator string at the commas outside brackets (roundup_power2_divisions takes
// a list).
func splitConf(conf string) []string {
	depth, start := 0, 0
	var parts []string
	for i, c := range conf {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				parts = append(parts, conf[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, conf[start:])
}
