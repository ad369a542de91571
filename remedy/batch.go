package remedy

import (
	"fmt"
	"strings"

	"memroom/event"
)

// batching: a smaller micro-batch with more of them per step, so that the effective batch stays.
func batching() []*Remedy {
	return []*Remedy{{
		ID:    MicroBatch,
		Title: "halve the micro-batch and accumulate gradients over two micro-batches",
		Why: "activations, logits and inputs shrink with the micro-batch; the effective batch " +
			"and the learning rate stay",
		Equivalence: Exact,
		Walls:       append([]event.Where{event.WhereShm}, anywhere...),
		Levels:      []Level{LevelArgs, LevelProcess},
		on:          func(s Setup) bool { return s.Batch == 1 },
		rewrite:     halveBatch,
		timeline: func(t *event.Timeline) (*event.Timeline, bool) {
			return scaleBlocks(t, map[event.Category]float64{event.CategoryActivations: 0.5,
				event.CategoryLoss: 0.5, event.CategoryInput: 0.5})
		},
		slowdown: smallerBatchSlowdown,
		needs: func(job Job) string {
			if job.Images && !job.batched() {
				return "nothing shows that more than one image is made at once"
			}
			return ""
		},
		how: howMicroBatch,
	}, {
		ID:    LessAtOnce,
		Title: "give it less at once: smaller inputs, or fewer of them",
		Why: "what a library takes on the card grows with what it is given; its own messages do not say " +
			"what else lies there",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		how: func(job Job, _ Setup) How {
			less := ""
			if job.Batch > 1 {
				less = fmt.Sprintf("a batch of %d instead of %d\n", job.Batch/2, job.Batch)
			}
			if _, processes := job.visible(); processes != "" {
				return How{Args: less + "fewer or smaller inputs in one call; who else is on the card: " + processes}
			}
			return How{Args: strings.TrimSpace(less)}
		},
	}}
}

// lessWords is what stands for a smaller batch where nothing shows that there are batches.
const lessWords = "a smaller batch, or smaller inputs"

func halveBatch(s Setup) (Setup, bool) {
	if s.Batch < 2 {
		return s, false
	}
	pieces := equalPieces(s.Batch, 2)
	s.Accumulate = max(1, s.Accumulate) * pieces
	s.Batch /= pieces
	return s, true
}

// equalPieces is the smallest number of pieces, at least so many, that divides a batch: only then
// does the effective batch stay as it is.
func equalPieces(batch, atLeast int) int {
	for pieces := atLeast; pieces < batch; pieces++ {
		if batch%pieces == 0 {
			return pieces
		}
	}
	return batch
}

// smallerBatchSlowdown models how far a card is from saturation by the tokens of one forward pass:
// efficiency tokens / (tokens + 512). Throughput grows almost in proportion below a few hundred
// tokens and hardly above some thousands (transformers#15026 has the small end for an A100).
func smallerBatchSlowdown(s Setup) float64 {
	perSample := float64(s.Seq)
	if perSample == 0 && s.Image > 0 {
		perSample = float64(s.Image) * float64(s.Image) / 256 // one 16x16 patch counts as a token
	}
	if perSample == 0 || s.Batch < 2 {
		return 1.05
	}
	before := float64(s.Batch) * perSample
	after := before / float64(equalPieces(s.Batch, 2))
	return (before / (before + 512)) / (after / (after + 512))
}

