package supervise

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"memroom/event"
	"memroom/meter"
	"memroom/probe"
)

// Outside watches a process that somebody else has started, such as the kernel of a notebook, and
// its children: the same readings, messages and judgement as of a run, without a record.
type Outside struct {
	PID     int
	Devices Devices // nil: none
	Probe   *probe.Listener
	Detect  Detector
	Options Options
	// Say gets what is found, as it is found, and the framework in use, "" if none was seen.
	Say func(f event.Finding, framework string)

	framework string
	sampler   sampler
	speaking  map[*probe.Conn]bool
	asked     int64
	began     time.Time
}

// Watch watches until the process has gone or stop is closed. A function on sync is called when all
// that the probe has said before is judged.
func (o *Outside) Watch(stop <-chan struct{}, sync <-chan func()) {
	proc := meter.NewProc(o.Options.Proc)
	o.sampler = sampler{proc: proc, devices: o.Devices, shm: o.Options.Shm,
		note: func(string, string) {},
		tree: &meter.Tree{Proc: proc, Keeper: o.PID, Whole: true, Except: []int{os.Getpid()}}}
	o.sampler.around, _ = meter.FindCgroup(o.Options.Proc, "self")
	o.speaking, o.began = map[*probe.Conn]bool{}, time.Now()
	ticker := time.NewTicker(o.Options.Interval)
	defer ticker.Stop()
	for o.alive() {
		select {
		case <-stop:
			return
		case <-ticker.C:
			o.tick()
		case h, open := <-o.Probe.Messages():
			if !open {
				return
			}
			o.hear(h)
		case answer := <-sync:
			o.drain()
			o.tick()
			answer()
		}
	}
}

func (o *Outside) alive() bool {
	_, err := os.Stat(filepath.Join(o.Options.Proc, strconv.Itoa(o.PID)))
	return err == nil
}

// drain hears what is on its way: messages that were sent before are in the socket by now.
func (o *Outside) drain() {
	const quiet = 60 * time.Millisecond
	for {
		select {
		case h, open := <-o.Probe.Messages():
			if !open {
				return
			}
			o.hear(h)
		case <-time.After(quiet):
			return
		}
	}
}

func (o *Outside) tick() {
	now := time.Now()
	o.sampler.tree.Refresh(now)
	o.say(o.Detect.Sample(o.sampler.read(now, now.Sub(o.began).Milliseconds(), 1)))
}

func (o *Outside) hear(h probe.Heard) {
	o.speaking[h.Conn] = true
	if h.Err != nil {
		if h.Err == io.EOF {
			delete(o.speaking, h.Conn)
		}
		return
	}
	if steps, ok := h.Message.(*probe.Steps); ok {
		o.say(o.Detect.Steps(h.Conn.PID, nil, steps.Rows))
		o.ask(o.Detect.Asks())
		return
	}
	if f, ok := h.Message.(*probe.Framework); ok {
		o.framework = f.Name
	}
	o.say(o.Detect.Heard(h.Conn.PID, nil, h.Message))
}

func (o *Outside) say(found []event.Finding) {
	for _, f := range found {
		o.Say(f, o.framework)
	}
}

func (o *Outside) ask(asks map[int][]probe.Command) {
	for conn := range o.speaking {
		for _, command := range asks[conn.PID] {
			o.asked++
			command.ID = o.asked
			if err := conn.Do(command); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
}
