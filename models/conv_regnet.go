package models

import (
	"math"

	"memroom/tape"
)

// regnetStages turns RegNet's line of widths into stages, as torchvision's BlockParams does.
func regnetStages(s regnetSpec) (widths, depths, groups []int64) {
	var list []int64
	for i := range s.depth {
		cont := float64(i)*s.wa + float64(s.w0)
		capacity := math.Round(math.Log(cont/float64(s.w0)) / math.Log(s.wm))
		w := math.Round(float64(s.w0)*math.Pow(s.wm, capacity)/8) * 8
		list = append(list, int64(w))
	}
	for _, w := range list {
		if n := len(widths); n == 0 || widths[n-1] != w {
			widths, depths = append(widths, w), append(depths, 0)
		}
		depths[len(depths)-1]++
	}
	for i, w := range widths {
		g := min(s.group, w)
		widths[i] = divisibleBy(float64(w), g)
		groups = append(groups, g)
	}
	return widths, depths, groups
}

func divisibleBy(v float64, d int64) int64 {
	n := max(d, int64(v+float64(d)/2)/d*d)
	if float64(n) < 0.9*v {
		n += d
	}
	return n
}

func regBlock(m *tape.Module, in, out, stride, group int64, se float64) step {
	var proj step
	if in != out || stride != 1 {
		proj = convNormAct(m, "proj", in, out, 1, stride, 1, "")
	}
	f := m.Child("f")
	steps := []step{convNormAct(f, "a", in, out, 1, 1, 1, "relu"),
		convNormAct(f, "b", out, out, 3, stride, out/group, "relu")}
	if se > 0 {
		steps = append(steps, squeeze(f.Child("se"), out, int64(math.Round(se*float64(in))),
			"relu_new", "sigmoid"))
	}
	steps = append(steps, convNormAct(f, "c", out, out, 1, 1, 1, ""))
	body := sequential(steps...)
	return func(c *ctx, x *tape.Tensor) *tape.Tensor {
		fr := c.Enter(x)
		var h *tape.Tensor
		fr.Set(&h, x)
		if proj != nil {
			fr.Set(&h, c.Add(proj(c, x), body(c, x)))
		} else {
			fr.Set(&h, c.Add(x, body(c, x)))
		}
		return fr.Leave(c.ReluInPlace(h))
	}
}
