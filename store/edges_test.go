package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"memroom/event"
	"memroom/testenv"
)

// valuesOf reads a line of samples or of steps.
func valuesOf(name, line string) (at int64, ok bool, got map[string]int64) {
	got = map[string]int64{}
	at, ok = extractorOf(name)([]byte(line), func(n string, v int64) { got[n] = v })
	return at, ok, got
}

// TestLinesThatAreNoReadings: a line that is not JSON, or has no time, yields no moment. Whatever
// else stands in a line that is whole does no harm.
func TestLinesThatAreNoReadings(t *testing.T) {
	for line, want := range map[string]bool{
		`{"at_ms":5}`:                            true,
		` { "at_ms" : 5 , "anon" : 1 } `:         true,
		`{}`:                                     false,
		``:                                       false,
		`[5]`:                                    false,
		`{"anon":5}`:                             false,
		`{"at_ms"}`:                              false,
		`{"at_ms" 5}`:                            false,
		`{at_ms:5}`:                              false,
		`{"at_ms":5`:                             false,
		`{"at_ms":5.5`:                           false,
		`{"at_ms":5e`:                            false,
		`{"at_ms":-`:                             false,
		`{:5,"at_ms":5}`:                         false,
		`{"x":"a`:                                false,
		`{"at_ms":5,"x`:                          false,
		`{"at_ms":5,"x":["a`:                     false,
		`{"at_ms":5,"x":[}`:                      false,
		`{"at_ms":5,`:                            false,
		`{"at_ms":5 "anon":1}`:                   false,
		`{"at_ms":5]`:                            false,
		`{"at_ms":"5"}`:                          false,
		`{"at_ms":5,"x":"a\"}"}`:                 true,
		`{"at_ms":5,"x":"a\\"}`:                  true,
		`{"at_ms":5,"x":"a\\\"}`:                 false,
		`{"at_ms":5,"x":"a`:                      false,
		`{"at_ms":5,"x":{"y":[1,{"z":"]}"}]}}`:   true,
		`{"at_ms":5,"x":[{"y":1},"a,b"],"z":-1}`: true,
		`{"at_ms":5,"x":null,"y":true}`:          true,
	} {
		for _, name := range []string{samplesFile, stepsFile} {
			at, ok, got := valuesOf(name, line)
			if ok != want || ok && at != 5 || !ok && at != 0 {
				t.Errorf("%s %s: %d %v %v", name, line, at, ok, got)
			}
		}
	}
	if extractorOf(eventsFile) != nil {
		t.Error("events have no values")
	}
}

// TestReadersAgreeWithJSON on lines of any values in any order of fields, and on no line that is
// cut off.
func TestReadersAgreeWithJSON(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 0))
	size := func() event.Bytes { return event.Bytes(random.Int64N(1 << random.IntN(50))) }
	for range 200 {
		s := event.Sample{AtMS: random.Int64N(1e9), Processes: random.IntN(9), Resident: size(),
			Anonymous: size(), Shared: size(), Swapped: size(), Attempt: 1 + random.IntN(3)}
		if random.IntN(2) == 0 {
			s.Held = size()
		}
		if random.IntN(2) == 0 {
			s.Cgroup = &event.CgroupSample{Current: 1 + size(), Limit: 1 + size()}
		}
		for i := range random.IntN(4) {
			s.Devices = append(s.Devices, event.DeviceSample{UUID: fmt.Sprint(i), Used: 1 + size(),
				Total: 1 + size()})
		}
		line, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		at, ok, got := valuesOf(samplesFile, string(line))
		if !ok || at != s.AtMS || got["host"] != int64(s.Unreclaimable()) ||
			got["resident"] != int64(s.Resident) || got["swap"] != int64(s.Swapped) {
			t.Fatalf("%s: %d %v %v", line, at, ok, got)
		}
		if s.Cgroup != nil && (got["cgroup"] != int64(s.Cgroup.Current) ||
			got["cgroup_limit"] != int64(s.Cgroup.Limit)) {
			t.Fatalf("%s: %v", line, got)
		}
		for i, d := range s.Devices {
			if got[fmt.Sprintf("gpu%d.used", i)] != int64(d.Used) ||
				got[fmt.Sprintf("gpu%d.total", i)] != int64(d.Total) {
				t.Fatalf("%s: device %d: %v", line, i, got)
			}
		}
		for cut := range line {
			if at, ok, _ := valuesOf(samplesFile, string(line[:cut])); ok {
				t.Fatalf("%s is taken for a reading of %d", line[:cut], at)
			}
		}
	}
}

