package tape

import "memroom/event"

// DDP is DistributedDataParallel: gradients are summed over the ranks in buckets. In the first
// backward pass one bucket holds them all; then buckets of 25 MiB are made in the order in which
// gradients came.
type DDP struct {
	View bool // gradients are views of the buckets (gradient_as_bucket_view)
}

// The sizes at which buckets are full, and of the pieces in which weights are first sent around.
const (
	firstBucket    = 1 << 20
	laterBucket    = 25 << 20
	broadcastPiece = 250 << 20
)

// ddp is the state of one process.
type ddp struct {
	DDP
	g       *Graph
	buckets []*storage
	bucket  map[*Param]*storage
	order   []*Param // as gradients came in the first backward pass
	rebuilt bool
}

// wrap makes the model one of several equal ones: the first rank's weights are sent around, in
// pieces, and a bucket for all gradients is made.
func (g *Graph) wrap(m *Module) {
	d := &ddp{DDP: *g.DDP, g: g, bucket: map[*Param]*storage{}}
	g.ddp = d
	g.op = "ddp broadcast"
	var held *storage
	for _, bytes := range pieces(m.Parameters(), broadcastPiece) {
		next := g.alloc(bytes, event.CategoryTemporary)
		g.unrefStorage(held)
		held = next
	}
	d.make([][]*Param{trained(m.Parameters())})
	g.unrefStorage(held)
	g.op = ""
}

func trained(params []*Param) []*Param {
	var list []*Param
	for _, p := range params {
		if !p.Frozen {
			list = append(list, p)
		}
	}
	return list
}

// pieces are the sizes of runs of parameters that together reach a limit.
func pieces(params []*Param, limit int64) []int64 {
	var list []int64
	var sum int64
	for _, p := range params {
		sum += p.Numel() * p.DType.Size()
		if sum >= limit {
			list, sum = append(list, sum), 0
		}
	}
	if sum > 0 {
		list = append(list, sum)
	}
	return list
}

// make requests the buckets.
func (d *ddp) make(groups [][]*Param) {
	d.g.op = "ddp bucket"
	for _, group := range groups {
		var bytes int64
		for _, p := range group {
			bytes += p.Numel() * p.DType.Size()
		}
		st := d.g.alloc(bytes, event.CategoryGradients)
		for _, p := range group {
			d.bucket[p] = st
		}
		d.buckets = append(d.buckets, st)
	}
	d.g.op = ""
}

// ready is called when a parameter has its gradient.
func (d *ddp) ready(p *Param) {
	if !d.rebuilt && d.bucket[p] != nil {
		d.order = append(d.order, p)
	}
	st := d.bucket[p]
	if !d.View || st == nil || p.Grad.st == st {
		return
	}
	p.Grad.drop() // copied into the bucket, of which it is a view from now on
	st.refs++
	p.Grad = &Tensor{g: d.g, st: st, Shape: p.Shape, stride: p.stride, DType: p.DType, refs: 1,
		isView: true}
}

// begin rebuilds the buckets before the second forward pass.
func (d *ddp) begin() {
	if d.rebuilt || len(d.order) == 0 {
		return
	}
	d.rebuilt = true
	for _, st := range d.buckets {
		d.g.unrefStorage(st)
	}
	d.buckets = nil
	var groups [][]*Param
	var group []*Param
	var sum int64
	limit := int64(firstBucket)
	seen := map[*Param]bool{}
	for _, p := range d.order {
		if seen[p] {
			continue
		}
		seen[p] = true
		group = append(group, p)
		if sum += p.Numel() * p.DType.Size(); sum >= limit {
			groups, group, sum, limit = append(groups, group), nil, 0, laterBucket
		}
	}
	if len(group) > 0 {
		groups = append(groups, group)
	}
	d.make(groups)
	d.order = nil
}
