package status

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSchedule plays what happens to a resource, one step a line: "SECONDS EVENT", and after => when the next look is.
func TestSchedule(t *testing.T) {
	for name, script := range map[string]string{
		"due at once, then regularly": `
			0 start => now
			0 looked => 300
			300 looked => 600`,
		"spread": `
			0 looked spread=1 => 330
			330 looked spread=-1 => 600`,
		"a candidate waits out its grace": `
			0 looked wait=a@0 => 60
			60 looked => 360`,
		"candidates are gathered": `
			5 looked wait=a@0,b@4 => 64
			64 looked => 364`,
		"but not for too long": `
			25 looked wait=a@0,b@24 => 70
			70 looked wait=b@24 => 84`,
		"one that has waited long enough does not make it look without end": `
			100 looked wait=a@0 => 110`,
		"a departure": `
			0 looked => 300
			10 left a => 70
			70 looked => 370`,
		"a departure shortly before the regular look": `
			0 looked => 300
			280 left a => 300
			300 looked wait=a@280 => 340
			340 looked => 640`,
		"a return cancels it": `
			0 looked => 300
			10 left a => 70
			30 returned a => 300`,
		"also when the regular look came between": `
			0 looked => 300
			280 left a => 300
			300 looked wait=a@280 => 340
			310 returned a => 600`,
		"departures are gathered": `
			0 looked => 300
			10 left a => 70
			13 left b => 73
			19 left c => 79
			40 left d => 80
			80 looked wait=d@40 => 100`,
		"one of several returns": `
			0 looked => 300
			10 left a => 70
			13 left b => 73
			14 returned b => 70`,
		"a failed pass is tried again, less and less often": `
			0 looked failed => 5
			5 looked failed => 15
			15 looked failed => 35
			35 looked failed => 75
			75 looked failed => 155
			155 looked failed => 315
			315 looked failed => 615
			615 looked => 915
			915 looked failed => 920`,
		"a failed pass with departures": `
			0 looked => 300
			10 left a => 70
			70 looked failed => 75`,
		"what could not be confirmed is tried again a grace later": `
			0 looked unconfirmed => 60`,
		"aimed: a departure is looked at soon, and once more an interval later": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			30 looked wait=a@20 => 80
			80 looked => 380
			379 tick => 380
			380 tick => 380 a
			380 looked => 680`,
		"aimed: a return cancels both": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			25 returned a => 300
			40 left a => 50 a
			50 looked => 350
			60 returned a => 350
			350 looked => 650`,
		"aimed: departures are gathered": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			27 left b => 30 a,b
			30 looked => 37 b
			37 looked => 337`,
		"aimed: again while the first is still to be looked at": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			30 looked => 330
			370 left a => 330 a
			371 looked => 380 a`,
		"aimed: what a long pass did not begin with is looked at after it": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			30 looked => 330
			350 looked begun=330 => 380
			385 left b => 380 a,b
			560 looked begun=350 => 380 a,b
			561 looked => 745`,
		"aimed: one that left in a long pass is looked at after it": `
			0 aimed
			0 looked => 300
			310 left a => 300 a
			400 looked begun=300 => 320 a
			401 looked => 670`,
		"aimed: what was looked at counts also where something else failed": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			30 looked partly => 35
			36 looked => 336`,
		"one that left in a long pass, before whose end its grace was over": `
			0 looked => 300
			300 left a => 300
			400 looked begun=299 => 360
			401 looked => 701`,
		"what can never be proved": `
			0 looked unconfirmed => 60
			60 looked unconfirmed => 180
			180 looked unconfirmed => 420
			420 looked unconfirmed => 720
			720 looked unconfirmed => 1020
			1020 looked => 1320
			1320 looked unconfirmed => 1380`,
		"aimed: what cannot be done keeps no other waiting": `
			0 aimed
			0 looked partly => 5
			5 looked partly => 15
			15 looked partly => 35
			40 left a => 35 a
			50 looked partly wait=a@50 => 90
			90 looked partly wait=a@50 => 110
			110 looked partly => 270
			411 looked partly wait=b@300 => 711`,
		"aimed: a departure waits while nothing can be read": `
			0 aimed
			0 looked => 300
			20 left a => 30 a
			30 looked failed => 35 a
			35 looked failed => 45 a
			45 looked => 345
			380 looked => 680`,
	} {
		t.Run(name, func(t *testing.T) {
			s := &Schedule{Interval: 300 * time.Second, Grace: 60 * time.Second}
			for line := range strings.Lines(strings.TrimSpace(script)) {
				step, want, _ := strings.Cut(strings.TrimSpace(line), " => ")
				fields := strings.Fields(step)
				now := seconds(t, fields[0])
				switch fields[1] {
				case "aimed":
					s.Aimed = true
					continue
				case "left":
					s.Left(fields[2], now)
				case "returned":
					s.Returned(fields[2])
				case "looked":
					spread, begun := 0.0, now
					report := &TargetReport{State: OK, Resources: []ResourceReport{{}}}
					for _, f := range fields[2:] {
						what, value, _ := strings.Cut(f, "=")
						switch what {
						case "spread":
							fmt.Sscan(value, &spread)
						case "failed":
							report.State, report.Resources = Unavailable, nil
						case "partly":
							report.State = Unavailable
						case "begun":
							begun = seconds(t, value)
						case "unconfirmed":
							report.Resources[0].Findings = append(report.Resources[0].Findings, Finding{Key: "x", Verdict: Keep, Reason: Unconfirmed})
						case "wait":
							for w := range strings.SplitSeq(value, ",") {
								key, since, _ := strings.Cut(w, "@")
								report.Resources[0].Findings = append(report.Resources[0].Findings,
									Finding{Key: key, Verdict: Wait, Reason: Waiting, Since: seconds(t, since)},
									Finding{Key: "alive", Verdict: Keep, Reason: MemberAlive})
							}
						}
					}
					s.Looked(report, begun, now, spread)
				}
				want, departed, _ := strings.Cut(want, " ")
				if got := strings.Join(s.Departed(now), ","); s.Aimed && got != departed {
					t.Errorf("%s: departed %s, want %s", step, got, departed)
				}
				if s.Aimed && s.Leaving() != 0 {
					t.Errorf("%s: %d are leaving", step, s.Leaving())
				}
				got := s.Next()
				if want == "now" {
					if got.After(now) {
						t.Errorf("%s: next look %v, want at once", step, got)
					}
				} else if !got.Equal(seconds(t, want)) {
					t.Errorf("%s: next look at %.0f s, want %s", step, got.Sub(noon).Seconds(), want)
				}
			}
		})
	}
}

func seconds(t *testing.T, text string) time.Time {
	t.Helper()
	d, err := time.ParseDuration(text + "s")
	if err != nil {
		t.Fatal(err)
	}
	return noon.Add(d)
}
