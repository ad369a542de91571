package format

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"memroom/feed/table"
)

// notATime is NumPy's NaT.
const notATime = math.MinInt64

// arrowField returns the column that an Arrow field becomes. Numbers and truth values stay what
// they are, times become datetime64 and timedelta64 of the same unit (time zones are dropped:
// values are UTC), decimals float64, texts and binaries objects, lists of numbers lists, lists of
// one size (of lists of one size, ...) arrays of that shape, and everything else its JSON text.
func arrowField(name string, t arrow.DataType, null bool) Field {
	f := Field{Null: null}
	f.Column = table.Column{Name: name, Kind: table.Text, From: t.String() + " as JSON"}
	if dtype, width, ok := arrowScalar(t); ok {
		f.Column = table.FixedOf(name, dtype, width, t.String())
		return f
	}
	switch t := t.(type) {
	case *arrow.DictionaryType:
		f = arrowField(name, t.ValueType, null)
	case *arrow.NullType:
		f.Column, f.Any = table.FixedOf(name, "<f8", 8, "null"), true
	case *arrow.StringType, *arrow.LargeStringType, *arrow.StringViewType:
		f.From = t.String()
	case *arrow.BinaryType, *arrow.LargeBinaryType, *arrow.BinaryViewType, *arrow.FixedSizeBinaryType:
		f.Column = table.Column{Name: name, Kind: table.Binary, From: t.String()}
	case *arrow.FixedSizeListType:
		shape, item := arrowShape(t)
		if dtype, width, ok := arrowScalar(item); ok && product(shape) <= mostValues {
			f.Column = table.Column{Name: name, Kind: table.Fixed, DType: dtype, From: t.String(),
				Shape: shape, Width: width * product(shape)}
		}
	case arrow.ListLikeType:
		if dtype, width, ok := arrowScalar(t.Elem()); ok && plainNumber(t.Elem()) &&
			t.ID() != arrow.MAP {
			f.Column = table.Column{Name: name, Kind: table.List, DType: dtype, Width: width,
				From: t.String()}
		}
	}
	if e, ok := t.(arrow.ExtensionType); ok {
		f = arrowField(name, e.StorageType(), null)
	}
	return f
}

// arrowShape returns the sizes of lists of one size within each other, outermost first, and what
// the innermost hold.
func arrowShape(t arrow.DataType) (shape []int, item arrow.DataType) {
	for list, ok := t.(*arrow.FixedSizeListType); ok; list, ok = t.(*arrow.FixedSizeListType) {
		shape, t = append(shape, int(list.Len())), list.Elem()
	}
	return shape, t
}

// mostValues is how many values an array in one row may have. A hostile shape would overflow.
const mostValues = 1 << 31

// product returns how many values arrays of a shape have; beyond mostValues, one more than that.
func product(shape []int) int {
	n := 1
	for _, size := range shape {
		if n *= min(size, mostValues+1); n > mostValues {
			return mostValues + 1
		}
	}
	return n
}

// anyMissing reports whether a row is missing, or a value within an array of one shape.
func anyMissing(values arrow.Array) bool {
	list, deeper := values.(array.ListLike)
	return values.NullN() > 0 || deeper && anyMissing(list.ListValues())
}

// notedShape returns the shape of arrays that a column's lists stand for, which writers note in its
// metadata: Arrow's own tensors, and Hugging Face's Array2D to Array5D. nil: nothing is noted, it
// varies from row to row, or the axes are stored in another order.
func notedShape(f arrow.Field) []int {
	name, _ := f.Metadata.GetValue("ARROW:extension:name")
	text, _ := f.Metadata.GetValue("ARROW:extension:metadata")
	var sizes []*int
	switch {
	case name == "arrow.fixed_shape_tensor":
		var tensor struct {
			Shape       []*int `json:"shape"`
			Permutation []int  `json:"permutation"`
		}
		if json.Unmarshal([]byte(text), &tensor) != nil || !slices.IsSorted(tensor.Permutation) {
			return nil
		}
		sizes = tensor.Shape
	case strings.HasPrefix(name, "datasets.features.features.Array") &&
		strings.HasSuffix(name, "DExtensionType"):
		var parts []json.RawMessage // the shape, and the name of a type
		if json.Unmarshal([]byte(text), &parts) != nil || len(parts) == 0 ||
			json.Unmarshal(parts[0], &sizes) != nil {
			return nil
		}
	}
	var shape []int
	for _, n := range sizes {
		if n == nil || *n < 0 {
			return nil
		}
		shape = append(shape, *n)
	}
	return shape
}

