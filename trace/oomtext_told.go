package trace

import (
	"slices"
	"strings"
	"unicode/utf8"

	"memroom/event"
)

// KindTold is a shortage that a person describes in prose, without a program's message.
const KindTold = "told"

// Certainty of a shortage that is told: below what a message gives, above a rumour.
const (
	toldSure     = 0.75
	toldPerhaps  = 0.6
	toldRises    = 0.55
	toldTakes    = 0.52
	longSentence = 700
	wrapsFrom    = 50 // characters of a line that goes on in the next
	titleLines   = 1
)

// abroad are sentences of other languages that report that memory ran out.
var abroad = []*expression{
	later(`显存[^。\n]{0,10}(?:不足|不够|溢出|爆|超|耗尽|占满|满了|炸)|爆(?:显存|内存|了显存|了内存|ram)|(?:内存|記憶體|主存)[^。\n]{0,10}(?:超|不足|不够|不夠|溢出|爆|耗尽|占满|被占满|满了|炸)|(?i:oom) ?(?:了|错误|的?问题|报错|异常|崩溃)|(?i:报|出现|显示|发生|直接|就会|会|就|仍然|还是|依然|遇到|导致) ?(?i:cuda )?(?i:oom|out of memory)|超出(?:了)?(?:显存|内存)`),
	later(`メモリ(?:ー)?(?:が)?[^。\n]{0,8}(?:不足|足り(?:ない|ず|ません)|枯渇|溢れ|あふれ|食い(?:つぶ|潰))|メモリエラー|메모리(?:가|를)?[^.\n]{0,8}(?:부족|초과|터[지져졌집])|(?i:oom)(?:이|가)? ?(?:발생|에러|납니다|나요)`),
	later(`(?i)не хвата(?:ет|ло)[^.\n]{0,20}(?:памяти|видеопамяти|озу)|(?:памяти|видеопамяти|озу)[^.\n]{0,16} не хвата|нехватк\w* [^.\n]{0,12}памяти|(?:законч|конч)\w+ [^.\n]{0,12}память|память [^.\n]{0,12}(?:закан|законч|заполн|перепол)`),
	later(`(?i)(?:nicht genug|zu wenig|nicht genügend|kein|mangels) (?:gpu-?|grafik|arbeits|video)?speicher\b|speicher (?:reicht|ist voll|läuft voll|geht aus|voll)|(?:manque de|à court de|plus de|pas assez de|dépassement de) mémoire|mémoire (?:\w+ )?(?:insuffisante|saturée|pleine)|(?:sin|falta de|se queda sin|insuficiente) memoria|memoria (?:\w+ ){0,2}(?:insuficiente|agotada|llena|esaurita|insufficiente|piena)|(?:sem|falta de|estouro de) memória|memória (?:\w+ )?insuficiente|geheugen (?:vol|tekort)|te weinig geheugen|brak(?:uje|ło)? pamięci|yetersiz bellek|bellek (?:yetersiz|doldu)|hết (?:bộ nhớ|vram|ram)|tràn bộ nhớ|thiếu bộ nhớ|kehabisan memori`),
}

// notFitting are sentences about something that is larger than memory.
var notFitting = later(`(?i)\b(?:does(?:n't| not)|do(?:n't| not)|did(?:n't| not)|can(?:'t|not| not)|wo(?:n't)|could(?:n't| not)|unable to|fail(?:s|ed)? to|not able to|impossible to) (?:even |be )?fit (?:\w+ ){0,6}?(?:in(?:to|side)?|on(?:to)?) (?:\w+ ){0,3}?(?:memory|v?ram|ram|gpus?|cards?|[1-5]0[5-9]0\w*|[avhtl]\d{1,3}s?|\d{1,3} ?g(?:i?b)?\b)`)

