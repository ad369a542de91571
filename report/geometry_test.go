package report

import (
	"bufio"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"memroom/event"
	"memroom/plan"
	"memroom/trial"
)

// points reads the points of an SVG polyline.
func points(t *testing.T, line string) (xs, ys []float64) {
	t.Helper()
	for _, p := range strings.Fields(line) {
		var x, y float64
		if n, err := fmt.Sscanf(p, "%f,%f", &x, &y); n != 2 {
			t.Fatalf("%q: %v", p, err)
		}
		xs, ys = append(xs, x), append(ys, y)
	}
	return xs, ys
}

// TestPlanLine: the picture is as high as the peak, nothing is at the bottom, half the peak is in
// the middle, time runs to the right, and the highest moment of a long run is not left out.
func TestPlanLine(t *testing.T) {
	p := &plan.Prediction{}
	for _, b := range []event.Bytes{0, 50, 100, 25} {
		p.Series = append(p.Series, plan.SeriesPoint{Allocated: b})
	}
	xs, ys := points(t, planLine(p))
	if fmt.Sprint(xs) != "[0 225 450 675]" || fmt.Sprint(ys) != "[220 110 0 165]" {
		t.Errorf("x %v, y %v", xs, ys)
	}
	long := &plan.Prediction{Series: make([]plan.SeriesPoint, 100_000)}
	for i := range long.Series {
		long.Series[i].Allocated = 10
	}
	long.Series[77_777].Allocated = 1000
	xs, ys = points(t, planLine(long))
	tops := 0
	for i := range xs {
		if i > 0 && xs[i] < xs[i-1] {
			t.Errorf("point %d at %v is left of the one before it, at %v", i, xs[i], xs[i-1])
		}
		if ys[i] == 0 {
			tops++
			if at := xs[i] / 900; at < 0.776 || at > 0.779 {
				t.Errorf("the peak is at %.3f of the width, want 0.778", at)
			}
		} else if ys[i] != 217.8 {
			t.Errorf("a hundredth of the peak is at %v, want 217.8", ys[i])
		}
	}
	if tops != 1 || len(xs) != 1800 {
		t.Errorf("%d points, %d of them at the top", len(xs), tops)
	}
}

// TestCleanText: long texts are cut behind the same number of bytes, in a whole character.
func TestCleanText(t *testing.T) {
	for _, n := range []int{0, 1, 399, 400, 401} {
		if got := cleanText(strings.Repeat("a", n)); len(got) != n {
			t.Errorf("%d letters became %d bytes", n, len(got))
		}
	}
	for _, n := range []int{402, 1000} {
		if got := cleanText(strings.Repeat("a", n)); got != strings.Repeat("a", 401)+"..." {
			t.Errorf("%d letters became %d bytes: %s", n, len(got), got[len(got)-10:])
		}
	}
	if got := cleanText(strings.Repeat("€", 1000)); !utf8.ValidString(got) || len(got) > 410 {
		t.Errorf("%d bytes of wide letters, valid: %v", len(got), utf8.ValidString(got))
	}
	if got := cleanText("a\x1b[31mb\u202ec\u2028d\ne\tf\x7fg\u009bh"); got != "a?[31mb?c?d?e?f?g?h" {
		t.Errorf("%q", got)
	}
}

var bar = regexp.MustCompile(
	`<rect class="(?:finished|second)" x="[\d.]+" y="(-?[\d.]+)" width="([\d.]+)" height="12"`)

// TestWeightsOfAStudy: a pair of bars for each setting, one pair below the other, as long as their
// shares and within the picture.
func TestWeightsOfAStudy(t *testing.T) {
	var page strings.Builder
	w := &studyPage{Writer: bufio.NewWriter(&page), s: trial.Shape{Weights: []trial.Weight{
		{Axis: "lr", Metric: 0.8, Memory: 0.1}, {Axis: "batch", Metric: 0.4, Memory: 0.9},
		{Axis: "width of the hidden layers", Metric: 0, Memory: 0.2}}}}
	w.weights()
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	var height float64
	_, box, _ := strings.Cut(page.String(), `viewBox="0 0 `)
	if n, err := fmt.Sscanf(box, "%f %f", new(float64), &height); n != 2 {
		t.Fatalf("%q: %v", box, err)
	}
	var tops, lengths []float64
	for _, m := range bar.FindAllStringSubmatch(page.String(), -1) {
		top, _ := strconv.ParseFloat(m[1], 64)
		length, _ := strconv.ParseFloat(m[2], 64)
		tops, lengths = append(tops, top), append(lengths, length)
	}
	if len(tops) != 6 {
		t.Fatalf("%d bars, want 6: %s", len(tops), page.String())
	}
	for i, share := range []float64{0.8, 0.1, 0.4, 0.9, 0, 0.2} {
		if want := max(lengths[0]/0.8*share, 1); math.Abs(lengths[i]-want) > 0.2 {
			t.Errorf("bar %d is %v long, want %v", i, lengths[i], want)
		}
		if tops[i] < 0 || tops[i]+12 > height || i > 0 && tops[i] < tops[i-1]+12 {
			t.Errorf("bar %d lies at %v in a picture of %v, the one before it at %v", i, tops[i],
				height, tops[max(i-1, 0)])
		}
	}
	if !strings.Contains(page.String(), "width of the …") || strings.Contains(page.String(),
		"hidden layers") {
		t.Error("a long name is not cut")
	}
}
