package trial

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Trust is how sure it is that a number is the metric. The value of a trial is the last one of
// the highest trust that was seen: a JSON line counts more than a progress bar.
type Trust int

// From a guess to the program's own call.
const (
	trustPlain    Trust = 5  // loss 0.1
	trustTraining Trust = 9  // train loss: 0.1, best loss: 0.1
	trustPrefixed Trust = 10 // average loss: 0.1
	trustTest     Trust = 11 // test loss: 0.1
	trustValid    Trust = 12 // val loss: 0.1
	trustVariant  Trust = 15 // Loss: 0.1 for loss, val loss for val_loss
	trustExact    Trust = 20 // loss: 0.1, loss=0.1
	trustJSON     Trust = 30 // {"loss": 0.1}, also as Python prints it
	TrustPattern  Trust = 40 // --metric-pattern
	TrustReport   Trust = 50 // memroom.report, tune.report and what a framework logs
	TrustFinal    Trust = 60 // what an objective returned
)

// Reading is a value of the metric.
type Reading struct {
	Value float64
	Step  int // as the program counts; -1 unknown
	Trust Trust
}

// Finder finds a metric in what a program prints.
type Finder struct {
	name    string
	pattern *regexp.Regexp // of the user; nil: none
	exact   *regexp.Regexp
	quoted  *regexp.Regexp
	plain   *regexp.Regexp
	named   *regexp.Regexp // the name with anything after it
	quick   *regexp.Regexp // is worth a closer look
}

const (
	// A number as programs print it. Its end is checked apart: 3 of 3rd is none.
	numberText = `([-+]?(?:[1-9]\d{0,2}(?:,\d{3})+\.\d+|\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?i:nan|inf(?:inity)?)\b)`
	// What may stand between name and number: tensor(0.1), np.float32(0.1), [0.1].
	wrapText = `(?:(?:\w+\.)*\w+\(\s*|\[\s*|\*+|\$)?`
)

// NewFinder makes a finder for a metric's name. pattern, where given, has the value in its group
// "value", or in its first one, and may have a group "step".
func NewFinder(name, pattern string) (*Finder, error) {
	name = strings.TrimSpace(name)
	if name == "" {
		return nil, fmt.Errorf("the metric has no name: --metric loss")
	}
	var parts []string
	for _, p := range separators.Split(name, -1) {
		parts = append(parts, regexp.QuoteMeta(p))
	}
	loose := strings.Join(parts, `[\s_./-]?`)
	f := &Finder{name: name,
		quick: regexp.MustCompile(`(?i)` + parts[len(parts)-1]),
		exact: regexp.MustCompile(`(?i)(` + loose + `)['"` + "`" + `]?\s*(?:[:=]+>?|->|\bis\b)\s*` +
			wrapText + numberText),
		quoted: regexp.MustCompile(`['"]` + regexp.QuoteMeta(name) + `['"]\s*:\s*['"]?` + wrapText +
			numberText),
		plain: regexp.MustCompile(`(?i)(` + loose + `)[\s|]+` + numberText),
		named: regexp.MustCompile(`(?i)(?:^|[,;|{(]|\s-)\s*['"]?(` + loose + `)['"]?\s*[:=]+\s*(\S(?:,\d|[^,;|}])*)`)}
	if pattern != "" {
		re, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("--metric-pattern: %w", err)
		}
		if re.NumSubexp() < 1 {
			return nil, fmt.Errorf("--metric-pattern %s has no group for the value: "+
				"put brackets round it, as in loss=([0-9.]+)", pattern)
		}
		f.pattern = re
	}
	return f, nil
}

var separators = regexp.MustCompile(`[\s_./-]`)

// escapes are colours and cursor movements of a terminal.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07`)

// Line returns the best reading in one line of output.
func (f *Finder) Line(line string) (Reading, bool) {
	if strings.Contains(line, "\x1b") {
		line = escapes.ReplaceAllString(line, "")
	}
	if f.pattern != nil {
		return f.byPattern(line)
	}
	if !f.quick.MatchString(line) {
		return Reading{}, false
	}
	if r, ok := f.byJSON(line); ok {
		return r, true
	}
	best := Reading{Step: -1}
	for _, m := range f.quoted.FindAllStringSubmatchIndex(line, -1) {
		best.take(line, m[2], m[3], trustJSON)
	}
	for _, m := range f.exact.FindAllStringSubmatchIndex(line, -1) {
		best.take(line, m[4], m[5], f.trust(line, m[2], m[3]))
	}
	if best.Trust == 0 {
		for _, m := range f.plain.FindAllStringSubmatchIndex(line, -1) {
			if f.trust(line, m[2], m[3]) > 0 {
				best.take(line, m[4], m[5], trustPlain)
			}
		}
	}
	best.Step = stepIn(line)
	return best, best.Trust > 0
}

