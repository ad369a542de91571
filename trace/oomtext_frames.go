package trace

import (
	"strconv"
	"strings"

	"memroom/event"
)

// The ways in which Python, IPython and rich print a line of a traceback.
var (
	pythonFrame  = later(`File "([^"]{1,400})", line (\d+), in (\S{1,200})`)
	ipythonFrame = later(`^\s*(?:File )?((?:~|/|\.{1,2}/|[A-Za-z]:\\|<ipython)[^\s:()]{1,300})(?::(\d+))?,? in ([\w<>.]+)\(?`)
	cellFrame    = later(`^\s*(Cell In\s?\[\d+\]|Input In \[\d+\]), (?:line (\d+)|in )`)
	arrowLine    = later(`^\s*-+> ?(\d+) `)
	richFrame    = later(`[│|]\s+(/[^:│]{1,300}):(\d+) in (\S+)`)
	tracebackTop = later(`Traceback \(most recent call last\)`)
)

// frames gives the traceback that ends at the passage, innermost first.
func (p *passage) frames() []event.Frame {
	var frames []event.Frame
	arrow := 0
	for _, line := range p.above(160) {
		if m := arrowLine.FindStringSubmatch(line); m != nil {
			arrow, _ = strconv.Atoi(m[1])
		}
		if f, ok := frameIn(line); ok {
			if f.Line == 0 {
				f.Line = arrow
			}
			arrow = 0
			if frames = append(frames, f); len(frames) == maxFramesAbove {
				break
			}
		}
		if tracebackTop.MatchString(line) && len(frames) > 0 {
			break
		}
	}
	return frames
}

func frameIn(line string) (event.Frame, bool) {
	if m := pythonFrame.FindStringSubmatch(line); m != nil {
		return newFrame(m[1], m[2], m[3]), true
	}
	if m := cellFrame.FindStringSubmatch(line); m != nil {
		return newFrame(m[1], m[2], "<module>"), true
	}
	if m := richFrame.FindStringSubmatch(line); m != nil {
		return newFrame(m[1], m[2], m[3]), true
	}
	if m := ipythonFrame.FindStringSubmatch(line); m != nil {
		return newFrame(m[1], m[2], m[3]), true
	}
	return event.Frame{}, false
}

func newFrame(file, line, name string) event.Frame {
	n, _ := strconv.Atoi(line)
	return event.Frame{File: file, Line: n, Name: strings.TrimRight(name, ",:")}
}

// libraryPaths mark files that the user did not write.
var libraryPaths = []string{"site-packages", "dist-packages", "/lib/python", "\\lib\\",
	"/lib64/python", "<frozen", "<string>", "<__array_function__", "importlib",
	"/torch/", "/bin/torchrun", "/bin/accelerate", "/bin/deepspeed", "miniconda3/envs",
	"/opt/conda/", "runpy.py", "/pytorch/", "/usr/lib/"}

// LibraryFrame reports whether a frame lies in an installed library or in Python itself rather than
// in the user's code.
func LibraryFrame(f event.Frame) bool {
	for _, part := range libraryPaths {
		if strings.Contains(f.File, part) {
			return true
		}
	}
	return false
}

// UserFrame gives the innermost frame of the user's own code.
func (c *Crash) UserFrame() (event.Frame, bool) {
	for _, f := range c.Frames {
		if !LibraryFrame(f) {
			return f, true
		}
	}
	return event.Frame{}, false
}
