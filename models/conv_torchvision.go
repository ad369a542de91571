package models

import (
	"fmt"
	"slices"
	"strings"

	"memroom/tape"
)

// step is one layer of a network: a module's forward.
type step func(c *ctx, x *tape.Tensor) *tape.Tensor

// sequential is nn.Sequential.
func sequential(steps ...step) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var h *tape.Tensor
		f.Set(&h, x)
		for _, s := range steps {
			f.Set(&h, s(c, h))
		}
		return f.Leave(h)
	}
}

// visionNet builds one torchvision architecture under root; it returns the features and the
// classifier.
type visionNet func(root *tape.Module, name string, classes, image int64) (step, error)

// visionNets maps the beginning of a name to its builder, the longest match first.
var visionNets = map[string]visionNet{
	"resnet": resnetTV, "resnext": resnetTV, "wide_resnet": resnetTV, "vgg": vgg,
	"mobilenet_v2": mobilenetV2, "mobilenet_v3": mobilenetV3,
	"efficientnet": efficientnet, "densenet": densenet, "convnext": convnextTV, "alexnet": alexnet,
	"regnet": regnet, "vit": vitTV, "swin": swinTV,
	"squeezenet": squeezenet, "mnasnet": mnasnet, "shufflenet_v2": shufflenet,
}

// visionNetOf returns the builder of a torchvision model, nil where none is known by its name.
func visionNetOf(name string) (build visionNet) {
	best := ""
	for prefix, b := range visionNets {
		if strings.HasPrefix(name, prefix) && len(prefix) > len(best) {
			best, build = prefix, b
		}
	}
	return build
}

// torchvision is a torchvision classification model with CrossEntropyLoss.
func torchvision(c *Config, r Run) (*Model, error) {
	name := c.Str("", "name")
	classes := c.Int(1000, "num_classes")
	if r.Image == 0 {
		r.Image = c.Int(224, "image_size")
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	build := visionNetOf(name)
	if build == nil {
		known := make([]string, 0, len(visionNets))
		for k := range visionNets {
			known = append(known, k+"*")
		}
		slices.Sort(known)
		return nil,
			fmt.Errorf("torchvision model %q is not described: known are %s. For any other model: memroom "+
				"plan --rehearse -- python train.py", name, strings.Join(known, ", "))
	}
	root := tape.NewModule()
	net, err := build(root, name, classes, r.Image)
	if err != nil {
		return nil, err
	}
	m := &Model{Root: root, Run: r}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		x := g.Input(r.Float, r.Batch, 3, r.Image, r.Image)
		if r.ChannelsLast {
			x = g.ToChannelsLastInput(x)
		}
		return []*tape.Tensor{x, g.Input(tape.I64, r.Batch)}
	}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		logits := net(x, in[0])
		var loss *tape.Tensor
		x.In("loss", func() { loss = x.plainLoss(logits, in[1]) })
		return loss
	}
	return m, nil
}

func bn(m *tape.Module, name string, ch int64) step {
	c := m.Child(name)
	w, b := c.Param("weight", ch), c.Param("bias", ch)
	c.Buffer(tape.F32, ch)
	c.Buffer(tape.F32, ch)
	c.Buffer(tape.I64, 1)
	return func(x *ctx, t *tape.Tensor) *tape.Tensor {
		var out *tape.Tensor
		x.In(c.Path(), func() { out = x.BatchNorm(t, w, b) })
		return out
	}
}

func convStep(m *tape.Module, name string, in, out, k, stride, pad, groups int64, bias bool) step {
	l := conv(m, name, in, out, k, stride, pad, groups, bias)
	path := m.Path() + "." + name
	return func(x *ctx, t *tape.Tensor) *tape.Tensor {
		var y *tape.Tensor
		x.In(path, func() { y = l.run(x, t) })
		return y
	}
}

func linearStep(m *tape.Module, name string, in, out int64) step {
	l := linear(m, name, in, out, true)
	path := m.Path() + "." + name
	return func(x *ctx, t *tape.Tensor) *tape.Tensor {
		var y *tape.Tensor
		x.In(path, func() { y = l.run(x.Graph, t) })
		return y
	}
}

