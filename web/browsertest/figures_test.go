package browsertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// figure prints one line of bench/serve.
func figure(format string, args ...any) { fmt.Printf("serve: "+format+"\n", args...) }

// needsFigures skips what only bench/serve asks for.
func needsFigures(t *testing.T) {
	t.Helper()
	if os.Getenv("MEMROOM_FIGURES") == "" {
		t.Skip("needs MEMROOM_FIGURES=1: bench/serve prints figures, a test does not judge them")
	}
}

// writeDay makes a run of a day at four readings a second with eight cards.
func writeDay(t *testing.T, home string) string {
	t.Helper()
	const id = "20260101-000000-day"
	dir := filepath.Join(home, "runs", id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	for name, text := range map[string]string{
		"run.json":  fmt.Sprintf(`{"id":%q,"name":"a day","command":["python","train.py"],"dir":"/","host":%q,"started":"2026-01-01T00:00:00Z"}`, id, host),
		"exit.json": `{"exit_code":0,"seconds":86400,"at":"2026-01-02T00:00:00Z"}`, "keeper.json": `{"keeper":1,"finished":true}`,
		filepath.Join("..", "..", "memroom-home"): "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := os.Create(filepath.Join(dir, "samples.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := bufio.NewWriterSize(file, 1<<20)
	for i := range 24 * 3600 * 4 {
		fmt.Fprintf(w, `{"at_ms":%d,"attempt":1,"procs":33,"rss":%d,"anon":%d,"shmem":1048576,"file":408944640,"cgroup":{"own":true,"current":%d,"limit":858993459200},"machine":{"total":1025275125760,"available":214748364800,"shm_total":25275125760,"shm_used":%d},"gpus":[`,
			i*250, 812646400+i*1000, 402653184+i*1000, 420478976+i*1000, 1048576+i)
		for c := range 8 {
			comma := ","
			if c == 0 {
				comma = ""
			}
			fmt.Fprintf(w, `%s{"uuid":"GPU-%08d-aaaa-bbbb-cccc-1234567890ab","name":"NVIDIA H200","total":150754820096,"used":%d,"ours":%d,"other":536870912,"util":%d}`,
				comma, c, 60000000000+(i*7919+c*1000003)%40000000000, 59000000000, (i*7+c)%100)
		}
		fmt.Fprint(w, "]}\n")
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return id
}

// drawn is true once the course of a run is on the screen.
const drawn = `(() => { const c = document.getElementById("course"); if (!c || !document.querySelector("#accounts .account")) return false;
	const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data; for (let i = 3; i < d.length; i += 4001) if (d[i]) return true; return false; })()`

func TestFiguresOfADay(t *testing.T) {
	needsFigures(t)
	home := filepath.Join(t.TempDir(), "home")
	id := writeDay(t, home)
	s := serve(t, home)
	p := openAddress(t, s.url+"/plan", "form")
	open := func() time.Duration {
		start := time.Now()
		p.run(chromedp.Navigate(s.url + "/runs/" + id))
		p.until(drawn)
		return time.Since(start)
	}
	figure("24 h run, 8 cards, 345,600 readings, 556 MB, without the sums a run writes: %v",
		open().Round(time.Millisecond))
	figure("the same once more: %v (bar 1 s)", open().Round(time.Millisecond))
	p.shot("day")
	pan := eval[float64](p, `new Promise((done) => {
		const c = document.getElementById("course");
		const r = c.getBoundingClientRect();
		const send = (kind, x) => c.dispatchEvent(new PointerEvent(kind, { clientX: r.x + x, clientY: r.y + 60, pointerId: 1, bubbles: true }));
		c.setPointerCapture = () => {};
		for (let i = 0; i < 8; i++) c.dispatchEvent(new WheelEvent("wheel", { deltaY: -300, clientX: r.x + 600, clientY: r.y + 60, bubbles: true }));
		setTimeout(() => {
			let n = 0;
			const start = performance.now();
			send("pointerdown", 900);
			const step = () => {
				send("pointermove", 900 - n * 2);
				if (++n < 120) requestAnimationFrame(step);
				else { send("pointerup", 600); done(n / ((performance.now() - start) / 1000)); }
			};
			requestAnimationFrame(step);
		}, 1500);
	})`)
	figure("panning it: %.0f frames a second (bar 30)", pan)
	p.quiet()
}

func TestFiguresOfAMillionEvents(t *testing.T) {
	needsFigures(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: not on PATH")
	}
	file := filepath.Join(t.TempDir(), "million.pickle")
	if out, err := exec.Command(python, "million.py", "1000000", file).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	s := serve(t, filepath.Join(t.TempDir(), "home"))
	p := openAddress(t, s.url+"/snapshots", ".drop")
	start := time.Now()
	p.run(chromedp.SetUploadFiles("#file", []string{file}), chromedp.WaitVisible("#legend .key"))
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	figure("snapshot of 1,000,000 events, %d MB, protocol 5, dropped and drawn: %v (bar 3 s)",
		info.Size()>>20, time.Since(start).Round(time.Millisecond))
	start = time.Now()
	p.click("timeline", 0.4, 0.5)
	p.picture("segments")
	figure("a click on it answered: %v", time.Since(start).Round(time.Millisecond))
	p.shot("million")
	p.quiet()
}

// TestFiguresOfViewers: what viewers cost the server and the job they watch.
func TestFiguresOfViewers(t *testing.T) {
	needsFigures(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: not on PATH")
	}
	home, dir := filepath.Join(t.TempDir(), "home"), t.TempDir()
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	script := `import sys, time, os
d = sys.argv[1]
while not os.path.exists(d + "/stop"):
    start = time.process_time(), time.perf_counter()
    sum(i * i for i in range(200000))
    with open(d + "/steps", "a") as f: f.write(f"{time.time()} {time.process_time() - start[0]} {time.perf_counter() - start[1]}\n")
    time.sleep(0.02)
`
	cmd := exec.Command(memroom, "run", "--quiet", "--", python, "-c", script, dir)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600)
		_ = cmd.Wait()
	}()
	s := serve(t, home)
	id := ""
	for id == "" {
		time.Sleep(200 * time.Millisecond)
		var list struct{ Runs []struct{ ID string } }
		getJSON(t, s.url+"/api/runs", &list)
		if len(list.Runs) > 0 {
			id = list.Runs[0].ID
		}
	}
	resident := func() float64 {
		answer, err := http.Get(s.url + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "memroom_process_resident_bytes "); ok {
				n, _ := strconv.ParseFloat(text, 64)
				return n / (1 << 20)
			}
		}
		return 0
	}
	var stop atomic.Bool
	var lost atomic.Int64
	watch := func(n int, wait *sync.WaitGroup) {
		for range n {
			wait.Go(func() {
				answer, err := http.Get(s.url + "/api/runs/" + id + "/live?from=0.0.0")
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				last := int64(-1)
				lines := bufio.NewScanner(answer.Body)
				lines.Buffer(nil, 8<<20)
				kind := ""
				for lines.Scan() && !stop.Load() {
					if text, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
						kind = text
					}
					if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && kind == "samples" {
						var list []struct {
							At int64 `json:"at_ms"`
						}
						_ = json.Unmarshal([]byte(data), &list)
						for _, v := range list {
							if v.At < last {
								lost.Add(1)
							}
							last = v.At
						}
					}
				}
				if last < 0 {
					lost.Add(1)
				}
			})
		}
	}
	time.Sleep(8 * time.Second)
	begin := time.Now()
	var wait sync.WaitGroup
	watch(10, &wait)
	time.Sleep(4 * time.Second)
	figure("server with 10 viewers of one run: %.0f MiB resident (bar 150)", resident())
	watch(90, &wait)
	time.Sleep(10 * time.Second)
	figure("server with 100 viewers: %.0f MiB resident", resident())
	data, err := os.ReadFile(filepath.Join(dir, "steps"))
	if err != nil {
		t.Fatal(err)
	}
	var before, with []float64
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var at, cpu, wall float64
		if n, _ := fmt.Sscan(line, &at, &cpu, &wall); n == 3 {
			if at < float64(begin.UnixNano())/1e9 {
				before = append(before, cpu)
			} else {
				with = append(with, cpu)
			}
		}
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	figure("processor time of a step with up to 100 viewers / without: %.3f (%d and %d steps)",
		median(with)/median(before), len(with), len(before))
	stop.Store(true)
	_ = os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600)
	wait.Wait()
	figure("viewers that missed or saw a reading out of order: %d of 100", lost.Load())
}
