package remedy

import (
	"fmt"

	"memroom/event"
)

// data: host and shared memory of the input pipeline.
func data() []*Remedy {
	return []*Remedy{{
		ID:          SmallerBuffer,
		Title:       "make the buffer smaller, or store less in each place of it",
		Why:         "a buffer of fixed size takes all its memory when it is made, or fills up to it",
		Equivalence: Changes,
		Consent:     "data",
		Walls:       onHost,
		how: func(Job, Setup) How {
			return How{Args: "a smaller buffer_size (capacity, replay_size) where it is made; images as uint8, " +
				"smaller ones, or each stored once"}
		},
	}, {
		ID:    DataLoaderWorkers,
		Title: "use fewer DataLoader workers",
		Why: "every worker holds its own copy of the data it touches, and prefetch_factor " +
			"batches in shared memory",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereShm},
		Frameworks:  []Framework{PyTorch, TensorFlow},
		Levels:      []Level{LevelArgs, LevelProcess},
		rewrite:     func(s Setup) (Setup, bool) { s.Workers /= 2; return s, s.Workers > 0 },
		slowdown:    constant(1.1),
		how:         howWorkers,
	}, {
		ID:          PinMemory,
		Title:       "do not pin batches in host memory",
		Why:         "pinned batches cannot be swapped and stay cached in powers of two",
		Equivalence: Exact,
		Walls:       onHost,
		Frameworks:  torch,
		Levels:      []Level{LevelArgs, LevelProcess},
		on:          func(s Setup) bool { return s.Workers > 0 && !s.PinMemory },
		rewrite:     func(s Setup) (Setup, bool) { s.PinMemory = false; return s, true },
		slowdown:    constant(1.05),
		args:        map[Trainer]string{Transformers: "--dataloader_pin_memory False"},
		code: map[Framework]string{PyTorch: "DataLoader(dataset, batch_size=batch, " +
			"pin_memory=False)"},
	}, {
		ID:          ShmSize,
		Title:       "make /dev/shm larger",
		Why:         "workers pass their batches through /dev/shm; a container has 64 MiB of it by default",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereShm},
		how:         howShm,
	}, {
		ID:    ShareData,
		Title: "share the samples between the workers",
		Why: "reading a Python object writes its reference count and copies its page into the worker; " +
			"memroom.share keeps the samples once, in memory that all workers map",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup},
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: "samples = memroom.share(samples)   # import memroom; " +
			"before the DataLoader is made"},
	}, {
		ID:    MapFile,
		Title: "map the file, or let each rank read its own part",
		Why: "what a rank reads is its own; pages of a mapped file are there once, for all ranks, and the " +
			"kernel may drop them",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup},
		code: map[Framework]string{
			PyTorch: lines("table = numpy.load('table.npy', mmap_mode='r')",
				"rows = pandas.read_parquet(path, filters=[('part', '=', rank)])   # or one part for each rank"),
			Python: "table = numpy.load('table.npy', mmap_mode='r')"},
	}, {
		ID:    WorkerCache,
		Title: "keep one cache for all workers, or give each one an end",
		Why: "what a dataset keeps in a worker is that worker's own; in time every worker has kept the " +
			"whole data set",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup},
		Frameworks:  torch,
		code: map[Framework]string{PyTorch: lines(
			"self.cache = numpy.memmap('cache.bin', 'float32', 'w+', shape=(n, 3, 64, 64))   # pages that "+
				"all workers share",
			"load = functools.lru_cache(maxsize=500)(load)   # or an end for each worker")},
	}, {
		ID:          StreamData,
		Title:       "stream the data instead of loading it whole",
		Why:         "only a budgeted window of samples is in memory at any moment",
		Equivalence: Exact,
		Walls: []event.Where{event.WhereHost, event.WhereCgroup, event.WhereGPU,
			event.WhereMPS},
		needs: func(job Job) string {
			if job.Facts != nil && job.onHost() && job.Facts[Loader] && !job.Facts[Reads] &&
				!job.Facts[Caching] && job.Pool != "datasets" {
				return "nothing shows what the loader reads"
			}
			return ""
		},
		how: howStream,
	}, {
		ID:    TreeData,
		Title: "keep less of the table on the card (boosted trees)",
		Why: "the card holds the table as bins and a histogram for each node; frames of " +
			"cuDF and a plain DMatrix come on top",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		how:         howTable,
	}}
}

// howTable keeps less of a table on the card: in the words of frames where no trees are grown.
func howTable(job Job, _ Setup) How {
	if job.Facts[FramesOnly] {
		return How{Code: lines("rmm.reinitialize(managed_memory=True)   # pages move to host memory; before anything "+
			"touches the card",
			"frame = dask_cudf.read_parquet(path)    # or work in partitions, and `del` frames that are done")}
	}
	switch {
	case job.Facts[LightGBM]:
		return How{Code: lines("params.update(max_bin=63, gpu_use_dp=False)   # fewer bins change the model a little",
			"# device_type='gpu' is OpenCL, where a driver may grant a quarter of the card in one piece;",
			"# device_type='cuda' has no such bound, device_type='cpu' none of the card's")}
	case job.Facts[CatBoost]:
		return How{Code: lines("CatBoostClassifier(task_type='GPU', gpu_ram_part=0.5, pinned_memory_size='1gb')   # the "+
			"share that it takes at its start", "# border_count=32 and a smaller max_ctr_complexity save more, and change the model")}
	}
	return How{Code: lines(
		"data = xgb.QuantileDMatrix(X, y)   # X as float32 in host memory; `del` frames of cuDF first",
		"# larger than the card: xgb.ExtMemQuantileDMatrix, or device='cpu'",
		"# cuDF: work in partitions (dask_cudf), or rmm.reinitialize(managed_memory=True)",
		"# smaller max_bin and subsample save more, and change the model")}
}

