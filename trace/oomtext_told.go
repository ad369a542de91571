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
	longSentence = 700
	wrapsFrom    = 50 // characters of a line that goes on in the next
	titleLines   = 1
)

// A program's memory, in words: OOM by its abbreviation, or memory by whatever name.
const (
	toldMemory = `(?:memory|mem|v?ram|mems|memories)`
	toldKind   = `(?:(?:gpu|cuda|device|video|graphics?|card|system|host|cpu|main|server|machine|node|physical|the|all|available|of|my|its|any|free|shared|unified|hbm|tpu|npu|mps|swap|enough|total) )*`
)

// asserted matches sentences that report that memory ran out.
var asserted = []*expression{
	later(`(?i)\b(?:go(?:es|ing|ne)?|went|r[ua]n(?:s|ning)?|fall(?:s|ing)?|becom(?:es?|ing)|is|was|are|gets?|got|getting|still|always|immediately|then|quickly|eventually|soon|directly|just|will|instantly|suddenly|easily) ` +
		`(?:\w+ ){0,2}?(?:out[ -]of[ -]` + toldKind + toldMemory + `|o\.?o\.?m\b|short (?:of|on) ` + toldKind + toldMemory + `|low on ` + toldKind + toldMemory + `)`),
	later(`(?i)\b(?:get(?:s|ting)?|got|hit(?:s|ting)?|fac(?:e[sd]?|ing)|met|meet(?:s|ing)?|encounter(?:s|ed|ing)?|experienc(?:e[sd]?|ing)|having|have|has|had|see(?:s|ing)?|saw|show(?:s|ed|n|ing)?|throw(?:s|ing|n)?|threw|rais(?:e[sd]?|ing)|report(?:s|ed|ing)?|sa(?:ys|id)|prints?|complain(?:s|ed)?|g[ia]ves?|giving|caus(?:e[sd]?|ing)|lead(?:s|ing)? to|led to|result(?:s|ed|ing)? in|end(?:s|ed|ing)? (?:up )?(?:in|with)|` +
		`crash(?:es|ed|ing)?(?: \w+)? (?:with|due to|because of|by|for|from|on)|crash(?:es|ed|ing)?|fail(?:s|ed|ing|ure)?(?: \w+)? (?:with|due to|because of|by|for|from)|die[sd]? (?:of|from|with|due to)|stop(?:s|ped)? (?:with|due to|because of|by)|kill(?:s|ed)? (?:by|due to|because of|for)|abort(?:s|ed)? (?:with|due to)|trigger(?:s|ed|ing)?|suffer(?:s|ed|ing)? from|run(?:s|ning)? into|ran into|occur(?:s|red)?|produc(?:e[sd]?|ing)|due to|because of|error(?: is)?:?|exceed(?:s|ed|ing)?|always|still|from|with) ` +
		`(?:\w+ ){0,3}?["'` + "`" + `(]{0,2}` + toldKind + `(?:\bo\.?o\.?ms?\b|out[ -]of[ -]?` + toldKind + toldMemory + `|outofmemory\w*|memoryerror|` + toldMemory + `[ -](?:error|shortage|overflow|exhaust\w*|explo\w*|limit exceeded|allocation (?:error|failure)|capacity|insufficien\w*|crash)|(?:insufficient|not enough|lack of|shortage of|exhausted) ` + toldKind + toldMemory + `\b)`),
	later(`(?i)\b(?:out[ -]of[ -](?:` + toldKind + `)?` + toldMemory + `|o\.?o\.?m)['s]{0,2} ?(?:error|issue|problem|exception|kill(?:s|ed|er)?|crash(?:es|ed)?|happen\w*|occur\w*|appear\w*|failure|bug|again)?s? ?` +
		`(?:when|while|whilst|during|on|at|after|in|with|even|despite|although|though|using|every|as soon as|since|if|on|for|before|once|only|happens|occurs|occurred|happened|appears|caused|because|due|under|between|upon|from|with(?:out)?)\b`),
	later(`(?i)\b(?:\w+ing|\w+er|model|run|job|script|it|which|that|and|but|this|process(?:es)?|node|worker|card|gpu|rank|server) (?:\w+ )?(?:ooms|oom'?ed|oom'?d|oom'?s|is oom|oom)\b|\boom-?(?:ing|ed|s)\b`),
	later(`(?i)\b` + toldMemory + `(?: usage| consumption| use)? (?:is|was|are|were|gets?|got|becomes?|became|will be|being|has been|seems?(?: to be)?) (?:\w+ ){0,2}?(?:exhausted|full\b|used up|overflow\w*|maxed(?: out)?|not enough|insufficient|depleted|filled|saturated|too (?:small|low|little))`),
	later(`(?i)\b(?:gpu|cuda|video|v?ram|memory|host|system|cpu) (?:memory )?(?:overflow\w*|exhaust(?:ed|ion)|shortage|explo(?:des?|ded|sion)|blow(?:s|n)? up|blew up|overload\w*|overrun|runs? out|ran out|insufficient|not enough|not sufficient)\b`),
	later(`(?i)\b(?:(?:is|was|were|been|being|gets?|got|get|getting|pods?|process(?:es)?|job|container) (?:\w+ )?oom[ -]?killed\b|oom[ -]?killer (?:\w+ )?(?:kill(?:s|ed)|end(?:s|ed)|hits?|strikes?|comes?|is invoked|was invoked|triggers?)|(?:get(?:s|ting)?|got|is|was|being|been|are|were|be) (?:\w+ ){0,2}?(?:oom[ -]?)?killed by (?:the )?(?:\w+ )?(?:oom\w*|kernel|os|system|linux|slurm|out of memory))\b`),
	later(`\b_?(?:Array)?MemoryError\b|Array buffer allocation failed`),
	later(`(?i)\b(?:crash(?:es|ed|ing)?|dies|died|fails|failed)\b[^.\n]{0,12}\bout of memory|\bkills? (?:\w+ ){1,3}because (?:\w+ ){1,3}too much (?:v?ram|memory)`),
	later(`(?i)\b(?:array|tensor|matrix|needs?|requires?|takes?|using|uses?|allocat\w+|amounts?|memory|ram)\b[^.\n]{0,40}?\b\d+(?:\.\d+)? ?Ti?B\b`),
	later(`显存[^。\n]{0,10}(?:不足|不够|溢出|爆|超|耗尽|占满|满了|炸)|爆(?:显存|内存|了显存|了内存|ram)|(?:内存|記憶體|主存)[^。\n]{0,10}(?:不足|不够|不夠|溢出|爆|耗尽|占满|被占满|满了|炸)|(?i:oom) ?(?:了|错误|的?问题|报错|异常|崩溃)|(?i:报|出现|显示|发生|直接|就会|会|就|仍然|还是|依然|遇到|导致) ?(?i:cuda )?(?i:oom|out of memory)|超出(?:了)?(?:显存|内存)`),
	later(`メモリ(?:ー)?(?:が)?[^。\n]{0,8}(?:不足|足り(?:ない|ず|ません)|枯渇|溢れ|あふれ|食い(?:つぶ|潰))|メモリエラー|메모리(?:가|를)?[^.\n]{0,8}(?:부족|초과|터[지져졌집])|(?i:oom)(?:이|가)? ?(?:발생|에러|납니다|나요)`),
	later(`(?i)не хвата(?:ет|ло)[^.\n]{0,20}(?:памяти|видеопамяти|озу)|(?:памяти|видеопамяти|озу)[^.\n]{0,16} не хвата|нехватк\w* [^.\n]{0,12}памяти|(?:законч|конч)\w+ [^.\n]{0,12}память|память [^.\n]{0,12}(?:закан|законч|заполн|перепол)`),
	later(`(?i)(?:nicht genug|zu wenig|nicht genügend|kein|mangels) (?:gpu-?|grafik|arbeits|video)?speicher\b|speicher (?:reicht|ist voll|läuft voll|geht aus|voll)|(?:manque de|à court de|plus de|pas assez de|dépassement de) mémoire|mémoire (?:\w+ )?(?:insuffisante|saturée|pleine)|(?:sin|falta de|se queda sin|insuficiente) memoria|memoria (?:\w+ ){0,2}(?:insuficiente|agotada|llena|esaurita|insufficiente|piena)|(?:sem|falta de|estouro de) memória|memória (?:\w+ )?insuficiente|geheugen (?:vol|tekort)|te weinig geheugen|brak(?:uje|ło)? pamięci|yetersiz bellek|bellek (?:yetersiz|doldu)|hết (?:bộ nhớ|vram|ram)|tràn bộ nhớ|thiếu bộ nhớ|kehabisan memori`),
}

