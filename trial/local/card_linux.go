package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"memroom/event"
)

// cardReading is what an attempt holds of a card.
type cardReading struct {
	at    time.Time
	limit event.Bytes // what it may take of one
	used  event.Bytes
	peak  event.Bytes
	steps int64 // training steps on it
	rose  int64 // the one at which the peak last rose
}

// onCard reads what the attempt holds of a card now. Where the driver names no processes its
// framework's allocator knows, and nothing is known before its first step.
func (r *running) onCard(now time.Time) cardReading {
	c := &r.card
	if now.Sub(c.at) < 250*time.Millisecond {
		return *c
	}
	c.at = now
	s := r.sample(now)
	if !s.ok {
		return *c
	}
	reserved, steps := reservedNow(r.Steps)
	c.used, c.steps = 0, max(c.steps, steps)
	for _, d := range s.sample.Devices {
		own := max(d.Ours, reserved)
		if d.Guessed {
			own = max(reserved, min(d.Ours, reserved+contextMost))
			if reserved == 0 {
				own = 0
			}
		}
		c.used = max(c.used, own)
	}
	if float64(c.used) > 1.01*float64(c.peak) {
		c.peak, c.rose = c.used, c.steps
	}
	return *c
}

// reservedNow is what the allocators of an attempt's processes hold on the card with the most, from
// the last rows of the file of steps, and how many steps there were.
func reservedNow(path string) (most event.Bytes, steps int64) {
	last := map[[2]int]event.Bytes{} // of a process on a device
	for line := range bytes.Lines(tailOf(path)) {
		var row event.RankedStep
		if json.Unmarshal(line, &row) == nil && row.Device != event.HostDevice {
			last[[2]int{row.PID, row.Device}] = row.Reserved
			steps = max(steps, row.Step.Step)
		}
	}
	sums := map[int]event.Bytes{}
	for who, reserved := range last {
		sums[who[1]] += reserved
		most = max(most, sums[who[1]])
	}
	return most, steps
}

// ResizeDevice changes what the attempt's allocators may take of a card. The probe reads the file
// at the end of a step.
func (b *Backend) ResizeDevice(run string, device event.Bytes) error {
	r := b.job(run)
	if r == nil {
		return fmt.Errorf("run %s has ended", run)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Limit == "" {
		return fmt.Errorf("run %s has no file for its limit", run)
	}
	text := []byte(strconv.FormatInt(int64(device), 10) + "\n")
	if err := os.WriteFile(r.Limit+".new", text, 0o600); err != nil {
		return err
	}
	if err := os.Rename(r.Limit+".new", r.Limit); err != nil {
		return err
	}
	r.card.limit = device
	return nil
}