// take keeps a number if it is at least as sure as what is there.
func (r *Reading) take(line string, from, to int, trust Trust) {
	if trust < r.Trust || trust == 0 {
		return
	}
	rest := line[to:]
	if rest != "" && isWord(rest[0]) && rest[0] != 's' && rest[0] != 'e' {
		return // 3rd, 0x1f
	}
	text := line[from:to]
	if goesOn.MatchString(rest) || line[to-1] > '9' && strings.HasPrefix(rest, "-") ||
		decimalComma.MatchString(rest) && !strings.Contains(text, ".") {
		return // 2026-11-19, 1.2.3, nan-ish; 0,5
	}
	value, err := readNumber(strings.ReplaceAll(text, ",", ""))
	if err != nil {
		return
	}
	if m := share.FindStringSubmatch(rest); m != nil { // accuracy: 9818/10000
		if whole, err := strconv.ParseFloat(m[1], 64); err == nil && whole != 0 {
			value /= whole
		}
	}
	r.Value, r.Trust = value, trust
}

var (
	goesOn       = regexp.MustCompile(`^(?:[-.:]|/\d+/)\d`)
	decimalComma = regexp.MustCompile(`^,\d`)
)

// text returns the words in the place of a line's metric where a number is due, or "".
func (f *Finder) text(line string) string {
	if f.pattern != nil || !f.quick.MatchString(line) {
		return ""
	}
	line = escapes.ReplaceAllString(line, "")
	m := f.named.FindStringSubmatchIndex(line)
	if m == nil || f.trust(line, m[2], m[3]) < trustExact {
		return ""
	}
	return strings.Trim(line[m[4]:min(m[5], m[4]+60)], " '\"")
}

var share = regexp.MustCompile(`^\s?/\s?(\d+(?:\.\d+)?)`)

func readNumber(text string) (float64, error) {
	text = strings.ReplaceAll(text, "_", "")
	value, err := strconv.ParseFloat(text, 64)
	if math.IsInf(value, 0) {
		return value, nil // also 1e999
	}
	return value, err
}

func isWord(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// trust judges a name in the text by what it is written like and by what stands before it.
func (f *Finder) trust(line string, from, to int) Trust {
	if from > 0 && (isWord(line[from-1]) || strings.IndexByte("./-", line[from-1]) >= 0) {
		return 0 // val_loss is another metric than loss
	}
	trust := trustExact
	if line[from:to] != f.name {
		trust = trustVariant
	}
	before := strings.TrimRight(line[:from], " \t'\"")
	if len(before) == from && from > 0 {
		return trust // something like ,loss or (loss
	}
	word := before[strings.LastIndexAny(before, " \t,;|()[]{}:=")+1:]
	if word == "" || strings.Trim(word, letters) != "" || len(word) > 12 {
		return trust
	}
	switch strings.ToLower(word) {
	case "val", "valid", "validation", "eval", "evaluation", "dev":
		return trustValid
	case "test":
		return trustTest
	case "train", "training", "best", "running", "batch":
		return trustTraining
	case "info", "debug", "warning", "and", "the", "metric", "metrics", "result", "results":
		return trust
	}
	return trustPrefixed
}

const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

func (f *Finder) byPattern(line string) (Reading, bool) {
	m := f.pattern.FindStringSubmatch(line)
	if m == nil {
		return Reading{}, false
	}
	r := Reading{Step: -1, Trust: TrustPattern}
	at := max(f.pattern.SubexpIndex("value"), 1)
	value, err := readNumber(strings.TrimSpace(m[at]))
	if err != nil {
		return Reading{}, false
	}
	r.Value = value
	if i := f.pattern.SubexpIndex("step"); i > 0 {
		if step, err := strconv.Atoi(m[i]); err == nil {
			r.Step = step
		}
	}
	return r, true
}

// byJSON reads a line that is an object, or ends with one.
func (f *Finder) byJSON(line string) (Reading, bool) {
	line = strings.TrimSpace(line)
	open := strings.IndexByte(line, '{')
	if open < 0 || !strings.HasSuffix(line, "}") {
		return Reading{}, false
	}
	var object map[string]any
	text := bareNumbers.ReplaceAllString(line[open:], `$1"$2"$3`)
	if json.Unmarshal([]byte(text), &object) != nil {
		return Reading{}, false
	}
	value, ok := numberAt(object, f.name, 2)
	if !ok {
		return Reading{}, false
	}
	r := Reading{Value: value, Step: -1, Trust: trustJSON}
	for _, key := range stepKeys {
		if step, ok := numberAt(object, key, 1); ok && step == math.Trunc(step) && step >= 0 {
			r.Step = int(step)
			break
		}
	}
	return r, true
}

// bareNumbers are NaN and Infinity, which Python writes into JSON.
var bareNumbers = regexp.MustCompile(`([:,\[]\s*)(-?(?:NaN|Infinity))(\s*[,}\]])`)

var stepKeys = []string{"training_iteration", "epoch", "step", "global_step", "iteration", "iter"}

// numberAt finds a name in an object, or in one inside it, or by a path with dots.
func numberAt(object map[string]any, name string, depth int) (float64, bool) {
	if v, ok := object[name]; ok {
		return asNumber(v)
	}
	if head, rest, ok := strings.Cut(name, "."); ok {
		if inner, is := object[head].(map[string]any); is {
			return numberAt(inner, rest, depth)
		}
	}
	if depth <= 1 {
		return 0, false
	}
	for _, key := range sortedKeys(object) {
		if inner, is := object[key].(map[string]any); is {
			if v, ok := numberAt(inner, name, depth-1); ok {
				return v, true
			}
		}
	}
	return 0, false
}

func asNumber(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case string:
		f, err := readNumber(v)
		return f, err == nil
	}
	return 0, false
}