// swallowed are sentences about a program that takes all memory: that is no end of it by itself.
var swallowed = later(`(?i)\b(?:eat(?:s|en|ing)?|ate|us(?:es?|ed|ing)|consum(?:e[sd]?|ing)|tak(?:es?|ing)|took|fill(?:s|ed|ing)?|exhaust(?:s|ed|ing)?|hog(?:s|ged|ging)?|occup(?:y|ies|ied|ying)|suck(?:s|ed)?|devour\w*|swallow\w*|drain\w*|max(?:es|ed|ing)?|exceed(?:s|ed|ing)?) (?:up |out )?(?:\w+ )?(?:all|100 ?%|the whole|the entire|whole|entire|every|nearly all|almost all)(?: of| the| my| available| our| system| its| of the)* (?:\d+ ?(?:gb|gib|g) )?(?:of )?` + toldKind + toldMemory + `\b`)

// weakly are sentences that may as well be mentioned in passing: they count in a title, or twice.
var weakly = []*expression{
	later(`(?i)\b(?:not (?:have |has )?enough|insufficient|lack(?:s|ing)?(?: of)?|shortage of|too little|no more|no) ` + toldKind + toldMemory + `\b[^.\n]{0,40}\b(?:error|to (?:run|train|load|fit|allocate|continue|finetune|fine-tune)|for|on|available|left)\b`),
	later(`(?i)\b(?:does(?:n't| not)|do(?:n't| not)|did(?:n't| not)|can(?:'t|not| not)|wo(?:n't)|could(?:n't| not)|unable to|fail(?:s|ed)? to|not able to|impossible to) (?:even |be )?fit (?:\w+ ){0,6}?(?:in(?:to|side)?|on(?:to)?) (?:\w+ ){0,3}?(?:memory|v?ram|ram|gpus?|cards?|\d{1,3} ?g(?:i?b)?\b)`),
}

