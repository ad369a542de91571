// Command wheel builds what a release is made of (see release.go), first of all the Python wheels:
// the binary, the probe and the importable package `memroom` in one file a platform, so that `pip
// install` is all a user does. A wheel is a zip archive with a fixed layout; nothing is compiled by
// pip.
package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"memroom/probe"
)

// platforms pairs a release binary (`make dist`) with the tag pip chooses wheels by.
var platforms = []struct{ binary, tag string }{
	{"memroom-linux-amd64", "manylinux_2_17_x86_64.manylinux2014_x86_64"},
	{"memroom-linux-arm64", "manylinux_2_17_aarch64.manylinux2014_aarch64"},
	{"memroom-darwin-amd64", "macosx_11_0_x86_64"},
	{"memroom-darwin-arm64", "macosx_11_0_arm64"},
}

func main() {
	version := flag.String("version", "", "version of the wheels, such as 0.1.0")
	dist := flag.String("dist", "dist", "folder of the release binaries; the wheels go there too")
	only := flag.String("only", "",
		"build the wheel of this binary alone, such as memroom-linux-amd64")
	base := flag.String("release", "",
		"make the other files of a release, which will be found under this address")
	flag.Parse()
	if *base != "" {
		if err := release(*version, *dist, *base); err != nil {
			fmt.Fprintln(os.Stderr, "release:", err)
			os.Exit(1)
		}
		return
	}
	if err := build(*version, *dist, *only); err != nil {
		fmt.Fprintln(os.Stderr, "wheel:", err)
		os.Exit(1)
	}
}

func build(version, dist, only string) error {
	if version == "" {
		return errors.New("-version is missing")
	}
	built := 0
	for _, p := range platforms {
		if only != "" && only != p.binary {
			continue
		}
		binary, err := os.ReadFile(filepath.Join(dist, p.binary))
		if err != nil {
			return fmt.Errorf("%w: run `make dist` first", err)
		}
		path, err := write(dist, version, p.tag, binary)
		if err != nil {
			return err
		}
		fmt.Println(path)
		built++
	}
	if built == 0 {
		return fmt.Errorf("no platform has a binary called %s", only)
	}
	return nil
}

// write makes one wheel and returns its path.
func write(dist, version, tag string, binary []byte) (string, error) {
	files, err := contents(version, tag, binary)
	if err != nil {
		return "", err
	}
	packed, err := pack(files, "memroom-"+version+".dist-info/RECORD")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dist, fmt.Sprintf("memroom-%s-py3-none-%s.whl", version, tag))
	return path, os.WriteFile(path, packed, 0o644)
}

// contents returns the files of a wheel by their path in it.
func contents(version, tag string, binary []byte) (map[string][]byte, error) {
	files, err := probe.Package()
	if err != nil {
		return nil, err
	}
	files["memroom/_version.py"] = []byte("__version__ = " + fmt.Sprintf("%q", version) + "\n")
	files["memroom-"+version+".data/scripts/memroom"] = binary
	info := "memroom-" + version + ".dist-info/"
	files[info+"METADATA"] = []byte(metadata(version))
	files[info+"WHEEL"] = []byte(wheelFile(tag))
	files[info+"entry_points.txt"] = []byte("[pytest11]\nmemroom = memroom.pytest_plugin\n")
	licence, err := os.ReadFile("LICENSE")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	files[info+"licenses/LICENSE"] = licence
	return files, nil
}

func metadata(version string) string {
	return "Metadata-Version: 2.4\nName: memroom\nVersion: " + version + "\n" +
		"Summary: Keeps deep-learning training from running out of memory\n" +
		"License-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Python: >=3.8\n" +
		"Description-Content-Type: text/plain\n\n" +
		"Put `memroom run --` in front of a training command, and it stops dying of memory.\n"
}

func wheelFile(tag string) string {
	lines := "Wheel-Version: 1.0\nGenerator: memroom\nRoot-Is-Purelib: false\n"
	for platform := range strings.SplitSeq(tag, ".") {
		lines += "Tag: py3-none-" + platform + "\n"
	}
	return lines
}

// pack zips the files in order of their names and with one date, so that the same input yields the
// same bytes. The record, which pip checks what it installs against, comes last.
func pack(files map[string][]byte, record string) ([]byte, error) {
	var names []string
	for name := range files {
		names = append(names, name)
	}
	sort.Strings(names)
	var lines strings.Builder
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, name := range names {
		sum := sha256.Sum256(files[name])
		fmt.Fprintf(&lines, "%s,sha256=%s,%d\n", name,
			base64.RawURLEncoding.EncodeToString(sum[:]), len(files[name]))
		if err := add(archive, name, files[name]); err != nil {
			return nil, err
		}
	}
	fmt.Fprintf(&lines, "%s,,\n", record)
	if err := add(archive, record, []byte(lines.String())); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func add(archive *zip.Writer, name string, data []byte) error {
	header := &zip.FileHeader{Name: name, Method: zip.Deflate,
		Modified: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)}
	mode := fs.FileMode(0o644)
	if strings.Contains(name, ".data/scripts/") {
		mode = 0o755 // pip keeps the mode of scripts
	}
	header.SetMode(mode)
	w, err := archive.CreateHeader(header)
	if err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}
