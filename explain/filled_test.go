package explain

import (
	"strings"
	"testing"

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
