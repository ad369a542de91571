package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// endSignals are those that ask a command to end. One started under nohup outlives its terminal;
// one that a shell started in the background, where Ctrl-C is ignored, still ends when it is asked
// to by name.
func endSignals() []os.Signal {
	list := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// putAway lets a command end in order when a signal asks it to: its context ends, so that what it
// has started ends and its folders are removed. The process then dies of the signal, as its caller
// expects. A second signal ends it at once. The function that is returned stops listening.
func (s *session) putAway() (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	s.ctx = ctx
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endSignals()...)
	over := make(chan struct{})
	heard := make(chan os.Signal, 1)
	go func() {
		select {
		case one := <-signals:
			signal.Reset(endSignals()...)
			heard <- one
			cancel()
		case <-over:
		}
	}()
	return func() {
		close(over)
		signal.Stop(signals)
		cancel()
		select {
		case s.ended = <-heard:
		default:
		}
	}
}

// dieOf ends this process by a signal, and returns the exit code for where that is not possible.
func dieOf(one os.Signal) int {
	number, ok := one.(syscall.Signal)
	if !ok {
		return exitUsage
	}
	signal.Reset(number)
	if process, err := os.FindProcess(os.Getpid()); err == nil && process.Signal(number) == nil {
		select {} // it is on its way
	}
	return 128 + int(number)
}
