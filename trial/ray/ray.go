// Package ray runs trials as jobs of a Ray cluster, through the REST interface of its dashboard.
package ray

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"memroom/event"
	"memroom/trial"
	"memroom/trial/remote"
)

// Engine is a Ray cluster.
type Engine struct {
	// Address as the user wrote it: ray://HOST:PORT, http://HOST:PORT, HOST:PORT.
	Address string
	// Folder is what Ray copies to the nodes, a path or a URI that it knows; empty: they see ours.
	Folder string
	Token  string // of a cluster that asks for one; it is kept nowhere
	// GPUMem is the study's budget on all cards: a card's size where the cluster does not report
	// it.
	GPUMem event.Bytes

	base   string
	client *http.Client
	logs   map[string]*logState
	card   event.Bytes // size of the smallest card; 0: not known
	// workingDir is the URI of Folder
	workingDir string
}

// logState spaces out readings of a log, because Ray returns the whole log each time.
type logState struct {
	next time.Time
	size int64
}

// Port of the dashboard, where the jobs are.
const dashboardPort = "8265"

// Name returns the name of the engine, with its address.
func (e *Engine) Name() string { return "Ray at " + e.base }

// Open finds the jobs' interface. The port in ray://HOST:PORT is often that of Ray's client: then
// the dashboard's own is tried too.
func (e *Engine) Open() error {
	e.client = &http.Client{Timeout: 30 * time.Second}
	e.logs = map[string]*logState{}
	candidates, err := addresses(e.Address)
	if err != nil {
		return err
	}
	var first error
	for _, base := range candidates {
		e.base = base
		var version struct {
			Ray string `json:"ray_version"`
		}
		err := e.get("/api/version", &version)
		if err == nil && version.Ray != "" {
			return nil
		}
		var no refused
		if errors.As(err, &no) && (no.code == 401 || no.code == 403) {
			return fmt.Errorf("--on %s: Ray at %s asks for a token (%s): set RAY_AUTH_TOKEN "+
				"or RAY_AUTH_TOKEN_PATH to the cluster's", e.Address, base, no.text)
		}
		if err == nil {
			err = errors.New("something else answers there")
		}
		if first == nil {
			first = err
		}
	}
	return fmt.Errorf("--on %s: no Ray cluster takes jobs at %s (%w): start one with "+
		"`ray start --head` and ray[default] installed, or give the address of its dashboard, "+
		"port 8265 by default", e.Address, strings.Join(candidates, " or "), first)
}

// Take hands the folder over that jobs run in.
func (e *Engine) Take(string) (err error) {
	e.workingDir, err = e.upload(e.Folder)
	return err
}

// addresses lists where the dashboard may be.
func addresses(given string) ([]string, error) {
	text := given
	scheme := "http"
	if before, after, ok := strings.Cut(text, "://"); ok {
		text = after
		if before == "https" {
			scheme = before
		}
	}
	text = strings.TrimRight(text, "/")
	if text == "" || text == "auto" || text == "local" {
		text = "127.0.0.1:" + dashboardPort
	}
	if _, err := url.Parse(scheme + "://" + text); err != nil || strings.ContainsAny(text, " ?#") {
		return nil, fmt.Errorf("--on %s: write ray://HOST:PORT", given)
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = strings.Trim(text, "[]"), dashboardPort
	}
	out := []string{scheme + "://" + net.JoinHostPort(host, port)}
	if port != dashboardPort {
		out = append(out, scheme+"://"+net.JoinHostPort(host, dashboardPort))
	}
	return out, nil
}

// refused is an answer with an error status.
type refused struct {
	code int
	text string
}

func (r refused) Error() string { return fmt.Sprintf("ray refused (%d): %s", r.code, r.text) }

func (e *Engine) get(path string, into any) error { return e.call(http.MethodGet, path, nil, into) }

