package models

import (
	"fmt"

	"memroom/tape"
)

// pooledClassifier is the forward pass of ...ForImageClassification whose body returns a map and
// its mean. The body's output holds both until the loss exists.
func (c *ctx) pooledClassifier(in []*tape.Tensor, body func() (last, pooled *tape.Tensor),
	head step) *tape.Tensor {
	f := c.Enter()
	var last, pooled, logits *tape.Tensor
	f.Pair(&last, &pooled)(body())
	c.In("classifier", func() { f.Set(&logits, head(c, pooled)) })
	var loss *tape.Tensor
	c.In("loss", func() { loss = c.plainLoss(logits, in[1]) })
	return f.Leave(loss)
}

// convnextHF is ConvNextForImageClassification and its second version.
func convnextHF(c *Config, r Run) (*Model, error) {
	widths, depths := c.Ints([]int64{96, 192, 384, 768}, "hidden_sizes"),
		c.Ints([]int64{3, 3, 9, 3}, "depths")
	patch, ch, labels, act := c.Int(4, "patch_size"), c.Int(3, "num_channels"), c.Labels(),
		c.Str("gelu", "hidden_act")
	path, second := c.Float(0, "drop_path_rate"), c.Type() == "convnextv2"
	scaled := !second && c.Float(1e-6, "layer_scale_init_value") > 0
	if len(widths) != len(depths) || len(depths) == 0 {
		c.complain("hidden_sizes has %d entries and depths %d: they must agree", len(widths),
			len(depths))
	}
	setDefault(&r.Image, c.Int(224, "image_size"))
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child(c.Type())
	em := body.Child("embeddings")
	embed := []step{convStep(em, "patch_embeddings", ch, widths[0], patch, patch, 0, 1, true),
		layerNorm2d(em, "layernorm", widths[0])}
	total, id := int64(0), int64(0)
	for _, d := range depths {
		total += d
	}
	list := body.Child("encoder").Child("stages")
	var stages []step
	for i, depth := range depths {
		stage := list.Child(fmt.Sprint(i))
		var steps []step
		down := stage.Child("downsampling_layer")
		if i > 0 {
			steps = append(steps, layerNorm2d(down, "0", widths[i-1]),
				convStep(down, "1", widths[i-1], widths[i], 2, 2, 0, 1, true))
		}
		layers := stage.Child("layers")
		for j := range depth {
			rate := 0.0
			if total > 1 {
				rate = path * float64(id) / float64(total-1)
			}
			steps = append(steps, convnextLayer(layers.Child(fmt.Sprint(j)), widths[i], act, scaled,
				second, rate))
			id++
		}
		stages = append(stages, sequential(steps...))
	}
	last := widths[len(widths)-1]
	final, head := layerNorm(body, "layernorm", last), linearStep(root, "classifier", last, labels)
	m := &Model{Root: root, Inputs: imageInputs(r, ch), Layers: total, Run: r,
		Head: "ForImageClassification"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		return x.pooledClassifier(in, func() (out, pooled *tape.Tensor) {
			f := x.Enter()
			var e, h *tape.Tensor
			f.Set(&e, sequential(embed...)(x, in[0]))
			f.Set(&h, sequential(stages...)(x, e))
			out, pooled = h, final.layer(g, x.Mean(h, false, -2, -1))
			return f.Both(out, pooled)
		}, head)
	}
	return m, nil
}

func convnextLayer(m *tape.Module, ch int64, act string, scaled, second bool, path float64) step {
	var scale *tape.Param
	if scaled {
		scale = m.Param("layer_scale_parameter", ch)
	}
	dw, ln := convStep(m, "dwconv", ch, ch, 7, 1, 3, ch, true), layerNorm(m, "layernorm", ch)
	fc1 := linearStep(m, "pwconv1", ch, 4*ch)
	var response step
	if second {
		response = responseNorm(m.Child("grn"), 4*ch)
	}
	fc2 := linearStep(m, "pwconv2", 4*ch, ch)
	name := m.Path()
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var res, h *tape.Tensor
		c.In(name, func() {
			f.Set(&res, x)
			f.Set(&h, dw(c, x))
			f.Set(&h, c.Permute(h, 0, 2, 3, 1))
			f.Set(&h, ln.layer(c.Graph, h))
			f.Set(&h, fc1(c, h))
			f.Set(&h, c.Activation(act, h))
			if response != nil {
				f.Set(&h, response(c, h))
			}
			f.Set(&h, fc2(c, h))
			if scale != nil {
				f.Set(&h, c.Mul(scale.Tensor, h))
			}
			f.Set(&h, c.Permute(h, 0, 3, 1, 2))
			f.Set(&h, c.Add(res, c.DropPath(h, path)))
		})
		return f.Leave(h)
	}
}

