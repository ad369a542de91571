package trace

import (
	"strings"

	"memroom/event"
)

// Messages of those who run other people's programs: Slurm, Kubernetes, Docker, Ray, YARN, PBS,
// LSF, HTCondor.
var schedulerWords = []entry{
	{words: []string{"oom_kill event", "oom-kill event", "oom_kill events", "have been oom killed",
		"cgroup out-of-memory handler"}, endings: []*ending{slurmOOM}},
	{words: []string{"out_of_memory", "out_of_me", ": out of memory", "exceeded memory limit",
		"exceeded job memory limit", "exceeded step memory limit"}, endings: []*ending{slurmState}},
	{words: []string{"oomkilled", "oom killed", "oomkilling", "memory exceeded limit"},
		endings: []*ending{kubeOOM}},
	{words: []string{"low on resource: memory", "memorypressure"}, endings: []*ending{kubeEvicted}},
	{words: []string{"limits:", "memory limit:", "\"limits\"", "\"memory\":", "--memory=",
		"--memory ", "--mem=",
		"--mem "}, hint: hintLimits},
	{words: []string{"running low on memory", "killed due to memory pressure", "node_out_of_memory",
		"rayoutofmemoryerror", "system memory low at node"}, endings: []*ending{rayOOM}},
	{words: []string{"address the out of memory issue"}, endings: []*ending{rayAdvice}},
	{words: []string{"objectstorefullerror", "object store is full", "plasmastorefull",
		"object store because it is full", "plasma store at capacity"}, endings: []*ending{rayStore}},
	{words: []string{"not enough space to create this object"}, endings: []*ending{rayEvicts}},
	{words: []string{"***low memory***"}, endings: []*ending{rayLow}},
	{words: []string{"gpu memory was not freed"}, endings: []*ending{rayGPUWait}},
	{words: []string{"beyond physical memory limits", "beyond the 'physical' memory limit",
		"for exceeding memory limits", "killed by yarn", "beyond virtual memory limits"},
		endings: []*ending{yarn}},
	{words: []string{"exceeded limit", "term_memlimit", "over memory limit",
		"memory usage exceeded"}, endings: []*ending{batchLimit}},
}

var (
	slurmOOM    = &ending{kind: "slurm_oom", read: readSlurmOOM}
	slurmState  = &ending{kind: "slurm_state", read: readSlurmState}
	kubeOOM     = &ending{kind: "kube_oom", read: readKubeOOM}
	kubeEvicted = &ending{kind: "kube_evicted", read: readKubeEvicted}
	rayOOM      = &ending{kind: "ray_oom", read: readRay, frames: true}
	rayAdvice   = &ending{kind: "ray_oom", read: readRayAdvice}
	rayStore    = &ending{kind: "ray_store", read: readRayStore, frames: true}
	rayEvicts   = &ending{kind: "ray_evicts", read: readRayEvicts}
	rayLow      = &ending{kind: "ray_low", read: readRayLow}
	rayGPUWait  = &ending{kind: "ray_gpu_wait", read: readRayGPUWait}
	yarn        = &ending{kind: "yarn", read: readYarn}
	batchLimit  = &ending{kind: "batch_limit", read: readBatchLimit}
)

func readSlurmOOM(p *passage) *Crash {
	line := p.line()
	if strings.Contains(line, "Detected 0 ") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereCgroup, Framework: "slurm"}
}

var (
	slurmWords  = pattern(`slurm|srun|sacct|seff|jobid|\bjob\b|state|step|task \d+|tasks \d+|node`)
	slurmOver   = later(`\((\d+) > (\d+)\)`)
	seffUsed    = pattern(`Memory Utilized: {size}`)
	seffOf      = pattern(`Memory Efficiency: [\d.]+% of {size}`)
	taskOutMem  = later(`(?i)tasks? [\d,-]+: Out Of Memory|State\s*:?\s*OUT_OF_MEMORY|\bOUT_OF_ME(?:MORY|\+)?`)
	codeNotJob  = pattern(`CUDA_ERROR_OUT_OF_MEMORY|CUDA_OUT_OF_MEMORY|ERROR_OUT_OF_MEMORY|out_of_memory_|_out_of_memory\(|NODE_OUT_OF_MEMORY|out_of_memory: cuda|STATUS_OUT`)
	overLimit   = pattern(`exceeded (?:job |step )?memory limit`)
	slurmColumn = later(`\b\d+(?:\.\d+)?[KMG]n?c?\b`)
)

func readSlurmState(p *passage) *Crash {
	line := p.line()
	if codeNotJob.MatchString(line) || aboutCode.MatchString(line) {
		return nil
	}
	t := strings.Join(append(p.following(14), p.above(6)...), "\n")
	if !taskOutMem.MatchString(line) && !overLimit.MatchString(line) || !slurmWords.MatchString(t) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereCgroup, Framework: "slurm"}
	if m := slurmOver.FindStringSubmatch(line); m != nil { // in kilobytes
		c.Allocated, c.Capacity = parseSize(m[1], "KiB"), parseSize(m[2], "KiB")
	}
	c.Allocated = firstSize(c.Allocated, sizeIn(seffUsed, t), sacctColumn(p, "MaxRSS"))
	c.Capacity = firstSize(c.Capacity, sizeIn(seffOf, t), sacctColumn(p, "ReqMem"))
	return c
}

