package main

import (
	"fmt"
	"math"
	"os"

	"memroom/allocsim"
	"memroom/event"
	"memroom/plan"
)

func main() {
	for _, p := range os.Args[1:] {
		f, _ := os.Open(p)
		r, err := plan.ReadRehearsal(f)
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Print(p, " ")
		for _, s := range []float64{1, 0.97, 0.98, 0.99, 0.995, 1.005, 1.01, 1.02, 1.03, 1.05} {
			tl := r.Timeline
			tl.Ops = append([]event.Op{}, tl.Ops...)
			for i, op := range tl.Ops {
				t := tl.Tags[op.Tag]
				if op.Kind == event.OpAlloc && t.Category == event.CategoryWorkspace && (t.Op == "convolution" || t.Op == "convolution_backward" || t.Op == "recurrent") {
					tl.Ops[i].Size = int64(math.Round(float64(op.Size) * s))
				}
			}
			res, _ := allocsim.Run(&tl, allocsim.Options{Config: allocsim.DefaultConfig(), Version: "2.11"})
			fmt.Printf(" %g:%.0f", s, float64(res.ReservedPeak)/(1<<20))
		}
		fmt.Println()
	}
}
