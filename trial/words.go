package trial

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// call is an expression such as loguniform(1e-4, 1e-2) or float(1e-5, 1e-1, log=True).
type call struct {
	name   string
	args   []string
	named  map[string]string
	source string
}

var expression = regexp.MustCompile(`(?s)^\s*(?:[a-z]+\.)?([a-z_]+)\((.*)\)\s*$`)

// IsExpression reports whether a word of a command line is a domain: a call of a known name. Other
// calls are the program's own business.
func IsExpression(word string) bool {
	match := expression.FindStringSubmatch(word)
	return match != nil && vocabulary[match[1]] != nil
}

// Misspelt returns the known name that a call in a command line probably means; empty: none.
func Misspelt(word string) string {
	match := expression.FindStringSubmatch(word)
	if match == nil || vocabulary[match[1]] != nil || len(match[1]) < 4 {
		return ""
	}
	best, distance := "", 3
	for _, name := range knownWords() {
		d := editDistance(match[1], name)
		if d == 2 && (match[1][0] != name[0] || len(name) < 6) {
			continue // print is a word of its own, not a slip of int
		}
		if d < distance {
			best, distance = name, d
		}
	}
	return best
}

func knownWords() []string {
	names := make([]string, 0, len(vocabulary))
	for name := range vocabulary {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// editDistance counts the letters to change, add or leave out.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			before, row[j] = row[j], min(row[j]+1, row[j-1]+1, before+cost)
		}
	}
	return row[len(b)]
}

// ParseDomain reads an expression in the words of Ray, Optuna, W&B or NNI.
func ParseDomain(text string) (Domain, error) {
	match := expression.FindStringSubmatch(text)
	if match == nil {
		return Domain{}, fmt.Errorf("%s is not a domain: write one like "+
			"loguniform(1e-4,1e-2) or choice(16,32,64)", text)
	}
	make := vocabulary[match[1]]
	if make == nil {
		hint := "the words are " + strings.Join(knownWords(), ", ")
		if close := Misspelt(text); close != "" {
			hint = "did you mean " + close + "?"
		}
		return Domain{}, fmt.Errorf("%s: %s is not known; %s", text, match[1], hint)
	}
	c := call{name: match[1], named: map[string]string{}, source: strings.TrimSpace(text)}
	for _, arg := range splitArguments(match[2]) {
		if name, value, ok := cutKeyword(arg); ok {
			c.named[name] = value
			continue
		}
		c.args = append(c.args, arg)
	}
	if strings.HasPrefix(c.name, "suggest_") && len(c.args) > 0 {
		c.args = c.args[1:] // the name, which comes first in Optuna
	}
	d, err := make(c)
	d.Source = c.source
	if err == nil {
		err = d.check()
	}
	if err != nil {
		return d, fmt.Errorf("%s: %w", c.source, err)
	}
	return d, nil
}

var keyword = regexp.MustCompile(`^\s*([a-z_]+)\s*=\s*([^=].*)$`)

func cutKeyword(arg string) (name, value string, ok bool) {
	match := keyword.FindStringSubmatch(arg)
	if match == nil {
		return "", "", false
	}
	return match[1], strings.TrimSpace(match[2]), true
}

// splitArguments cuts at commas that are outside of brackets and quotes.
func splitArguments(text string) []string {
	var out []string
	depth, from := 0, 0
	var quote byte
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		case c == ',' && depth == 0:
			out = append(out, text[from:i])
			from = i + 1
		}
	}
	if rest := text[from:]; strings.TrimSpace(rest) != "" || len(out) > 0 {
		out = append(out, rest)
	}
	if n := len(out); n > 0 && strings.TrimSpace(out[n-1]) == "" {
		out = out[:n-1] // a comma at the end
	}
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

// numbers reads arguments by position or name.
func (c call) numbers(names ...string) ([]float64, error) {
	out := make([]float64, len(names))
	if len(c.args) > len(names) {
		return nil, fmt.Errorf("%d arguments, but it takes %s", len(c.args),
			strings.Join(names, ", "))
	}
	for i, name := range names {
		text, given := "", false
		if i < len(c.args) {
			text, given = c.args[i], true
		}
		for _, alias := range aliases(name) {
			if t, ok := c.named[alias]; ok {
				text, given = t, true
			}
		}
		if !given {
			return nil, fmt.Errorf("%s is missing; it takes %s", name, strings.Join(names, ", "))
		}
		f, ok := readLiteral(text).Float()
		if !ok {
			return nil, fmt.Errorf("%s must be a number, not %s", name, text)
		}
		out[i] = f
	}
	return out, nil
}

