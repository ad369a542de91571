package browsertest

import (
	"os"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// TestPictureOfARun takes the picture of the README: of the run MEMROOM_PICTURE_RUN in the home
// MEMROOM_PICTURE_HOME, to MEMROOM_TEST_SHOTS.
func TestPictureOfARun(t *testing.T) {
	home, id := os.Getenv("MEMROOM_PICTURE_HOME"), os.Getenv("MEMROOM_PICTURE_RUN")
	if home == "" {
		t.Skip("needs MEMROOM_PICTURE_HOME: only who changes the README takes its picture")
	}
	s := serve(t, home)
	p := openAddress(t, s.url+"/runs/"+id, "#accounts .account")
	p.run(emulation.SetDeviceMetricsOverride(1200, 860, 1, false))
	p.until(drawn)
	var data []byte
	p.run(chromedp.Sleep(1e9), chromedp.CaptureScreenshot(&data))
	if err := os.WriteFile(os.Getenv("MEMROOM_TEST_SHOTS")+"/picture.png", data, 0o644); err != nil {
		t.Fatal(err)
	}
	p.quiet()
}