// endings of a program without its own word for memory, which count where memory is spoken of near.
var endedHard = later(`(?i)\b(?:kernel|os|system|linux|oom[ -]?killer|slurm) (?:then )?kills? (?:the |my |it\b)|\b(?:get(?:s|ting)?|got|is|was|being|been|are|were|be|just|silently|randomly|automatically|finally|process) (?:\w+ ){0,2}?killed\b|\bsigkill\b|\b(?:signal|exit(?:s|ed)?(?: with)?(?: (?:code|status))?|returned?(?: code)?|status|exitcode) ?[:=(]{0,2} ?(?:-9|9|137)\b|` +
	`\b(?:machine|computer|system|server|pc|laptop|desktop|node|ssh|whole thing|everything) (?:\w+ ){0,2}?(?:freez\w*|froze\w*|hangs?|hung|crash(?:es|ed)?|reboots?|rebooted|unresponsive|locks? up)|(?:kernel|session|colab|notebook|runtime|it|then|training|program|process|script|job|run) (?:\w+ ){0,2}?(?:crash(?:es|ed)?|die[sd]|stops|aborts|restart(?:s|ed)?)|(?:被|自动)(?:系统)?(?:杀死|杀掉|kill)|(?:死机|卡死|崩溃)`)

// endedFor are reasons why a program is killed that has memory enough.
var endedFor = later(`(?i)kill -9|pkill|killall|scancel|time ?-?limit|time ?out|timed out|wall ?time|preempt|` +
	`manually|by (?:me|myself|the user|user|admin\w*|hand)\b|I killed|\bcancel|watchdog|maintenance`)

// risesAbroad are sentences of other languages about memory that grows and stays.
var risesAbroad = later(`(?:内存|显存)[^。\n]{0,16}(?:泄[漏露]|一直(?:增|涨|上)|不断|逐渐|持续|越来越|缓慢)|メモリ(?:ー)?リーク`)

// unlikely are words before the telling ones that take the claim back: what was avoided, what may
// come, what was asked.
var (
	unlikely = later(`(?i)(?:^\W*(?:0|zero)\b[^.]{0,60}|\b(?:avoid\w*|prevent\w*|without|instead of|no longer|never|rather than|in case|possib\w+|reduc\w+|eliminat\w+|mitigat\w+|less likely|to (?:fix|handle|mitigate|reduce|catch|detect|debug|estimate|predict|address|solve|resolve)|worr\w+|afraid|concern\w*|risk\w*|protect\w*|guard\w*|rule[sd]? out|whether|wonder\w*|lest|unless|unlike|fix(?:e[sd])?|solved?|resolved?|handl\w+|support\w* for|catch(?:es)?|similar to|related to)\b[^.,;:!?]{0,60}|` +
		`\b(?:is|was|do|does|did|are|am|it'?s|has|have) ?(?:not|n't)\b[^.,;:!?]{0,24}|\b(?:not|isn't|wasn't|don't|doesn't|didn't|aren't|haven't|hasn't|no|nor) (?:\w+ ){0,3}|` +
		`\b(?:might|may|could|would|should|can) (?:\w+ ){0,5}|^\W*(?:is|was|are|were|does|do|did|will|would) (?:it|this|that|there|they|the \w+) (?:\w+ ){0,4}|\b(?:when(?:ever)?|if) (?:you|your|we|they|users?|one|an?|any)\b[^;!?]{0,60}|(?:没有|不是|并非|未|无|避免|防止|解决|是否|是不是|会不会|难道)[^，。,]{0,8})$`)
	takenBack = later(`(?i)^[^.,;:!?\n]{0,40}\b(?:is|was|were|are) (?:not|n't|no longer|fixed|solved|gone|resolved|avoided|fine|unlikely|unrelated|irrelevant|disabled|handled|caught|prevented)\b|^["'\x60]?\s?[:=]\s?(?:0|false|no|none)\b|^(?:[^.,;:!?\n]{0,20}\b)?(?:prevention|handling|handler|guard|safe|protection|detection|estimat\w+|test|tests|score|threshold|policy|recovery|monitor)\b|^['"]?\s*(?:=|\))`)
	notMine   = later(`(?i)\b(?:still|but|however|again|always|also|already|now|then|even|eventually|immediately|easily|definitely|just|before being) (?:\w+ ){0,2}$|\b(?:causes?|causing|results?|leads?|leading|makes?|gives?)\b[^.,;]{0,30}$`)
)

