package probe

import "memroom/python"

// Package returns the Python files that pip installs, by their path below site-packages: the
// package `memroom` and the probe it speaks to. sitecustomize.py stays out: installed for good it
// would change every Python of the environment.
func Package() (map[string][]byte, error) {
	files, _, err := embedded()
	if err == nil {
		err = collect(files, python.Python, ".", "")
	}
	delete(files, "sitecustomize.py")
	return files, err
}
