// Package savepoint keeps savepoints in a directory: a checkpoint of every task
// of a pipeline, all of one barrier.
//
//	DIR/PIPELINE/NAME/tasks/STAGE/PARTITION/…          the files of a checkpoint
//	DIR/PIPELINE/NAME/tasks/STAGE/PARTITION/PART.json  what they are, with their checksums
//	DIR/PIPELINE/NAME/MANIFEST.json                    the savepoint, with the checksums of the parts
//
// Contract
//
//  1. A part appears whole: it is written under another name, synced, renamed,
//     and its directory synced. The manifest appears likewise, when every part
//     is there: a savepoint is whole exactly when it has a manifest.
//  2. Every byte is covered: the manifest by its own checksum, the parts by the
//     manifest, the files by the parts. Verify reads them all, and says which
//     file is damaged, and how.
//  3. Whoever finishes the last part writes the manifest. Two who do it at
//     once write the same, but for the time of day: one of them stays.
//  4. Nothing that is whole ever changes. Remove takes the manifest away first.
//
// The functions may be called from any goroutine and any process that has the
// directory; what they rely on is that a rename is atomic there.
package savepoint