// act is an activation module; in place unless said otherwise.
func act(name string) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		switch name {
		case "relu":
			return c.ReluInPlace(x)
		case "hardswish", "silu", "relu6":
			return c.ClampInPlaceInput(name, x)
		}
		return c.Activation(name, x)
	}
}

func flatten(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Reshape(x, x.Shape[0], -1) }

func globalPool(c *ctx, x *tape.Tensor) *tape.Tensor { return c.GlobalPool(x) }

func maxPool(k, stride, pad int64) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.MaxPool(x, k, stride, pad) }
}

func dropStep(p float64, inPlace bool) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		if inPlace {
			return c.DropoutInPlace(x, p)
		}
		return c.Dropout(x, p)
	}
}

// convNormAct is torchvision's Conv2dNormActivation: a Sequential of its own.
func convNormAct(m *tape.Module, name string, in, out, k, stride, groups int64,
	activation string) step {
	s := m.Child(name)
	steps := []step{convStep(s, "0", in, out, k, stride, (k-1)/2, groups, false), bn(s, "1", out)}
	if activation != "" {
		steps = append(steps, act(activation))
	}
	return sequential(steps...)
}

// --- ResNet, ResNeXt, Wide ResNet

type resnetSpec struct {
	blocks       [4]int64
	bottleneck   bool
	groups, base int64
}

var resnets = map[string]resnetSpec{
	"resnet18": {[4]int64{2, 2, 2, 2}, false, 1, 64}, "resnet34": {[4]int64{3, 4, 6, 3}, false, 1,
		64},
	"resnet50": {[4]int64{3, 4, 6, 3}, true, 1, 64}, "resnet101": {[4]int64{3, 4, 23, 3}, true, 1,
		64}, "resnet152": {[4]int64{3, 8, 36, 3}, true, 1, 64},
	"resnext50_32x4d": {[4]int64{3, 4, 6, 3}, true, 32, 4}, "resnext101_32x8d": {[4]int64{3, 4, 23,
		3}, true, 32, 8}, "resnext101_64x4d": {[4]int64{3, 4, 23, 3}, true, 64, 4},
	"wide_resnet50_2":  {[4]int64{3, 4, 6, 3}, true, 1, 128},
	"wide_resnet101_2": {[4]int64{3, 4, 23, 3}, true, 1, 128},
}

func unknownVariant(name string, known []string) error {
	slices.Sort(known)
	return fmt.Errorf("torchvision model %q is not known: there are %s", name,
		strings.Join(known, ", "))
}

func keys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

func resnetTV(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := resnets[name]
	if !ok {
		return nil, unknownVariant(name, keys(resnets))
	}
	steps := []step{convStep(root, "conv1", 3, 64, 7, 2, 3, 1, false), bn(root, "bn1", 64),
		act("relu"), maxPool(3, 2, 1)}
	in := int64(64)
	for i, n := range spec.blocks {
		stage := root.Child(fmt.Sprintf("layer%d", i+1))
		planes := int64(64) << i
		var blocks []step
		for j := range n {
			stride := int64(1)
			if i > 0 && j == 0 {
				stride = 2
			}
			var b step
			b, in = resBlock(stage.Child(fmt.Sprint(j)), spec, in, planes, stride)
			blocks = append(blocks, b)
		}
		steps = append(steps, sequential(blocks...))
	}
	steps = append(steps, globalPool, flatten, linearStep(root, "fc", in, classes))
	return sequential(steps...), nil
}

func resBlock(m *tape.Module, spec resnetSpec, in, planes, stride int64) (step, int64) {
	out := planes
	var body []step
	if spec.bottleneck {
		out = planes * 4
		width := planes * spec.base / 64 * spec.groups
		body = []step{convStep(m, "conv1", in, width, 1, 1, 0, 1, false), bn(m, "bn1", width),
			act("relu"),
			convStep(m, "conv2", width, width, 3, stride, 1, spec.groups, false),
			bn(m, "bn2", width), act("relu"),
			convStep(m, "conv3", width, out, 1, 1, 0, 1, false), bn(m, "bn3", out)}
	} else {
		body = []step{convStep(m, "conv1", in, planes, 3, stride, 1, 1, false),
			bn(m, "bn1", planes), act("relu"),
			convStep(m, "conv2", planes, planes, 3, 1, 1, 1, false), bn(m, "bn2", planes)}
	}
	var down step
	if stride != 1 || in != out {
		d := m.Child("downsample")
		down = sequential(convStep(d, "0", in, out, 1, stride, 0, 1, false), bn(d, "1", out))
	}
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var identity, y *tape.Tensor
		f.Set(&identity, x)
		f.Set(&y, x)
		for _, s := range body {
			f.Set(&y, s(c, y))
		}
		if down != nil {
			f.Set(&identity, down(c, x))
		}
		f.Set(&y, c.AddInPlace(y, identity))
		f.Set(&y, c.ReluInPlace(y))
		return f.Leave(y)
	}, out
}

