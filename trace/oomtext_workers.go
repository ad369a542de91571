package trace

import (
	"slices"
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
	{words: []string{"filling up shuffle buffer"}, endings: []*ending{kernelCrash}},
	{words: []string{"appears to have died", "kernel died, restarting", "the kernel crashed while",
		"kernelrestarter: restarting kernel", "canceled future for execute_request"},
		endings: []*ending{kernelDied}},
}

var (
	poolWorker = &ending{kind: "pool_worker", read: readPoolWorker, frames: true}
	kernelDied = &ending{kind: "kernel_died", read: readKernelDied}
	// the same in somebody's own words, next to a buffer that was not full yet
	kernelCrash = &ending{kind: "kernel_died", read: readKernelCrash}
)

var exitCodes = later(`(?i)exit codes? of the workers? (?:are|is) \{([^}]{1,200})\}`)

// readPoolWorker reads the end of a pool that lost a process. Where the exit code is known it
// settles the matter: SIGKILL is nearly always the kernel, everything else is not memory.
func readPoolWorker(p *passage) *Crash {
	t := p.text()
	if aboutCode.MatchString(p.line()) && !strings.Contains(p.line(), "Error: ") {
		return nil
	}
	if own := ownException(p); own != "" {
		return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "python",
			What: "a worker process of a pool ended with an exception of its own: " + own}
	}
	peak, limit := jobPeak(p)
	if peak != nil && limit != nil && 4**peak < *limit {
		return &Crash{Class: Other, Sure: 0.6, Where: event.WhereUnknown, Framework: "python",
			What: "a worker process of a pool died without saying why; the job's peak of " + peak.String() +
				" is far below the " + limit.String() + " that it may use"}
	}
	c := &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "python",
		What: "a worker process of a pool died without saying why; memory is the usual reason"}
	if peak != nil && limit != nil && 10**peak >= 9**limit { // the job had reached its limit
		c.Sure = 0.65
	}
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

// Words of a scheduler or a person for a job's peak use of host memory, and for its limit.
var (
	peakBytes = later(`(?i)\b(?:max(?:imum)?|peak)[ _](?:memory|rss)[ _](?:usage|used?)[ _]in[ _]bytes\s?[:=]\s?(\d+)`)
	peakUsed  = pattern(`(?:(?:max(?:imum)?|peak)[ _](?:host |cpu )?` +
		`(?:memory|ram|rss)[ _]?(?:usage|used?)?[^\n\d]{0,24}|` +
		`Memory Utilized: ){size}`)
	mayUse  = pattern(`(?:request(?:ed|ing|s)?|asked for|limit of) {size}(?: of)? (?:memory|ram)`)
	granted = pattern(`(?:--mem[= ]|Memory Efficiency: [\d.]+% of ){size}`)
)

// jobPeak returns both where the lines around the message have them.
func jobPeak(p *passage) (peak, limit *event.Bytes) {
	text := strings.Join(slices.Concat(p.above(60), p.following(20)), "\n")
	limit = firstSize(sizeIn(granted, text), sizeIn(mayUse, text))
	if m := peakBytes.FindStringSubmatch(text); m != nil {
		return parseSize(m[1], "B"), limit
	}
	return sizeIn(peakUsed, text), limit
}

// aboutPool are exceptions that report only that a worker is gone, or that memory was short.
var aboutPool = later(`(?i)memory|worker|alloc|\boom\b|no longer alive|abruptly|terminated|killed|pool|6 feet under`)

// ownException returns the exception of a worker from the lines above its pool's message, or "" if
// there is none. It shows why the worker ended, which the pool does not know.
func ownException(p *passage) string {
	for _, line := range slices.Concat(p.above(60), unpicklable(p.following(4))) {
		m := raisedByName.FindStringSubmatch(strings.TrimSpace(withoutPrefix(line)))
		if m != nil && !aboutPool.MatchString(line) && !lostOther.MatchString(line) {
			return cut(m[0], 120)
		}
	}
	return ""
}

// unpicklable returns the lines below that say what could not be handed to a worker.
func unpicklable(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.Contains(strings.ToLower(line), "pickle")
	})
}

// raisedByName is the line that ends a traceback: the exception's name at its beginning.
var raisedByName = later(`^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Failed)\b: \S.*$`)

// kernelGone is what people write of a kernel or a process that ended without a message.
var (
	kernelGone = later(`(?i)\b(?:kernel|session|colab|notebook|process|program|script|it)\b[^.\n]{0,40}` +
		`(?:\b(?:crash\w*|died|dies|dead|restart\w*|killed)\b|崩溃|挂掉|挂了|重启)|(?:内核|进程|程序)[^。\n]{0,12}(?:崩溃|挂|重启|被杀)`)
	bufferFilled = later(`(?i)shuffle buffer filled|\b\d+/\d+ \[=|loss: \d|Traceback`)
)

// readKernelCrash reads a shuffle buffer that was still being filled when a notebook's kernel died.
// If the log goes on after that, it was not an end.
func readKernelCrash(p *passage) *Crash {
	below := strings.Join(p.following(12)[1:], "\n")
	around := strings.Join(p.above(20), "\n") + "\n" + below
	if bufferFilled.MatchString(below) || strings.Contains(strings.ToLower(below), p.word) ||
		!kernelGone.MatchString(around) {
		return nil
	}
	return readKernelDied(p)
}

func readKernelDied(*passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "python",
		What: "the notebook's kernel died without saying why; memory is the usual reason"}
}
