package browsertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// server is a memroom serve of our own, over a home of our own.
type server struct {
	t    *testing.T
	url  string
	ask  string // what follows the address and lets one in: ?token=...
	home string
	pid  int
	stop func()
}

// serve starts memroom serve on any free port.
func serve(t *testing.T, home string, flags ...string) *server {
	t.Helper()
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(memroom, append([]string{"serve", "--port", "0"}, flags...)...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, home: home, pid: cmd.Process.Pid}
	stopped := false
	s.stop = func() {
		if !stopped {
			stopped = true
			_ = cmd.Process.Signal(syscall.SIGTERM) // SIGINT may be ignored, as in the background
			_ = cmd.Wait()
		}
	}
	t.Cleanup(s.stop)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("memroom serve said nothing: %v", err)
	}
	_, s.url, _ = strings.Cut(strings.TrimSpace(line), ": ")
	at := strings.LastIndex(s.url, "/")
	s.url, s.ask = s.url[:at], s.url[at+1:]
	return s
}

// record runs a command under memroom and returns its run's ID. Its exit code does not matter.
func record(t *testing.T, home string, args ...string) string {
	t.Helper()
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(memroom, append([]string{"run", "--quiet"}, args...)...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("memroom run: %v: %s", err, out)
	}
	ids, err := os.ReadDir(filepath.Join(home, "runs"))
	if err != nil || len(ids) == 0 {
		t.Fatalf("no run was recorded: %v", err)
	}
	return ids[len(ids)-1].Name()
}

// shot keeps a picture in the folder that MEMROOM_TEST_SHOTS names, for people to look at.
func (p *tab) shot(name string) {
	dir := os.Getenv("MEMROOM_TEST_SHOTS")
	if dir == "" {
		return
	}
	var data []byte
	p.run(chromedp.Sleep(400*time.Millisecond), chromedp.FullScreenshot(&data, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644); err != nil {
		p.t.Fatal(err)
	}
}

func (p *tab) text(selector string) string {
	return eval[string](p, fmt.Sprintf(`(document.querySelector(%q) || {textContent: ""}).textContent`, selector))
}

// until waits for an expression to become true.
func (p *tab) until(expression string) {
	p.t.Helper()
	p.run(chromedp.Poll(expression, nil, chromedp.WithPollingInterval(100*time.Millisecond),
		chromedp.WithPollingTimeout(60*time.Second)))
}

// accessible checks what every view must have: names for everything that takes input, headings in
// order, text that differs enough from its ground.
func (p *tab) accessible() {
	p.t.Helper()
	for _, problem := range eval[[]string](p, `(() => {
		const wrong = [];
		const seen = (n) => n.getClientRects().length > 0;
		for (const n of document.querySelectorAll("button, a[href], input, select, canvas, textarea")) {
			if (!seen(n) && n.type !== "file") continue;
			const label = n.getAttribute("aria-label") || n.textContent.trim() || (n.labels && n.labels.length > 0 && n.labels[0].textContent.trim());
			if (!label) wrong.push("no name: " + n.outerHTML.slice(0, 120));
		}
		for (const n of document.querySelectorAll("canvas")) if (n.getAttribute("role") !== "img") wrong.push("a canvas is no img: " + n.id);
		if (document.querySelectorAll("h1").length !== 1) wrong.push(document.querySelectorAll("h1").length + " first headings");
		const ids = [...document.querySelectorAll("[id]")].map((n) => n.id);
		for (const id of ids) if (ids.indexOf(id) !== ids.lastIndexOf(id)) wrong.push("twice the id " + id);
		const number = (c) => { const m = c.match(/[\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; };
		const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }; return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
		for (const n of document.querySelectorAll("p, td, th, li, span, a, button, h1, h2, h3, summary, code, label, b")) {
			if (!seen(n) || ![...n.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
			const style = getComputedStyle(n);
			let ground = null;
			let alpha = 1;
			for (let m = n; m; m = m.parentElement) { const s = getComputedStyle(m); if (!ground) ground = number(s.backgroundColor); alpha *= Number(s.opacity); }
			if (alpha < 1) continue; // switched off
			const [a, b] = [light(number(style.color)), light(ground || [255, 255, 255])];
			const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
			if (ratio < 4.5) wrong.push("contrast " + ratio.toFixed(2) + ": " + n.textContent.trim().slice(0, 60));
		}
		return wrong.slice(0, 10);
	})()`) {
		p.t.Error(problem)
	}
}

// dark asks for the dark colours.
func (p *tab) dark() {
	p.run(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: "dark"}}))
}