// fenced are lines of a program, its settings or its output rather than of a person.
var fenced = later(`^\s*(?:File "|Traceback|at [\w.$]+\(|\^+\s*$|\x60{3}|[$#>]{1,3} ?(?:python|pip|torchrun|accelerate|deepspeed|CUDA|export|sudo|cd|docker|nvidia)\b|import |from [\w.]+ import|def |class |return\b|[\w.\[\]'"]+ ?[-+*/]?= ?\S|--[\w-]+|\||<[a-z!/]|https?:|[\w.-]+==|[{}\[\]]|[WEF] [a-z]|[EWIF]\d{4} |I \w+/|//|/\*|"[\w.]+": |\S*(?:Warning|Error|Exception)\b: |(?:\[?\w+[\]:] ?)?\[?(?:ERROR|WARNING|WARN|INFO|DEBUG|FATAL)\b|slurmstepd|srun: |raise |print\(|\S+ in \w+\(|\d{4}-\d\d-\d\d[T ]\d\d:)`)

// listed begins a paragraph, an entry of a list or a heading of its own.
var listed = later(`^\s*(?:[-*+•] |\d{1,2}[.)] |#{1,6} |>|\*\*|Q:|A:|Title:|title:)`)

// sentence is one that a person wrote, with the line that it begins on.
type sentence struct {
	text  string
	line  int64
	title bool

	row    string // the classes of its words
	places [][2]int
}

// sentencesEnd divides prose.
var sentencesEnd = later(`[.!?](?:["')\]]*)(?:\s+|$)|[。！？；]\s*`)

// titleTag is what trackers put before a title: [Bug]:
var titleTag = later(`^(?:Title: ?)?(?:\[[A-Za-z][\w ?/.-]{1,24}\]:? ?)+`)

// proseIn takes the sentences out of a text: lines that were wrapped are joined, what programs
// printed is left out.
func proseIn(lines []Line) []sentence {
	var all []sentence
	var open strings.Builder
	var from int64
	count, began := 0, 0
	flush := func() {
		text := open.String()
		open.Reset()
		for text != "" {
			end := len(text)
			if at := sentencesEnd.FindStringIndex(text); at != nil {
				end = at[1]
			}
			if s := strings.TrimSpace(text[:end]); s != "" {
				all = append(all, sentence{text: cut(s, longSentence), line: from, title: began <= titleLines})
			}
			text = text[end:]
		}
	}
	last, at := 0, int64(0)
	for i, l := range unwrapped(lines) {
		if i == 0 {
			l.Text = titleTag.ReplaceAllString(l.Text, "")
		}
		if fenced.MatchString(l.Text) || sourceLine.MatchString(l.Text) || codeLine.MatchString(l.Text) {
			flush()
			continue
		}
		count++
		if open.Len() == 0 || last < wrapsFrom || l.Number > at+1 || listed.MatchString(l.Text) ||
			open.Len() > 4*longSentence {
			flush()
			from, began = l.Number, count
		} else {
			open.WriteByte(' ')
		}
		open.WriteString(strings.TrimSpace(l.Text))
		last, at = utf8.RuneCountInString(l.Text), l.Number
	}
	flush()
	return all
}

// unwrapped joins lines that a tracker broke at one width, in the middle of words.
func unwrapped(lines []Line) []Line {
	most, alike := 0, 0
	for _, l := range lines {
		switch n := utf8.RuneCountInString(l.Text); {
		case n > most:
			most, alike = n, 1
		case n == most:
			alike++
		}
	}
	if most < narrowest || most > widest || alike < 3 {
		return lines
	}
	var whole []Line
	goesOn := false
	for _, l := range lines {
		if goesOn {
			whole[len(whole)-1].Text += l.Text
		} else {
			whole = append(whole, l)
		}
		goesOn = utf8.RuneCountInString(l.Text) == most
	}
	return whole
}

