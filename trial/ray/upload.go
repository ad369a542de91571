package ray

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// Ray keeps packages in the memory of its head and refuses large ones; ours are code.
const mostPackage = 100 << 20

// upload packs a folder and sends it to Ray under a name made of its content, so that the same
// folder is sent once. A URI is returned as it is.
func (e *Engine) upload(folder string) (uri string, err error) {
	if folder == "" || strings.Contains(folder, "://") {
		return folder, nil
	}
	packed, err := pack(folder)
	if err != nil {
		return "", fmt.Errorf("--working-dir %s: %w", folder, err)
	}
	name := fmt.Sprintf("_ray_pkg_%x.zip", sha256.Sum256(packed))[:len("_ray_pkg_")+32] + ".zip"
	path := "/api/packages/gcs/" + name
	var there any
	if err := e.get(path, &there); err == nil {
		return "gcs://" + name, nil
	}
	request, err := http.NewRequest(http.MethodPut, e.base+path, bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	answer, err := e.send(request)
	if err != nil {
		return "", fmt.Errorf("--working-dir %s: send it to Ray: %w", folder, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 400))
		return "", fmt.Errorf("--working-dir %s: Ray does not take it (%d): %s", folder,
			answer.StatusCode, text)
	}
	return "gcs://" + name, nil
}

// skipped folders hold no code that a trial runs.
var skipped = map[string]bool{".git": true, ".venv": true, "venv": true, "__pycache__": true,
	"node_modules": true, ".mypy_cache": true}

// pack makes a zip that depends on names and contents alone.
func pack(folder string) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	total := int64(0)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != folder && skipped[entry.Name()] {
			return filepath.SkipDir
		}
		info, err := os.Stat(path) // what a link points to
		if err != nil || !info.Mode().IsRegular() {
			return nil
		}
		if total += info.Size(); total > mostPackage {
			return fmt.Errorf("it holds more than %d MiB: take a folder with the code alone",
				mostPackage>>20)
		}
		return packFile(archive, folder, path, info)
	})
	err = errors.Join(err, archive.Close())
	return out.Bytes(), err
}

func packFile(archive *zip.Writer, folder, path string, info fs.FileInfo) error {
	name, err := filepath.Rel(folder, path)
	if err != nil {
		return err
	}
	header := &zip.FileHeader{Name: filepath.ToSlash(name), Method: zip.Deflate}
	header.SetMode(info.Mode())
	to, err := archive.CreateHeader(header)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(to, file)
	return err
}