func narrow(p *tab) {
	p.run(emulation.SetDeviceMetricsOverride(390, 800, 1, true), chromedp.Sleep(300*time.Millisecond))
	if wide := eval[float64](p, `document.documentElement.scrollWidth`); wide > 392 {
		p.t.Errorf("on a narrow screen the page is %v pixels wide: %s", wide, eval[string](p,
			`[...document.querySelectorAll("body *")].filter((n) => n.getBoundingClientRect().right > 392 && !n.closest(".scroll")).map((n) => n.outerHTML.slice(0, 90)).slice(0, 4).join(" | ")`))
	}
}

const evil = `<img src=x onerror='window.pwned=1'>`

func TestRunsView(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	first := record(t, home, "--name", evil, "--", "sh", "-c", "echo '"+strings.ReplaceAll(evil, "'", `"`)+"'; exit 3")
	record(t, home, "--name", "fine", "--", "sleep", "1")
	s := serve(t, home)
	p := openAddress(t, s.url+"/", "table.runs .state")
	if text := p.text("table.runs"); !strings.Contains(text, evil) || !strings.Contains(text, "exit 3") {
		t.Errorf("the list shows %q", text)
	}
	if eval[bool](p, `"pwned" in window`) || eval[int](p, `document.querySelectorAll("img").length`) != 0 {
		t.Error("a name became an element")
	}
	p.until(`document.getElementById("link-state").textContent === "live"`)
	p.accessible()
	p.shot("runs")
	p.dark()
	p.accessible()
	p.shot("runs-dark")
	record(t, home, "--name", "newcomer", "--", "true")
	p.until(`document.querySelector("table.runs").textContent.includes("newcomer")`)
	narrow(p)
	p.shot("runs-narrow")
	p.run(emulation.ClearDeviceMetricsOverride())

	// two chosen by keyboard, then compared
	p.run(chromedp.Evaluate(`document.querySelectorAll("table.runs input")[0].focus()`, nil), chromedp.KeyEvent(" "))
	p.run(chromedp.Evaluate(`document.querySelectorAll("table.runs input")[1].focus()`, nil), chromedp.KeyEvent(" "))
	p.until(`document.querySelector("a.button").hasAttribute("href")`)
	p.run(chromedp.Evaluate(`document.querySelector("a.button").focus()`, nil), chromedp.KeyEvent(kb.Enter), chromedp.WaitVisible("table.compare"))
	if text := p.text("table.compare"); !strings.Contains(text, "newcomer") ||
		!strings.Contains(text, "host memory, peak") {
		t.Errorf("the comparison shows %q", text)
	}
	p.accessible()
	p.shot("compare")
	narrow(p)
	p.shot("compare-narrow")
	p.run(emulation.ClearDeviceMetricsOverride())

	p.run(chromedp.Navigate(s.url+"/runs/"+first), chromedp.WaitVisible("#banner .headline"))
	p.until(`document.getElementById("log").textContent.includes("img src=x")`)
	if eval[bool](p, `"pwned" in window`) || eval[int](p, `document.querySelectorAll("img").length`) != 0 {
		t.Error("a line of the log became an element")
	}
	p.accessible()
	p.quiet()
}

