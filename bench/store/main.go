// Command store prints how long `memroom run -- true`, `runs` and `show` take with many stored
// runs.
//
//	go run ./bench/store [-runs 10000]
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	runs := flag.Int("runs", 10_000, "stored runs")
	flag.Parse()
	if err := measure(*runs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func measure(runs int) error {
	dir, err := os.MkdirTemp("", "memroom-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ours := filepath.Join(dir, "memroom")
	if out, err := exec.Command("go", "build", "-o", ours,
		"memroom/cmd/memroom").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	home := filepath.Join(dir, "home")
	if err := fill(home, runs); err != nil {
		return err
	}
	fmt.Printf("%d stored runs\n", runs)
	for _, args := range [][]string{{"run", "--", "true"}, {"run", "--", "true"}, {"runs"},
		{"runs", "--reindex"}, {"runs"}, {"show"}} {
		if err := once(ours, home, args); err != nil {
			return err
		}
	}
	return nil
}

// fill makes runs of the last 80 days, with the files that a short run leaves
// (docs/format/run.md).
func fill(home string, runs int) error {
	began := time.Now().Add(-80 * 24 * time.Hour)
	for i := range runs {
		at := began.Add(time.Duration(i) * 80 * 24 * time.Hour / time.Duration(runs))
		id := at.Format("20060102-150405-") + "abc"
		dir := filepath.Join(home, "runs", id)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		run, err := json.Marshal(map[string]any{"id": id, "started": at,
			"command": []string{"python", "train.py"}})
		if err != nil {
			return err
		}
		for name, data := range map[string]string{"run.json": string(run),
			"keeper.json": `{"keeper":1,"finished":true}`, "exit.json": `{"code":0}`,
			"verdict.json": `{"exit_code":0}`, "output": "loss 1\n",
			"summary.json": `{"run":` + string(run) + `}`} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o600); err != nil {
				return err
			}
		}
	}
	return nil
}

func once(binary, home string, args []string) error {
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "MEMROOM_HOME="+home)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w\n%s", args, err, out)
	}
	fmt.Printf("  %-20s %7.2f s\n", strings.Join(args, " "), time.Since(began).Seconds())
	return nil
}
