package trace

import (
	"strings"

	"memroom/event"
)

// What commands printed that people add to their logs: df for /dev/shm, free, sacct, nvidia-smi.
var figureWords = []entry{
	{words: []string{"/dev/shm"}, hint: hintShmSize},
	{words: []string{"mem:   "}, hint: hintMachine},
	{words: []string{"maxrss"}, hint: hintMaxRSS},
	{words: []string{"memory.total"}, hint: hintCardTable},
	{words: []string{"object_store_memory", "object store memory", "plasma store"},
		hint: hintObjectStore},
}

// sizesSeen are sizes that stand in a log beside its end.
type sizesSeen struct {
	shm, machine, maxRSS, cardFree, cardTotal, store *event.Bytes
}

var shmRow = later(`^\S+\s+([\d.]+)([KMGT]?)\s+[\d.]+[KMGT]?\s+[\d.]+[KMGT]?\s+\d+%\s+/dev/shm\s*$`)

// hintShmSize reads the size from `df` or `df -h`.
func hintShmSize(h *hintCollector, p *passage) {
	m := shmRow.FindStringSubmatch(strings.TrimSpace(p.line()))
	if m == nil {
		return
	}
	unit := m[2]
	if unit == "" {
		unit = "K" // df counts blocks of 1 KiB unless asked otherwise
	}
	h.beside.shm = parseSize(m[1], unit+"iB")
}

var (
	machineRow = later(`^Mem:\s+([\d.]+)(?:([KMGT])i?)?\s+[\d.]+[KMGT]?i?\s+[\d.]+[KMGT]?i?\b`)
	freeAsked  = later(`\bfree\s+-(\w)`)
)

// hintMachine reads the first row of `free`. Without a letter behind the figures the command, where
// it stands above, tells their unit; plain `free` prints KiB.
func hintMachine(h *hintCollector, p *passage) {
	m := machineRow.FindStringSubmatch(strings.TrimSpace(p.line()))
	if m == nil {
		return
	}
	unit := strings.ToUpper(m[2])
	if unit == "" {
		unit = "K"
		for _, line := range p.above(3) {
			if asked := freeAsked.FindStringSubmatch(line); asked != nil &&
				strings.ContainsAny(asked[1], "gGmM") {
				unit = strings.ToUpper(asked[1])
			}
		}
	}
	h.beside.machine = parseSize(m[1], unit+"iB")
}

var sizeWord = later(`^([\d.]+)([KMGT])$`)

// hintMaxRSS reads the largest figure of sacct's column MaxRSS, by the place of its heading.
func hintMaxRSS(h *hintCollector, p *passage) {
	head := p.line()
	end := strings.Index(head, "MaxRSS")
	if end < 0 {
		return
	}
	end += len("MaxRSS")
	for _, row := range p.following(12)[1:] {
		if len(row) < end-1 {
			continue
		}
		cell := row[:min(len(row), end)]
		cell = cell[strings.LastIndexByte(cell, ' ')+1:]
		if m := sizeWord.FindStringSubmatch(cell); m != nil {
			if size := parseSize(m[1], m[2]+"iB"); size != nil && (h.beside.maxRSS == nil ||
				*size > *h.beside.maxRSS) {
				h.beside.maxRSS = size
			}
		}
	}
}

var cardCell = later(`([\d.]+) ?([MG]iB)`)

// hintCardTable reads `nvidia-smi --query-gpu=memory.free,memory.total --format=csv` of one card.
func hintCardTable(h *hintCollector, p *passage) {
	names := strings.Split(p.line(), ",")
	rows := p.following(2)
	if len(names) < 2 || len(rows) < 2 || strings.Contains(p.line(), "--query-gpu") {
		return
	}
	if len(rows) > 2 && strings.Count(rows[2], ",") == len(names)-1 && cardCell.MatchString(rows[2]) {
		return // several cards: which one was full is not said
	}
	cells := strings.Split(rows[1], ",")
	if len(cells) != len(names) {
		return
	}
	for i, name := range names {
		m := cardCell.FindStringSubmatch(cells[i])
		switch {
		case m == nil:
		case strings.Contains(name, "memory.free"):
			h.beside.cardFree = parseSize(m[1], m[2])
		case strings.Contains(name, "memory.total"):
			h.beside.cardTotal = parseSize(m[1], m[2])
		}
	}
}

var storeSize = pattern(`(?:object store (?:memory )?(?:with|of|has|is)|plasma store (?:with|of)|` +
	`object_store_memory["']?\s?[=:]) {size}`)

func hintObjectStore(h *hintCollector, p *passage) {
	if size := sizeIn(storeSize, p.line()); size != nil {
		h.beside.store = size
	}
}

// poolAsked are the words of RMM, the pool of RAPIDS.
var poolAsked = pattern(`RMM failure[^\n]{0,200}failed to allocate {size}`)

// settleFigures gives ends that name no size what the log shows elsewhere.
func settleFigures(log *Log, f sizesSeen) {
	var killed *event.Bytes
	for _, c := range log.Crashes {
		if c.Kind == "kernel_kill" && c.Allocated != nil {
			killed = c.Allocated
		}
	}
	for i := range log.Crashes {
		c := &log.Crashes[i]
		if c.Class != Exhausted {
			continue
		}
		switch c.Where {
		case event.WhereShm:
			if c.Kind == "ray_store" {
				c.Capacity = firstSize(c.Capacity, f.store)
			} else {
				c.Capacity = firstSize(c.Capacity, f.shm)
			}
		case event.WhereHost:
			c.Capacity = firstSize(c.Capacity, f.machine)
			if c.Kind == "torch_worker" {
				c.Allocated = firstSize(c.Allocated, killed)
			}
		case event.WhereCgroup:
			c.Allocated = firstSize(c.Allocated, f.maxRSS)
		case event.WhereGPU:
			c.Requested = firstSize(c.Requested, plainSize(treeAsked, c.Text),
				sizeIn(poolAsked, c.Text))
			c.Free = firstSize(c.Free, plainSize(treeFree, c.Text))
			if c.Requested == nil && c.Capacity == nil {
				c.Capacity, c.Free = f.cardTotal, firstSize(c.Free, f.cardFree)
			}
		}
	}
}