// call asks the cluster. Whoever does not answer, or answers that it is not ready, is away.
func (e *Engine) call(method, path string, body []byte, into any) error {
	request, err := http.NewRequest(method, e.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := e.send(request)
	if err != nil {
		var reason *url.Error
		if errors.As(err, &reason) {
			err = reason.Err
		}
		return fmt.Errorf("ray at %s %w: %w", e.base, remote.ErrAway, err)
	}
	defer answer.Body.Close()
	const most = 1 << 30
	data, err := io.ReadAll(io.LimitReader(answer.Body, most))
	if err != nil {
		return fmt.Errorf("ray at %s %w: %w", e.base, remote.ErrAway, err)
	}
	if answer.StatusCode == http.StatusOK {
		if err := json.Unmarshal(data, into); err != nil {
			return fmt.Errorf("ray at %s answers something else than JSON to %s", e.base, path)
		}
		return nil
	}
	text := strings.TrimSpace(string(data))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	return refused{answer.StatusCode, text}
}

// send adds the token that Ray's own clients would send.
func (e *Engine) send(request *http.Request) (*http.Response, error) {
	if e.Token != "" {
		request.Header.Set("Authorization", "Bearer "+e.Token)
	}
	return e.client.Do(request)
}

// node is a node of the cluster, as the state API returns it.
type node struct {
	State     string             `json:"state"`
	NodeID    string             `json:"node_id"`
	Resources map[string]float64 `json:"resources_total"`
}

// Capacity adds up the nodes that are alive.
func (e *Engine) Capacity() (c trial.Capacity, err error) {
	var answer struct {
		Data struct {
			Result struct {
				Result []node `json:"result"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := e.get("/api/v0/nodes?detail=1&limit=10000", &answer); err != nil {
		return c, err
	}
	nodes := answer.Data.Result.Result
	c.Nodes = map[string]event.Bytes{}
	cards := 0
	for _, n := range nodes {
		if n.State != "ALIVE" {
			continue
		}
		host, cpus := event.Bytes(n.Resources["memory"]), n.Resources["CPU"]
		c.Host += host
		c.NodeHost = max(c.NodeHost, host)
		c.Nodes[n.NodeID] = host
		c.CPUs += cpus
		c.NodeCPUs = max(c.NodeCPUs, cpus)
		cards += int(n.Resources["GPU"])
	}
	c.HostFree = c.Host
	e.card = e.cardSize(cards)
	for i := range cards {
		c.Cards = append(c.Cards, trial.Card{UUID: fmt.Sprintf("ray:%d", i), Budget: e.card,
			Free: e.card})
	}
	return c, nil
}

// cardSize asks the nodes how large their cards are, and returns the smallest size. Where no node
// reports a size, it divides the budget of the study by the number of cards.
func (e *Engine) cardSize(cards int) event.Bytes {
	if cards == 0 {
		return 0
	}
	var answer struct {
		Data struct {
			Summary []struct {
				GPUs []struct {
					Total float64 `json:"memoryTotal"` // MiB
				} `json:"gpus"`
			} `json:"summary"`
		} `json:"data"`
	}
	least := event.Bytes(0)
	if e.get("/nodes?view=summary", &answer) == nil {
		for _, n := range answer.Data.Summary {
			for _, g := range n.GPUs {
				if size := event.Bytes(g.Total) * event.MiB; size > 0 && (least == 0 || size < least) {
					least = size
				}
			}
		}
	}
	if least == 0 && e.GPUMem > 0 {
		least = e.GPUMem / event.Bytes(cards)
	}
	if least == 0 {
		least = remote.UnknownCard
	}
	return least
}

// shares of Ray's resources are whole ten-thousandths; hundredths are enough.
const hundredths = 100

// Submit hands jobs over one by one. Ray refuses an ID that it has, so that nothing runs twice.
func (e *Engine) Submit(jobs []remote.Job) map[string]error {
	failed := map[string]error{}
	for _, job := range jobs {
		if err := e.submit(job); err != nil {
			failed[job.ID] = err
		}
	}
	return failed
}

func (e *Engine) submit(job remote.Job) error {
	l := job.Launch
	environment := map[string]any{"env_vars": job.Env}
	if e.workingDir != "" {
		environment["working_dir"] = e.workingDir
	}
	body := map[string]any{
		"submission_id":       job.ID,
		"entrypoint":          e.entrypoint(job),
		"runtime_env":         environment,
		"entrypoint_num_cpus": math.Round(max(l.CPUs, 0.01)*hundredths) / hundredths,
		"entrypoint_memory":   int64(l.Host + remote.Overhead),
		"metadata":            map[string]string{"memroom_trial": fmt.Sprint(l.Trial)},
	}
	if n := len(l.Cards); n > 0 {
		share := 1.0
		if e.card > 0 && e.card < remote.UnknownCard && n == 1 {
			share = min(1, math.Ceil(float64(l.Device)/float64(e.card)*hundredths)/hundredths)
		}
		body["entrypoint_num_gpus"] = share * float64(n)
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	var answer struct{}
	err = e.call(http.MethodPost, "/api/jobs/", data, &answer)
	var no refused
	if errors.As(err, &no) {
		if known, looked := e.Look([]string{job.ID}); looked == nil {
			if _, there := known[job.ID]; there {
				return nil // an earlier request of ours went through
			}
		}
		if no.code >= 500 {
			return fmt.Errorf("ray at %s %w: %s", e.base, remote.ErrAway, no.text)
		}
	}
	return err
}

// entrypoint is a line for the shell. With a working directory Ray has changed into it.
func (e *Engine) entrypoint(job remote.Job) string {
	words := make([]string, len(job.Command))
	for i, w := range job.Command {
		words[i] = quote(w)
	}
	line := "exec " + strings.Join(words, " ")
	if e.workingDir == "" {
		line = "cd " + quote(job.Dir) + " || { echo 'memroom: this node does not see the study'\\''s " +
			"folder; --working-dir copies it there'; exit 125; }; " + line
	}
	return line
}

// quote makes one word of the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// job is what Ray reports about a job.
type job struct {
	Status  string `json:"status"`
	Message string `json:"message"`
	Error   string `json:"error_type"`
	Code    *int   `json:"driver_exit_code"`
}

// Look asks for each job.
func (e *Engine) Look(ids []string) (map[string]remote.Status, error) {
	out := map[string]remote.Status{}
	for _, id := range ids {
		var j job
		err := e.get("/api/jobs/"+url.PathEscape(id), &j)
		var no refused
		switch {
		case errors.As(err, &no) && no.code == http.StatusNotFound:
			continue
		case errors.As(err, &no):
			return nil, fmt.Errorf("ray at %s %w: %s", e.base, remote.ErrAway, no.text)
		case err != nil:
			return nil, err
		}
		out[id] = statusOf(j)
	}
	return out, nil
}

// statusOf puts a job's state into our words.
func statusOf(j job) remote.Status {
	switch j.Status {
	case "PENDING":
		return remote.Status{Phase: remote.Queued, Text: j.Message}
	case "RUNNING":
		return remote.Status{Phase: remote.Running}
	case "STOPPED":
		return remote.Status{Phase: remote.Ended, Cause: remote.Cancelled,
			Text: "stopped in Ray by somebody else"}
	case "SUCCEEDED":
		return remote.Status{Phase: remote.Ended, Cause: remote.Exited}
	}
	s := remote.Status{Phase: remote.Ended, Cause: remote.Exited, Text: tail(j.Message)}
	if j.Code != nil {
		s.Code = *j.Code
		return s
	}
	// Without an exit code the process that watched the command has gone.
	switch {
	case memoryWords(j.Message):
		s.Cause = remote.NodeMemory
	case j.Error == "RUNTIME_ENV_SETUP_FAILURE" || j.Error == "JOB_ENTRYPOINT_COMMAND_START_ERROR":
		s.Cause = remote.NeverRan
	default:
		s.Cause = remote.NodeFailure
	}
	return s
}

func memoryWords(message string) bool {
	lower := strings.ToLower(message)
	for _, words := range []string{"out of memory", "outofmemory", "(oom)", "memory monitor",
		"running low on memory", "memory pressure"} {
		if strings.Contains(lower, words) {
			return true
		}
	}
	return false
}

// tail is the last line of a message that may hold a whole log.
func tail(message string) string {
	text := strings.TrimSpace(strings.ToValidUTF8(message, "?"))
	text = text[strings.LastIndexByte(text, '\n')+1:]
	if len(text) > 300 {
		text = text[len(text)-300:]
	}
	return text
}

// A log is read twice a second at the most; the larger it is the less often, a second a MiB.
const (
	logPause   = 500 * time.Millisecond
	mostPause  = 5 * time.Second
	pauseBytes = 1 << 20
)

// Output returns what the job's log has beyond an offset. Ray sends the whole log each time.
func (e *Engine) Output(id string, from int64) ([]byte, error) {
	state := e.logs[id]
	if state == nil {
		state = &logState{}
		e.logs[id] = state
	}
	if from == state.size && time.Now().Before(state.next) {
		return nil, nil
	}
	var answer struct {
		Logs string `json:"logs"`
	}
	if err := e.get("/api/jobs/"+url.PathEscape(id)+"/logs", &answer); err != nil {
		return nil, err
	}
	size := int64(len(answer.Logs))
	state.size = size
	pause := time.Duration(size/pauseBytes) * time.Second
	state.next = time.Now().Add(min(max(pause, logPause), mostPause))
	if size <= from {
		return nil, nil
	}
	return []byte(answer.Logs[from:]), nil
}

// Stop asks Ray to end a job: SIGTERM, after three seconds SIGKILL.
func (e *Engine) Stop(id string) error {
	var answer struct{}
	return e.call(http.MethodPost, "/api/jobs/"+url.PathEscape(id)+"/stop", []byte("{}"), &answer)
}
