package supervise

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"time"

	"memroom/event"
)

// Channel names the other end of one of the command's standard streams.
type Channel string

// The channels. A terminal stream is the command's side of a pseudo-terminal of ours.
const (
	Inherit  Channel = "inherit" // the front end's own stdin, untouched
	Terminal Channel = "terminal"
	Pipe     Channel = "pipe"
	Null     Channel = "null"
)

// Streams describes the command's three streams. Merged means that stderr goes where stdout
// goes, in one pipe, so that the order of writes is kept as in `command > log 2>&1`.
type Streams struct {
	In     Channel `json:"in"`
	Out    Channel `json:"out"`
	Err    Channel `json:"err"`
	Merged bool    `json:"merged,omitempty"`
}

// usesTerminal reports whether any stream needs a pseudo-terminal.
func (s Streams) usesTerminal() bool {
	return s.In == Terminal || s.Out == Terminal || s.Err == Terminal
}

// Launch is the order to start a command. It travels over the keeper's socket only: argument
// lists and environments hold secrets, and a command line that names the training script would make
// `pkill -f train.py` hit the keeper.
type Launch struct {
	Attempt int      `json:"attempt"`
	Path    string   `json:"path"` // of the executable
	Args    []string `json:"args"` // with the name of the program first
	Env     []string `json:"env"`
	Dir     string   `json:"dir"`
	Command []string `json:"command,omitempty"` // as the user wrote it, where Args are already others

	// Recorded: the command is started only once the run's state is on the disk, with room for how
	// it ends. A plain run is more important than its record.
	Recorded bool `json:"recorded,omitempty"`

	Streams Streams `json:"streams"`
	Size    Size    `json:"size"`
	// the user's terminal settings, as the kernel lays them out
	Modes []byte `json:"modes,omitempty"`

	HostLimit event.Bytes `json:"host_limit,omitempty"`
	// Monitor is the command line of the monitor; empty: none is started. Everybody can read it.
	Monitor []string `json:"monitor,omitempty"`
	// Settings are handed to the monitor over its link.
	Settings []byte `json:"settings,omitempty"`
	// Scratch is a folder of [MakeScratch] that the keeper removes at the end; empty: none.
	Scratch []byte `json:"scratch,omitempty"`
	// Policy is set where the monitor decides what follows: the keeper waits as long as it lives.
	Policy bool `json:"policy,omitempty"`
	// Bound: the run ends when its front end goes. A cluster that ended our process has given the
	// memory to somebody else.
	Bound bool   `json:"bound,omitempty"`
	Note  string `json:"note,omitempty"` // for the front end, before the command starts
}

// wireLaunch is a launch on the socket. JSON has no room for bytes that are no UTF-8, and file
// names, arguments and environments may be any: they travel as bytes.
type wireLaunch struct {
	plainLaunch
	Path    []byte   `json:"path"`
	Args    [][]byte `json:"args"`
	Env     [][]byte `json:"env"`
	Dir     []byte   `json:"dir"`
	Command [][]byte `json:"command,omitempty"`
	Monitor [][]byte `json:"monitor,omitempty"`
}

type plainLaunch Launch // without its methods

// MarshalJSON keeps every byte of the command.
func (l Launch) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireLaunch{plainLaunch: plainLaunch(l), Path: []byte(l.Path),
		Args: toBytes(l.Args), Env: toBytes(l.Env), Dir: []byte(l.Dir),
		Command: toBytes(l.Command), Monitor: toBytes(l.Monitor)})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (l *Launch) UnmarshalJSON(data []byte) error {
	var wire wireLaunch
	if err := json.Unmarshal(data, &wire); err != nil {
		return err
	}
	*l = Launch(wire.plainLaunch)
	l.Path, l.Args, l.Env, l.Dir = string(wire.Path), toTexts(wire.Args), toTexts(wire.Env),
		string(wire.Dir)
	l.Command, l.Monitor = toTexts(wire.Command), toTexts(wire.Monitor)
	return nil
}

