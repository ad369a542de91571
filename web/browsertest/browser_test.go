package browsertest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// tab is one page in the browser, with everything it complained about and every address it asked
// for.
type tab struct {
	context.Context
	t      *testing.T
	mu     sync.Mutex
	origin string // from which alone the page may load
	close  func()

	complaints []string
	requests   []string
}

func openTab(t *testing.T, file string) *tab {
	t.Helper()
	return openAddress(t, "file://"+file, "#legend .key")
}

// openAddress opens an address and waits until something is seen.
func openAddress(t *testing.T, address, visible string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(startBrowser(t))
	t.Cleanup(cancel)
	ctx, expire := context.WithTimeout(ctx, 15*time.Minute) // ends a test that hangs
	t.Cleanup(expire)
	p := &tab{Context: ctx, t: t, origin: "file:", close: cancel}
	if rest, ok := strings.CutPrefix(address, "http://"); ok {
		host, _, _ := strings.Cut(rest, "/")
		p.origin = "http://" + host + "/"
	}
	chromedp.ListenTarget(ctx, p.hear)
	p.run(network.Enable(), cdplog.Enable(), chromedp.Navigate(address),
		chromedp.WaitVisible(visible))
	return p
}

var (
	starting sync.Once
	running  context.Context // the browser of all tests
	ending   = func() {}
)

// startBrowser starts the one browser of all tests; each has a tab of its own.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	path := findBrowser(t)
	starting.Do(func() {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
			chromedp.NoSandbox, chromedp.WindowSize(1400, 1600))
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		ctx, cancel := chromedp.NewContext(allocator)
		if err := chromedp.Run(ctx); err != nil {
			t.Fatal(err)
		}
		running, ending = ctx, func() { cancel(); stop() }
	})
	if running == nil {
		t.Fatal("the browser did not start")
	}
	return running
}

func TestMain(m *testing.M) {
	code := m.Run()
	ending()
	os.Exit(code)
}

// findBrowser skips the test, loudly, where there is none.
func findBrowser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{os.Getenv("MEMROOM_TEST_BROWSER"), "chromium", "chromium-browser",
		"google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("needs a browser: chromium or google-chrome on PATH, or MEMROOM_TEST_BROWSER")
	return ""
}

func (p *tab) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.complaints = append(p.complaints, "exception: "+e.ExceptionDetails.Error())
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			p.complaints = append(p.complaints, fmt.Sprintf("console: %s", e.Args[0].Value))
		}
	// messages of the browser itself, such as a violated content security policy
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.LevelError || e.Entry.Level == cdplog.LevelWarning {
			p.complaints = append(p.complaints, "browser: "+e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		p.requests = append(p.requests, e.Request.URL)
	}
}

func (p *tab) run(actions ...chromedp.Action) {
	p.t.Helper()
	for _, action := range actions {
		err := chromedp.Run(p, action)
		for again := 0; err != nil && replaced(err) && again < mostReplaced; again++ {
			err = chromedp.Run(p, action)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// mostReplaced is how often an action looks for its element anew.
const mostReplaced = 20

// replaced reports whether the page drew an element anew after it had been found and before it was
// used, as a table of running trials is. People look again and click.
func replaced(err error) bool {
	return strings.Contains(err.Error(), "Could not find node with given id")
}

// eval returns the value of an expression in the page; of a promise, once it is kept.
func eval[T any](p *tab, expression string) (value T) {
	p.t.Helper()
	p.run(chromedp.Evaluate(expression, &value,
		func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	return value
}

// picture is the canvas as a string that changes when a pixel does; colours is how many different
// ones it shows.
func (p *tab) picture(id string) string {
	return eval[string](p, fmt.Sprintf("document.getElementById(%q).toDataURL()", id))
}

func (p *tab) colours(id string) int {
	return eval[int](p, fmt.Sprintf(`(() => { const c = document.getElementById(%q);
		const words = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer); return new Set(words).size; })()`, id))
}

// click presses the mouse at a part of an element's width and height.
func (p *tab) click(id string, right, down float64) {
	p.t.Helper()
	box := eval[[]float64](p, fmt.Sprintf(`(() => { const r = document.getElementById(%q).getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()`, id))
	p.run(chromedp.MouseClickXY(box[0]+right*box[2], box[1]+down*box[3]))
}

func (p *tab) quiet() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.complaints {
		p.t.Error(c)
	}
	for _, url := range p.requests {
		if !strings.HasPrefix(url, p.origin) && !strings.HasPrefix(url, "data:") {
			p.t.Errorf("the page asked for %s", url)
		}
	}
}

var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("MEMROOM_TEST_BINARY"); path != "" { // `make test` built it
		return path, nil
	}
	dir, err := os.MkdirTemp("", "memroom-browsertest-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "memroom")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/memroom")
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %v\n%s", err, out)
	}
	return path, nil
})

// page makes the report of a snapshot.
func page(t *testing.T, snapshot string) string {
	t.Helper()
	memroom, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "page.html")
	if text, err := exec.Command(memroom, "snapshot", snapshot, "--html", out, "--top",
		"0").CombinedOutput(); err != nil {
		t.Fatalf("memroom snapshot: %v\n%s", err, text)
	}
	return out
}

