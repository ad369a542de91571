package trial

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
)

// Method is how points of the space are taken.
type Method string

// The methods without Python. Grid takes every point once; grid_search inside of a random search
// takes every point of those dimensions for each sample, as Ray does.
const (
	Random Method = "random"
	Grid   Method = "grid"
	Quasi  Method = "quasi" // Sobol's sequence, Halton's beyond its dimensions
)

// Sampler returns the points of a study. A point depends on the seed and its number only, so a
// study that is taken up again needs no state, and the order in which trials end changes nothing.
type Sampler struct {
	Space  Space
	Method Method
	Seed   uint64

	axes [][]Value // of the dimensions in the grid; nil: not in it
	grid int       // points of the grid, at least 1
}

// largestGrid is more than anybody runs; a typing error soon makes more.
const largestGrid = 10_000_000

// ErrNothingToSearch refuses a study without parameters, whoever chooses the points.
var ErrNothingToSearch = errors.New("the space is empty: there is nothing to search. Write a " +
	"domain in the command, such as --lr 'loguniform(1e-4,1e-2)', or parameters in a study file")

// NewSampler checks that the method can search the space.
func NewSampler(space Space, method Method, seed uint64) (*Sampler, error) {
	s := &Sampler{Space: space, Method: method, Seed: seed, axes: make([][]Value, len(space)),
		grid: 1}
	switch method {
	case Random, Grid, Quasi:
	default:
		return nil, fmt.Errorf("search %q is not known: random, grid or quasi", method)
	}
	if len(space) == 0 {
		return nil, ErrNothingToSearch
	}
	for i, d := range space {
		if method != Grid && !d.Domain.Grid {
			continue
		}
		values, err := d.Domain.members()
		if err != nil {
			return nil, fmt.Errorf("parameter %s: a grid needs a finite list: %w", d.Name, err)
		}
		s.axes[i] = values
		if s.grid > largestGrid/len(values) {
			return nil, fmt.Errorf("the grid has more than %d points: leave dimensions out or "+
				"search at random", largestGrid)
		}
		s.grid *= len(values)
	}
	return s, nil
}

// Count is how many trials a number of samples makes. A grid is taken whole: samples below 1 mean
// once, and more repeat it only inside of a random search.
func (s *Sampler) Count(samples int) int {
	if s.Method == Grid {
		if samples > 0 {
			return min(samples, s.grid)
		}
		return s.grid
	}
	return max(samples, 1) * s.grid
}

// Point returns the trial with this number, from 0.
func (s *Sampler) Point(number int) Params {
	cell, sample := number%s.grid, number/s.grid
	source := rand.New(rand.NewPCG(s.Seed^0x9e3779b97f4a7c15, uint64(number)))
	params := make(Params, len(s.Space))
	axis := 0
	for i, d := range s.Space {
		params[i].Name = d.Name
		if values := s.axes[i]; values != nil {
			params[i].Value = values[cell%len(values)]
			cell /= len(values)
			continue
		}
		u := source.Float64()
		if s.Method == Quasi {
			u = s.spread(axis, sample, d.Name)
		}
		axis++
		params[i].Value = d.Domain.At(u)
	}
	return params
}

// spread is a coordinate of a quasi-random point, shifted by the seed so that another seed leads to
// other points with the same evenness.
func (s *Sampler) spread(axis, number int, name string) float64 {
	h := fnv.New64a()
	h.Write([]byte(name))
	shift := rand.New(rand.NewPCG(s.Seed, h.Sum64()))
	if axis < len(sobolTable) {
		return float64(sobol(axis, uint32(number))^shift.Uint32()) / (1 << 32)
	}
	u := halton(prime(axis), number+1) + shift.Float64()
	return u - math.Floor(u)
}

// sobolTable holds primitive polynomials and initial direction numbers by Joe and Kuo, the table
// that SciPy and PyTorch use too; the first axis needs none.
var sobolTable = []struct {
	degree, polynomial uint32
	initial            []uint32
}{{},
	{1, 0, []uint32{1}}, {2, 1, []uint32{1, 3}}, {3, 1, []uint32{1, 3, 1}},
	{3, 2, []uint32{1, 1, 1}}, {4, 1, []uint32{1, 1, 3, 3}}, {4, 4, []uint32{1, 3, 5, 13}},
	{5, 2, []uint32{1, 1, 5, 5, 17}}, {5, 4, []uint32{1, 1, 5, 5, 5}},
	{5, 7, []uint32{1, 1, 7, 11, 19}}, {5, 11, []uint32{1, 1, 5, 1, 1}},
	{5, 13, []uint32{1, 1, 1, 3, 11}}, {5, 14, []uint32{1, 3, 5, 5, 31}},
	{6, 1, []uint32{1, 3, 3, 9, 7, 49}}, {6, 13, []uint32{1, 1, 1, 15, 21, 21}},
	{6, 16, []uint32{1, 3, 1, 13, 27, 49}}}

// sobol returns a coordinate of a point of the unshifted sequence, in 32 bits, in Gray code order.
func sobol(axis int, number uint32) uint32 {
	var v [32]uint32
	row := sobolTable[axis]
	for i := range v {
		switch {
		case axis == 0:
			v[i] = 1 << (31 - i)
		case uint32(i) < row.degree:
			v[i] = row.initial[i] << (31 - i)
		default:
			v[i] = v[i-int(row.degree)] ^ v[i-int(row.degree)]>>row.degree
			for k := uint32(1); k < row.degree; k++ {
				if row.polynomial>>(row.degree-1-k)&1 == 1 {
					v[i] ^= v[i-int(k)]
				}
			}
		}
	}
	var x uint32
	for i, gray := 0, number^number>>1; gray != 0; i, gray = i+1, gray>>1 {
		if gray&1 == 1 {
			x ^= v[i]
		}
	}
	return x
}

// halton is the radical inverse of n in a base.
func halton(base, n int) float64 {
	value, share := 0.0, 1.0
	for ; n > 0; n /= base {
		share /= float64(base)
		value += share * float64(n%base)
	}
	return value
}

func prime(n int) int {
	for candidate := 2; ; candidate++ {
		isPrime := true
		for f := 2; f*f <= candidate; f++ {
			isPrime = isPrime && candidate%f != 0
		}
		if isPrime {
			if n == 0 {
				return candidate
			}
			n--
		}
	}
}