// inShape makes a column of lists one of arrays of a noted shape, where its type allows it.
func inShape(f Field, t arrow.DataType, shape []int) Field {
	item, depth := t, 0
	for list, ok := item.(arrow.ListLikeType); ok && item.ID() != arrow.MAP; depth++ {
		item = list.Elem()
		list, ok = item.(arrow.ListLikeType)
	}
	fits := depth == len(shape)
	if fixed, _ := arrowShape(t); len(fixed) > 0 {
		fits = depth == len(fixed) && product(fixed) == product(shape)
	}
	dtype, width, ok := arrowScalar(item)
	if !ok || !fits || depth == 0 || product(shape) > mostValues {
		return f
	}
	f.Column = table.Column{Name: f.Name, Kind: table.Fixed, DType: dtype, From: t.String(),
		Shape: shape, Width: width * product(shape)}
	return f
}

// arrowScalar returns the NumPy dtype of a type of fixed width.
func arrowScalar(t arrow.DataType) (string, int, bool) {
	switch t := t.(type) {
	case *arrow.BooleanType:
		return "|b1", 1, true
	case *arrow.Int8Type:
		return "|i1", 1, true
	case *arrow.Uint8Type:
		return "|u1", 1, true
	case *arrow.Int16Type:
		return "<i2", 2, true
	case *arrow.Uint16Type:
		return "<u2", 2, true
	case *arrow.Int32Type:
		return "<i4", 4, true
	case *arrow.Uint32Type:
		return "<u4", 4, true
	case *arrow.Int64Type:
		return "<i8", 8, true
	case *arrow.Uint64Type:
		return "<u8", 8, true
	case *arrow.Float16Type:
		return "<f2", 2, true
	case *arrow.Float32Type:
		return "<f4", 4, true
	case *arrow.Float64Type:
		return "<f8", 8, true
	case *arrow.Date32Type:
		return "<M8[D]", 8, true
	case *arrow.Date64Type:
		return "<M8[ms]", 8, true
	case *arrow.TimestampType:
		return "<M8[" + t.Unit.String() + "]", 8, true
	case *arrow.DurationType:
		return "<m8[" + t.Unit.String() + "]", 8, true
	case *arrow.Time32Type:
		return "<m8[" + t.Unit.String() + "]", 8, true
	case *arrow.Time64Type:
		return "<m8[" + t.Unit.String() + "]", 8, true
	case *arrow.Decimal32Type, *arrow.Decimal64Type, *arrow.Decimal128Type, *arrow.Decimal256Type:
		return "<f8", 8, true
	}
	return "", 0, false
}

// plainNumber reports whether a list's values can be copied as they lie.
func plainNumber(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.BOOL, arrow.DATE32, arrow.TIME32, arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128,
		arrow.DECIMAL256:
		return false
	}
	return true
}

// appendArrow adds the values of an Arrow array to a column.
func appendArrow(into *table.Data, c table.Column, values arrow.Array) error {
	if e, ok := values.(array.ExtensionArray); ok {
		values = e.Storage()
	}
	if d, ok := values.(*array.Dictionary); ok {
		return appendDictionary(into, c, d)
	}
	switch c.Kind {
	case table.Fixed:
		return appendFixed(into, c, values)
	case table.List:
		return appendList(into, values)
	}
	for i := range values.Len() {
		if values.IsNull(i) {
			into.AddNull()
			continue
		}
		text, err := arrowBytes(values, i)
		if err != nil {
			return err
		}
		into.AddBytes(text)
	}
	return nil
}

func arrowBytes(values arrow.Array, i int) ([]byte, error) {
	switch v := values.(type) {
	case *array.String:
		return []byte(v.Value(i)), nil
	case *array.LargeString:
		return []byte(v.Value(i)), nil
	case *array.StringView:
		return []byte(v.Value(i)), nil
	case *array.Binary:
		return v.Value(i), nil
	case *array.LargeBinary:
		return v.Value(i), nil
	case *array.BinaryView:
		return v.Value(i), nil
	case *array.FixedSizeBinary:
		return v.Value(i), nil
	}
	return json.Marshal(values.GetOneForMarshal(i))
}

