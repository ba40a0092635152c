// Writes a heap profile of Go's own to the file named by its argument.
package main

import (
	"os"
	"runtime"
	"runtime/pprof"
)

type node struct {
	next *node
	data []byte
}

var keep []*node

func grow(depth int) *node {
	if depth == 0 {
		return &node{data: make([]byte, 3000)}
	}
	return &node{next: grow(depth - 1), data: make([]byte, 100*depth)}
}

func drop() { _ = grow(7) }

func main() {
	runtime.MemProfileRate = 1
	for i := 0; i < 50; i++ {
		keep = append(keep, grow(i%5))
		drop()
	}
	runtime.GC()
	file, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := pprof.WriteHeapProfile(file); err != nil {
		panic(err)
	}
	file.Close()
	runtime.KeepAlive(keep)
}