// responseNorm is ConvNeXt V2's global response normalisation on [B, H, W, C].
func responseNorm(m *tape.Module, ch int64) step {
	w, b := m.Param("weight", 1, 1, 1, ch), m.Param("bias", 1, 1, 1, ch)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var size, rel, h *tape.Tensor
		f.Set(&size, c.VectorNorm(x, 1, 2))
		f.Set(&rel, c.Div(size, c.AddScalar(c.Mean(size, true, -1))))
		f.Set(&h, c.Add(c.Add(c.Mul(w.Tensor, c.Mul(x, rel)), b.Tensor), x))
		return f.Leave(h)
	}
}

// resnetHF is ResNetForImageClassification. Unlike torchvision's, its activations are not in place.
func resnetHF(c *Config, r Run) (*Model, error) {
	widths, depths := c.Ints([]int64{256, 512, 1024, 2048}, "hidden_sizes"),
		c.Ints([]int64{3, 4, 6, 3}, "depths")
	ch, embed, labels, act := c.Int(3, "num_channels"), c.Int(64, "embedding_size"), c.Labels(),
		c.Str("relu", "hidden_act")
	kind := c.Str("bottleneck", "layer_type")
	first, inside := c.Bool(false, "downsample_in_first_stage"),
		c.Bool(false, "downsample_in_bottleneck")
	if len(widths) != len(depths) || len(depths) == 0 {
		c.complain("hidden_sizes has %d entries and depths %d: they must agree", len(widths),
			len(depths))
	}
	if kind != "basic" && kind != "bottleneck" {
		c.complain("layer_type %q: expected basic or bottleneck", kind)
	}
	setDefault(&r.Image, 224)
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	body := root.Child("resnet")
	embedder := sequential(resnetConv(body.Child("embedder").Child("embedder"), ch, embed, 7, 2,
		act), maxPool(3, 2, 1))
	list := body.Child("encoder").Child("stages")
	in, total := embed, int64(0)
	var stages []step
	for i, depth := range depths {
		layers := list.Child(fmt.Sprint(i)).Child("layers")
		var blocks []step
		for j := range depth {
			stride := int64(1)
			if j == 0 && (i > 0 || first) {
				stride = 2
			}
			blocks = append(blocks, resnetLayer(layers.Child(fmt.Sprint(j)), kind == "bottleneck",
				in, widths[i], stride, inside, act))
			in = widths[i]
		}
		stages = append(stages, sequential(blocks...))
		total += depth
	}
	head := sequential(flatten, linearStep(root.Child("classifier"), "1", in, labels))
	m := &Model{Root: root, Inputs: imageInputs(r, ch), Layers: total, Run: r,
		Head: "ForImageClassification"}
	m.Loss = func(g *tape.Graph, in []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		return x.pooledClassifier(in, func() (last, pooled *tape.Tensor) {
			f := x.Enter()
			var e, h *tape.Tensor
			f.Set(&e, embedder(x, in[0]))
			f.Set(&h, sequential(stages...)(x, e))
			return f.Both(h, x.GlobalPool(h))
		}, head)
	}
	return m, nil
}

// resnetConv is ResNetConvLayer: convolution, norm and, unless it is the last of a block, an
// activation.
func resnetConv(m *tape.Module, in, out, k, stride int64, act string) step {
	steps := []step{convStep(m, "convolution", in, out, k, stride, k/2, 1, false),
		bn(m, "normalization", out)}
	if act != "" {
		steps = append(steps, func(c *ctx, x *tape.Tensor) *tape.Tensor {
			return c.Activation(act,
				x)
		})
	}
	return sequential(steps...)
}

func resnetLayer(m *tape.Module, bottleneck bool, in, out, stride int64, inside bool,
	act string) step {
	var short step
	if in != out || stride != 1 {
		s := m.Child("shortcut")
		short = sequential(convStep(s, "convolution", in, out, 1, stride, 0, 1, false),
			bn(s, "normalization", out))
	}
	l := m.Child("layer")
	var body []step
	if bottleneck {
		mid := out / 4
		one, two := int64(1), stride
		if inside {
			one, two = stride, 1
		}
		body = []step{resnetConv(l.Child("0"), in, mid, 1, one, "relu"),
			resnetConv(l.Child("1"), mid, mid, 3, two, "relu"),
			resnetConv(l.Child("2"), mid, out, 1, 1, "")}
	} else {
		body = []step{resnetConv(l.Child("0"), in, out, 3, stride, "relu"),
			resnetConv(l.Child("1"), out, out, 3, 1, "")}
	}
	run := sequential(body...)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		f := c.Enter(x)
		var res, h *tape.Tensor
		f.Set(&res, x)
		f.Set(&h, run(c, x))
		if short != nil {
			f.Set(&res, short(c, res))
		}
		c.AddInPlace(h, res)
		f.Set(&h, c.Activation(act, h))
		return f.Leave(h)
	}
}
