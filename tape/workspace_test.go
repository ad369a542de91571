package tape

import "testing"

// TestWorkspacesBetweenBatches: measured sizes are returned; batches between and next to them
// follow the copies of input and output; far ones are left to the rules.
func TestWorkspacesBetweenBatches(t *testing.T) {
	at := func(batch int64) Convolution {
		return Convolution{X: [4]int64{batch, 64, 56, 56}, W: [4]int64{64, 64, 3, 3},
			Stride: [2]int64{1, 1}, Pad: [2]int64{1, 1}, Dilation: [2]int64{1, 1}, Groups: 1,
			DType: "fp32"}
	}
	const maps = 1000
	var w Workspaces
	w.AddConv(at(64), ConvBytes{Forward: 64*maps + 16, InputGrad: 0, WeightGrad: 500})
	w.AddConv(at(32), ConvBytes{Forward: 32*maps + 16, InputGrad: 32 * maps, WeightGrad: 500})
	for _, c := range []struct {
		batch int64
		want  ConvBytes
		how   knowledge
	}{
		{32, ConvBytes{32*maps + 16, 32 * maps, 500}, measured},
		{48, ConvBytes{48*maps + 16, 0, 500}, nearby},
		{40, ConvBytes{40*maps + 16, 32 * maps, 500}, nearby},
		{100, ConvBytes{100*maps + 16, 0, 500}, nearby},
		{20, ConvBytes{20*maps + 16, 20 * maps, 500}, nearby},
		{128, ConvBytes{128*maps + 16, 0, 500}, nearby}, // twice the nearest, and no farther
		{129, ConvBytes{129*maps + 32, 0, 500}, alike},
		{16, ConvBytes{16*maps + 16, 16 * maps, 500}, nearby},
		{15, ConvBytes{15*maps + 7, 15 * maps, 500}, alike},
		{1 << 16, ConvBytes{}, byRule},
	} {
		if got, how := w.forConv(at(c.batch), maps); got != c.want || how != c.how {
			t.Errorf("batch %d: %+v (%d), want %+v (%d)", c.batch, got, how, c.want, c.how)
		}
	}
	other := at(32)
	other.DType = "bf16"
	if _, how := w.forConv(other, maps); how != byRule {
		t.Error("another type took the sizes of fp32")
	}
	var none *Workspaces
	if _, how := none.forConv(at(32), maps); how != byRule {
		t.Error("no table knows nothing")
	}
}

// TestWorkspacesOfRelatives: a convolution that was not measured takes the copies that the nearest
// measured one takes.
func TestWorkspacesOfRelatives(t *testing.T) {
	conv := func(batch, in, out, side, kernel int64) Convolution {
		return Convolution{X: [4]int64{batch, in, side, side}, W: [4]int64{out, in, kernel, kernel},
			Stride: [2]int64{1, 1}, Pad: [2]int64{kernel / 2, kernel / 2}, Dilation: [2]int64{1, 1},
			Groups: 1, DType: "fp32"}
	}
	var w Workspaces
	known := conv(32, 64, 64, 56, 3)
	r := known.relative()
	w.AddConv(known, ConvBytes{Forward: r.maps + r.filter, InputGrad: 131, WeightGrad: r.summed})
	own := conv(48, 80, 64, 56, 3)
	o := own.relative()
	want := ConvBytes{Forward: o.maps + o.filter, InputGrad: 131, WeightGrad: o.summed}
	if got, how := w.forConv(own, 0); got != want || how != alike {
		t.Errorf("%+v (%d), want %+v", got, how, want)
	}
	for name, far := range map[string]Convolution{"another kernel": conv(32, 64, 64, 56, 5),
		"far larger": conv(32, 1024, 1024, 56, 3)} {
		if _, how := w.forConv(far, 0); how != byRule {
			t.Errorf("%s was taken for a relative", name)
		}
	}
}

