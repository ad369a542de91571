package cli

import (
	"errors"
	"io"
	"os"

	"memroom/store"
	"memroom/supervise"
)

// attachBytes is how much of the earlier output attach shows.
const attachBytes = 8 << 10

// Run reconnects to a run. If the run has ended, Run returns its exit code.
func (c *attachCmd) Run(s *session) error {
	kept, err := openStore()
	if err != nil {
		return err
	}
	folder, err := kept.Find(c.Record)
	if err != nil {
		return err
	}
	in, out, errs, err := files(s)
	if err != nil {
		return err
	}
	front := &supervise.Front{Files: runFiles(folder), In: in, Out: out, Err: errs,
		DetachKeys: true}
	front.Note = func(text string) { besideOutput(s, front, text) }
	fromOut, fromErr := c.from(folder.Output()), c.from(folder.Errors())
	if err := front.Attach(fromOut, fromErr); err != nil {
		return c.ended(s, folder, fromOut, fromErr)
	}
	defer front.Close()
	front.ReadOnly = !hasTerminalRun(folder)
	if front.ReadOnly {
		s.note("memroom: attached to %s; Ctrl-C leaves it running", folder.ID)
	} else {
		s.note("memroom: attached to %s; Ctrl-P Ctrl-Q leaves it running", folder.ID)
	}
	state, err := front.Run()
	switch {
	case errors.Is(err, supervise.ErrDetached):
		s.note("memroom: left %s running", folder.ID)
		return nil
	case err != nil:
		return c.ended(s, folder, -1, -1)
	case state.Exit == nil:
		return exitWith(exitNotStarted, "run %s: "+endUnknown, folder.ID, folder.ID)
	}
	return exitAs(front, state.Exit.Code, folder.ID)
}

// from is the place in a file where its last part begins.
func (c *attachCmd) from(path string) int64 {
	info, err := os.Stat(path)
	if c.All || err != nil {
		return 0
	}
	return max(0, info.Size()-attachBytes)
}

// ended shows the remaining output of a run that has ended and returns its exit code.
func (c *attachCmd) ended(s *session, folder *store.Folder, fromOut, fromErr int64) error {
	exit, err := folder.Exit()
	if host, yes := folder.Elsewhere(); err != nil && yes {
		return exitWith(exitNotStarted,
			"run %s is on %s, which cannot be reached from here: attach "+
				"there; `memroom top %s` follows its record", folder.ID, host, folder.ID)
	}
	if err != nil {
		if words, _, yes := orphanOf(folder); yes {
			return exitWith(exitNotStarted, "run %s: %s", folder.ID, words)
		}
		return exitWith(exitNotStarted, "run %s is lost: "+endUnknown, folder.ID, folder.ID)
	}
	err = errors.Join(copyFrom(raw(s.Out), folder.Output(), fromOut),
		copyFrom(raw(s.Err), folder.Errors(), fromErr))
	if err != nil && exit.Code == exitOK {
		return exitWith(exitNotWritten, "the output of run %s could not be shown: %w", folder.ID,
			err)
	}
	s.note("memroom: run %s has ended with exit code %d", folder.ID, exit.Code)
	return exitQuietly(exit.Code)
}

// copyFrom shows a file from a place on. One that was never written has nothing to show.
func copyFrom(w io.Writer, path string, from int64) error {
	if from < 0 {
		return nil
	}
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return err
}

// hasTerminalRun reports whether the command of a run has a terminal that can be typed at.
func hasTerminalRun(folder *store.Folder) bool {
	state, err := supervise.ReadState(folder.StateFile())
	return err == nil && state.Streams.In == supervise.Terminal
}
