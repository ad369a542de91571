package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"memroom/guard"
	"memroom/plan"
)

// git runs git in a folder. The user's settings must not change what it prints.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "core.quotepath=off", "-c",
		"core.hooksPath=" + os.DevNull, "-c", "advice.detachedHead=false"}, args...)...)
	cmd.Dir = dir
	cmd.Env = append(withoutHook(os.Environ()), "LC_ALL=C", "GIT_OPTIONAL_LOCKS=0")
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		if text := strings.TrimSpace(said.String()); text != "" {
			return "", fmt.Errorf("git %s: %s", args[0], text)
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return out.String(), nil
}

// withoutHook removes the variables that git sets for a hook, such as the index of the commit that
// is being made: a worktree has its own.
func withoutHook(environ []string) []string {
	return slices.DeleteFunc(environ, func(one string) bool {
		return strings.HasPrefix(one, "GIT_") && !strings.HasPrefix(one, "GIT_CONFIG")
	})
}

// locate finds the repository of the file with the checks; without one its folder is the root.
func (r *checking) locate(path string) error {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	r.here = tree{root: dir}
	if top, err := git(r.s.ctx, dir, "rev-parse", "--show-toplevel"); err == nil {
		r.here.root = strings.TrimSuffix(top, "\n")
	} else if r.cmd.Against != "" {
		return usageError(fmt.Errorf("--against %s: %s is in no git repository (%w)", r.cmd.Against,
			path, err))
	}
	r.here.folder, err = filepath.Rel(r.here.root, dir)
	r.config = filepath.ToSlash(filepath.Join(r.here.folder, filepath.Base(path)))
	return err
}

// checkOut makes a worktree of the other revision, and asks what has changed since.
func (r *checking) checkOut() error {
	root, ref := r.here.root, r.cmd.Against
	commit, err := git(r.s.ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options",
		ref+"^{commit}")
	if err != nil {
		return usageError(fmt.Errorf("--against %s: no such revision here: in a shallow clone fetch it "+
			"first, as in git fetch --depth 1 origin %s", ref, ref))
	}
	r.commit = strings.TrimSpace(commit)
	dir, remove, err := temporaryFolder("check")
	if err != nil {
		return err
	}
	r.remove = remove
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return err
	}
	r.forgetAbandoned(filepath.Dir(dir))
	r.there = tree{root: filepath.Join(dir, filepath.Base(root)), folder: r.here.folder}
	if _, err := git(r.s.ctx, root, "worktree", "add", "--detach", "--quiet", r.there.root,
		r.commit); err != nil {
		return err
	}
	for _, path := range r.file.Link {
		if err := r.link(filepath.Join(r.here.folder, path)); err != nil {
			return err
		}
	}
	diff, err := git(r.s.ctx, root, "diff", "--unified=0", "--no-prefix", "--no-ext-diff",
		"--no-textconv", "--no-color", "-M", r.commit, "--")
	r.hunks = guard.ParseDiff(diff)
	return err
}

// link puts what git does not keep into the worktree.
func (r *checking) link(path string) error {
	here, there := filepath.Join(r.here.root, path), filepath.Join(r.there.root, path)
	if _, err := os.Lstat(there); err == nil {
		return nil
	}
	if _, err := os.Stat(here); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(there), 0o700); err != nil {
		return err
	}
	return os.Symlink(here, there)
}

// forgetAbandoned lets git forget worktrees of killed checks, whose folders are gone already.
func (r *checking) forgetAbandoned(temporary string) {
	list, _ := git(r.s.ctx, r.here.root, "worktree", "list", "--porcelain")
	for line := range strings.Lines(list) {
		path, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "worktree ")
		is = is && strings.HasPrefix(path, filepath.Join(temporary, "memroom-check-"))
		if _, err := os.Stat(path); is && errors.Is(err, fs.ErrNotExist) {
			_, _ = git(r.s.ctx, r.here.root, "worktree", "remove", "--force", path)
		}
	}
}

// end removes the worktree, also after an interrupt.
func (r *checking) end() {
	if r.remove == nil {
		return
	}
	defer r.remove()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, _ = git(ctx, r.here.root, "worktree", "remove", "--force", r.there.root)
}

// translated is a word of a command for another tree: absolute paths into this one are moved. A
// program that git does not keep, such as one of a virtual environment, stays where it is.
func (r *checking) translated(word string, at tree, program bool) string {
	if at.root == r.here.root {
		return word
	}
	if moved := strings.ReplaceAll(word, r.here.root+string(filepath.Separator),
		at.root+string(filepath.Separator)); moved != word {
		if _, err := os.Stat(moved); err == nil || !program {
			return moved
		}
		return word
	}
	if !program || !strings.ContainsRune(word, filepath.Separator) || filepath.IsAbs(word) {
		return word
	}
	here := filepath.Join(r.here.root, r.here.folder, word)
	if _, err := os.Stat(filepath.Join(at.root, at.folder, word)); err == nil {
		return word
	}
	if _, err := os.Stat(here); err == nil {
		return here
	}
	return word
}

