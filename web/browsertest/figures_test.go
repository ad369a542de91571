package browsertest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	dir := t.TempDir()
	five, four := filepath.Join(dir, "five.pickle"), filepath.Join(dir, "four.pickle")
	writeMillion(t, five, "5")
	writeMillion(t, four, "4")
	s := serve(t, filepath.Join(dir, "home"))
	for _, c := range []struct{ file, protocol string }{{five, "5"}, {four, "4"}} {
		p := openAddress(t, s.url+"/snapshots"+s.ask, ".drop")
		info, err := os.Stat(c.file)
		if err != nil {
			t.Fatal(err)
		}
		start, server, browser := time.Now(), processorTime(s.pid), processorTime(browserPID())
		p.run(chromedp.SetUploadFiles("#file", []string{c.file}),
			chromedp.WaitVisible("#legend .key"))
		figure("snapshot of 1,000,000 events, %d MB, protocol %s, dropped and drawn: %v (bar 3 s); "+
			"processor time of the server %v, of the browser %v", info.Size()>>20, c.protocol,
			time.Since(start).Round(time.Millisecond),
			(processorTime(s.pid) - server).Round(10*time.Millisecond),
			(processorTime(browserPID()) - browser).Round(10*time.Millisecond))
		start = time.Now()
		p.click("timeline", 0.4, 0.5)
		p.picture("segments")
		figure("a click on it answered: %v", time.Since(start).Round(time.Millisecond))
		p.shot("million")
		p.until(`document.querySelectorAll("#whatif-table tbody tr").length > 2`) // else it runs at the same time as the next
		p.quiet()
		p.close()
		memoryViz(t, c.file, "the same file, protocol "+c.protocol)
	}
}

func writeMillion(t *testing.T, file, protocol string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: not on PATH")
	}
	if out, err := exec.Command(python, "million.py", "1000000", file,
		protocol).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
}

// TestFiguresOfAGigabyte drops a file that a browser alone could hardly hold.
func TestFiguresOfAGigabyte(t *testing.T) {
	needsFigures(t)
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: not on PATH")
	}
	file := filepath.Join(t.TempDir(), "gigabyte.pickle")
	write := func(protocol string) {
		if out, err := exec.Command(python, "gigabyte.py", file, "1024",
			protocol).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	write("5")
	s := serve(t, filepath.Join(t.TempDir(), "home"))
	p := openAddress(t, s.url+"/snapshots"+s.ask, ".drop")
	start, server, browser := time.Now(), processorTime(s.pid), processorTime(browserPID())
	p.run(chromedp.SetUploadFiles("#file", []string{file}), chromedp.WaitVisible("#legend .key"))
	figure("snapshot of 1 GiB, protocol 5, %d events, dropped and drawn: %v; processor time of the "+
		"server %v, of the browser %v", eval[int](p, `Number(document.getElementById("moment").max) + 1`),
		time.Since(start).Round(time.Millisecond),
		(processorTime(s.pid) - server).Round(10*time.Millisecond),
		(processorTime(browserPID()) - browser).Round(10*time.Millisecond))
	p.quiet()
	p.close()
	s.stop()
	memoryViz(t, file, "the same gigabyte, protocol 5")
	write("4")
	memoryViz(t, file, "the same gigabyte, protocol 4")
}

// importLine is how MemoryViz.js asks for d3. Our stand-in page has all of d3 in one script.
var importLine = regexp.MustCompile(`(?m)^import (\* as )?(\{?[\w, ]+\}?) from "https://[^"]*";$`)