// --- VGG, AlexNet

var vggs = map[string]string{
	"vgg11": "64 M 128 M 256 256 M 512 512 M 512 512 M",
	"vgg13": "64 64 M 128 128 M 256 256 M 512 512 M 512 512 M",
	"vgg16": "64 64 M 128 128 M 256 256 256 M 512 512 512 M 512 512 512 M",
	"vgg19": "64 64 M 128 128 M 256 256 256 256 M 512 512 512 512 M 512 512 512 512 M",
}

func vgg(root *tape.Module, name string, classes, _ int64) (step, error) {
	plain := strings.TrimSuffix(name, "_bn")
	layout, ok := vggs[plain]
	if !ok {
		return nil, unknownVariant(name, keys(vggs))
	}
	feat := root.Child("features")
	var steps []step
	in, i := int64(3), 0
	for _, f := range strings.Fields(layout) {
		if f == "M" {
			steps = append(steps, maxPool(2, 2, 0))
			i++
			continue
		}
		var out int64
		fmt.Sscan(f, &out)
		steps = append(steps, convStep(feat, fmt.Sprint(i), in, out, 3, 1, 1, 1, true))
		i++
		if plain != name {
			steps = append(steps, bn(feat, fmt.Sprint(i), out))
			i++
		}
		steps = append(steps, act("relu"))
		i++
		in = out
	}
	cls := root.Child("classifier")
	head := sequential(linearStep(cls, "0", 512*7*7, 4096), act("relu"), dropStep(0.5, false),
		linearStep(cls, "3", 4096, 4096), act("relu"), dropStep(0.5, false),
		linearStep(cls, "6", 4096, classes))
	pool := func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.AvgPool(x, 7, 7) }
	return sequential(sequential(steps...), pool, flatten, head), nil
}

func alexnet(root *tape.Module, _ string, classes, _ int64) (step, error) {
	f := root.Child("features")
	feat := sequential(convStep(f, "0", 3, 64, 11, 4, 2, 1, true), act("relu"), maxPool(3, 2, 0),
		convStep(f, "3", 64, 192, 5, 1, 2, 1, true), act("relu"), maxPool(3, 2, 0),
		convStep(f, "6", 192, 384, 3, 1, 1, 1, true), act("relu"),
		convStep(f, "8", 384, 256, 3, 1, 1, 1, true), act("relu"),
		convStep(f, "10", 256, 256, 3, 1, 1, 1, true), act("relu"), maxPool(3, 2, 0))
	cls := root.Child("classifier")
	head := sequential(dropStep(0.5, false), linearStep(cls, "1", 256*6*6, 4096), act("relu"),
		dropStep(0.5, false), linearStep(cls, "4", 4096, 4096), act("relu"),
		linearStep(cls, "6", 4096, classes))
	pool := func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.AvgPool(x, 6, 6) }
	return sequential(feat, pool, flatten, head), nil
}

// divisible rounds channels to a multiple of eight, as MobileNet does.
func divisible(v float64) int64 {
	n := max(8, (int64(v)+4)/8*8)
	if float64(n) < 0.9*v {
		n += 8
	}
	return n
}

// --- MobileNet

