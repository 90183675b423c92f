// Command pause does nothing until it is told to end. It holds the network of the test node's pods, and is what runs in them.
//
//	pause              ends when it is told to
//	pause deaf         does not hear it, and must be killed
//	pause TIME STATUS  ends by itself after a time, with an exit status
package main

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	args := os.Args[1:]
	switch {
	case len(args) == 0:
		<-end
	case args[0] == "deaf":
		for {
			<-end
		}
	default:
		after, err := time.ParseDuration(args[0])
		status := 0
		if len(args) > 1 && err == nil {
			status, err = strconv.Atoi(args[1])
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "pause:", err)
			os.Exit(2)
		}
		select {
		case <-end:
		case <-time.After(after):
			os.Exit(status)
		}
	}
}
