package source

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// openS3 reads s3://bucket/key with the variables that Amazon's own tools read: AWS_ACCESS_KEY_ID,
// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, and AWS_ENDPOINT_URL for other servers.
// Without keys the object is asked for without a signature.
func openS3(name string) (File, error) {
	bucket, key, found := strings.Cut(strings.TrimPrefix(name, "s3://"), "/")
	if !found || bucket == "" || key == "" {
		return nil, fmt.Errorf("%s: write s3://bucket/key", name)
	}
	region := first(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	endpoint := first(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3."+region+".amazonaws.com")
	target, err := url.Parse(strings.TrimSuffix(endpoint, "/"))
	if err != nil {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL: %w", err)
	}
	target.Path = "/" + bucket + "/" + key
	target.RawPath = escapePath(target.Path)
	w := &web{name: name, target: target}
	if id := os.Getenv("AWS_ACCESS_KEY_ID"); id != "" {
		k := keys{id: id, secret: os.Getenv("AWS_SECRET_ACCESS_KEY"),
			token: os.Getenv("AWS_SESSION_TOKEN"), region: region}
		w.sign = k.sign
	}
	return openWeb(w)
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

type keys struct{ id, secret, token, region string }

// sign adds a signature of version 4 to a request without a body.
func (k keys) sign(r *http.Request) {
	now := time.Now().UTC()
	stamp, day := now.Format("20060102T150405Z"), now.Format("20060102")
	const empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" // SHA-256 of ""
	r.Header.Set("x-amz-date", stamp)
	r.Header.Set("x-amz-content-sha256", empty)
	if k.token != "" {
		r.Header.Set("x-amz-security-token", k.token)
	}
	names := []string{"host"}
	for name := range r.Header {
		if lower := strings.ToLower(name); lower == "range" || strings.HasPrefix(lower, "x-amz-") {
			names = append(names, lower)
		}
	}
	slices.Sort(names)
	var headers strings.Builder
	for _, name := range names {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.URL.Host
		}
		fmt.Fprintf(&headers, "%s:%s\n", name, strings.TrimSpace(value))
	}
	signed := strings.Join(names, ";")
	request := strings.Join([]string{r.Method, escapePath(r.URL.Path), r.URL.RawQuery,
		headers.String(), signed, empty}, "\n")
	scope := day + "/" + k.region + "/s3/aws4_request"
	sum := sha256.Sum256([]byte(request))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", stamp, scope, hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + k.secret)
	for _, part := range []string{day, k.region, "s3", "aws4_request"} {
		key = mac(key, part)
	}
	r.Header.Set("Authorization", fmt.Sprintf(
		"AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%s", k.id, scope, signed,
		hex.EncodeToString(mac(key, text))))
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// escapePath writes a path as signatures want it: everything but letters, digits and -._~/ escaped.
func escapePath(path string) string {
	var out strings.Builder
	for i := range len(path) {
		c := path[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9',
			strings.IndexByte("-._~/", c) >= 0:
			out.WriteByte(c)
		default:
			fmt.Fprintf(&out, "%%%02X", c)
		}
	}
	return out.String()
}