// toBytes and toTexts keep nil apart from empty: nil means "as before" in a relaunch.
func toBytes(texts []string) [][]byte {
	if texts == nil {
		return nil
	}
	out := make([][]byte, len(texts))
	for i, t := range texts {
		out[i] = []byte(t)
	}
	return out
}

func toTexts(list [][]byte) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}

// Size of a terminal, in characters.
type Size struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"cols"`
}

// Files are the paths a run is written to, handed in by the owner of the store.
type Files struct {
	Dir    string // the run's folder: holds the keeper's socket too
	Output string // the command's stdout, or everything when it has a terminal
	Errors string // its stderr where that is a stream of its own
	Exit   string
	State  string
}

// State is what the keeper knows. It greets every client with it and keeps it in a file for those
// who come too late.
type State struct {
	Keeper int `json:"keeper"` // process
	// clock ticks after boot, to know the process from a later one of the same number
	KeeperStart uint64 `json:"keeper_start"`
	Child       int    `json:"child"` // the command's process, 0 before it started
	ChildStart  uint64 `json:"child_start,omitempty"`
	Scratch     []byte `json:"scratch,omitempty"` // folder for sockets, removed at the end
	Attempt     int    `json:"attempt"`           // from 1
	// the run's beginning on the clock that never jumps
	BeganBootMS int64       `json:"began_boot_ms"`
	AttemptMS   int64       `json:"attempt_ms"` // the attempt's beginning, since the run's
	Began       time.Time   `json:"began"`
	Streams     Streams     `json:"streams"`
	Limit       LimitKind   `json:"limit,omitempty"`
	HostLimit   event.Bytes `json:"host_limit,omitempty"`
	Cgroup      string      `json:"cgroup,omitempty"` // of its own, empty without one
	CgroupV     int         `json:"cgroup_version,omitempty"`
	Base        Counters    `json:"base"` // kill counters when the attempt began
	Notes       []string    `json:"notes,omitempty"`
	Exit        *event.Exit `json:"exit,omitempty"` // of the current attempt
	Finished    bool        `json:"finished,omitempty"`
	Monitor     int         `json:"monitor,omitempty"`
	// bytes that reached neither file nor front end
	OutputLost   int64  `json:"output_lost,omitempty"`
	UserSignal   string `json:"user_signal,omitempty"` // last one the front end forwarded
	UserSignalMS int64  `json:"user_signal_ms,omitempty"`
}

// toldToEnd reports whether somebody has asked the attempt to end, through memroom.
func (s State) toldToEnd() bool {
	return s.UserSignalMS >= s.AttemptMS && slices.Contains([]string{"SIGHUP", "SIGINT", "SIGQUIT",
		"SIGTERM", "SIGKILL"}, s.UserSignal)
}

// Counters are the kernel's kill counters that bear on a run.
type Counters struct {
	Machine   int64 `json:"machine"`   // /proc/vmstat oom_kill
	Enclosing int64 `json:"enclosing"` // oom_kill of the cgroup around the run
	Own       int64 `json:"own"`       // oom_kill of the run's own cgroup
	// of the one above a scope, which systemd removes with its last process
	Above int64 `json:"above,omitempty"`
}

// LimitKind is the way in which --host-mem is enforced.
type LimitKind string

// The ways to hold a limit, best first.
const (
	LimitNone    LimitKind = ""
	LimitCgroup2 LimitKind = "cgroup2" // a delegated subtree
	LimitScope   LimitKind = "scope"   // a systemd user scope
	LimitCgroup1 LimitKind = "cgroup1"
	LimitSoft    LimitKind = "soft" // the monitor sums the tree and ends it
)

// ReadState reads what a run's keeper wrote down last.
func ReadState(path string) (state State, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return state, err
	}
	var exit event.Exit
	end, err := os.ReadFile(path + endSuffix)
	if err == nil && json.Unmarshal(bytes.TrimRight(end, "\x00"), &exit) == nil &&
		exit.Attempt == state.Attempt {
		state.Exit = &exit
	}
	return state, nil
}

// endSuffix follows the name of a state's file in that of the file with room for the exit.
const endSuffix = ".end"

// NotRecorded is in the exit of a command that was not started, because its state could not be put
// on the disk.
const NotRecorded = "its record cannot be written"
