package format

import "encoding/binary"

// The library takes memory for as many elements as a description claims to have. So what Arrow's
// descriptions consist of is walked before the library sees them: every vector must lie inside the
// description, every number of rows must be one that the body can hold.

// Fields of Arrow's tables that are vectors, and types whose tables have one.
const (
	typeTimestamp = 10
	typeUnion     = 14

	deepestField = 64      // of types within each other
	mostEmpty    = 1 << 31 // rows of a record batch without bytes, such as of nulls
)

// checkMessage reports whether a description is sound. body is how many bytes it describes, not
// compressed.
func checkMessage(meta []byte, kind int8, body int64) error {
	c := &flatCheck{left: len(meta)}
	root := rootOf(meta)
	c.pairs(root, 4)
	header, ok := root.table(2)
	if !ok {
		return damaged("a message has no content")
	}
	switch kind {
	case kindSchema:
		c.tables(header, 1, func(field flat) { c.field(field, 0) })
		c.pairs(header, 2)
		c.vector(header, 3, 8)
	case kindDictionary:
		if header, ok = header.table(1); !ok {
			return damaged("a dictionary has no content")
		}
		c.batch(header, body)
	case kindBatch:
		c.batch(header, body)
	}
	if c.bad {
		return damaged("the description of a message does not fit together")
	}
	return nil
}

// flatCheck walks the tables of a FlatBuffer.
type flatCheck struct {
	bad  bool
	left int // tables that may still be visited: several places may lead to one
}

// vector returns where the elements of a vector begin, and how many there are.
func (c *flatCheck) vector(t flat, i, width int) (at, n int) {
	if at = t.field(i); at == 0 {
		return 0, 0
	}
	if at+4 > len(t.data) {
		c.bad = true
		return 0, 0
	}
	at += int(binary.LittleEndian.Uint32(t.data[at:]))
	if at+4 > len(t.data) {
		c.bad = true
		return 0, 0
	}
	n = int(binary.LittleEndian.Uint32(t.data[at:]))
	if at += 4; n > (len(t.data)-at)/width {
		c.bad = true
		return 0, 0
	}
	return at, n
}

// tables visits the tables of a vector.
func (c *flatCheck) tables(t flat, i int, visit func(flat)) {
	at, n := c.vector(t, i, 4)
	for k := range n {
		place := at + 4*k
		place += int(binary.LittleEndian.Uint32(t.data[place:]))
		if c.left--; c.left < 0 || place+4 > len(t.data) {
			c.bad = true
		}
		if c.bad {
			return
		}
		visit(flat{t.data, place})
	}
}

// pairs checks names with their values, which are texts.
func (c *flatCheck) pairs(t flat, i int) {
	c.tables(t, i, func(pair flat) {
		c.vector(pair, 0, 1)
		c.vector(pair, 1, 1)
	})
}

func (c *flatCheck) field(t flat, depth int) {
	if depth > deepestField {
		c.bad = true
		return
	}
	c.vector(t, 0, 1)
	if own, ok := t.table(3); ok {
		switch t.number(2, 1) {
		case typeTimestamp:
			c.vector(own, 1, 1)
		case typeUnion:
			c.vector(own, 1, 4)
		}
	}
	c.tables(t, 5, func(child flat) { c.field(child, depth+1) })
	c.pairs(t, 6)
}

// batch checks the numbers of rows: a row takes a bit at least, but for kinds that take nothing.
func (c *flatCheck) batch(t flat, body int64) {
	most := max(mostEmpty, 8*body)
	fits := func(n int64) { c.bad = c.bad || n < 0 || n > most }
	fits(t.number(0, 8))
	at, n := c.vector(t, 1, 16)
	for k := range n {
		fits(int64(binary.LittleEndian.Uint64(t.data[at+16*k:])))
		fits(int64(binary.LittleEndian.Uint64(t.data[at+16*k+8:])))
	}
	c.vector(t, 2, 16)
	at, n = c.vector(t, 4, 8)
	for k := range n {
		fits(int64(binary.LittleEndian.Uint64(t.data[at+8*k:])))
	}
}
