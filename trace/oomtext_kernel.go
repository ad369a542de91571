package trace

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// Lines of the Linux kernel and of shells and launchers that saw a process killed.
var kernelWords = []entry{
	{words: []string{"killed process"}, endings: []*ending{kernelKill}},
	{words: []string{"out of memory: kill", "cgroup out of memory", "oom-kill:",
		"invoked oom-killer", "oom-kill,", "oom_reaper: reaped"},
		endings: []*ending{kernelInvoked}},
	{words: []string{"memory: usage"}, hint: hintCgroupUsage},
	{words: []string{"systemd-oomd", "earlyoom", "by oom killer", "oom killer", "oom-killer"},
		endings: []*ending{userKiller}},
	{words: []string{"result 'oom-kill'", "result=oom-kill"}, endings: []*ending{systemdUnit}},
	{words: translatedKilled, endings: []*ending{bareKill}},
	{words: []string{"killed", "zsh: killed", "sigkill", "signal 9", "signal: 9", "signal: killed"},
		endings: []*ending{bareKill}},
	{words: []string{"code 137", "code (137)", "code: 137",
		"code:    137", "status 137", "exited (137)",
		"code=137", "exitcode: 137", "exitcode=137", "code\": 137", "exit code -9", "exitcode: -9",
		"exitcode  : -9", "exited with -9",
		"code: -9", "status -9", "code -9", "exit -9", "return code -9", "returncode=-9",
		"exitcode -9", "exitcode=-9", "code = -9", "returncode: -9", "exit status -9",
		"code=-9", "with -9", "code (-9", "signal -9", "code is -9"}, endings: []*ending{exit137}},
	{words: []string{"killing subprocess"}, endings: []*ending{launcherKill}},
}

var (
	kernelKill    = &ending{kind: "kernel_kill", read: readKernelKill}
	kernelInvoked = &ending{kind: "kernel_invoked", read: readKernelInvoked}
	userKiller    = &ending{kind: "user_killer", read: readUserKiller}
	systemdUnit   = &ending{kind: "systemd_unit", read: readSystemdUnit}
	bareKill      = &ending{kind: "bare_kill", read: readBareKill}
	exit137       = &ending{kind: "exit_137", read: readExit137}
	launcherKill  = &ending{kind: "launcher_kill", read: readLauncherKill}
)

var (
	victim     = later(`(?i)kill(?:ed)? process(?: (\d+))?,?(?: UID \d+,?)? ?\(([^)]+)\)`)
	anonRSS    = later(`(?i)anon-rss:\s?~?([\d,]+\.?\d*)\s?([kMG]i?B)`)
	limitInOne = pattern(`limit {size}`)
)

func readKernelKill(p *passage) *Crash {
	t := strings.Join(p.following(4), " ")
	m := victim.FindStringSubmatch(t)
	rss := anonRSS.FindStringSubmatch(untilAgain(t, "killed process", 0))
	cgroup := strings.Contains(t, "Memory cgroup") || strings.Contains(t, "CONSTRAINT_MEMCG")
	if m == nil && rss == nil && !strings.Contains(strings.ToLower(t), "out of memory") {
		return nil
	}
	if rss == nil && !strings.Contains(strings.ToLower(t), "out of memory") &&
		!strings.Contains(t, "total-vm") {
		return nil // somebody's script reports a process that it killed
	}
	c := &Crash{Class: Exhausted, Sure: 0.98, Where: event.WhereHost, Framework: "other"}
	for _, line := range p.above(60) {
		if strings.Contains(line, "CONSTRAINT_MEMCG") || strings.Contains(line, "Memory cgroup") ||
			strings.Contains(line, "killed as a result of limit of") {
			cgroup = true
		}
		if strings.Contains(line, "CONSTRAINT_NONE") || strings.Contains(line, "global_oom") {
			break
		}
	}
	if cgroup {
		c.Where = event.WhereCgroup
		c.Capacity = sizeIn(limitInOne, t)
	}
	if m != nil {
		c.Process = m[2]
		if pythonProcess.MatchString(m[2]) {
			c.Framework = "python"
		}
	}
	if rss != nil {
		c.Allocated = parseSize(rss[1], rss[2])
	}
	c.Alike = alike(p.above(200), c.Process)
	return c
}

