package guard

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/plan"
)

func TestParse(t *testing.T) {
	f, err := Parse([]byte(`
link = ["data"]
[defaults]
gpu = "RTX4090"
growth = "2%"
env = {A = "1", B = "2"}

[[check]]
name = "train"
command = "python 'my train.py' --lr=\"0.1\" ''"
budget = "20GiB"
env = {A = "own"}

[[ check ]]
plan = ["gpt2", "--batch", "8"]
growth = "512MiB"
`))
	if err != nil {
		t.Fatal(err)
	}
	one, two := f.Checks[0], f.Checks[1]
	if got := strings.Join(one.Command, "|"); got != "python|my train.py|--lr=0.1|" {
		t.Errorf("words %q", got)
	}
	if one.Line != 8 || two.Line != 14 || two.Name != "check 2" || one.GPU != "RTX4090" ||
		one.Budget != 20*event.GiB || one.Env["A"] != "own" || one.Env["B"] != "2" {
		t.Errorf("%+v %+v", one, two)
	}
	if a, b := one.Growth.Allows(100), two.Growth.Allows(100); a != 2 || b != 512*event.MiB {
		t.Errorf("growth %d %d", a, b)
	}
}

func TestRefusals(t *testing.T) {
	for text, want := range map[string]string{
		"":                          "no [[check]]",
		"[[check]]\nname = \"a\"\n": "neither command",
		"[[check]]\ncommand = \"x\"\nplan = \"y\"\ngpu = \"T4\"":  "make two checks",
		"[[check]]\ncommand = \"python t.py\"":                    "nothing can fail",
		"[[check]]\ncomand = \"x\"":                               `did you mean "command"`,
		"[[check]]\ncommand = \"a | b\"\ngpu = \"T4\"":            "no shell runs the command",
		"[[check]]\ncommand = \"'a\"\ngpu = \"T4\"":               "quote is not closed",
		"[[check]]\ncommand = \"a\"\ngrowth = \"x%\"":             "write a size",
		"[[check]]\ncommand = \"a\"\nbudget = \"x\"":              "size",
		"[[check]]\ncommand = \"a\"\ngpu=\"T4\"\nfolder=\"../x\"": "below memroom.toml",
		"link=[\"/etc\"]\n[[check]]\ncommand = \"a\"\ngpu=\"T4\"": "below memroom.toml",
		"[[check]]\nname=\"a\"\ncommand = \"a\"\ngpu=\"T4\"\n" +
			"[[check]]\nname=\"a\"\ncommand = \"b\"\ngpu=\"T4\"": "two checks",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// diff moves lines of net.py, rewrites one of train.py, and changes a file that nobody reads.
const diff = `diff --git net.py net.py
--- net.py
+++ net.py
@@ -2,0 +3,2 @@ class Net:
+        # wider
+        y = wide(x)
@@ -10 +11,0 @@
-        z = x
diff --git train.py loop.py
rename from train.py
rename to loop.py
--- train.py
+++ loop.py
@@ -5 +5 @@
-opt = SGD()
+opt = AdamW()
diff --git README.md README.md
--- README.md
+++ README.md
@@ -1 +1 @@
-a
+b
`

func TestCompare(t *testing.T) {
	shares := func(lines map[string]event.Bytes) []plan.LineShare {
		var list []plan.LineShare
		for line, n := range lines {
			list = append(list, plan.LineShare{Line: line, Bytes: n,
				Category: map[string]event.Bytes{"activations": n}})
		}
		return list
	}
	before := &plan.Prediction{DevicePeak: 100, Files: []string{"net.py", "train.py"},
		Categories: map[string]event.Bytes{"weights": 60, "activations": 40},
		Phases:     []plan.PhasePeak{{Phase: "forward", Allocated: 90}},
		Lines: shares(map[string]event.Bytes{"net.py:8": 30, "net.py:10": 5, "net.py:12": 7,
			"train.py:5": 0, "train.py:6": 10})}
	now := &plan.Prediction{DevicePeak: 150, Files: []string{"net.py", "loop.py"},
		Categories: map[string]event.Bytes{"weights": 60, "activations": 70, "optimizer": 20},
		Phases: []plan.PhasePeak{{Phase: "forward", Allocated: 110},
			{Phase: "optimizer", Allocated: 150}},
		Lines: shares(map[string]event.Bytes{"net.py:4": 35, "net.py:10": 30, "net.py:13": 7,
			"loop.py:5": 20, "loop.py:6": 10})}
	d := Compare(before, now, ParseDiff(diff))
	if d.Device != 50 || len(d.Categories) != 2 || d.Categories[0].Name != "activations" ||
		len(d.Phases) != 2 {
		t.Errorf("%+v", d)
	}
	var moves []string
	for _, m := range d.Lines {
		moves = append(moves, m.Line+"<"+m.Was+" "+m.More().String())
	}
	want := "net.py:4< 35B, loop.py:5<train.py:5 20B, <net.py:10 -5B"
	if got := strings.Join(moves, ", "); got != want {
		t.Errorf("lines %s\nwant  %s", got, want)
	}
	if len(d.Changes) != 3 || d.Changes[0].File != "net.py" || d.Changes[0].NewFirst != 3 ||
		d.Changes[0].Near != "net.py:4" || d.Changes[1].File != "loop.py" {
		t.Errorf("changes %+v", d.Changes)
	}
	d.ByEffect([]Effect{{File: "net.py", Device: 1}, {File: "loop.py", Device: -49}})
	if d.Changes[0].File != "loop.py" || d.Effects[0].File != "loop.py" {
		t.Errorf("by effect: %+v", d.Changes)
	}
}

func TestJudge(t *testing.T) {
	no := false
	for _, c := range []struct {
		check  Check
		now    plan.Prediction
		before event.Bytes
		over   int
	}{
		{Check{Budget: 100}, plan.Prediction{DevicePeak: 100}, 0, 0},
		{Check{Budget: 100}, plan.Prediction{DevicePeak: 101}, 0, 1},
		{Check{}, plan.Prediction{DevicePeak: 101, Fits: &no, Verdict: "does not fit"}, 0, 1},
		{Check{Growth: Growth{Given: true, Share: 0.1}}, plan.Prediction{DevicePeak: 110}, 100, 0},
		{Check{Growth: Growth{Given: true, Share: 0.1}}, plan.Prediction{DevicePeak: 111}, 100, 1},
		{Check{Growth: Growth{Given: true}}, plan.Prediction{DevicePeak: 50}, 100, 0},
	} {
		r := Result{Now: &c.now}
		if c.before > 0 {
			r.Before = &plan.Prediction{DevicePeak: c.before}
		}
		if r.Judge(&c.check); len(r.Over) != c.over {
			t.Errorf("%+v: %v", c.check, r.Over)
		}
	}
}
