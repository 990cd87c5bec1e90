package main

import (
	"fmt"
	"strings"
	"testing"
)

// featureText renders a source feature whose magnitude is the given text.
func featureText(id, updated, mag, extra string) string {
	return fmt.Sprintf(`{"type":"Feature","properties":{"mag":%s,"place":"1km N of A, B","time":5,"updated":%s,`+
		`"tz":-480,"url":"u","detail":"d","felt":null,"cdi":2.70,"mmi":null,"alert":null,"status":"automatic",`+
		`"tsunami":0,"sig":62,"net":"ci","code":"1","ids":",i,","sources":",s,","types":",t,","nst":null,`+
		`"dmin":0.04,"rms":0.35,"gap":174,"magType":"ml","type":"earthquake","title":"t"%s},`+
		`"geometry":{"type":"Point","coordinates":[-118.6671667,34.50,-1e1]},"id":%q}`, mag, updated, extra, id)
}

func collectionText(features ...string) string {
	return `{"type":"FeatureCollection","metadata":{"count":1},"features":[` + strings.Join(features, ",\n") + `]}`
}

func TestConvertOrdersByUpdatedThenIDAndKeepsNumbersByteExact(t *testing.T) {
	in := collectionText(
		featureText("b", "20", "1.50", ""),
		featureText("c", "9", "-0.0", ""),
		featureText("a", "20", "12345678901234567890.10", ""))
	var out strings.Builder
	if err := convert(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	want := func(id, mag, updated string) string {
		return `{"id":"` + id + `","mag":` + mag + `,"place":"1km N of A, B","time":5,"updated":` + updated +
			`,"tz":-480,"felt":null,"cdi":2.70,"mmi":null,"alert":null,"status":"automatic","tsunami":0,"sig":62,` +
			`"net":"ci","code":"1","nst":null,"dmin":0.04,"rms":0.35,"gap":174,"magType":"ml","type":"earthquake",` +
			`"title":"t","lon":-118.6671667,"lat":34.50,"depth":-1e1}` + "\n"
	}
	expected := want("c", "-0.0", "9") + want("a", "12345678901234567890.10", "20") + want("b", "1.50", "20")
	if out.String() != expected {
		t.Errorf("got\n%s\nwant\n%s", out.String(), expected)
	}
}

func TestConvertRefusesAFieldThatItDoesNotKnow(t *testing.T) {
	in := collectionText(featureText("a", "1", "1", `,"novelty":1`))
	err := convert(strings.NewReader(in), &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), `"novelty"`) {
		t.Errorf("got %v, want an error that names the field", err)
	}
}

func TestConvertRefusesAMissingField(t *testing.T) {
	in := strings.Replace(collectionText(featureText("a", "1", "1", "")), `"gap":174,`, "", 1)
	err := convert(strings.NewReader(in), &strings.Builder{})
	if err == nil || !strings.Contains(err.Error(), `"gap"`) {
		t.Errorf("got %v, want an error that names the field", err)
	}
}
