package cli

import (
	"bytes"
	_ "embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"memroom/models"
	"memroom/plan"
	"memroom/report"
)

// chooseFlags are the flags of `memroom plan` that answer for many cards or many sizes.
type chooseFlags struct {
	Cards  bool     `help:"Every known card: whether it fits, the largest batch, how many are enough."`
	Prices string   `group:"Model and answer" help:"With --cards: a TOML file with date, unit and [prices] of one card, such as RTX4090 = 0.34; the cheapest comes first. bundled is a dated list of one seller." placeholder:"FILE"`
	Sweep  []string `help:"A table over batch and sequence, such as batch=1..64,seq=512..8192. Steps double; batch=8..64:8 goes by 8." placeholder:"RANGE"`
	SVG    string   `group:"Model and answer" name:"svg" help:"With --sweep: write the picture." placeholder:"FILE"`
}

// checkChoice refuses flags that would have no effect.
func (c *planCmd) checkChoice() error {
	many := c.Cards || len(c.Sweep) > 0
	switch {
	case c.Prices != "" && !c.Cards:
		return fmt.Errorf("--prices sorts cards: add --cards")
	case c.SVG != "" && len(c.Sweep) == 0:
		return fmt.Errorf("--svg draws a sweep: add --sweep batch=1..64,seq=512..8192")
	case c.Cards && len(c.Sweep) > 0:
		return fmt.Errorf("--cards and --sweep are two tables: ask for one at a time")
	case many && (c.Rehearse || c.Fit || len(c.Devices) > 0):
		return fmt.Errorf("--cards and --sweep plan a described model: leave out --rehearse, --fit and " +
			"--devices")
	case c.Cards && (c.GPU != "" || c.Here || c.HTML != ""):
		return fmt.Errorf("--cards looks at every card: leave out --gpu, --here and --html")
	}
	return nil
}

// onCards answers plan --cards.
func (c *planCmd) onCards(s *session, model *models.Config, target plan.Target) error {
	prices, err := readPrices(c.Prices)
	if err != nil {
		return err
	}
	list, err := plan.OnCards(c.setup(model), target, plan.Cards())
	if err != nil {
		return err
	}
	plan.ByPrice(list, prices.Prices)
	if c.JSON {
		return s.printJSON(map[string]any{"cards": list, "unit": prices.Unit, "date": prices.Date,
			"seller": prices.Seller})
	}
	return report.PlanCards(s.Out, list, prices.Unit, prices.of(), s.color)
}

// bundledPrices is the list that --prices bundled reads.
//
//go:embed prices.toml
var bundledPrices []byte

// priceList is a file of --prices.
type priceList struct {
	Date   string             `toml:"date"`
	Unit   string             `toml:"unit"`
	Seller string             `toml:"seller"`
	Prices map[string]float64 `toml:"prices"`
}

// of is whose prices these are, and of when.
func (l *priceList) of() string {
	if l.Seller == "" {
		return l.Date
	}
	return l.Date + ", " + l.Seller
}

// readPrices reads a list, whose cards may be written by any usual name.
func readPrices(path string) (*priceList, error) {
	list := &priceList{}
	if path == "" {
		return list, nil
	}
	data, err := bundledPrices, error(nil)
	if path != "bundled" {
		data, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, err
	}
	if err := toml.Unmarshal(data, list); err != nil {
		return nil, usageError(fmt.Errorf("--prices %s: %w", path, err))
	}
	if list.Date == "" || len(list.Prices) == 0 {
		return nil, usageError(fmt.Errorf("--prices %s: it needs a date, because prices change, and "+
			"[prices] with a card = a number in each line", path))
	}
	for _, name := range slices.Sorted(maps.Keys(list.Prices)) {
		card, err := plan.FindCard(name)
		if err != nil || list.Prices[name] <= 0 {
			return nil, usageError(fmt.Errorf("--prices %s: %s = %g: a known card and a number above 0",
				path, name, list.Prices[name]))
		}
		list.Prices[card.Name] = list.Prices[name]
	}
	return list, nil
}

// sweep answers plan --sweep.
func (c *planCmd) sweep(s *session, model *models.Config, target plan.Target) error {
	batches, seqs, err := c.ranges(model)
	if err != nil {
		return usageError(err)
	}
	points, err := plan.Sweep(c.setup(model), target, batches, seqs)
	if err != nil {
		return err
	}
	for path, write := range map[string]func(*bytes.Buffer) error{
		c.SVG: func(b *bytes.Buffer) error { return report.SweepSVG(b, points, plan.Cards()) },
		c.HTML: func(b *bytes.Buffer) error {
			return report.SweepPage(b, points, plan.Cards(), strings.Join(append(c.Args, c.Preset), ""))
		}} {
		if path == "" {
			continue
		}
		var text bytes.Buffer
		if err := write(&text); err != nil {
			return err
		}
		if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil {
			return err
		}
		s.note("wrote %s", path)
	}
	if c.JSON {
		return s.printJSON(map[string]any{"points": points})
	}
	return report.SweepTable(s.Out, points, s.color)
}

// ranges reads --sweep.
func (c *planCmd) ranges(model *models.Config) (batches, seqs []int, err error) {
	batches, seqs = []int{c.Batch}, []int{0}
	for _, text := range c.Sweep {
		name, values, ok := strings.Cut(text, "=")
		list, err := sizes(values)
		switch {
		case !ok || name != "batch" && name != "seq":
			return nil, nil, fmt.Errorf("--sweep %s: write batch=1..64 or seq=512..8192", text)
		case err != nil:
			return nil, nil, fmt.Errorf("--sweep %s: %w", text, err)
		case name == "seq" && model.DefaultSeq() == 0:
			return nil, nil, fmt.Errorf("--sweep %s: %s takes no sequence", text, model.Type())
		case name == "seq":
			seqs = list
		default:
			batches = list
		}
	}
	if n := len(batches) * len(seqs); n > plan.MostPoints {
		return nil, nil, fmt.Errorf("--sweep has %d points: %d are the most", n, plan.MostPoints)
	}
	return batches, seqs, nil
}

// sizes reads 8, 1..64 (doubling) and 8..64:8.
func sizes(text string) ([]int, error) {
	text, by, stepped := strings.Cut(text, ":")
	from, to, several := strings.Cut(text, "..")
	if !several {
		to = from
	}
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	step, err3 := 0, error(nil)
	if stepped {
		step, err3 = strconv.Atoi(by)
	}
	if err1 != nil || err2 != nil || err3 != nil || first < 1 || last < first || stepped && step < 1 {
		return nil, fmt.Errorf("expected a range such as 1..64, or 8..64:8")
	}
	var list []int
	for n := first; n <= last && len(list) <= plan.MostPoints; {
		list = append(list, n)
		if next := n * 2; step > 0 {
			n += step
		} else if n < last && next > last {
			n = last
		} else {
			n = next
		}
	}
	return list, nil
}
