package trace

import (
	"strings"

	"memroom/event"
)

// Messages of those who share work out to processes of their own and miss one of them: joblib,
// concurrent.futures, datasets, batchgenerators (nnU-Net), notebooks.
var workerWords = []entry{
	{words: []string{"terminatedworkererror", "brokenprocesspool", "executor was terminated abruptly",
		"process pool was terminated abruptly", "abruptly died during map",
		"background workers are no longer alive", "background worker is 6 feet under",
		"processes is missing. this could", "loky.process_executor"},
		endings: []*ending{poolWorker}},
	{words: []string{"appears to have died", "kernel died, restarting", "the kernel crashed while",
		"kernelrestarter: restarting kernel", "canceled future for execute_request"},
		endings: []*ending{kernelDied}},
}

var (
	poolWorker = &ending{kind: "pool_worker", read: readPoolWorker, frames: true}
	kernelDied = &ending{kind: "kernel_died", read: readKernelDied}
)

var exitCodes = later(`(?i)exit codes? of the workers? (?:are|is) \{([^}]{1,200})\}`)

// readPoolWorker reads the end of a pool that lost a process. Where the exit code is known it
// settles the matter: SIGKILL is nearly always the kernel, everything else is not memory.
func readPoolWorker(p *passage) *Crash {
	t := p.text()
	if aboutCode.MatchString(p.line()) && !strings.Contains(p.line(), "Error: ") {
		return nil
	}
	c := &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "python",
		What: "a worker process of a pool died without saying why; memory is the usual reason"}
	m := exitCodes.FindStringSubmatch(t)
	switch {
	case m != nil && (strings.Contains(m[1], "SIGKILL") || strings.Contains(m[1], "-9")):
		c.Sure = 0.8
	case m != nil:
		return &Crash{Class: Other, Sure: 0.85, Where: event.WhereUnknown, Framework: "python",
			What: "a worker process of a pool ended with " + m[1] + ", which is no shortage of memory"}
	case strings.Contains(t, "running out of RAM"):
		c.Sure = 0.6
	}
	return c
}

func readKernelDied(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "python",
		What: "the notebook's kernel died without saying why; memory is the usual reason"}
}