// taskRow is a process in the kernel's table: its resident pages and its name.
var taskRow = later(`\[ *\d+\] +\d+ +\d+ +\d+ +(\d+) .* (\S+)$`)

// alike counts the processes of the victim's name that hold about as much as the largest of them.
func alike(lines []string, name string) int {
	var pages []int
	largest := 0
	for _, line := range lines {
		if m := taskRow.FindStringSubmatch(strings.TrimSpace(line)); m != nil && m[2] == name {
			n, _ := strconv.Atoi(m[1])
			pages, largest = append(pages, n), max(largest, n)
		}
	}
	count := 0
	for _, n := range pages {
		if 2*n > largest {
			count++
		}
	}
	return count
}

var pythonProcess = later(`^(?:python|pt_main_thread|pt_data_worker|ipython|jupyter|ray::)`)

// kernelForm is what the kernel's lines have and sentences about them do not: a time, a process,
// the fields of its report.
var kernelForm = later(`(?i)kernel:|\[ *\d+\.\d+\]|kill(?:ed)? process \d|reaped process \d|constraint=|` +
	`gfp_mask=|nodemask=|oom_score_adj=|task_memcg=|(?:\w{3} +\d+ )?\d\d:\d\d:\d\d `)

func readKernelInvoked(p *passage) *Crash {
	t := p.line()
	if strings.Contains(strings.ToLower(t), "killed process") {
		return nil // the fuller line, read by its own word
	}
	if strings.Contains(t, "grep") && !strings.Contains(t, "invoked") &&
		!strings.Contains(t, "task=grep") {
		return nil
	}
	if !kernelForm.MatchString(t) && !strings.HasPrefix(strings.ToLower(withoutPrefix(t)), p.word) &&
		!strings.HasPrefix(strings.ToLower(withoutPrefix(t)), "memory "+p.word) {
		return nil // a sentence about such a line
	}
	c := &Crash{Class: Exhausted, Sure: 0.9, Where: event.WhereHost, Framework: "other"}
	if strings.Contains(t, "CONSTRAINT_MEMCG") || strings.Contains(t, "cgroup") ||
		strings.Contains(t, "oom_memcg") {
		c.Where = event.WhereCgroup
	}
	return c
}

var (
	earlySize = pattern(`VmRSS {size}`)
	oomdUsed  = pattern(`memory used \({size}\) / total \({size}\)`)
	oomdHeld  = pattern(`Current Memory Usage: {size}`)
	oomKilled = later(`(?i)\b(killed|terminated|kill)\b`)
)

// onlyIf are sentences about a killer that may come, not about one that came.
var onlyIf = later(`(?i)\b(?:when|if|whether|in case|before|unless)\b[^.\n]{0,80}\boom[ -]?killer`)

func readUserKiller(p *passage) *Crash {
	line := p.line()
	switch p.word {
	case "systemd-oomd", "earlyoom":
		if !oomKilled.MatchString(line) && !strings.Contains(line, "sending SIG") {
			return nil
		}
		c := &Crash{Class: Exhausted, Sure: 0.93, Where: event.WhereHost, Framework: "other",
			Allocated: sizeIn(earlySize, line)}
		for _, above := range p.above(12) {
			c.Allocated = firstSize(c.Allocated, sizeIn(oomdHeld, above))
		}
		if m := oomdUsed.FindStringSubmatch(line); m != nil {
			c.Allocated, c.Capacity = parseSize(m[1], m[2]), parseSize(m[3], m[4])
		}
		return c
	}
	if strings.Contains(line, "potential root causes") || strings.Contains(p.text(),
		"potential root causes") {
		return &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "ray",
			What: "a worker died; Ray names the kernel's OOM killer as one possible reason"}
	}
	if !oomKilled.MatchString(line) || shareOnly.MatchString(line) || onlyIf.MatchString(line) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.7, Where: event.WhereHost, Framework: "other"}
}

