package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"memroom/api"
	"memroom/event"
	"memroom/store"
	"memroom/testenv"
)

// telling is one of the places that tell a figure: a command line, or a path of the page's server,
// and where the figure stands in the answer. A dot begins the path of a number of bytes in JSON, a
// # that of anything else in JSON; what begins with neither is a pattern with one group.
type telling struct{ from, at string }

// TestNumbersAgree walks through what is told in several places: the terminal, --json, pages and
// the page's server must tell the same of the same thing.
func TestNumbersAgree(t *testing.T) {
	home := newNumbers(t)
	const (
		setup  = " --batch 8 --seq 512"
		gpt2   = "plan gpt2" + setup + " --gpu 4090"
		page   = gpt2 + " --html plan.html > plan.html"
		served = "/api/plan?preset=gpt2&batch=8&seq=512&gpu=4090"
		cards  = "plan gpt2" + setup + " --cards"
		// one card of several is planned as that card is
		devices = "plan gpt2" + setup + " --devices 1x4090"
		// only the upper end of its interval crosses the card
		open     = "plan gpt2" + setup + " --gpu 4060"
		full     = "/api/plan?preset=gpt2&batch=8&seq=512&gpu=4060"
		oom      = "DATA/oom.pickle.gz"
		mlp      = "DATA/mlp.pickle.gz"
		snapshot = "snapshot " + oom
		drawn    = snapshot + " --html drawn.html > drawn.html"
		check    = "check sizes"
		bench    = "feed bench people.csv --budget 64MiB"
	)
	run, study := "/api/runs/"+home.run, "/api/studies/sizes"
	for name, places := range map[string][]telling{
		"what a plan needs": {{gpt2, `needs (\S+) of GPU`}, {gpt2 + " --json", ".device_peak"},
			{page, `<h1>(\S+) on the card`}, {served, ".prediction.device_peak"},
			{cards, `RTX4090 +\S+ +(\S+)`},
			{devices, `cuda:0 +RTX4090 +\S+ +(\S+)`}, {devices, `RTX4090 +\S+ +\S+ +(\S+)`},
			{devices + " --json", ".devices.0.device_peak"},
			{gpt2 + " --fit", `fits without changes: needs ([^,]+),`},
			{gpt2 + " --fit --json", ".prediction.device_peak"},
			{check, `sizes +RTX4090 +(\S+)`}, {check + " --json", ".checks.0.now.device_peak"},
			{check + " --format markdown", `RTX4090 \| (\S+) \|`},
			{"plan gpt2 --gpu 4090 --sweep batch=8..8,seq=512..512", ` 512 +(\S+)`}},
		"the lower end": {{gpt2, `between (\S+) and`}, {gpt2 + " --json", ".low"},
			{page, `between (\S+) and`}, {served, ".prediction.low"}},
		"the upper end": {{gpt2, `and (\S+) \(PyTorch`}, {gpt2 + " --json", ".high"},
			{page, `between \S+ and (\S+) `}, {served, ".prediction.high"}},
		"what a plan allocates": {{gpt2, `allocates (\S+) and`},
			{gpt2 + " --json", ".allocated_peak"},
			{page, `allocated (\S+) `}, {served, ".prediction.allocated_peak"}},
		"what a plan reserves": {{gpt2, `reserves ([^)]+)\)`}, {gpt2 + " --json", ".reserved_peak"},
			{page, `reserved (\S+) `}, {served, ".prediction.reserved_peak"}},
		"the activations": {{gpt2, `activations +(\S+)`},
			{gpt2 + " --json", ".categories.activations"},
			{page, `activations</td><td class="n">([^<]+)<`},
			{served, ".prediction.categories.activations"}},
		"the peak of the backward pass": {{gpt2, `(?m)^  backward +(\S+)`},
			{gpt2 + " --json", ".phases.2.allocated"},
			{page, `<td>backward</td><td class="n">([^<]+)<`}},
		"the card": {{gpt2, `RTX4090 \((\S+)\)`}, {gpt2 + " --json", ".card.total"},
			{page, `RTX4090 \((\S+)\)`}, {served, ".prediction.card.total"},
			{cards, `RTX4090 +(\S+)`}},
		"the largest batch": {{gpt2, `largest batch (\d+)`}, {gpt2 + " --json", "#max_batch"},
			{page, `largest batch (\d+)`}, {cards, `RTX4090 .* (\d+) +1  fits`}},
		"what was planned": {{gpt2, `planned for (.*)`}, {gpt2 + " --json", "#assumed"},
			{page, `<p>for (.*?)</p>`},
			{served, "#prediction.assumed"}},
		"a verdict": {{gpt2, `(?m)^(.*) RTX4090 \(`}, {gpt2 + " --json", "#verdict"},
			{page, `<b class="yes">([^<]+)<`}, {served, "#prediction.verdict"},
			{cards, `RTX4090 .* 1  (.*)`}},
		"a verdict that is open": {{open, `(?m)^(.*) RTX4060 .*: needs`},
			{open + " --json", "#verdict"},
			{open + " --html open.html > open.html", `<b class="\w+">([^<]+)<`},
			{full, "#prediction.verdict"}},
		"a preset and its config": {{gpt2 + " --json", ".device_peak"},
			{"plan gpt2.json" + setup + " --gpu 4090 --json", ".device_peak"}},
		"a preset of stored bfloat16 and its config": {{"plan llama-3.2-1b --seq 256 --json",
			".high"}, {"plan llama.json --seq 256 --json", ".high"}},
		"a preset of an encoder and its config": {{"plan bert-base" + setup + " --json",
			".device_peak"},
			{"plan bert.json" + setup + " --json", ".device_peak"}},

		"what a recording allocated": {{snapshot, `allocated was highest +(\S+)`},
			{drawn, ".devices.0.snapshot.allocated_peak"},
			{snapshot + " --json", ".devices.0.allocated_peak"},
			{"replay " + oom, `(\S+) allocated; retries`},
			{"replay " + oom + " --json", ".allocated_peak"},
			{"replay " + oom + " --what-if --json", ".what_if.outcomes.0.allocated_peak"}},
		"what a recording reserved": {{snapshot, `reserved was highest +\S+ +(\S+)`},
			{drawn, ".devices.0.snapshot.reserved_peak"},
			{snapshot + " --json", ".devices.0.reserved_peak"},
			{"replay " + oom, `peaks: (\S+) reserved`},
			{"replay " + oom + " --what-if", `default +(\S+)`},
			{snapshot, `default +(\S+) .* as recorded`}},
		"what was asked for": {{snapshot, `Entry \d+: (\S+) were asked for`},
			{"explain " + oom, `(\S+) were asked for`},
			{"explain " + oom + " --json", ".requested_bytes"}},
		"what was in use": {{"explain " + oom, `asked for with (\S+) in use`},
			{"explain " + oom + " --json", ".allocated_bytes"},
			{snapshot, `with (\S+) allocated and`}},
		"settings that help": {{"snapshot " + mlp, `(?m)^  (\S+) .* recommended$`},
			{"replay " + mlp + " --what-if", `(?m)^  (\S+) .* recommended$`},
			{"replay " + mlp + " --what-if --json", "#what_if.outcomes.1.conf"}},
		"that no setting helps": {{snapshot, `(no setting avoids running out of memory)`},
			{"replay " + oom + " --what-if", `(no setting avoids running out of memory)`}},

		"the peak of a run": {{"end", `peak (\S+) of`}, {"show", `host memory +peak (\S+) `},
			{"show --json", ".peak_host"},
			{"show --json", ".summary.peaks.unreclaimable"}, {"runs", `NAME[^\n]*\n.* s +(\S+iB)`},
			{"runs --json", ".0.peak_host"},
			{run, ".peak_host"}, {run, ".room.0.peak"}, {"/api/runs", ".runs.0.room.0.peak"},
			{"/metrics", `memroom_run_peak_bytes{run="` + home.run + `",[^}]*} (\S+)`}},
		"the limit of a run": {{"end", `peak \S+ of ([^;,\s]+)`}, {"show", `of (\S+) left`},
			{"show --json", ".host_limit"},
			{run, ".room.0.limit"}, {run, ".run.host_mem"},
			{"/metrics", `memroom_run_limit_bytes{run="` + home.run + `",[^}]*} (\S+)`}},
		"how long a run took": {{"end", `after (.*?);`}, {"show", `after (.*)`},
			{"runs", `NAME[^\n]*\n.* (\d\S* s) `}},
		"the budget of a check": {{check, `(\S+)  ok`}, {check + " --json", ".checks.0.budget"},
			{check + " --format markdown", `RTX4090 \| \S+ \| (\S+) \|`}},
		"the budget of a feed": {{bench, `budget of (\S+)`}, {bench + " --json", ".report.budget"},
			{"feed convert people.csv --to rows.arrow --budget 64MiB", `budget of (\S+)`}},
		"the rows of a file": {{bench, `(\d+) rows`}, {bench + " --json", "#rows"},
			{"feed inspect people.csv", `(\d+) rows`}, {"feed inspect people.csv --json", "#rows"}},
		"how a run ended": {{"show --json", "#exit_code"}, {run, "#exit_code"},
			{"runs --json", "#0.exit_code"}},

		"the peak of a trial": {{"tune show sizes", `finished +\S+ +1 +(\S+)`},
			{"tune show sizes --json", ".trials.0.peak_host_bytes"},
			{study, ".trials.0.peak_host_bytes"}, {study, ".trials.0.attempts.0.peak_bytes"},
			{"show sizes/0 --json", ".peak_host"}, {"show sizes/0", `host memory +peak (\S+) `}},
		"the attempts of a trial": {{"tune show sizes", `finished +\S+ +(\d+)`},
			{"tune show sizes --json", "#trials.0.attempts"}},
		"the trials of a study": {{"tune show sizes", `sizes: (\d+) trial`}, {study, "#wanted"}},
		"the value of the best trial": {{"tune show sizes --json", "#best.value"},
			{study, "#trials.0.value"}},
	} {
		t.Run(name, func(t *testing.T) {
			first := ""
			for _, p := range places {
				told := home.figure(t, p)
				if first == "" {
					first = told
				}
				if told != first {
					t.Errorf("%s says %s, %s says %s", places[0].from, first, p.from, told)
				}
			}
		})
	}
}