// wentWrong are words of anything that went wrong.
var wentWrong = later(`(?i)\b(?:error|fail|crash|kill|oom\b|out of|die[sd]?\b|freez|froze|hang|stuck|abort|stops?\b|exit|swap)`)

// said is all that a person wrote.
func (l *Log) said() string {
	var all strings.Builder
	for _, k := range l.Kept {
		all.WriteString(k.Text)
		all.WriteByte('\n')
	}
	return all.String()
}

// endings of a program without its own word for memory, which count where memory is spoken of near.
var endedHard = later(`(?i)\b(?:kernel|os|system|linux|oom[ -]?killer|slurm) (?:then )?kills? (?:the |my |it\b)|\b(?:get(?:s|ting)?|got|is|was|being|been|are|were|be|just|silently|randomly|automatically|finally|process) (?:\w+ ){0,2}?killed\b|\bsigkill\b|\b(?:signal|exit(?:s|ed)?(?: with)?(?: (?:code|status))?|returned?(?: code)?|status|exitcode) ?[:=(]{0,2} ?(?:-9|9|137)\b|` +
	`\b(?:machine|computer|system|server|pc|laptop|desktop|node|ssh|whole thing|everything) (?:\w+ ){0,2}?(?:freez\w*|froze\w*|hangs?|hung|crash(?:es|ed)?|reboots?|rebooted|unresponsive|locks? up)|(?:kernel|session|colab|notebook|runtime|it|then|training|program|process|script|job|run) (?:\w+ ){0,2}?(?:crash(?:es|ed)?|die[sd]|stops|aborts|restart(?:s|ed)?)|(?:被|自动)(?:系统)?(?:杀死|杀掉|kill)|(?:死机|卡死|崩溃)`)

