package relay

import (
	"bytes"
	"compress/gzip"
	"reflect"
	"strings"
	"testing"
)

func TestFramesTravel(t *testing.T) {
	frames := []Frame{{File: "output", At: 5, Data: []byte("\x00\n{}\n")},
		{File: "run.json", Whole: true, Data: []byte("{}")}, {File: "dumps/a.pickle", Data: []byte{}}}
	body, err := Pack(frames)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Unpack(bytes.NewReader(body)); err != nil || !reflect.DeepEqual(got, frames) {
		t.Errorf("%v %v", got, err)
	}
}

// TestHostileFrames: no name leads out of a folder, nothing grows without bound.
func TestHostileFrames(t *testing.T) {
	packed := func(text string) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		_, _ = z.Write([]byte(text))
		_ = z.Close()
		return out.Bytes()
	}
	for _, c := range []string{
		`{"file":"../x","at":0,"size":0}`, `{"file":"dumps/../../x","at":0,"size":0}`,
		`{"file":"dumps/..","at":0,"size":0}`, `{"file":"/etc/passwd","at":0,"size":0}`,
		`{"file":"dumps/.x","at":0,"size":0}`, `{"file":"keeper.sock","at":0,"size":0}`,
		`{"file":"reported.json","at":0,"size":0,"whole":true}`,
		`{"file":"report.json","at":0,"size":0,"whole":true}`,
		`{"file":"run.json","at":0,"size":0}`, `{"file":"output","at":0,"size":0,"whole":true}`,
		`{"file":"output","at":-1,"size":0}`, `{"file":"output","at":0,"size":-1}`,
		`{"file":"output","at":0,"size":99999999999}`, `{"file":"output","at":0,"size":9}`,
		`{"file":"dumps/a\\b","at":0,"size":0}`, "{}", "x", strings.Repeat("x", 1<<20),
	} {
		if frames, err := Unpack(bytes.NewReader(packed(c + "\n"))); err == nil {
			t.Errorf("%.60s: taken as %+v", c, frames)
		}
	}
	bomb := packed(strings.Repeat(`{"file":"output","at":0,"size":1048576}`+"\n"+
		strings.Repeat("\x00", 1<<20), 40))
	if _, err := Unpack(bytes.NewReader(bomb)); err == nil {
		t.Errorf("%d bytes unpack to 40 MiB and are taken", len(bomb))
	}
	if _, err := Unpack(strings.NewReader("plain")); err == nil {
		t.Error("what is not packed is taken")
	}
}

func TestAddressesOfServers(t *testing.T) {
	for _, bad := range []string{"", "host:8722", "ftp://x", "http://", "http://a:b@c",
		"http://a?token=x", "http://a/#b", "://", "file:///etc"} {
		if CheckURL(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	for _, good := range []string{"http://127.0.0.1:8722", "https://host/", "http://[::1]:8/base"} {
		if err := CheckURL(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}
