package event

import "time"

// Run is the record of one use of `memroom run`, as it is kept: secrets masked, environment reduced to the allow-list.
type Run struct {
	ID       string            `json:"id"`
	Name     string            `json:"name,omitempty"`
	Tags     []string          `json:"tags,omitempty"`
	Command  []string          `json:"command"`
	Dir      string            `json:"dir"`
	Host     string            `json:"host"`
	User     string            `json:"user,omitempty"`
	Group    string            `json:"group,omitempty"`
	NodeRank int               `json:"node_rank,omitempty"`
	Env      map[string]string `json:"env,omitempty"`
	Started  time.Time         `json:"started"`
	Version  string            `json:"version,omitempty"` // of memroom
	HostMem  Bytes             `json:"host_mem,omitempty"`
	GPUMem   Bytes             `json:"gpu_mem,omitempty"`
}

// Attempt is one launch of a run's command.
type Attempt struct {
	Number  int       `json:"number"` // from 1
	Command []string  `json:"command,omitempty"`
	Changed []string  `json:"changed,omitempty"` // what is different from the attempt before, in words
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended,omitzero"`
	Exit    *Exit     `json:"exit,omitempty"`
	Verdict *Verdict  `json:"verdict,omitempty"`
}

// Exit is how the command's own process ended. It is written as exit.json by the one process that could reap it.
type Exit struct {
	Attempt     int       `json:"attempt"`
	Code        int       `json:"exit_code"` // as a shell gives it: the process's own, or 128+n
	Signal      string    `json:"signal,omitempty"`
	At          time.Time `json:"at"`
	Seconds     float64   `json:"seconds"`
	MaxResident Bytes     `json:"max_rss,omitempty"` // of the largest single process, as the kernel counted it
	CPUSeconds  float64   `json:"cpu_seconds,omitempty"`
	StartError  string    `json:"start_error,omitempty"` // the command was never executed: why
}

// Peaks are the highest readings of a run, each with the limit that applied; 0 where not measured.
type Peaks struct {
	Resident      Bytes        `json:"rss"`
	Unreclaimable Bytes        `json:"unreclaimable"` // anonymous + shared
	Cgroup        Bytes        `json:"cgroup,omitempty"`
	HostLimit     Bytes        `json:"host_limit,omitempty"`
	Swap          Bytes        `json:"swap,omitempty"`
	Shm           Bytes        `json:"shm,omitempty"`
	ShmTotal      Bytes        `json:"shm_total,omitempty"`
	Processes     int          `json:"procs,omitempty"`
	Devices       []DevicePeak `json:"gpus,omitempty"`
}

// DevicePeak is the highest reading of one accelerator. Allocated and Reserved come from the framework's allocator.
type DevicePeak struct {
	UUID      string `json:"uuid"`
	Name      string `json:"name,omitempty"`
	Total     Bytes  `json:"total"`
	Used      Bytes  `json:"used"`
	Allocated Bytes  `json:"allocated,omitempty"`
	Reserved  Bytes  `json:"reserved,omitempty"`
}
