package place

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// random makes a problem small enough to enumerate.
func random(r *rand.Rand) Problem {
	p := Problem{Tied: r.IntN(4) == 0}
	moments := 1 + r.IntN(4)
	for i := range 2 + r.IntN(6) {
		u := Unit{Name: fmt.Sprint("u", i), Boundary: r.Int64N(20)}
		if r.IntN(8) == 0 {
			u.Boundary = 100 + r.Int64N(300) // more than a device may have: no cut here
		}
		for range moments {
			u.Live = append(u.Live, r.Int64N(100))
		}
		p.Units = append(p.Units, u)
	}
	for i := range 1 + r.IntN(3) {
		p.Devices = append(p.Devices, Device{Name: fmt.Sprint("d", i),
			Bytes: []int64{100, 200, 300}[r.IntN(3)], Fixed: r.Int64N(30)})
	}
	return p
}

// enumerate tries every contiguous placement over every order of the devices.
func enumerate(p Problem) float64 {
	best := -1.0
	var order []int
	used := make([]bool, len(p.Devices))
	last := len(p.Units)
	if p.Tied {
		last--
	}
	var cuts func(position, next int, on []int)
	cuts = func(position, next int, on []int) {
		if next == last {
			full := on
			if p.Tied {
				full = append(append([]int{}, on...), on[0])
			}
			if c := cost(p, full); best < 0 || c < best {
				best = c
			}
			return
		}
		if position == len(order) {
			return
		}
		for n := 0; next+n <= last; n++ {
			more := append([]int{}, on...)
			for range n {
				more = append(more, order[position])
			}
			cuts(position+1, next+n, more)
		}
	}
	var permute func()
	permute = func() {
		if len(order) == len(p.Devices) {
			cuts(0, 0, nil)
			return
		}
		for d := range p.Devices {
			if !used[d] {
				used[d] = true
				order = append(order, d)
				permute()
				order, used[d] = order[:len(order)-1], false
			}
		}
	}
	permute()
	return best
}

// cost reckons a placement without the code under test.
func cost(p Problem, on []int) float64 {
	worst := 0.0
	for d, device := range p.Devices {
		top, boundary, any := int64(0), int64(0), false
		for m := range p.Units[0].Live {
			sum := int64(0)
			for i, u := range p.Units {
				if on[i] == d {
					any = true
					sum += u.Live[m]
				}
			}
			top = max(top, sum)
		}
		for i := 1; i < len(on); i++ {
			if on[i] == d && on[i-1] != d {
				boundary += p.Units[i].Boundary
			}
		}
		used := device.Fixed
		if any {
			used += top + boundary
		}
		worst = max(worst, float64(used)/float64(device.Bytes))
	}
	return worst
}

func TestOptimalOnEverythingSmallEnoughToEnumerate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1500 {
		p := random(r)
		got, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		if c := cost(p, got.On); c != got.Fullest {
			t.Fatalf("case %d: says %v, costs %v", i, got.Fullest, c)
		}
		if want := enumerate(p); got.Fullest > want+1e-12 {
			t.Fatalf("case %d: %v, optimum %v\n%+v", i, got.Fullest, want, p)
		}
	}
}

func TestRefusesNonsense(t *testing.T) {
	for _, p := range []Problem{{}, {Units: []Unit{{Live: []int64{1}}}},
		{Units: []Unit{{Live: []int64{1}}}, Devices: []Device{{Name: "x"}}},
		{Units: []Unit{{Live: []int64{1}}, {Live: []int64{1, 2}}}, Devices: []Device{{Bytes: 1}}}} {
		if _, err := Solve(p); err == nil {
			t.Errorf("accepted %+v", p)
		}
	}
}

// BenchmarkSolve/units=1000/devices=64 is the size the plan promises in under a second.
func BenchmarkSolve(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 4))
	p := Problem{}
	const units, devices, moments = 1000, 64, 512
	for i := range units {
		u := Unit{Name: fmt.Sprint(i), Boundary: 1 << 20}
		for range moments {
			u.Live = append(u.Live, r.Int64N(1<<30))
		}
		p.Units = append(p.Units, u)
	}
	for i := range devices {
		p.Devices = append(p.Devices, Device{Name: fmt.Sprint(i), Bytes: 24 << 30, Fixed: 1 << 29})
	}
	b.Run(fmt.Sprintf("units=%d/devices=%d", units, devices), func(b *testing.B) {
		for b.Loop() {
			if _, err := Solve(p); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// TestExactlyFullFits: a device may be used to its last byte.
func TestExactlyFullFits(t *testing.T) {
	for bytes, want := range map[int64]bool{7: true, 6: false} {
		p := Problem{Units: []Unit{{Live: []int64{7}}}, Devices: []Device{{Bytes: bytes}}}
		got, err := Solve(p)
		if err != nil || got.Fullest <= 1 != want {
			t.Errorf("7 bytes on %d: %+v, %v", bytes, got, err)
		}
	}
}

// TestOrdersOfDevices: every order that differs is tried once, up to eight devices; beyond that as
// given, largest first and smallest first.
func TestOrdersOfDevices(t *testing.T) {
	sizes := func(bytes ...int64) (list []Device) {
		for _, b := range bytes {
			list = append(list, Device{Bytes: b})
		}
		return list
	}
	for _, c := range []struct {
		devices []Device
		want    int
	}{
		{sizes(5), 1}, {sizes(5, 5), 1}, {sizes(5, 6), 2}, {sizes(5, 5, 6), 3},
		{sizes(5, 5, 6, 6), 6}, {sizes(1, 2, 3, 4), 24},
		{[]Device{{Bytes: 5}, {Bytes: 5, Fixed: 1}}, 2},
		{sizes(1, 2, 3, 4, 5, 6, 7, 8), 40320},
		{sizes(1, 1, 1, 1, 1, 1, 1, 1, 1), 1},
		{sizes(9, 8, 7, 6, 5, 4, 3, 2, 1), 2},
	} {
		if got := orders(c.devices); len(got) != c.want {
			t.Errorf("%d devices: %d orders, want %d", len(c.devices), len(got), c.want)
		}
	}
	nine := sizes(2, 3, 9, 1, 8, 4, 7, 5, 6)
	want := [][]int{{0, 1, 2, 3, 4, 5, 6, 7, 8}, {2, 4, 6, 8, 7, 5, 1, 0, 3},
		{3, 0, 1, 5, 7, 8, 6, 4, 2}}
	if got := orders(nine); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