func mobilenetV2(root *tape.Module, _ string, classes, _ int64) (step, error) {
	feat := root.Child("features")
	steps := []step{convNormAct(feat, "0", 3, 32, 3, 2, 1, "relu6")}
	in, at := int64(32), 1
	for _, s := range [][4]int64{{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2}, {6, 64, 4, 2},
		{6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}} {
		for i := range s[2] {
			stride := int64(1)
			if i == 0 {
				stride = s[3]
			}
			steps = append(steps, invertedV2(feat.Child(fmt.Sprint(at)).Child("conv"), in, s[1],
				stride, s[0]))
			in = s[1]
			at++
		}
	}
	steps = append(steps, convNormAct(feat, fmt.Sprint(at), in, 1280, 1, 1, 1, "relu6"))
	cls := root.Child("classifier")
	return sequential(sequential(steps...), globalPool, flatten,
		sequential(dropStep(0.2, false), linearStep(cls, "1", 1280, classes))), nil
}

func invertedV2(m *tape.Module, in, out, stride, expand int64) step {
	hidden := in * expand
	var steps []step
	i := 0
	next := func() string { i++; return fmt.Sprint(i - 1) }
	if expand != 1 {
		steps = append(steps, convNormAct(m, next(), in, hidden, 1, 1, 1, "relu6"))
	}
	steps = append(steps, convNormAct(m, next(), hidden, hidden, 3, stride, hidden, "relu6"),
		convStep(m, next(), hidden, out, 1, 1, 0, 1, false), bn(m, next(), out))
	body := sequential(steps...)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		if stride == 1 && in == out {
			f := c.Enter(x)
			return f.Leave(c.Add(x, body(c, x)))
		}
		return body(c, x)
	}
}

type bneck struct {
	in, k, expanded, out int64
	se                   bool
	act                  string
	stride               int64
}

var mobilenetsV3 = map[string]struct {
	blocks []bneck
	last   int64
}{
	"mobilenet_v3_large": {[]bneck{{16, 3, 16, 16, false, "relu", 1},
		{16, 3, 64, 24, false, "relu", 2}, {24, 3, 72, 24, false, "relu", 1},
		{24, 5, 72, 40, true, "relu", 2},
		{40, 5, 120, 40, true, "relu", 1}, {40, 5, 120, 40, true, "relu", 1},
		{40, 3, 240, 80, false, "hardswish", 2}, {80, 3, 200, 80, false, "hardswish", 1},
		{80, 3, 184, 80, false, "hardswish", 1}, {80, 3, 184, 80, false, "hardswish", 1},
		{80, 3, 480, 112, true, "hardswish", 1}, {112, 3, 672, 112, true, "hardswish", 1},
		{112, 5, 672, 160, true, "hardswish", 2}, {160, 5, 960, 160, true, "hardswish", 1},
		{160, 5, 960, 160, true, "hardswish", 1}}, 1280},
	"mobilenet_v3_small": {[]bneck{{16, 3, 16, 16, true, "relu", 2},
		{16, 3, 72, 24, false, "relu", 2}, {24, 3, 88, 24, false, "relu", 1},
		{24, 5, 96, 40, true, "hardswish", 2},
		{40, 5, 240, 40, true, "hardswish", 1}, {40, 5, 240, 40, true, "hardswish", 1},
		{40, 5, 120, 48, true, "hardswish", 1}, {48, 5, 144, 48, true, "hardswish", 1},
		{48, 5, 288, 96, true, "hardswish", 2}, {96, 5, 576, 96, true, "hardswish", 1},
		{96, 5, 576, 96, true, "hardswish", 1}}, 1024},
}

func mobilenetV3(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := mobilenetsV3[name]
	if !ok {
		return nil, unknownVariant(name, keys(mobilenetsV3))
	}
	feat := root.Child("features")
	steps := []step{convNormAct(feat, "0", 3, spec.blocks[0].in, 3, 2, 1, "hardswish")}
	for i, b := range spec.blocks {
		steps = append(steps, invertedV3(feat.Child(fmt.Sprint(i+1)).Child("block"), b))
	}
	in := spec.blocks[len(spec.blocks)-1].out
	steps = append(steps, convNormAct(feat, fmt.Sprint(len(spec.blocks)+1), in, 6*in, 1, 1, 1,
		"hardswish"))
	cls := root.Child("classifier")
	head := sequential(linearStep(cls, "0", 6*in, spec.last), act("hardswish"), dropStep(0.2, true),
		linearStep(cls, "3", spec.last, classes))
	return sequential(sequential(steps...), globalPool, flatten, head), nil
}

