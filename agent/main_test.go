package agent

import (
	"os"
	"testing"

	"github.com/unstale/unstale/test/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m)) }
