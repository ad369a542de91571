package remedy

import (
	"fmt"

	"memroom/event"
)

// tunes reports whether words of Ray Tune have a place.
func (job Job) tunes() bool { return job.Facts == nil || job.Facts[Tune] }

// study adds the words for a study of Optuna.
func (job Job) study() string {
	if job.Facts != nil && !job.Facts[Optuna] {
		return ""
	}
	return "; study.optimize(..., gc_after_trial=True)"
}

// trials: many models after or next to each other.
func trials() []*Remedy {
	needsRay := func(job Job) string {
		if job.Trainer != RayTune {
			return "Ray is not involved"
		}
		return ""
	}
	return []*Remedy{{
		ID:    FreshProcess,
		Title: "give each trial, fold or model a process of its own",
		Why: "what an earlier model holds (references, graphs, caches, a traceback) goes with " +
			"its process",
		Equivalence: Exact,
		Walls:       anywhere,
		how: func(job Job, _ Setup) How {
			if job.Framework == TensorFlow {
				return How{Code: lines("with concurrent.futures.ProcessPoolExecutor(1, max_tasks_per_child=1) as "+
					"pool:",
					"    score = pool.submit(train_one, params).result()   # each model in a new process",
					"del model; gc.collect(); tf.keras.backend.clear_session()   # or, weaker, in the same one")}
			}
			return How{Code: lines("with concurrent.futures.ProcessPoolExecutor(1, max_tasks_per_child=1) as "+
				"pool:",
				"    score = pool.submit(train_one, params).result()   # each trial in a new process",
				job.letGo("model, trainer")+"   # or, weaker, in the same one"+job.study())}
		},
	}, {
		ID:    NotebookState,
		Title: "let go of what failed cells still hold, or restart the kernel",
		Why: "the last traceback keeps every local variable of the cell that failed; names and " +
			"Out[] keep results of others",
		Equivalence: Exact,
		Walls:       onDevice,
		Frameworks:  []Framework{PyTorch, JAX},
		how: func(job Job, _ Setup) How {
			if job.Framework == JAX {
				return How{Code: lines("for a in jax.live_arrays(): print(a.shape, a.nbytes)   # what is still there",
					"del params, state; gc.collect()   # or restart the kernel, and end an earlier process")}
			}
			return How{Code: lines("memroom.free()   # after `import memroom`; or by hand:",
				"import sys, gc; sys.last_traceback = sys.last_value = sys.last_exc = None",
				"%reset -f out", job.letGo("model"))}
		},
	}, {
		ID:    ReleaseModels,
		Title: "keep scores and files of earlier models, not the models",
		Why: "a list, a history, an optimizer or a study that refers to a model keeps its weights, " +
			"gradients and optimizer state",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  []Framework{PyTorch, TensorFlow},
		code: map[Framework]string{
			PyTorch: lines("scores.append(score); torch.save(model.state_dict(), path)   # not models.append(model)",
				"del model, optimizer; gc.collect(); torch.cuda.empty_cache()   # study.optimize(..., "+
					"gc_after_trial=True)"),
			TensorFlow: lines("scores.append(history.history['loss'][-1])   # a History refers to its model",
				"del model, history; tf.keras.backend.clear_session(); gc.collect()"),
		},
	}, {
		ID:          ClearSession,
		Title:       "clear Keras' session before each new model",
		Why:         "models built in a loop stay in one global graph, with all their weights",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  []Framework{TensorFlow},
		code: map[Framework]string{TensorFlow: "del model; tf.keras.backend.clear_session(); " +
			"gc.collect()   # before the next model is built"},
	}, {
		ID:    SteadyTraces,
		Title: "let calls of a tf.function look alike: tensors for numbers, open lengths in a signature",
		Why: "every new Python value and every new shape is traced into a graph of its own, which stays " +
			"as long as the function",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  []Framework{TensorFlow},
		code: map[Framework]string{TensorFlow: lines("step(x, tf.constant(rate))   # not step(x, rate): "+
			"a Python number is part of the trace",
			"@tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])   # for shapes; or "+
				"reduce_retracing=True")},
	}, {
		ID:    PredictCall,
		Title: "call the model itself in the loop, not predict",
		Why: "predict builds a data pipeline and a function's traces at each call; it is made for one " +
			"call over all data",
		Equivalence: Exact,
		Walls:       anywhere,
		Frameworks:  []Framework{TensorFlow},
		code: map[Framework]string{TensorFlow: lines("y = model(x, training=False)   # one batch; or "+
			"model.predict_on_batch(x)",
			"y = model.predict(all_x, batch_size=32)   # or one call for everything")},
	}, {
		ID:          WaitForGPU,
		Title:       "wait until the trial before has left the card, or end what is left of it",
		Why:         "a stopped trial frees its memory only when its processes have ended",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		needs:       needsRay,
		how: func(job Job, _ Setup) How {
			how := How{Code: "ray.tune.utils.wait_for_gpu(target_util=0.05)   # first line of the trainable"}
			if _, processes := job.visible(); processes != "" {
				how.Args = processes + "   # who is still there; kill PID"
			}
			return how
		},
	}, {
		ID:          FewerTrials,
		Title:       "run fewer trials or workers at once",
		Why:         "those that run at the same time share one memory",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereGPU},
		needs:       needsRay,
		slowdown:    constant(1.3),
		how: func(job Job, _ Setup) How {
			n := "N"
			if job.Fits > 0 {
				n = fmt.Sprint(job.Fits)
			}
			if job.Facts[Rollouts] {
				return How{Code: "config.env_runners(num_env_runners=" + n + ")   # in old versions: " +
					"the number of workers in the configuration"}
			}
			if job.tunes() {
				return How{Code: "tune.TuneConfig(max_concurrent_trials=" + n +
					")   # or ray.init(num_cpus=" + n + ")"}
			}
			return How{Code: lines("ray.init(num_cpus="+n+")   # as many tasks of one CPU run at once",
				"ActorPool([Worker.remote() for _ in range("+n+")])")}
		},
	}, {
		ID:          ObjectStore,
		Title:       "give Ray's object store more memory, or put fewer and smaller objects there",
		Why:         "objects stay in the store while a reference to them lives",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereShm, event.WhereHost, event.WhereCgroup},
		needs:       needsRay,
		how: func(job Job, _ Setup) How {
			if job.Asked > job.Limit && job.Limit > 0 {
				return How{Code: "refs = [ray.put(part) for part in np.array_split(data, 64)]   # pieces, not one " +
					"object"}
			}
			alone := ""
			if job.Asked > 0 {
				alone = "; the object alone takes " + job.Asked.String()
			}
			code := []string{"ray.init(object_store_memory=BYTES)   # more than now (`ray memory` shows it), where " +
				"machine and /dev/shm have it" + alone,
				"del ref   # drop references when done; `ray memory` lists who holds what"}
			if job.Facts[DiskFull] {
				code = append(code, "# objects spill to the disk of the temporary folder: one with more room is set "+
					"with object_spilling_config")
			}
			return How{Code: lines(code...)}
		},
	}, {
		ID:    RayBlocks,
		Title: "use smaller blocks and shuffle buffers in Ray Data",
		Why: "its limits are soft: blocks in flight and local shuffle buffers come on top of the " +
			"object store",
		Equivalence: Expected,
		Walls:       []event.Where{event.WhereShm, event.WhereHost, event.WhereCgroup},
		needs:       needsRay,
		how: func(Job, Setup) How {
			return How{Code: lines("ray.data.DataContext.get_current().target_max_block_size = 32 * 1024**2",
				"ds.iter_torch_batches(batch_size=..., prefetch_batches=1, local_shuffle_buffer_size=1000)")}
		},
	}}
}