// claims reports whether a sentence asserts what an expression over its classes says, and does not
// take it back.
func (s *sentence) claims(is *expression) bool {
	s.classify()
	return slices.ContainsFunc(is.FindAllStringIndex(s.row, 8), func(at []int) bool {
		return at[1] > at[0] && s.asserts(s.places[at[0]][0], s.places[at[1]-1][1])
	})
}

func (s *sentence) classify() {
	if s.places == nil {
		s.row, s.places = classesOf(s.text)
	}
}

// states is claims for an expression over the words themselves.
func (s *sentence) states(is *expression) bool {
	at := is.FindStringIndex(s.text)
	return at != nil && s.asserts(at[0], at[1])
}

// guessed are words of somebody who takes it for the reason and does not know.
var guessed = later(`(?i)\b(?:suspect\w*|assum\w+|guess\w*|suppos\w+|think|thought|believe|maybe|perhaps|probably|possibly|might|may|could|seems?|not sure|unsure)\b[^.;!?]{0,60}$`)

// supposes reports whether a sentence guesses what an expression over its classes says.
func (s *sentence) supposes(is *expression) bool {
	s.classify()
	at := is.FindStringIndex(s.row)
	return at != nil && at[1] > at[0] && guessed.MatchString(s.text[:s.places[at[0]][0]])
}

// asserts reports whether the words around a part of a sentence let it stand.
func (s *sentence) asserts(from, to int) bool {
	before, inside, after := s.text[:from], s.text[from:to], s.text[to:]
	if asksWhether.MatchString(after) || strings.HasSuffix(strings.TrimSpace(s.text), "?") &&
		questions.MatchString(s.text) || commands.MatchString(s.text) || wentOn.MatchString(s.text) ||
		triedLess.MatchString(s.text) {
		return false
	}
	if (unlikely.MatchString(before) || guessed.MatchString(before)) &&
		!notMine.MatchString(before) || takenBack.MatchString(after) {
		return false
	}
	return !withinAvoided.MatchString(inside)
}

var (
	// questions are sentences that ask whether memory is the reason
	questions   = later(`(?i)^\W*(?:is|was|could|can|does|do|did|would|should|may|might|has|are|what|how|why (?:don't|not)|any)\b`)
	asksWhether = later(`^[^。？?！!]{0,12}吗|^[^。？?！!]{0,6}(?:か|かな)[？?]`)
	// commands tell somebody what to do, as lists of work and of changes have them
	commands = later(`(?i)^\W*(?:log|print|report|show|add|handle|retry|warn|raise|catch|avoid|reduce|fix) \S`)
	// triedLess is what tuners print that go on with less
	triedLess = later(`(?i)\breduc(?:ing|ed) (?:\w+ )?to \d|\bsucceeded, trying`)
	// withinAvoided are verbs of such a claim that deny it
	withinAvoided = later(`(?i)\b(?:avoid\w*|prevent\w*|without|not|n't|never|no longer|fix(?:ed|es)?|solv\w+|handl\w+|no) (?:\w+ ){0,2}?(?:oom|out of)`)
)

