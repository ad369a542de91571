package supervise

import (
	"fmt"
	"io"
	"time"

	"memroom/event"
	"memroom/probe"
)

// hearer hears the probes in the Pythons of a run and passes commands back to them.
type hearer struct {
	job    *job
	record *record
	judge  *judge
	meters *sampler
	ranks  *ranks
	stands *whereabouts
	probes *probe.Listener // nil: nobody is heard

	speaking map[*probe.Conn]bool // probes that are connected
	asked    int64                // commands sent to probes: the last one's ID
	silent   bool                 // a Python without the probe was named
}

// lastWords is how long the monitor listens for what the probes said right before the end.
const lastWords = 150 * time.Millisecond

// messages is where the probes are heard, nil where nobody listens.
func (e *hearer) messages() <-chan probe.Heard {
	if e.probes == nil {
		return nil
	}
	return e.probes.Messages()
}

// hear takes a message of a Python process of the run.
func (e *hearer) hear(h probe.Heard) {
	e.speaking[h.Conn] = true
	if h.Err == io.EOF {
		delete(e.speaking, h.Conn)
	}
	if h.Err != nil {
		if h.Err != io.EOF {
			e.record.note("probe", "a message of the probe could not be read: "+h.Err.Error())
		}
		return
	}
	pid, people := h.Conn.PID, e.job.people
	if steps, ok := h.Message.(*probe.Steps); ok {
		e.takeSteps(pid, people.rankOf(pid), steps)
		return
	}
	if hello, ok := h.Message.(*probe.Hello); ok {
		people.named(pid, hello.Rank, hello.World)
		e.stands.reachable(pid, hello.Where)
	}
	rank := people.rankOf(pid)
	e.learn(pid, rank, h.Message)
	if kind, text := recordedAs(h.Message); kind != "" {
		e.record.happenedJSON(kind, pid, rank, text, h.Message)
	}
	e.judge.heard(pid, rank, h.Message)
}

// recordedAs returns the kind and the text of the event that a message becomes; "" for those that
// are not recorded.
func recordedAs(message probe.Message) (kind, text string) {
	switch message := message.(type) {
	case *probe.Hello:
		return "process", message.Program
	case *probe.OOM:
		return "oom", ""
	case *probe.Died:
		return "died", message.Type
	case *probe.Exit:
		return "exit", ""
	case *probe.Framework:
		return "framework", message.Name + " " + message.Version
	case *probe.Said:
		return "remedy", message.Text
	case *probe.Phase:
		return "phase", message.Phase
	case *probe.Evaluation:
		return "evaluation", message.Holder
	case *probe.Account:
		return "account", ""
	case *probe.Stacks:
		return "stacks", ""
	case *probe.Heap:
		return "heap", ""
	case *probe.Checkpoint:
		return "checkpoint", message.Holder
	case *probe.Worker:
		return "worker", message.Name
	case *probe.Caches:
		return "caches", message.Holder
	case *probe.Retraced:
		return "retraced", message.Function
	case *probe.Saved:
		return "saved", ""
	case *probe.Feeding:
		return "feeding", message.Source
	case *probe.Models:
		return "models", fmt.Sprintf("%d %s", message.Count, message.Class)
	case *probe.Report:
		return "report", ""
	case *probe.Fault:
		return "fault", message.Error
	}
	return "", ""
}

// learn keeps the facts by which the end of the attempt is judged.
func (e *hearer) learn(pid int, rank *int, message probe.Message) {
	said := &e.record.said
	switch message := message.(type) {
	case *probe.OOM:
		oom := ProbeOOM{Rank: rank, PID: pid, OOM: *message}
		said.ranOut(oom)
		e.ranks.caughtOOM(oom)
	case *probe.GivenUp:
		e.record.found([]event.Finding{givenUp(*message)})
	case *probe.Forked:
		e.meters.forked(message.PID)
	case *probe.Feeding:
		said.fed(message.Feed)
	case *probe.Died:
		said.died(Death{PID: pid, Rank: rank, Type: message.Type, Text: message.Text,
			Where: message.Where, Frames: message.Frames})
	case *probe.Exit:
		if _, trains := said.Shares[pid]; trains {
			said.probeTook(pid, float64(message.SpentUS), float64(message.ElapsedUS))
		}
		// workers that a Python started itself are no sign that a script went on
		if !e.job.people.startedByPython(pid) {
			said.endedWell(pid, e.meters.kills(e.job.state.Base) > 0)
		}
	case *probe.Framework:
		said.uses(message.Name)
		e.imported(pid)
	case *probe.Said:
		said.heardSaid(*message)
	case *probe.Phase:
		e.ranks.busy()
	}
}

// givenUp words that the probe took too much of a program's time and what it did about it.
func givenUp(m probe.GivenUp) event.Finding {
	did := "gave up the part that cost most"
	if m.Eased {
		did = "does less of it"
	}
	return event.Finding{Kind: "probe_cost", Severity: event.SeverityInfo, Confidence: 1,
		Title: fmt.Sprintf("watching took %.1f %% of the program's time for a while, so memroom %s (%s)",
			100*m.Share, did, m.Part)}
}

// imported reads a process's memory once a framework is loaded: the interpreter and its
// libraries, which nothing makes smaller.
func (e *hearer) imported(pid int) {
	if status, err := e.job.proc.Status(pid); err == nil {
		e.record.said.imported(pid, status.Anonymous+status.Shared)
	}
}

func (e *hearer) takeSteps(pid int, rank *int, message *probe.Steps) {
	e.record.said.probeTook(pid, float64(message.Spent), float64(message.Elapsed))
	for _, row := range message.Rows {
		e.record.step(pid, rank, row)
		e.ranks.stepped(row)
	}
	e.ask(e.judge.steps(pid, rank, message.Rows))
}

// ask sends probes the commands that the detector wants carried out. A probe that is gone needs
// none.
func (e *hearer) ask(asks map[int][]probe.Command) {
	for conn := range e.speaking {
		for _, command := range asks[conn.PID] {
			e.asked++
			command.ID = e.asked
			if err := conn.Do(command); err != nil {
				e.record.note("probe", err.Error())
			}
		}
	}
}

// askAll sends every probe the same commands.
func (e *hearer) askAll(commands ...probe.Command) {
	asks := map[int][]probe.Command{}
	for conn := range e.speaking {
		asks[conn.PID] = commands
	}
	e.ask(asks)
}

// hearLastWords takes what the probes of ended processes still have on their way.
func (e *hearer) hearLastWords() {
	if e.probes == nil {
		return
	}
	deadline := time.After(lastWords)
	for {
		patience := time.After(lastWords)
		if len(e.speaking) == 0 {
			patience = time.After(5 * time.Millisecond)
		}
		select {
		case <-patience:
			return
		case h, open := <-e.probes.Messages():
			if !open {
				return
			}
			e.hear(h)
		case <-deadline:
			return
		}
	}
}

// nameSilent notes once which Python process runs without the probe.
func (e *hearer) nameSilent(now time.Time) {
	if e.probes == nil || e.silent {
		return
	}
	if who := e.job.people.silent(now, 5*time.Second); who != nil {
		e.silent = true
		e.record.note("silent python",
			fmt.Sprintf("memroom cannot look into %s (process %d), which is watched from outside only: "+
				"-I, -E, -S or another interpreter keep it out", who.name, who.pid))
	}
}