// sacctColumn reads the value under a heading of sacct's table, which aligns its columns to the
// right.
func sacctColumn(p *passage, heading string) *event.Bytes {
	row := p.line()
	for _, line := range p.above(20) {
		i := strings.Index(line, heading)
		if i < 0 || !strings.Contains(line, "State") || strings.Contains(line, "format") {
			continue
		}
		if strings.Contains(line, "|") { // sacct -p
			return cell(strings.Split(line, "|"), strings.Split(row, "|"), heading)
		}
		for _, at := range slurmColumn.FindAllStringIndex(row, -1) {
			if at[0] < i+len(heading)+2 && at[1] > i-2 {
				value, err := event.ParseBytes(strings.TrimRight(row[at[0]:at[1]], "nc"))
				if err == nil {
					return &value
				}
			}
		}
		return nil
	}
	return nil
}

func cell(headings, row []string, heading string) *event.Bytes {
	for i, h := range headings {
		if strings.TrimSpace(h) == heading && i < len(row) {
			value := strings.TrimRight(strings.TrimSpace(row[i]), "nc")
			if b, err := event.ParseBytes(value); err == nil && value != "" {
				return &b
			}
		}
	}
	return nil
}

var kubeSigns = pattern(`kube|pod\b|pods\b|container|restart|last state|reason:|terminated|"reason"|exit code|statefulset|deployment|namespace|READY|\d/\d`)

var (
	oomKilledFalse = pattern(`oomkilled["']?\s?[:= ]\s?["']?(?:false|0|none|no)\b`)
	oomKilledTrue  = pattern(`oomkilled["']?\s?[:= ]\s?["']?true`)
	ended137       = pattern(`\b(?:137|143)\b`)
)

func readKubeOOM(p *passage) *Crash {
	line := p.line()
	lower := strings.ToLower(line)
	around := strings.Join(append(p.above(14), p.following(14)...), "\n")
	switch {
	case aboutCode.MatchString(line), strings.Contains(lower, "step tasks have been oom killed"):
		return nil
	case oomKilledFalse.MatchString(line):
		if !ended137.MatchString(around) {
			return nil // it may still run
		}
		return &Crash{Class: Other, Sure: 0.95, Where: event.WhereUnknown, Framework: "other",
			What: "somebody stopped the container: Docker reports that it was not killed for memory"}
	// a question about it; the answer stands on the next line
	case strings.Contains(lower, "state.oomkilled"):
		if next := p.following(1); len(next) < 2 || !strings.EqualFold(strings.TrimSpace(next[1]),
			"true") {
			return nil
		}
		return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereCgroup, Framework: "other"}
	case oomKilledTrue.MatchString(line), strings.Contains(lower, "oomkilled=true"),
		strings.Contains(lower, "oomkilled true"):
		return &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereCgroup, Framework: "other"}
	}
	c := &Crash{Class: Exhausted, Sure: 0.97, Where: event.WhereCgroup, Framework: "kubernetes"}
	if !kubeSigns.MatchString(around) {
		c.Sure, c.Framework = 0.7, ""
	}
	if m := anonRSS.FindStringSubmatch(line); m != nil {
		c.Allocated = parseSize(m[1], m[2])
	}
	if strings.HasPrefix(strings.TrimSpace(lower), "reason:") {
		c.Process = containerAbove(p)
	}
	return c
}

// containerName heads the part of `kubectl describe` about one container; its own headings begin
// with a capital.
var containerName = later(`^\s*([a-z0-9][a-z0-9.-]{0,60}):\s*$`)

// plainHeading are words that people put above what they paste.
var plainHeading = later(`^(?:errors?|outputs?|logs?|status|state|message|details?|events?|results?|describe|notes?|pod|` +
	`example|info|reason|description|kubectl)$`)

// containerAbove names the container that a reason belongs to, empty where it is not said.
func containerAbove(p *passage) string {
	for _, line := range p.above(14) {
		if m := containerName.FindStringSubmatch(line); m != nil && !plainHeading.MatchString(m[1]) {
			return "the container " + m[1]
		}
	}
	return ""
}

var kubeUsing = pattern(`was using {size}`)

func readKubeEvicted(p *passage) *Crash {
	t := p.text()
	if p.word == "memorypressure" && !strings.Contains(t, "evict") &&
		!strings.Contains(t, "Evict") {
		return nil
	}
	if p.word == "memorypressure" && strings.Contains(p.line(), "False") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereHost, Framework: "kubernetes",
		Allocated: sizeIn(kubeUsing, t),
		What:      "the node ran short and the pod was evicted"}
}

var (
	rayNode    = pattern(`(?:was|used memory) \(?{size}\)?(?: used)? / (?:total capacity )?\(?{size}\)?(?: limit)? \(0?\.\d+`)
	rayOldNode = pattern(`is used \(([\d.]+) ?/ ?([\d.]+) ?GB\)`)
	rayRate    = pattern(`([\d.]+)GB ?/ ?([\d.]+)GB`)
	rayNone    = later(`\b0 Workers \(tasks / actors\) killed due to memory pressure`)
)

