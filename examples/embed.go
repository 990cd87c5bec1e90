// Package examples holds the example pipelines inside the program, so that the
// demo needs no file beside it.
package examples

import "embed"

// Files holds each example's mapping and data, under the name of its directory.
//
//go:embed earthquakes/mapping.yaml earthquakes/quakes.ndjson
var Files embed.FS
