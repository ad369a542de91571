package plan

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"

	"memroom/tape"
)

// The H200's own calibration is shipped: what cuDNN takes there for the convolutions of well-known
// networks at usual batch sizes. A line a convolution, gzip'ed: batch channels height width,
// filters depth height width, stride, padding and dilation (two each), groups, type, layout ("-" or
// "last"), bytes of the forward pass and of the two gradients.
//
//go:embed h200.conv.gz
var shippedConv []byte

// More of them, of random sizes, for rehearsals: what an engine of cuDNN keeps for the gradient of
// a filter is taken from another filter as large. Descriptions are compared with the networks above
// alone, which they resemble more.
//
//go:embed h200.filters.gz
var shippedFilters []byte

// tableTorch is the version it was measured with.
const tableTorch = "2.11"

// shippedTable reads the table, once, and only where a convolution asks for it. The file is ours:
// damage is a mistake in the build, and leaves no table.
var shippedTable = sync.OnceValue(func() *tape.Workspaces {
	w, err := readTable(bytes.NewReader(shippedConv))
	if err != nil {
		return nil
	}
	return w
})

// WriteWorkspaces writes what is known about the target's convolutions for a rehearsal, in lines as
// in the table. It returns the release of PyTorch to which they belong, or "" where nothing is
// known.
func (t *Target) WriteWorkspaces(out io.Writer) (torch string, err error) {
	buffer := bufio.NewWriter(out)
	if t.shipped() {
		z, err := gzip.NewReader(bytes.NewReader(shippedFilters))
		if err != nil {
			return "", err
		}
		if _, err := io.Copy(buffer, z); err != nil {
			return "", err
		}
	}
	for c, b := range t.workspaces().Each {
		torch = t.Torch
		if err := (ConvSizes{c, b}).write(buffer); err != nil {
			return "", err
		}
	}
	return torch, buffer.Flush()
}

func (s ConvSizes) write(out io.Writer) error {
	layout := "-"
	if s.ChannelsLast {
		layout = "last"
	}
	_, err := fmt.Fprintf(out, "%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %s %s %d %d %d\n",
		s.X[0], s.X[1], s.X[2], s.X[3], s.W[0], s.W[1], s.W[2], s.W[3],
		s.Stride[0], s.Stride[1], s.Pad[0], s.Pad[1], s.Dilation[0], s.Dilation[1], s.Groups,
		s.DType, layout, s.Forward, s.InputGrad, s.WeightGrad)
	return err
}

// readTable reads the lines of ConvSizes.write, packed.
func readTable(in io.Reader) (*tape.Workspaces, error) {
	z, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	w := &tape.Workspaces{}
	lines := bufio.NewScanner(z)
	for lines.Scan() {
		s, err := parseConv(lines.Text())
		if err != nil {
			return nil, fmt.Errorf("table of convolutions: %q: %w", lines.Text(), err)
		}
		w.AddConv(s.Convolution, s.ConvBytes)
	}
	return w, lines.Err()
}

func parseConv(line string) (s ConvSizes, err error) {
	fields := strings.Fields(line)
	if len(fields) != 20 {
		return s, fmt.Errorf("%d fields", len(fields))
	}
	into := []*int64{&s.X[0], &s.X[1], &s.X[2], &s.X[3], &s.W[0], &s.W[1], &s.W[2], &s.W[3],
		&s.Stride[0], &s.Stride[1], &s.Pad[0], &s.Pad[1],
		&s.Dilation[0], &s.Dilation[1], &s.Groups, nil, nil, &s.Forward, &s.InputGrad,
		&s.WeightGrad}
	for i, p := range into {
		if p == nil {
			continue
		}
		if *p, err = strconv.ParseInt(fields[i], 10, 64); err != nil {
			return s, err
		}
	}
	s.DType, s.ChannelsLast = fields[15], fields[16] == "last"
	return s, nil
}
