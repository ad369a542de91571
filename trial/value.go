package trial

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Value is one setting of a hyperparameter: what programs read as JSON, and the text that goes into
// a command line.
type Value struct {
	Data any    // float64, int64, string, bool, nil, or a list or table of these
	Text string // as the user wrote it; empty: as JSON and Python write it
}

// Number makes a value of a float.
func Number(f float64) Value { return Value{Data: f} }

// Whole makes a value of an integer.
func Whole(n int64) Value { return Value{Data: n} }

// Float returns the value as a number; ok is false for texts, lists and nothing.
func (v Value) Float() (f float64, ok bool) {
	switch d := v.Data.(type) {
	case float64:
		return d, true
	case int64:
		return float64(d), true
	case bool:
		if d {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

// String is the text that replaces ${name}. Floats are written as Python writes them: a learning
// rate of 0.001 arrives as 0.001.
func (v Value) String() string {
	if v.Text != "" {
		return v.Text
	}
	switch d := v.Data.(type) {
	case float64:
		return pythonFloat(d)
	case int64:
		return strconv.FormatInt(d, 10)
	case string:
		return d
	case bool:
		if d {
			return "True"
		}
		return "False"
	case nil:
		return "None"
	}
	text, _ := json.Marshal(v.Data)
	return string(text)
}

// pythonFloat is repr(f): the shortest text that reads back, with a point or an exponent.
func pythonFloat(f float64) string {
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		text := strconv.FormatFloat(f, 'e', -1, 64)
		return text
	}
	text := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.ContainsAny(text, ".n") { // nan, inf
		text += ".0"
	}
	return text
}

// MarshalJSON writes the data. JSON has no NaN; a space cannot contain one.
func (v Value) MarshalJSON() ([]byte, error) {
	if f, is := v.Data.(float64); is && !math.IsInf(f, 0) && !math.IsNaN(f) {
		return []byte(jsonFloat(f)), nil
	}
	return json.Marshal(v.Data)
}

// jsonFloat keeps a float a float: 1 would be read back as an integer.
func jsonFloat(f float64) string { return pythonFloat(f) }

// UnmarshalJSON keeps integers apart from floats.
func (v *Value) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var d any
	if err := dec.Decode(&d); err != nil {
		return err
	}
	*v = Value{Data: plain(d)}
	return nil
}

// plain turns what decoders return into the few types of [Value.Data].
func plain(d any) any {
	switch d := d.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(d.String(), 10, 64); err == nil {
			return n
		}
		f, _ := d.Float64()
		return f
	case int:
		return int64(d)
	case uint64:
		return int64(d)
	case []any:
		out := make([]any, len(d))
		for i := range d {
			out[i] = plain(d[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, e := range d {
			out[k] = plain(e)
		}
		return out
	}
	return d
}

// Params are the settings of one trial, in the order of the space.
type Params []Param

// Param is one hyperparameter's setting.
type Param struct {
	Name  string
	Value Value
}

// Get finds a setting by name.
func (p Params) Get(name string) (Value, bool) {
	for _, one := range p {
		if one.Name == name {
			return one.Value, true
		}
	}
	return Value{}, false
}

// String is one line: lr=0.001 bs=32.
func (p Params) String() string {
	words := make([]string, len(p))
	for i, one := range p {
		words[i] = inLine(one.Name) + "=" + inLine(one.Value.String())
	}
	return strings.Join(words, " ")
}

// inLine is a text that stays in its line, whatever a study file put into it.
func inLine(text string) string {
	if strings.ContainsFunc(text, unicode.IsControl) {
		return strconv.Quote(text)
	}
	return text
}

// Short is for tables: numbers to five digits.
func (p Params) Short() string {
	words := make([]string, len(p))
	for i, one := range p {
		text := one.Value.String()
		if f, ok := one.Value.Data.(float64); ok && len(text) > len("0.00012345") {
			text = fmt.Sprintf("%.5g", f)
		}
		words[i] = inLine(one.Name) + "=" + inLine(text)
	}
	return strings.Join(words, " ")
}

// MarshalJSON writes an object in the order of the space.
func (p Params) MarshalJSON() ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('{')
	for i, one := range p {
		if i > 0 {
			out.WriteByte(',')
		}
		name, err := json.Marshal(one.Name)
		if err != nil {
			return nil, err
		}
		value, err := one.Value.MarshalJSON()
		if err != nil {
			return nil, err
		}
		out.Write(name)
		out.WriteByte(':')
		out.Write(value)
	}
	out.WriteByte('}')
	return out.Bytes(), nil
}

// UnmarshalJSON reads an object and keeps its order.
func (p *Params) UnmarshalJSON(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	open, err := dec.Token()
	if err != nil || open != json.Delim('{') {
		return fmt.Errorf("parameters must be an object, not %.40s", data)
	}
	*p = Params{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var value any
		if err := dec.Decode(&value); err != nil {
			return err
		}
		*p = append(*p, Param{Name: fmt.Sprint(name), Value: Value{Data: plain(value)}})
	}
	return nil
}

// readLiteral reads a word as Python and YAML users write values: numbers, True, null, quoted or
// bare text. The text is kept, so that the program gets what was written.
func readLiteral(word string) Value {
	word = strings.TrimSpace(word)
	if n := len(word); n >= 2 && (word[0] == '\'' || word[0] == '"') && word[n-1] == word[0] {
		return Value{Data: word[1 : n-1], Text: word[1 : n-1]}
	}
	switch word {
	case "True", "true":
		return Value{Data: true, Text: word}
	case "False", "false":
		return Value{Data: false, Text: word}
	case "None", "null":
		return Value{Data: nil, Text: word}
	}
	clean := strings.ReplaceAll(word, "_", "")
	if n, err := strconv.ParseInt(clean, 10, 64); err == nil {
		return Value{Data: n, Text: word}
	}
	if f, err := strconv.ParseFloat(clean, 64); err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) {
		return Value{Data: f, Text: word}
	}
	if strings.HasPrefix(word, "[") || strings.HasPrefix(word, "{") {
		dec := json.NewDecoder(strings.NewReader(strings.ReplaceAll(word, "'", `"`)))
		dec.UseNumber()
		var d any
		if dec.Decode(&d) == nil {
			return Value{Data: plain(d), Text: word}
		}
	}
	return Value{Data: word, Text: word}
}