func readSystemdUnit(p *passage) *Crash {
	return &Crash{Class: Exhausted, Sure: 0.92, Where: event.WhereCgroup, Framework: "other",
		What: "systemd reports that the kernel's OOM killer ended the unit"}
}

// shellKilled are the ways in which shells say that a child took SIGKILL; the word alone on a line
// is bash's.
var (
	shellKilled = later(`^\s*(?:\[\d+\][+-]?\s+)?(?:\d+\s+)?Killed\s*(?:: 9)?\s*$|\bline \d+:\s+\d+ Killed\b|^(?:-?(?:ba|z|k|fi)?sh): (?:line \d+: )?(?:\d+ )?[Kk]illed\b|` +
		`^\s*\[\d+\][+-]?\s+(?:\d+ )?[Kk]illed\b|\b[Kk]illed: 9\b|\d+ Killed\s{2,}\S|Killed\s+python|\.sh: \d+: .*Killed\s*$|^\s*\d+ [Kk]illed\s|` + "`Killed`" + `|[.:$)\]]\s*Killed\s*$|[\ds%|]Killed\s*$`)
	signalNine = later(`(?i)Signal 9 \(SIGKILL\)|Signals\.SIGKILL|signal: killed|signal:? 9\b|SIGKILL received|got signal: ?(?:9|SIGKILL)|terminated by signal SIGKILL|` +
		`(?:exited|terminated|killed|died|ended|exit).{0,60}SIGKILL|with signal 9|by signal 9|SIGKILL \(9\)|was SIGKILL|-SIGKILL`)
	onPurpose = pattern(`kill -9|pkill|killall|os\.kill|sending SIGKILL|send SIGKILL|killed by user|scancel|escalat\w+ to SIGKILL|KillMode|forcing|force[- ]kill|SIGKILL escalation|` +
		`closing signal|shutting down workers|via SIGKILL|timeout|timed out|CANCELLED|watchdog|preempt`)
	tensorShutdown = pattern(`is killed by signal`)
)

// translatedKilled is bash's "Killed" in the languages that Linux systems are often set to. Letters
// outside ASCII are compared as they are, so a word leaves out a first letter that may be a
// capital.
var translatedKilled = []string{"getötet", "abgeschossen", "processus arrêté", "terminado (killed)",
	"已杀死", "已殺死", "強制終了", "бито", "ucciso", "zabity", "matado ", "gedood"}

var killedAlone = later(`(?i)^\s*(?:\S+: \S+ \d+: )?(?:\[\d+\][+-]?\s+)?(?:\d+\s+)?(?:getötet|abgeschossen|` +
	`processus arrêté|terminado \(killed\)|已杀死|已殺死|強制終了|убито|ucciso|zabity|matado|gedood)(?:\s|$)`)

func readBareKill(p *passage) *Crash {
	line := withoutPrefix(p.line())
	raw := p.line()
	if slices.Contains(translatedKilled, p.word) {
		if !killedAlone.MatchString(line) && !killedAlone.MatchString(raw) {
			return nil
		}
		return &Crash{Class: Exhausted, Sure: 0.6, Where: event.WhereHost,
			Framework: launcherOf(strings.Join(append(p.above(12), raw), "\n")),
			What:      "killed by SIGKILL without a reason; memory is the usual one"}
	}
	switch {
	case strings.Contains(line, "potential root causes"), strings.Contains(line,
		"Perhaps out of memory"), strings.Contains(line, "signal terminated program"):
		return nil // each has its own words
	case tensorShutdown.MatchString(line), aboutCode.MatchString(line),
		strings.Contains(strings.ToLower(line), "oomkilled"),
		strings.Contains(strings.ToLower(line), "oom killed"):
		return nil
	case !shellKilled.MatchString(line) && !shellKilled.MatchString(raw) &&
		!signalNine.MatchString(line):
		return nil
	case onPurpose.MatchString(line):
		return nil
	}
	if ended := p.endedByHand(); ended != nil {
		return ended
	}
	if p.cancelled() {
		return nil // the scheduler's own line reports that end
	}
	if ended := p.endedOtherwise(); ended != nil {
		return ended
	}
	c := &Crash{Class: Exhausted, Sure: 0.65, Where: event.WhereHost, Framework: "other",
		What: "killed by SIGKILL without a reason; memory is the usual one"}
	c.Framework = launcherOf(strings.Join(append(p.above(12), raw), "\n"))
	return c
}

