package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
		u.Holds, u.Held = r.hold, r.hold && held(r.group)
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
	data, err := os.ReadFile(filepath.Join(g.Dir, "memory.stat"))
	if err != nil {
		return 0, err
	}
	names := [3]string{"total_rss", "total_shmem", "total_mapped_file"}
	if g.Version == 2 {
		names = [3]string{"anon", "shmem", "file_mapped"}
	}
	var anon, shmem, mapped event.Bytes
	for line := range strings.Lines(string(data)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, _ := strconv.ParseInt(value, 10, 64)
		switch key {
		case names[0]:
			anon = event.Bytes(n)
		case names[1]:
			shmem = event.Bytes(n)
		case names[2]:
			mapped = event.Bytes(n)
		}
	}
	return anon + shmem + min(max(0, mapped-shmem), mappedMost), nil
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
	now, err2 := number(g, "memory.current")
	return err1 == nil && err2 == nil && now >= high
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

// Resize changes the limit of a running attempt. Of the two limits of version 1 the one with swap
// must never be the lower.
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
	names := []string{"memory.limit_in_bytes", "memory.memsw.limit_in_bytes"}
	if r.group.Version == 2 {
		names = []string{"memory.max"}
		if r.hold {
			_ = write(r.group, "memory.high", highOf(host))
		}
	}
	if before, err := number(r.group, names[0]); err == nil && host > before && len(names) == 2 {
		names[0], names[1] = names[1], names[0]
	}
	var failed error
	for _, name := range names {
		if err := write(r.group, name, host); err != nil && !os.IsNotExist(err) &&
			!strings.Contains(name, "memsw") {
			failed = err
		}
	}
	return failed
}

// Release lets an attempt run into its limit: the kernel kills it, and the verdict says so.
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

// sample gives the monitor's newest reading.
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

// tailOf gives the last whole lines of a file.
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