// rayKilled are the words that Ray's advice follows, where all of the message is there.
var rayKilled = later(`(?i)low on memory|memory pressure|RayOutOfMemory|memory low at node`)

// readRayAdvice reads the end of Ray's message, as people quote it alone.
func readRayAdvice(p *passage) *Crash {
	near := strings.Join(append(p.above(40), p.line()), "\n")
	if rayKilled.MatchString(near) || !strings.Contains(near, "ray") {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.85, Where: event.WhereHost, Framework: "ray"}
}

func readRay(p *passage) *Crash {
	t := p.text()
	if rayNone.MatchString(t) {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.96, Where: event.WhereHost, Framework: "ray"}
	if m := rayNode.FindStringSubmatch(t); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
	} else if m := rayOldNode.FindStringSubmatch(t); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], "GiB"), parseSize(m[2], "GiB")
	} else if m := rayRate.FindStringSubmatch(t); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], "GiB"), parseSize(m[2], "GiB")
	}
	c.Neighbours = rayUsers(p)
	return c
}

var rayUser = later(`^(\d+)\s+([\d.]+)(?:Gi?B)?\s+(\S.*)$`)

// rayUsers reads the table of the largest processes that Ray appends.
func rayUsers(p *passage) []Holder {
	var users []Holder
	for _, line := range p.following(20) {
		if m := rayUser.FindStringSubmatch(line); m != nil {
			if b := parseSize(m[2], "GiB"); b != nil {
				users = append(users, Holder{Name: cut(m[3], 80), Bytes: *b})
			}
		}
	}
	return users
}

var objectSize = pattern(`object size is {size}`)

// readRayEvicts reads old Ray's line about making room, which goes on by itself.
func readRayEvicts(*passage) *Crash {
	return &Crash{Class: Survived, Sure: 0.85, Where: event.WhereShm, Framework: "ray",
		What: "Ray's object store threw out objects to make room"}
}

// readRayGPUWait reads the end of wait_for_gpu: somebody still holds the card.
var (
	rayUsage = pattern(`usage on this node: ([\d.]+) ?/ ?{size}`)
	rayDied  = later(`(?i)actor died|RayActorError|ActorDied|WorkerCrashed|worker died|SIGKILL|LocalRayletDied`)
)

// readRayLow reads Ray's warning that a node is nearly full. Where a worker dies right after it,
// memory is the likely reason.
func readRayLow(p *passage) *Crash {
	c := &Crash{Class: Survived, Sure: 0.8, Where: event.WhereHost, Framework: "ray",
		What: "Ray warned that the node was nearly full"}
	if m := rayUsage.FindStringSubmatch(p.line()); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], m[3]), parseSize(m[2], m[3])
	}
	if rayDied.MatchString(strings.Join(p.following(60), "\n")) {
		c.Class, c.Sure, c.What = Exhausted, 0.65, ""
	}
	return c
}

func readRayGPUWait(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereGPU, Framework: "ray",
		What: "the card that a trial waited for did not become free"}
}

func readRayStore(p *passage) *Crash {
	sure := proseSure(p, 0.9)
	if p.word == "plasma store at capacity" {
		if !strings.Contains(strings.Join(p.following(120), "\n"), "Check failed") {
			return nil // it spills and goes on
		}
		sure = 0.85
	}
	return &Crash{Class: Exhausted, Sure: sure, Where: event.WhereShm,
		Framework: "ray", Requested: sizeIn(objectSize, p.text()),
		What: "Ray's object store, which lives in shared memory, is full"}
}

var yarnUsed = pattern(`{size} of {size} (?:physical|virtual) memory used`)

func readYarn(p *passage) *Crash {
	c := &Crash{Class: Exhausted, Sure: 0.95, Where: event.WhereCgroup, Framework: "other"}
	if m := yarnUsed.FindStringSubmatch(p.text()); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
	}
	return c
}

var (
	pbsOver    = later(`(?i)\b(?:v?mem|pmem|pvmem) (\d+)(kb)? exceeded limit (\d+)(kb)?`)
	condorOver = pattern(`memory limit of (\d+) megabytes`)
	lsfOver    = pattern(`TERM_MEMLIMIT`)
	lsfUsed    = pattern(`Max Memory :\s+{size}`)
	lsfLimit   = pattern(`Total Requested Memory :\s+{size}`)
)

func readBatchLimit(p *passage) *Crash {
	t := p.text()
	c := &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereCgroup, Framework: "other"}
	if m := pbsOver.FindStringSubmatch(t); m != nil {
		c.Allocated, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
		return c
	}
	if m := condorOver.FindStringSubmatch(t); m != nil {
		c.Capacity = parseSize(m[1], "MiB")
		return c
	}
	if lsfOver.MatchString(t) {
		c.Allocated, c.Capacity = sizeIn(lsfUsed, t), sizeIn(lsfLimit, t)
	}
	if lsfOver.MatchString(t) || p.word == "memory usage exceeded" {
		return c
	}
	return nil
}
