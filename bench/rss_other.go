//go:build !unix

package bench

import "os"

// maxRSS is not to be had where there is no Unix.
func maxRSS(*os.ProcessState) int64 { return 0 }