// The memories that a person names.
var (
	ofHost  = later(`(?i)\b(?:cpu|host|system|main|server|machine|node|physical|computer)(?:'s)?[ -](?:memory|ram|oom|out of memory|mem)\b|\b(?:sys|cpu|host)_?ram\b|\bcpu and ram\b|\breads?\b[^.\n]{0,40}\binto memory\b|\bout of (?:system |cpu |host )?ram\b|\boom[ -]?kill|MemoryError|Array buffer|\b(?:numpy|pandas|np\.\w+)\b|data ?type '|(?:process|program|job|script|python)\w* (?:is |was |gets? |got |has been )?killed\b|killed by|sigkill|signal 9|exit(?:ed)?(?: with)? (?:code|status) ?[:=]? ?(?:137|-9)|\bslurm\b|\bswap\b|\bhtop\b|\brss\b|\bdmesg\b|\bdocker\b|\bpods?\b|kubernetes|\breboot|freez|froze|内存|內存|記憶體|arbeitsspeicher|озу|оперативн`)
	ofCard  = later(`(?i)\b(?:cuda|gpus?|vram|vmem|video (?:memory|ram|card)|graphics? (?:memory|card|ram)|cards?|vllm|sglang|fsdp|hbm|tpus?|npus?|mps|rocm|nvidia|rtx|gtx|geforce|tesla|quadro)\b|\b(?:a10g?|a40|a100s?|h100s?|h200|h800|a800|h20|l4|l40s?|v100s?|p100|t4|b200|mi\d{3}x?|[1-5]0[5-9]0(?: ?ti)?|a[4-6]000)\b|显存|显卡|視訊記憶體|видеопамят|видеокарт|グラボ|gpu-?speicher`)
	ofRAM   = later(`(?i)\bram\b`)
	ofApple = later(`(?i)\bmps\b|\bapple silicon\b|\bm[1-4] (?:pro|max|ultra|mac\w*)|\bmac(?:book|os| mini| studio)\b|unified memory`)
	ofShm   = later(`(?i)/dev/shm|\bshm\b|shared memory`)
	gpuRAM  = later(`(?i)\b(?:gpu|video|cuda|graphics?)(?:'s)?[ -](?:v?ram|memory|mem|oom)\b|\bcuda (?:out of memory|oom)|\bvram\b|显存`)
)

// hostMeter are calls that measure host memory.
var hostMeter = later(`\bru_maxrss|\bpsutil\b|virtual_memory\(|memory_full_info|\bVmRSS`)

// memoryOf returns the memory that a sentence speaks of, empty where it speaks of none by name.
func memoryOf(text string) event.Where {
	switch {
	case ofShm.MatchString(text) && !ofCard.MatchString(text):
		return event.WhereShm
	case gpuRAM.MatchString(text) && !ofHost.MatchString(text):
		return event.WhereGPU
	case ofHost.MatchString(text):
		if gpuRAM.MatchString(text) && !hostFirst.MatchString(text) {
			return event.WhereGPU
		}
		return event.WhereHost
	case ofRAM.MatchString(text):
		return event.WhereHost
	case ofApple.MatchString(text):
		return event.WhereMPS
	case ofCard.MatchString(text):
		return event.WhereGPU
	}
	return ""
}

// ofNetwork are words of networks that are trained or used.
var ofNetwork = later(`(?i)\btrain|optimi[sz]er|fine-?tun|\bmodels?\b|\bepochs?\b|\blora\b|inference|\bbatch|backward|gradient|\bloss\b|attention`)

// hostFirst are sentences that name host memory as what ran out, whatever else they name.
var hostFirst = later(`(?i)\b(?:cpu|host|system|main)[ -](?:memory|ram|oom)\b[^.\n]{0,40}(?:oom|out of|full|exhaust|overflow|increas|grow|leak|explo|ris|not enough|insufficient|kill)|(?:out of|oom|exhaust\w*|fills?|eats?|not enough|insufficient)[^.\n]{0,30}\b(?:cpu|host|system|main)[ -](?:memory|ram)|\bkilled\b|内存(?:不足|溢出|爆|泄)`)

