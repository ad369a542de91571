package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"memroom/event"
	"memroom/meter"
)

// sampler takes the readings of an attempt: its processes, its cgroup, the machine and the cards.
// Sources that cannot be read are noted once and left out.
type sampler struct {
	proc    *meter.Proc
	tree    *meter.Tree   // nil before the command has started
	around  *meter.Cgroup // that memroom itself is in; nil: none is mounted
	devices Devices       // nil: none
	shm     string        // mount of shared memory
	note    func(about, text string)

	// before is what was used on each card before the command started: where the driver does not
	// say who uses a card, the rest is the run's.
	before map[string]event.Bytes

	last     event.Sample
	whole    event.Sample // the last detailed reading
	detailed time.Time    // when it was taken
	pss      proportional
	ray      rayWatch
}

// read takes one reading of everything, of slow figures once a second.
func (r *sampler) read(now time.Time, atMS int64, attempt int) event.Sample {
	detail := r.dueForDetail(now)
	s := event.Sample{AtMS: atMS, Attempt: attempt}
	r.tree.Read(&s, detail)
	r.readProportional(&s, now)
	r.readCgroup(&s, detail)
	r.readWorkers(&s, now)
	s.Machine, s.Devices = r.last.Machine, r.last.Devices
	if detail {
		r.readMachine(&s)
		// a call into the driver costs more than ten files; between two, the allocator's own peaks
		// count
		r.readDevices(&s)
		r.readRay(&s, now)
	}
	r.readShm(&s)
	s.Held = r.held(s)
	if detail {
		r.whole = s
	}
	r.last = s
	return s
}

// dueForDetail reports whether a detailed reading is due: once a second, however often readings are
// taken, and at once where no process was seen yet.
func (r *sampler) dueForDetail(now time.Time) bool {
	const every, slack = time.Second, 20 * time.Millisecond // a ticker is late now and then
	if !r.detailed.IsZero() && now.Sub(r.detailed) < every-slack && r.last.Processes > 0 {
		return false
	}
	r.detailed = now
	return true
}

// held is what the run has that cannot be dropped, each page once. The kernel counts so in a cgroup
// of the run's own. Elsewhere the last proportional reading shows what part of the sum over the
// processes is real, and the cgroup around the run and the machine cannot hold less than the run. 0
// means that the sum is right.
func (r *sampler) held(s event.Sample) event.Bytes {
	c := s.Cgroup
	if c != nil && c.Own {
		return max(0, c.Current-max(0, c.File-c.Shmem))
	}
	if s.Processes < 2 {
		return 0 // a process alone shares with nobody
	}
	sum := s.Anonymous + s.Shared
	held := sum
	if r.pss.sharing > 0 {
		held = event.Bytes(r.pss.sharing * float64(sum))
	}
	if c != nil && c.Current > 0 {
		held = min(held, max(0, c.Current-max(0, c.File-c.Shmem)))
	}
	if s.Machine != nil && s.Machine.Total > 0 {
		held = min(held, s.Machine.Total-s.Machine.Available)
	}
	if held == sum {
		return 0
	}
	return held
}

// readProportional takes the dear reading: every half minute, and when processes came or went a
// moment ago, but never for more than a third of a percent of the time. It is given up where it
// stays slow: it holds the memory lock of the process it reads.
func (r *sampler) readProportional(s *event.Sample, now time.Time) {
	const every, settled, each, all, share, tries = 30 * time.Second, time.Second,
		20 * time.Millisecond, 100 * time.Millisecond, 300, 3
	p := &r.pss
	if s.Processes != p.processes {
		p.processes, p.changed = s.Processes, now
	}
	due := now.Sub(p.at) >= every || p.changed.After(p.at) && now.Sub(p.changed) >= settled
	if !due || s.Processes < 2 || p.slow >= tries || now.Sub(p.at) < share*p.cost {
		return
	}
	begin := time.Now()
	pss, ok := r.tree.Proportional(each, all)
	p.at, p.cost = now, time.Since(begin)
	if ok {
		s.Proportional, p.slow = pss.All, 0
		p.sharing = min(1, float64(pss.Held)/float64(max(1, s.Anonymous+s.Shared)))
	} else if p.slow++; p.slow == tries {
		r.note("pss",
			fmt.Sprintf("proportional memory is not read: it takes %v here; pages that processes share may "+
				"count once for each",
				p.cost.Round(time.Millisecond)))
	}
}

// readWorkers takes the reading of a worker. It never holds up the trainer, so it may take a
// hundredth of the time.
func (r *sampler) readWorkers(s *event.Sample, now time.Time) {
	const every, share, mostCost = time.Second, 100, 50 * time.Millisecond
	p := &r.pss
	if len(r.tree.Forked) == 0 || now.Sub(p.workersAt) < max(every, share*p.workersCost) {
		return
	}
	begin := time.Now()
	s.Workers = r.tree.Workers()
	took := time.Since(begin)
	if p.workersCost > 0 { // one that was held up by a busy machine does not silence it for long
		took = min(took, 2*p.workersCost)
	}
	p.workersAt, p.workersCost = now, min(took, mostCost)
}

