package family

import (
	"fmt"

	"memroom/event"
	"memroom/plan/tape"
)

// mlp is Linear, ReLU, ... Linear with MSELoss.
func mlp(c *Config, r Run) (*Model, error) {
	in, hidden, layers, out := c.Int(required, "in"), c.Int(required, "hidden"), c.Int(required, "layers"), c.Int(required, "out")
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