func invertedV3(m *tape.Module, b bneck) step {
	var steps []step
	i := 0
	next := func() string { i++; return fmt.Sprint(i - 1) }
	if b.expanded != b.in {
		steps = append(steps, convNormAct(m, next(), b.in, b.expanded, 1, 1, 1, b.act))
	}
	steps = append(steps, convNormAct(m, next(), b.expanded, b.expanded, b.k, b.stride, b.expanded,
		b.act))
	if b.se {
		steps = append(steps, squeeze(m.Child(next()), b.expanded, divisible(float64(b.expanded/4)),
			"relu_new", "hardsigmoid"))
	}
	steps = append(steps, convNormAct(m, next(), b.expanded, b.out, 1, 1, 1, ""))
	return residualInPlace(sequential(steps...), b.stride == 1 && b.in == b.out, 0)
}

// residualInPlace adds the input to a block's result, in place.
func residualInPlace(body step, connect bool, depth float64) step {
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var y *tape.Tensor
		f.Set(&y, body(c, x))
		if connect {
			f.Set(&y, c.StochasticDepth(y, depth))
			f.Set(&y, c.AddInPlace(y, x))
		}
		return f.Leave(y)
	}
}

// squeeze is SqueezeExcitation.
func squeeze(m *tape.Module, ch, mid int64, inner, gate string) step {
	fc1, fc2 := convStep(m, "fc1", ch, mid, 1, 1, 0, 1, true),
		convStep(m, "fc2", mid, ch, 1, 1, 0, 1, true)
	activation := act(inner)
	if inner == "relu_new" {
		activation = func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Activation("relu", x) }
	}
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var s *tape.Tensor
		g := c.Enter(x)
		var y *tape.Tensor
		g.Set(&y, c.GlobalPool(x))
		g.Set(&y, fc1(c, y))
		g.Set(&y, activation(c, y))
		g.Set(&y, fc2(c, y))
		f.Set(&s, g.Leave(c.Activation(gate, y)))
		return f.Leave(c.Mul(s, x))
	}
}

// --- EfficientNet

type mbconv struct {
	expand, k, stride, in, out, n int64
	fused                         bool // one convolution instead of a depthwise one and a squeeze
}

// efficientnetsV2 have their own stages and a last layer of 1280 channels.
var efficientnetsV2 = map[string]struct {
	stages []mbconv
	drop   float64
}{
	"efficientnet_v2_s": {[]mbconv{{1, 3, 1, 24, 24, 2, true}, {4, 3, 2, 24, 48, 4, true},
		{4, 3, 2, 48, 64, 4, true}, {4, 3, 2, 64, 128, 6, false}, {6, 3, 1, 128, 160, 9, false},
		{6, 3, 2, 160, 256, 15, false}}, 0.2},
	"efficientnet_v2_m": {[]mbconv{{1, 3, 1, 24, 24, 3, true}, {4, 3, 2, 24, 48, 5, true},
		{4, 3, 2, 48, 80, 5, true}, {4, 3, 2, 80, 160, 7, false}, {6, 3, 1, 160, 176, 14, false},
		{6, 3, 2, 176, 304, 18, false}, {6, 3, 1, 304, 512, 5, false}}, 0.3},
	"efficientnet_v2_l": {[]mbconv{{1, 3, 1, 32, 32, 4, true}, {4, 3, 2, 32, 64, 7, true},
		{4, 3, 2, 64, 96, 7, true}, {4, 3, 2, 96, 192, 10, false}, {6, 3, 1, 192, 224, 19, false},
		{6, 3, 2, 224, 384, 25, false}, {6, 3, 1, 384, 640, 7, false}}, 0.4},
}

var efficientnets = map[string]struct{ width, depth, drop float64 }{
	"efficientnet_b0": {1, 1, 0.2}, "efficientnet_b1": {1, 1.1, 0.2},
	"efficientnet_b2": {1.1, 1.2, 0.3}, "efficientnet_b3": {1.2, 1.4, 0.3},
	"efficientnet_b4": {1.4, 1.8, 0.4}, "efficientnet_b5": {1.6, 2.2, 0.4},
	"efficientnet_b6": {1.8, 2.6, 0.5}, "efficientnet_b7": {2.0, 3.1, 0.5},
}

