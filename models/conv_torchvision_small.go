package models

import (
	"fmt"
	"strings"

	"memroom/tape"
)

// meanImage is x.mean([2, 3]).
func meanImage(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Mean(x, false, 2, 3) }

// --- SqueezeNet

// the first convolution, then poolings (M) and fires (squeeze, expand)
var squeezenets = map[string]string{
	"squeezenet1_0": "96x7 M 16,64 16,64 32,128 M 32,128 48,192 48,192 64,256 M 64,256",
	"squeezenet1_1": "64x3 M 16,64 16,64 M 32,128 32,128 M 48,192 48,192 64,256 64,256",
}

func squeezenet(root *tape.Module, name string, classes, _ int64) (step, error) {
	layout, ok := squeezenets[name]
	if !ok {
		return nil, unknownVariant(name, keys(squeezenets))
	}
	parts := strings.Fields(layout)
	var in, k int64
	fmt.Sscanf(parts[0], "%dx%d", &in, &k)
	feat := root.Child("features")
	steps := []step{convStep(feat, "0", 3, in, k, 2, 0, 1, true), act("relu")}
	for i, p := range parts[1:] {
		if p == "M" {
			steps = append(steps, func(c *ctx,
				x *tape.Tensor) *tape.Tensor {
				return c.MaxPoolCeil(x, 3, 2)
			})
			continue
		}
		var narrow, wide int64
		fmt.Sscanf(p, "%d,%d", &narrow, &wide)
		steps = append(steps, fire(feat.Child(fmt.Sprint(i+2)), in, narrow, wide))
		in = 2 * wide
	}
	cls := root.Child("classifier")
	head := sequential(dropStep(0.5, false), convStep(cls, "1", in, classes, 1, 1, 0, 1, true),
		act("relu"), globalPool)
	return sequential(sequential(steps...), head, flatten), nil
}

// fire squeezes channels and expands them by two convolutions that are joined.
func fire(m *tape.Module, in, narrow, wide int64) step {
	squeeze := convStep(m, "squeeze", in, narrow, 1, 1, 0, 1, true)
	one, three := convStep(m, "expand1x1", narrow, wide, 1, 1, 0, 1, true),
		convStep(m, "expand3x3", narrow, wide, 3, 1, 1, 1, true)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var h *tape.Tensor
		f.Set(&h, c.ReluInPlace(squeeze(c, x)))
		a := c.ReluInPlace(one(c, h))
		return f.Leave(c.Cat(1, a, c.ReluInPlace(three(c, h))))
	}
}

// --- MNASNet

var mnasnets = map[string]float64{"mnasnet0_5": 0.5, "mnasnet0_75": 0.75, "mnasnet1_0": 1,
	"mnasnet1_3": 1.3}

func mnasnet(root *tape.Module, name string, classes, _ int64) (step, error) {
	alpha, ok := mnasnets[name]
	if !ok {
		return nil, unknownVariant(name, keys(mnasnets))
	}
	var d []int64
	for _, w := range []float64{32, 16, 24, 40, 80, 96, 192, 320} {
		d = append(d, divisible(w*alpha))
	}
	l := root.Child("layers")
	steps := []step{convStep(l, "0", 3, d[0], 3, 2, 1, 1, false), bn(l, "1", d[0]), act("relu"),
		convStep(l, "3", d[0], d[0], 3, 1, 1, d[0], false), bn(l, "4", d[0]), act("relu"),
		convStep(l, "6", d[0], d[1], 1, 1, 0, 1, false), bn(l, "7", d[1])}
	// kernel, stride, expansion, repeats
	for i, s := range [][4]int64{{3, 2, 3, 3}, {5, 2, 3, 3}, {5, 2, 6, 3}, {3, 1, 6, 2},
		{5, 2, 6, 4}, {3, 1, 6, 1}} {
		stack := l.Child(fmt.Sprint(8 + i))
		var blocks []step
		for j := range s[3] {
			in, stride := d[i+2], int64(1)
			if j == 0 {
				in, stride = d[i+1], s[1]
			}
			blocks = append(blocks, mnasBlock(stack.Child(fmt.Sprint(j)).Child("layers"), in,
				d[i+2], s[0], stride, s[2]))
		}
		steps = append(steps, sequential(blocks...))
	}
	steps = append(steps, convStep(l, "14", d[7], 1280, 1, 1, 0, 1, false), bn(l, "15", 1280),
		act("relu"))
	cls := root.Child("classifier")
	return sequential(sequential(steps...), meanImage, sequential(dropStep(0.2, true),
		linearStep(cls, "1", 1280, classes))), nil
}

