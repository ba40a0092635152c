// A page cache that forgets to free two of its pages, in Go with cgo.
//
//	CGO_CFLAGS=-I/usr/local/include CGO_LDFLAGS="-L/usr/local/lib -lhbmprof" go build cache.go && ./cache cache.pb.gz
package main

/*
#include <stdlib.h>
#include <hbmprof/c_api.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

const pageBytes = 4096

// withTag calls f. Allocations that f records have the label key=value. A tag belongs to a thread, so the goroutine is
// locked to its thread during the call.
func withTag(key, value string, f func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	k, v := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(k))
	defer C.free(unsafe.Pointer(v))
	C.hbmprof_tag_push(k, v)
	defer C.hbmprof_tag_pop()
	f()
}

type cache struct {
	attributes C.hbmprof_attributes
	pages      []unsafe.Pointer
}

// recordAlloc records a buffer with the Go stack of its caller. C code cannot capture Go frames.
func recordAlloc(ptr unsafe.Pointer, bytes C.size_t, attributes *C.hbmprof_attributes) {
	var stack [64]uintptr
	depth := runtime.Callers(2, stack[:])
	C.hbmprof_record_alloc_stack(ptr, bytes, attributes, (*C.uintptr_t)(unsafe.Pointer(&stack[0])), C.size_t(depth))
}

func (c *cache) addPage() {
	page := C.malloc(pageBytes) // stands for the allocator of a device
	recordAlloc(page, pageBytes, &c.attributes)
	c.pages = append(c.pages, page)
}

func (c *cache) removePage() {
	page := c.pages[len(c.pages)-1]
	c.pages = c.pages[:len(c.pages)-1]
	C.hbmprof_record_free(page)
	C.free(page)
}

func number(f func(*C.char) C.int, name string) C.int {
	n := C.CString(name)
	defer C.free(unsafe.Pointer(n))
	return f(n)
}

// check returns the library's error. The last error belongs to the thread, so the caller must have locked the goroutine
// to its thread.
func check(status C.int) error {
	if status == 0 {
		return nil
	}
	return fmt.Errorf("%s", C.GoString(C.hbmprof_last_error()))
}

func run(path string) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	device := number(func(n *C.char) C.int { return C.hbmprof_device(n) }, "npu:0")
	allocator := number(func(n *C.char) C.int { return C.hbmprof_allocator(n) }, "cache")
	c := cache{attributes: C.hbmprof_attributes{
		struct_size: C.sizeof_hbmprof_attributes, device: device, allocator: allocator}}
	withTag("phase", "decode", func() {
		for i := 0; i < 5; i++ {
			c.addPage()
		}
	})
	for i := 0; i < 3; i++ {
		c.removePage()
	}
	stats := C.hbmprof_stats{struct_size: C.sizeof_hbmprof_stats}
	if err := check(C.hbmprof_get_stats(device, &stats)); err != nil {
		return err
	}
	p := C.CString(path)
	defer C.free(unsafe.Pointer(p))
	if err := check(C.hbmprof_save_device_memory_profile(p)); err != nil {
		return err
	}
	fmt.Printf("%d bytes in use, peak %d\n", int64(stats.bytes_in_use), int64(stats.peak_bytes_in_use))
	return nil
}

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "cache:", err)
		os.Exit(1)
	}
}
