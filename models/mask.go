package models

import "memroom/tape"

// maskKind is which tokens may see which.
type maskKind uint8

const (
	causal maskKind = iota
	sliding
	bidirectional
	nearby // bidirectional, within a window
)

// causalMask is create_causal_mask. For SDPA without padding it builds nothing, because the kernel
// gets a flag for causal attention instead.
func (c *ctx) causalMask(b, s int64, d tape.DType) *tape.Tensor {
	if !c.Padded && c.kv == nil {
		c.causalMaskTest(b, s)
	}
	if c.Attn != "eager" && !c.Padded {
		return nil
	}
	return c.buildMask(causal, b, s, s, d)
}

// slidingMask is create_sliding_window_causal_mask: a mask is needed once the sequence reaches the
// window.
func (c *ctx) slidingMask(b, s, window int64, d tape.DType) *tape.Tensor {
	if !c.Padded && c.kv == nil {
		c.causalMaskTest(b, s)
	}
	if c.Attn != "eager" && !c.Padded && s < window {
		return nil
	}
	return c.buildMask(sliding, b, s, s, d)
}

// fullMask is create_bidirectional_mask: nothing unless there is padding.
func (c *ctx) fullMask(b, s int64, d tape.DType) *tape.Tensor {
	if c.Padded {
		return c.buildMask(bidirectional, b, s, s, d)
	}
	if c.MaskGiven { // cast to bool and tested: all ones
		m := c.Fresh("mask test", tape.Bool, b, s)
		tape.Del(c.Fresh("mask test", tape.Bool, 1), m)
	}
	return nil
}

// nearMask is create_bidirectional_sliding_window_mask: needed once the sequence reaches the
// window. A mask that is given is joined to it, padding or not.
func (c *ctx) nearMask(b, s, window int64, d tape.DType) *tape.Tensor {
	if s < window && !c.Padded {
		return c.fullMask(b, s, d)
	}
	padded := c.Padded
	c.Padded = c.Padded || c.MaskGiven
	m := c.buildMask(nearby, b, s, s, d)
	c.Padded = padded
	return m
}

// buildMask makes a [B, 1, S, KV] mask by comparing indices: boolean for SDPA, 0 or the lowest
// number for eager.
func (c *ctx) buildMask(kind maskKind, b, s, kv int64, d tape.DType) *tape.Tensor {
	f := c.Enter()
	var padding, m *tape.Tensor
	if c.Padded {
		f.Set(&padding, c.Fresh("mask", tape.Bool, b, kv))
		c.paddingTests(kind, b, kv)
	}
	f.Set(&m, c.boolMask(kind, b, s, kv))
	if c.Attn != "eager" {
		return f.Leave(m)
	}
	zero, low := c.Fresh("mask", d), c.Fresh("mask", d)
	out := c.Fresh("mask", d, b, 1, s, kv)
	tape.Del(zero, low)
	return f.Leave(out)
}

// paddingTests looks for padding that would allow to go without a mask, and finds none.
func (c *ctx) paddingTests(kind maskKind, b, kv int64) {
	if c.Attn == "eager" {
		return
	}
	switch kind {
	case nearby:
		return
	case bidirectional:
		tape.Del(c.Fresh("mask test", tape.Bool, 1))
		return
	}
	for range 2 {
		count := c.Fresh("mask test", tape.I64)
		tape.Del(c.Fresh("mask test", tape.I64, b, kv))
		tape.Del(c.Fresh("mask test", tape.Bool), count)
	}
}

func (c *ctx) boolMask(kind maskKind, b, s, kv int64) *tape.Tensor {
	f := c.Enter()
	var batch, head, q, k, m *tape.Tensor
	f.Set(&batch, c.Fresh("mask", tape.I64, b))
	f.Set(&head, c.Fresh("mask", tape.I64, 1))
	f.Set(&q, c.AddScalar(c.Fresh("mask", tape.I64, s)))
	f.Set(&k, c.AddScalar(c.Fresh("mask", tape.I64, kv)))
	f.Set(&m, c.maskFunction(kind, b, s, kv))
	return f.Leave(c.Expand(m, b, 1, s, kv))
}

// maskFunction evaluates the composed index functions; each `and` makes a new mask.
func (c *ctx) maskFunction(kind maskKind, b, s, kv int64) *tape.Tensor {
	triangle := func() *tape.Tensor { return c.Fresh("mask", tape.Bool, 1, 1, s, kv) }
	var m *tape.Tensor
	switch kind {
	case causal:
		if !c.Padded {
			return triangle()
		}
		m = c.and(c.Fresh("mask", tape.Bool), triangle())
	case sliding:
		m = c.Fresh("mask", tape.Bool)
		edge := c.Fresh("mask", tape.I64, 1, 1, s, 1)
		near := triangle()
		tape.Del(edge)
		m = c.and(c.and(m, near), triangle())
		if c.Padded {
			m = c.and(c.Fresh("mask", tape.Bool), m)
		}
	case nearby:
		m = c.Fresh("mask", tape.Bool)
		away := c.Fresh("mask", tape.I64, 1, 1, s, kv)
		dist := c.Fresh("mask", tape.I64, 1, 1, s, kv)
		tape.Del(away)
		near := triangle()
		tape.Del(dist)
		m = c.and(m, near)
		m = c.and(m, c.Fresh("mask", tape.Bool, 1, 1, s, 1))
		if c.Padded {
			m = c.and(c.Fresh("mask", tape.Bool), m)
		}
	case bidirectional:
		if !c.Padded {
			return c.Fresh("mask", tape.Bool, 1, 1, s, 1)
		}
		m = c.and(c.Fresh("mask", tape.Bool), c.Fresh("mask", tape.Bool, 1, 1, s, 1))
	}
	if !c.Padded {
		return m
	}
	rows, cols := c.Fresh("mask", tape.I64, b, 1, 1, kv), c.Fresh("mask", tape.I64, b, 1, 1, kv)
	seen := c.Fresh("mask", tape.Bool, b, 1, 1, kv)
	tape.Del(cols, rows)
	return c.and(m, seen)
}

func (c *ctx) and(a, b *tape.Tensor) *tape.Tensor { return c.Add(a, b) }