// numbers is a home with a run and a study in it, and what was answered about them.
type numbers struct {
	run     string // the run's ID
	server  *httptest.Server
	answers map[string]string
}

func newNumbers(t *testing.T) *numbers {
	t.Helper()
	data, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	binary := testenv.Binary(t) // built from the folder of this package
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("MEMROOM_HOME", filepath.Join(dir, "home"))
	for name, text := range map[string]string{"gpt2.json": `{"model_type": "gpt2"}`,
		"bert.json": `{"model_type": "bert"}`,
		"llama.json": `{"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192,
			"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
			"head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": true,
				"torch_dtype": "bfloat16"}`,
		"people.csv": "name,age\nana,31\nbo,44\n",
		"memroom.toml": `[[check]]
name = "sizes"
plan = "gpt2 --batch 8 --seq 512"
gpu = "RTX4090"
budget = "12GiB"
`,
		"study.toml": `command = ["sh", "-c", "sleep 0.4; echo loss=$0", "${lr}"]
[params]
lr = "loguniform(1e-3,5e-3)"
`} {
		testenv.Write(t, name, []byte(text))
	}
	if err := os.Symlink(data, "DATA"); err != nil {
		t.Fatal(err)
	}
	n := &numbers{answers: map[string]string{}}
	for _, words := range [][]string{{"tune", "study.toml", "--samples", "1", "--quiet", "--name",
		"sizes"},
		{"run", "--host-mem", "1GiB", "--name", "one", "--", "sh", "-c", "sleep 0.4"}} {
		said, err := exec.Command(binary, words...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		n.answers["end"] = string(said)
	}
	kept, err := store.Open(os.Getenv("MEMROOM_HOME"))
	if err != nil {
		t.Fatal(err)
	}
	site := api.New(api.Options{Store: kept, Local: true, Temporary: dir, Token: "token"})
	n.server = httptest.NewServer(site)
	t.Cleanup(func() { site.Close(); n.server.Close() })
	n.run = n.figure(t, telling{"show --json", "#id"})
	return n
}

// figure is the text in which one of the places shows a number, sizes in words.
func (n *numbers) figure(t *testing.T, p telling) string {
	t.Helper()
	answer := n.answer(t, p.from)
	if p.at[0] != '.' && p.at[0] != '#' {
		found := regexp.MustCompile(p.at).FindStringSubmatch(answer)
		if found == nil {
			t.Fatalf("%s: nothing is like %s in\n%s", p.from, p.at, answer)
		}
		if size, err := strconv.ParseFloat(found[1], 64); err == nil && strings.HasPrefix(p.from,
			"/metrics") {
			return event.Bytes(size).String()
		}
		return found[1]
	}
	if strings.HasSuffix(p.from, ".html") {
		answer = dataOf(t, answer)
	}
	value := inJSON(t, answer, p.at[1:])
	if number, ok := value.(json.Number); ok && p.at[0] == '.' {
		size, err := number.Int64()
		if err != nil {
			t.Fatalf("%s: %s is %s", p.from, p.at, number)
		}
		return event.Bytes(size).String()
	}
	if value == nil {
		t.Fatalf("%s: there is no %s", p.from, p.at)
	}
	return fmt.Sprint(value)
}

// dataOf returns the JSON at the head of a page's data: what its script draws.
func dataOf(t *testing.T, page string) string {
	t.Helper()
	found := regexp.MustCompile(`id="data">([^<]*)<`).FindStringSubmatch(page)
	if found == nil {
		t.Fatal("the page has no data")
	}
	unpacked, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding,
		strings.NewReader(found[1])))
	if err != nil {
		t.Fatal(err)
	}
	var size uint32
	if err := binary.Read(unpacked, binary.LittleEndian, &size); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(io.LimitReader(unpacked, int64(size)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// inJSON walks down a path of keys and indexes.
func inJSON(t *testing.T, text, path string) (value any) {
	t.Helper()
	reader := json.NewDecoder(strings.NewReader(text))
	reader.UseNumber()
	if err := reader.Decode(&value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for key := range strings.SplitSeq(path, ".") {
		switch at := value.(type) {
		case map[string]any:
			value = at[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(at) {
				t.Fatalf("%s: %d items", path, len(at))
			}
			value = at[i]
		}
	}
	return value
}

// answer asks once and remembers.
func (n *numbers) answer(t *testing.T, from string) string {
	t.Helper()
	answer, known := n.answers[from]
	if known {
		return answer
	}
	if strings.HasPrefix(from, "/") {
		answer = n.get(t, from)
	} else {
		line, file, written := strings.Cut(from, " > ")
		var out bytes.Buffer
		if code := Main(context.Background(), strings.Fields(line),
			Streams{In: strings.NewReader(""), Out: &out,
				Err: io.Discard}); code != 0 && code != exitDoesNotFit {
			t.Fatalf("memroom %s: exit code %d", line, code)
		}
		answer = out.String()
		if written {
			text := testenv.Read(t, file)
			answer = string(text)
		}
	}
	n.answers[from] = answer
	return answer
}

func (n *numbers) get(t *testing.T, path string) string {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, n.server.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer token")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v %s", path, answer.Status, err, text)
	}
	return string(text)
}