func efficientnet(root *tape.Module, name string, classes, _ int64) (step, error) {
	stages, drop, lastChannel, err := efficientStages(name)
	if err != nil {
		return nil, err
	}
	total := int64(0)
	for _, s := range stages {
		total += s.n
	}
	feat := root.Child("features")
	steps := []step{convNormAct(feat, "0", 3, stages[0].in, 3, 2, 1, "silu")}
	id := int64(0)
	for i, s := range stages {
		stage := feat.Child(fmt.Sprint(i + 1))
		var blocks []step
		for j := range s.n {
			b := s
			if j > 0 {
				b.in, b.stride = b.out, 1
			}
			blocks = append(blocks, mbBlock(stage.Child(fmt.Sprint(j)).Child("block"), b,
				0.2*float64(id)/float64(total)))
			id++
		}
		steps = append(steps, sequential(blocks...))
	}
	last := stages[len(stages)-1].out
	setDefault(&lastChannel, 4*last)
	steps = append(steps, convNormAct(feat, fmt.Sprint(len(stages)+1), last, lastChannel, 1, 1, 1,
		"silu"))
	cls := root.Child("classifier")
	return sequential(sequential(steps...), globalPool, flatten,
		sequential(dropStep(drop, true), linearStep(cls, "1", lastChannel, classes))), nil
}

// efficientStages returns the stages of a variant, its dropout, and the channels of its last layer
// if not four times as many.
func efficientStages(name string) (stages []mbconv, drop float64, last int64, err error) {
	if v2, ok := efficientnetsV2[name]; ok {
		return v2.stages, v2.drop, 1280, nil
	}
	spec, ok := efficientnets[name]
	if !ok {
		return nil, 0, 0, unknownVariant(name, append(keys(efficientnets),
			keys(efficientnetsV2)...))
	}
	stages = []mbconv{{1, 3, 1, 32, 16, 1, false}, {6, 3, 2, 16, 24, 2, false},
		{6, 5, 2, 24, 40, 2, false}, {6, 3, 2, 40, 80, 3, false}, {6, 5, 1, 80, 112, 3, false},
		{6, 5, 2, 112, 192, 4, false}, {6, 3, 1, 192, 320, 1, false}}
	for i := range stages {
		s := &stages[i]
		s.in, s.out = divisible(float64(s.in)*spec.width), divisible(float64(s.out)*spec.width)
		n := float64(s.n) * spec.depth
		s.n = int64(n)
		if float64(s.n) < n {
			s.n++
		}
	}
	return stages, spec.drop, 0, nil
}

func mbBlock(m *tape.Module, b mbconv, depth float64) step {
	hidden := divisible(float64(b.in * b.expand))
	var steps []step
	i := 0
	next := func() string { i++; return fmt.Sprint(i - 1) }
	if b.fused {
		if hidden != b.in {
			steps = append(steps, convNormAct(m, next(), b.in, hidden, b.k, b.stride, 1, "silu"),
				convNormAct(m, next(), hidden, b.out, 1, 1, 1, ""))
		} else {
			steps = append(steps, convNormAct(m, next(), b.in, b.out, b.k, b.stride, 1, "silu"))
		}
		return residualInPlace(sequential(steps...), b.stride == 1 && b.in == b.out, depth)
	}
	if hidden != b.in {
		steps = append(steps, convNormAct(m, next(), b.in, hidden, 1, 1, 1, "silu"))
	}
	steps = append(steps, convNormAct(m, next(), hidden, hidden, b.k, b.stride, hidden, "silu"),
		squeeze(m.Child(next()), hidden, max(1, b.in/4), "silu", "sigmoid"),
		convNormAct(m, next(), hidden, b.out, 1, 1, 1, ""))
	return residualInPlace(sequential(steps...), b.stride == 1 && b.in == b.out, depth)
}

// --- DenseNet

var densenets = map[string]struct {
	growth, init int64
	blocks       []int64
}{
	"densenet121": {32, 64, []int64{6, 12, 24, 16}}, "densenet161": {48, 96,
		[]int64{6, 12, 36, 24}},
	"densenet169": {32, 64, []int64{6, 12, 32, 32}}, "densenet201": {32, 64,
		[]int64{6, 12, 48, 32}},
}

