// Command site writes the sources of the documentation site below a folder: the documents of this
// repository, a page for each lint rule and a page for each remedy. `make docs` runs it and builds
// the site from the result.
package main

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"memroom/event"
	"memroom/lint"
	"memroom/remedy"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./docs/site FOLDER (from the repository's root)")
		os.Exit(2)
	}
	if err := write(os.DirFS("."), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "site:", err)
		os.Exit(1)
	}
}

// write writes every page of the site below dir. root is the repository.
func write(root fs.FS, dir string) error {
	pages, err := documents(root)
	if err != nil {
		return err
	}
	pages["format/index.md"] = formatIndex(pages)
	pages["lint/index.md"] = ruleIndex(lint.Rules())
	for _, r := range lint.Rules() {
		pages["lint/"+r.ID+".md"] = rulePage(root, r)
	}
	pages["remedies/index.md"] = remedyIndex(remedy.Catalogue())
	for _, r := range remedy.Catalogue() {
		pages["remedies/"+string(r.ID)+".md"] = remedyPage(r)
	}
	for name, text := range pages {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// topPages are documents at the root of the repository and their names on the site.
var topPages = map[string]string{"README.md": "index.md", "CHANGELOG.md": "changelog.md",
	"CONTRIBUTING.md": "contributing.md", "SECURITY.md": "reporting.md"}

// documents returns the documents of the repository by their names on the site.
func documents(root fs.FS) (map[string]string, error) {
	pages := map[string]string{}
	for from, to := range topPages {
		text, err := fs.ReadFile(root, from)
		if err != nil {
			return nil, err
		}
		pages[to] = moved(string(text), path.Dir(from))
	}
	err := fs.WalkDir(root, "docs", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || path.Ext(name) == ".go" || path.Ext(name) == ".py" {
			return err
		}
		text, err := fs.ReadFile(root, name)
		if err == nil && path.Ext(name) == ".md" {
			text = []byte(moved(string(text), path.Dir(name)))
		}
		pages[strings.TrimPrefix(name, "docs/")] = string(text)
		return err
	})
	return pages, err
}

// link matches the address of a link or picture in Markdown.
var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)\s]*)?\)`)

// moved changes the relative links of a document in folder dir of the repository to their places on
// the site. A link to a file that the site does not have loses its address.
func moved(text, dir string) string {
	base := strings.Trim(strings.TrimPrefix(dir, "docs"), "./") // the page's folder on the site
	return link.ReplaceAllStringFunc(text, func(found string) string {
		parts := link.FindStringSubmatch(found)
		if strings.Contains(parts[1], "://") {
			return found
		}
		target := path.Join(dir, parts[1])
		if to, ok := topPages[target]; ok {
			target = to
		} else if rest, ok := strings.CutPrefix(target, "docs/"); ok {
			target = rest
		} else {
			return "]"
		}
		if strings.HasSuffix(parts[1], "/") {
			target += "/index.md"
		}
		if base != "" {
			target = strings.Repeat("../", strings.Count(base, "/")+1) + target
		}
		return "](" + target + parts[2] + ")"
	})
}

// formatIndex lists the pages about files and protocols.
func formatIndex(pages map[string]string) string {
	text := "# Formats\n\nThe files and protocols that memroom writes.\n\n"
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if file, ok := strings.CutPrefix(name, "format/"); ok {
			text += fmt.Sprintf("- [%s](%s)\n", strings.TrimSuffix(file, ".md"), file)
		}
	}
	return text
}

func ruleIndex(rules []lint.Rule) string {
	var b strings.Builder
	b.WriteString("# Lint rules\n\n`memroom lint train.py` reports these.\n\n" +
		"| rule | severity | |\n|---|---|---|\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "| [%s](%s.md) | %s | %s |\n", r.ID, r.ID, r.Severity, r.Title)
	}
	return b.String()
}

// rulePage has a rule's own words and the first sample in which it is found.
func rulePage(root fs.FS, r lint.Rule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s. Severity: %s.\n\n## Why it costs memory\n\n%s\n\n## Instead\n\n%s\n",
		r.ID, r.Title, r.Severity, r.Why, r.Fix)
	if sample := sampleOf(root, r.ID); sample != "" {
		fmt.Fprintf(&b, "\n## Example\n\n```python\n%s\n```\n", sample)
	}
	if r.Remedy != "" {
		fmt.Fprintf(&b, "\nRemedy: [%s](../remedies/%s.md).\n", r.Remedy, r.Remedy)
	}
	fmt.Fprintf(&b, "\n`# memroom: ignore[%s]` on the line, or alone on the one above, silences it. "+
		"[All rules](index.md).\n", r.ID)
	return b.String()
}

