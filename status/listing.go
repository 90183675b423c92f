package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// namesPage is how many objects one page asks for of which little is kept; client-go's own pager takes 500.
	namesPage = 500
	// maxListStarts bounds how often a list starts again because its continue token expired.
	maxListStarts = 3
	// largePage is how many bytes a page may have; after a larger one the next asks for half as many objects. Metadata carries managedFields, which
	// can be as large as the object.
	largePage = 4 << 20
)

// A listing is what to list, and how.
type listing struct {
	resource  schema.GroupVersionResource
	namespace string // empty: all
	selector  string // of labels; empty: all
	fields    string // a selector of fields; empty: all
	first     bool   // only the first page that has an object
	brief     bool   // within the time that asking for one Node may take
	full      bool   // whole objects, not metadata only
	page      int    // objects in one page, at first
}

// objectMeta is what a list of names keeps of each object.
type objectMeta struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// list reads the names of all objects of a resource, in one namespace or (empty) in all. It returns the whole list or an error, never a part.
func (c *Client) list(ctx context.Context, resource schema.GroupVersionResource, namespace string) ([]objectMeta, error) {
	return listAll(ctx, c, listing{resource: resource, namespace: namespace, page: namesPage}, nameItem)
}

func nameItem(d *json.Decoder) (objectMeta, error) {
	var item struct {
		Metadata objectMeta `json:"metadata"`
	}
	err := d.Decode(&item)
	if err == nil && (item.Metadata.Name == "" || item.Metadata.UID == "") {
		err = errors.New("an item has no name or no uid")
	}
	return item.Metadata, err
}

// listAll reads all objects page by page, an object at a time, and keeps of each what item makes of it. It returns the whole list or an error, never a
// part.
func listAll[T any](ctx context.Context, c *Client, l listing, item func(*json.Decoder) (T, error)) ([]T, error) {
	for start := 1; ; start++ {
		objects, err := listOnce(ctx, c, l, item)
		var failure *RequestError
		if !errors.As(err, &failure) || failure.Code != http.StatusGone || start == maxListStarts {
			return objects, err
		}
		// The token is older than the server's history: what was read so far says nothing.
		if c.wait(ctx, jitter(firstBackoff)) != nil {
			return nil, err
		}
	}
}

func listOnce[T any](ctx context.Context, c *Client, l listing, item func(*json.Decoder) (T, error)) ([]T, error) {
	var all []T
	next, limit := "", l.page
	accept := acceptMetadataList
	if l.full {
		accept = acceptJSON
	}
	for {
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		if next != "" {
			query.Set("continue", next)
		}
		if l.selector != "" {
			query.Set("labelSelector", l.selector)
		}
		var page listPage[T]
		var read counter
		if l.fields != "" {
			query.Set("fieldSelector", l.fields)
		}
		r := request{verb: "list", resource: l.resource, namespace: l.namespace, query: query, accept: accept}
		if l.brief {
			r.attempts, r.timeout, r.patience = askAttempts, askTimeout, askPatience
		}
		err := c.do(ctx, r, func(body io.Reader) (err error) {
			read = counter{from: body}
			page, err = readPage(&read, l.full, item)
			return err
		})
		if err != nil && read.n >= maxAnswer && limit > 1 { // longer than any answer that is read
			limit /= 2
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, page.items...)
		if page.next == "" || l.first && len(all) > 0 {
			return all, nil
		}
		if page.next == next {
			return nil, fmt.Errorf("list %s: the server's continue token leads to itself", l.resource.Resource)
		}
		if next = page.next; read.n > largePage {
			limit = max(limit/2, 1)
		}
	}
}

// A counter counts what is read through it.
type counter struct {
	from io.Reader
	n    int
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.from.Read(b)
	c.n += n
	return n, err
}

type listPage[T any] struct {
	items []T
	next  string // the continue token, "" on the last page
}

// readPage decodes one page as a stream, an object at a time. It fails on anything but a whole list: of metadata, unless full.
func readPage[T any](body io.Reader, full bool, item func(*json.Decoder) (T, error)) (listPage[T], error) {
	var page listPage[T]
	var kind string
	d := json.NewDecoder(body)
	if err := expect(d, json.Delim('{')); err != nil {
		return page, err
	}
	for d.More() {
		field, err := d.Token()
		if err != nil {
			return page, err
		}
		switch field {
		case "kind":
			err = d.Decode(&kind)
		case "metadata":
			var list struct {
				Continue string `json:"continue"`
			}
			err = d.Decode(&list)
			page.next = list.Continue
		case "items":
			page.items, err = readItems(d, item)
		default:
			err = d.Decode(new(json.RawMessage))
		}
		if err != nil {
			return page, err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return page, err
	}
	switch {
	case !full && kind != "PartialObjectMetadataList":
		return page, fmt.Errorf("not a list of metadata but %q", kind)
	case full && !strings.HasSuffix(kind, "List"):
		return page, fmt.Errorf("not a list but %q", kind)
	}
	return page, nil
}

// errSkipped is what an item function returns for an object that does not count.
var errSkipped = errors.New("skipped")

func readItems[T any](d *json.Decoder, item func(*json.Decoder) (T, error)) ([]T, error) {
	start, err := d.Token()
	if err != nil || start == nil { // null is an empty list
		return nil, err
	}
	if start != json.Delim('[') {
		return nil, fmt.Errorf("items is not a list")
	}
	var items []T
	for d.More() {
		v, err := item(d)
		if errors.Is(err, errSkipped) {
			continue
		}
		if err != nil {
			return nil, err
		}
		items = append(items, v)
	}
	return items, expect(d, json.Delim(']'))
}

func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err == nil && got != want {
		err = fmt.Errorf("%v where %v should stand", got, want)
	}
	return err
}