// memoryViz opens a file in the same browser with the code of pytorch.org/memory_viz.
func memoryViz(t *testing.T, file, what string) {
	t.Helper()
	code, err := os.ReadFile(os.Getenv("MEMROOM_MEMORY_VIZ"))
	d3, err2 := os.ReadFile(os.Getenv("MEMROOM_D3"))
	if err != nil || err2 != nil {
		figure("memory_viz, %s: not run, needs MEMROOM_MEMORY_VIZ (MemoryViz.js of PyTorch) and "+
			"MEMROOM_D3 (d3.js of the version that it names)", what)
		return
	}
	const ready = "window.begin = () => { add_remote_files([{ name: 'file', url: '/file' }]); };\n"
	script := importLine.ReplaceAllString(string(code), "const $2 = globalThis.d3;") + "\n" + ready
	mux := http.NewServeMux()
	give := func(path, kind string, data []byte) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(data)
		})
	}
	give("/{$}", "text/html", []byte(`<!doctype html><html><body><script src="/d3.js"></script>`+
		`<script type="module" src="/viz.js"></script></body></html>`))
	give("/d3.js", "text/javascript", d3)
	give("/viz.js", "text/javascript", []byte(script))
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, file)
	})
	web := httptest.NewServer(mux)
	defer web.Close()
	p := openAddress(t, web.URL+"/", "body select")
	p.until(`typeof window.begin === "function"`)
	p.run(chromedp.Evaluate(`window.problems = []; window.addEventListener("unhandledrejection", (e) => problems.push(String(e.reason))); window.addEventListener("error", (e) => problems.push(e.message)); window.begin()`, nil))
	start, browser := time.Now(), processorTime(browserPID())
	// drawn once the picture has shapes and the page answers
	const done = `document.querySelectorAll("svg path, svg polygon, svg rect").length > 20`
	for {
		var drawn, failed bool
		ctx, stop := context.WithTimeout(p, patience)
		err := chromedp.Run(ctx, chromedp.Evaluate(done, &drawn),
			chromedp.Evaluate(`window.problems.length > 0`, &failed))
		stop()
		took := time.Since(start).Round(time.Millisecond)
		cost := (processorTime(browserPID()) - browser).Round(10 * time.Millisecond)
		switch {
		case failed:
			figure("memory_viz, %s: refused after %v: %s", what, took,
				eval[string](p, `window.problems[0]`))
		case drawn:
			figure("memory_viz, %s: drawn after %v; processor time of the browser %v", what, took,
				cost)
		case err != nil || took > patience:
			figure("memory_viz, %s: not drawn after %v (%v); processor time of the browser %v", what,
				took, err, cost)
		default:
			time.Sleep(200 * time.Millisecond)
			continue
		}
		return
	}
}

// patience is how long memory_viz may take.
const patience = 60 * time.Second

// browserPID is the process of the browser of all tests.
func browserPID() int { return chromedp.FromContext(running).Browser.Process().Pid }

