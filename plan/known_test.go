package plan

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"memroom/allocsim"
	"memroom/event"
	"memroom/tape"
)

// TestCardsByName: as people write them; the first of several; else a size.
func TestCardsByName(t *testing.T) {
	for text, want := range map[string]string{
		"H200": "H200", "h200": "H200", "NVIDIA H100": "H100", "A100": "A100-80", "a100-40gb": "A100-40",
		"Tesla V100": "V100-32", "V100 16 GB": "V100-16", "GeForce RTX 4090": "RTX4090",
		"rtx_3090": "RTX3090", "RTX40": "RTX4090", "L4": "L4", "L40S": "L40S", "T4": "T4",
		"24GiB": "24GiB",
		"1GiB":  "1GiB", "8": "8GiB", "1023MiB": "", "": "", "Voodoo": "", "-1GiB": "",
	} {
		card, err := FindCard(text)
		if card.Name != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, want %q (%v)", text, card.Name, want, err)
		}
	}
	for text, says := range map[string]string{"Voodoo": "H200, H100",
		"512MiB": "--alloc-limit 512MiB"} {
		if _, err := FindCard(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"2xT4 L4":   "T4 T4 L4",
		"3*RTX4090": "RTX4090 RTX4090 RTX4090",
		"1X24GiB":   "24GiB",
		"0xT4":      "",
		"1024xT4":   strings.TrimSpace(strings.Repeat("T4 ", 1024)),
		"1025xT4":   "",
		"1000xT4 24xL4": strings.TrimSpace(strings.Repeat("T4 ", 1000) +
			strings.Repeat("L4 ", 24)),
		"1000xT4 25xL4": "",
		"2xNothing":     "",
	} {
		list, err := ParseCards(strings.Fields(text))
		if got := strings.Join(names(list), " "); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %.60s (%v)", text, got, err)
		}
	}
}

