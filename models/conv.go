package models

import "memroom/tape"

// convLayer is nn.Conv2d.
type convLayer struct {
	w, b                          *tape.Param
	stride, pad, groups, dilation int64
	flat                          bool // one-dimensional
}

func conv(m *tape.Module, name string, in, out, k, stride, pad, groups int64, bias bool) convLayer {
	c := m.Child(name)
	l := convLayer{w: c.Param("weight", out, in/groups, k, k), stride: stride, pad: pad,
		groups: groups, dilation: 1}
	if bias {
		l.b = c.Param("bias", out)
	}
	return l
}

func (l convLayer) run(c *ctx, x *tape.Tensor) *tape.Tensor {
	return c.Conv(x, l.w, l.b, tape.ConvShape{Stride: l.stride, Pad: l.pad, Groups: l.groups,
		Dilation: l.dilation, Flat: l.flat})
}