// killedOnly is a program that was killed, as somebody says who names no reason.
var killedOnly = later(`(?i)(?:prints?|printed|says?|shows?|outputs?|only|just|message|error|with|see|get|got)\b[^.\n]{0,20}["'\x60]killed["'\x60]|\b(?:with|the|a) killed error|\bgetting killed\b|^\W*(?:process |program |training |script )?(?:is |was |gets? |got )?killed\b|` +
	`\b(?:process|program|training|script|job|it|python|run) (?:is|was|gets?|got|has been|is being|just gets?) (?:\w+ ){0,2}?killed\b(?: (?:by|after|when|while|during|at|without)\b|[.,\n]|$)`)

// endedFor are reasons why a program is killed that has memory enough.
var endedFor = later(`(?i)kill -9|pkill|killall|scancel|time ?-?limit|time ?out|timed out|wall ?time|preempt|` +
	`manually|by (?:me|myself|the user|user|admin\w*|hand)\b|I killed|\bcancel|watchdog|maintenance`)

// rising are sentences about memory that grows and stays.
var rising = later(`(?i)\b(?:` + toldMemory + `|rss)\b(?:[^.\n]|\.\d){0,50}?\b(?:keep(?:s|ing)?|kept|slowly|gradual(?:ly)?|constant(?:ly)?|steadi(?:ly)?|steady|continu\w+|linear(?:ly)?|always|increasingly|indefinitely|monoton\w+|over time|never|each|every|more and more)\b(?:[^.\n]|\.\d){0,30}?\b(?:increas\w*|gr[eo]w\w*|ris(?:e[sn]?|ing)|rose|climb\w*|accumulat\w*|leak\w*|go(?:es|ing)? up|went up|releas\w+|freed|fill\w*|creep\w*)|` +
	`\b(?:` + toldMemory + `)\b(?:[^.\n]|\.\d){0,40}?\b(?:increas\w*|gr[eo]w\w*|ris(?:e[sn]?|ing)|climb\w*|accumulat\w*|go(?:es|ing)? up|went up|creep\w*|fill\w* up) (?:\w+ ){0,3}?\b(?:over time|every|each|after|until|with|as|during|steadily|slowly|gradually|constantly|continuously|linearly|indefinitely|per|and|from)\b|` +
	`\b(?:increasing|growing|rising|slow(?:ly)?|gradual(?:ly)?|constant(?:ly)?|steady) (?:\w+ ){0,2}?(?:increase|growth|growing|increasing|rise)? ?(?:of |in )?(?:the )?` + toldKind + toldMemory + `\b|\b(?:memory|ram|vram)[ -]?leak(?:s|age|ing|ed)?\b|(?:内存|显存)[^。\n]{0,16}(?:泄[漏露]|一直(?:增|涨|上)|不断|逐渐|持续|越来越|缓慢)|メモリ(?:ー)?リーク`)

