package trace

import (
	"strconv"
	"strings"

	"memroom/event"
)

// What commands printed that people add to their logs: df for /dev/shm, free, sacct, nvidia-smi.
var figureWords = []entry{
	{words: []string{"/dev/shm"}, hint: hintShmSize},
	{words: []string{"mem:   "}, hint: hintMachine},
	{words: []string{"maxrss"}, hint: hintMaxRSS},
	{words: []string{"memory.total"}, hint: hintCardTable},
	{words: []string{"mib / ", "] nvidia ", "] tesla ", "] geforce ", "] quadro "}, hint: hintCardRow},
	{words: []string{"| processes:"}, hint: hintCardProcesses},
	{words: []string{"gib, reserved", "gib reserved"}, hint: hintOwnPool},
	{words: []string{"object_store_memory", "object store memory", "plasma store", "capacity: "},
		hint: hintObjectStore},
}

// sizesSeen are sizes that stand in a log beside its end.
type sizesSeen struct {
	shm, machine, maxRSS, cardFree, cardTotal, store *event.Bytes

	rows    []cardRow // of nvidia-smi
	holders []holderRow
	// what a program prints of its own pool
	ownAllocated, ownFree, ownTotal *event.Bytes
}

// cardRow is what nvidia-smi says of a card.
type cardRow struct {
	used, total event.Bytes
	at          int64 // its place in the log
}

// holderRow is a process that nvidia-smi lists.
type holderRow struct {
	Holder
	card int
	at   int64 // its place in the log
}

// Bounds of what is kept of tables.
const maxTableRows = 64

// usedOfTotal is a row of nvidia-smi or gpustat.
var usedOfTotal = later(`(\d+)(?:MiB)? ?/ {0,4}(\d+) ?(?:MiB|MB)`)

// hintCardRow reads the memory column of nvidia-smi. Slices of a card have rows of their own.
func hintCardRow(h *hintCollector, p *passage) {
	m := usedOfTotal.FindStringSubmatch(p.line())
	if m == nil || len(h.beside.rows) >= maxTableRows {
		return
	}
	used, total := parseSize(m[1], "MiB"), parseSize(m[2], "MiB")
	if used != nil && total != nil && *used <= *total {
		h.beside.rows = append(h.beside.rows, cardRow{*used, *total, p.window.offset(p.at)})
	}
}

var processRow = later(`^\|?\s*(\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(\d+)\s+C(?:\+G)?\s+(\S.*?)\s+(\d+)MiB\s*\|?`)

// hintCardProcesses reads the processes that compute on the cards.
func hintCardProcesses(h *hintCollector, p *passage) {
	for _, line := range p.following(40) {
		m := processRow.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || len(h.beside.holders) >= maxTableRows {
			continue
		}
		card, _ := strconv.Atoi(m[1])
		pid, _ := strconv.ParseInt(m[2], 10, 64)
		if b := parseSize(m[4], "MiB"); b != nil {
			h.beside.holders = append(h.beside.holders, holderRow{
				Holder{PID: pid, Name: cut(m[3], 80), Bytes: *b}, card, p.window.offset(p.at)})
		}
	}
}

var (
	ownPool   = pattern(`allocated:? {size},? reserved:? {size}`)
	ownOf     = pattern(`reserved:? {size} of {size}`)
	ownFreeOf = pattern(`free:? {size} of {size}`)
)

// hintOwnPool reads the line that many programs print about PyTorch's pool; the last one counts.
func hintOwnPool(h *hintCollector, p *passage) {
	m := ownPool.FindStringSubmatch(p.line())
	if m == nil {
		return
	}
	h.beside.ownAllocated = parseSize(m[1], m[2])
	if of := ownOf.FindStringSubmatch(p.line()); of != nil {
		h.beside.ownTotal = parseSize(of[3], of[4])
	}
	if of := ownFreeOf.FindStringSubmatch(p.line()); of != nil {
		h.beside.ownFree, h.beside.ownTotal = parseSize(of[1], of[2]), parseSize(of[3], of[4])
	}
}

// fullRow is the share of a card from which a row of nvidia-smi is that of the card that was full.
const fullRow = 0.85

// fromTables gives a crash on a card that names no figures what tables beside it say: the fullest
// card, and who holds it. Who is still listed below the crash is not the program that has ended.
func (f sizesSeen) fromTables(c *Crash) {
	fullest := cardRow{}
	for _, row := range f.rows {
		if float64(row.used) >= fullRow*float64(row.total) && row.used > fullest.used {
			fullest = row
		}
	}
	if fullest.total > 0 {
		free := fullest.total - fullest.used
		c.Capacity, c.Allocated, c.Free = &fullest.total, &fullest.used, &free
		if fullest.at < c.offset {
			c.Signs.put(SignTaken, fullest.used.String())
		}
		for _, holder := range f.holders {
			if holder.at > c.offset && 2*holder.Bytes > fullest.total {
				c.Neighbours = append(c.Neighbours, holder.Holder)
			}
		}
		return
	}
	c.Capacity, c.Allocated = firstSize(c.Capacity, f.ownTotal), firstSize(c.Allocated,
		f.ownAllocated)
	c.Free = firstSize(c.Free, f.ownFree)
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
	`object_store_memory["']?\s?[=:]|\(global lru\) capacity:) {size}`)

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
			c.Requested = firstSize(c.Requested, sizeIn(segmentSize, c.Text))
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
			if c.Requested == nil && c.Capacity == nil {
				f.fromTables(c)
			}
		}
	}
}