var stepText = regexp.MustCompile(`(?i)\b(?:epochs?|steps?|iter(?:ation)?s?|round)\b\s*[:=#\[(]?\s*(\d{1,15})\b`)

func stepIn(line string) int {
	if m := stepText.FindStringSubmatch(line); m != nil {
		if step, err := strconv.Atoi(m[1]); err == nil {
			return step
		}
	}
	return -1
}

// Reader cuts output into lines and reads the metric from them. A line that is written over, as
// progress bars do, counts once: with the value it has in the end.
type Reader struct {
	Finder *Finder
	// Text is what stood last in the metric's place and was no number; empty after a number.
	Text    string
	line    []byte
	skip    bool // the rest of a line that is too long
	waiting *Reading
}

// longestLine is more than a line with a metric has; what is longer is no text.
const longestLine = 64 << 10

// Feed takes output and returns the readings in it.
func (r *Reader) Feed(data []byte) []Reading {
	var found []Reading
	for _, c := range data {
		if c != '\n' && c != '\r' {
			if len(r.line) < longestLine {
				r.line = append(r.line, c)
			} else {
				r.skip = true
			}
			continue
		}
		if len(r.line) > 0 && !r.skip {
			line := string(r.line)
			if one, ok := r.Finder.Line(line); ok {
				r.waiting, r.Text = &one, ""
			} else if text := r.Finder.text(line); text != "" {
				r.Text = text
			}
		}
		r.line, r.skip = r.line[:0], false
		if c == '\n' && r.waiting != nil {
			found = append(found, *r.waiting)
			r.waiting = nil
		}
	}
	return found
}

// Last returns what stands in a last line without an end.
func (r *Reader) Last() []Reading { return r.Feed([]byte{'\n'}) }

// Live is the value of a line that is still being written over.
func (r *Reader) Live() (Reading, bool) {
	if r.waiting == nil {
		return Reading{}, false
	}
	return *r.waiting, true
}

// GuessMode reports whether a metric of this name is to be made large.
func GuessMode(name string) string {
	name = strings.ToLower(name)
	for _, word := range []string{"loss", "error", "err", "perplexity", "ppl", "rmse", "mse", "mae",
		"wer", "cer", "time", "latency"} {
		if strings.Contains(name, word) {
			return "min"
		}
	}
	for _, word := range []string{"acc", "auc", "f1", "score", "reward", "return", "precision",
		"recall", "map", "iou", "dice", "bleu", "rouge", "r2", "psnr", "ssim", "correct", "win"} {
		if strings.Contains(name, word) {
			return "max"
		}
	}
	return "min"
}
