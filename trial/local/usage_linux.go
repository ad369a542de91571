package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"memroom/event"
	"memroom/meter"
	"memroom/trial"
)

// cpuReading is the processor time of an attempt at a moment.
type cpuReading struct {
	at    time.Time
	ticks int64
	share float64
}

// sampleReading is the monitor's last reading, taken from its file now and then.
type sampleReading struct {
	at     time.Time
	sample event.Sample
	ok     bool
}

// Usage reads a running attempt's memory.
func (b *Backend) Usage(run string) (u trial.Usage, ok bool) {
	r := b.job(run)
	if r == nil || r.front == nil {
		return u, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.group != nil {
		used, err := unreclaimable(r.group)
		if err != nil {
			return u, false
		}
		u.Host = used
		u.Holds, u.Held = r.hold, r.hold && (r.paused || held(r.group))
	} else if s := r.sample(now); s.ok {
		u.Host = s.sample.Unreclaimable()
	} else {
		return u, false
	}
	if float64(u.Host) > 1.01*float64(r.peak) {
		r.grown = now
	}
	r.peak = max(r.peak, u.Host)
	if b.Cards != nil {
		c := r.onCard(now)
		u.Device, u.CardSteps, u.CardRose = c.used, c.steps, c.rose
	}
	if info, err := os.Stat(r.Files.Output); err == nil {
		u.Printed = event.Bytes(info.Size())
	}
	u.Peak, u.Still, u.Age = r.peak, now.Sub(r.grown), now.Sub(r.began)
	u.CPUs = r.cpus(now)
	return u, true
}

// mappedMost is how much of the mapped program files counts as needed. They can be dropped, but a
// program without its libraries crawls; a large mapped dataset is not such a file.
const mappedMost = 256 * event.MiB

// unreclaimable is what the attempt holds and the kernel cannot drop, and some of its mapped files.
func unreclaimable(g *meter.Cgroup) (event.Bytes, error) {
	values, err := stat(g)
	if err != nil {
		return 0, err
	}
	anon, shmem, mapped := values["total_rss"], values["total_shmem"], values["total_mapped_file"]
	if g.Version == 2 {
		anon, shmem, mapped = values["anon"], values["shmem"], values["file_mapped"]
	}
	return anon + shmem + min(max(0, mapped-shmem), mappedMost), nil
}

// stat reads memory.stat.
func stat(g *meter.Cgroup) (map[string]event.Bytes, error) {
	data, err := os.ReadFile(filepath.Join(g.Dir, "memory.stat"))
	if err != nil {
		return nil, err
	}
	values := map[string]event.Bytes{}
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseInt(value, 10, 64)
		values[key] = event.Bytes(n)
	}
	return values, nil
}

// hold makes the cgroup wait at its limit instead of killing. Version 1 has a switch for that;
// version 2 slows down what is above memory.high until it hardly moves.
func hold(g *meter.Cgroup, limit event.Bytes) bool {
	if g.Version == 1 {
		return os.WriteFile(filepath.Join(g.Dir, "memory.oom_control"), []byte("1"), 0) == nil
	}
	return write(g, "memory.high", highOf(limit)) == nil
}

// highOf is where version 2 begins to slow down, below the limit that kills.
func highOf(limit event.Bytes) event.Bytes { return limit - limit/32 }

// release lets the kernel kill at the limit.
func release(g *meter.Cgroup) {
	if g.Version == 1 {
		_ = os.WriteFile(filepath.Join(g.Dir, "memory.oom_control"), []byte("0"), 0)
		return
	}
	_ = os.WriteFile(filepath.Join(g.Dir, "memory.high"), []byte("max"), 0)
}

func held(g *meter.Cgroup) bool {
	if g.Version == 1 {
		data, err := os.ReadFile(filepath.Join(g.Dir, "memory.oom_control"))
		return err == nil && bytes.Contains(data, []byte("under_oom 1"))
	}
	high, err1 := number(g, "memory.high")
	needed, err2 := notReclaimed(g)
	return err1 == nil && err2 == nil && needed >= high-trial.Gap(high)
}

// notReclaimed is what version 2 counts in memory.current and cannot drop: a trial that reads a
// large file fills it with page cache up to memory.high and goes on unhindered.
func notReclaimed(g *meter.Cgroup) (event.Bytes, error) {
	now, err := number(g, "memory.current")
	if err != nil {
		return 0, err
	}
	values, err := stat(g)
	if err != nil {
		return 0, err
	}
	// Files that are written and not yet on the disk cannot be dropped now.
	dirty := values["file_dirty"] + values["file_writeback"]
	cache := values["active_file"] + values["inactive_file"] + values["slab_reclaimable"]
	return now - max(0, cache-dirty), nil
}

func number(g *meter.Cgroup, name string) (event.Bytes, error) {
	data, err := os.ReadFile(filepath.Join(g.Dir, name))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return event.Bytes(n), err
}

func write(g *meter.Cgroup, name string, value event.Bytes) error {
	return os.WriteFile(filepath.Join(g.Dir, name), []byte(strconv.FormatInt(int64(value), 10)), 0)
}

