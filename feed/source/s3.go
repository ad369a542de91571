package source

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strings"
	"time"
)

// s3Place is where buckets are, and who asks, by the variables that Amazon's own tools read:
// AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_REGION, and AWS_ENDPOINT_URL for
// other servers. Without keys objects are asked for without a signature.
func s3Place() (*url.URL, func(*http.Request), error) {
	region := first(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
	endpoint := first(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		"https://s3."+region+".amazonaws.com")
	place, err := url.Parse(strings.TrimSuffix(endpoint, "/"))
	if err != nil {
		return nil, nil, fmt.Errorf("AWS_ENDPOINT_URL is not an address: write it like " +
			"https://HOST:9000")
	}
	id := os.Getenv("AWS_ACCESS_KEY_ID")
	if id == "" {
		return place, nil, nil
	}
	k := keys{id: id, secret: os.Getenv("AWS_SECRET_ACCESS_KEY"),
		token: os.Getenv("AWS_SESSION_TOKEN"), region: region}
	return place, k.sign, nil
}

// openS3 opens s3://bucket/key.
func openS3(name string) (File, error) {
	bucket, key, found := strings.Cut(strings.TrimPrefix(name, "s3://"), "/")
	if !found || bucket == "" || key == "" {
		return nil, fmt.Errorf("%s: write s3://bucket/key", Shown(name))
	}
	target, sign, err := s3Place()
	if err != nil {
		return nil, err
	}
	target.Path += "/" + bucket + "/" + key
	target.RawPath = escapePath(target.Path)
	return openWeb(&web{name: Shown(name), target: target, sign: sign})
}

// listed is a page of the objects of a bucket.
type listed struct {
	Contents []struct {
		Key string `xml:"Key"`
	} `xml:"Contents"`
	IsTruncated bool   `xml:"IsTruncated"`
	Next        string `xml:"NextContinuationToken"`
}

// globS3 returns the objects whose names match, in the order of their names.
func globS3(pattern string) ([]string, error) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(pattern, "s3://"), "/")
	if bucket == "" || key == "" || strings.ContainsAny(bucket, "*?[") {
		return nil, fmt.Errorf("%s: write s3://bucket/key; only the key may be a pattern", pattern)
	}
	if _, err := path.Match(key, ""); err != nil {
		return nil, fmt.Errorf("%s: %w", pattern, err)
	}
	var names []string
	for token := ""; ; {
		page, err := listS3(pattern, bucket, key[:strings.IndexAny(key, "*?[")], token)
		if err != nil {
			return nil, err
		}
		for _, object := range page.Contents {
			if ok, _ := path.Match(key, object.Key); ok {
				names = append(names, "s3://"+bucket+"/"+object.Key)
			}
		}
		if token = page.Next; !page.IsTruncated || token == "" {
			break
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no object matches %s: look with aws s3 ls at what there is", pattern)
	}
	slices.Sort(names)
	return names, nil
}

func listS3(pattern, bucket, prefix, token string) (*listed, error) {
	target, sign, err := s3Place()
	if err != nil {
		return nil, err
	}
	target.Path += "/" + bucket
	// a signature wants the parts of a query in the order of their names
	query := "list-type=2&prefix=" + escapeQuery(prefix)
	if token != "" {
		query = "continuation-token=" + escapeQuery(token) + "&" + query
	}
	target.RawQuery = query
	w := &web{name: pattern, target: target, sign: sign, client: clientFor(target)}
	answer, err := w.whole()
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var page listed
	if err := xml.NewDecoder(io.LimitReader(answer.Body, 64<<20)).Decode(&page); err != nil {
		return nil, fmt.Errorf("%s: the list of objects cannot be read: %w", pattern, err)
	}
	return &page, nil
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

// escapeQuery writes a value of a query as signatures want it.
func escapeQuery(value string) string {
	return strings.ReplaceAll(escapePath(value), "/", "%2F")
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
