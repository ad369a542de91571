package trace

import (
	"slices"
	"strconv"
	"strings"

	"memroom/event"
)

// The ways in which Python, IPython and rich print a line of a traceback.
var (
	pythonFrame  = later(`File "([^"]{1,400})", line (\d+), in (\S{1,200})`)
	ipythonFrame = later(`^\s*(?:File )?\[?((?:~|/|\.{1,2}/|[A-Za-z]:\\|<ipython)[^\s:()\[\]]{1,300})(?:\]\([^)\s]{0,200}\))?(?::(\d+))?,? in ([\w<>.]+)\(?`)
	cutFrame     = later(`^\s*line (\d+), in ([\w<>.]{1,200})\s*$`) // the file was cut off
	cellFrame    = later(`^\s*(Cell In\s?\[\d+\]|Input In \[\d+\]), (?:line (\d+)|in )`)
	arrowLine    = later(`^\s*-+> ?(\d+) `)
	richFrame    = later(`[│|]\s+((?:[A-Za-z]:)?[/\\][^:│]{1,300}):(\d+) in (\S+)`)
	tracebackTop = later(`Traceback \(most recent call last\)`)
)

// frames returns the traceback that ends at the passage, innermost first, and the source line of
// each frame. Lines that name another rank than the message belong to another traceback. Where
// nothing stands above, a traceback below the message is taken.
func (p *passage) frames() ([]event.Frame, []string) {
	rank := rankIn(p.line())
	frames, code := framesIn(mended(unbroken(p.above(160), p.width())), rank)
	if len(frames) > 0 {
		return frames, code
	}
	below := p.below(40)[1:]
	slices.Reverse(below)
	return framesIn(below, rank)
}

// Pieces of a frame's line that a logger broke between words, with blanks in front of each.
var (
	frameBegins = later(`^\s*File(?: "[^"]*(?:"(?:, line \d+,?)?)?)?$|^\s*File "[^"]+",(?: line(?: \d+,)?)?$`)
	framePieces = 3
)

// mended joins the lines of frames, nearest last first, that a logger broke.
func mended(lines []string) []string {
	whole := make([]string, 0, len(lines))
	for _, line := range lines {
		if last := len(whole) - 1; last >= 0 && frameBegins.MatchString(strings.TrimRight(line, " ")) {
			joined := strings.TrimSpace(line)
			for n := 0; n < framePieces && last >= n; n++ {
				joined += " " + strings.TrimSpace(whole[last-n])
				if pythonFrame.MatchString(joined) {
					whole = append(whole[:last-n], joined)
					break
				}
			}
			if pythonFrame.MatchString(whole[len(whole)-1]) && whole[len(whole)-1] == joined {
				continue
			}
		}
		whole = append(whole, line)
	}
	return whole
}

// framesIn reads frames from lines in reverse order.
func framesIn(lines []string, rank int) (frames []event.Frame, code []string) {
	arrow, source := 0, ""
	for _, line := range lines {
		if other := rankIn(line); rank >= 0 && other >= 0 && other != rank {
			continue
		}
		if m := arrowLine.FindStringSubmatch(line); m != nil {
			arrow, _ = strconv.Atoi(m[1])
			source = line[strings.Index(line, m[0])+len(m[0]):]
		}
		f, ok := frameIn(line)
		if !ok {
			if text := withoutPrefix(line); strings.Trim(text, "^~ ") != "" && arrow == 0 {
				source = text
			}
		} else {
			if f.Line == 0 {
				f.Line = arrow
			}
			frames, code = append(frames, f), append(code, cut(strings.TrimSpace(source), 300))
			arrow, source = 0, ""
			if len(frames) == maxFramesAbove {
				break
			}
		}
		if tracebackTop.MatchString(line) && len(frames) > 0 {
			break
		}
	}
	return frames, code
}

func frameIn(line string) (event.Frame, bool) {
	if m := pythonFrame.FindStringSubmatch(line); m != nil {
		return newFrame(m[1], m[2], m[3]), true
	}
	if m := cutFrame.FindStringSubmatch(line); m != nil {
		return newFrame("?", m[1], m[2]), true
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
var libraryPaths = []string{"/_memroom_probe/", "site-packages", "dist-packages", "/lib/python",
	"\\lib\\",
	"/lib64/python", "<frozen", "<string>", "<__array_function__", "importlib",
	"/torch/", "/bin/torchrun", "/bin/accelerate", "/bin/deepspeed", "miniconda3/envs",
	"/opt/conda/", ".pyx", ".pxi", ".pxd", "runpy.py", "/pytorch/", "/usr/lib/"}

// standard are files of Python's own library, as programs that were packed into one file name them.
var standard = later(`^(?:multiprocessing|concurrent|asyncio|threading|queue|pickle|subprocess|socket|` +
	`importlib|contextlib|functools|copy|json|runpy)(?:[/\\][\w./\\]*)?(?:\.pyc?)?$`)

// packaged are files of libraries whose paths a person has cut down to the package.
var packaged = later(`^(?:torch|torchvision|torchaudio|sklearn|numpy|scipy|pandas|transformers|diffusers|accelerate|peft|` +
	`deepspeed|tensorflow|keras|jax|flax|lightning|pytorch_lightning|monai|mmcv|mmengine|mmdet|mmseg|datasets|xgboost|lightgbm)[/\\]`)

// LibraryFrame reports whether a frame lies in an installed library or in Python itself rather than
// in the user's code.
func LibraryFrame(f event.Frame) bool {
	if standard.MatchString(f.File) || packaged.MatchString(f.File) {
		return true
	}
	for _, part := range libraryPaths {
		if strings.Contains(f.File, part) {
			return true
		}
	}
	return false
}

// UserFrame returns the innermost frame of the user's own code. A frame whose file was cut off may
// be anybody's.
func (c *Crash) UserFrame() (event.Frame, bool) {
	for _, f := range c.Frames {
		if !LibraryFrame(f) && f.File != "?" {
			return f, true
		}
	}
	return event.Frame{}, false
}
