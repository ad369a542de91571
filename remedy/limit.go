package remedy

import (
	"fmt"
	"strings"

	"memroom/event"
)

// limits: the wall itself, and those who share the room.
func limits() []*Remedy {
	return []*Remedy{{
		ID:    TrialResources,
		Title: "tell the scheduler how much memory a trial or task needs",
		Why: "the scheduler counts the resources that tasks declare; without a memory figure it " +
			"starts one task per CPU",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereGPU},
		needs: func(job Job) string {
			if job.Trainer != RayTune {
				return "no scheduler of trials is involved"
			}
			return ""
		},
		slowdown: constant(1.3), // fewer run at once
		how: func(job Job, _ Setup) How {
			task := "@ray.remote(memory=8 * 1024**3, num_cpus=2)     # bytes of host memory a task may count on"
			if !job.tunes() {
				return How{Code: task}
			}
			return How{Code: lines(task,
				"tune.with_resources(train_fn, {'cpu': 2, 'gpu': 1, 'memory': 8 * 1024**3})")}
		},
	}, {
		ID:          RaiseLimit,
		Title:       "raise the memory limit of the job",
		Why:         "the limit, not the machine, ended it",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereCgroup, event.WhereHost, event.WhereMPS, event.WhereGPU},
		needs: func(job Job) string {
			if job.Where == event.WhereGPU && !job.OwnCap {
				return "a card has no limit that could be raised"
			}
			return ""
		},
		how: howRaise,
	}, {
		ID:    ProcessLimits,
		Title: "look at the limits of the process, and raise the one that is reached",
		Why: "a process may have no more mappings or address space than its limits allow, whatever the " +
			"machine has",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup, event.WhereShm},
		how: func(Job, Setup) How {
			return How{Args: lines("cat /proc/PID/limits; wc -l /proc/PID/maps; sysctl vm.max_map_count vm.overcommit_memory",
				"sysctl -w vm.max_map_count=1048576   # as root; or fewer, larger files",
				"ulimit -v unlimited")}
		},
	}, {
		ID:          OtherPrograms,
		Title:       "end or bound the other program, or run on another machine",
		Why:         "no setting of this job frees memory that another program holds",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereHost, event.WhereCgroup},
		how: func(Job, Setup) How {
			return How{Args: "ps -eo pid,user,rss,args --sort=-rss | head   # who holds it"}
		},
	}, {
		ID:          FreeNeighbour,
		Title:       "use another card, or end the other processes on this one",
		Why:         "no setting of this job frees memory that others hold",
		Equivalence: Exact,
		Walls:       []event.Where{event.WhereGPU},
		how:         howMove,
	}}
}

// howMove names no number: only `nvidia-smi` on that machine shows which card is free, and the
// full one must not come back.
func howMove(job Job, _ Setup) How {
	variable, processes := job.visible()
	if variable == "" {
		return How{Args: "the device's own tool lists who holds it; another device may be free"}
	}
	tool, _, _ := strings.Cut(processes, " ")
	env := variable + "=N   # N: the number of a card that `" + tool + "` shows free"
	if job.Card != nil {
		env += fmt.Sprintf("; the one that the program calls GPU %d is full", *job.Card)
	}
	return How{Env: env, Args: processes + "   # who holds it"}
}

func howRaise(job Job, _ Setup) How {
	switch {
	case job.OwnCap:
		return How{Code: "torch." + job.device() + ".set_per_process_memory_fraction(1.0)   # or drop the call " +
			"that set the cap"}
	case job.HostLimit:
		return How{Args: job.Run.Again("--host-mem", larger(job.Limit, "GiB")) +
			"   # 1.5 times as much"}
	case job.Slurm:
		return How{Args: "#SBATCH --mem=" + larger(job.Limit, "G") + "        # `sacct -j JOBID " +
			"--format=JobID,ReqMem,MaxRSS` shows what it used"}
	case job.Kube && job.Where == event.WhereCgroup:
		size := larger(job.Limit, "Gi")
		return How{Args: "resources: {requests: {memory: " + size + "}, limits: {memory: " + size +
			"}}"}
	case job.Kube:
		return How{Args: "resources: {requests: {memory: WHAT_IT_USES}}   # so that the " +
			"node is chosen by it"}
	case job.Where == event.WhereMPS && job.Framework != PyTorch && job.Facts != nil:
		return How{}
	case job.Where == event.WhereMPS:
		return How{Env: "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0   # may make the whole machine swap"}
	case job.Dask:
		return How{Code: "LocalCluster(n_workers=2, memory_limit='" + larger(job.Limit, "GiB") +
			"')   # fewer workers with more each; or smaller partitions"}
	case job.Yarn:
		return How{Args: "spark.executor.memoryOverhead, or the memory of the container   # for virtual memory: " +
			"yarn.nodemanager.vmem-check-enabled=false"}
	case job.Where == event.WhereCgroup && (job.Docker || job.Facts == nil):
		size := larger(job.Limit, "g")
		return How{Args: "docker run --memory=" + size + " --memory-swap=" + size + " ..."}
	case job.Where == event.WhereCgroup:
		return How{Args: larger(job.Limit, "G") + " where the limit is set: the container's memory, " +
			"the scheduler's request, or MemoryMax of a service"}
	}
	if job.Facts[Pinned] {
		return How{Args: "free -h; ulimit -l   # what is free, and how much of it may be locked; smaller batches " +
			"lock less"}
	}
	if job.Facts[Windows] {
		return How{Args: "a machine with more memory, or a larger page file"}
	}
	if job.Facts[Rays] {
		return How{Args: "a node with more memory; RAY_memory_usage_threshold=0.98 before `ray start` only " +
			"where the rest of the machine can spare it"}
	}
	if job.Facts[Ended] { // a limit of the process would have raised an exception instead
		return How{Args: "free -h   # how much there is; swap bridges a short peak only"}
	}
	return How{Args: "a machine with more memory, or swap"}
}

// larger writes half as much again as a limit that was too small, in whole gigabytes or, for small
// ones, megabytes. Without the limit it names no number: it might be less than there is now.
func larger(limit event.Bytes, unit string) string {
	switch more := limit + limit/2; {
	case limit <= 0:
		return "MORE"
	case more < 2*event.GiB:
		mega := map[string]string{"G": "M", "Gi": "Mi", "GiB": "MiB", "g": "m"}[unit]
		return fmt.Sprintf("%d%s", (more+event.MiB-1)/event.MiB, mega)
	default:
		return fmt.Sprintf("%d%s", (more+event.GiB-1)/event.GiB, unit)
	}
}
