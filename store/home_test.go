package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"memroom/event"
	"memroom/testenv"
)

// tree describes everything below a folder: names, modes, owners, times.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprint(path, info.Mode(), ownerOf(info), info.ModTime(),
			info.Size()))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// refused wants a folder to be refused with these words, and nothing in it to have changed.
func refused(t *testing.T, home string, words ...string) {
	t.Helper()
	before := tree(t, home)
	_, err := Open(home)
	var foreign *Foreign
	if !errors.As(err, &foreign) || foreign.Fix == "" {
		t.Fatalf("%v; want it to be refused", err)
	}
	for _, w := range append(words, home, "MEMROOM_HOME") {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%v: does not say %q", err, w)
		}
	}
	if after := tree(t, home); !slices.Equal(before, after) {
		t.Errorf("changed\n%q\nto\n%q", before, after)
	}
}

func makeDir(t *testing.T, mode os.FileMode, parts ...string) string {
	t.Helper()
	dir := filepath.Join(parts...)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func writeFile(t *testing.T, parts ...string) string {
	t.Helper()
	path := filepath.Join(parts...)
	makeDir(t, 0o755, filepath.Dir(path))
	if err := os.WriteFile(path, []byte("theirs"), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOpenRefusesOthersFolders: a folder with anything in it that is not ours.
func TestOpenRefusesOthersFolders(t *testing.T) {
	for name, path := range map[string]string{
		"a project":       "train.py",
		"TensorBoard":     "runs/Nov14_10-00-00_host/events.out",
		"a file in runs":  "runs/notes.txt",
		"only a dot file": ".git/config",
		"like an ID":      "runs/20261341-000000-abc/x", // no such month
		"nearly an ID":    "runs/20260101-000000-abcd/x",
		"capitals":        "runs/20260101-000000-ABC/x",
	} {
		t.Run(name, func(t *testing.T) {
			home := makeDir(t, 0o755, t.TempDir(), "home")
			writeFile(t, home, path)
			refused(t, home, "other things", "touch")
			if _, err := Read(home); err == nil {
				t.Error("can be read as a store")
			}
			testenv.Write(t, filepath.Join(home, markFile), nil)
			if _, err := Open(home); err != nil {
				t.Errorf("marked by the user: %v", err)
			}
		})
	}
}

// TestOpenAdopts: a new folder, an empty one, and what earlier versions made.
func TestOpenAdopts(t *testing.T) {
	for name, paths := range map[string][]string{
		"empty":       {},
		"a run":       {"runs/20260101-000000-abc/run.json"},
		"all of ours": {"index.sqlite", "index.sqlite-wal", "tidied", "fit/x.json", "probe/1/x.py"},
		"cards":       {"cards.json"},
	} {
		t.Run(name, func(t *testing.T) {
			home := makeDir(t, 0o755, t.TempDir(), "home")
			for _, path := range paths {
				writeFile(t, home, path)
			}
			if _, err := Open(home); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(filepath.Join(home, markFile)); err != nil ||
				info.Mode().Perm() != 0o600 {
				t.Errorf("mark: %v %v", info, err)
			}
			if info, _ := os.Stat(home); info.Mode().Perm() != 0o755 {
				t.Errorf("the mode was changed to %v", info.Mode())
			}
			writeFile(t, home, "something.txt") // the mark holds
			if _, err := Open(home); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOpenRefusesSharedFolders: others may write to it, or it is no folder at all.
func TestOpenRefusesSharedFolders(t *testing.T) {
	for mode, words := range map[os.FileMode]string{0o777: "chmod go-w", 0o770: "chmod go-w",
		0o702: "chmod go-w", 0o777 | os.ModeSticky: "shared"} {
		home := makeDir(t, mode, t.TempDir(), "home")
		refused(t, home, "others may write", words)
	}
	file := writeFile(t, t.TempDir(), "home")
	refused(t, file, "is a file")
}

// TestOpenRefusesOtherOwners: folders of another user, and links that another user planted.
func TestOpenRefusesOtherOwners(t *testing.T) {
	const nobody = 65534
	if os.Geteuid() != 0 {
		testenv.Needs(t, "root", "to make folders and links of another user")
	}
	theirs := makeDir(t, 0o755, t.TempDir(), "home")
	if err := os.Lchown(theirs, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	refused(t, theirs, "belongs to user 65534", "this is user 0")

	shared := makeDir(t, 0o777|os.ModeSticky, t.TempDir(), "tmp")
	ours := makeDir(t, 0o755, t.TempDir(), "ours")
	link := filepath.Join(shared, "memroom-0")
	if err := errors.Join(os.Symlink(ours, link), os.Lchown(link, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	for _, home := range []string{link, filepath.Join(link, "below"),
		filepath.Join(link, "far", "below")} {
		before := tree(t, ours)
		if _, err := Open(home); err == nil || !strings.Contains(err.Error(),
			"link that user 65534") {
			t.Errorf("%s: %v", home, err)
		}
		if after := tree(t, ours); !slices.Equal(before, after) {
			t.Errorf("%s: changed %q to %q", home, before, after)
		}
	}
	// a link of our own is what the user wants: the records lie on a larger disk
	own := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(ours, own); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(own); err != nil {
		t.Error(err)
	}
}

// TestReadChangesNothing: with an index, without one, with one of before, and without a home.
func TestReadChangesNothing(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	check := func(name string) {
		t.Helper()
		before := tree(t, s.Home)
		r, err := Read(s.Home)
		if err != nil {
			t.Fatal(err)
		}
		if got := listed(t, r, Filter{}); len(got) != len(ids) {
			t.Errorf("%s: listed %v", name, got)
		}
		if _, err := r.Find("first"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if after := tree(t, s.Home); !slices.Equal(before, after) {
			t.Errorf("%s: changed\n%q\nto\n%q", name, before, after)
		}
	}
	check("no index")
	refresh(t, s, 3)
	check("index")
	f := ended(t, s, time.Now(), event.Run{}, event.Exit{}, event.Verdict{})
	ids = append(ids, f.ID)
	check("old index")

	none := filepath.Join(t.TempDir(), "none")
	r, err := Read(none)
	if err != nil || r.Exists() {
		t.Fatalf("%v", err)
	}
	if got := listed(t, r, Filter{}); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
	if _, err := os.Stat(none); err == nil {
		t.Error("reading made the home")
	}
	for name, change := range map[string]func(*Store) error{
		"prune": func(s *Store) error {
			_, err := s.Prune(Retention{Age: 1}, time.Now(),
				false)
			return err
		},
		"tidy": func(s *Store) error {
			_, err := s.Tidy(Retention{Age: 1},
				time.Now())
			return err
		},
		"reindex": func(s *Store) error { _, err := s.Reindex(); return err },
		"refresh": func(s *Store) error { _, err := s.Refresh(1); return err },
	} {
		if r, _ := Read(s.Home); change(r) == nil {
			t.Errorf("%s works on a store that was opened to be read", name)
		}
	}
}

// TestIndexIsUsed: a row comes from the index until its folder changes.
func TestIndexIsUsed(t *testing.T) {
	s := testStore(t)
	ids := someRuns(t, s)
	refresh(t, s, 3)
	refresh(t, s, 0)
	// a change that leaves every file's time alone is seen only by who reads the folder
	f := s.Folder(ids[0])
	info, err := os.Stat(f.Path(verdictFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SaveVerdict(event.Verdict{IsOOM: true}); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(f.Path(verdictFile), info.ModTime(), info.ModTime()); err != nil {
		t.Fatal(err)
	}
	if got := listed(t, s, Filter{OOM: true}); len(got) != 1 {
		t.Errorf("the index was not used: %v", got)
	}
	for _, name := range []string{runFile, stateFile, exitFile, verdictFile, summaryFile} {
		later := info.ModTime().Add(time.Minute)
		if err := os.Chtimes(f.Path(name), later, later); err != nil {
			t.Fatal(err)
		}
		refresh(t, s, 1)
	}
	if got := listed(t, s, Filter{OOM: true}); len(got) != 2 {
		t.Errorf("the change was not seen: %v", got)
	}
	if n, err := s.Reindex(); err != nil || n != 3 || len(s.readIndex()) != 3 {
		t.Errorf("%d, %v", n, err)
	}
	// a run that is not over is looked at each time
	g, err := s.Create(time.Now())
	if err == nil {
		err = g.SaveRun(event.Run{ID: g.ID, Started: time.Now()})
	}
	if err != nil {
		t.Fatal(err)
	}
	writeKeeper(t, g, os.Getpid())
	refresh(t, s, 1)
	if got := listed(t, s, Filter{Active: true}); len(got) != 1 || len(s.readIndex()) != 3 {
		t.Errorf("active: %v, %d rows", got, len(s.readIndex()))
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	refresh(t, s, 1)
	if len(s.readIndex()) != 2 {
		t.Errorf("a deleted run stays in the index")
	}
}