// TestDevicesOfALine: a list, of which there is one of any length that a machine has.
func TestDevicesOfALine(t *testing.T) {
	for text, want := range map[string]int{ // devices, -1: no reading
		`[]`: 0, `[{"used":1}]`: 1, `[{"used":1},{"used":2}]`: 2, `[null,{"used":2}]`: 1, `null`: 0,
		`7`: 0, `{"used":1}`: 0, `[{"used":1}{"used":2}]`: -1, `[{"used":1}`: -1, `[{"used":1},`: -1,
		`[{"used"}]`: -1, `[{"used":1 "total":2}]`: -1,
		"[" + strings.Repeat(`{"used":1},`, 1000) + `{"used":1}]`: 1001,
		"[" + strings.Repeat(`{"used":1},`, 1024) + `{"used":1}]`: 1025,
		"[" + strings.Repeat(`{"used":1},`, 1025) + `{"used":1}]`: -1,
	} {
		_, ok, got := valuesOf(samplesFile, `{"at_ms":1,"gpus":`+text+`}`)
		n := 0
		for name := range got {
			if strings.HasSuffix(name, ".used") {
				n++
			}
		}
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%.40s: %v, %d devices, want %d", text, ok, n, want)
		}
	}
}

// TestNumbersOfEveryForm: as JSON has them; fractions are cut off, null is none.
func TestNumbersOfEveryForm(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "7": 7, "-7": -7, "2.75": 2, "-2.75": -2,
		"1e3": 1000, "1E+3": 1000, "25e-1": 2, "null": 0, "123456789012345": 123456789012345} {
		at, ok, got := valuesOf(samplesFile, `{"anon":`+text+`,"at_ms":3}`)
		if !ok || at != 3 || got["anonymous"] != want || got["host"] != want {
			t.Errorf("%s: %v %v, want %d", text, ok, got, want)
		}
	}
}

// TestWhoseSteps: of a rank or of a process, on a card or on none; values that a step does not have
// are not put down as zero.
func TestWhoseSteps(t *testing.T) {
	for line, want := range map[string]map[string]int64{
		`{"at_ms":1,"pid":4,"rank":2,"device":3,"step":9}`: {"rank2/gpu3.step": 9},
		`{"at_ms":1,"pid":4,"rank":0,"device":0,"step":9}`: {"rank0/gpu0.step": 9},
		`{"at_ms":1,"pid":4,"rank":null,"step":9}`:         {"pid4.step": 9},
		`{"at_ms":1,"pid":4,"device":-1,"heap":0}`:         {"pid4.heap": 0},
		`{"at_ms":1,"pid":4,"other":9}`:                    {},
		`{"at_ms":1,"pid":4,"duration_ns":5,"step":1}`:     {"pid4.duration_ns": 5, "pid4.step": 1},
	} {
		if _, ok, got := valuesOf(stepsFile, line); !ok || cmp.Diff(want, got) != "" {
			t.Errorf("%s: %v %v", line, ok, got)
		}
	}
	many := newStepReader() // more processes than names are kept of
	for pid := range 5000 {
		got := ""
		line := fmt.Sprintf(`{"at_ms":1,"pid":%d,"step":1}`, pid)
		many.read([]byte(line), func(n string, _ int64) { got = n })
		if got != fmt.Sprintf("pid%d.step", pid) {
			t.Fatalf("%s gave %s", line, got)
		}
	}
	if len(many.names) != 4096 {
		t.Errorf("%d names are kept", len(many.names))
	}
}

