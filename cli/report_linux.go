package cli

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"memroom/relay"
	"memroom/store"
)

// sending is the process that sends a run's record. It lives on its own: neither the run nor we
// need it.
type sending struct {
	cmd  *exec.Cmd
	done chan struct{}
	to   string
}

// reportSpec holds the sender's settings. They go over its standard input, because everybody can
// read a command line.
type reportSpec struct {
	To    string `json:"to"`
	Token string `json:"token,omitempty"`
}

// startReporter starts the sender. A run is never refused because its record cannot be sent.
func (c *runCmd) startReporter(s *session, folder *store.Folder) *sending {
	if c.ReportTo == "" {
		return nil
	}
	token, err := reportToken(c.ReportTokenFile)
	if err == nil {
		err = relay.Prepare(folder.Dir, c.ReportTo, absolute(c.ReportTokenFile))
	}
	var spec []byte
	if err == nil {
		spec, err = json.Marshal(reportSpec{To: c.ReportTo, Token: token})
	}
	if err != nil {
		s.note("memroom: the record is not sent: %v", err)
		return nil
	}
	if plainText(c.ReportTo) && !c.Quiet {
		s.note("memroom: %s is not encrypted: token and record can be read on the way", c.ReportTo)
	}
	in, out, err := os.Pipe()
	if err != nil {
		s.note("memroom: the record is not sent: %v", err)
		return nil
	}
	defer in.Close()
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{"memroom", reportWord, folder.Dir}
	cmd.Stdin = in
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if err == nil {
		_, err = out.Write(spec)
	}
	out.Close()
	if err != nil {
		s.note("memroom: the record is not sent yet (memroom report sends it): %v", err)
		return nil
	}
	w := &sending{cmd: cmd, done: make(chan struct{}), to: c.ReportTo}
	go func() { _ = cmd.Wait(); close(w.done) }()
	return w
}

// flushFor is how long the end of a run waits for the rest of its record to arrive: a container
// that ends takes the sender with it.
const flushFor = 10 * time.Second

// wait waits briefly for the sender, and prints a note if part of the record was not sent.
func (w *sending) wait(s *session) {
	if w == nil || w.cmd == nil {
		return
	}
	dir := w.cmd.Args[2]
	deadline := time.After(flushFor)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		state, err := relay.ReadState(dir)
		if err == nil && (state.Done || state.Problem != "") {
			break
		}
		select {
		case <-w.done:
		case <-deadline:
		case <-tick.C:
			continue
		}
		break
	}
	if state, err := relay.ReadState(dir); err == nil && !state.Done {
		why := ""
		if state.Problem != "" {
			why = " (" + state.Problem + ")"
		}
		s.note("memroom: the record is not all at %s yet%s; it waits on this disk: memroom report "+
			"sends it", w.to, why)
	}
}

// detach leaves the sender to itself.
func (w *sending) detach() {
	if w != nil {
		w.cmd = nil
	}
}

// sendRun is the sender: this run until it is over and all of it has arrived, then what waits for
// the same server from before.
func sendRun(dir string, streams Streams) error {
	debug.SetGCPercent(30)
	debug.SetMemoryLimit(32 << 20)
	var spec reportSpec
	data, err := io.ReadAll(io.LimitReader(streams.In, 64<<10))
	if err == nil {
		err = json.Unmarshal(data, &spec)
	}
	if err != nil {
		return err
	}
	ctx := context.Background()
	folder := folderAt(dir)
	sender := relay.Sender{Dir: dir, ID: folder.ID, URL: spec.To, Token: spec.Token,
		Over: settled(folder)}
	if err := sender.Run(ctx); err != nil {
		return err
	}
	home := store.Store{Home: filepath.Dir(filepath.Dir(dir))}
	waiting, err := home.Unsent()
	if err != nil {
		return err
	}
	for _, other := range waiting {
		state, err := relay.ReadState(other.Dir)
		if err != nil || state.URL != spec.To || other.Running() {
			continue
		}
		next := relay.Sender{Dir: other.Dir, ID: other.ID, URL: spec.To, Token: spec.Token,
			Over: func() bool { return true }, Patience: 10 * time.Second}
		if err := next.Run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// settled reports whether a run is over and its files no longer change: the monitor writes its last
// after the keeper has gone. A run that never began is over too.
func settled(folder *store.Folder) func() bool {
	began := time.Now()
	ended := time.Time{}
	return func() bool {
		switch _, err := folder.Exit(); {
		case folder.Running(), err != nil && time.Since(began) < 10*time.Second:
			ended = time.Time{}
			return false
		case ended.IsZero():
			ended = time.Now()
		}
		if _, err := folder.Summary(); err == nil {
			return true
		}
		return time.Since(ended) > 5*time.Second
	}
}