// TestContextsByHand: resident threads times the bytes of each, and the kernels.
func TestContextsByHand(t *testing.T) {
	for name, want := range map[string][3]int64{ // threads, context, doubt
		"H200":    {132 * 2048, 787283968, 0},
		"H100":    {132 * 2048, 787283968, 33 << 20},
		"A100-80": {108 * 2048, 2150*108*2048 + 132<<20, 300*108*2048 + 66<<20},
		"RTX4090": {128 * 1536, 2150*128*1536 + 132<<20, 300*128*1536 + 66<<20},
		"RTX3090": {82 * 1536, 2150*82*1536 + 132<<20, 300*82*1536 + 66<<20},
		"RTX5090": {170 * 1536, 2150*170*1536 + 132<<20, 300*170*1536 + 66<<20},
		"T4":      {40 * 1024, 2150*40*1024 + 132<<20, 300*40*1024 + 66<<20},
		"B200":    {148 * 2048, 2150*148*2048 + 132<<20, 300*148*2048 + 66<<20},
	} {
		c, err := FindCard(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := [3]int64{c.SMs * c.threads(), int64(c.Context), int64(c.Doubt)}; got != want ||
			c.DNN != 16*event.MiB {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if again := c.filled(); again != c {
			t.Errorf("%s: what is known is computed again: %+v", name, again)
		}
	}
	for name, says := range map[string]string{"H200": "as measured on this card",
		"RTX4090": "computed, known to", "24GiB": "the most that one of this size takes (",
		"60GiB": "no card of this size is known"} {
		if c, err := FindCard(name); err != nil || !strings.Contains(c.Assumed(), says) {
			t.Errorf("%s: %q, want %q (%v)", name, c.Assumed(), says, err)
		}
	}
}

// TestSizesOfKnownCards: those from 6 % below to 3 % above it; small ones drive a screen too.
func TestSizesOfKnownCards(t *testing.T) {
	const total = 81079 * event.MiB // an H100
	for name, c := range map[string]struct {
		size event.Bytes
		like bool
	}{
		"its own":          {total, true},
		"just within 3 %":  {total*100/103 + event.MiB, true},
		"3 % are too many": {total*100/103 - event.MiB, false},
		"just within 6 %":  {total*100/94 - event.MiB, true},
		"6 % are too many": {total*100/94 + event.MiB, false},
	} {
		card := cardOfSize(c.size)
		if got := strings.Contains(card.Like, "H100"); got != c.like || card.Total != c.size ||
			!card.Sized {
			t.Errorf("%s: like %q", name, card.Like)
		}
	}
	for size, shared := range map[event.Bytes]event.Bytes{8 * event.GiB: event.GiB,
		8*event.GiB + 1: 0, 4 * event.GiB: event.GiB / 2, 24 * event.GiB: 0} {
		if got := cardOfSize(size).Shared; got != shared {
			t.Errorf("%s: %s set aside, want %s", size, got, shared)
		}
	}
	mixed, _ := FindCard("24GiB")
	least := event.Bytes(math.MaxInt64)
	for _, name := range strings.Split(mixed.Like, ", ") {
		c, err := FindCard(name)
		if err != nil || c.Context > mixed.Context {
			t.Errorf("%s takes more than %s, %v", name, mixed.Context, err)
		}
		least = min(least, c.Context)
	}
	if mixed.Less != mixed.Context-least || mixed.Less == 0 || mixed.Measured {
		t.Errorf("%+v", mixed)
	}
	if only := cardOfSize(150109880320); !only.Measured || only.Less != 0 || only.Like != "H200" {
		t.Errorf("%+v", only)
	}
}

// TestCalibrationsAreMerged: sizes of the same card and versions that were not measured again.
func TestCalibrationsAreMerged(t *testing.T) {
	conv := func(n, bytes int64) ConvSizes {
		return ConvSizes{tape.Convolution{Groups: n}, tape.ConvBytes{Forward: bytes}}
	}
	rnn := func(n, bytes int64) RNNSizes {
		return RNNSizes{tape.Recurrent{Hidden: n}, tape.RNNBytes{Workspace: bytes}}
	}
	fresh := func() *Calibration {
		return &Calibration{UUID: "a", Torch: "2.11", CUDNN: 9, Conv: []ConvSizes{conv(1, 10)},
			RNN: []RNNSizes{rnn(1, 10)}}
	}
	old := fresh()
	old.Conv, old.RNN = append(old.Conv, conv(2, 5)), append(old.RNN, rnn(2, 5))
	old.Conv[0].Forward, old.RNN[0].Workspace = 7, 7
	for name, c := range map[string]struct {
		change func(*Calibration)
		want   int
	}{
		"the same":      {func(*Calibration) {}, 2},
		"another card":  {func(c *Calibration) { c.UUID = "b" }, 1},
		"another torch": {func(c *Calibration) { c.Torch = "2.12" }, 1},
		"another cuDNN": {func(c *Calibration) { c.CUDNN = 8 }, 1},
	} {
		now := fresh()
		c.change(now)
		now.Merge(old)
		if len(now.Conv) != c.want || len(now.RNN) != c.want || now.Conv[0].Forward != 10 ||
			now.RNN[0].Workspace != 10 {
			t.Errorf("%s: %+v %+v", name, now.Conv, now.RNN)
		}
	}
	for _, c := range []struct {
		a, b string
		want bool
	}{{"2.11", "2.11.0+cu130", true}, {"2.11", "2.1", false}, {"2", "2", true},
		{"2.11", "3.11", false}} {
		if got := sameRelease(c.a, c.b); got != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}

// TestPlausibleCalibrations: each figure at its edges.
func TestPlausibleCalibrations(t *testing.T) {
	const tib = int64(event.TiB)
	for name, c := range map[string]struct {
		change func(*Calibration)
		want   bool
	}{
		"nothing wrong":      {func(*Calibration) {}, true},
		"the least card":     {func(c *Calibration) { c.Total = event.GiB }, true},
		"a smaller one":      {func(c *Calibration) { c.Total = event.GiB - 1 }, false},
		"no processors":      {func(c *Calibration) { c.SMs = 0 }, false},
		"one":                {func(c *Calibration) { c.SMs = 1 }, true},
		"many":               {func(c *Calibration) { c.SMs = 1<<16 - 1 }, true},
		"too many":           {func(c *Calibration) { c.SMs = 1 << 16 }, false},
		"no generation":      {func(c *Calibration) { c.Capability = 0 }, false},
		"the first":          {func(c *Calibration) { c.Capability = 1 }, true},
		"the last":           {func(c *Calibration) { c.Capability = 999 }, true},
		"one behind":         {func(c *Calibration) { c.Capability = 1000 }, false},
		"a context below 0":  {func(c *Calibration) { c.Context = -1 }, false},
		"the largest":        {func(c *Calibration) { c.Context = event.TiB }, true},
		"a larger one":       {func(c *Calibration) { c.Context = event.TiB + 1 }, false},
		"cuDNN below 0":      {func(c *Calibration) { c.DNN = -1 }, false},
		"cuBLAS below 0":     {func(c *Calibration) { c.BLAS = -1 }, false},
		"cuBLASLt below 0":   {func(c *Calibration) { c.BLASLt = -1 }, false},
		"a forward below 0":  {func(c *Calibration) { c.Conv[0].Forward = -1 }, false},
		"an input below 0":   {func(c *Calibration) { c.Conv[0].InputGrad = -1 }, false},
		"a weight too large": {func(c *Calibration) { c.Conv[0].WeightGrad = tib + 1 }, false},
		"a space below 0":    {func(c *Calibration) { c.RNN[0].Workspace = -1 }, false},
		"a reserve too much": {func(c *Calibration) { c.RNN[0].Reserve = tib + 1 }, false},
		"as much as fits":    {func(c *Calibration) { c.RNN[0].Reserve = tib }, true},
	} {
		k := &Calibration{Card: DefaultCard(), Conv: make([]ConvSizes, 1), RNN: make([]RNNSizes, 1)}
		if c.change(k); k.Plausible() != c.want {
			t.Errorf("%s: plausible %v", name, !c.want)
		}
	}
}

// TestTablesThatAreDamaged: a line that is none is named; lines that are written are read.
func TestTablesThatAreDamaged(t *testing.T) {
	const good = "8 3 2 2 4 3 1 1 1 1 0 0 1 1 1 bf16 last 5 6 7"
	s, err := parseConv(good)
	if err != nil || !s.ChannelsLast || s.DType != "bf16" || s.X != [4]int64{8, 3, 2, 2} ||
		s.W != [4]int64{4, 3, 1, 1} || s.Forward != 5 || s.InputGrad != 6 || s.WeightGrad != 7 ||
		s.Groups != 1 || s.Pad != [2]int64{} || s.Dilation != [2]int64{1, 1} {
		t.Fatalf("%+v %v", s, err)
	}
	var line bytes.Buffer
	if err := s.write(&line); err != nil || line.String() != good+"\n" {
		t.Errorf("%q %v", line.String(), err)
	}
	zip := func(text string) *bytes.Reader {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return bytes.NewReader(b.Bytes())
	}
	for _, text := range []string{good + " 8", strings.TrimSuffix(good, " 7"),
		strings.Replace(good, "8 3", "8 x", 1), strings.TrimSuffix(good, "7") + "9.5"} {
		if _, err := readTable(zip(good + "\n" + text + "\n")); err == nil ||
			!strings.Contains(err.Error(), "table of convolutions") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := readTable(strings.NewReader(good)); err == nil {
		t.Error("text that is not packed was read")
	}
	if w, err := readTable(zip(good + "\n")); err != nil {
		t.Error(err)
	} else if got, ok := w.Measured(s.Convolution); !ok || got != s.ConvBytes {
		t.Errorf("%+v %v", got, ok)
	}
	known, other := testTarget(), testTarget()
	other.Torch = "2.7"
	var out bytes.Buffer
	if torch, err := known.WriteWorkspaces(&out); err != nil || torch != "2.11" ||
		strings.Count(out.String(), "\n") < 20000 {
		t.Errorf("%q, %d bytes, %v", torch, out.Len(), err)
	}
	out.Reset()
	if torch, err := other.WriteWorkspaces(&out); err != nil || torch != "" || out.Len() != 0 {
		t.Errorf("%q, %d bytes, %v", torch, out.Len(), err)
	}
	if _, err := known.WriteWorkspaces(fullDisk{}); err == nil {
		t.Error("written to a full disk")
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errors.New("no room") }

// TestStandardShapes: a calibration without a model measures convolutions of both precisions and
// recurrent layers.
func TestStandardShapes(t *testing.T) {
	all, err := StandardShapes()
	if err != nil {
		t.Fatal(err)
	}
	types := map[string]int{}
	for _, c := range all.Conv {
		types[c.DType]++
		if c.X[0] != 32 {
			t.Errorf("a batch of %d", c.X[0])
		}
	}
	if types["bf16"] < 100 || types["fp32"] < 100 || len(types) != 2 || len(all.RNN) < 2 {
		t.Errorf("%v convolutions, %d recurrent layers", types, len(all.RNN))
	}
	for _, s := range []Setup{vision("resnet18", -1), vision("nonet", 4)} {
		if _, err := s.Shapes(); err == nil {
			t.Errorf("shapes of %+v", s)
		}
	}
}

// TestIntervalsOfRehearsals checks that each fact that the script reports widens the interval by
// the amount in the documentation, as parts of the device peak.
func TestIntervalsOfRehearsals(t *testing.T) {
	for name, c := range map[string]struct {
		change       func(*Rehearsal)
		below, above float64
		validated    bool
		says         string
	}{
		"plain":       {func(*Rehearsal) {}, 0.006, 0.012, true, ""},
		"compiled":    {func(r *Rehearsal) { r.Compiled = true }, 0.146, 0.082, true, ""},
		"with graphs": {func(r *Rehearsal) { r.Graphs = true }, 0.156, 0.362, false, ""},
		"tries": {func(r *Rehearsal) { r.Tries = true }, 0.006, 4.012, false,
			"cudnn.benchmark is on"},
		"one step": {func(r *Rehearsal) { r.Reason, r.Steps = "end", 1 }, 0.006, 0.012, true,
			"one optimizer step only"},
		"two steps": {func(r *Rehearsal) { r.Reason, r.Steps = "end", 2 }, 0.006, 0.012, true,
			""},
		"one step was asked": {func(r *Rehearsal) { r.Steps = 1 }, 0.006, 0.012, true, ""},
	} {
		r := rehearsalOf(false)
		c.change(r)
		p, err := r.Predict(testTarget())
		if err != nil {
			t.Fatal(err)
		}
		peak := float64(p.DevicePeak)
		below, above := float64(p.DevicePeak-p.Low)/peak, float64(p.High-p.DevicePeak)/peak
		said := strings.Join(p.Warnings, "\n")
		if math.Abs(below-c.below) > 1e-3 || math.Abs(above-c.above) > 1e-3 ||
			p.Validated != c.validated || !strings.Contains(said, c.says) ||
			c.says == "" && strings.Contains(said, "step") {
			t.Errorf("%s: %.4f below, %.4f above, validated %v, %q", name, below, above, p.Validated,
				said)
		}
	}
}

// TestLibrariesOfRehearsals: cuBLAS is taken off where it was never loaded and the card's context
// holds it, a communicator is added.
func TestLibrariesOfRehearsals(t *testing.T) {
	for name, c := range map[string]struct {
		r             Rehearsal
		context, want event.Bytes
	}{
		"all":           {Rehearsal{}, 700, 700},
		"no matrices":   {Rehearsal{NoBLAS: true}, 700, 572},
		"a small card":  {Rehearsal{NoBLAS: true}, 384, 384},
		"a little more": {Rehearsal{NoBLAS: true}, 385, 257},
		"several cards": {Rehearsal{Grouped: true}, 700, 868},
		"both":          {Rehearsal{NoBLAS: true, Grouped: true}, 700, 740},
	} {
		target := Target{Card: Card{Context: c.context * event.MiB}}
		if c.r.loads(&target); target.Card.Context != c.want*event.MiB {
			t.Errorf("%s: %s", name, target.Card.Context)
		}
	}
	for steps, want := range map[int]string{1: "the script as it is, 1 step",
		3: "the script as it is, 3 steps"} {
		if got := (&Rehearsal{Steps: steps}).words(); got != want {
			t.Errorf("%q", got)
		}
	}
	runs := func(peaks ...event.Bytes) *simulations {
		s := &simulations{}
		for _, p := range peaks {
			s.all = append(s.all, simulation{res: allocsim.Result{ReservedPeak: p}})
		}
		return s
	}
	for _, c := range []struct {
		runs      *simulations
		low, high event.Bytes
	}{{runs(5), 5, 5}, {runs(5, 9, 3), 3, 9}, {runs(5, 9, 3, 7), 3, 7}, {runs(1, 9, 9, 2), 1, 9}} {
		if low, high := c.runs.likely(); low != c.low || high != c.high {
			t.Errorf("%d to %d, want %d to %d", low, high, c.low, c.high)
		}
	}
	failed := runs(1, 2)
	if !failed.survived() {
		t.Error("both survived")
	}
	failed.all[1].res.OOM = new(allocsim.OOMAt)
	if failed.survived() {
		t.Error("one did not survive")
	}
}

// TestGroupsOfRanks: HSDP's groups where none are given, and those that cannot be made.
func TestGroupsOfRanks(t *testing.T) {
	of := func(shard string, ranks, replicas int) *Setup {
		s := &Setup{}
		s.Shard, s.Ranks, s.Replicas = shard, ranks, replicas
		return s
	}
	for _, c := range []struct {
		s    *Setup
		want int
	}{
		{of("hsdp", 4, 0), 2}, {of("hsdp", 8, 0), 2}, {of("hsdp", 16, 0), 2}, {of("hsdp", 32, 0), 4},
		{of("hsdp", 12, 0), 2}, {of("hsdp", 32, 8), 8}, {of("fsdp", 32, 8), 0},
		{of("fsdp1", 32, 8), 8}, {of("fsdp1", 32, 0), 0},
	} {
		if c.s.fromShard(); c.s.Replicas != c.want {
			t.Errorf("%s of %d: %d groups, want %d", c.s.Shard, c.s.Ranks, c.s.Replicas, c.want)
		}
	}
	for _, c := range []struct {
		s    *Setup
		says string
	}{
		{of("hsdp", 8, 2), ""}, {of("hsdp", 8, 3), "--replicas"}, {of("hsdp", 8, 8), "shard nothing"},
		{of("hsdp", 8, 4), ""}, {of("fsdp", 8, 0), ""}, {of("fsdp1", 8, 8), ""}, {of("hsdp", 1, 3), ""},
	} {
		err := c.s.checkReplicas()
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s of %d in %d: %v", c.s.Shard, c.s.Ranks, c.s.Replicas, err)
		}
	}
	for name, c := range map[string]struct {
		change func(*Setup)
		groups int
		words  string
	}{
		"one rank":   {func(s *Setup) { s.Ranks = 1 }, 0, ""},
		"copies":     {func(s *Setup) { s.Shard = "ddp" }, 0, "ddp"},
		"two levels": {func(s *Setup) { s.Shard, s.Replicas = "hsdp", 2 }, 1, "hsdp, 2 groups"},
		"tensor":     {func(s *Setup) { s.Tensor = 8 }, 0, "tensor 8"},
		"both": {func(s *Setup) { s.Shard, s.Tensor, s.Sequence = "fsdp", 2, true }, 1,
			"fsdp, tensor 2, sequence"},
		"a pipeline": {func(s *Setup) { s.Shard, s.Pipeline, s.Microbatches = "ddp", 2, 6 }, 1,
			"ddp, pipeline 2 with 6 micro-batches"},
		"experts": {func(s *Setup) { s.Shard, s.Expert, s.Context = "fsdp", 4, 2 }, 2,
			"fsdp, context 2, expert 4"},
	} {
		s := of("", 8, 0)
		c.change(s)
		if got := s.groups(); got != c.groups || s.shardWords() != c.words ||
			s.collectives() != 960*event.MiB+event.Bytes(c.groups)*256*event.MiB {
			t.Errorf("%s: %d groups more, %q, %s", name, got, s.shardWords(), s.collectives())
		}
	}
}

// TestAssumptionsInALine: only the assumptions that are made are printed.
func TestAssumptionsInALine(t *testing.T) {
	s := &Setup{}
	s.Batch, s.Precision, s.Optimizer = 4, "bf16", "adamw"
	card, err := FindCard("T4")
	if err != nil {
		t.Fatal(err)
	}
	said := func(given bool, torch string) string {
		var p Prediction
		p.AssumeStandard(s, Target{Card: card, Given: given, Torch: torch})
		return p.Assumed
	}
	if got := said(true, "2.11"); got != "batch 4, bf16, adamw, torch 2.11, on T4" {
		t.Errorf("%q", got)
	}
	s.Accumulate, s.Checkpointing, s.Compile, s.TrainOnly = 2, true, true, []string{"head", "norm"}
	want := fmt.Sprintf("batch 4, 2 accumulated, bf16, adamw, checkpointing, compiled, only head, "+
		"norm trained, torch %s, on an T4, as no card was named", allocsim.LatestChecked)
	if got := said(false, ""); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	s.Accumulate, s.Attention = 1, "flash"
	if got := said(true, "2.11"); strings.Contains(got, "accumulated") {
		t.Errorf("%q", got)
	}
	for name, c := range map[string]struct {
		gpu, precision, attention string
		given                     bool
		doubts                    int
	}{
		"new card":              {"H200", "bf16", "flash", true, 0},
		"fp32 flash":            {"H200", "fp32", "flash", true, 1},
		"fp32":                  {"H200", "fp32", "sdpa", true, 0},
		"old card":              {"T4", "amp_fp16", "sdpa", true, 0},
		"old card, bf16":        {"T4", "amp_bf16", "sdpa", true, 1},
		"old card, flash, bf16": {"T4", "bf16", "flash", true, 2},
		"nobody named it":       {"T4", "bf16", "flash", false, 0},
		"the first that can":    {"A100", "bf16", "flash", true, 0},
		"only a size":           {"16GiB", "bf16", "flash", true, 0},
	} {
		card, err := FindCard(c.gpu)
		s := &Setup{}
		s.Precision, s.Attention = c.precision, c.attention
		if got := s.doubts(&Target{Card: card, Given: c.given}); err != nil || len(got) != c.doubts {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	lora := &Setup{}
	if got := lora.loraNote(); !strings.Contains(got, "query and value") ||
		!strings.HasSuffix(got, "everything else is frozen") {
		t.Errorf("%q", got)
	}
	lora.LoadIn, lora.TrainOnly = "4bit", []string{"x"}
	if got := lora.loraNote(); !strings.Contains(got, "as QLoRA") || !strings.HasSuffix(got,
		"of the rest only --train-only is trained") {
		t.Errorf("%q", got)
	}
	lora.LoRATargets = []string{"a", "b"}
	if got := lora.loraNote(); !strings.Contains(got, "on a, b;") {
		t.Errorf("%q", got)
	}
}
