package cli

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"memroom/testenv"
)

// TestATrialRunsOnceAlsoOnAFullDisk: the study's disk is full from some moment on, the scheduler is
// killed at another, the disk has room again, and the study is taken up: every point ran once.
// MEMROOM_TEST_ROUNDS=200 is the long form.
func TestATrialRunsOnceAlsoOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Needs(t, "root", "a small disk is mounted")
	}
	rounds := 6
	if n, err := strconv.Atoi(os.Getenv("MEMROOM_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	for round := range rounds {
		if !t.Run(fmt.Sprint(round), func(t *testing.T) { fullDiskRound(t, uint64(round)) }) {
			return
		}
	}
}

const diskTrials = 8

func fullDiskRound(t *testing.T, seed uint64) {
	draw := rand.New(rand.NewPCG(seed, 36))
	r := newTune(t)
	disk := filepath.Join(r.dir, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=24m,mode=700"); err != nil {
		testenv.Needs(t, "the right to mount", err.Error())
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	// What it does is noted outside of the disk, at its start and at its end.
	r.file("train.sh", `echo "$1" >> ran; sleep 0.$2; echo loss=$1; echo "$1" >> ended`)
	run := func(args ...string) *exec.Cmd {
		cmd := r.command(args...)
		cmd.Env = append(cmd.Env, "MEMROOM_HOME="+filepath.Join(disk, "home"), "MEMROOM_OFF=1")
		return cmd
	}
	begin := run("tune", "--name", "s", "--search", "grid", "--quiet", "--host-mem", "1GiB",
		"--trial-mem", "64MiB", "--", "sh", "train.sh", "choice(0,1,2,3,4,5,6,7)",
		fmt.Sprint(1+draw.IntN(4)))
	begin.Stdout, begin.Stderr = nil, nil
	if err := begin.Start(); err != nil {
		t.Fatal(err)
	}
	moment := func() time.Duration { return time.Duration(draw.IntN(2500)) * time.Millisecond }
	full, killed := moment(), moment()
	done := make(chan struct{})
	go func() { _ = begin.Wait(); close(done) }()
	began := time.Now()
	filler := filepath.Join(disk, "filler")
	fillAt, killAt := time.After(full), time.After(killed)
	stop := make(chan struct{})
	filled := make(chan struct{})
	go func() { // keeps it full: what is freed is taken
		defer close(filled)
		<-fillAt
		file, err := os.Create(filler)
		if err != nil {
			return
		}
		defer file.Close()
		for block := 1 << 20; ; {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := file.Write(make([]byte, block)); err != nil {
				block = max(block/2, 512)
				time.Sleep(time.Millisecond)
			}
		}
	}()
	select {
	case <-done:
	case <-killAt:
		if draw.IntN(4) > 0 {
			_ = begin.Process.Kill()
		}
	}
	if rest := 3*time.Second - time.Since(began); rest > 0 {
		time.Sleep(rest) // what runs ends on the full disk
	}
	<-done
	close(stop)
	<-filled
	_ = os.Remove(filler)
	if _, err := os.Stat(filepath.Join(disk, "home", "studies", "s", "study.json")); err != nil {
		return // full before there was a study: nothing may have run
	}
	for range 3 {
		if out, err := run("tune", "resume", "--quiet", "s").CombinedOutput(); err == nil ||
			!strings.Contains(string(out), "another memroom") {
			break
		}
		time.Sleep(time.Second)
	}
	for _, name := range []string{"ran", "ended"} {
		data, _ := os.ReadFile(filepath.Join(r.dir, name))
		count := map[string]int{}
		for _, point := range strings.Fields(string(data)) {
			count[point]++
		}
		for point := range diskTrials {
			if n := count[fmt.Sprint(point)]; n != 1 {
				out, _ := run("tune", "show", "s").CombinedOutput()
				t.Errorf("full at %v, killed at %v: point %d %s %d times\n%s", full, killed, point, name,
					n, out)
			}
		}
	}
}