// TestLiveRun follows a run from its middle to its end: every reading arrives, also over a
// connection that breaks.
func TestLiveRun(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	go_on := filepath.Join(t.TempDir(), "stop")
	cmd := exec.Command(memroom, "run", "--quiet", "--name", "live", "--", "sh", "-c",
		"while [ ! -e "+go_on+" ]; do echo tick; sleep 0.2; done")
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	t.Cleanup(func() {
		if !ended {
			_ = os.WriteFile(go_on, nil, 0o600)
			_ = cmd.Wait()
		}
	})
	s := serve(t, home)
	var id string
	for start := time.Now(); id == "" && time.Since(start) < 10*time.Minute; {
		time.Sleep(100 * time.Millisecond)
		var list struct{ Runs []struct{ ID string } }
		getJSON(t, s.url+"/api/runs", &list)
		if len(list.Runs) > 0 {
			id = list.Runs[0].ID
		}
	}
	p := openAddress(t, s.url+"/runs/"+id, "#banner .headline")
	p.until(`document.getElementById("link-state").textContent === "live"`)
	p.until(`/safe|running/i.test(document.getElementById("banner").textContent)`)
	p.until(fmt.Sprintf(`document.getElementById("log").textContent.split("tick").length > %d`, 20))
	p.accessible()
	p.shot("live")
	narrow(p)
	p.shot("live-narrow")
	p.run(emulation.ClearDeviceMetricsOverride())
	if err := os.WriteFile(go_on, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended = true
	p.until(`document.getElementById("link-state").textContent === "the run is over"`)
	p.until(`document.querySelector("#run-title .state").textContent === "ok"`)
	p.quiet()
}

func getJSON(t *testing.T, url string, v any) {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(answer.Body).Decode(v); err != nil {
		t.Fatal(err)
	}
}

func TestSnapshotIsDroppedAndShown(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "home"))
	p := openAddress(t, s.url+"/snapshots"+s.ask, ".drop")
	p.accessible()
	file, err := filepath.Abs(filepath.Join("..", "..", "cli", "testdata", "oom.pickle.gz"))
	if err != nil {
		t.Fatal(err)
	}
	p.run(chromedp.SetUploadFiles("#file", []string{file}), chromedp.WaitVisible("#legend .key"))
	for id, least := range map[string]int{"timeline": 6, "segments": 4, "flame": 6} {
		if n := p.colours(id); n < least {
			t.Errorf("%s shows %d colours: blank?", id, n)
		}
	}
	p.until(`document.querySelectorAll("#whatif-table tbody tr").length > 2`)
	p.accessible()
	p.shot("snapshot")

	// search by function: the table and the pictures follow
	name := eval[string](p, `(() => { const s = document.querySelector("#groups summary").textContent; return s.split(" ")[1]; })()`)
	rows, flame := eval[int](p, `document.querySelectorAll("#groups tr").length`), p.picture("flame")
	p.run(chromedp.SendKeys("#search", name))
	p.until(`document.getElementById("search-text").textContent.includes("call stacks")`)
	if eval[int](p, `document.querySelectorAll("#groups tr").length`) > rows || p.picture("flame") == flame {
		t.Errorf("a search for %q changes nothing", name)
	}
	p.shot("snapshot-search")
	p.run(chromedp.SendKeys("#search", "no such function"))
	p.until(`document.getElementById("search-text").textContent.includes("found in no call stack")`)
	p.run(chromedp.Evaluate(`(() => { const n = document.getElementById("search"); n.value = ""; n.dispatchEvent(new Event("input")); })()`, nil))

	// keyboard: the timeline's moment, and a walk through the flame view
	before := p.text("#moment-text")
	p.run(chromedp.Focus("#timeline"), chromedp.KeyEvent(kb.Home))
	if p.text("#moment-text") == before {
		t.Error("Home leaves the moment where it was")
	}
	p.run(chromedp.KeyEvent(kb.End), chromedp.Focus("#flame"), chromedp.KeyEvent(kb.ArrowDown))
	if p.text("#flame-text") == "" {
		t.Error("the arrow does not walk into the flame view")
	}
	p.dark()
	p.accessible()
	p.until(`(() => { // the ground of the flame view is dark too
		const n = document.getElementById("flame");
		const g = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
		g.drawImage(n, 4, n.height - 4, 1, 1, 0, 0, 1, 1);
		return g.getImageData(0, 0, 1, 1).data.slice(0, 3).every((c) => c < 64); })()`)
	p.shot("snapshot-dark")
	narrow(p)
	p.shot("snapshot-narrow")
	p.quiet()
}