// Resize changes the reservation of a running attempt: its limit is that and the slack.
func (b *Backend) Resize(run string, host event.Bytes) error {
	r := b.job(run)
	if r == nil {
		return fmt.Errorf("run %s has ended", run)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group == nil {
		return fmt.Errorf("run %s has no cgroup of its own", run)
	}
	if err := r.setLimit(host, b.slackOf(r)); err != nil {
		return err
	}
	if r.alarm != nil {
		r.alarm.limit(host)
	}
	return nil
}

// Slack lets every attempt go so far beyond its reservation.
func (b *Backend) Slack(slack event.Bytes) {
	b.slack.Store(int64(slack))
	b.mu.Lock()
	jobs := slices.Collect(maps.Values(b.jobs))
	b.mu.Unlock()
	for _, r := range jobs {
		r.mu.Lock()
		if want := r.reserved + slack; r.hold && r.reserved > 0 &&
			max(want-r.limit, r.limit-want) > max(trial.Gap(want)/2, want/64) {
			_ = r.setLimit(r.reserved, slack)
		}
		r.mu.Unlock()
	}
}

// slackOf is the slack of an attempt; one that is killed at its limit has none.
func (b *Backend) slackOf(r *running) event.Bytes {
	if !r.hold {
		return 0
	}
	return event.Bytes(b.slack.Load())
}

// setLimit writes an attempt's limits. Of the two of version 1 the one with swap must never be the
// lower. Version 2 slows down where the reservation ends. The caller holds the lock.
func (r *running) setLimit(reserved, slack event.Bytes) error {
	limit := reserved + slack
	names := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	if r.group.Version == 2 {
		names = []string{"memory.max"}
		if r.hold {
			_ = write(r.group, "memory.high", highOf(reserved))
		}
	}
	if before, err := number(r.group, names[0]); err == nil && limit > before && len(names) == 2 {
		names[0], names[1] = names[1], names[0]
	}
	for _, name := range names {
		if err := write(r.group, name, limit); err != nil && !os.IsNotExist(err) &&
			!strings.Contains(name, "memsw") {
			return err
		}
	}
	before := r.limit
	r.reserved, r.limit = reserved, limit
	r.lookFull(before, 0) // only now nothing can come to the old limit any more
	return nil
}

// Release lets an attempt run into its limit. The kernel kills it, and the verdict names that
// cause.
func (b *Backend) Release(run string) {
	r := b.job(run)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.group != nil {
		r.hold = false
		release(r.group)
		r.pause(false)
	}
}

// Pause stops an attempt, or lets it go on. The attempt does not notice, because SIGSTOP cannot be
// caught.
func (b *Backend) Pause(run string, on bool) {
	r := b.job(run)
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if on && (!r.hold || r.stopped) {
		return
	}
	r.pause(on)
}

// pause; the caller holds the lock.
func (r *running) pause(on bool) {
	if r.group == nil || r.paused == on {
		return
	}
	r.paused = on
	signal := syscall.SIGCONT
	if on {
		signal = syscall.SIGSTOP
	}
	pids, _ := r.group.Processes()
	for _, pid := range pids {
		_ = syscall.Kill(pid, signal)
	}
}

// cpus is how many processors the attempt used on average, read every second.
func (r *running) cpus(now time.Time) float64 {
	if now.Sub(r.ticks.at) < time.Second || r.group == nil {
		return r.ticks.share
	}
	pids, err := r.group.Processes()
	if err != nil {
		return r.ticks.share
	}
	var sum int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		at := bytes.LastIndex(data, []byte(") "))
		fields := strings.Fields(string(data[at+1:]))
		for i := 11; i <= 14 && i < len(fields); i++ { // own and waited-for, user and system
			n, _ := strconv.ParseInt(fields[i], 10, 64)
			sum += n
		}
	}
	if age := now.Sub(r.began).Seconds(); age > 0 {
		const ticksPerSecond = 100
		r.ticks = cpuReading{now, sum, float64(sum) / ticksPerSecond / age}
	}
	return r.ticks.share
}

// sample returns the monitor's newest reading.
func (r *running) sample(now time.Time) sampleReading {
	if now.Sub(r.last.at) < 250*time.Millisecond {
		return r.last
	}
	r.last.at = now
	buf := tailOf(r.Samples)
	if len(buf) == 0 {
		return r.last
	}
	line := buf[bytes.LastIndexByte(buf[:len(buf)-1], '\n')+1:]
	var s event.Sample
	if json.Unmarshal(line, &s) == nil {
		r.last.sample, r.last.ok = s, true
	}
	return r.last
}

// tailOf returns the last whole lines of a file.
func tailOf(path string) []byte {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	const tail = 16 << 10
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	buf := make([]byte, min(size, tail))
	if _, err := file.ReadAt(buf, size-int64(len(buf))); err != nil && err != io.EOF {
		return nil
	}
	return buf[:bytes.LastIndexByte(buf, '\n')+1]
}