// appendDictionary looks every value up.
func appendDictionary(into *table.Data, c table.Column, d *array.Dictionary) error {
	distinct := table.NewRows([]table.Column{c}, d.Dictionary().Len(), 0)
	if err := appendArrow(&distinct.Data[0], c, d.Dictionary()); err != nil {
		return err
	}
	from := &distinct.Data[0]
	for i := range d.Len() {
		switch {
		case d.IsNull(i) && c.Kind == table.Fixed:
			if err := addMissing(into, c); err != nil {
				return err
			}
		case d.IsNull(i):
			into.AddNull()
		case c.Kind == table.Fixed:
			k := d.GetValueIndex(i)
			into.Fixed = append(into.Fixed, from.Fixed[k*c.Width:(k+1)*c.Width]...)
		default:
			k := d.GetValueIndex(i)
			start := int64(0)
			if k > 0 {
				start = from.Ends[k-1]
			}
			into.AddBytes(from.Bytes[start:from.Ends[k]])
		}
	}
	return nil
}

// addMissing adds NaN or NaT.
func addMissing(into *table.Data, c table.Column) error {
	switch {
	case c.DType == "<f8":
		into.AddFloat(math.NaN())
	case c.DType == "<f4":
		into.Fixed = binary.LittleEndian.AppendUint32(into.Fixed, math.Float32bits(float32(math.NaN())))
	case c.DType == "<f2":
		into.Fixed = binary.LittleEndian.AppendUint16(into.Fixed, 0x7E00)
	case c.Width == 8 && (c.DType[1] == 'M' || c.DType[1] == 'm'):
		into.AddInt(notATime)
	default:
		return fmt.Errorf("column %q has missing values, although its statistics say that it "+
			"has none", c.Name)
	}
	return nil
}

func appendFixed(into *table.Data, c table.Column, values arrow.Array) error {
	if list, is := values.(array.ListLike); is {
		item, shape := c, c.Shape
		item.Shape, item.Width = nil, c.Width/max(1, product(c.Shape))
		if fixed, _ := arrowShape(values.DataType()); len(fixed) > 0 {
			shape = fixed // the axes of a tensor lie in one list
		}
		return appendMatrix(into, item, shape, list)
	}
	natural, width, ok := arrowScalar(values.DataType())
	if ok && natural == c.DType && values.NullN() == 0 && copied(values) {
		raw := values.Data().Buffers()[1].Bytes()
		from := values.Data().Offset() * width
		into.Fixed = append(into.Fixed, raw[from:from+values.Len()*width]...)
		return nil
	}
	for i := range values.Len() {
		if values.IsNull(i) {
			if err := addMissing(into, c); err != nil {
				return err
			}
			continue
		}
		if err := addScalar(into, c, values, i, natural, width); err != nil {
			return err
		}
	}
	return nil
}

// copied reports whether values lie in memory as NumPy has them.
func copied(values arrow.Array) bool {
	return plainNumber(values.DataType())
}

// appendMatrix adds the values of arrays of one shape, which lie side by side at any depth.
func appendMatrix(into *table.Data, item table.Column, shape []int, list array.ListLike) error {
	inner := func(start, end int64) error {
		part := array.NewSlice(list.ListValues(), start, end)
		defer part.Release()
		if deeper, is := part.(array.ListLike); is {
			return appendMatrix(into, item, shape[1:], deeper)
		}
		return appendFixed(into, item, part)
	}
	from, to := int64(0), int64(0) // of values that are there and not added yet
	for i := range list.Len() {
		start, end := list.ValueOffsets(i)
		there := !list.IsNull(i)
		if there && end-start != int64(shape[0]) {
			return fmt.Errorf("a list has %d values, where %d are noted for all", end-start, shape[0])
		}
		if there && start == to {
			to = end
			continue
		}
		if err := inner(from, to); err != nil {
			return err
		}
		if from, to = end, end; there {
			from = start
			continue
		}
		for range product(shape) {
			if err := addMissing(into, item); err != nil {
				return err
			}
		}
	}
	return inner(from, to)
}

