package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"memroom/allocsim"
	"memroom/models"
	"memroom/plan"
	"memroom/remedy"
)

// planned is the answer about a setup.
type planned struct {
	Prediction *plan.Prediction `json:"prediction"`
	Ladder     *plan.Ladder     `json:"ladder,omitempty"`
	Map        any              `json:"device_map,omitempty"`
	Command    string           `json:"command"` // that has the same answer
}

// mostConfig bounds a posted config.json.
const mostConfig = 16 << 20

// showPlan predicts. The setup is in the query, by the names of plan's flags; a model that has no
// name comes as config.json in the body.
func (s *Server) showPlan(w http.ResponseWriter, r *http.Request) error {
	model, err := planModel(w, r) // whole before it takes a place
	if err != nil {
		return err
	}
	select { // each takes a processor
	case s.plans <- struct{}{}:
		defer func() { <-s.plans }()
	case <-time.After(20 * time.Second):
		return failed(http.StatusServiceUnavailable, "too many plans at once: try again")
	case <-r.Context().Done():
		return r.Context().Err()
	}
	q := r.URL.Query()
	setup, err := planSetup(q)
	if err != nil {
		return err
	}
	setup.Model = model
	target, err := planTarget(q)
	if err != nil {
		return err
	}
	target.Stop = r.Context().Err
	p, err := plan.Predict(setup, target)
	if err != nil {
		return failed(http.StatusBadRequest, "%v", err)
	}
	out := planned{Prediction: p, Command: planCommand(q)}
	if q.Get("fit") == "true" && target.Given {
		allow := strings.Split(q.Get("allow"), ",")
		out.Ladder, err = plan.FindCheapest(setup, target,
			func(x *remedy.Remedy) bool { return slices.Contains(allow, x.Consent) })
		if err != nil {
			return failed(http.StatusBadRequest, "%v", err)
		}
	}
	if devices := q.Get("devices"); devices != "" {
		cards, err := plan.ParseCards(strings.Split(clip(devices, 400), ","))
		if err != nil {
			return failed(http.StatusBadRequest, "%v", err)
		}
		m, err := plan.PlaceOn(setup, target, cards)
		if err != nil {
			return failed(http.StatusBadRequest, "%v", err)
		}
		out.Map = m
	}
	return answer(w, out)
}

func planModel(w http.ResponseWriter, r *http.Request) (*models.Config, error) {
	if r.Method == http.MethodPost {
		if !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
			return nil, failed(http.StatusUnsupportedMediaType, "send config.json as application/json")
		}
		data, err := readBody(w, r, mostConfig)
		if err != nil {
			return nil, err
		}
		config, err := models.ParseConfig(data)
		if err != nil {
			return nil, failed(http.StatusBadRequest, "config.json: %v", err)
		}
		return config, nil
	}
	name := r.URL.Query().Get("preset")
	if name == "" {
		return nil, failed(http.StatusBadRequest, "no model: name one with preset=, /api/presets "+
			"lists them, or post a config.json")
	}
	config, err := models.Preset(clip(name, 80))
	if err != nil {
		return nil, failed(http.StatusBadRequest, "%v", err)
	}
	return config, nil
}

