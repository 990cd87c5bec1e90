package mapping

import (
	"os"
	"strings"
	"testing"
)

// What is kept where others read it means the same, and holds no secret.
func TestTheTextOfAMappingMeansTheSameAndHoldsNoConnection(t *testing.T) {
	example, err := os.ReadFile("../examples/earthquakes/mapping.yaml")
	if err != nil {
		t.Fatal(err)
	}
	secrets := `# a comment
pipeline: p
kafka: {brokers: ["127.0.0.1:1"], sasl: {mechanism: PLAIN, username: u, password: {env: PW}}, tls: {}}
ontology: {postgres: {env: URL}}
streams:
  s: {topic: t, key: a, event_time: at, watermark: {out_of_orderness: 90s}} # another
objects:
  O:
    from: s
    id: a
    where: 'a != "x: y"'
    properties: {b: {value: "text(c) + \"\u00e9\"", kind: text}}
`
	env := func(name string) (string, bool) { return "hunter2://" + name, true }
	for _, file := range []string{string(example), secrets} {
		plan, err := Parse("m.yaml", []byte(file), env)
		if err != nil {
			t.Fatal(err)
		}
		text := string(plan.Text())
		again, err := Parse("text", plan.Text(), nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if again.Version != plan.Version || string(again.Text()) != text {
			t.Errorf("version %s is read again as %s:\n%s", plan.Version, again.Version, text)
		}
		for _, no := range []string{"hunter2", "kafka", "ontology", "PW", "comment"} {
			if strings.Contains(text, no) {
				t.Errorf("the text holds %s:\n%s", no, text)
			}
		}
	}
}
