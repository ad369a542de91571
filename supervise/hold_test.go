//go:build linux && !race

package supervise_test

import (
	"bufio"
	"os"
	"os/exec"
	"strings"

	"memroom/store"
)

// held is a run whose command waits for a line.
type held struct {
	*exec.Cmd
	release func()
}

// waiting starts a run whose command has said that it is up and waits until it is released, then
// exits with code 6.
func (w *workshop) waiting(flags ...string) (*held, *store.Folder) {
	w.Helper()
	args := append([]string{"run", "--no-probe", "--quiet"}, flags...)
	cmd := w.memroom(append(args, "--", "sh", "-c", "echo up; read x; exit 6")...)
	release, up := w.hold(cmd)
	if !up {
		w.Fatal("the command did not come up")
	}
	folder, _ := w.waitFolder()
	return &held{cmd, release}, folder
}

// hold starts a command and waits for its first line. release ends its input.
func (w *workshop) hold(cmd *exec.Cmd) (release func(), up bool) {
	w.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		w.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		w.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	lines := bufio.NewReader(out)
	line, _ := lines.ReadString('\n')
	return func() { in.Close() }, line == "up\n"
}

// untouched lets a waiting run end and fails if it did not end as it was meant to, or if the
// marker was written.
func (w *workshop) untouched(run *held, marker string) {
	w.Helper()
	run.release()
	_ = run.Wait()
	if code := run.ProcessState.ExitCode(); code != 6 {
		w.Errorf("the run was disturbed: exit %d", code)
	}
	folder := w.folder()
	w.eventually("the keeper to go", func() bool { return !alive(w.state(folder).Keeper) })
	if data, err := os.ReadFile(marker); err == nil {
		w.Errorf("somebody else's command ran as user %s", data)
	}
}

func (w *workshop) newestID() string {
	ids, _ := (&store.Store{Home: w.records()}).IDs()
	if len(ids) == 0 {
		return ""
	}
	return ids[len(ids)-1]
}

// abstractSocket returns the address of a run's keeper that has no file, empty when there is none.
func abstractSocket(id string) string {
	data, _ := os.ReadFile("/proc/net/unix")
	for field := range strings.FieldsSeq(string(data)) {
		if id != "" && strings.HasPrefix(field, "@memroom-") && strings.Contains(field, id) {
			return field
		}
	}
	return ""
}
