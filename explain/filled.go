package explain

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// readers are the calls that load data whole, and how to write them so that they do not. %[1]s is
// what the pattern's group matched or, without a group, the first argument of the call that it
// begins; %[2]s are the other arguments, each after a comma.
var readers = []struct {
	call *lazyregexp.Regexp
	code string
}{
	{lazyregexp.New(`\b(?:pd|pandas)\.read_csv\(`),
		`for chunk in pd.read_csv(%[1]s%[2]s, chunksize=100_000): ...   # or memroom.Stream(%[1]s, budget="256MiB")`},
	{lazyregexp.New(`\bread_csv\(`),
		`memroom.Stream(%[1]s, budget="256MiB")`},
	{lazyregexp.New(`\bread_parquet\(`),
		`memroom.Stream(%[1]s, budget="256MiB")   # or pd.read_parquet(%[1]s, columns=[...])`},
	{lazyregexp.New(`\b(?:np|numpy)\.load\(`),
		`np.load(%[1]s%[2]s, mmap_mode="r")`},
	{lazyregexp.New(`\bnp\.(?:loadtxt|genfromtxt)\(`),
		`memroom.Stream(%[1]s, budget="256MiB")`},
	{lazyregexp.New(`\bfromfile\(`),
		`np.memmap(%[1]s, mode="r")   # with the same dtype`},
	{lazyregexp.New(`\bto_categorical\(`),
		`keep %[1]s as numbers: loss="sparse_categorical_crossentropy"`},
	{lazyregexp.New(`((?:\w+\.)*\w+)\.fetchall\(`),
		`for row in %[1]s: ...   # or %[1]s.fetchmany(1000)`},
	{lazyregexp.New(`\b(?:list|tuple)\((?:\w*\.?reader|open)\(`),
		`for row in %[1]s: ...   # a row at a time`},
	{lazyregexp.New(`(\w+(?:\([^()]*\))?)\.(?:read|readlines)\(\)`),
		`for line in %[1]s: ...   # or mmap.mmap(%[1]s.fileno(), 0, access=mmap.ACCESS_READ)`},
	{lazyregexp.New(`\bread_sql\w*\(`),
		`for chunk in pd.read_sql(%[1]s%[2]s, chunksize=100_000): ...`},
	{lazyregexp.New(`\bpd\.read_\w+\(`),
		`memroom.Stream(%[1]s, budget="256MiB")   # of a copy in CSV, Parquet or Arrow`},
	{lazyregexp.New(`\btorch\.load\(`),
		`torch.load(%[1]s%[2]s, mmap=True)   # pages of the file come when they are used`},
	{lazyregexp.New(`\bjson\.loads?\(`),
		`one object a line instead of %[1]s: memroom.Stream("data.jsonl", budget="256MiB")`},
	{lazyregexp.New(`\bpickle\.loads?\(`),
		`write what is in %[1]s once by rows (.npy, Arrow): np.load("data.npy", mmap_mode="r")`},
	{lazyregexp.New(`\b(?:Image\.open|cv2\.imread|imageio\.imread|plt\.imread|load_img)\(`),
		`keep %[1]s and decode it when it is asked for: in Dataset.__getitem__, or ds.map(decode)`},
	{lazyregexp.New(`\[.*\bfor\s+(\w+)\s+in\b.*\]|\{.*\bfor\s+(\w+)\s+in\b.*\}`),
		`make each one when it is asked for: in Dataset.__getitem__, or (... for %[1]s in ...)`},
	{lazyregexp.New(`((?:\w+\.)*\w+)(?:\[[^\]]*\])?\.append\(`),
		`yield each one instead of keeping it in %[1]s, or keep its path`},
	{lazyregexp.New(`((?:self\.)?\w+)\s*=\s*(?:pd\.)?concat\(`),
		`use one part at a time instead of joining them in %[1]s: memroom.Stream("*.csv", budget="256MiB")`},
	{lazyregexp.New(`((?:\w+\.)*\w+)\.(?:astype|double|float)\(`),
		`convert a batch when it is used: %[1]s[i:i + n].astype("float32")`},
	{lazyregexp.New(`\b(?:np|numpy)\.(?:as)?array\(\s*(\w+\[["'][^\]]+\])\s*[,)]`),
		`keep %[1]s open and read one batch at a time: %[1]s[i:i + n]`},
	{lazyregexp.New(`=\s*(\w+(?:\[["']\w+["']\])?)\[(?::|\(\)|\.\.\.)\]`),
		`keep %[1]s open and read one batch at a time: %[1]s[i:i + n]`},
	{lazyregexp.New("((?:self\\.)?\\w+)\\[[^\\]`]*\\]\\s*=[^=]"),
		`bound what %[1]s keeps: functools.lru_cache(maxsize=64), or nothing`},
	{lazyregexp.New("`return (\\S[^`]*)`"),
		`bound what keeps each %[1]s: functools.lru_cache(maxsize=64), or make it again`},
	{lazyregexp.New("`((?:self\\.)?\\w+) = [^`]"),
		`make %[1]s a part at a time, when it is used, and write it once if it costs much`},
}

