//go:build !linux || nogpu || !(amd64 || arm64)

package nvml

import "errors"

// Library is never made in this build.
type Library struct{}

// Open returns why there is nothing to open.
func Open() (*Library, error) {
	return nil,
		errors.New("this build of memroom reads no GPU (built without NVML, or for a system without it)")
}

// Path is never reached.
func (*Library) Path() string { return "" }

// Driver is never reached.
func (*Library) Driver() (Driver, error) { return Driver{}, nil }

// Devices is never reached.
func (*Library) Devices() ([]Device, error) { return nil, nil }

// Close is never reached.
func (*Library) Close() error { return nil }