// howShm names the way that fits; where nothing shows what the job runs in, all of them.
func howShm(job Job, _ Setup) How {
	docker := "docker run --shm-size=8g ...   # or --ipc=host"
	kube := lines("volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}]   # in the pod "+
		"(Kubernetes)",
		"volumeMounts: [{name: shm, mountPath: /dev/shm}]")
	bare := "mount -o remount,size=16G /dev/shm   # outside of containers; `tmpfs /dev/shm tmpfs " +
		"size=16G 0 0` in /etc/fstab keeps it"
	var how How
	if job.ofTorch() {
		how.Code = "torch.multiprocessing.set_sharing_strategy('file_system')   # when it is file " +
			"descriptors that run out"
	}
	switch {
	case job.Kube:
		how.Args = kube
	case job.Bare:
		how.Args = bare
	case job.Container:
		how.Args = docker
	default:
		how.Args = lines(docker, bare)
	}
	return how
}

func howWorkers(job Job, after Setup) How {
	workers := "2"
	if job.Spawned {
		workers = "0"
	}
	if job.Setup != nil && after.Workers > 0 {
		workers = fmt.Sprint(after.Workers)
	}
	if job.Framework == TensorFlow {
		return How{Code: lines("dataset = dataset.map(function, num_parallel_calls=1).batch(batch).prefetch(1)",
			"model.fit(dataset, workers=1, max_queue_size=2, use_multiprocessing=False)   # Keras 2's Sequence")}
	}
	how := How{Code: "DataLoader(dataset, batch_size=batch, num_workers=" + workers + ")"}
	if job.Trainer == Transformers {
		how.Args = "--dataloader_num_workers " + workers
	}
	return how
}

// ofTorch reports whether PyTorch's own code has a place: it is shown, or a job was watched of
// which nothing shows another framework.
func (job Job) ofTorch() bool {
	if job.Facts != nil {
		return job.Facts[TorchSeen]
	}
	return job.Framework == PyTorch || job.Framework == ""
}

// readsFiles reports whether the data may come from a file, as far as that is known.
func (job Job) readsFiles() bool { return job.Facts == nil || job.Facts[Reads] }

// mappedArray reads from a file as it goes.
const mappedArray = "array = np.load('data.npy', mmap_mode='r')   # rows are read when they are used; arrays of " +
	"an .npz: save each as .npy first"

// narrower names types that are smaller than the one that was refused.
func narrower(of string) string {
	switch of {
	case "", "float64", "int64", "complex128", "object":
		return "a smaller type (float32, uint8), or "
	case "float32", "int32", "uint32":
		return "a smaller type where the values allow it (float16, uint8), or "
	}
	return ""
}

func howStream(job Job, _ Setup) How {
	if job.Where == event.WhereGPU || job.Where == event.WhereMPS {
		if job.Framework == TensorFlow {
			return How{Code: lines("with tf.device('/CPU:0'):        # the whole array stays in host memory, "+
				"batches go to the card",
				"    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(2)")}
		}
		if job.Framework == JAX && job.Where == event.WhereGPU && job.batched() {
			return How{Code: "x = jax.device_put(x)   # per batch, inside the loop, not the whole data " +
				"set before it"}
		}
		if !job.batched() || !job.ofTorch() {
			return How{Args: "put a part on the device, work on it, let go of it; or a smaller array: fewer rows " +
				"or points, a smaller type"}
		}
		return How{Code: "x = x.to('" + job.device() + "', non_blocking=True)   # per batch, inside the loop, " +
			"not the whole data set before it"}
	}
	if job.Facts[Caching] {
		return How{Args: "no cache of decoded samples in memory: leave it off, or on disk (--cache disk)"}
	}
	if job.Pool == "datasets" {
		return How{Code: "dataset = load_dataset(path, streaming=True)   # samples are read as they are used"}
	}
	if job.Facts != nil && !job.Facts[Arrays] {
		return How{Args: "read it in parts, work on one at a time, and let go of each"}
	}
	if !job.readsFiles() {
		parts := "make it in parts, work on one at a time, and let go of each"
		if job.Facts[OneArray] {
			parts += "; or " + narrower(job.Type) + "a sparse matrix where most of it is zero"
		}
		return How{Args: parts}
	}
	switch job.Framework {
	case TensorFlow:
		return How{Code: "dataset = tf.data.TFRecordDataset(files).batch(batch).prefetch(2)"}
	case PyTorch:
		if job.Facts[NPYSeen] && !job.Facts[CSVSeen] {
			return How{Code: mappedArray}
		}
		if job.Facts != nil && !job.Facts[CSVSeen] {
			return How{Args: "read it in parts, work on one at a time, and let go of each"}
		}
		return How{Code: lines("class Rows(torch.utils.data.IterableDataset):     # reads as it goes "+
			"instead of holding everything",
			"    def __iter__(self):",
			"        for chunk in pd.read_csv(path, chunksize=10_000):",
			"            yield from torch.from_numpy(chunk.to_numpy(dtype='float32'))")}
	}
	switch {
	case job.Facts[NPYSeen] && !job.Facts[CSVSeen]:
		return How{Code: mappedArray}
	case job.Facts[LinesSeen] && !job.Facts[NPYSeen] && !job.Facts[CSVSeen]:
		return How{Code: "for line in open(path): record = json.loads(line)   # one record at a time; write results as " +
			"they come"}
	case job.Facts[CSVSeen] && !job.Facts[NPYSeen]:
		return How{Code: "for part in pd.read_csv(path, chunksize=100_000): ...   # one part at a time"}
	}
	return How{Code: "array = np.load('data.npy', mmap_mode='r')   # or pd.read_csv(path, " +
		"chunksize=100_000)"}
}