// tell reads what a person wrote, and adds the shortage that they tell of where no program's
// message
// shows one.
func tell(log *Log) {
	prose := proseIn(log.Kept)
	log.Said = saidIn(prose)
	defer sayWhen(log, prose)
	if slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Class == Exhausted ||
			c.Class == Survived
	}) {
		return
	}
	claimed, rises, hard, hinted, guess, weak := -1, -1, -1, -1, -1, 0
	count := 0
	for i := range prose {
		s := &prose[i]
		switch {
		case s.claims(saysShort) || slices.ContainsFunc(abroad, s.states):
			if count++; claimed < 0 {
				claimed = i
			}
		case guess < 0 && s.supposes(saysShort):
			guess = i
		case s.claims(saysTakes) || s.states(notFitting):
			if weak++; hinted < 0 || s.title {
				hinted = i
			}
		}
		if rises < 0 && (s.claims(saysGrown) || s.states(risesAbroad)) {
			rises = i
		}
		if hard < 0 && (s.claims(saysEnd) || endedHard.MatchString(s.text)) &&
			!endedFor.MatchString(s.text) {
			hard = i
		}
	}
	if weak < 2 && (hinted < 0 || !prose[hinted].title) {
		hinted = -1 // mentioned in passing
	}
	if slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Class == Other &&
			c.Sure >= toldPerhaps
	}) {
		return // its own words say what it was
	}
	other := len(log.Crashes) > 0
	at, sure := claimed, toldSure
	switch {
	case claimed >= 0 && other && count < 2 && !prose[claimed].title:
		return // memory is mentioned beside another end
	case claimed >= 0 && other:
		sure = toldPerhaps
	case claimed >= 0:
	case other:
		return
	case rises >= 0 && hard >= 0:
		at, sure = rises, toldPerhaps
	case rises >= 0:
		at, sure = rises, toldRises
	case hinted >= 0 && hard >= 0:
		at, sure = hinted, toldPerhaps
	case hinted >= 0:
		at, sure = hinted, toldTakes
	case guess >= 0 && hard >= 0:
		at, sure = guess, toldPerhaps
	default:
		if c := killedUnsaid(log, prose); c != nil {
			log.Crashes = append(log.Crashes, *c)
		}
		return
	}
	log.Crashes = append(log.Crashes, toldCrash(log, prose, at, sure))
}

// killedUnsaid is an end that somebody tells of without a reason, which is memory's most often: a
// program that was killed, a notebook's kernel that died.
func killedUnsaid(log *Log, prose []sentence) *Crash {
	for i := range prose {
		s := &prose[i]
		if endedFor.MatchString(s.text) {
			continue
		}
		killed := s.claims(saysKilled) || s.title && s.claims(saysSigkill) &&
			!killsOther.MatchString(s.text)
		if !killed && !(ofNotebook.MatchString(s.text) && s.claims(saysDied)) {
			continue
		}
		c := toldCrash(log, prose, i, toldPerhaps)
		c.Kind, c.What = "bare_kill", "killed by SIGKILL without a reason; memory is the usual one"
		if !killed {
			c.Kind, c.Sure, c.What = "kernel_died", 0.5, readKernelDied(nil).What
		}
		c.Where = event.WhereHost
		return &c
	}
	return nil
}

var (
	ofNotebook = later(`(?i)\b(?:kernel|session|notebook|colab|runtime)\b`)
	// killsOther are words of somebody who killed something
	killsOther = later(`(?i)\bkilled (?:the|my|all|some|it|them|process\w*)\b|\bI killed`)
)

// toldCrash is the shortage of a sentence, with what stands around it.
func toldCrash(log *Log, prose []sentence, at int, sure float64) Crash {
	s := prose[at]
	c := Crash{Kind: KindTold, Class: Exhausted, Sure: sure, Line: s.line, Rank: -1,
		Text: s.text, Where: memoryOf(s.text)}
	var all strings.Builder
	for _, l := range log.Kept {
		all.WriteString(cut(l.Text, signsLine))
		all.WriteByte('\n')
		if all.Len() > signsText {
			break
		}
	}
	text := all.String()
	if c.Where == "" && (hostMeter.MatchString(text) || isOfHost(s.text)) {
		c.Where = event.WhereHost
	}
	for _, near := range nearest(prose, at) {
		if c.Where == "" {
			c.Where = memoryOf(near)
		}
	}
	if c.Where == "" {
		c.Where = memoryOf(text)
	}
	if c.Where == "" && ofNetwork.MatchString(s.text) {
		c.Where = event.WhereGPU // whose memory is short first
	}
	if c.Where == "" {
		c.Where = event.WhereUnknown
	}
	if c.Where == event.WhereGPU && ofApple.MatchString(text) && !gpuRAM.MatchString(s.text) {
		c.Where = event.WhereMPS
	}
	c.Signs.add(text)
	c.Frames, c.Code = tracebackIn(log.Kept)
	c.Ranks = ranksIn(text)
	if m := immense.FindStringSubmatch(s.text); m != nil && !ofDisk.MatchString(s.text) {
		c.Requested, c.Where = parseSize(m[1], m[2]), event.WhereHost // no card has that much
	}
	settleFramework(&c, log)
	if c.Framework == "other" && foreignIn(text) == "" && c.Where != event.WhereHost {
		c.Framework = "pytorch"
	}
	return c
}

