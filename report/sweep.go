package report

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"slices"
	"strings"

	"memroom/event"
	"memroom/plan"
)

// PlanCards prints a setup's outcome on each card.
func PlanCards(w io.Writer, list []plan.CardChoice, unit, date string, color bool) error {
	t := NewText(w, color)
	heads := []string{"card", ">memory", ">needs", ">share", ">largest batch", ">cards"}
	if date != "" {
		heads = append(heads, ">"+cmp.Or(unit, "price"))
	}
	var rows [][]string
	for _, c := range list {
		count := "more than 8"
		if c.Count > 0 {
			count = fmt.Sprint(c.Count)
		}
		row := []string{c.Card, c.Total.String(), c.Device.String(),
			percent(float64(c.Device), float64(c.Total)), fmt.Sprint(c.MaxBatch), count}
		if date != "" {
			price := "-"
			if c.Price > 0 {
				price = fmt.Sprintf("%.2f", c.Price)
			}
			row = append(row, price)
		}
		rows = append(rows, append(row, c.Verdict))
	}
	t.table(append(heads, ""), rows)
	t.linef("cards: how many of the kind are enough where they share this batch, sharded by FSDP")
	if date != "" {
		t.linef("prices of %s", cleanText(date))
	}
	return t.Err()
}

// axes are the values of a sweep, smallest first.
func axes(points []plan.SweepPoint) (batches, seqs []int, at map[[2]int]plan.SweepPoint) {
	at = map[[2]int]plan.SweepPoint{}
	for _, p := range points {
		if !slices.Contains(batches, p.Batch) {
			batches = append(batches, p.Batch)
		}
		if !slices.Contains(seqs, p.Seq) {
			seqs = append(seqs, p.Seq)
		}
		at[[2]int{p.Batch, p.Seq}] = p
	}
	return batches, seqs, at
}

// SweepTable prints a sweep: a row a sequence, a column a batch.
func SweepTable(w io.Writer, points []plan.SweepPoint, color bool) error {
	t := NewText(w, color)
	batches, seqs, at := axes(points)
	heads := []string{">seq \\ batch"}
	for _, b := range batches {
		heads = append(heads, ">"+fmt.Sprint(b))
	}
	decided := false
	var rows [][]string
	for _, seq := range seqs {
		row := []string{fmt.Sprint(seq)}
		for _, b := range batches {
			p := at[[2]int{b, seq}]
			text := p.Device.String()
			if p.Fits != nil {
				decided = true
				if !*p.Fits {
					text += "!"
				}
			}
			row = append(row, text)
		}
		rows = append(rows, row)
	}
	t.table(heads, rows)
	if decided {
		t.linef("! does not fit, or is not sure to")
	}
	return t.Err()
}

// sweepColours go from cards that are small to those that are large.
var sweepColours = []string{"#2b83ba", "#64abb0", "#9dd3a7", "#c7e9ad", "#edf8b9", "#ffedaa",
	"#fec980", "#f99e59", "#e85b3a", "#d7191c"}

// memories are the sizes of cards that a picture shows, smallest first, each by the card of the
// size that is known first.
func memories(cards []plan.Card) []plan.Card {
	sorted := slices.Clone(cards)
	slices.SortStableFunc(sorted, func(a, b plan.Card) int { return cmp.Compare(a.Total, b.Total) })
	var out []plan.Card
	for _, c := range sorted {
		if len(out) == 0 || c.Total > out[len(out)-1].Total*5/4 {
			out = append(out, c)
		}
	}
	return out
}

// smallest is the index of the smallest card that holds so many bytes, len(cards) where none does.
func smallest(cards []plan.Card, need event.Bytes) int {
	i := slices.IndexFunc(cards, func(c plan.Card) bool { return need <= c.Total })
	if i < 0 {
		return len(cards)
	}
	return i
}

// SweepSVG draws a sweep: a cell a point, coloured by the smallest size of card that holds the
// upper end of its interval, and a line where one size ends.
func SweepSVG(w io.Writer, points []plan.SweepPoint, cards []plan.Card) error {
	const wide, high, left, top = 64, 34, 70, 30
	batches, seqs, at := axes(points)
	sizes := memories(cards)
	var b strings.Builder
	width, height := left+wide*len(batches)+190, top+max(high*len(seqs)+50, 22*len(sizes)+40)
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" `+
		`font-family="sans-serif" font-size="11">`+"\n", width, height, width)
	index := func(i, j int) int {
		return smallest(sizes, at[[2]int{batches[i], seqs[j]}].High)
	}
	for j, seq := range seqs {
		y := top + high*(len(seqs)-1-j)
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%d</text>`+"\n", left-6, y+high/2+4, seq)
		for i, batch := range batches {
			x, k := left+wide*i, index(i, j)
			p := at[[2]int{batch, seq}]
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"><title>batch %d, `+
				`sequence %d: %s (%s to %s)</title></rect><text x="%d" y="%d" text-anchor="middle">%s`+
				"</text>\n", x, y, wide, high, sweepColour(k, len(sizes)), batch, seq, p.Device, p.Low,
				p.High, x+wide/2, y+high/2+4, p.Device)
			if i+1 < len(batches) && index(i+1, j) != k {
				fmt.Fprintf(&b, `<path d="M%d %dv%d" stroke="#000" stroke-width="2"/>`+"\n", x+wide, y, high)
			}
			if j+1 < len(seqs) && index(i, j+1) != k {
				fmt.Fprintf(&b, `<path d="M%d %dh%d" stroke="#000" stroke-width="2"/>`+"\n", x, y, wide)
			}
		}
	}
	for i, batch := range batches {
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">%d</text>`+"\n", left+wide*i+wide/2,
			top+high*len(seqs)+16, batch)
	}
	fmt.Fprintf(&b, `<text x="%d" y="%d">batch</text><text x="4" y="%d">sequence</text>`+"\n", left,
		top+high*len(seqs)+34, top-10)
	for k := range len(sizes) + 1 {
		label := "no known card"
		if k < len(sizes) {
			label = fmt.Sprintf("%s (%s)", sizes[k].Total, sizes[k].Name)
		}
		x, y := left+wide*len(batches)+20, top+22*k
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="16" height="16" fill="%s"/><text x="%d" y="%d">%s`+
			"</text>\n", x, y, sweepColour(k, len(sizes)), x+22, y+12, html.EscapeString(label))
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func sweepColour(k, sizes int) string {
	if k >= sizes {
		return "#777777"
	}
	return sweepColours[k*len(sweepColours)/sizes]
}

// SweepPage writes the picture as a page without outside references.
func SweepPage(w io.Writer, points []plan.SweepPoint, cards []plan.Card, title string) error {
	if _, err := fmt.Fprintf(w, "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>%s"+
		"</title><body style=\"font-family:sans-serif\"><h1>%s</h1><p>Device memory by batch and "+
		"sequence. A colour is the smallest size of card that holds it; black lines are where one size "+
		"ends. The figures are those of the card that was planned for; other cards differ by their "+
		"contexts.</p>\n", html.EscapeString(title), html.EscapeString(title)); err != nil {
		return err
	}
	if err := SweepSVG(w, points, cards); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</body></html>\n")
	return err
}
