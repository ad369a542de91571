package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/trial"
)

// TestStudyHTML: the page is whole for studies at the edges, asks nobody for anything, and shows a
// hostile setting as text.
func TestStudyHTML(t *testing.T) {
	hostile := "</td><script>alert(1)</script>"
	over := trial.NewStudy(trial.Options{Metric: "loss", Mode: "min"})
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	c := trial.Capacity{CPUs: 1, Host: 200 * event.MiB, HostFree: event.GiB}
	for i, bs := range []int64{16, 64, 256} {
		over.Add(trial.Params{{Name: "bs", Value: trial.Whole(bs)},
			{Name: "kind", Value: trial.Value{Data: hostile}}})
		over.Start(i, trial.Attempt{Run: "r", Host: 200 * event.MiB, Started: at})
		at = at.Add(time.Second)
		o := trial.Outcome{PeakHost: event.Bytes(bs) * event.MiB}
		if bs > 64 {
			o = trial.Outcome{OOM: true, Where: event.WhereHost, ExitCode: 137}
		}
		over.Reading(i, trial.Reading{Value: 0.5, Trust: trial.TrustReport})
		over.End(i, at, o, c)
	}
	for name, study := range map[string]*trial.Study{
		"empty": trial.NewStudy(trial.Options{Metric: "loss", Mode: "min"}), "over": over,
	} {
		p := study.Picture(nil, at)
		p.Name, p.Command, p.Host = name+hostile, []string{"python", hostile}, 200*event.MiB
		var out bytes.Buffer
		if err := StudyHTML(&out, p, study.Shape(p)); err != nil {
			t.Fatal(err)
		}
		page := out.String()
		if strings.Contains(page, "<script") || strings.Contains(page, "alert(1)</td") {
			t.Errorf("%s: a setting became markup", name)
		}
		if found := regexp.MustCompile(`(?i)(src|href|url\(|@import)`).FindString(
			regexp.MustCompile(`default-src|style-src`).ReplaceAllString(page, "")); found != "" {
			t.Errorf("%s: the page asks for something: %s", name, found)
		}
		if strings.Contains(page, "NaN") || strings.Contains(page, "%!") {
			t.Errorf("%s: a number could not be written", name)
		}
		if err := wellFormed(page); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if name != "over" {
			continue
		}
		for _, want := range []string{"Best loss: <b>0.5</b>", "class=\"cliff\"", "class=\"cross\"",
			"infeasible", "nearest that fits: bs=64", "prefers-color-scheme: dark"} {
			if !strings.Contains(page, want) {
				t.Errorf("the page lacks %s", want)
			}
		}
	}
}

// wellFormed reads the page's drawings and tables as XML: every element is closed.
func wellFormed(page string) error {
	body := page[strings.Index(page, "<main>"):strings.Index(page, "</body>")]
	d := xml.NewDecoder(strings.NewReader(body))
	d.Entity = xml.HTMLEntity
	for {
		if _, err := d.Token(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