func TestSnapshotPage(t *testing.T) {
	p := openTab(t, page(t, filepath.Join("..", "..", "cli", "testdata", "mlp.pickle.gz")))
	if n := p.colours("timeline"); n < 8 {
		t.Errorf("the timeline shows %d colours: blank?", n)
	}
	if n := p.colours("segments"); n < 5 {
		t.Errorf("the segment map shows %d colours: blank?", n)
	}
	if eval[bool](p, `document.getElementById("loading") !== null`) {
		t.Error("the page still says that it is reading")
	}
	keys := eval[[]string](p, `[...document.querySelectorAll("#legend .key")].map((k) => k.dataset.category)`)
	for _, want := range []string{"weights", "optimizer", "gradients", "workspace"} {
		if !strings.Contains(strings.Join(keys, " "), want) {
			t.Errorf("the legend %v lacks %s", keys, want)
		}
	}
	if rows := eval[int](p, `document.querySelectorAll("#groups tr").length`); rows < 4 {
		t.Errorf("%d rows of call stacks", rows)
	}
	p.quiet()
}

func TestClickChoosesAnotherMoment(t *testing.T) {
	p := openTab(t, page(t, filepath.Join("..", "..", "cli", "testdata", "mlp.pickle.gz")))
	segments, text := p.picture("segments"), eval[string](p, `document.getElementById("moment-text").textContent`)
	p.click("timeline", 0.12, 0.5)
	if p.picture("segments") == segments {
		t.Error("a click on the timeline leaves the segment map as it was")
	}
	if now := eval[string](p, `document.getElementById("moment-text").textContent`); now == text {
		t.Errorf("the moment is still %q", now)
	}
	segments = p.picture("segments")
	p.run(chromedp.Evaluate(`(() => { const m = document.getElementById("moment"); m.value = m.max; m.dispatchEvent(new Event("input")); })()`, nil))
	if p.picture("segments") == segments {
		t.Error("the slider leaves the segment map as it was")
	}
	p.quiet()
}

func TestZoomAndLegend(t *testing.T) {
	p := openTab(t, page(t, filepath.Join("..", "..", "cli", "testdata", "oom.pickle.gz")))
	whole := p.picture("timeline")
	p.run(input.DispatchMouseEvent(input.MouseWheel, 700, 400).WithDeltaY(-600))
	p.run(chromedp.Sleep(300 * time.Millisecond))
	zoomed := p.picture("timeline")
	if zoomed == whole {
		t.Error("the wheel does not zoom")
	}
	p.run(chromedp.Click(`[data-category="activations"]`))
	if p.picture("timeline") == zoomed {
		t.Error("switching a category off changes nothing")
	}
	if text := eval[string](p, `document.getElementById("failure-list").textContent`); !strings.Contains(text, "384MiB") {
		t.Errorf("the failure is told as %q", text)
	}
	p.quiet()
}

var written struct {
	sync.Mutex
	dir string
}

// writeSnapshots makes the snapshots that no real program would, once for all tests.
func writeSnapshots(t *testing.T) (hostile, large, states string) {
	t.Helper()
	written.Lock()
	defer written.Unlock()
	names := func(dir string) (string, string, string) {
		return filepath.Join(dir, "<b>hostile&.pickle"), filepath.Join(dir, "large.pickle"),
			filepath.Join(dir, "states.pickle")
	}
	if written.dir != "" {
		return names(written.dir)
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("needs python3: not on PATH")
	}
	dir, err := os.MkdirTemp("", "memroom-snapshots-")
	if err != nil {
		t.Fatal(err)
	}
	before := ending
	ending = func() { before(); os.RemoveAll(dir) }
	hostile, large, states = names(dir)
	if out, err := exec.Command(python, "hostile.py", hostile, large,
		states).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	written.dir = dir
	return hostile, large, states
}