// addScalar adds one value that has to be converted.
func addScalar(into *table.Data, c table.Column, values arrow.Array, i int, natural string,
	width int) error {
	var number float64
	var whole int64
	isWhole := true
	switch v := values.(type) {
	case *array.Boolean:
		if v.Value(i) {
			whole = 1
		}
		if c.DType == "|b1" {
			into.Fixed = append(into.Fixed, byte(whole))
			return nil
		}
	case *array.Date32:
		whole = int64(v.Value(i))
	case *array.Time32:
		whole = int64(v.Value(i))
	case *array.Int8:
		whole = int64(v.Value(i))
	case *array.Int16:
		whole = int64(v.Value(i))
	case *array.Int32:
		whole = int64(v.Value(i))
	case *array.Int64:
		whole = v.Value(i)
	case *array.Uint8:
		whole = int64(v.Value(i))
	case *array.Uint16:
		whole = int64(v.Value(i))
	case *array.Uint32:
		whole = int64(v.Value(i))
	case *array.Uint64:
		number, isWhole = float64(v.Value(i)), false
	case *array.Float16:
		number, isWhole = float64(v.Value(i).Float32()), false
	case *array.Float32:
		number, isWhole = float64(v.Value(i)), false
	case *array.Float64:
		number, isWhole = v.Value(i), false
	case *array.Decimal32:
		number, isWhole = nearest(big.NewInt(int64(v.Value(i))), v.DataType()), false
	case *array.Decimal64:
		number, isWhole = nearest(big.NewInt(int64(v.Value(i))), v.DataType()), false
	case *array.Decimal128:
		number, isWhole = nearest(v.Value(i).BigInt(), v.DataType()), false
	case *array.Decimal256:
		number, isWhole = nearest(v.Value(i).BigInt(), v.DataType()), false
	}
	if natural == c.DType && copied(values) { // the column has missing rows: bytes as they are
		raw := values.Data().Buffers()[1].Bytes()
		from := (values.Data().Offset() + i) * width
		into.Fixed = append(into.Fixed, raw[from:from+width]...)
		return nil
	}
	switch {
	case c.DType == "<f8" && isWhole:
		into.AddFloat(float64(whole))
	case c.DType == "<f8":
		into.AddFloat(number)
	case isWhole && c.Width == 8:
		into.AddInt(whole)
	default:
		return fmt.Errorf("column %q: %s cannot become %s", c.Name, values.DataType(), c.DType)
	}
	return nil
}

// nearest returns the float64 nearest to a decimal. The library's own conversion multiplies by a
// rounded power of ten, which is off by a bit for one number in some.
func nearest(digits *big.Int, t arrow.DataType) float64 {
	return scaled(digits, t.(arrow.DecimalType).GetScale())
}

func appendList(into *table.Data, values arrow.Array) error {
	list, ok := values.(array.ListLike)
	if !ok {
		return fmt.Errorf("expected a list, found %s", values.DataType())
	}
	items := list.ListValues()
	_, width, _ := arrowScalar(items.DataType())
	var raw []byte
	if b := items.Data().Buffers(); len(b) > 1 && b[1] != nil {
		raw = b[1].Bytes()[items.Data().Offset()*width:]
	}
	float := items.DataType().ID() == arrow.FLOAT32 || items.DataType().ID() == arrow.FLOAT64
	for i := range list.Len() {
		if list.IsNull(i) {
			into.AddNull()
			continue
		}
		start, end := list.ValueOffsets(i)
		at := len(into.Bytes)
		into.Bytes = append(into.Bytes, raw[int(start)*width:int(end)*width]...)
		for k := start; items.NullN() > 0 && k < end; k++ {
			if !items.IsNull(int(k)) {
				continue
			}
			if !float {
				return errHole
			}
			hole := into.Bytes[at+int(k-start)*width:]
			if width == 4 {
				binary.LittleEndian.PutUint32(hole, math.Float32bits(float32(math.NaN())))
			} else {
				binary.LittleEndian.PutUint64(hole, math.Float64bits(math.NaN()))
			}
		}
		into.End()
	}
	return nil
}