func aliases(name string) []string {
	switch name {
	case "low":
		return []string{"low", "lower", "min", "a"}
	case "high":
		return []string{"high", "upper", "max", "b"}
	case "q":
		return []string{"q", "step"}
	case "mean":
		return []string{"mean", "mu"}
	case "sd":
		return []string{"sd", "sigma", "std"}
	}
	return []string{name}
}

type maker func(call) (Domain, error)

// ranged makes a continuous or integer range. exclusive: integers below the upper end only.
func ranged(kind Kind, quantised, exclusive bool) maker {
	return func(c call) (Domain, error) {
		names := []string{"low", "high"}
		if quantised {
			names = append(names, "q")
		}
		n, err := c.numbers(names...)
		if err != nil {
			return Domain{}, err
		}
		return rangeOf(kind, n, quantised, exclusive)
	}
}

func rangeOf(kind Kind, n []float64, quantised, exclusive bool) (Domain, error) {
	d := Domain{Kind: kind, Low: n[0], High: n[1]}
	if quantised {
		d.Step = n[2]
		if d.Step <= 0 {
			return d, fmt.Errorf("the step %s is not positive",
				short(d.Step))
		}
	}
	if kind != Int && kind != LogInt {
		return d, nil
	}
	if d.Low != math.Trunc(d.Low) || d.High != math.Trunc(d.High) {
		return d, fmt.Errorf("integers need whole bounds, not %s and %s", short(d.Low),
			short(d.High))
	}
	if exclusive {
		if d.Low >= d.High {
			return d, fmt.Errorf("it is empty: the upper end %s itself is left out, as in Ray; "+
				"write %s to include it", short(d.High), short(d.High+1))
		}
		d.High--
	}
	return d, nil
}

// wholeSteps adapts W&B's q_ words: with a whole step the values are integers, as a batch size must
// be.
func wholeSteps(inner maker) maker {
	return func(c call) (Domain, error) {
		d, err := inner(c)
		d.Whole = err == nil && d.Step > 0 && d.Step == math.Trunc(d.Step)
		return d, err
	}
}

// exponents are W&B's log_uniform: the bounds are powers of e.
func exponents(quantised bool) maker {
	return func(c call) (Domain, error) {
		d, err := ranged(LogScale, quantised, false)(c)
		d.Low, d.High = math.Exp(d.Low), math.Exp(d.High)
		return d, err
	}
}

func bell(kind Kind, quantised bool) maker {
	return func(c call) (Domain, error) {
		if len(c.args) == 0 && len(c.named) == 0 {
			c.args = []string{"0", "1"}
		}
		names := []string{"mean", "sd"}
		if quantised {
			names = append(names, "q")
		}
		n, err := c.numbers(names...)
		if err != nil {
			return Domain{}, err
		}
		d := Domain{Kind: kind, Mean: n[0], SD: n[1]}
		if quantised {
			d.Step = n[2]
		}
		return d, nil
	}
}

// optuna reads float(low, high, log=..., step=...) and int(...); both ends belong to it.
func optuna(kind, logged Kind) maker {
	return func(c call) (Domain, error) {
		log, step := c.named["log"], c.named["step"]
		delete(c.named, "log")
		delete(c.named, "step")
		n, err := c.numbers("low", "high")
		if err != nil {
			return Domain{}, err
		}
		scale := kind
		if log == "True" || log == "true" {
			scale = logged
		}
		if step == "" || step == "None" || step == "1" && scale == LogInt {
			return rangeOf(scale, n, false, false)
		}
		q, ok := readLiteral(step).Float()
		if !ok {
			return Domain{}, fmt.Errorf("step must be a number, not %s", step)
		}
		if scale == logged {
			return Domain{}, fmt.Errorf("log=True and step=%s exclude each other; keep one", step)
		}
		return rangeOf(scale, append(n, q), true, false)
	}
}

