package explain

import (
	"strings"
	"testing"

	"memroom/event"
	"memroom/remedy"
)

// TestCuresHaveTheirNames: the cure is written with the names of the line that filled memory.
func TestCuresHaveTheirNames(t *testing.T) {
	for line, want := range map[string]string{
		"frame = pd.read_csv(path)":               `memroom.Stream(path,`,
		"frame = pd.read_json(name)":              `memroom.Stream(name,`,
		`x = np.load("a.npy")`:                    `np.load("a.npy", mmap_mode="r")`,
		`x = torch.load("f.pt")["x"]`:             `torch.load("f.pt", mmap=True)`,
		"rows = json.load(f)":                     "instead of f",
		"samples = pickle.load(f)":                "what is in f",
		`image = Image.open(name).convert("RGB")`: "keep name and decode",
		"images = [decode(p) for p in paths]":     "for p in ...",
		"kept.append(read(p))":                    "keeping it in kept",
		"frame = pd.concat([frame, part])":        "joining them in frame",
		`scaled = raw.astype("float64") / 255`:    "raw[i:i + n]",
		`x = f["x"][:]`:                           `keep f["x"] open`,
		`x = np.array(f["x"])`:                    `f["x"][i:i + n]`,
		`x = np.fromfile(path, dtype="f4")`:       "np.memmap(path,",
		"y = keras.utils.to_categorical(y, 1000)": "keep y as numbers",
		"rows = cursor.fetchall()":                "cursor.fetchmany",
		"table = list(csv.reader(f))":             "for row in csv.reader(f)",
		"text = open(path).read()":                "for line in open(path)",
		"table = pc.read_csv(path)":               "memroom.Stream(path,",
		"self.cache[i] = self.read(i)":            "what self.cache keeps",
		"return np.random.rand(128, 1024)":        "each np.random.rand",
		"scaled = (whole - mean) / deviation":     "make scaled a part at a time",

		"table = pd.read_csv(sys.argv[1])":                 "pd.read_csv(sys.argv[1], chunksize=100_000)",
		"t = pd.read_csv(join(a, b), sep=';')":             "read_csv(join(a, b), sep=';', chunksize",
		`t = pd.read_csv(f"{root}/x,y).csv")`:              `memroom.Stream(f"{root}/x,y).csv", budget`,
		`t = pd.read_csv(args["data"]).dropna()`:           `memroom.Stream(args["data"], budget`,
		`t = pd.read_csv(Path(root) / "x.csv")`:            `memroom.Stream(Path(root) / "x.csv", budget`,
		`t = pd.read_csv(p[i], sep=",", names=[1])`:        `read_csv(p[i], sep=",", names=[1], chunksize`,
		"t = pd.read_csv(path,":                            "read_csv(path, ..., chunksize",
		"t = pd.read_csv(":                                 "general",
		"t = pd.read_csv(os.path.join(a,":                  "general",
		"t = pd.read_csv(sep=';', io=name)":                "general",
		"t = pd.read_csv(name, chunksize=size)":            "general",
		`w = torch.load(d["w"], map_location=dev)`:         `torch.load(d["w"], map_location=dev, mmap=True)`,
		"rows = list(csv.reader(open(join(a, b))))":        "for row in csv.reader(open(join(a, b))):",
		"t = pd.read_sql(query, con)":                      "read_sql(query, con, chunksize",
		"self.rows.append(read(p))":                        "keeping it in self.rows,",
		"features = extract(model, list_of_every_picture)": "make features a part",
	} {
		x := Explanation{Remedies: []Advice{{ID: remedy.StreamData, How: remedy.How{Code: "general"}}}}
		x.inTheirWords("`" + line + "` at train.py:9 filled host memory: it grew by 5GiB there")
		if got := x.Remedies[0].How.Code; !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
}

// TestCuresStandForEveryLine: each line that is blamed gets its own words, under a title that is
// true of what is written.
func TestCuresStandForEveryLine(t *testing.T) {
	evidence := []string{"the memory is held by history in /a/gan.py:24 (`history.append(fake)`): 1MiB more",
		"the memory is held by losses in /a/gan.py:25 (`losses.append(d_loss)`): 1KiB more"}
	for n, want := range map[int]string{
		2: "keep values without their graph|history.append(fake.detach().cpu())   # gan.py:24\n" +
			"losses.append(d_loss.item())   # gan.py:25",
		1: "numbers|losses.append(d_loss.item())   # gan.py:25",
	} {
		x := Explanation{Remedies: []Advice{{ID: remedy.Detach, Title: "numbers",
			How: remedy.How{Code: "general"}}}}
		x.lettingGo(evidence[2-n:])
		if got := x.Remedies[0].Title + "|" + x.Remedies[0].How.Code; got != want {
			t.Errorf("%d lines: %q", n, got)
		}
	}
}

// TestCuresLetGoInTheirWords: a line that keeps graphs is written as it keeps none, where it is
// simple, and the verdict begins with what was kept.
func TestCuresLetGoInTheirWords(t *testing.T) {
	for line, want := range map[string]string{
		"history.append(loss)":             "history.append(loss.item())   # train.py:9",
		"self.outputs.append(model(x))":    "self.outputs.append(model(x).detach().cpu())   # train.py:9",
		"total += losses['ce']":            "total += losses['ce'].item()   # train.py:9",
		"total = total + loss":             "total = total + loss.item()   # train.py:9",
		`seen["loss"] = out.loss`:          `seen["loss"] = out.loss.item()   # train.py:9`,
		"kept.append((step, loss))":        "total += loss.item()",
		"kept.append(loss / len(batches))": "total += loss.item()",
		"kept.append(":                     "total += loss.item()",
	} {
		leak := event.Finding{Kind: "leak", Detail: "kept_graph", Severity: event.SeverityWarning,
			Title: "a leak in `kept`", Confidence: 0.9, Remedies: []string{"detach"}, Evidence: []string{
				"the memory is held by kept in /a/train.py:9 (`" + line + "`): 1MiB in host memory more"}}
		x := Explain(Material{Findings: []event.Finding{leak}, HostLimit: event.GiB,
			Verdict: &event.Verdict{ExitCode: 137, Signal: "SIGKILL", IsOOM: true,
				Where: event.WhereCgroup, KilledBy: "cgroup"}})
		if got := x.Remedies[0].How.Code; !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
		if !strings.HasPrefix(x.Verdict, leak.Title+". The job's own limit") ||
			strings.Contains(strings.Join(x.Evidence, "\n"), leak.Title) {
			t.Errorf("%q, %q", x.Verdict, x.Evidence)
		}
	}
}
