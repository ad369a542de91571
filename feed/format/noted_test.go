package format

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"memroom/feed/table"
)

// TestNotedShapesThatDoNotFit: a file may note any shape for a column. What its lists cannot
// hold leaves the column as it was.
func TestNotedShapesThatDoNotFit(t *testing.T) {
	i32 := arrow.PrimitiveTypes.Int32
	flat, list := arrow.FixedSizeListOf(6, i32), arrow.ListOf(arrow.ListOf(i32))
	matrix := arrow.FixedSizeListOf(2, arrow.FixedSizeListOf(3, i32))
	for name, c := range map[string]struct {
		kind  arrow.DataType
		shape []int
		fits  bool
	}{
		"axes in one list":           {flat, []int{2, 3}, true},
		"another number":             {flat, []int{2, 4}, false},
		"lists within lists":         {list, []int{2, 3}, true},
		"an axis too few":            {list, []int{6}, false},
		"of one size, then any":      {arrow.FixedSizeListOf(3, arrow.ListOf(i32)), []int{3}, false},
		"so many that they wrap":     {list, []int{2, math.MaxInt}, false},
		"wrap to nothing":            {list, []int{math.MaxInt/2 + 1, 4}, false},
		"no numbers":                 {arrow.ListOf(arrow.BinaryTypes.String), []int{2}, false},
		"no list":                    {i32, []int{}, false},
		"of one size within another": {matrix, []int{2, 3}, true},
	} {
		before := arrowField("x", c.kind, false)
		got := inShape(before, c.kind, c.shape)
		fixed := got.Kind == table.Fixed && slices.Equal(got.Shape, c.shape) && got.Width == 24
		if c.fits && !fixed || !c.fits && !reflect.DeepEqual(got, before) {
			t.Errorf("%s: %v with %v became %+v", name, c.kind, c.shape, got.Column)
		}
	}
}