// unlikely are words before the telling ones that take the claim back: what was avoided, what may
// come, what was asked.
var (
	unlikely = later(`(?i)(?:\b(?:avoid\w*|prevent\w*|without|instead of|no longer|never|rather than|in case|possib\w+|reduc\w+|eliminat\w+|mitigat\w+|less likely|to (?:fix|handle|mitigate|reduce|catch|detect|debug|estimate|predict|address|solve|resolve)|worr\w+|afraid|concern\w*|risk\w*|protect\w*|guard\w*|rule[sd]? out|whether|wonder\w*|suspect\w*|assum\w+|guess\w*|maybe|perhaps|probably not|lest|unless|unlike|fix(?:e[sd])?|solved?|resolved?|handl\w+|support\w* for|catch(?:es)?|similar to|related to)\b[^.,;:!?]{0,60}|` +
		`\b(?:is|was|do|does|did|are|am|it'?s|has|have) ?(?:not|n't)\b[^.,;:!?]{0,24}|\b(?:not|isn't|wasn't|don't|doesn't|didn't|aren't|haven't|hasn't|no|nor) (?:\w+ ){0,3}|` +
		`\b(?:might|may|could|would|should|can) (?:\w+ ){0,5}|^\W*(?:is|was|are|were|does|do|did|will|would) (?:it|this|that|there|they|the \w+) (?:\w+ ){0,4}|\bif (?:you|one|users?|we|they|your)\b[^.,;:!?]{0,60}|\b(?:when(?:ever)?|if) (?:you|users?|one|an?|any)\b[^.;!?]{0,60}|(?:没有|不是|并非|未|无|避免|防止|解决|是否|是不是|会不会|难道)[^，。,]{0,8})$`)
	takenBack = later(`(?i)^[^.,;:!?\n]{0,40}\b(?:is|was|were|are) (?:not|n't|no longer|fixed|solved|gone|resolved|avoided|fine|unlikely|unrelated|irrelevant|disabled)\b|^(?:[^.,;:!?\n]{0,20}\b)?(?:prevention|handling|handler|guard|safe|protection|detection|estimat\w+|test|tests|score|threshold|policy|recovery|monitor)\b|^['"]?\s*(?:=|\))`)
	notMine   = later(`(?i)\b(?:still|but|however|again|always|also|already|now|then|even|eventually|immediately|easily|definitely|just) (?:\w+ ){0,2}$|\b(?:causes?|causing|results?|leads?|leading|makes?|gives?)\b[^.,;]{0,30}$`)
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
}