func densenet(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := densenets[name]
	if !ok {
		return nil, unknownVariant(name, keys(densenets))
	}
	feat := root.Child("features")
	steps := []step{convStep(feat, "conv0", 3, spec.init, 7, 2, 3, 1, false),
		bn(feat, "norm0", spec.init), act("relu"), maxPool(3, 2, 1)}
	ch := spec.init
	for i, n := range spec.blocks {
		steps = append(steps, denseBlock(feat.Child(fmt.Sprintf("denseblock%d", i+1)), ch, n,
			spec.growth))
		ch += n * spec.growth
		if i < len(spec.blocks)-1 {
			t := feat.Child(fmt.Sprintf("transition%d", i+1))
			pool := func(c *ctx, x *tape.Tensor) *tape.Tensor {
				return c.AvgPool(x, x.Shape[2]/2,
					x.Shape[3]/2)
			}
			steps = append(steps, sequential(bn(t, "norm", ch), act("relu"),
				convStep(t, "conv", ch, ch/2, 1, 1, 0, 1, false), pool))
			ch /= 2
		}
	}
	steps = append(steps, bn(feat, "norm5", ch))
	body, cls := sequential(steps...), linearStep(root, "classifier", ch, classes)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var features, out *tape.Tensor
		f.Set(&features, body(c, x))
		f.Set(&out, c.ReluInPlace(features))
		f.Set(&out, c.GlobalPool(out))
		f.Set(&out, flatten(c, out))
		f.Set(&out, cls(c, out))
		return f.Leave(out)
	}, nil
}

func denseBlock(m *tape.Module, ch, n, growth int64) step {
	var layers []func(c *ctx, list []*tape.Tensor) *tape.Tensor
	for i := range n {
		l := m.Child(fmt.Sprintf("denselayer%d", i+1))
		norm1, conv1 := bn(l, "norm1", ch+i*growth), convStep(l, "conv1", ch+i*growth, 4*growth, 1,
			1, 0, 1, false)
		norm2, conv2 := bn(l, "norm2", 4*growth), convStep(l, "conv2", 4*growth, growth, 3, 1, 1, 1,
			false)
		layers = append(layers, func(c *ctx, list []*tape.Tensor) *tape.Tensor {
			f := c.Enter()
			var joined, mid, out *tape.Tensor
			g := c.Enter()
			g.Set(&joined, c.Cat(1, slices.Clone(list)...))
			f.Set(&mid, g.Leave(conv1(c, c.ReluInPlace(norm1(c, joined)))))
			f.Set(&out, conv2(c, c.ReluInPlace(norm2(c, mid))))
			return f.Leave(out)
		})
	}
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		list := []*tape.Tensor{x}
		for _, l := range layers {
			list = append(list, f.Keep(l(c, list)))
		}
		return f.Leave(c.Cat(1, list...))
	}
}

// --- ConvNeXt

var convnexts = map[string]struct {
	ch, n []int64
	depth float64
}{
	"convnext_tiny":  {[]int64{96, 192, 384, 768}, []int64{3, 3, 9, 3}, 0.1},
	"convnext_small": {[]int64{96, 192, 384, 768}, []int64{3, 3, 27, 3}, 0.4},
	"convnext_base":  {[]int64{128, 256, 512, 1024}, []int64{3, 3, 27, 3}, 0.5},
	"convnext_large": {[]int64{192, 384, 768, 1536}, []int64{3, 3, 27, 3}, 0.5},
}

func layerNorm2d(m *tape.Module, name string, ch int64) step {
	n := layerNorm(m, name, ch)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var y *tape.Tensor
		f.Set(&y, c.Permute(x, 0, 2, 3, 1))
		f.Set(&y, n.layer(c.Graph, y))
		f.Set(&y, c.Permute(y, 0, 3, 1, 2))
		return f.Leave(y)
	}
}