// answerThere is answer for the other revision. Packages that are installed in place (pip install
// -e) are looked for in its worktree first.
func (r *checking) answerThere(c *guard.Check) (*plan.Prediction, bool, error) {
	path := r.pythonPath(nil)
	p, cached, err := r.answer(c, r.there, path...)
	if err != nil || len(r.leaked(p)) == 0 {
		return p, cached, err
	}
	p, cached, err = r.answer(c, r.there, r.pythonPath(r.leaked(p))...)
	if err == nil && len(r.leaked(p)) > 0 {
		return nil, false, fmt.Errorf("it imports %s from the working tree at the other revision too: "+
			"install the package so that PYTHONPATH comes first", r.leaked(p)[0])
	}
	return p, cached, err
}

// leaked are the files of this tree that a run in the other one has imported.
func (r *checking) leaked(p *plan.Prediction) []string {
	return slices.DeleteFunc(slices.Clone(p.Files), func(path string) bool {
		rel, err := filepath.Rel(r.here.root, path)
		return !filepath.IsAbs(path) || !strings.HasSuffix(path, ".py") || err != nil ||
			!filepath.IsLocal(rel) || r.linked(rel)
	})
}

// linked reports whether a path is one that both trees share.
func (r *checking) linked(rel string) bool {
	return slices.ContainsFunc(r.file.Link, func(link string) bool {
		inside, err := filepath.Rel(filepath.Join(r.here.folder, link), rel)
		return err == nil && filepath.IsLocal(inside)
	})
}

// pythonPath is the PYTHONPATH of the other tree: ours with its folders moved there, and before
// them the folders that the packages of these files lie in.
func (r *checking) pythonPath(files []string) []string {
	var path []string
	add := func(folder string) {
		if !slices.Contains(path, folder) {
			path = append(path, folder)
		}
	}
	for _, file := range files {
		folder := filepath.Dir(file)
		for {
			if _, err := os.Stat(filepath.Join(folder, "__init__.py")); err != nil {
				break
			}
			folder = filepath.Dir(folder)
		}
		if rel, err := filepath.Rel(r.here.root, folder); err == nil {
			add(filepath.Join(r.there.root, rel))
		}
	}
	for _, folder := range filepath.SplitList(os.Getenv("PYTHONPATH")) {
		rel, err := filepath.Rel(r.here.root, folder)
		if filepath.IsAbs(folder) && err == nil && filepath.IsLocal(rel) {
			folder = filepath.Join(r.there.root, rel)
		}
		add(folder)
	}
	if path == nil {
		return nil
	}
	return []string{"PYTHONPATH=" + strings.Join(path, string(filepath.ListSeparator))}
}

// changed are the changed places, with the files that a run read and git does not know yet.
func (r *checking) changed(now *plan.Prediction) []guard.Hunk {
	hunks := slices.Clone(r.hunks)
	text, err := git(r.s.ctx, r.here.root, "ls-files", "-z", "--others", "--exclude-standard")
	if err != nil {
		return hunks
	}
	for _, name := range strings.Split(strings.Trim(text, "\x00"), "\x00") {
		if !slices.Contains(now.Files, name) || r.linked(filepath.FromSlash(name)) {
			continue
		}
		if data, err := os.ReadFile(filepath.Join(r.here.root, name)); err == nil {
			hunks = append(hunks, guard.Hunk{File: name, OldFirst: 1, NewFirst: 1,
				Added: strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")})
		}
	}
	return hunks
}

// mostEffects bounds how many changed files are tried alone.
const mostEffects = 8

// effects measures what each changed file does alone: it is put into the other revision, and that
// is rehearsed. With one changed file there is nothing to find out.
func (r *checking) effects(c *guard.Check, one *guard.Result) []guard.Effect {
	if one.Difference.Device == 0 && one.Difference.Allocated == 0 || len(c.Command) == 0 {
		return nil
	}
	var files []string
	was := map[string]string{}
	for _, change := range one.Difference.Changes {
		if !slices.Contains(files, change.File) {
			files = append(files, change.File)
			was[change.File] = change.Was
		}
	}
	if len(files) < 2 {
		return nil
	}
	var out []guard.Effect
	for _, file := range files[:min(len(files), mostEffects)] {
		if interrupted(r.s.ctx) {
			return nil
		}
		out = append(out, r.effect(c, one, file, was[file]))
	}
	return out
}

// effect tries one file.
func (r *checking) effect(c *guard.Check, one *guard.Result, file, was string) guard.Effect {
	e := guard.Effect{File: file}
	defer r.restore(file, was)
	err := r.put(file, was)
	if err == nil {
		var p *plan.Prediction
		if p, _, err = r.answerThere(c); err == nil {
			e.Device = p.DevicePeak - one.Before.DevicePeak
		}
	}
	if err != nil {
		e.Error = plainWords(err)
	}
	return e
}

// put copies a file of this tree into the other one, in place of what it was called there.
func (r *checking) put(file, was string) error {
	to := filepath.Join(r.there.root, file)
	if was != "" {
		if err := os.Remove(filepath.Join(r.there.root, was)); err != nil {
			return err
		}
	}
	data, err := os.ReadFile(filepath.Join(r.here.root, file))
	if os.IsNotExist(err) {
		return nil // the change is that it is gone
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o700)
}

// restore undoes put.
func (r *checking) restore(file, was string) {
	_ = os.Remove(filepath.Join(r.there.root, file))
	if was != "" {
		_, _ = git(r.s.ctx, r.there.root, "checkout", "--quiet", "HEAD", "--", was)
	}
}