func TestNamesAreNeverCode(t *testing.T) {
	hostile, _, _ := writeSnapshots(t)
	p := openTab(t, page(t, hostile))
	p.run(chromedp.Evaluate(`document.querySelectorAll("details").forEach((d) => { d.open = true; })`, nil), chromedp.Sleep(300*time.Millisecond))
	if eval[bool](p, `"pwned" in window`) {
		t.Error("a name in the snapshot ran as script")
	}
	if n := eval[int](p, `document.querySelectorAll("img, iframe, object, b b, h1 b").length`); n != 0 {
		t.Errorf("%d elements came out of names", n)
	}
	if n := eval[int](p, "document.scripts.length"); n != 2 {
		t.Errorf("%d scripts in the page, it was written with 2", n)
	}
	if text := eval[string](p, `document.getElementById("groups").textContent`); !strings.Contains(text, "<img src=x") {
		t.Error("the name is not shown as text")
	}
	p.quiet()
}

// TestInjectedScriptsDoNotRun puts scripts of every kind into the page, as a flaw in it would let
// somebody do. The policy must stop all of them, and the page go on as before.
func TestInjectedScriptsDoNotRun(t *testing.T) {
	p := openTab(t, page(t, filepath.Join("..", "..", "cli", "testdata", "mlp.pickle.gz")))
	before := eval[bool](p, `"pwned" in window`)
	stopped := eval[int](p, `new Promise((done) => {
		const code = "window.pwned = 1";
		let stopped = 0;
		document.addEventListener("securitypolicyviolation", () => { stopped++; });
		const put = (set) => { const s = document.createElement("script"); set(s); document.body.append(s); };
		put((s) => { s.src = "data:text/javascript," + encodeURIComponent(code); });
		put((s) => { s.type = "module"; s.src = "data:text/javascript," + encodeURIComponent(code); });
		put((s) => { s.textContent = code; });
		put((s) => { s.src = URL.createObjectURL(new Blob([code], { type: "text/javascript" })); });
		const div = document.createElement("div");
		div.innerHTML = '<img src="x:" onerror="window.pwned = 1">';
		document.body.append(div);
		setTimeout(() => done(stopped), 1500);
	})`)
	if before || eval[bool](p, `"pwned" in window`) {
		t.Error("an injected script ran")
	}
	if stopped < 5 {
		t.Errorf("the policy stopped %d of at least 5 attempts", stopped)
	}
	if n := p.colours("timeline"); n < 8 {
		t.Errorf("the timeline shows %d colours: blank?", n)
	}
}

func TestStatesOfSeveralDevices(t *testing.T) {
	_, _, states := writeSnapshots(t)
	p := openTab(t, page(t, states))
	if text := eval[string](p, `document.getElementById("moment-text").textContent`); !strings.Contains(text, "when the snapshot was taken: 8MiB allocated, 20MiB reserved") {
		t.Errorf("the moment is %q", text)
	}
	before := eval[[]string](p, `[...document.getElementById("device").options].map((o) => o.textContent)`)
	if len(before) != 2 || before[1] != "device 3" {
		t.Errorf("devices to choose from: %q", before)
	}
	p.run(chromedp.Evaluate(`(() => { const d = document.getElementById("device"); d.value = "1"; d.dispatchEvent(new Event("change")); })()`, nil))
	if n := p.colours("segments"); n < 3 {
		t.Errorf("the segment map of the second device shows %d colours: blank?", n)
	}
	p.quiet()
}

// TestHalfAMillionEvents prints what a large page costs; it must come up and answer a click.
func TestHalfAMillionEvents(t *testing.T) {
	_, large, _ := writeSnapshots(t)
	file := page(t, large)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	p := openTab(t, file)
	loaded := time.Since(start)
	before := p.picture("segments")
	start = time.Now()
	p.click("timeline", 0.3, 0.5)
	if p.picture("segments") == before {
		t.Error("a click changes nothing")
	}
	t.Logf("%d MB page: up in %v, a click answered in %v, %d entries", info.Size()>>20,
		loaded.Round(time.Millisecond), time.Since(start).Round(time.Millisecond),
		eval[int](p, `Number(document.getElementById("moment").max) + 1`))
	if n := p.colours("timeline"); n < 4 {
		t.Errorf("the timeline shows %d colours: blank?", n)
	}
	p.quiet()
}
