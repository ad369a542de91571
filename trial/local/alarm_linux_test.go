package local

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"memroom/event"
	"memroom/supervise"
	"memroom/trial"
)

// asked returns what a cgroup of version 1 was last asked to report: the descriptor and the
// argument.
func asked(t *testing.T, r *running) (fd int, argument string) {
	t.Helper()
	words := strings.Fields(read(t, r.group, "cgroup.event_control"))
	if len(words) < 2 {
		t.Fatalf("asked with %q", words)
	}
	fd, err := strconv.Atoi(words[0])
	if err != nil {
		t.Fatal(err)
	}
	return fd, strings.Join(words[2:], " ")
}

// signal sends a notification through an eventfd, as the kernel does.
func signal(t *testing.T, fd int) {
	t.Helper()
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

// tight waits for the word that an attempt is at its limit.
func tight(t *testing.T, b *Backend) {
	t.Helper()
	select {
	case h := <-b.events:
		if h.Run != "one" || !h.Tight || h.Step != -1 || h.End != nil {
			t.Fatalf("%+v", h)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was told")
	}
}

// TestAttemptsGetTheirCgroup checks that an attempt is made to stand still at its limit once the
// keeper reports its cgroup. An attempt that comes near the limit is reported at once, also after
// the limit has changed.
func TestAttemptsGetTheirCgroup(t *testing.T) {
	const gib = event.GiB
	for version, files := range map[int]map[string]string{1: v1("5"), 2: v2("5")} {
		files["memory.usage_in_bytes"], files["memory.events"] = "0", "high 0\n"
		g := groupOf(t, version, files)
		b, r := attemptIn(nil)
		b.Slack(64 * event.MiB)
		front := b.newFront(r)
		front.OnState(supervise.State{Attempt: 1, Cgroup: g.Dir, CgroupV: version, HostLimit: 2 * gib})
		if r.group == nil || r.group.Dir != g.Dir || !r.hold || r.paused || r.alarm == nil ||
			r.state.Attempt != 1 || r.limit != 2*gib+64*event.MiB || r.reserved != 2*gib {
			t.Fatalf("version %d: %+v", version, r)
		}
		if version == 1 {
			fd, threshold := asked(t, r)
			if want := fmt.Sprint(int64(2*gib - trial.Gap(2*gib))); threshold != want ||
				read(t, g, "memory.oom_control") != "1" {
				t.Errorf("told from %s on, want %s", threshold, want)
			}
			signal(t, fd)
			tight(t, b)
			if err := b.Resize("one", 3*gib); err != nil {
				t.Fatal(err)
			}
			fd, threshold = asked(t, r)
			if want := fmt.Sprint(int64(3*gib - trial.Gap(3*gib))); threshold != want {
				t.Errorf("after a resize told from %s on, want %s", threshold, want)
			}
			signal(t, fd)
			tight(t, b)
		} else {
			if high := read(t, g, "memory.high"); high != fmt.Sprint(int64(2*gib-2*gib/32)) {
				t.Errorf("slowed down from %s on", high)
			}
			if err := os.WriteFile(filepath.Join(g.Dir, "memory.events"), []byte("high 1\n"),
				0o600); err != nil {
				t.Fatal(err)
			}
			tight(t, b)
		}
		r.alarm.close()
		r.alarm.limit(gib) // asks for nothing more
		if r.alarm.near != nil || len(r.alarm.files) > 0 {
			t.Error("a closed alarm listens")
		}
		b.Close()
		if version == 1 && read(t, g, "memory.oom_control") != "0" ||
			version == 2 && read(t, g, "memory.high") != "max" {
			t.Error("who stands still would do so for ever")
		}
	}
}

// TestAttemptsThatDoNotStandStill checks that a cgroup is left as it is in a study that could not
// raise its limit, without a limit, or after the end.
func TestAttemptsThatDoNotStandStill(t *testing.T) {
	for name, c := range map[string]struct {
		firm  bool
		state supervise.State
		group bool
	}{
		"firm":     {true, supervise.State{HostLimit: event.GiB}, true},
		"no limit": {false, supervise.State{}, true},
		"finished": {false, supervise.State{HostLimit: event.GiB, Finished: true}, false},
	} {
		g := groupOf(t, 1, v1("5"))
		b, r := attemptIn(nil)
		b.Firm = c.firm
		c.state.Cgroup, c.state.CgroupV = g.Dir, 1
		b.newFront(r).OnState(c.state)
		if (r.group != nil) != c.group || r.hold || r.alarm != nil ||
			read(t, g, "memory.oom_control") != "" || read(t, g, "memory.limit_in_bytes") != "5" {
			t.Errorf("%s: %+v", name, r)
		}
	}
	b, r := attemptIn(nil)
	b.newFront(r).OnState(supervise.State{HostLimit: event.GiB})
	if r.group != nil || r.hold {
		t.Errorf("no cgroup: %+v", r)
	}
}

// TestWhatAFrontHears checks that output is passed on until the attempt is stopped. A good end that
// leaves no process behind is reported at once, so that the next attempt can have its memory.
func TestWhatAFrontHears(t *testing.T) {
	g := groupOf(t, 1, v1("5"))
	b, r := attemptIn(g)
	front := b.newFront(r)
	front.Show(1, []byte("loss 1"))
	if h := <-b.events; string(h.Output) != "loss 1" || h.Run != "one" || h.Step != -1 {
		t.Errorf("%+v", h)
	}
	front.Exited(event.Exit{Code: 1})
	front.Exited(event.Exit{Code: 0})
	if h := <-b.events; !h.Gone || h.Run != "one" || len(b.events) > 0 {
		t.Errorf("%+v, and %d more", h, len(b.events))
	}
	if err := os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	front.Exited(event.Exit{Code: 0})
	r.stopped = true
	front.Show(1, []byte("loss 2"))
	if len(b.events) > 0 || r.shown != int64(len("loss 1loss 2")) {
		t.Errorf("%+v was told, %d bytes are counted", <-b.events, r.shown)
	}
}

// TestReadingsAreTakenNowAndThen: not more often than four times a second, and processor time once
// a second.
func TestReadingsAreTakenNowAndThen(t *testing.T) {
	r := &running{}
	r.Samples = filepath.Join(t.TempDir(), "samples")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(r.Samples, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at := time.Now()
	write("{\"at_ms\":1}\n")
	if s := r.sample(at); !s.ok || s.sample.AtMS != 1 {
		t.Fatalf("%+v", s)
	}
	write("{\"at_ms\":1}\n{\"at_ms\":2}\n")
	for _, c := range []struct {
		after time.Duration
		want  int64
	}{{249 * time.Millisecond, 1}, {250 * time.Millisecond, 2}} {
		if s := r.sample(at.Add(c.after)); s.sample.AtMS != c.want {
			t.Errorf("after %v: reading %d", c.after, s.sample.AtMS)
		}
	}
	write("")
	if s := r.sample(at.Add(time.Second)); !s.ok || s.sample.AtMS != 2 {
		t.Errorf("a file that is empty for a moment: %+v", s)
	}

	r.group = groupOf(t, 2, map[string]string{"cgroup.procs": fmt.Sprintln(os.Getpid())})
	used := func() (total float64) {
		for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
			var u unix.Rusage
			if err := unix.Getrusage(who, &u); err != nil {
				t.Fatal(err)
			}
			total += float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
		}
		return total
	}
	for used() < 0.25 { // so that the numbers have two digits
	}
	now := time.Now()
	r.begin(now.Add(-10 * time.Second))
	share, most := r.cpus(now), used()/10+0.004 // counted in hundredths of a second, four of them
	if share <= 0 || share > most || share < most-0.02 {
		t.Errorf("%.4f processors, want about %.4f", share, most)
	}
	r.ticks.share = 7
	if got := r.cpus(now.Add(999 * time.Millisecond)); got != 7 {
		t.Errorf("read again before a second was over: %v", got)
	}
	if got := r.cpus(now.Add(time.Second)); got == 7 {
		t.Error("not read after a second")
	}
}

// TestStepsThatAreReported checks that steps count from 1. A report without a valid step has step
// -1.
func TestStepsThatAreReported(t *testing.T) {
	b, r := attemptIn(nil)
	r.Events = filepath.Join(t.TempDir(), "events")
	var lines []string
	for _, step := range []string{"", `"step":0,`, `"step":1,`, `"step":2,`, `"step":-3,`} {
		lines = append(lines, `{"kind":"report","data":{`+step+`"values":{"loss":0.5}}}`)
	}
	if err := os.WriteFile(r.Events, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.hearReports(r)
	var steps []int
	for len(b.events) > 0 {
		h := <-b.events
		if h.Values["loss"] != 0.5 {
			t.Errorf("%+v", h)
		}
		steps = append(steps, h.Step)
	}
	if !slices.Equal(steps, []int{-1, -1, 1, 2, -1}) {
		t.Errorf("steps %v", steps)
	}
}

// TestWhatIgnoresSIGTERMIsKilled: what a command left behind is asked to end first, and then ended.
func TestWhatIgnoresSIGTERMIsKilled(t *testing.T) {
	g := groupOf(t, 1, v1("5"))
	cmd := exec.Command("sh", "-c", `trap "" TERM; echo ready; while :; do sleep 1; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(g.Dir, "cgroup.procs")
	if err := os.WriteFile(list, fmt.Appendln(nil, cmd.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		_ = os.WriteFile(list, nil, 0o600) // as the kernel does
		ended <- err
	}()
	b, r := attemptIn(g)
	if left := b.sweep(r); left != 1 {
		t.Errorf("%d were left behind", left)
	}
	select {
	case err := <-ended:
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("it ended with %v", err)
		}
	default:
		t.Error("it still runs")
	}
}

// TestPrepareAndCapacity checks that an attempt is known before it runs, with what it may take of a
// card, and that Capacity returns what the machine has.
func TestPrepareAndCapacity(t *testing.T) {
	b := &Backend{Host: 5 * event.GiB, GPU: 7, Cards: func() []trial.Card {
		return make([]trial.Card,
			2)
	},
		New: func(l trial.Launch) (Job, error) {
			if l.Host == 13 {
				return Job{}, os.ErrPermission
			}
			return Job{Run: fmt.Sprint("run ", int64(l.Host))}, nil
		}}
	if err := b.Open(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ device, cap, want event.Bytes }{{5, 3, 5}, {3, 5, 5}, {0, 0, 0}} {
		run, err := b.Prepare(trial.Launch{Host: 1, Device: c.device, Cap: c.cap})
		if err != nil || run != "run 1" || b.job(run) == nil || b.job(run).card.limit != c.want {
			t.Errorf("%+v: %s, %v", c, run, err)
		}
	}
	if _, err := b.Prepare(trial.Launch{Host: 13}); err == nil {
		t.Error("prepared without a record")
	}
	got, err := b.Capacity()
	if err != nil || got.Host != 5*event.GiB || got.GPU != 7 || len(got.Cards) != 2 || got.CPUs < 1 ||
		got.HostFree <= 0 || got.Elastic {
		t.Errorf("%+v, %v", got, err)
	}
	if machine, err := b.proc.Machine(); err != nil || b.Limit() <= 0 || b.Limit() > machine.Total {
		t.Errorf("a limit of %s, %v", b.Limit(), err)
	}
	b.Stop("run 1")
	if !b.job("run 1").stopped {
		t.Error("one that is not started cannot be stopped")
	}
	b.Stop("gone")
}

// TestStoppedAttemptsGoOn: an attempt that shall end is asked through its keeper, and one that
// stands still is let go on, because it could not hear it.
func TestStoppedAttemptsGoOn(t *testing.T) {
	g := groupOf(t, 1, v1("5"))
	pid, _ := sleeping(t)
	if err := os.WriteFile(filepath.Join(g.Dir, "cgroup.procs"), fmt.Appendln(nil, pid),
		0o600); err != nil {
		t.Fatal(err)
	}
	b, r := attemptIn(g)
	b.Grace, r.hold = time.Hour, true
	dir, err := os.MkdirTemp("", "keeper") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	keeper, err := net.Listen("unix", filepath.Join(dir, "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer keeper.Close()
	r.front.Files.Dir = dir
	if err := r.front.Attach(0, 0); err != nil {
		t.Fatal(err)
	}
	heard, err := keeper.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer heard.Close()
	b.Pause("one", true)
	becomes(true, pid)
	b.Stop("one")
	becomes(false, pid)
	if r.paused || !r.stopped || read(t, g, "memory.oom_control") != "0" {
		t.Errorf("told to end: %+v", r)
	}
	b.Pause("one", true)
	if r.paused {
		t.Error("one that shall end was told to stand still")
	}
	b.Stop("one") // once is enough
	r.front.Close()
	said, err := io.ReadAll(heard)
	if n := strings.Count(string(said), fmt.Sprintf(`"number":%d`,
		syscall.SIGTERM)); err != nil || n != 1 {
		t.Errorf("asked to end %d times: %q, %v", n, said, err)
	}
}
