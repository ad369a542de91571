package diagnose

import (
	"slices"
	"strings"
	"testing"

	"memroom/event"
)

func TestStoodSkipsLibraries(t *testing.T) {
	own, called := Stood([]event.Frame{
		{File: "/v/lib/python3.11/site-packages/pandas/io/c_parser.py", Line: 9, Name: "read"},
		{File: "/v/lib/python3.11/site-packages/pandas/io/parsers/readers.py", Line: 5, Name: "read_csv"},
		{File: "/home/u/data.py", Line: 12, Name: "load"},
		{File: "/usr/lib/python3.11/contextlib.py", Line: 81, Name: "inner"},
		{File: "/home/u/train.py", Line: 40, Name: "<module>"}})
	if len(own) != 2 || own[0].Line != 40 || own[1].Line != 12 || called != "pandas.read_csv" {
		t.Errorf("%+v, %q", own, called)
	}
	if own, _ := Stood([]event.Frame{{File: "<frozen runpy>", Line: 1}}); own != nil {
		t.Errorf("%+v", own)
	}
}

func TestFilledNamesTheLineThatHolds(t *testing.T) {
	const mib = event.MiB
	line := func(n int, code string) Line {
		return Line{Frame: event.Frame{File: "/home/u/train.py", Line: n, Name: "f"}, Code: code}
	}
	main, forward, module := line(50, "main()"), line(70, "a = self.d1(x)"), line(50, "main()")
	forward.Name, module.Name = "forward", "<module>"
	collect := line(20, "images = [decode(p) for p in paths]")
	for _, c := range []struct {
		name  string
		grown []Grown
		want  string // in the title; empty: nothing is said
	}{
		{"one line", []Grown{{Lines: []Line{main, line(9, "frame = pd.read_csv(path)")}, Bytes: 600 * mib,
			Held: 700 * mib}}, "`frame = pd.read_csv(path)` at train.py:9"},
		{"what calls return is their caller's", []Grown{
			{Lines: []Line{main, collect, line(5, "return np.asarray(image)")}, Bytes: 600 * mib,
				Held: 700 * mib}}, "train.py:20"},
		{"a function that builds all it returns", []Grown{
			{Lines: []Line{main, line(30, "rows = load()"), line(6, "return [f(i) for i in n]")},
				Bytes: 600 * mib, Held: 700 * mib}}, "train.py:6"},
		{"lines of a helper share it", []Grown{
			{Lines: []Line{main, collect, line(4, "a = f()")}, Bytes: 300 * mib, Held: 300 * mib},
			{Lines: []Line{main, collect, line(5, "b = g(a)")}, Bytes: 300 * mib, Held: 700 * mib}},
			"train.py:20"},
		{"a temporary of a call has most of it", []Grown{
			{Lines: []Line{main, collect, line(4, "raw = read(path)")}, Bytes: 500 * mib, Held: 700 * mib},
			{Lines: []Line{main, collect, line(5, "return raw / 255")}, Bytes: 100 * mib, Held: 700 * mib}},
			"train.py:20"},
		{"lines of a loop share it, one of them keeps it", []Grown{
			{Lines: []Line{main, line(4, "words = text.split()")}, Bytes: 250 * mib, Held: 300 * mib},
			{Lines: []Line{main, line(6, "rows.append(words)")}, Bytes: 150 * mib, Held: 700 * mib},
			{Lines: []Line{main, line(5, "counts.update(words)")}, Bytes: 200 * mib, Held: 700 * mib}},
			"`rows.append(words)` at train.py:6 filled host memory: it grew by 600MiB"},
		{"a call that stores", []Grown{
			{Lines: []Line{main, collect, line(4, "self.kept[i] = read(path)")}, Bytes: 500 * mib,
				Held: 700 * mib}}, "train.py:4"},
		{"a library that was loaded meanwhile is not it", []Grown{
			{Lines: []Line{line(1, "import torch")}, Bytes: 300 * mib, Held: 300 * mib},
			{Lines: []Line{line(9, "rows = json.load(f)")}, Bytes: 300 * mib, Held: 600 * mib}},
			"`rows = json.load(f)` at train.py:9"},
		{"data where libraries take most of the limit", []Grown{
			{Lines: []Line{line(1, "import torch")}, Bytes: 580 * mib, Held: 600 * mib},
			{Lines: []Line{line(9, "rows = json.load(f)")}, Bytes: 150 * mib, Held: 750 * mib}},
			"`rows = json.load(f)` at train.py:9"},
		{"libraries alone", []Grown{
			{Lines: []Line{line(1, "import torch")}, Bytes: 700 * mib, Held: 700 * mib},
			{Lines: []Line{line(9, "rows = json.load(f)")}, Bytes: 50 * mib, Held: 750 * mib}}, ""},
		{"several lines", []Grown{
			{Lines: []Line{line(3, "frame = pd.read_csv(path)")}, Bytes: 300 * mib, Held: 300 * mib},
			{Lines: []Line{line(4, "frame = frame.sample(frac=1)")}, Bytes: 250 * mib, Held: 700 * mib}},
			"by 300MiB at `frame = pd.read_csv(path)` at train.py:3, by 250MiB at"},
		{"lines below the call of the whole program", []Grown{
			{Lines: []Line{module, line(7, "pred = net(img)"), forward}, Bytes: 200 * mib},
			{Lines: []Line{module, line(8, "loss.backward()")}, Bytes: 260 * mib},
			{Lines: []Line{module, line(7, "pred = net(img)")}, Bytes: 100 * mib, Held: 600 * mib}},
			"by 300MiB at `pred = net(img)` at train.py:7, by 260MiB at `loss.backward()`"},
		{"it was there before anybody looked", []Grown{
			{Lines: []Line{main}, Bytes: 100 * mib, Held: 700 * mib}}, ""},
		{"nothing was seen", nil, ""},
	} {
		f := Filled(c.grown, 800*mib)
		switch {
		case f == nil && c.want != "":
			t.Errorf("%s: nothing is said", c.name)
		case f != nil && (c.want == "" || !strings.Contains(f.Title, c.want)):
			t.Errorf("%s: %s", c.name, f.Title)
		case f != nil && !strings.Contains(f.Title, "of 800MiB"):
			t.Errorf("%s: the limit is not named: %s", c.name, f.Title)
		}
	}
}

