//go:build !linux

package cli

func checkAddressSpace() error { return nil }
