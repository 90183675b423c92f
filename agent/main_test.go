package agent

import (
	"flag"
	"os"
	"testing"

	"github.com/unstale/unstale/test/apiserver"
)

func TestMain(m *testing.M) {
	flag.Parse()
	// Scenes wait for gossip and graces far more than they work, so more of them than there are CPUs run at once.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(apiserver.Run(m))
}