// sentencesEnd divides prose.
var sentencesEnd = later(`[.!?](?:["')\]]*)(?:\s+|$)|[。！？；]\s*`)

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
				all = append(all, sentence{cut(s, longSentence), from, began <= titleLines})
			}
			text = text[end:]
		}
	}
	last, at := 0, int64(0)
	for _, l := range unwrapped(lines) {
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

// claims reports where a sentence asserts that memory ran out, and whether it takes that back.
func (s *sentence) claims(is *expression) bool {
	at := is.FindStringIndex(s.text)
	if at == nil {
		return false
	}
	before, after := s.text[:at[0]], s.text[at[1]:]
	inside := s.text[at[0]:at[1]]
	if asksWhether.MatchString(after) || strings.HasSuffix(strings.TrimSpace(s.text), "?") &&
		questions.MatchString(s.text) || wentOn.MatchString(s.text) || triedLess.MatchString(s.text) {
		return false
	}
	if unlikely.MatchString(before) && !notMine.MatchString(before) || takenBack.MatchString(after) {
		return false
	}
	return !withinAvoided.MatchString(inside)
}

var (
	// questions are sentences that ask whether memory is the reason
	questions   = later(`(?i)^\W*(?:is|was|could|can|does|do|did|would|should|may|might|has|are|what|how|why (?:don't|not)|any)\b`)
	asksWhether = later(`^[^。？?！!]{0,12}吗|^[^。？?！!]{0,6}(?:か|かな)[？?]`)
	// triedLess is what tuners print that go on with less
	triedLess = later(`(?i)\breduc(?:ing|ed) (?:\w+ )?to \d|\bsucceeded, trying`)
	// withinAvoided are verbs of such a claim that deny it
	withinAvoided = later(`(?i)\b(?:avoid\w*|prevent\w*|without|not|n't|never|no longer|fix(?:ed|es)?|solv\w+|handl\w+|no) (?:\w+ ){0,2}?(?:oom|out of)`)
)

// The memories that a person names.
var (
	ofHost  = later(`(?i)\b(?:cpu|host|system|main|server|machine|node|physical|computer)(?:'s)?[ -](?:memory|ram|oom|out of memory|mem)\b|\b(?:sys|cpu|host)_?ram\b|\bcpu and ram\b|\breads?\b[^.\n]{0,40}\binto memory\b|\bout of (?:system |cpu |host )?ram\b|\boom[ -]?kill|MemoryError|Array buffer|(?:process|program|job|script|python)\w* (?:is |was |gets? |got |has been )?killed\b|killed by|sigkill|signal 9|exit(?:ed)?(?: with)? (?:code|status) ?[:=]? ?(?:137|-9)|\bslurm\b|\bswap\b|\bhtop\b|\brss\b|\bdmesg\b|\bdocker\b|\bpods?\b|kubernetes|\breboot|freez|froze|内存|內存|記憶體|arbeitsspeicher|озу|оперативн`)
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
var ofNetwork = later(`(?i)\btrain|fine-?tun|\bmodels?\b|\bepochs?\b|\blora\b|inference|\bbatch|backward|gradient|\bloss\b|attention`)

// hostFirst are sentences that name host memory as what ran out, whatever else they name.
var hostFirst = later(`(?i)\b(?:cpu|host|system|main)[ -](?:memory|ram|oom)\b[^.\n]{0,40}(?:oom|out of|full|exhaust|overflow|increas|grow|leak|explo|ris|not enough|insufficient|kill)|(?:out of|oom|exhaust\w*|fills?|eats?|not enough|insufficient)[^.\n]{0,30}\b(?:cpu|host|system|main)[ -](?:memory|ram)|\bkilled\b|内存(?:不足|溢出|爆|泄)`)

// tell reads what a person wrote, and adds the shortage that they tell of where no program's
// message
// shows one.
func tell(log *Log) {
	prose := proseIn(log.Kept)
	log.Said = saidIn(prose)
	if slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Class == Exhausted ||
			c.Class == Survived
	}) {
		return
	}
	claimed, rises, hard, hinted, weak := -1, -1, -1, -1, 0
	count := 0
	for i := range prose {
		s := &prose[i]
		if slices.ContainsFunc(asserted, s.claims) ||
			s.claims(swallowed) && wentWrong.MatchString(log.said()) {
			if count++; claimed < 0 {
				claimed = i
			}
		} else if slices.ContainsFunc(weakly, s.claims) {
			if weak++; s.title || weak > 1 {
				hinted = i
			}
		}
		if rises < 0 && s.claims(rising) {
			rises = i
		}
		if hard < 0 && endedHard.MatchString(s.text) && !endedFor.MatchString(s.text) {
			hard = i
		}
	}
	if slices.ContainsFunc(log.Crashes, func(c Crash) bool {
		return c.Class == Other &&
			c.Sure >= toldPerhaps
	}) {
		return // its own words say what it was
	}
	other := len(log.Crashes) > 0
	if claimed < 0 && !other {
		claimed = hinted
	}
	at, sure := claimed, toldSure
	if claimed < 0 && rises < 0 && !other {
		if at := slices.IndexFunc(prose, func(s sentence) bool {
			return s.claims(killedOnly) &&
				!endedFor.MatchString(s.text)
		}); at >= 0 {
			c := toldCrash(log, prose, at, toldPerhaps)
			c.Kind, c.Where = "bare_kill", event.WhereHost
			c.What = "killed by SIGKILL without a reason; memory is the usual one"
			log.Crashes = append(log.Crashes, c)
		}
		return
	}
	switch {
	case claimed >= 0 && other && count < 2 && !prose[claimed].title:
		return // memory is mentioned beside another end
	case claimed >= 0 && other:
		sure = toldPerhaps
	case claimed >= 0:
	case rises >= 0 && hard >= 0 && !other:
		at, sure = rises, toldPerhaps
	case rises >= 0 && !other:
		at, sure = rises, toldRises
	default:
		return
	}
	log.Crashes = append(log.Crashes, toldCrash(log, prose, at, sure))
}

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
	if c.Where == "" && hostMeter.MatchString(text) {
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
	if c.Where == "" && ofNetwork.MatchString(text) {
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
	if m := immense.FindStringSubmatch(s.text); m != nil {
		c.Requested, c.Where = parseSize(m[1], m[2]), event.WhereHost // no card has that much
	}
	settleFramework(&c, log)
	if c.Framework == "other" && foreignIn(text) == "" && c.Where != event.WhereHost {
		c.Framework = "pytorch"
	}
	return c
}

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
	return Said{strings.ToLower(of.String()), strings.ToLower(near.String())}
}

// immense is a size that people reckon or read for what they cannot hold.
var immense = later(`(\d+(?:\.\d+)?) ?(Ti?B)\b`)

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