// choice reads choice(16,32), choice([16,32]), categorical(...), grid_search([...]).
func choice(grid bool) maker {
	return func(c call) (Domain, error) {
		d := Domain{Kind: Choice, Grid: grid}
		words := c.args
		for _, name := range []string{"values", "choices", "categories"} {
			if text, ok := c.named[name]; ok {
				words = []string{text}
			}
		}
		if len(words) == 1 && len(words[0]) >= 2 && strings.ContainsAny(words[0][:1], "[(") {
			words = splitArguments(words[0][1 : len(words[0])-1])
		}
		for _, w := range words {
			v := readLiteral(w)
			text := v.Text
			v.Text = ""
			d.Values, d.Texts = append(d.Values, v), append(d.Texts, text)
		}
		return d, nil
	}
}

// vocabulary knows every word, in lower case.
var vocabulary = map[string]maker{
	// Ray
	"uniform": ranged(Uniform, false, false), "quniform": ranged(Uniform, true, false),
	"loguniform": ranged(LogScale, false, false), "qloguniform": ranged(LogScale, true, false),
	"randint": ranged(Int, false, true), "lograndint": ranged(LogInt, false, true),
	"qrandint": ranged(Int, true, false), "qlograndint": ranged(LogInt, true, false),
	"randn": bell(Normal, false), "qrandn": bell(Normal, true),
	"choice": choice(false), "grid_search": choice(true), "grid": choice(true),
	// Optuna
	"float": optuna(Uniform, LogScale), "suggest_float": optuna(Uniform, LogScale),
	"int": optuna(Int, LogInt), "suggest_int": optuna(Int, LogInt),
	"categorical": choice(false), "suggest_categorical": choice(false),
	"suggest_uniform":          ranged(Uniform, false, false),
	"suggest_loguniform":       ranged(LogScale, false, false),
	"suggest_discrete_uniform": ranged(Uniform, true, false),
	// W&B
	"int_uniform": ranged(Int, false, false), "q_uniform": wholeSteps(ranged(Uniform, true, false)),
	"log_uniform": exponents(false), "q_log_uniform": wholeSteps(exponents(true)),
	"log_uniform_values":   ranged(LogScale, false, false),
	"q_log_uniform_values": wholeSteps(ranged(LogScale, true, false)),
	"normal":               bell(Normal, false), "q_normal": wholeSteps(bell(Normal, true)),
	"log_normal": bell(LogNormal, false), "q_log_normal": wholeSteps(bell(LogNormal, true)),
	// NNI
	"qnormal": bell(Normal, true), "lognormal": bell(LogNormal, false),
	"qlognormal": bell(LogNormal, true),
}

// DomainOf reads one parameter of a study file: an expression, a list, a single value, or a table
// in W&B's, NNI's, Katib's or our own words.
func DomainOf(name string, raw any) (Domain, error) {
	d, err := domainOf(raw)
	if err != nil {
		return d, fmt.Errorf("parameter %s: %w", name, err)
	}
	if d.Source == "" {
		d.Source = fmt.Sprint(raw)
	}
	if err := d.check(); err != nil {
		return d, fmt.Errorf("parameter %s: %w", name, err)
	}
	return d, nil
}

func domainOf(raw any) (Domain, error) {
	switch v := raw.(type) {
	case string:
		word, _, open := strings.Cut(strings.TrimSpace(v), "(")
		known := vocabulary[word[strings.LastIndex(word, ".")+1:]] != nil
		if expression.MatchString(v) || open && known { // the other end may be missing
			return ParseDomain(v)
		}
		return ChoiceOf([]any{v}, v), nil
	case []any:
		return ChoiceOf(v, fmt.Sprint(v)), nil
	case map[string]any:
		return tableDomain(v)
	}
	return ChoiceOf([]any{raw}, fmt.Sprint(raw)), nil
}

func tableDomain(t map[string]any) (Domain, error) {
	if kind, ok := t["_type"].(string); ok { // NNI
		values, _ := t["_value"].([]any)
		return wordDomain(kind, values)
	}
	if kind, ok := t["parameterType"].(string); ok {
		space, _ := t["feasibleSpace"].(map[string]any)
		return katibDomain(kind, space)
	}
	if len(t) == 1 {
		for word, args := range t { // {int: [1, 6]}, {grid_search: [...]}
			if list, ok := args.([]any); ok && word != "values" && vocabulary[word] != nil {
				return wordDomain(word, list)
			}
		}
	}
	return wandbDomain(t)
}

