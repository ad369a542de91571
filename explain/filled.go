package explain

import (
	"fmt"

	"memroom/lazyregexp"
	"memroom/remedy"
)

// readers are the calls that load data whole, and how to write them so that they do not. %[1]s is
// what the call was given.
var readers = []struct {
	call *lazyregexp.Regexp // its first group is the first argument
	code string
}{
	{lazyregexp.New(`\bread_csv\(\s*([^,)\]]+)`),
		`memroom.Stream(%[1]s, budget="256MiB")   # or pd.read_csv(%[1]s, chunksize=100_000)`},
	{lazyregexp.New(`\bread_parquet\(\s*([^,)\]]+)`),
		`memroom.Stream(%[1]s, budget="256MiB")   # or pd.read_parquet(%[1]s, columns=[...])`},
	{lazyregexp.New(`\b(?:np|numpy)\.load\(\s*([^,)\]]+)`),
		`np.load(%[1]s, mmap_mode="r")`},
	{lazyregexp.New(`\bnp\.(?:loadtxt|genfromtxt)\(\s*([^,)\]]+)`),
		`memroom.Stream(%[1]s, budget="256MiB")`},
	{lazyregexp.New(`\bfromfile\(\s*([^,)\]]+)`),
		`np.memmap(%[1]s, mode="r")   # with the same dtype`},
	{lazyregexp.New(`\bto_categorical\(\s*([^,)\]]+)`),
		`keep %[1]s as numbers: loss="sparse_categorical_crossentropy"`},
	{lazyregexp.New(`(\w+)\.fetchall\(`),
		`for row in %[1]s: ...   # or %[1]s.fetchmany(1000)`},
	{lazyregexp.New(`\b(?:list|tuple)\((\w*\.?reader\(.*?\)|open\(.*?\))\)`),
		`for row in %[1]s: ...   # a row at a time`},
	{lazyregexp.New(`(\w+(?:\([^()]*\))?)\.(?:read|readlines)\(\)`),
		`for line in %[1]s: ...   # or mmap.mmap(%[1]s.fileno(), 0, access=mmap.ACCESS_READ)`},
	{lazyregexp.New(`\bpd\.read_\w+\(\s*([^,)\]]+)`),
		`memroom.Stream(%[1]s, budget="256MiB")   # of a copy in CSV, Parquet or Arrow`},
	{lazyregexp.New(`\btorch\.load\(\s*([^,)\]]+)`),
		`torch.load(%[1]s, mmap=True)   # pages of the file come when they are used`},
	{lazyregexp.New(`\bjson\.loads?\(\s*([^,)\]]+)`),
		`one object a line instead of %[1]s: memroom.Stream("data.jsonl", budget="256MiB")`},
	{lazyregexp.New(`\bpickle\.loads?\(\s*([^,)\]]+)`),
		`write what is in %[1]s once by rows (.npy, Arrow): np.load("data.npy", mmap_mode="r")`},
	{lazyregexp.New(`\b(?:Image\.open|cv2\.imread|imageio\.imread|plt\.imread|load_img)\(\s*([^,)\]]+)`),
		`keep %[1]s and decode it when it is asked for: in Dataset.__getitem__, or ds.map(decode)`},
	{lazyregexp.New(`\[.*\bfor\s+(\w+)\s+in\b.*\]|\{.*\bfor\s+(\w+)\s+in\b.*\}`),
		`make each one when it is asked for: in Dataset.__getitem__, or (... for %[1]s in ...)`},
	{lazyregexp.New(`(\w+)(?:\[[^\]]*\])?\.append\(`),
		`yield each one instead of keeping it in %[1]s, or keep its path`},
	{lazyregexp.New(`((?:self\.)?\w+)\s*=\s*(?:pd\.)?concat\(`),
		`use one part at a time instead of joining them in %[1]s: memroom.Stream("*.csv", budget="256MiB")`},
	{lazyregexp.New(`(\w+)\.(?:astype|double|float)\(`),
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
			if m := r.call.FindStringSubmatch(line); m != nil {
				argument := m[1]
				for _, other := range m[2:] {
					argument += other // one of the alternatives matched
				}
				x.Remedies[i].How = remedy.How{Code: fmt.Sprintf(r.code, argument)}
				return
			}
		}
	}
}