// isOfHost reports whether a sentence that names no memory can only mean the host's: a program
// was killed, or took more than any card has.
func isOfHost(sentence string) bool {
	if wasKilled.MatchString(sentence) {
		return true
	}
	m := hundreds.FindStringSubmatch(sentence)
	if m == nil || ofDisk.MatchString(sentence) && !ofAnyMemory.MatchString(sentence) {
		return false
	}
	size := parseSize(m[1], "GB")
	return size != nil && *size > largestCard
}

// largestCard is more than one card has, and less than hosts and jobs ask for.
const largestCard = 150_000_000_000

var (
	wasKilled = later(`(?i)\b(?:was|be|been|is|are|got|gets?|being|says?|prints?|displays?|` +
		`shows?) ["']?killed\b|^killed\b`)
	hundreds    = later(`(?i)\b(\d{3,4}) ?g(?:i?b|ig\w*)?\b`)
	ofAnyMemory = later(`(?i)\b(?:memory|ram)\b`)
)

// tracebackIn returns the last traceback of a text whose message was cut off.
func tracebackIn(kept []Line) ([]event.Frame, []string) {
	lines := make([]string, 0, len(kept))
	for _, l := range slices.Backward(kept) {
		lines = append(lines, l.Text)
	}
	return framesIn(mended(lines), -1)
}

// Said is what a person wrote about the end: the sentences that speak of it, and those next to
// them.
type Said struct {
	Of   string // the title and the sentences that speak of memory or of the end
	Near string // the ones around them
}

// typed are parts of commands in a sentence: flags with what they set, paths and addresses. Their
// words are names.
var typed = later(`(?:^|[\s"'(\x60])(?:--?[A-Za-z][\w-]*(?:[= ][\w./-]*[\d/][\w./-]*|=\S+)?|https?://\S+|(?:[\w.~-]*/){2,}[\w.-]*)`)

// saidMost bounds what is kept of each, in bytes.
const saidMost = 6000

// ofTheEnd are words of memory and of a program's end.
var ofTheEnd = later(`(?i)\bo\.?o\.?m|memory|memor[iy]|\bv?ram\b|\bkill|sigkill|\berror|\bcrash|\bfail|\bdie[sd]?\b|freez|froze|leak|-9\b|137|显存|内存|報錯|报错|错误|メモリ|메모리|에러|오류|エラー|памят|ошибк|speicher|fehler|mémoire|erreur`)

func saidIn(prose []sentence) Said {
	var of, near strings.Builder
	add := func(to *strings.Builder, text string) {
		if to.Len() < saidMost {
			to.WriteString(text)
			to.WriteByte('\n')
		}
	}
	tells := func(i int) bool {
		return i >= 0 && i < len(prose) && (prose[i].title || ofTheEnd.MatchString(prose[i].text))
	}
	for i, s := range prose {
		switch {
		case tells(i):
			add(&of, s.text)
		case tells(i - 1), tells(i + 1):
			add(&near, s.text)
		}
	}
	plain := func(b *strings.Builder) string {
		return strings.ToLower(typed.ReplaceAllString(b.String(), " "))
	}
	return Said{plain(&of), plain(&near)}
}

// immense is a size that people reckon or read for what they cannot hold.
var immense = later(`(\d+(?:\.\d+)?) ?(Ti?B)\b`)

// ofDisk are words of another room that is as large.
var ofDisk = later(`(?i)\b(?:dis[ck]s?|storage|ssd|nvme|drive|hdd|volume|space|dataset|data ?set)\b`)

// nearest are the sentences around one: the title first, then those next to it.
func nearest(prose []sentence, at int) []string {
	texts := []string{prose[0].text}
	for _, i := range []int{at + 1, at - 1, at + 2, at - 2, at + 3} {
		if i >= 0 && i < len(prose) {
			texts = append(texts, prose[i].text)
		}
	}
	return texts
}
