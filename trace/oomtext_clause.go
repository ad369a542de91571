package trace

import (
	"strings"
	"sync"
)

// A sentence is read as a row of classes, a letter for each word, and what it says about memory is
// an expression over these letters. So one rule holds for all ways to fill its places: "ran out of
// VRAM" and "goes out of the available GPU memory" are both P..M.

// lexicon lists the words of each class. A star stands for any ending; words that mean something
// else together are joined.
var lexicon = map[byte]string{
	'M': "memory memories mem mems ram vram vmem dram gram rss hbm swap",
	'K': "host cpu system main video graphics graphic physical unified shared tpu npu mps hip rocm my our its total dedicated",
	'C': "gpu gpus cuda card cards device devices",
	'O': "oom ooms oomed oom'd oom'ed ooming oomkilled outofmemory* memoryerror cuda_out_of_memory over_memory",
	'P': "out_of",
	'x': "insufficient exhaust* deplet* overflow* overload* overrun* shortage lack lacks lacking lacked short_of short_on low_on saturat* maxed " +
		"exceed exceeds exceeded exceeding explod* explosion blow* blew filled_up used_up thrash* runs_out ran_out run_out no_more no_free no_available",
	'f': "full",
	'l': "low little small tiny limited",
	'e': "enough sufficient adequate",
	'm': "more left remaining available spare",
	'h': "than",
	'b': "much lots lot huge large enormous massive excessive* extreme* insane* crazy ridiculous* unreasonab* heavy heavily high higher " +
		"tremendous* unusual* abnormal* all whole entire nearly almost",
	't': "consum* eat eats ate eating eaten use uses used using occup* take takes took taken taking requir* need needs needed needing hog* " +
		"demand* gobbl* suck* swallow* asks asked",
	'u': "usage consumption footprint allocation allocations requirement requirements pressure",
	'G': "increases increased grows grew grow rises rose rise climbs climbed climb accumulates accumulated accumulate creeps balloon* go_up " +
		"goes_up went_up builds_up piles_up spike spikes spiked fill fills filled",
	'g': "increasing growing growth rising climbing accumulating accumulation creeping leak leaks leaking leaked " +
		"leakage memleak going_up filling",
	'q': "increase_in increase_of growth_of growth_in leak_of leak_in rise_in rise_of",
	'i': "increase raise",
	'L': "release released releases releasing free freed frees freeing clear cleared clears clearing reclaim* deallocat* drop drops " +
		"decrease decreases down",
	'k': "killed* sigkill*",
	'E': "crash* kills die dies died dying abort* freez* froze frozen hang hangs hung hanging stuck reboot* restart* terminated terminates " +
		"unresponsive disconnect* dead stops stopped broke_down breaks_down",
	'R': "complain* error errors exception exceptions fail fails failed failing failure failures",
	'I': "issue issues problem problems trouble troubles",
	'J': "cannot can't couldn't unable can_not could_not not_able refuse* impossible won't failed_to",
	'a': "alloc allocate allocated allocates allocating malloc",
	'D': "due because owing",
	'W': "with by from tried try",
	'U': "until till untill then eventually finally before ultimately",
	'c': "keep keeps kept slow* gradual* constant* stead* continu* linear* always indefinite* monoton* every each endless* ceaseless* " +
		"unlimit* infinit* forever progressive* epoch epochs iteration iterations step steps over after during time increasingly",
	'Z': "not no never without nor neither none hardly barely isnt dont doesnt didnt doesnot donot",
	'V': "run runs ran running go goes went going get gets got getting become* becomes became is was are were be been being has have had " +
		"having seems does do did it's reach* hits hit",
	'p': "print prints printed output outputs says said show shows shown return returns message reports",
	'y': "limit limits",
	'S': "process processes program programme job script training machine computer server pc laptop node kernel session colab runtime " +
		"notebook container pod python worker workers instance vm",
	'B': "loss accuracy disk storage bandwidth utilization utilisation speed throughput lr",
}

// kinds are words that may stand between a shortage and the memory that is short.
const kinds = `[_KCbm]{0,4}`

