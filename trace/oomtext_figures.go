package trace

import (
	"slices"
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
	{words: []string{"used_gpu_memory", "used_memory [mib]"}, hint: hintCardApps},
	{words: []string{" command"}, hint: hintMachineProcesses},
	{words: []string{"gib, reserved", "gib reserved"}, hint: hintOwnPool},
	{words: []string{"object_store_memory", "object store memory", "plasma store", "capacity: "},
		hint: hintObjectStore},
}

// sizesSeen are sizes that a log prints near its end.
type sizesSeen struct {
	shm, machine, maxRSS, cardFree, cardTotal, store *event.Bytes

	available *event.Bytes // of the machine's memory, as `free` prints it
	rows      []cardRow    // of nvidia-smi
	holders   []holderRow
	others    []Holder // processes of the machine, with their resident memory
	// what a program prints of its own pool
	ownAllocated, ownFree, ownTotal *event.Bytes
}

// cardRow holds nvidia-smi's figures for one card.
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

// fromTables completes a crash on a card that names no figures from tables near it: the fullest
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
	machineRow = later(`^Mem:\s+([\d.]+)(?:([KMGT])i?)?\s+[\d.]+[KMGT]?i?\s+[\d.]+[KMGT]?i?\b` +
		`(?:\s+[\d.]+[KMGT]?i?\s+[\d.]+[KMGT]?i?\s+([\d.]+)(?:([KMGT])i?)?\s*$)?`)
	freeAsked = later(`\bfree\s+-(\w)`)
)

// hintMachine reads the first row of `free`. If the figures have no unit letter, the unit comes
// from the options of the command on a line above; plain `free` prints KiB.
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
	total := parseSize(m[1], unit+"iB")
	if total == nil || *total == 0 {
		return
	}
	h.beside.machine = total
	if m[3] != "" {
		h.beside.available = parseSize(m[3], first(strings.ToUpper(m[4]), unit)+"iB")
	}
}

func first(words ...string) string {
	for _, w := range words {
		if w != "" {
			return w
		}
	}
	return ""
}

// appRow is a process in `nvidia-smi --query-compute-apps=pid,process_name,used_memory
// --format=csv`, whatever the order of its columns.
var appRow = later(`^\s*(?:(\d+), *([^,]+), *(\d+) MiB|(\d+), *(\d+) MiB(?:, *([^,]+))?)\s*$`)

// hintCardApps reads those rows. The table does not say on which card they are.
func hintCardApps(h *hintCollector, p *passage) {
	for _, line := range p.following(40)[1:] {
		m := appRow.FindStringSubmatch(line)
		if m == nil || len(h.beside.holders) >= maxTableRows {
			break
		}
		pid, _ := strconv.ParseInt(first(m[1], m[4]), 10, 64)
		if b := parseSize(first(m[3], m[5]), "MiB"); b != nil {
			h.beside.holders = append(h.beside.holders, holderRow{Holder{PID: pid,
				Name: cut(first(m[2], m[6], "not named"), 80), Bytes: *b}, -1, p.window.offset(p.at)})
		}
	}
}

// hintMachineProcesses reads the rows below the heading of `ps` or `top`: the column RSS or RES has
// what a process holds, in KiB where no letter follows.
func hintMachineProcesses(h *hintCollector, p *passage) {
	columns := strings.Fields(p.line())
	pid := slices.Index(columns, "PID")
	size := slices.IndexFunc(columns, func(c string) bool { return c == "RSS" || c == "RES" })
	if pid < 0 || size < 0 || columns[len(columns)-1] != "COMMAND" && columns[len(columns)-1] != "CMD" {
		return
	}
	for _, line := range p.following(40)[1:] {
		cells := strings.Fields(line)
		if len(cells) < len(columns) || len(h.beside.others) >= maxTableRows {
			break
		}
		number, err := strconv.ParseInt(cells[pid], 10, 64)
		m := residentCell.FindStringSubmatch(cells[size])
		if err != nil || m == nil {
			break
		}
		if b := parseSize(m[1], first(strings.ToUpper(m[2]), "K")+"iB"); b != nil {
			h.beside.others = append(h.beside.others, Holder{PID: number,
				Name: cut(strings.Join(cells[len(columns)-1:], " "), 80), Bytes: *b})
		}
	}
}

var residentCell = later(`^([\d.]+)([kKmMgGtT]?)i?B?$`)

// nameHolders names who holds the part of a card that a message leaves open, where a table lists
// somebody who holds about as much. The program itself, by its own figure, does not count.
func (f sizesSeen) nameHolders(c *Crash) {
	if c.Capacity == nil || c.Allocated == nil || c.Free == nil || len(c.Neighbours) > 0 {
		return
	}
	own := *c.Allocated
	if c.Idle != nil {
		own += *c.Idle
	}
	rest := *c.Capacity - *c.Free - own
	for _, holder := range f.holders {
		ownRow := holder.Bytes >= own && holder.Bytes <= own+2*event.GiB && holder.Bytes < rest
		if !ownRow && 2*holder.Bytes > rest && holder.Bytes <= rest && (holder.card < 0 ||
			c.Card == nil || holder.card == *c.Card) {
			c.Neighbours = append(c.Neighbours, holder.Holder)
			rest -= holder.Bytes
		}
	}
}

// strangers adds to a crash of host memory the processes of a table that are not Python's, where
// they hold a tenth of the machine or more.
func (f sizesSeen) strangers(c *Crash) {
	if c.Capacity == nil || len(c.Neighbours) > 0 {
		return
	}
	for _, other := range f.others {
		if 10*other.Bytes >= *c.Capacity && other.Bytes <= *c.Capacity &&
			!strings.Contains(strings.ToLower(other.Name), "python") &&
			!pythonProcess.MatchString(other.Name) {
			c.Neighbours = append(c.Neighbours, other)
		}
	}
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

// settleFigures fills ends that name no size with figures from elsewhere in the log.
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
			c.Available = f.available
			f.strangers(c)
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
			} else {
				f.nameHolders(c)
			}
		}
	}
}
