package models

import "memroom/tape"

// alibi is build_alibi_tensor.
func (c *ctx) alibi(ones *tape.Tensor, nh int64, d tape.DType) *tape.Tensor {
	f := c.Enter(ones)
	b, s := ones.Shape[0], ones.Shape[1]
	var slopes, pos, a *tape.Tensor
	c.alibiSlopes(f, &slopes, nh)
	f.Set(&pos, c.Unsqueeze(c.Mul(c.AddScalar(c.Fresh("alibi", tape.F32, b, s)), ones), 1))
	f.Set(&a, c.Mul(c.Unsqueeze(slopes, -1), pos))
	return f.Leave(c.To(c.View(a, b*nh, 1, s), d))
}

// alibiSlopes makes a slope for each head; all variables live until the caller's function returns.
func (c *ctx) alibiSlopes(f *tape.Frame, slopes **tape.Tensor, nh int64) {
	pow2 := int64(1)
	for pow2*2 <= nh {
		pow2 *= 2
	}
	f.Keep(c.Fresh("alibi", tape.F32))
	f.Keep(c.Fresh("alibi", tape.I32, pow2))
	f.Set(slopes, c.Fresh("alibi", tape.F32, pow2))
	if pow2 != nh {
		f.Keep(c.Fresh("alibi", tape.F32))
		f.Keep(c.Fresh("alibi", tape.I32, nh-pow2))
		f.Set(slopes, c.Cat(0, *slopes, c.Fresh("alibi", tape.F32, nh-pow2)))
	}
}

// falconAlibi is build_alibi_tensor: as Bloom's, with integers for positions and slopes in bf16.
func (c *ctx) falconAlibi(ones *tape.Tensor, nh int64, d tape.DType) *tape.Tensor {
	f := c.Enter()
	b, s := ones.Shape[0], ones.Shape[1]
	var slopes, pos, a *tape.Tensor
	c.alibiSlopes(f, &slopes, nh)
	f.Set(&pos, c.Unsqueeze(c.Mul(c.AddScalar(c.Fresh("alibi", tape.I64, b, s)), ones), 1))
	f.Set(&a, c.Mul(c.To(c.Unsqueeze(slopes, -1), tape.BF16), pos))
	return f.Leave(c.To(c.View(a, b*nh, 1, s), d))
}

// biasMask joins the causal mask and the position bias into one mask a head.
func (c *ctx) biasMask(f *tape.Frame, nh int64, mask, alibi **tape.Tensor) {
	m := *mask
	b, n, d := m.Shape[0], m.Dim(-1), (*alibi).DType
	if m.DType == tape.Bool {
		zero, low := c.Fresh("mask", d), c.Fresh("mask", d)
		wide := c.Fresh("mask", d, b, 1, n, n)
		tape.Del(low, zero)
		f.Set(mask, wide)
	}
	f.Set(alibi, c.View(*alibi, b, nh, 1, n))
	scaled := c.Scale(*alibi)
	below := c.Fresh("mask", tape.Bool, b, 1, n, n)
	filled := c.Fresh("mask", d, b, nh, n, n)
	tape.Del(scaled, below)
	f.Set(mask, filled)
}

// mptAlibi is build_mpt_alibi_tensor, for the longest sequence.
func (c *ctx) mptAlibi(nh, longest int64) *tape.Tensor {
	f := c.Enter()
	pow2 := int64(1)
	for pow2 < nh {
		pow2 *= 2
	}
	var alibi, base, slopes *tape.Tensor
	f.Set(&alibi, c.Fresh("alibi", tape.I32, 1, 1, 1, longest))
	ints := c.Fresh("alibi", tape.I64, pow2)
	f.Set(&base, c.Fresh("alibi", tape.F32, pow2))
	tape.Del(ints)
	f.Set(&base, c.Scale(base))
	power := c.Scale(base) // 2 to the power
	tape.Del(c.Fresh("alibi", tape.I64))
	inverse := c.Fresh("alibi", tape.F32, pow2)
	f.Set(&slopes, c.Scale(inverse))
	tape.Del(power)
	if pow2 != nh {
		f.Set(&slopes, c.Fresh("alibi", tape.F32, pow2))
	}
	f.Set(&alibi, c.Fresh("alibi", tape.F32, nh, 1, longest))
	return f.Leave(alibi)
}

// onesMask is a causal mask from an attention mask of ones: tested, and not needed for SDPA.
func (c *ctx) onesMask(b, s int64, d tape.DType) *tape.Tensor {
	if c.Padded || c.Attn == "eager" {
		padded := c.Padded
		c.Padded = true
		m := c.buildMask(causal, b, s, s, d)
		c.Padded = padded
		return m
	}
	m := c.Fresh("mask test", tape.Bool, b, s)
	count := c.Fresh("mask test", tape.I64)
	tape.Del(c.Fresh("mask test", tape.I64, b, s))
	tape.Del(c.Fresh("mask test", tape.Bool), count, m)
	return nil
}