func planSetup(q url.Values) (plan.Setup, error) {
	var wrong error
	whole := func(name string, otherwise int) int {
		text := q.Get(name)
		if text == "" {
			return otherwise
		}
		n, err := strconv.Atoi(text)
		if (err != nil || n < 0 || n > 1<<24) && wrong == nil {
			wrong = failed(http.StatusBadRequest, "%s=%s: a whole number", name, clip(text, 40))
		}
		return n
	}
	first := func(name, otherwise string) string {
		if v := q.Get(name); v != "" {
			return clip(v, 200)
		}
		return otherwise
	}
	list := func(name string) []string {
		if q.Get(name) == "" {
			return nil
		}
		return strings.Split(clip(q.Get(name), 1000), ",")
	}
	setup := plan.Setup{Padded: q.Get("padded") == "true", LoRATargets: list("lora-targets"),
		Setup: remedy.Setup{Batch: whole("batch", 1), Seq: whole("seq", 0), Image: whole("image", 0),
			Precision: q.Get("precision"), Optimizer: first("optimizer", "adamw"),
			Checkpointing: q.Get("checkpointing") == "true", Attention: first("attn", "sdpa"),
			Accumulate: whole("accumulate", 1), LoRARank: whole("lora-rank", 0),
			LoadIn: q.Get("load-in"), Ranks: whole("ranks", 1), Shard: q.Get("shard"),
			Offload: list("offload"), ChunkedLoss: q.Get("loss") == "fused",
			AllocConf: q.Get("alloc-conf"), Torch: first("torch", "2.11")}}
	if setup.Batch < 1 || setup.Accumulate < 1 || setup.Ranks < 1 {
		return setup, failed(http.StatusBadRequest, "batch, accumulate and ranks are at least 1")
	}
	if setup.Batch > 1<<16 || setup.Seq > 1<<21 || setup.Image > 1<<14 {
		return setup, failed(http.StatusBadRequest, "batch up to 65536, seq up to 2097152, image up "+
			"to 16384")
	}
	return setup, wrong
}

func planTarget(q url.Values) (plan.Target, error) {
	t := plan.Target{Card: plan.DefaultCard(), Torch: "2.11"}
	if v := q.Get("torch"); v != "" {
		t.Torch = clip(v, 40)
	}
	conf, err := allocsim.ParseConf(clip(q.Get("alloc-conf"), 1000))
	if err != nil {
		return t, failed(http.StatusBadRequest, "alloc-conf: %v", err)
	}
	t.Alloc = conf
	if gpu := q.Get("gpu"); gpu != "" {
		if t.Card, err = plan.FindCard(clip(gpu, 80)); err != nil {
			return t, failed(http.StatusBadRequest, "gpu: %v", err)
		}
		t.Given = true
	}
	return t, nil
}

// planCommand returns the command line that has the same answer.
func planCommand(q url.Values) string {
	words := []string{"memroom", "plan"}
	for _, name := range []string{"preset", "batch", "seq", "image", "precision", "optimizer", "attn",
		"accumulate", "lora-rank", "lora-targets", "load-in", "ranks", "shard", "offload", "loss",
		"alloc-conf", "torch", "gpu", "devices", "allow"} {
		if v := q.Get(name); v != "" {
			words = append(words, "--"+name, quoted(clip(v, 200)))
		}
	}
	for _, name := range []string{"checkpointing", "padded", "fit"} {
		if q.Get(name) == "true" {
			words = append(words, "--"+name)
		}
	}
	if q.Get("preset") == "" {
		words = append(words, "config.json")
	}
	return strings.Join(words, " ")
}

var plainWord = regexp.MustCompile(`^[\w./:,=+-]+$`)

// quoted makes a word safe to paste into a shell.
func quoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// listPresets answers with the names that the form offers.
func (s *Server) listPresets(w http.ResponseWriter, _ *http.Request) error {
	var cards []any
	for _, c := range plan.Cards() {
		cards = append(cards, map[string]any{"name": c.Name, "total": c.Total})
	}
	data, err := json.Marshal(map[string]any{"presets": models.PresetNames(), "cards": cards,
		"precisions": []string{"", "fp32", "amp_bf16", "amp_fp16", "bf16", "fp16"},
		"optimizers": []string{"adamw", "adamw_fused", "sgd", "sgdm", "rmsprop", "adafactor",
			"adamw8bit", "paged_adamw8bit", "lion"},
		"shards": []string{"", "ddp", "fsdp", "hsdp", "zero1", "zero2", "zero3"}})
	if err != nil {
		return fmt.Errorf("presets: %w", err)
	}
	return answerBytes(w, data)
}
