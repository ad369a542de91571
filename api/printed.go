package api

import (
	"context"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"sync"
	"time"

	"memroom/store"
	"memroom/trial"
)

const (
	printedBytes = 4 << 20 // of a run's output that are looked through for losses
	printedNames = 4
)

// aLoss is a loss as programs print it, with its name in the first group.
var aLoss = regexp.MustCompile(
	`(?i)\b((?:(?:train|val|valid|test|eval)[a-z]* |(?:[a-z]+_){1,3})?loss(?:_[a-z]+)?)['"]?\s*[:= ]\s*(?:[a-z.]+\()?[-+]?\.?\d`)

// printed keeps what was found in a run's output: each page that shows the run asks every two
// seconds.
type printed struct {
	mu    sync.Mutex
	found Reported
	size  int64     // of the output it was found in
	again time.Time // until then a run that goes on is not searched again
}

// rests is for how many times as long as a search took no other begins while the run goes on: it
// takes at most a hundredth of a processor, however many look on.
const rests = 100

// of returns the losses that were found last, or searches again where the output has grown.
func (p *printed) of(ctx context.Context, folder *store.Folder, samples *store.Series) Reported {
	p.mu.Lock()
	defer p.mu.Unlock()
	size, began := sizeOf(folder.Output())+sizeOf(folder.Errors()), time.Now()
	if p.found.At != nil && (size == p.size ||
		began.Before(p.again) && folder.Row().Status == store.Running) {
		return p.found
	}
	r := printedBy(ctx, folder, samples)
	if ctx.Err() == nil {
		p.found, p.size = r, size
		p.again = time.Now().Add(rests * time.Since(began))
	}
	return r
}

func sizeOf(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// printedBy returns the losses that a run's program printed and did not report. Each reading of the
// meters has the length of the output at its time, and so the last loss that was printed before it.
func printedBy(ctx context.Context, folder *store.Folder, samples *store.Series) Reported {
	r := Reported{At: []int64{}, Columns: map[string][]*float64{}}
	piece, err := samples.Between(0, math.MaxInt64, reportedPoints, func(name string) bool {
		return name == "output" || name == "errors"
	})
	if err != nil || piece.Sketch {
		return r
	}
	for _, c := range piece.Columns {
		path := folder.Output()
		if c.Name == "errors" {
			path = folder.Errors()
		}
		text := beginningOf(path)
		for _, name := range lossesIn(text) {
			if ctx.Err() != nil || r.Columns[name] != nil || len(r.Columns) == printedNames {
				continue
			}
			if values := valuesIn(text, name, c.High); values != nil {
				r.Columns[name] = values
			}
		}
	}
	if len(r.Columns) > 0 {
		r.At = piece.At
	}
	return r
}

func beginningOf(path string) []byte {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, printedBytes)) // what was read is better than nothing
	return text
}

// lossesIn returns the names of losses in the order in which they are printed first.
func lossesIn(text []byte) (names []string) {
	for _, m := range aLoss.FindAllSubmatch(text[:min(len(text), 64<<10)], -1) {
		if name := string(m[1]); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// valuesIn returns what was printed last under a name since the output was shorter, for each of
// these lengths; nil for nothing. Of several ways of printing it only the clearest counts. All is
// nil where fewer than two numbers are found.
func valuesIn(text []byte, name string, lengths []int64) []*float64 {
	finder, err := trial.NewFinder(name, "")
	if err != nil {
		return nil
	}
	reader, values, trusts := trial.Reader{Finder: finder}, make([]*float64, len(lengths)),
		make([]trial.Trust, len(lengths))
	from := 0
	for i, length := range lengths {
		end := int(min(max(length, int64(from)), int64(len(text))))
		if i == len(lengths)-1 {
			end = len(text)
		}
		if from == end {
			continue
		}
		readings := reader.Feed(text[from:end])
		if live, ok := reader.Live(); ok { // a progress bar is one line
			readings = append(readings, live)
		}
		for _, one := range readings {
			if value := one.Value; one.Trust >= trusts[i] && !math.IsNaN(value) &&
				!math.IsInf(value, 0) {
				values[i], trusts[i] = &value, one.Trust
			}
		}
		from = end
	}
	found := 0
	for i, best := 0, slices.Max(trusts); i < len(values); i++ {
		if trusts[i] < best {
			values[i] = nil
		}
		if values[i] != nil {
			found++
		}
	}
	if found < 2 {
		return nil
	}
	return values
}