func convnextTV(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := convnexts[name]
	if !ok {
		return nil, unknownVariant(name, keys(convnexts))
	}
	feat := root.Child("features")
	stem := feat.Child("0")
	steps := []step{sequential(convStep(stem, "0", 3, spec.ch[0], 4, 4, 0, 1, true),
		layerNorm2d(stem, "1", spec.ch[0]))}
	total := int64(0)
	for _, n := range spec.n {
		total += n
	}
	id, at := int64(0), 1
	for i, n := range spec.n {
		stage := feat.Child(fmt.Sprint(at))
		at++
		var blocks []step
		for j := range n {
			blocks = append(blocks, cnBlock(stage.Child(fmt.Sprint(j)), spec.ch[i],
				spec.depth*float64(id)/float64(total-1)))
			id++
		}
		steps = append(steps, sequential(blocks...))
		if i < len(spec.n)-1 {
			d := feat.Child(fmt.Sprint(at))
			at++
			steps = append(steps, sequential(layerNorm2d(d, "0", spec.ch[i]),
				convStep(d, "1", spec.ch[i], spec.ch[i+1], 2, 2, 0, 1, true)))
		}
	}
	last := spec.ch[len(spec.ch)-1]
	cls := root.Child("classifier")
	return sequential(sequential(steps...), globalPool, sequential(layerNorm2d(cls, "0", last),
		flatten, linearStep(cls, "2", last, classes))), nil
}

func cnBlock(m *tape.Module, ch int64, depth float64) step {
	scale := m.Param("layer_scale", ch, 1, 1)
	b := m.Child("block")
	dw := convStep(b, "0", ch, ch, 7, 1, 3, ch, true)
	ln := layerNorm(b, "2", ch)
	l1, l2 := linearStep(b, "3", ch, 4*ch), linearStep(b, "5", 4*ch, ch)
	block := sequential(dw,
		func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Permute(x, 0, 2, 3, 1) },
		func(c *ctx, x *tape.Tensor) *tape.Tensor { return ln.layer(c.Graph, x) }, l1,
		func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Activation("gelu", x) }, l2,
		func(c *ctx, x *tape.Tensor) *tape.Tensor { return c.Permute(x, 0, 3, 1, 2) })
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var y *tape.Tensor
		f.Set(&y, c.Mul(scale.Tensor, block(c, x)))
		f.Set(&y, c.StochasticDepth(y, depth))
		f.Set(&y, c.AddInPlace(y, x))
		return f.Leave(y)
	}
}

// --- RegNet

type regnetSpec struct {
	depth, w0, group int64
	wa, wm, se       float64
}

var regnets = map[string]regnetSpec{
	"regnet_y_400mf": {16, 48, 8, 27.89, 2.09, 0.25}, "regnet_y_800mf": {14, 56, 16, 38.84, 2.4,
		0.25}, "regnet_y_1_6gf": {27, 48, 24, 20.71, 2.65, 0.25},
	"regnet_y_3_2gf": {21, 80, 24, 42.63, 2.66, 0.25}, "regnet_y_8gf": {17, 192, 56, 76.82, 2.19,
		0.25}, "regnet_x_400mf": {22, 24, 16, 24.48, 2.54, 0},
	"regnet_x_800mf": {16, 56, 16, 35.73, 2.28, 0}, "regnet_x_1_6gf": {18, 80, 24, 34.01, 2.25, 0},
	"regnet_x_3_2gf": {25, 88, 48, 26.31, 2.25, 0},
}

func regnet(root *tape.Module, name string, classes, _ int64) (step, error) {
	spec, ok := regnets[name]
	if !ok {
		return nil, unknownVariant(name, keys(regnets))
	}
	widths, depths, group := regnetStages(spec)
	steps := []step{convNormAct(root, "stem", 3, 32, 3, 2, 1, "relu")}
	trunk := root.Child("trunk_output")
	in := int64(32)
	var stages []step
	for i := range widths {
		stage := trunk.Child(fmt.Sprintf("block%d", i+1))
		var blocks []step
		for j := range depths[i] {
			stride := int64(1)
			if j == 0 {
				stride = 2
			}
			blocks = append(blocks, regBlock(stage.Child(fmt.Sprintf("block%d-%d", i+1, j)), in,
				widths[i], stride, group[i], spec.se))
			in = widths[i]
		}
		stages = append(stages, sequential(blocks...))
	}
	steps = append(steps, sequential(stages...), globalPool, flatten,
		linearStep(root, "fc", in, classes))
	return sequential(steps...), nil
}