// TestBadFilesAreSaid: what cannot be read is named, and the page goes on.
func TestBadFilesAreSaid(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	s := serve(t, home, "--upload-limit", "1MiB")
	dir := t.TempDir()
	for name, content := range map[string][]byte{"empty.pickle": nil, "text.pickle": []byte("hello"),
		"large.pickle": bytes.Repeat([]byte{0x80}, 2<<20)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := openAddress(t, s.url+"/snapshots"+s.ask, ".drop")
	for _, c := range []struct{ file, says string }{{"empty.pickle", "empty"},
		{"large.pickle", "1MiB"}} {
		p.run(chromedp.SetUploadFiles("#file", []string{filepath.Join(dir, c.file)}))
		p.until(fmt.Sprintf(`document.querySelector(".problem") && document.querySelector(".problem").textContent.includes(%q)`, c.says))
	}
	p.run(chromedp.SetUploadFiles("#file", []string{filepath.Join(dir, "text.pickle")}))
	p.until(`document.querySelector("h1").textContent === "This snapshot cannot be shown"`)
	for _, address := range []string{"/runs/20200101-000000-abc", "/snapshots/u-gone",
		"/compare?a=x&b=y", "/studies/none"} {
		p.run(chromedp.Navigate(s.url+address), chromedp.WaitVisible(".problem"))
		p.accessible()
	}
}

func TestPlanView(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "home"))
	p := openAddress(t, s.url+"/plan?preset=gpt2&batch=8&seq=512&gpu=24GiB", ".plan .banner")
	if text := p.text(".plan .headline"); !strings.Contains(text, "Fits") {
		t.Errorf("the answer is %q", text)
	}
	p.accessible()
	p.shot("plan")
	width := `[...document.querySelectorAll(".plan-bar span")].map((n) => n.style.width).join()`
	before := eval[string](p, width)
	p.run(chromedp.Evaluate(`(() => { const n = document.getElementById("plan-batch"); n.value = "64"; n.dispatchEvent(new Event("input")); })()`, nil))
	p.until(`document.querySelector(".plan .headline").textContent.includes("not fit")`)
	if eval[string](p, width) == before {
		t.Error("the bar does not move")
	}
	if at := eval[string](p, `location.search`); !strings.Contains(at, "batch=64") {
		t.Errorf("the address is %q", at)
	}
	p.until(`document.querySelectorAll("#ladder tr").length > 1`)
	if text := p.text("#ladder"); !strings.Contains(text, "loss over the vocabulary in chunks") ||
		!strings.Contains(text, "2 micro-batches") {
		t.Errorf("24 GiB take half the batch and the loss in chunks, and the page says %q", text)
	}
	p.accessible()
	p.shot("plan-ladder")
	narrow(p)
	p.shot("plan-narrow")
	p.dark()
	p.accessible()
	p.shot("plan-dark")

	// the need over batch, with the card's line; many cards have one verdict
	p.until(`document.querySelectorAll("#curves .wall").length > 3`)
	p.run(chromedp.Navigate(s.url+"/plan?preset=gpt2&batch=1&seq=512&devices=2x24GiB"),
		chromedp.WaitVisible(".plan .banner"))
	if text := p.text(".plan .headline"); !strings.HasPrefix(text, "Fits on these 2 cards") {
		t.Errorf("two cards: %q", text)
	}
	config, err := filepath.Abs(filepath.Join("..", "..", "examples", "files", "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	p.run(chromedp.SetUploadFiles("#plan-file", []string{config}))
	p.until(`document.querySelector(".plan .typed code").textContent.includes("config.json")`)
	p.quiet()
}

// TestServerGoesAway: the page shows that it is gone, and goes on when it is back.
func TestServerGoesAway(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	record(t, home, "--name", "one", "--", "true")
	s := serve(t, home)
	p := openAddress(t, s.url+"/", "table.runs .state")
	p.until(`document.getElementById("link-state").textContent === "live"`)
	s.stop()
	p.until(`document.getElementById("link-state").textContent.includes("lost")`)
	if !strings.Contains(p.text("table.runs"), "one") {
		t.Error("what was shown is gone")
	}
	port := s.url[strings.LastIndexByte(s.url, ':')+1:]
	serve(t, home, "--port", port)
	p.until(`document.getElementById("link-state").textContent === "live"`)
}

// TestRunInOneFile: the page of a run without a server, and without what others should not see.
func TestRunInOneFile(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	id := record(t, home, "--name", "one file", "--", "sh", "-c",
		"echo token=hf_abcdefghijklmnopqrstuvwxyz123456 in $PWD/deep/file.py; sleep 1.2")
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "run.html")
	cmd := exec.Command(memroom, "show", id, "--html", file, "--share")
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p := openAddress(t, "file://"+file, "#accounts .account")
	if n := p.colours("course"); n < 3 {
		t.Errorf("the course shows %d colours: blank?", n)
	}
	p.until(`document.getElementById("log").textContent.includes("file.py")`)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	text := p.text("body")
	for _, secret := range []string{"hf_abc", here, host + " ", filepath.Base(home) + "/"} {
		if strings.Contains(p.text("#log")+p.text("#details")+p.text("#accounts"), secret) {
			t.Errorf("the page says %q", secret)
		}
	}
	if !strings.Contains(text, "one file") {
		t.Error("the name of the run is gone")
	}
	p.run(chromedp.Focus("#course"), chromedp.KeyEvent(kb.Home))
	p.accessible()
	p.quiet()
}

