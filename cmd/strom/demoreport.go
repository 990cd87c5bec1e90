package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/forge-platform/strom/cmd/strom/internal/quakes"
	"github.com/forge-platform/strom/cmd/strom/internal/ui"
	"github.com/forge-platform/strom/event"
)

// What the demo looks at closely: a day of which some quakes became known
// after days.
const demoRegion = "Alaska"

func demoDay() event.EventTime {
	return event.FromTime(time.Date(2018, time.February, 1, 0, 0, 0, 0, time.UTC))
}

// demoAsked are the recorded times as of which the demo asks one question.
func demoAsked() []time.Time {
	return []time.Time{
		time.Date(2018, time.February, 2, 3, 0, 0, 0, time.UTC),
		time.Date(2018, time.February, 2, 7, 0, 0, 0, time.UTC),
		time.Date(2018, time.February, 3, 0, 0, 0, 0, time.UTC),
	}
}

var errNotEqual = errors.New("the comparison is not equal: the engine and the brute-force reading of the file disagree; this is a bug of one of them, please report it with the output above")

// report shows what has come of the events, asking the database only.
func (d *demoRun) report(ctx context.Context) error {
	source, done, err := d.source(ctx)
	if err != nil {
		return err
	}
	defer done()
	d.reportTiming()
	if err := d.reportHistory(ctx, source); err != nil {
		return err
	}
	if err := d.reportAsOf(ctx, source); err != nil {
		return err
	}
	return d.reportComparison(ctx, source)
}

func (d *demoRun) heading(text string) {
	fmt.Fprintf(d.stdout, "%s\n", d.style().Bold(text))
}

func (d *demoRun) reportTiming() {
	c := d.run.Watch.Seen().Counters
	d.heading("When the events came")
	t := &ui.Table{Heads: []string{">EVENTS", "", ""}, Indent: "  "}
	t.Row(ui.Count(c.OnTime), "on time", "their day was still open")
	t.Row(ui.Count(c.Corrections), "corrections", "their day was closed, its state still at hand (6 h): a new version")
	t.Row(ui.Count(c.Late), "late corrections", "later still: the state was read back from the ontology, and corrected")
	_ = t.WriteBare(d.stdout)
	if c.DeadLetters > 0 {
		fmt.Fprintf(d.stdout, "  and %s\n", ui.Number(c.DeadLetters, "dead letter"))
	}
	fmt.Fprintln(d.stdout)
}

func (d *demoRun) reportHistory(ctx context.Context, source quakes.Source) error {
	versions, err := source.Versions(ctx, demoRegion)
	if err != nil {
		return err
	}
	d.heading(fmt.Sprintf("One day and all that was ever believed of it: %s, %s (UTC)", demoRegion, dateOf(demoDay())))
	t := &ui.Table{Heads: []string{">", "RECORDED FROM", "UNTIL", "WHY", ">AFTER THE WATERMARK", ">QUAKES", ">LARGEST"}, Indent: "  ", Style: d.style()}
	for _, v := range versions {
		if int64(v.Day.Start()) != int64(demoDay()) {
			continue
		}
		until := "(believed)"
		if v.Until != event.RecordedNever {
			until = v.Until.String()
		}
		t.Row(strconv.Itoa(v.Number), v.Recorded.String(), until, v.Cause.String(), lateness(v.Lateness), v.Count, v.MaxMag)
	}
	if err := t.Write(d.stdout); err != nil {
		return err
	}
	fmt.Fprintln(d.stdout)
	return nil
}

func dateOf(t event.EventTime) string { return t.Time().Format(time.DateOnly) }

// lateness writes microseconds for people; nothing for none.
func lateness(micros int64) string {
	if micros == 0 {
		return ""
	}
	return (time.Duration(micros) * time.Microsecond).Round(time.Second).String()
}

func (d *demoRun) reportAsOf(ctx context.Context, source quakes.Source) error {
	day := demoDay()
	d.heading(fmt.Sprintf("The same question as of three recorded times: how many quakes in %s on %s?", demoRegion, dateOf(day)))
	t := &ui.Table{Heads: []string{"AS OF", ">QUAKES", ">LARGEST"}, Indent: "  ", Style: d.style()}
	for _, at := range demoAsked() {
		asked := event.RecordedTime(at.UnixMicro())
		table, err := source.Table(ctx, demoRegion, &day, asked)
		if err != nil {
			return err
		}
		for _, row := range table {
			t.Row(asked.String(), row.Count, row.MaxMag)
		}
	}
	if err := t.Write(d.stdout); err != nil {
		return err
	}
	fmt.Fprintln(d.stdout)
	return nil
}

func (d *demoRun) reportComparison(ctx context.Context, source quakes.Source) error {
	comparisons, err := source.Compare(ctx, d.file)
	if err != nil {
		return err
	}
	d.heading("Compared with a brute-force reading of the file, which shares no code with the engine")
	s := d.style()
	ok := true
	for _, c := range comparisons {
		word := s.Good("equal")
		if !c.OK() {
			word = s.Bad("equal: NOT ALL")
			ok = false
		}
		fmt.Fprintf(d.stdout, "  %s of %s %s %s\n", ui.Count(c.Equal), ui.Count(c.Total), c.What, word)
		for _, line := range c.Different {
			fmt.Fprintf(d.stdout, "    %s\n", ui.Printable(line))
		}
	}
	fmt.Fprintln(d.stdout)
	if !ok {
		return errNotEqual
	}
	return nil
}