// TestKindsOfNames: by the words of a name, and by what precedes its last one.
func TestKindsOfNames(t *testing.T) {
	for kind, names := range map[nameKind]string{
		plainName: `lr -- _ max_tokens tokens pad_token tokenizer public_key ssh_public_key
			PUBLIC_TOKEN password_file secret-name key_size auth_type token_id password_hash monkey
			first_pass wandb_key_path stream_tok token_limit`,
		weakName: `key keys sort_key signature sig sas login x-amz-signature`,
		tokenName: `token pass auth pat myauthtoken myaccesstoken my.auth
			forward_pass`,
		headerName: `authorization Proxy-Authorization`,
		strongName: `password db_password hfToken --hf-token WANDB_API_KEY api_keys secret my_secret_x
			myapikey dbpassword dbpasswd appsecret access_tokens hftoken wandbkey hf_tok github_pat
			webhook_url credentials`,
	} {
		for _, name := range list(names) {
			if got := kindOfName(name); got != kind {
				t.Errorf("%s is %d, want %d", name, got, kind)
			}
		}
	}
}

// TestValuesOfNames: how sure a name must be for which value.
func TestValuesOfNames(t *testing.T) {
	for _, c := range []struct {
		name, value string
		want        bool
	}{
		{"lr", random2, false},
		{"key", random2, true}, {"key", random2[:20], true}, {"key", random2[:19], false},
		{"key", "embedding_of_the_first_layer", false},
		{"token", "abc", true}, {"token", "12", false}, {"token", "1e5", false}, {"token", "4k", false},
		{"token", "Mean", false}, {"auth", "OAuth2", false}, {"auth", "oauth3", true},
		{"authorization", "Bearer", false}, {"authorization", "abc", true},
		{"password", "1", true}, {"password", "mean", true},
		{"password", "***", false}, {"password", "***x", false}, {"password", "...", false},
		{"password", "$VAR", false}, {"password", "<x>", false}, {"password", "%s", false},
		{"password", "@file", false}, {"password", "x$y", true},
		{"password", "None,", false}, {"password", "TRUE)", false}, {"password", "nonesuch", true},
		{"password", "os.environ", false}, {"password", "{x}", false}, {"password", "{{ x }}", false},
		{"password", "args.password", false}, {"password", "argspassword", true},
	} {
		if got := isSecret(c.name, c.value); got != c.want {
			t.Errorf("%s=%s is a secret: %v", c.name, c.value, got)
		}
	}
}

// TestArgumentsOneByOne: which word before makes the next one a secret.
func TestArgumentsOneByOne(t *testing.T) {
	for line, want := range map[string]string{
		"hunter2":                             "",
		"t --password -x":                     "",
		"t --password=a b":                    "t --password=*** b",
		"t --password -":                      "t --password ***",
		"t - abc":                             "",
		"t password abc":                      "", // a word of a sentence
		"t aws_secret abc":                    "t aws_secret ***",
		"t aws_secret --x":                    "",
		"t password: abc":                     "t password: ***",
		"t lr: abc":                           "",
		"mysql -p":                            "",
		"mysql -pa":                           "mysql -p***",
		"t -pa":                               "",
		"t -u 1000:1000":                      "",
		"t -u me":                             "",
		"t -u a1:b":                           "t -u a1:***",
		"wandb login abcdefgh12345678":        "wandb login ***",
		"wandb login abcdefgh1234567":         "",
		"t abcdefgh12345678":                  "",
		"t bearer abcd1234":                   "t bearer ***",
		"t bearer abcd123":                    "",
		"-p abc":                              "",
		"sshpass -p":                          "",
		"t --hf-token abc --hf-token def --x": "t --hf-token *** --hf-token *** --x",
	} {
		if want == "" {
			want = line
		}
		if got := strings.Join(MaskArguments(strings.Fields(line)), " "); got != want {
			t.Errorf("%q became %q, want %q", line, got, want)
		}
	}
}

