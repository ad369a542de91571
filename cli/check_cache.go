package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"memroom/guard"
	"memroom/plan"
	"memroom/store"
)

// answerCache keeps answers of rehearsals by what they depend on: the command, its environment,
// this binary, the installed packages, and the content of every file of the program that was
// imported or read. An answer is found while all of that is as it was.
type answerCache struct {
	dir    string // empty: nothing is kept
	binary string // what this binary is
}

// keptAnswer is one file of the cache.
type keptAnswer struct {
	Sums   map[string]string `json:"sums"` // of files and folders, seen from the root
	Answer *plan.Prediction  `json:"answer"`
}

// mostAnswers bounds the cache: the oldest go.
const mostAnswers = 500

// openCache finds the folder. Without one nothing is kept.
func (c *checkCmd) openCache() (*answerCache, error) {
	if c.NoCache {
		return &answerCache{}, nil
	}
	dir := c.Cache
	if dir == "" {
		home, err := store.DefaultHome()
		if err != nil {
			return &answerCache{}, nil
		}
		dir = filepath.Join(home, "checks")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		if c.Cache != "" {
			return nil, err
		}
		return &answerCache{}, nil
	}
	self, err := os.Executable()
	if err != nil {
		return &answerCache{}, nil
	}
	return &answerCache{dir: dir, binary: sumOf(self)}, nil
}

// passing are the beginnings of variables that differ from run to run and that no training reads:
// of terminals, shells, sessions and CI jobs.
var passing = []string{"GITHUB_", "RUNNER_", "ACTIONS_", "CI_", "SSH_", "XDG_", "DBUS_", "TMUX",
	"MEMROOM_", "GIT_", "PWD=", "OLDPWD=", "SHLVL=", "_=", "TERM", "COLUMNS=", "LINES=", "DISPLAY=",
	"WINDOWID=", "INVOCATION_ID=", "JOURNAL_STREAM=", "COLORTERM=", "LS_COLORS=", "PYTEST_",
	"PRE_COMMIT", "TMPDIR=", "INPUT_", "HOSTNAME=", "BUILD_", "JOB_", "GITLAB_"}

// key is what is known before a rehearsal, as a name.
func (a *answerCache) key(at tree, c *guard.Check, args, environ []string) string {
	if a.dir == "" {
		return ""
	}
	sum := sha256.New()
	kept := slices.DeleteFunc(slices.Clone(environ), func(one string) bool {
		name, _, _ := strings.Cut(one, "=")
		if _, own := c.Env[name]; own {
			return false
		}
		return slices.ContainsFunc(passing, func(p string) bool { return strings.HasPrefix(one, p) })
	})
	slices.Sort(kept)
	program := ""
	if len(c.Command) > 0 {
		program, _ = exec.LookPath(c.Command[0])
	}
	measured, _ := calibrationPath()
	for _, word := range slices.Concat([]string{a.binary, sumOf(measured), at.folder, c.Folder,
		program}, args, kept) {
		word = strings.ReplaceAll(word, at.root, "") // a worktree's folder is another each time
		fmt.Fprintf(sum, "%d %s\n", len(word), word)
	}
	return hex.EncodeToString(sum.Sum(nil))[:32]
}

// find is the answer of an earlier run on which nothing has changed since, or nil.
func (a *answerCache) find(key, root string) *plan.Prediction {
	if a.dir == "" {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(a.dir, key+"-*.json"))
	sums := map[string]string{}
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		var kept keptAnswer
		if json.Unmarshal(data, &kept) == nil && kept.Answer != nil && kept.holds(root, sums) {
			return kept.Answer
		}
	}
	return nil
}

// holds reports whether all files are as they were. sums are those known already.
func (k *keptAnswer) holds(root string, sums map[string]string) bool {
	for path, was := range k.Sums {
		now, known := sums[path]
		if !known {
			now = sumOf(inside(root, path))
			sums[path] = now
		}
		if now != was {
			return false
		}
	}
	return true
}

// keep stores an answer. A cache that cannot be written is left out.
func (a *answerCache) keep(key, root string, p *plan.Prediction) {
	if a.dir == "" {
		return
	}
	kept := keptAnswer{Sums: map[string]string{}, Answer: p}
	all := sha256.New()
	for _, path := range slices.Concat(p.Files, p.Folders) {
		kept.Sums[path] = sumOf(inside(root, path))
		// a new file next to one that was read may be found in its place
		if dir := filepath.Dir(path); !slices.Contains(p.Folders, path) {
			kept.Sums[dir] = sumOf(inside(root, dir))
		}
	}
	text, err := json.Marshal(kept)
	if err != nil {
		return
	}
	all.Write(text)
	name := filepath.Join(a.dir, key+"-"+hex.EncodeToString(all.Sum(nil))[:16]+".json")
	part := fmt.Sprintf("%s.%d.part", name, os.Getpid())
	if os.WriteFile(part, text, 0o600) != nil || os.Rename(part, name) != nil {
		_ = os.Remove(part)
	}
	a.prune()
}

func (a *answerCache) prune() {
	names, _ := filepath.Glob(filepath.Join(a.dir, "*-*.json"))
	if len(names) <= mostAnswers {
		return
	}
	age := func(name string) int64 {
		if info, err := os.Stat(name); err == nil {
			return info.ModTime().UnixNano()
		}
		return 0
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Compare(age(a), age(b)) })
	for _, name := range names[:len(names)-mostAnswers] {
		_ = os.Remove(name)
	}
}

// inside is a path of an answer as one of this machine.
func inside(root, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(root, path)
}

// largeFile is data rather than code: its size and time stand for it.
const largeFile = 64 << 20

// sumOf is what a file holds, or which names a folder has; empty where there is nothing.
func sumOf(path string) string {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return ""
	case info.IsDir():
		return namesOf(path)
	case info.Size() > largeFile && !info.Mode().IsRegular():
		return ""
	case info.Size() > largeFile:
		return fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return ""
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// namesOf is a sum of the names in a folder. A folder of installed packages has their versions in
// them.
func namesOf(dir string) string {
	sum := sha256.New()
	for _, name := range filesIn(dir) {
		if name != "__pycache__" && !strings.HasPrefix(name, ".") {
			fmt.Fprintln(sum, name)
		}
	}
	return hex.EncodeToString(sum.Sum(nil))
}
