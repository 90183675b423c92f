package apiserver_test

import (
	"os"
	"testing"

	"github.com/unstale/unstale/test/apiserver"
)

func TestMain(m *testing.M) { os.Exit(apiserver.Run(m)) }