// TestMaskingLeavesTheMarks: quotes, prefixes and what stands around a value stay, also where
// several follow each other.
func TestMaskingLeavesTheMarks(t *testing.T) {
	for text, want := range map[string]string{
		`password = "ab"`:                 `password = "***"`,
		`password = 'ab'`:                 `password = '***'`,
		`password = b"ab", x`:             `password = b"***", x`,
		`password=ab;token=cd;lr=1`:       `password=***;token=***;lr=1`,
		`a: password=ab`:                  `a: password=***`,
		`lr=1 --password "a b" --seed 2`:  `lr=1 --password "***" --seed 2`,
		`<password>ab</password><lr>1`:    `<password>***</password><lr>1`,
		`("password", "ab"), ("lr", "1")`: `("password", "***"), ("lr", "1")`,
		`{"password":"ab","lr":"1"}`:      `{"password":"***","lr":"1"}`,
		`token is 'abcd'.`:                `token is '***'.`,
		`token is 'abc'.`:                 `token is 'abc'.`,
		`hf_` + random[:8]:                `***`,
		`hf_` + random[:7]:                `hf_` + random[:7],
		``:                                ``,
	} {
		if got := MaskText(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	for value, want := range map[string]string{`ab`: `***`, `"ab"`: `"***"`, `'ab'`: `'***'`,
		`b'ab'`: `b'***'`, `\"ab\"`: `\"***\"`, `x"ab"`: `***`} {
		if got := requote(value); got != want {
			t.Errorf("%s became %s, want %s", value, got, want)
		}
	}
	for text, want := range map[string]int{"": 0, "a": 1, "ab cd": 2, "a.b_c-d:e~f+g/h=i": 17,
		"ab!cde#f": 3, "09azAZ": 6, "ab cdé": 2, "{|}@[`": 0} {
		if got := longestWord(text); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}

// TestRecordsMaskedByName: a value goes by the name right before it, not by one further away.
func TestRecordsMaskedByName(t *testing.T) {
	for text, want := range map[string]string{
		`{"password":"ab","x":"cd"}`:         `{"password":"***","x":"cd"}`,
		`{"password" : "ab"}`:                `{"password" : "***"}`,
		`{"x":"password","y":"ab"}`:          `{"x":"password","y":"ab"}`,
		`["password","ab"]`:                  `["password","ab"]`,
		`{"password":["ab"]}`:                `{"password":["ab"]}`,
		`{"password":1,"x":"a\"b"}`:          `{"password":1,"x":"a\"b"}`,
		`{"x":"password=a\"b c"}`:            ``,
		`{"x":"a<b>&c","password":"é<"}`:     `{"x":"a<b>&c","password":"***"}`,
		`{"n":9007199254740993,"x":"\\"}`:    `{"n":9007199254740993,"x":"\\"}`,
		`{"x":"--password ab\n--lr 1"} tail`: `{"x":"--password ***\n--lr 1"} tail`,
		`{"x":"cut`:                          `{"x":"cut`,
		`{"x":"cut\`:                         `{"x":"cut\`,
	} {
		got := string(maskJSON([]byte(text)))
		if want == "" { // only that it stays JSON and the secret goes
			if !json.Valid([]byte(got)) || strings.Contains(got, "a\\\"b") {
				t.Errorf("%s became %s", text, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
	var m LineMasker
	for _, c := range [][2]string{{"-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----"},
		{"abc", "abc"}, {"PRIVATE KEY", "PRIVATE KEY"}, {"-----BEGIN PRIVATE KEY-----", "***"},
		{"abc", "***"}, {"-----END PRIVATE KEY-----", "***"}, {"abc", "abc"}} {
		if got := m.Mask(c[0]); got != c[1] {
			t.Errorf("%q became %q", c[0], got)
		}
	}
	kept := KeptEnvironment([]string{"RANK=", "WORLD_SIZE=4", "XLA_FLAGS=--token=" + random, "RANKS=1"})
	want := map[string]string{"WORLD_SIZE": "4", "XLA_FLAGS": "--token=***"}
	if diff := cmp.Diff(want, kept); diff != "" {
		t.Error(diff)
	}
}

// TestFilters: each alone, and all at once.
func TestFilters(t *testing.T) {
	zero, one := 0, 1
	oom := Row{ID: "oom", Name: "n", Tags: []string{"t", "u"}, Group: "g", IsOOM: true, Status: Ended,
		ExitCode: &one}
	rows := []Row{oom, {ID: "well", Name: "n", Group: "h", Status: Ended, ExitCode: &zero},
		{ID: "lost", Tags: []string{"t"}, Status: Lost}, {ID: "on", Group: "g", Status: Running}}
	for _, c := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "oom well lost on"}, {Filter{Name: "n"}, "oom well"}, {Filter{Tag: "t"}, "oom lost"},
		{Filter{Tag: "u"}, "oom"}, {Filter{Group: "g"}, "oom on"}, {Filter{OOM: true}, "oom"},
		{Filter{Failed: true}, "oom lost"}, {Filter{Active: true}, "on"},
		{Filter{Name: "n", Tag: "t", Group: "g", OOM: true, Failed: true}, "oom"},
		{Filter{Name: "n", Group: "x"}, ""}, {Filter{OOM: true, Active: true}, ""},
	} {
		var got []string
		for _, r := range rows {
			if c.filter.accepts(r) {
				got = append(got, r.ID)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.filter, got, c.want)
		}
	}
}

// TestListOfOneMoment: runs that began at once are in the order of their IDs, newest first, and a
// limit takes the first of them.
func TestListOfOneMoment(t *testing.T) {
	s := testStore(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var want []string
	for range 3 {
		f := ended(t, s, at, event.Run{}, event.Exit{}, event.Verdict{})
		want = append([]string{f.ID}, want...)
	}
	for limit := range 5 {
		n := limit
		if limit == 0 || limit > 3 {
			n = 3
		}
		if got := listed(t, s, Filter{Limit: limit}); !slices.Equal(got, want[:n]) {
			t.Errorf("limit %d: %v, want %v", limit, got, want[:n])
		}
	}
}

// TestWhatIsIndexed: runs that are over here. Others may change without a trace, and are read each
// time.
func TestWhatIsIndexed(t *testing.T) {
	s := testStore(t)
	state := keeperState{Keeper: 1 << 30, KeeperStart: 1} // a process that is gone
	lost := func(at int, host string) *Folder {
		f, err := s.Create(time.Date(2026, 1, 2, 3, 4, at, 0, time.UTC))
		if err == nil {
			err = errors.Join(f.SaveRun(event.Run{ID: f.ID, Host: host}), f.replace(stateFile, state))
		}
		if err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(-time.Hour)
		for _, path := range []string{f.Path(runFile), f.Path(stateFile), f.Dir} {
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
		return f
	}
	here := lost(1, "")
	far := lost(2, "a-machine-that-is-not-this-one")
	sent := lost(3, "")
	from := Reported{ID: sent.ID, Heard: time.Unix(5, 0), AheadMS: 9000}
	if err := sent.SaveReported(from); err != nil {
		t.Fatal(err)
	}
	if row := sent.Row(); !row.Reported || row.ClockAhead != 9 || row.Status != Lost {
		t.Errorf("%+v", row)
	}
	if host, yes := far.Elsewhere(); !yes || host != "a-machine-that-is-not-this-one" {
		t.Errorf("%s %v", host, yes)
	}
	if _, yes := here.Elsewhere(); yes {
		t.Error("a run of no other machine is elsewhere")
	}
	for _, most := range []int{1, 2, 0, 9} { // the newest first, at most so many
		if n, err := s.Refresh(most); err != nil || n > most {
			t.Errorf("%d read of at most %d, %v", n, most, err)
		}
	}
	known := s.readIndex()
	if _, ok := known[here.ID]; !ok || len(known) != 1 {
		t.Errorf("%v, want only %s", known, here.ID)
	}
	known[far.ID] = known[here.ID] // the row of another run
	if row, ok := known.row(far, known[here.ID].stamp); ok {
		t.Errorf("%+v", row)
	}
	if _, ok := known.row(here, "another stamp"); ok {
		t.Error("a row from before a change is used")
	}
}

// TestOldRunsAreNotCompared: of more than a hundred, only the newest hundred are looked at again.
func TestOldRunsAreNotCompared(t *testing.T) {
	s := testStore(t)
	var made []*Folder
	for i := range 102 {
		f, err := s.Create(time.Unix(1e9+int64(i), 0))
		if err == nil {
			err = f.SaveRun(event.Run{ID: f.ID, Started: time.Unix(1e9+int64(i), 0)})
		}
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, f)
	}
	refresh(t, s, 102)
	for i, want := range []int{0, 0, 1, 1} { // from the oldest on
		if err := made[i].SaveVerdict(event.Verdict{IsOOM: true}); err != nil {
			t.Fatal(err)
		}
		refresh(t, s, want)
	}
	if got := listed(t, s, Filter{OOM: true}); len(got) != 4 { // a list compares all
		t.Errorf("%v", got)
	}
}

// TestCompanionsThatAreBeingWritten count once their record is there.
func TestCompanionsThatAreBeingWritten(t *testing.T) {
	s := testStore(t)
	now := time.Now()
	f, err := s.Create(now)
	if err != nil {
		t.Fatal(err)
	}
	mates := s.Companions(event.Run{ID: "20260101-000000-abc", Group: "g", Started: now})
	if got := mates.Ended(); len(got) != 0 {
		t.Fatalf("%v", got)
	}
	if err := errors.Join(f.SaveRun(event.Run{ID: f.ID, Group: "g"}),
		f.SaveSummary(event.Summary{Steps: 3})); err != nil {
		t.Fatal(err)
	}
	if got := mates.Ended(); len(got) != 0 {
		t.Fatalf("it has not ended: %v", got)
	}
	over := event.Summary{Steps: 4, Exit: &event.Exit{At: now.Add(time.Second)}}
	if err := f.SaveSummary(over); err != nil {
		t.Fatal(err)
	}
	if got := mates.Ended(); len(got) != 1 || got[0].Steps != 4 {
		t.Errorf("%+v", got)
	}
}

// TestFilesThatWereCut: a series begins again when its file is shorter than it was.
func TestFilesThatWereCut(t *testing.T) {
	f := newRun(t)
	write := func(n int) {
		var text []byte
		for i := range n {
			text = fmt.Appendf(text, "{\"at_ms\":%d,\"anon\":%d}\n", i*250, 10*n+i)
		}
		testenv.Write(t, f.Path(samplesFile), text)
	}
	s := f.SampleSeries()
	for _, n := range []int{100, 20, 50} {
		write(n)
		p, err := s.Between(0, 1<<60, 1000, func(name string) bool { return name == "anonymous" })
		if err != nil || p.Count != int64(n) || !p.Exact || len(p.At) != n || len(p.Columns) != 1 ||
			p.Columns[0].Low[0] != int64(10*n) || p.Offset == 0 {
			t.Errorf("%d lines: %+v %v", n, p, err)
		}
	}
	info, err := os.Stat(f.Path(samplesFile))
	if p, _ := s.Between(0, 1<<60, 9, nil); err != nil || p.Offset != info.Size() {
		t.Errorf("read up to %d of %d, %v", p.Offset, info.Size(), err)
	}
}

// TestPointsAreMerged: of how many rows, and whether every line is a point.
func TestPointsAreMerged(t *testing.T) {
	rows := func(n, lines int) (list []roll) {
		for i := range n {
			r := roll{from: int64(i), to: int64(i), count: lines}
			r.put(0, int64(i))
			list = append(list, r)
		}
		return list
	}
	for _, c := range []struct {
		rows, lines, points int
		want                string // lowest and highest of each point
		exact               bool
	}{
		{3, 1, 3, "0-0 1-1 2-2", true}, {3, 1, 9, "0-0 1-1 2-2", true},
		{3, 2, 3, "0-0 1-1 2-2", false}, {4, 1, 2, "0-1 2-3", false}, {5, 1, 2, "0-1 2-4", false},
		{3, 1, 1, "0-2", false}, {0, 1, 1, "", true},
	} {
		got, exact := thin(rows(c.rows, c.lines), c.points)
		var words []string
		count := 0
		for _, r := range got {
			words = append(words, fmt.Sprintf("%d-%d", r.low[0], r.high[0]))
			if count += r.count; r.from != r.low[0] || r.to != r.high[0] {
				t.Errorf("%+v: from %d to %d", c, r.from, r.to)
			}
		}
		if strings.Join(words, " ") != c.want || exact != c.exact || count != c.rows*c.lines {
			t.Errorf("%+v: %v %v, %d lines", c, words, exact, count)
		}
	}
	var p Piece // a column that a row does not have
	half := rows(2, 1)
	half[1].put(2, 7)
	p.fill(half, []string{"a", "b", "c"}, nil)
	want := []Column{{"a", []int64{0, 1}, []int64{0, 1}},
		{"c", []int64{math.MaxInt64, 7}, []int64{math.MinInt64, 7}}}
	if diff := cmp.Diff(want, p.Columns); diff != "" {
		t.Error(diff)
	}
}

// TestAbsentValuesOfRolls: a column that a roll does not have is none in the file either.
func TestAbsentValuesOfRolls(t *testing.T) {
	f := newRun(t)
	var list []event.Sample
	for i := range 140 { // a card that is seen in the middle only
		s := event.Sample{AtMS: int64(i) * 250, Anonymous: 1}
		if i >= 70 && i < 80 {
			s.Devices = []event.DeviceSample{{Used: event.Bytes(i)}}
		}
		list = append(list, s)
	}
	appendAll(t, f, list)
	f.Close()
	p, err := f.SampleSeries().Between(0, 1<<60, 3, nil)
	if err != nil || len(p.At) != 3 {
		t.Fatalf("%+v %v", p, err)
	}
	card := columnOf(t, p, "gpu0.used")
	if card.Low[0] <= card.High[0] || card.Low[1] != 70 || card.High[1] != 79 ||
		card.Low[2] <= card.High[2] {
		t.Errorf("%+v", card)
	}
}

// TestGapsOfRolls: lines that no roll of the run is about are summed up by who reads, a single one
// too.
func TestGapsOfRolls(t *testing.T) {
	f := newRun(t)
	var text []byte
	var offsets []int64
	for i := range 6 {
		offsets = append(offsets, int64(len(text)))
		text = fmt.Appendf(text, "{\"at_ms\":%d,\"anon\":%d}\n", i, i)
	}
	offsets = append(offsets, int64(len(text)))
	roll := func(from, to int) string {
		return fmt.Sprintf(`{"at":[%d,%d,%d,%d,%d],"values":[%d,%d,%d,%d]}`+"\n", offsets[from],
			offsets[to], from, to-1, to-from, from, to-1, from, to-1)
	}
	for _, rolled := range []string{"", roll(0, 2), roll(1, 3), roll(0, 1) + roll(2, 5),
		roll(1, 2) + roll(2, 3), roll(4, 6), roll(0, 6)} {
		names := `["anonymous","host"]` + "\n"
		if err := errors.Join(os.WriteFile(f.Path(samplesFile), text, 0o600),
			os.WriteFile(f.Path(rollFile(samplesFile)), []byte(names+rolled), 0o600)); err != nil {
			t.Fatal(err)
		}
		p, err := f.SampleSeries().Between(0, 9, 100, nil)
		if err != nil || p.Count != 6 || p.From != 0 || p.To != 5 || !p.Exact ||
			!slices.Equal(p.At, []int64{0, 1, 2, 3, 4, 5}) ||
			!slices.Equal(columnOf(t, p, "host").High, p.At) {
			t.Errorf("%s: %+v %v", rolled, p, err)
		}
	}
}

// TestWhenARunIsFresh: written to within the hour, whichever of its files it was.
func TestWhenARunIsFresh(t *testing.T) {
	f := newRun(t)
	now := time.Now()
	names := []string{runFile, stateFile, samplesFile, eventsFile}
	for _, name := range names {
		testenv.Write(t, f.Path(name), nil)
	}
	for _, newest := range append(names, "") {
		for age, want := range map[time.Duration]bool{0: true, time.Hour - time.Second: true,
			time.Hour: false, time.Hour + time.Second: false} {
			for _, name := range append(names, "") {
				at := now.Add(-5 * time.Hour)
				if name == newest {
					at = now.Add(-age)
				}
				if err := os.Chtimes(f.Path(name), at, at); err != nil {
					t.Fatal(err)
				}
			}
			if got := f.fresh(now); got != want {
				t.Errorf("%q written %s ago: fresh %v", newest, age, got)
			}
		}
	}
}