// forked notes a worker that the program has forked.
func (r *sampler) forked(pid int) {
	if r.tree == nil {
		return
	}
	if r.tree.Forked == nil {
		r.tree.Forked = map[int]bool{}
	}
	r.tree.Forked[pid] = true
}

// proportional is what is known of the pages that the run's processes share.
type proportional struct {
	at        time.Time // of the last reading
	cost      time.Duration
	slow      int     // readings in a row that took too long
	sharing   float64 // what part of the sum over processes was real; 0 unknown
	processes int     // at the last tick, and since when there are as many
	changed   time.Time

	workersAt   time.Time // of the last reading of the workers
	workersCost time.Duration
}

// readCgroup reads usage and kills each time, the parts of usage and the limits once a second.
func (r *sampler) readCgroup(s *event.Sample, detail bool) {
	group, own := r.tree.Cgroup, true
	if group == nil {
		group, own = r.around, false
	}
	if group == nil {
		r.note("cgroup",
			"no memory cgroup is mounted: limits and kills are read from the machine's counters only")
		return
	}
	if before := r.last.Cgroup; before != nil && !detail {
		now := *before
		var err error
		if now.Current, now.OOMKill, err = group.Quick(); err == nil {
			now.Peak = max(now.Peak, now.Current)
			s.Cgroup = &now
			return
		}
	}
	reading, err := group.Read()
	if err != nil {
		r.note("cgroup", "the cgroup's memory cannot be read: "+err.Error())
		return
	}
	reading.Own = own
	s.Cgroup = &reading
}

func (r *sampler) readMachine(s *event.Sample) {
	machine, err := r.proc.Machine()
	if err != nil {
		r.note("meminfo", "the machine's memory cannot be read: "+err.Error())
		return
	}
	if _, _, err := r.proc.Pressure(); err != nil {
		r.note("psi", "memory pressure is not available: "+err.Error())
	}
	s.Machine = &machine
}

// readShm reads shared memory each time: it fills within a second, and a bus error right after is
// only understood by the last reading.
func (r *sampler) readShm(s *event.Sample) {
	total, used, err := meter.SharedMemory(r.shm)
	if err != nil {
		r.note("shm", "shared memory cannot be read: "+err.Error())
		return
	}
	machine := event.MachineSample{}
	if s.Machine != nil {
		machine = *s.Machine
	}
	machine.ShmTotal, machine.ShmUsed = total, used
	s.Machine = &machine
}

func (r *sampler) readDevices(s *event.Sample) {
	if r.devices == nil {
		return
	}
	devices, err := r.devices.Read()
	if err != nil { // about one card, perhaps: the others have been read
		r.note("gpu", "a card cannot be read: "+err.Error())
	}
	if len(devices) == 0 {
		return
	}
	ours := map[int]bool{}
	for _, pid := range r.tree.Processes() {
		ours[pid] = true
	}
	readings := make([]event.DeviceSample, 0, len(devices))
	for _, d := range devices {
		if !r.divide(&d, ours) {
			r.note("gpu processes",
				"the driver does not say which process uses the card: the run's share is what came since it began")
		}
		readings = append(readings, d.DeviceSample)
	}
	s.Devices = readings
}

// kills counts kills for memory in the run's own cgroup since base: they are about this run alone.
func (r *sampler) kills(base Counters) int64 {
	if r.last.Cgroup == nil || !r.last.Cgroup.Own {
		return 0
	}
	return r.last.Cgroup.OOMKill - base.Own
}

// usedNow is what is used on each card, nil where nothing can be read.
func usedNow(devices Devices) map[string]event.Bytes {
	if devices == nil {
		return nil
	}
	readings, _ := devices.Read()
	if len(readings) == 0 {
		return nil
	}
	used := map[string]event.Bytes{}
	for _, d := range readings {
		used[d.UUID] = d.Used
	}
	return used
}

// divide separates the run's share of a card from its neighbours'. Where the driver names no
// processes, or names them by numbers of another namespace (containers), what was there before the
// run counts as the neighbours'.
func (r *sampler) divide(d *Device, ours map[int]bool) bool {
	named := d.Processes != nil
	for pid, used := range d.Processes {
		if _, err := os.Stat(filepath.Join(r.proc.Root, strconv.Itoa(pid))); err != nil {
			named = false
		}
		if ours[pid] {
			d.Ours += used
		} else {
			d.Others += used
		}
	}
	if !named {
		d.Others = min(r.before[d.UUID], d.Used)
		d.Ours = d.Used - d.Others
	}
	d.Guessed = !named
	return named
}
