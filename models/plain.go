package models

import (
	"fmt"

	"memroom/event"
	"memroom/tape"
)

// mlp is Linear, ReLU, ... Linear with MSELoss.
func mlp(c *Config, r Run) (*Model, error) {
	in, hidden, layers, out := c.Int(required, "in"), c.Int(required, "hidden"),
		c.Int(required, "layers"), c.Int(required, "out")
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	var stack []lin
	width := in
	for i := range layers {
		stack = append(stack, linear(root, fmt.Sprint(2*i), width, hidden, true))
		width = hidden
	}
	stack = append(stack, linear(root, fmt.Sprint(2*layers), width, out, true))
	m := &Model{Root: root, Layers: layers, Run: r}
	m.Inputs = func(g *tape.Graph) []*tape.Tensor {
		return []*tape.Tensor{g.Input(r.Float, r.Batch, in), g.Input(r.Float, r.Batch, out)}
	}
	m.Loss = func(g *tape.Graph, batch []*tape.Tensor) *tape.Tensor {
		f := g.Enter()
		var x *tape.Tensor
		f.Set(&x, batch[0])
		for i, l := range stack {
			g.In(fmt.Sprint(2*i), func() { f.Set(&x, l.run(g, x)) })
			if i < len(stack)-1 {
				f.Set(&x, g.Activation("relu", x))
			}
		}
		y := f.Leave(x)
		var loss *tape.Tensor
		g.As(event.CategoryLoss, func() { loss = g.MSE(y, batch[1]) })
		return loss
	}
	return m, nil
}

// recurrent is Embedding, LSTM or GRU, Linear with CrossEntropyLoss over shifted tokens.
func recurrent(c *Config, r Run) (*Model, error) {
	vocab, embed, hidden, layers := c.Int(required, "vocab"), c.Int(required, "embed"),
		c.Int(required, "hidden"), c.Int(1, "layers")
	net := tape.RNN{Gates: 4, In: embed, Hidden: hidden, Layers: layers, Directions: 1}
	if layers > 1 {
		net.Dropout = c.Float(0.1, "dropout")
	}
	switch c.Type() {
	case "gru":
		net.Gates = 3
	case "bilstm":
		net.Directions = 2
	}
	if r.Seq < 2 {
		c.complain("a recurrent network needs a sequence of at least 2 tokens, not %d", r.Seq)
	}
	if err := c.Err(); err != nil {
		return nil, err
	}
	root := tape.NewModule()
	table := embedding(root, "emb", vocab, embed)
	m := root.Child("rnn")
	m.FlattenParams()
	in := embed
	for l := range layers {
		for _, suffix := range []string{"", "_reverse"}[:net.Directions] {
			n := net.Gates * hidden
			net.Weights = append(net.Weights, m.Param(fmt.Sprintf("weight_ih_l%d%s", l, suffix), n,
				in), m.Param(fmt.Sprintf("weight_hh_l%d%s", l, suffix), n, hidden),
				m.Param(fmt.Sprintf("bias_ih_l%d%s", l, suffix), n),
				m.Param(fmt.Sprintf("bias_hh_l%d%s", l, suffix), n))
		}
		in = hidden * net.Directions
	}
	out := linear(root, "out", in, vocab, true)
	model := &Model{Root: root, Layers: layers, Run: r, Inputs: tokenInputs(r)}
	model.Loss = func(g *tape.Graph, batch []*tape.Tensor) *tape.Tensor {
		x := newCtx(g, r)
		f := g.Enter()
		var logits *tape.Tensor
		ids := g.Slice(batch[0], 1, batch[0].Shape[1]-1)
		f.Set(&logits, x.recurrentForward(ids, table, net, out))
		target := g.Reshape(g.Slice(batch[0], 1, batch[0].Shape[1]-1), -1)
		var loss *tape.Tensor
		x.In("loss", func() {
			x.As(event.CategoryLoss, func() {
				loss = x.CrossEntropy(x.Reshape(logits, -1, vocab),
					target)
			})
		})
		return f.Leave(loss)
	}
	return model, nil
}

func (c *ctx) recurrentForward(ids *tape.Tensor, table *tape.Param, net tape.RNN,
	out lin) *tape.Tensor {
	f := c.Enter(ids)
	var h *tape.Tensor
	c.In("emb", func() { h = c.Embedding(ids, table) })
	var y *tape.Tensor
	c.In("rnn", func() { f.Set(&y, c.RunRNN(h, net)) })
	var logits *tape.Tensor
	c.In("out", func() { logits = c.logits(func() *tape.Tensor { return out.run(c.Graph, y) }) })
	return f.Leave(logits)
}