func howMicroBatch(job Job, after Setup) How {
	batch, accumulate, pieces := "HALF_YOUR_BATCH", "2", "2"
	if job.Setup != nil && after.Batch > 0 && after.Batch < job.Setup.Batch {
		// a loop of the user's own takes pieces of any size, so two are enough there
		batch, accumulate = fmt.Sprint(after.Batch), fmt.Sprint(after.Accumulate)
	}
	if job.Setup != nil && job.Pieces > 1 {
		equal := equalPieces(job.Setup.Batch, job.Pieces)
		batch, accumulate = fmt.Sprint(job.Setup.Batch/equal), fmt.Sprint(equal)
		pieces = fmt.Sprint(job.Pieces)
	}
	if !job.batched() && job.Work != Serving {
		if job.accumulates() {
			return How{Args: lessWords + "; gradients added up over several batches"}
		}
		return How{Args: lessWords}
	}
	if job.Facts[Toolkit] && (job.Trainer == Plain || job.Trainer == RayTune) {
		return How{Args: inSettings[MicroBatch]}
	}
	if job.Inference {
		if job.Program == "vllm" && job.Trainer != VLLM {
			return How{Args: "--max-num-seqs 64"}
		}
		if job.Trainer == VLLM {
			return How{Args: "--max-num-seqs 64 --max-num-batched-tokens 2048"}
		}
		if job.Program != "" { // a program has settings; its user writes no code of the model
			return How{Args: "fewer at once in the program's own settings"}
		}
		if job.Framework != PyTorch && job.Facts != nil {
			return How{Args: "batch_size=" + batch + "   # of what runs at once"}
		}
		return How{Code: "for chunk in inputs.split(" + batch +
			"):\n    outputs.append(model(chunk).cpu())"}
	}
	if !job.accumulates() {
		return How{Args: "batch_size=" + batch + "   # of what runs at once"}
	}
	if job.Maker == Google && job.Trainer == Plain && job.Framework == PyTorch {
		return How{Args: inWords[MicroBatch]} // a loop over pieces is compiled into one program there
	}
	if job.Facts[DrawTrained] && job.Trainer == Accelerate { // whose scripts have settings of their own
		return How{Args: "--train_batch_size " + batch + " --gradient_accumulation_steps " + accumulate}
	}
	how := How{Args: microBatchArgs(job.Trainer, batch, accumulate)}
	switch job.Framework {
	case TensorFlow:
		how.Code = lines("model.compile(optimizer=keras.optimizers.Adam(1e-3, "+
			"gradient_accumulation_steps="+accumulate+"), loss=loss)",
			"model.fit(dataset.unbatch().batch("+batch+"))")
	case JAX:
		how.Code = "optimizer = optax.MultiSteps(optimizer, every_k_schedule=" + accumulate +
			")   # and batches of " + batch
	default:
		how.Code = microBatchCode(job.Trainer, batch, accumulate, pieces)
	}
	return how
}

// microBatchCode is the same in Python: in the trainer's own words where it has some. A loop of the
// user's own splits each batch where it is used: pieces of any size then weigh what they should,
// and the last batch of an epoch is no exception.
func microBatchCode(trainer Trainer, batch, accumulate, pieces string) string {
	switch trainer {
	case Lightning:
		return "trainer = Trainer(accumulate_grad_batches=" + accumulate +
			")   # and batch_size=" + batch + " in the DataLoader"
	case DeepSpeed:
		return "" // its engine divides the batch, by its configuration
	case Transformers:
		return "TrainingArguments(per_device_train_batch_size=" + batch +
			", gradient_accumulation_steps=" + accumulate + ")"
	case Accelerate:
		return lines("accelerator = Accelerator(gradient_accumulation_steps="+accumulate+
			")   # and batch_size="+batch+" in the DataLoader",
			"with accelerator.accumulate(model):            # around the body of the loop")
	}
	return lines("for x, y in loader:                            # the batch size stays",
		"    for xs, ys in zip(x.chunk("+pieces+"), y.chunk("+pieces+")):",
		"        loss = loss_fn(model(xs), ys) * len(xs) / len(x)   # of a mean over samples",
		"        loss.backward()",
		"    optimizer.step(); optimizer.zero_grad(set_to_none=True)")
}

func microBatchArgs(trainer Trainer, batch, accumulate string) string {
	switch trainer {
	case Transformers:
		return "--per_device_train_batch_size " + batch + " --gradient_accumulation_steps " +
			accumulate
	case Accelerate:
		return "accelerate launch --gradient_accumulation_steps " + accumulate +
			"   # with batch_size=" + batch + " in the DataLoader"
	case Lightning:
		return "--trainer.accumulate_grad_batches=" + accumulate + " --data.batch_size=" + batch
	case DeepSpeed:
		return `"train_micro_batch_size_per_gpu": ` + batch + `, "gradient_accumulation_steps": ` + accumulate
	case Torchtune:
		return "batch_size=" + batch + " gradient_accumulation_steps=" + accumulate
	case Axolotl:
		return "micro_batch_size: " + batch + "\ngradient_accumulation_steps: " + accumulate
	}
	return ""
}