// wordDomain calls a word of the vocabulary with a list.
func wordDomain(word string, list []any) (Domain, error) {
	if word == "choice" || word == "grid_search" || word == "categorical" {
		d := ChoiceOf(list, fmt.Sprint(list))
		d.Grid = word == "grid_search"
		return d, nil
	}
	texts := make([]string, len(list))
	for i, one := range list {
		texts[i] = Value{Data: plain(one)}.String()
	}
	return ParseDomain(word + "(" + strings.Join(texts, ", ") + ")")
}

// wandbDomain reads a table in the words of a W&B sweep, or of anybody who names a type and its
// bounds. Without a distribution lists are choices, whole bounds integers, others floats.
func wandbDomain(t map[string]any) (Domain, error) {
	if v, ok := t["value"]; ok {
		return ChoiceOf([]any{v}, fmt.Sprint(v)), nil
	}
	word := ""
	for _, key := range []string{"distribution", "type", "sampler"} {
		if text, ok := t[key].(string); ok {
			word = strings.ToLower(text)
		}
	}
	for _, key := range []string{"values", "choices", "categories", "options", "grid_search"} {
		if values, ok := t[key].([]any); ok {
			return weighted(t, values, key == "grid_search" || strings.HasPrefix(word, "grid"))
		}
	}
	if word == "" || word == "double" || word == "integer" {
		word = wordOfBounds(word, t)
	}
	if word == "constant" || word == "categorical" || word == "choice" {
		return Domain{}, fmt.Errorf("distribution %s needs value or values", word)
	}
	if vocabulary[word] == nil {
		return Domain{}, fmt.Errorf("distribution %s is not known here; the words are %s", word,
			strings.Join(knownWords(), ", "))
	}
	var args []string
	for _, key := range sortedKeys(t) {
		if key != "distribution" && key != "type" && key != "sampler" {
			args = append(args, key+"="+Value{Data: plain(t[key])}.String())
		}
	}
	return ParseDomain(word + "(" + strings.Join(args, ", ") + ")")
}

// weighted makes a choice with W&B's probabilities, where there are any.
func weighted(t map[string]any, values []any, grid bool) (Domain, error) {
	d := ChoiceOf(values, fmt.Sprint(values))
	d.Grid = grid
	if weights, ok := t["probabilities"].([]any); ok {
		for _, w := range weights {
			f, _ := Value{Data: plain(w)}.Float()
			d.Weights = append(d.Weights, f)
		}
	}
	return d, nil
}

// wordOfBounds names the distribution of a table that holds only bounds.
func wordOfBounds(kind string, t map[string]any) string {
	whole := kind == "integer"
	if kind == "" {
		whole = isWhole(bound(t, "low")) && isWhole(bound(t, "high"))
	}
	_, stepped := t["step"]
	if _, log := t["log"]; log || stepped {
		if whole {
			return "int"
		}
		return "float"
	}
	if whole {
		return "int_uniform"
	}
	return "uniform"
}

func bound(t map[string]any, name string) any {
	for _, alias := range aliases(name) {
		if v, ok := t[alias]; ok {
			return v
		}
	}
	return nil
}

func isWhole(v any) bool {
	switch v := v.(type) {
	case int, int64, uint64:
		return true
	case json.Number:
		return !strings.ContainsAny(v.String(), ".eE")
	}
	return false
}

// katibDomain reads a parameter of a Katib experiment, where bounds are texts.
func katibDomain(kind string, space map[string]any) (Domain, error) {
	if list, ok := space["list"].([]any); ok {
		values := make([]any, len(list))
		for i, one := range list {
			values[i] = readLiteral(fmt.Sprint(one)).Data
		}
		return ChoiceOf(values, fmt.Sprint(list)), nil
	}
	low, high := fmt.Sprint(space["min"]), fmt.Sprint(space["max"])
	distribution, _ := space["distribution"].(string)
	step, stepped := space["step"]
	args := low + ", " + high
	if stepped {
		args += ", step=" + fmt.Sprint(step)
	}
	switch {
	case kind != "double" && kind != "int":
		return Domain{}, fmt.Errorf("a %s parameter needs a list", kind)
	case strings.Contains(strings.ToLower(distribution), "normal"):
		return Domain{}, fmt.Errorf("distribution %s of Katib is not known here; "+
			"uniform and logUniform are", distribution)
	case strings.HasPrefix(strings.ToLower(distribution), "log") && !stepped:
		args += ", log=True"
	}
	word := "float"
	if kind == "int" {
		word = "int"
	}
	return ParseDomain(word + "(" + args + ")")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