// What is said about memory: that it ran out; that it grows and stays; that much of it is taken,
// which is no end by itself; that a program was killed.
var (
	saysShort = anyOf(`O`, `P`+kinds+`M`, `M[_KCSVubc]{0,4}x`, `Mu?V[_bc]?f`, `Mf(?:[|_]|$)`, `x`+kinds+`M(?:[^gqIR]|$)`,
		`CV?[_b]?x`, `CV[_b]?f`, `Z[_VSt]{0,3}e`+kinds+`M`, `M[_KCuSV]{0,3}Z[_V]{0,2}e`, `Z[_KC]{0,2}Mm`,
		`[Ek][_SKCn]{0,4}D[_KClb]{0,5}M`, `R[_SKC]{0,3}D[_KClb]{0,5}M`, `[Ek]_{0,2}W[_KC]{0,2}M[RIxu]`,
		`D_?l[KC]*M`, `Mu?R`, `V_{0,2}[KC]*My(?:[|_E]|$)`, `[au][_WK]{0,2}C[_V]?R`, `[JR][_V]{0,2}a[_bKCSnW|]{0,5}[NHM]`, `[au][_W]{0,2}[NH][_SM]{0,3}R`,
		`M[^|]{0,8}[Ggi][^B]{0,14}[EkOP]`, `g[_KC]{0,4}M[^B]{0,14}[EkOP]`, `t[_KCbm]{0,3}M[^B]{0,10}U[^B]{0,8}[EkOP]`,
		`[Gg][^B|]{0,10}UV?[_S]{0,4}[ERkx]`,
		`[taM][^|BZ]{0,6}H`)
	saysGrown = anyOf(`M[_KCSVubcnN]{0,7}[gq]`, `M[_KCSVubnN]{0,6}G[^|B]{0,8}c`, `M[_KCSVub]{0,5}c[_c]{0,3}[Gi]`, `Mu?[Gi](?:[|_]|$)`,
		`M[_KCSVubc]{0,4}Z[_Vc]{0,3}L`, `Z[_Vc]{0,3}L[_KCbt]{0,4}M`, `(?:^|[^DWt])g[KC]*M`, `c[_c]{0,2}(?:[Gg]|tm|tb)[_KC]{0,3}M`,
		`q[_KCu]{0,3}M`, `M[_KCSVu]{0,5}[Gi]_?W?[Nn]`)
	saysTakes = anyOf(`t[_bW]{0,3}b`+kinds+`M`, `b[KC_]{0,2}Mu`, `Mu[_SKCV]{0,8}b`, `MV_?b`, `t[_mh]{0,6}[NH][_KC]{0,3}M`, `MI`, `Mu?[_VS]{0,3}F`, `J[_S]{0,5}N`, `t_{0,2}m[KC]*M`,
		`[RI][_W]{0,2}[KC]*M`, `Dl?[KC]*M`)
	saysKilled  = anyOf(`p[_|]{0,2}k`, `[SV][_VcS]{0,3}k`, `(?:^|\|)[cV]?k(?:[|c_]|$)`)
	saysSigkill = anyOf(`k`)
	saysEnd     = anyOf(`[EkOP]`)
	saysDied    = anyOf(`S[_VcSp]{0,4}E`, `E[_V]?S`)
)

func anyOf(rules ...string) *expression { return later(strings.Join(rules, "|")) }

// wordIn is a word, a number with its unit, or a sign that divides clauses.
var (
	wordIn     = later(`\d[\d.,]*[\p{L}%]*|[\p{L}_](?:[\p{L}\p{N}_]|['’]\p{L})*|[,;:()|"“”\x60]`)
	unitWord   = later(`^\d[\d.,]*(?:g|gb|gib|gbs|gig|gigs|gigabytes?|mb|mib)$`)
	hugeWord   = later(`^\d[\d.,]*(?:tb|tib|ti)$`)
	nearlyAll  = later(`^(?:9\d|100)(?:\.\d+)?%$`)
	numberWord = later(`^\d[\d.,]*$`)
)

// wordClasses are the classes of whole words and of their beginnings.
var wordClasses = sync.OnceValues(func() (whole, begins map[string]byte) {
	whole, begins = map[string]byte{}, map[string]byte{}
	for class, list := range lexicon {
		for _, w := range strings.Fields(list) {
			if stem, ok := strings.CutSuffix(w, "*"); ok {
				begins[stem] = class
			} else {
				whole[w] = class
			}
		}
	}
	return whole, begins
})

// classOf returns the class of a word, '_' for one that belongs to none.
func classOf(word string) byte {
	whole, begins := wordClasses()
	switch {
	case whole[word] != 0:
		return whole[word]
	case strings.ContainsAny(word, ",;:()|\"“”`"), word == "but", word == "however":
		return '|'
	case strings.HasSuffix(word, "n't"):
		return 'Z'
	case unitWord.MatchString(word):
		return 'N'
	case hugeWord.MatchString(word):
		return 'H'
	case nearlyAll.MatchString(word):
		return 'F'
	case numberWord.MatchString(word):
		return 'n'
	}
	for n := len(word); n > 2; n-- {
		if class := begins[word[:n]]; class != 0 {
			return class
		}
	}
	return '_'
}

// pairOf returns the class of two words that belong together, 0 where they do not: "run out" is a
// shortage, "run out of" is not yet one.
func pairOf(words []string) byte {
	if len(words) < 2 || len(words) > 2 && words[1] == "out" && words[2] == "of" {
		return 0
	}
	if numberWord.MatchString(words[0]) {
		if class := classOf(words[0] + words[1]); class == 'N' || class == 'H' {
			return class
		}
	}
	whole, _ := wordClasses()
	return whole[words[0]+"_"+words[1]]
}

// classesOf returns the classes of a sentence, and where the word of each stands.
func classesOf(text string) (row string, places [][2]int) {
	found := wordIn.FindAllStringIndex(text, 200)
	words := make([]string, len(found))
	for i, at := range found {
		words[i] = strings.ReplaceAll(strings.ToLower(text[at[0]:at[1]]), "\u2019", "'")
	}
	var classes strings.Builder
	for i := 0; i < len(found); i++ {
		from, class := found[i][0], pairOf(words[i:])
		if class != 0 {
			i++
		} else {
			class = classOf(words[i])
		}
		classes.WriteByte(class)
		places = append(places, [2]int{from, found[i][1]})
	}
	return classes.String(), places
}