// launcherOf guesses the framework from the words around an exit status.
func launcherOf(text string) string {
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "torch") || strings.Contains(lower, "local_rank") ||
		strings.Contains(lower, "accelerate launch") || strings.Contains(lower, "deepspeed"):
		return "pytorch"
	case strings.Contains(lower, "python") || strings.Contains(lower, "<signals.sigkill"):
		return "python"
	}
	return ""
}

// byHand matches commands that end other programs, at a prompt or in somebody's description.
var byHand = later(`(?:^|[$#>;&+] ?|sudo )(?:kill -(?:9|KILL|SIGKILL)\b|pkill\b|killall\b|docker (?:stop|kill|rm -f|compose down)|` +
	`docker-compose down|scancel \d|timeout (?:-\S+ (?:(?:SIG)?(?:KILL|TERM|INT)|9|\d+[smh] )? ?)*\d+[smh]? \S|kubectl delete)|\b(?:supervisorctl|systemctl|docker|pm2) (?:restart|stop)\b|after docker (?:stop|kill|compose down)|` +
	`^timeout: sending signal`)

// cancelled reports whether the scheduler logs nearby that it ended the job itself: it then kills
// the processes that are left.
func (p *passage) cancelled() bool {
	for _, line := range append(p.above(12), p.following(4)...) {
		if jobCancelled.MatchString(line) {
			return true
		}
	}
	return false
}

var jobCancelled = later(`\*\*\* (?:JOB|STEP) [\d.+_\w]+ ON \S+ CANCELLED AT|srun: forcing job termination|` +
	`=>> PBS: job killed: (?:walltime|ncpus)|TERM_(?:RUNLIMIT|OWNER|ADMIN)`)

// endedByHand recognises a kill that a command nearby accounts for; nil where there is none.
func (p *passage) endedByHand() *Crash {
	for _, line := range append(p.above(6), p.line()) {
		if byHand.MatchString(line) {
			return &Crash{Class: Other, Sure: 0.86, Where: event.WhereUnknown, Framework: "other",
				What: "somebody ended the job with a command: " + cut(strings.TrimSpace(line), 80)}
		}
	}
	return nil
}

// anotherReason is why those who run other people's programs end them, in their own words. A bare
// SIGKILL near it needs no shortage.
var anotherReason = later(`(?i)DeadlineExceeded|longer than the specified deadline|\bhas timed out after|` +
	`exceeded the (?:maximum|allowed) (?:execution|run(?:ning)?|wall)[ -]?time|(?:due to|reached|exceeded) (?:its |the )?` +
	`(?:time|wall ?time|run ?time) limit|WORKER TIMEOUT|failed liveness probe|liveness probe failed|Preempting\b|Preempted by|` +
	`spot instance|node is shutting down|USER_STOPPED|(?:stopped|killed|terminated|cancell?ed|ended) by ` +
	`(?:the |an? )?(?:user|admin\w*|owner|operator)\b|manually (?:stopped|killed|terminated|cancell?ed)`)

// byKube are words of Kubernetes among those reasons.
var byKube = later(`(?i)DeadlineExceeded|specified deadline|liveness probe|Preempt`)