// processorTime is what a process and those below it have used.
func processorTime(pid int) (total time.Duration) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	parent, used := map[int]int{}, map[int]time.Duration{}
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		at := bytes.LastIndexByte(data, ')')
		if err != nil || at < 0 {
			continue
		}
		fields := strings.Fields(string(data[at+1:]))
		if len(fields) < 13 {
			continue
		}
		parent[n], _ = strconv.Atoi(fields[1])
		user, _ := strconv.ParseInt(fields[11], 10, 64)
		system, _ := strconv.ParseInt(fields[12], 10, 64)
		used[n] = time.Duration(user+system) * 10 * time.Millisecond
	}
	for n, spent := range used {
		for m := n; m > 1; m = parent[m] {
			if m == pid {
				total += spent
				break
			}
		}
	}
	return total
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
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600)
		_ = cmd.Wait()
	})
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
	// A viewer keeps what comes and is judged at the end: the watched job pays for the server, not
	// for the work of a hundred browsers, which are elsewhere.
	received := make([]bytes.Buffer, 100)
	watch := func(ctx context.Context, n int) *sync.WaitGroup {
		var wait sync.WaitGroup
		for i := range n {
			wait.Go(func() {
				request, err := http.NewRequestWithContext(ctx, "GET", s.url+"/api/runs/"+id+"/live", nil)
				if err != nil {
					t.Error(err)
					return
				}
				request.Header.Set("Last-Event-ID", lastID(received[i].Bytes()))
				received[i].Truncate(bytes.LastIndex(received[i].Bytes(), []byte("\n\n")) + 1)
				answer, err := http.DefaultClient.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				_, _ = io.Copy(&received[i], answer.Body)
			})
		}
		return &wait
	}
	// without and with viewers by turns, so that a machine that grows slower meanwhile counts for both
	type phase struct {
		from, to float64
		viewers  int
	}
	var phases []phase
	now := func() float64 { return float64(time.Now().UnixNano()) / 1e9 }
	spend := func(n int, seconds time.Duration, then func()) {
		ctx, stop := context.WithCancel(context.Background())
		wait := watch(ctx, n)
		time.Sleep(2 * time.Second) // they come, or go
		from := now()
		time.Sleep(seconds * time.Second)
		phases = append(phases, phase{from, now(), n})
		if then != nil {
			then()
		}
		stop()
		wait.Wait()
	}
	spend(10, 3, func() {
		figure("server with 10 viewers of one run: %.0f MiB resident (bar 150)", resident())
	})
	phases = nil
	var used time.Duration
	for range 3 {
		spend(0, 5, nil)
		before := processorTime(s.pid)
		spend(100, 5, nil)
		used += processorTime(s.pid) - before
	}
	wait := watch(context.Background(), 100) // the last stay to the end
	time.Sleep(time.Second)
	figure("server with 100 viewers: %.0f MiB resident, %.1f %% of a processor", resident(),
		100*used.Seconds()/21)
	data, err := os.ReadFile(filepath.Join(dir, "steps"))
	if err != nil {
		t.Fatal(err)
	}
	var cpu, wall [2][]float64
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		var at, c, w float64
		if n, _ := fmt.Sscan(line, &at, &c, &w); n != 3 {
			continue
		}
		for _, p := range phases {
			if at-w > p.from && at < p.to {
				with := min(p.viewers, 1)
				cpu[with], wall[with] = append(cpu[with], c), append(wall[with], w)
			}
		}
	}
	if len(cpu[0]) == 0 || len(cpu[1]) == 0 {
		t.Fatal("no steps")
	}
	median := func(list []float64) float64 { slices.Sort(list); return list[len(list)/2] }
	figure("a step with 100 viewers / without: processor time %.3f, wall time %.3f (bar 1; %d and %d "+
		"steps)", median(cpu[1])/median(cpu[0]), median(wall[1])/median(wall[0]), len(cpu[1]),
		len(cpu[0]))
	// each viewer came and went four times, and must have seen exactly what is in the record
	_ = os.WriteFile(filepath.Join(dir, "stop"), nil, 0o600)
	_ = cmd.Wait()
	wait.Wait()
	record, err := os.ReadFile(filepath.Join(home, "runs", id, "samples.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var kept []int64
	for line := range bytes.Lines(record) {
		var v struct {
			At int64 `json:"at_ms"`
		}
		if json.Unmarshal(line, &v) == nil {
			kept = append(kept, v.At)
		}
	}
	wrong := 0
	for i := range received {
		if !slices.Equal(timesOf(received[i].Bytes()), kept) {
			wrong++
		}
	}
	figure("viewers that did not see each of the %d readings once and in order, over four "+
		"connections: %d of %d", len(kept), wrong, len(received))
}

// events calls do for every whole event of a stream.
func events(text []byte, do func(kind, id, data string)) {
	whole := text[:bytes.LastIndex(text, []byte("\n\n"))+1]
	for block := range strings.SplitSeq(string(whole), "\n\n") {
		var kind, id, data string
		for line := range strings.SplitSeq(block, "\n") {
			name, value, _ := strings.Cut(line, ": ")
			switch name {
			case "event":
				kind = value
			case "id":
				id = value
			case "data":
				data = value
			}
		}
		if data != "" {
			do(kind, id, data)
		}
	}
}

// lastID is where a stream goes on that broke off after some text.
func lastID(text []byte) string {
	last := "0.0.0"
	events(text, func(_, id, _ string) {
		if id != "" {
			last = id
		}
	})
	return last
}

func timesOf(text []byte) (times []int64) {
	events(text, func(kind, _, data string) {
		var list []struct {
			At int64 `json:"at_ms"`
		}
		if kind == "samples" && json.Unmarshal([]byte(data), &list) == nil {
			for _, v := range list {
				times = append(times, v.At)
			}
		}
	})
	return times
}