// TestStudyView follows a real study of memroom tune to its end.
func TestStudyView(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	s := serve(t, home)
	p := openAddress(t, s.url+"/studies", "td.soft")
	p.accessible()
	hold := filepath.Join(t.TempDir(), "hold")
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// the first letter of the hostile setting decides whether a trial fails; all wait once
	script := `case "$2" in b*) exit 3;; esac; while [ -e ` + hold + ` ]; do sleep 0.1; done; echo "loss=$1"`
	cmd := exec.Command(memroom, "tune", "--name", "look", "--samples", "6", "--metric", "loss",
		"--quiet", "--concurrent", "2", "--search", "grid", "--param", "lr=choice(0.01,0.05)",
		"--param",
		`opt=choice("<img src=x onerror=window.pwned=1>","bad","sgd")`, "--", "sh", "-c", script, "sh",
		"${lr}", "${opt}")
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(hold); _ = cmd.Wait() }()
	p.until(`document.querySelector("tbody a") && document.querySelector("tbody a").textContent === "look"`)
	p.run(chromedp.Click("tbody a"), chromedp.WaitVisible("#study-time"))
	p.until(`document.getElementById("link-state").textContent === "live"`)
	p.until(`document.querySelector("table.trials").textContent.includes("running")`)
	_ = os.Remove(hold)
	p.until(`document.querySelector(".banner").textContent.includes("6 of 6 trials are over")`)
	_ = cmd.Wait()
	if text := p.text("table.trials"); !strings.Contains(text, "<img src=x") ||
		!strings.Contains(text, "failed") {
		t.Errorf("the table shows %q; tune said %s", text, said.String())
	}
	if eval[bool](p, `"pwned" in window`) || eval[int](p, `document.querySelectorAll("img").length`) != 0 {
		t.Error("a setting became an element")
	}
	for id, least := range map[string]int{"study-time": 3, "study-axes": 3} {
		if n := p.colours(id); n < least {
			t.Errorf("%s shows %d colours: blank?", id, n)
		}
	}
	before := p.picture("study-axes")
	p.run(chromedp.Focus("#study-time"), chromedp.KeyEvent(kb.ArrowRight))
	p.until(`document.body.textContent.includes("attempt 1 ")`)
	if p.picture("study-axes") == before {
		t.Error("the chosen trial is not marked")
	}
	p.accessible()
	p.shot("study")
	p.dark()
	p.accessible()
	narrow(p)
	p.shot("study-narrow")
	p.run(emulation.ClearDeviceMetricsOverride(), chromedp.Click("table.trials tbody a"),
		chromedp.WaitVisible("#banner .headline"))
	p.run(chromedp.Navigate(s.url+"/studies/none"), chromedp.WaitVisible(".problem"))
}