func mnasBlock(m *tape.Module, in, out, k, stride, expand int64) step {
	mid := in * expand
	body := sequential(convStep(m, "0", in, mid, 1, 1, 0, 1, false), bn(m, "1", mid), act("relu"),
		convStep(m, "3", mid, mid, k, stride, k/2, mid, false), bn(m, "4", mid), act("relu"),
		convStep(m, "6", mid, out, 1, 1, 0, 1, false), bn(m, "7", out))
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		if in != out || stride != 1 {
			return body(c, x)
		}
		f := c.Enter(x)
		return f.Leave(c.Add(body(c, x), x))
	}
}

// --- ShuffleNet V2

var shufflenets = map[string][5]int64{
	"shufflenet_v2_x0_5": {24, 48, 96, 192, 1024}, "shufflenet_v2_x1_0": {24, 116, 232, 464, 1024},
	"shufflenet_v2_x1_5": {24, 176, 352, 704, 1024}, "shufflenet_v2_x2_0": {24, 244, 488, 976,
		2048},
}

func shufflenet(root *tape.Module, name string, classes, _ int64) (step, error) {
	width, ok := shufflenets[name]
	if !ok {
		return nil, unknownVariant(name, keys(shufflenets))
	}
	convRelu := func(name string, in, out, k, stride int64) step {
		m := root.Child(name)
		return sequential(convStep(m, "0", in, out, k, stride, k/2, 1, false), bn(m, "1", out),
			act("relu"))
	}
	steps := []step{convRelu("conv1", 3, width[0], 3, 2), maxPool(3, 2, 1)}
	in := width[0]
	for i, repeats := range []int{4, 8, 4} {
		stage := root.Child(fmt.Sprintf("stage%d", i+2))
		var blocks []step
		for j := range repeats {
			blocks = append(blocks, shuffleBlock(stage.Child(fmt.Sprint(j)), in, width[i+1],
				j == 0))
			in = width[i+1]
		}
		steps = append(steps, sequential(blocks...))
	}
	steps = append(steps, convRelu("conv5", in, width[4], 1, 1), meanImage,
		linearStep(root, "fc", width[4], classes))
	return sequential(steps...), nil
}

// shuffleBlock works on half of the channels, or on all of them twice where it halves the image,
// and shuffles the result.
func shuffleBlock(m *tape.Module, in, out int64, down bool) step {
	half, from, stride := out/2, out/2, int64(1)
	one := func(c *ctx, x *tape.Tensor) *tape.Tensor { return x }
	b1 := m.Child("branch1")
	if down {
		from, stride = in, 2
		one = sequential(convStep(b1, "0", in, in, 3, 2, 1, in, false), bn(b1, "1", in),
			convStep(b1, "2", in, half, 1, 1, 0, 1, false), bn(b1, "3", half), act("relu"))
	}
	b2 := m.Child("branch2")
	two := sequential(convStep(b2, "0", from, half, 1, 1, 0, 1, false), bn(b2, "1", half),
		act("relu"), convStep(b2, "3", half, half, 3, stride, 1, half, false), bn(b2, "4", half),
		convStep(b2, "5", half, half, 1, 1, 0, 1, false), bn(b2, "6", half), act("relu"))
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var x1, x2, h *tape.Tensor
		if down {
			a := one(c, x)
			f.Set(&h, c.Cat(1, a, two(c, x)))
		} else {
			parts := c.Split(x, 1, half, half)
			f.Set(&x1, parts[0])
			f.Set(&x2, parts[1])
			f.Set(&h, c.Cat(1, x1, two(c, x2)))
		}
		f.Set(&h, c.shuffled(h))
		return f.Leave(h)
	}
}

// shuffled is channel_shuffle with two groups.
func (c *ctx) shuffled(x *tape.Tensor) *tape.Tensor {
	f := c.Enter(x)
	b, ch, h, w := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	var y *tape.Tensor
	f.Set(&y, c.View(x, b, 2, ch/2, h, w))
	f.Set(&y, c.Contiguous(c.Transpose(y, 1, 2)))
	f.Set(&y, c.View(y, b, ch, h, w))
	return f.Leave(y)
}