// endedOtherwise recognises a kill with another reason on a line nearby. It returns nil if there is
// none.
func (p *passage) endedOtherwise() *Crash {
	for _, line := range append(p.above(10), p.following(8)...) {
		if anotherReason.MatchString(line) && !aboutCode.MatchString(line) {
			framework := "other"
			if byKube.MatchString(line) {
				framework = "kubernetes"
			}
			return &Crash{Class: Other, Sure: 0.86, Where: event.WhereUnknown, Framework: framework,
				What: "it was ended for the reason in the next lines: " +
					cut(strings.TrimSpace(withoutPrefix(line)), 100)}
		}
	}
	return nil
}

// askedToEnd is what programs say that got SIGTERM. Launchers send it to the ranks that are left
// when one has died, so their own words do not count.
var askedToEnd = later(`(?im)^(?:[^\[\n]|\[\d)*?\b(?:received|got|caught|handling)(?: signal)?:? (?:SIGTERM|signal 15|15\b)`)

func readExit137(p *passage) *Crash {
	line := p.line()
	if onPurpose.MatchString(line) || aboutCode.MatchString(line) || strings.Contains(line, "==") {
		return nil
	}
	if ended := p.endedByHand(); ended != nil {
		return ended
	}
	if ended := p.endedOtherwise(); ended != nil {
		return ended
	}
	if askedToEnd.MatchString(strings.Join(p.above(14), "\n")) {
		return &Crash{Class: Other, Sure: 0.8, Where: event.WhereUnknown, Framework: "other",
			What: "the job was asked to end (SIGTERM) and killed when its time to do so was over"}
	}
	c := &Crash{Class: Exhausted, Sure: 0.6, Where: event.WhereHost,
		What: "ended by SIGKILL without a reason; memory is the usual one"}
	around := strings.Join(append(p.above(12), p.following(6)...), "\n")
	c.Framework = launcherOf(around)
	lower := strings.ToLower(around)
	if strings.Contains(lower, "last state") || strings.Contains(lower, "restart count") ||
		strings.Contains(lower, "kubectl") {
		c.Framework = "kubernetes"
	}
	if strings.Contains(lower, "docker") || strings.Contains(lower, "container") ||
		strings.Contains(lower, "pod") {
		c.Where = event.WhereCgroup
	}
	return c
}

// Words around a launcher that ends its processes: of another reason, and of work that fills host
// memory.
var (
	toldReason = later(`(?i)return code|Traceback|(?-i:\b[A-Z]\w*(?:Error|Exception)\b)|signal|exit ?code|KeyboardInterrupt`)
	fillsHost  = later(`(?i)loading checkpoint|loading (?:the )?(?:model|weights)|offload|CPU Virtual Memory|cpu_adam|` +
		`from_pretrained`)
)

// readLauncherKill reads DeepSpeed's launcher, which ends all ranks when one is gone. It counts if
// no reason appears around it, and if the last work that the log shows fills host memory.
func readLauncherKill(p *passage) *Crash {
	around := strings.Join(append(p.above(40), p.following(12)...), "\n")
	if toldReason.MatchString(strings.ReplaceAll(around, "sigkill_handler", "")) ||
		!fillsHost.MatchString(around) {
		return nil
	}
	return &Crash{Class: Exhausted, Sure: 0.5, Where: event.WhereHost, Framework: "pytorch",
		What: "a launcher ended its processes because one had gone, for an unknown reason"}
}

// hintCgroupUsage keeps the limit that the kernel prints before it names a victim.
func hintCgroupUsage(h *hintCollector, p *passage) {
	if m := later(`limit (\d+)kB`).FindStringSubmatch(p.line()); m != nil {
		if kb, err := strconv.ParseInt(m[1], 10, 64); err == nil && kb < 1<<52 {
			h.limits = append(h.limits, limitSeen{p.window.offset(p.at),
				event.Bytes(kb) * event.KiB, "kernel"})
		}
	}
}