// inTheirWords writes the cure with the names of the line that filled memory.
func (x *Explanation) inTheirWords(line string) {
	for i, a := range x.Remedies {
		if a.ID != remedy.StreamData && a.ID != remedy.MapFile {
			continue
		}
		for _, r := range readers {
			m := r.call.FindStringSubmatch(line)
			if m == nil {
				continue
			}
			argument, others := strings.Join(m[1:], ""), "" // one of the alternatives matched
			if len(m) == 1 {
				at := r.call.FindStringIndex(line)[0] + strings.IndexByte(m[0], '(') + 1
				given, all := arguments(line[at:])
				if len(given) == 0 || named.MatchString(given[0]) {
					return // the general words stay
				}
				if !all {
					given = append(given, "...")
				}
				argument = given[0]
				for _, other := range given[1:] {
					others += ", " + other
				}
			}
			if bounded.MatchString(others) {
				return
			}
			x.Remedies[i].How = remedy.How{Code: fmt.Sprintf(r.code, argument, others)}
			return
		}
	}
}

// lettingGo writes the line at which graphs are kept as it keeps none, if the evidence shows that
// line.
func (x *Explanation) lettingGo(evidence []string) {
	at := slices.IndexFunc(x.Remedies, func(a Advice) bool { return a.ID == remedy.Detach })
	if at < 0 || x.Remedies[at].How.Code == "" {
		return
	}
	var code []string // a line for each that is blamed
	for _, seen := range evidence {
		if m := keepsGraph.FindStringSubmatch(seen); m != nil {
			released := ".detach().cpu()"
			if oneNumber.MatchString(m[3]) {
				released = ".item()"
			} else {
				x.Remedies[at].Title = "keep values without their graph"
			}
			code = append(code, fmt.Sprintf("%s%s%s%s   # %s", m[2], m[3], released, m[4], path.Base(m[1])))
		}
	}
	if len(code) > 0 {
		x.Remedies[at].How = remedy.How{Code: strings.Join(code, "\n")}
	}
}

// keepsGraph is a line that puts one value into a list or under a key, or that adds it to a sum:
// its place, what stands before the value, the value and what stands after it. oneNumber is the
// name of a value that is a single number.
var (
	keepsGraph = lazyregexp.New("^the memory is held by .* in (\\S+:\\d+) \\(`" +
		`(.*?(?:\.(?:append|appendleft|add)\(|\]\s*=\s*|\+=\s*|=\s*[\w.]+\s*\+\s*))` +
		`([A-Za-z_][\w.]*(?:\[[^\[\]]*\]|\([^()]*\))?)(\)?)` + "`\\): ")
	oneNumber = lazyregexp.New(`(?i)loss|error|acc|metric|score`)
)

// How an argument of a call begins that is not the source of the data, or that bounds it already.
var (
	named   = lazyregexp.New(`^(?:\w+\s*=[^=]|\*)`)
	bounded = lazyregexp.New(`\b(?:chunksize|mmap_mode|mmap)\s*=`)
)

// arguments returns the arguments of a call, from the text behind its bracket, and whether the text
// has all of them. One that is cut short is left out.
func arguments(text string) (found []string, all bool) {
	var closing []byte // of the brackets that are open
	for i, begins := 0, 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '"', '\'':
			end := quoted.FindStringIndex(text[i:])
			if end == nil {
				return found, false
			}
			i += end[1] - 1
		case '(':
			closing = append(closing, ')')
		case '[', '{':
			closing = append(closing, c+2)
		case ',', ')', ']', '}':
			if n := len(closing) - 1; n >= 0 {
				if c != ',' && c != closing[n] {
					return found, false
				}
				if c != ',' {
					closing = closing[:n]
				}
				continue
			}
			if given := strings.TrimSpace(text[begins:i]); given != "" {
				found = append(found, given)
			}
			if begins = i + 1; c != ',' {
				return found, c == ')'
			}
		case '#', '`':
			return found, false
		}
	}
	return found, false
}

var quoted = lazyregexp.New(`^(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')`)