// TestGradientsSummedOverTheBatch: they are kept apart for each sample up to a size only.
func TestGradientsSummedOverTheBatch(t *testing.T) {
	gradient := func(batch int64) int64 {
		c := convCase{x: []int64{batch, 512, 4, 4}, w: []int64{4000, 512, 1, 1},
			y: []int64{batch, 4000, 4, 4}, d: F32, scale: 1, shape: ConvShape{Stride: 1, Groups: 1}}
		return c.weightGrad()
	}
	if got := gradient(32); got != 32*4*512*4000 {
		t.Errorf("a batch of 32: %d", got)
	}
	if got, maps := gradient(128), int64(128*(512+4000)*16*4); got != maps+16 {
		t.Errorf("a batch of 128: %d, want %d", got, maps+16)
	}
	own, near := relative{maps: 7, summed: mostSummed + 1}, relative{summed: 9000}
	if got := own.after(&near, 9000); got != 7 {
		t.Errorf("after a smaller one: %d", got)
	}
}

// TestWhichWorkspacesAreCertain: a measured one and the patches of a vision model are; one that a
// neighbour or a rule stands for makes the peak approximate, and a rule makes it a guess.
func TestWhichWorkspacesAreCertain(t *testing.T) {
	conv := func(batch, in, side, kernel, stride int64) convCase {
		out := side / stride
		return convCase{x: []int64{batch, in, side, side}, w: []int64{64, in, kernel, kernel},
			y: []int64{batch, 64, out, out}, d: F32, scale: 1,
			shape: ConvShape{Stride: stride, Dilation: 1, Groups: 1}}
	}
	first := conv(32, 64, 56, 3, 1)
	var w Workspaces
	w.AddConv(first.key(), ConvBytes{Forward: 700, InputGrad: 800, WeightGrad: 900})
	for name, c := range map[string]struct {
		conv         convCase
		known, guess bool
	}{
		"measured":    {first, true, false},
		"nearby":      {conv(33, 64, 56, 3, 1), false, false},
		"patches":     {conv(32, 3, 224, 16, 16), true, false},
		"by rule":     {conv(32, 64, 56, 7, 1), false, true},
		"far smaller": {conv(1, 64, 8, 3, 1), false, true},
	} {
		g := New(Options{Workspaces: func() *Workspaces { return &w }})
		bytes, known := g.convBytes(c.conv)
		if known != c.known || g.Guess != c.guess {
			t.Errorf("%s: known %v, guessed %v, want %v, %v", name, known, g.Guess, c.known, c.guess)
		}
		if want := (ConvBytes{700, 800, 900}); name == "measured" && bytes != want {
			t.Errorf("measured: %+v, want %+v", bytes, want)
		}
	}
}

// TestMeasuredRecurrentNetworks: measured sizes are returned for the same network alone; an
// LSTM is no GRU.
func TestMeasuredRecurrentNetworks(t *testing.T) {
	var w Workspaces
	lstm := RNN{Gates: 4, In: 32, Hidden: 48, Layers: 2, Directions: 1, Dropout: 0.1}
	gru := lstm
	gru.Gates = 3
	for kind, r := range map[string]RNN{"lstm": lstm, "gru": gru} {
		k := r.key(8, 20, F16)
		want := Recurrent{Kind: kind, Batch: 8, Steps: 20, In: 32, Hidden: 48, Layers: 2, Directions: 1,
			Dropout: true, DType: "fp16"}
		if k != want {
			t.Errorf("%+v, want %+v", k, want)
		}
	}
	measured := RNNBytes{Workspace: 12345, Reserve: 678}
	w.AddRNN(lstm.key(8, 20, F16), measured)
	g := New(Options{Workspaces: func() *Workspaces { return &w }})
	if got := g.rnnBytes(lstm, 8, 20, F16); got != measured || g.Approx {
		t.Errorf("measured: %+v, approximate %v", got, g.Approx)
	}
	if got := g.rnnBytes(gru, 8, 20, F16); got == measured {
		t.Error("a GRU took what an LSTM takes")
	}
}