// sampleOf returns the shortest sample that only this rule marks, "" if there is none.
func sampleOf(root fs.FS, id string) string {
	names, _ := fs.Glob(root, "cli/testdata/lint/"+id+"/*.py")
	best := ""
	for _, name := range names {
		raw, err := fs.ReadFile(root, name)
		text := strings.TrimSpace(string(raw))
		marks := strings.Count(text, "# expect: ")
		if err == nil && marks > 0 && marks == strings.Count(text, "# expect: "+id) &&
			!strings.Contains(text, "# hint: ") && (best == "" || len(text) < len(best)) {
			best = text
		}
	}
	return strings.ReplaceAll(best, "# expect: ", "# found: ")
}

func remedyIndex(all []*remedy.Remedy) string {
	var b strings.Builder
	b.WriteString("# Remedies\n\nWhat `explain`, `plan --fit` and `run --fit` propose and apply.\n\n" +
		"| remedy | results | |\n|---|---|---|\n")
	for _, r := range all {
		fmt.Fprintf(&b, "| [%s](%s.md) | %s | %s |\n", r.ID, r.ID, r.Equivalence, r.Title)
	}
	return b.String()
}

// results describes a remedy's effect on the results of training, for users.
var results = map[remedy.Equivalence]string{
	remedy.Exact:    "stay the same, up to floating-point rounding",
	remedy.Expected: "stay the same in expectation: random numbers are drawn in another order",
	remedy.Changes:  "change, so it needs your consent",
}

func remedyPage(r *remedy.Remedy) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n\n%s. %s.\n\n- Results: %s.\n", r.ID, sentence(r.Title),
		sentence(r.Why), results[r.Equivalence])
	if r.Consent != "" {
		fmt.Fprintf(&b, "- Consent: `--allow %s`.\n", r.Consent)
	}
	fmt.Fprintf(&b, "- Relieves: %s.\n", strings.Join(names(r.Walls), ", "))
	if len(r.Frameworks) > 0 {
		fmt.Fprintf(&b, "- Frameworks: %s.\n", strings.Join(names(r.Frameworks), ", "))
	}
	if len(r.Levels) > 0 {
		fmt.Fprintf(&b, "- `run --fit` applies it by: %s.\n", strings.Join(names(r.Levels), ", "))
	}
	if r.Unvalidated != "" {
		fmt.Fprintf(&b, "- Unvalidated: %s.\n", r.Unvalidated)
	}
	b.WriteString(ways(r))
	b.WriteString("\n[All remedies](index.md).\n")
	return b.String()
}

// sentence returns a text with a capital at its begin and without a full stop.
func sentence(text string) string {
	return strings.TrimSuffix(strings.ToUpper(text[:1])+text[1:], ".")
}

// ways returns what to type for a plain loop of each framework that the remedy knows.
func ways(r *remedy.Remedy) string {
	frameworks := r.Frameworks
	if len(frameworks) == 0 {
		frameworks = []remedy.Framework{remedy.PyTorch}
	}
	where := event.Where("")
	if len(r.Walls) > 0 {
		where = r.Walls[0]
	}
	var b strings.Builder
	for _, framework := range frameworks {
		how := r.HowTo(remedy.Job{Where: where, Framework: framework})
		for _, way := range []struct{ name, text string }{{"environment", how.Env},
			{"arguments", how.Args}, {"code", how.Code}} {
			if way.text != "" {
				fmt.Fprintf(&b, "\n%s, %s:\n\n```\n%s\n```\n", framework, way.name, way.text)
			}
		}
	}
	return b.String()
}

func names[T ~string](values []T) []string {
	var texts []string
	for _, v := range values {
		texts = append(texts, string(v))
	}
	return texts
}