// TestFilledInAModelIsNoDataSet: what a forward pass keeps is helped by a smaller batch, and names
// within a library mean nothing to its user.
func TestFilledInAModelIsNoDataSet(t *testing.T) {
	at := func(name, code string) []Line {
		return []Line{{Frame: event.Frame{File: "/home/u/train.py", Line: 9, Name: name}, Code: code}}
	}
	for name, c := range map[string]struct {
		grown Grown
		want  string
	}{
		"forward": {Grown{Lines: at("forward", "return self.head(self.body(x))"),
			Called: "torch._wrapped_call_impl"}, "micro_batch"},
		"a layer called": {Grown{Lines: at("go", "y = block(x)"),
			Called: "torch._call_impl"}, "micro_batch"},
		"a list": {Grown{Lines: at("load", "rows.append(parse(x))")}, "stream_data"},
	} {
		c.grown.Bytes, c.grown.Held = 600*event.MiB, 700*event.MiB
		f := Filled([]Grown{c.grown}, 0)
		if f == nil || strings.Join(f.Remedies, ",") != c.want ||
			strings.Contains(strings.Join(f.Evidence, ""), "_call") {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

// TestFilledByWeights: a smaller batch helps against what forward passes keep, not gradients
// and the optimizer's state.
func TestFilledByWeights(t *testing.T) {
	at := func(code string, mib event.Bytes) Grown {
		return Grown{Lines: []Line{{Frame: event.Frame{File: "/home/u/train.py"}, Code: code}},
			Bytes: mib * event.MiB, Held: 900 * event.MiB}
	}
	for want, grown := range map[string][]Grown{
		"raise_limit": {at("embed = nn.Embedding(60_000, 512)", 120), at("loss.backward()", 230),
			at("loss = criterion(model(x), y)", 30)},
		"optimizer_adafactor": {at("model = Net()", 200), at("optimizer.step()", 500)},
		"micro_batch":         {at("loss = criterion(model(x), y)", 300), at("loss.backward()", 250)},
		"stream_data":         {at("rows = list(reader)", 500), at("loss.backward()", 250)},
	} {
		f := Filled(grown, 0)
		says := map[string]string{"raise_limit": "gradients were made there: they grow with the weights",
			"optimizer_adafactor": "state was made there: it grows with the weights",
			"micro_batch":         "activations kept for the backward pass, grows with the batch"}[want]
		if f == nil || !slices.Contains(f.Remedies, want) ||
			!strings.Contains(strings.Join(f.Evidence, ""), says) || says == "" && len(f.Evidence) > 0 {
			t.Errorf("%s: %+v", want, f)
		}
	}
}

// TestFilledStepByStep: what grows long after the first steps is no gradient and no state.
func TestFilledStepByStep(t *testing.T) {
	at := func(code string, before, later event.Bytes, rises int) Grown {
		return Grown{Lines: []Line{{Frame: event.Frame{File: "/home/u/train.py"}, Code: code}},
			Bytes: (before + later) * event.MiB, Held: 900 * event.MiB,
			Later: later * event.MiB, Rises: rises}
	}
	pred := at("pred = net(image)", 60, 200, 5)
	pred.Called = "torch._call_impl"
	leak := Filled([]Grown{pred, at("loss.backward()", 120, 300, 7)}, 0)
	if leak == nil || !slices.Equal(leak.Remedies, []string{"detach"}) ||
		!strings.Contains(leak.Title, "by 500MiB after the first steps") ||
		!strings.Contains(leak.Evidence[0], "loss.backward()") {
		t.Errorf("a leak: %+v", leak)
	}
	for what, grown := range map[string][]Grown{
		"one longer batch": {at("loss = criterion(model(x), y)", 200, 300, 2)},
		"the first steps":  {at("loss.backward()", 500, 90, 9)},
		"data":             {at("rows.append(parse(text))", 10, 600, 12)},
	} {
		if f := Filled(grown, 0); f == nil || slices.Contains(f.Remedies, "detach") {
			t.Errorf("%s: %+v", what, f)
		}
	}
}

// TestLinesThatWait: a line that sleeps or waits is told from one that works.
func TestLinesThatWait(t *testing.T) {
	for code, want := range map[string]bool{"time.sleep(60)": true, "sleep(1)": true,
		"worker.join()": true, "event.wait(timeout=5)": true, "rows = read(path)": false,
		`text = ", ".join(names)`: false, "batch = queue.get()": false} {
		if got := Waits(code); got != want {
			t.Errorf("%s: waits %v", code, got)
		}
	}
}
