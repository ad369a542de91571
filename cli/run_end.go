package cli

import (
	"os"
	"path/filepath"

	"memroom/event"
	"memroom/fit"
	"memroom/fit/driver"
	"memroom/remedy"
	"memroom/report"
	"memroom/store"
)

// endOf is what is known of a run that is over.
func endOf(folder *store.Folder) (report.End, error) {
	summary, err := folder.Summary()
	if err != nil {
		return report.End{}, err
	}
	end := report.End{Summary: summary}
	if _, sent := folder.Reported(); !sent { // the script of another machine is not here
		end.Job = jobOf(summary.Run)
	}
	if record, err := driver.ReadRecord(folder.Dir); err == nil {
		end.Fit = &record
	}
	return end, nil
}

// jobOf looks up which framework and which trainer a run uses: advice is given in their words. The
// script may have changed or gone since; then less is known.
func jobOf(run event.Run) remedy.Job {
	const most = 1 << 20
	path := fit.Script(run.Command)
	if !filepath.IsAbs(path) {
		path = filepath.Join(run.Dir, path)
	}
	var text []byte
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() < most {
		text, _ = os.ReadFile(path)
	}
	framework, trainer := remedy.Detect(run.Command, string(text))
	return remedy.Job{Framework: framework, Trainer: trainer}
}
