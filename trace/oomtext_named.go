package trace

import (
	"slices"
	"strings"

	"memroom/event"
)

// Figure is a size that a log prints under a name of its own.
type Figure struct {
	What  string
	Bytes event.Bytes
}

// Shapes of named sizes: "KV self size = 1005.79 MiB", "model weights take 14.96GiB",
// "CPU Virtual Memory:  used = 224.93 GB", "parameter allocation:  384.71MiB", "avail mem=8.31 GB".
var (
	namedSize = later(`([A-Za-z][\w.^/()-]*(?:[ :]{1,3}[A-Za-z][\w.^/()-]*){0,6})` +
		`(?:\s{0,3}[:=(]\s{0,16}|\s(?:takes?|took|is|are|of|needs?|has)\s{1,3}|\s{1,3})` +
		`(\d[\d,]*(?:\.\d+)?)\s?(KiB|MiB|GiB|TiB|kB|KB|MB|GB|TB)\b`)
	namedPair  = later(`([A-Za-z][\w -]{3,40}):\s{0,4}(\d+(?:\.\d+)?) ?/ ?(\d+(?:\.\d+)?) ?(GiB|MiB|GB|MB)\b`)
	memoryName = later(`(?i)mem|alloc|buffer|cache|\bused\b|free|total|usage|reserved|weights?\b|limit|param|` +
		`temp\b|swap|\brss|heap|objects?\b|loading|activation|(?:\b|_)CA\b|(?:\b|_)MA\b|size|capacity|fragmentation`)
	noName   = later(`(?i)(?:^| )(?:and|or|but|than|about|only|with|have|i have|my)$`)
	noFigure = later(`(?i)\b(?:Gi?B|Mi?B)/s\b|download|it/s|batch size|RESOURCE_EXHAUSTED`)
)

// Bounds of what is kept of named sizes.
const (
	mostNamed = 24
	namedLine = 400 // bytes of each line
)

// namedSizes lists the sizes that stand under a name around a crash, the last of each name.
// Programs that print GB count in powers of 1024 nearly always.
func namedSizes(text string) []Figure {
	var all []Figure
	put := func(what, number, unit string) {
		what = what[strings.LastIndexAny(what, ")].;")+1:] // the end of what stands before it
		what = strings.Trim(strings.Join(strings.Fields(what), " "), " :=-(")
		size := parseSize(number, strings.Replace(strings.ToUpper(unit[:1])+"iB", "iiB", "iB", 1))
		if size == nil || *size == 0 || !memoryName.MatchString(what) || noName.MatchString(what) {
			return
		}
		all = slices.DeleteFunc(all, func(f Figure) bool { return f.What == what })
		all = append(all, Figure{what, *size})
	}
	lines := strings.Split(text, "\n")
	slices.Reverse(lines[1:]) // those above come nearest first
	for _, line := range append(slices.Clone(lines[1:]), lines[0]) {
		line = cut(line, namedLine)
		if noFigure.MatchString(line) {
			continue
		}
		for _, m := range namedPair.FindAllStringSubmatch(line, 2) {
			put(m[1]+" used", m[2], m[4])
			put(m[1]+" total", m[3], m[4])
		}
		for _, m := range namedSize.FindAllStringSubmatch(line, 8) {
			put(m[1], m[2], m[3])
		}
	}
	return all[max(0, len(all)-mostNamed):]
}
