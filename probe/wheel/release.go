package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// release makes what a publication needs beside binaries and wheels, which are there already: the
// source distribution, recipes for brew, conda and containers, the list of what is built in (SBOM),
// checksums, and a statement of what was built from what (provenance). base is the address under
// which the files will be found.
func release(version, dist, base string) error {
	if err := writeSource(version, dist); err != nil {
		return err
	}
	sums, err := checksums(dist)
	if err != nil {
		return err
	}
	if err := writeRecipes(version, dist, base, sums); err != nil {
		return err
	}
	if err := writeComponents(version, dist); err != nil {
		return err
	}
	if sums, err = checksums(dist); err != nil {
		return err
	}
	var text strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&text, "%s  %s\n", s.Digest.SHA256, s.Name)
	}
	if err := os.WriteFile(filepath.Join(dist, "SHA256SUMS"), []byte(text.String()),
		0o644); err != nil {
		return err
	}
	return writeProvenance(version, dist, sums)
}

// notSource are folders that no build needs.
var notSource = regexp.MustCompile(`(^|/)testdata/|_test\.go$|` +
	`^(attack|bench|docs|examples|testenv|web/browsertest|trial/conformance)/`)

// writeSource packs what a build needs into the source distribution that pip understands.
func writeSource(version, dist string) error {
	listed, err := exec.Command("git", "ls-files", "-z", "--cached", "--others",
		"--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	files := map[string][]byte{"VERSION": []byte(version + "\n"),
		"PKG-INFO": []byte(metadata(version))}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(listed), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || notSource.MatchString(name) {
			continue // a link shows the layout of installed files to a checkout
		}
		if files[name], err = os.ReadFile(name); err != nil {
			return err
		}
	}
	files["pyproject.toml"] = bytes.ReplaceAll(files["packaging/pyproject.toml"], []byte("VERSION"),
		[]byte(version))
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	archive := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := tar.Header{Name: "memroom-" + version + "/" + name, Mode: 0o644,
			Size: int64(len(files[name])), ModTime: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := archive.Write(files[name]); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := packed.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dist, "memroom-"+version+".tar.gz"), out.Bytes(), 0o644)
}

// subject is a file of the release, as in-toto names it.
type subject struct {
	Name   string `json:"name"`
	Digest struct {
		SHA256 string `json:"sha256"`
	} `json:"digest"`
}

// checksums sums up the files of a release.
func checksums(dist string) ([]subject, error) {
	entries, err := os.ReadDir(dist)
	if err != nil {
		return nil, err
	}
	var list []subject
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "SHA256SUMS" || strings.HasSuffix(e.Name(),
			".intoto.json") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dist, e.Name()))
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(data)
		one := subject{Name: e.Name()}
		one.Digest.SHA256 = hex.EncodeToString(sum[:])
		list = append(list, one)
	}
	return list, nil
}

// blank is a place in a recipe that is filled in.
var blank = regexp.MustCompile(`@(VERSION|BASE|(?:SHA|WHEEL) [\w.-]+)@`)

// writeRecipes fills in the recipes. A file that was not built stays out: a recipe that names it
// would be wrong.
func writeRecipes(version, dist, base string, sums []subject) error {
	of := map[string]string{"VERSION": version, "BASE": base}
	for _, s := range sums {
		of["SHA "+s.Name] = s.Digest.SHA256
		for _, p := range platforms {
			if strings.HasSuffix(s.Name, p.tag+".whl") {
				place := strings.TrimPrefix(p.binary, "memroom-")
				of["WHEEL "+place], of["SHA "+place+".whl"] = s.Name, s.Digest.SHA256
			}
		}
	}
	for _, name := range []string{"memroom.rb", "recipe.yaml", "Containerfile"} {
		text, err := os.ReadFile(filepath.Join("packaging", name))
		if err != nil {
			return err
		}
		missing := ""
		filled := blank.ReplaceAllStringFunc(string(text), func(place string) string {
			value, known := of[strings.Trim(place, "@")]
			if !known {
				missing = place
			}
			return value
		})
		if missing != "" {
			return fmt.Errorf("packaging/%s: nothing was built for %s: run `make wheel` first",
				name, missing)
		}
		if err := os.WriteFile(filepath.Join(dist, name), []byte(filled), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// component is a module that is built in, as CycloneDX names it.
type component struct {
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// writeComponents lists what the Go linker recorded in a binary.
func writeComponents(version, dist string) error {
	info, err := buildinfo.ReadFile(filepath.Join(dist, "memroom-linux-amd64"))
	if err != nil {
		return err
	}
	list := []component{{"library", "std", strings.TrimPrefix(info.GoVersion, "go"),
		"pkg:golang/std@" + strings.TrimPrefix(info.GoVersion, "go")}}
	for _, d := range info.Deps {
		list = append(list, component{"library", d.Path, d.Version,
			"pkg:golang/" + d.Path + "@" + d.Version})
	}
	return writeJSON(filepath.Join(dist, "memroom-"+version+".cdx.json"), map[string]any{
		"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": list,
		"metadata": map[string]any{"component": component{"application", "memroom", version,
			"pkg:golang/memroom@" + version}}})
}

// writeProvenance states, as SLSA does, which commit and which compiler made which files. It is not
// signed: who publishes signs it.
func writeProvenance(version, dist string, sums []subject) error {
	commit, err := exec.Command("git", "rev-parse", "HEAD").Output()
	if err != nil {
		return fmt.Errorf("git rev-parse: %w", err)
	}
	changed, err := exec.Command("git", "status", "--porcelain").Output()
	if err != nil {
		return fmt.Errorf("git status: %w", err)
	}
	compiler, err := exec.Command("go", "version").Output()
	if err != nil {
		return fmt.Errorf("go version: %w", err)
	}
	return writeJSON(filepath.Join(dist, "memroom-"+version+".intoto.json"), map[string]any{
		"_type": "https://in-toto.io/Statement/v1", "subject": sums,
		"predicateType": "https://slsa.dev/provenance/v1",
		"predicate": map[string]any{"buildDefinition": map[string]any{
			"buildType":          "make release",
			"externalParameters": map[string]any{"version": version, "modified": len(changed) > 0},
			"resolvedDependencies": []any{map[string]any{"uri": "git",
				"digest": map[string]string{"gitCommit": strings.TrimSpace(string(commit))}}},
			"internalParameters": map[string]any{"go": strings.TrimSpace(string(compiler))}},
			"runDetails": map[string]any{"builder": map[string]string{"id": "make"}}}})
}

func writeJSON(path string, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
