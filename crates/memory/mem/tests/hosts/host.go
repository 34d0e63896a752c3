// A Go program that loads the library, and whose runtime's signal handlers must keep working.
//
//	host LIBRARY           copies, faults of its own, and both at once
//	host LIBRARY c-fault   then dies of a fault in C while the guard lives, by Go's handler
//	host LIBRARY late      then dies of a fault in a copy after the guard, by Go's handler
package main

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/mman.h>

static int (*guard)(void);
static void (*unguard)(void);
static size_t (*copy)(const void *, void *, size_t, int *);

static const char *load(const char *path) {
	void *library = dlopen(path, RTLD_NOW);
	if (!library)
		return dlerror();
	guard = (int (*)(void))dlsym(library, "longshore_guard");
	unguard = (void (*)(void))dlsym(library, "longshore_unguard");
	copy = (size_t (*)(const void *, void *, size_t, int *))dlsym(library, "longshore_copy");
	return guard && unguard && copy ? NULL : "a symbol is missing";
}

static int call_guard(void) { return guard(); }
static void call_unguard(void) { unguard(); }
static size_t call_copy(const void *from, void *to, size_t len, int *cause) {
	return copy(from, to, len, cause);
}
static char touch(const void *at) { return *(const volatile char *)at; }
static int memory_file(void) { return memfd_create("host", MFD_CLOEXEC); }
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"unsafe"
)

const (
	page       = 4096
	pages      = 4
	goroutines = 8
	rounds     = 100
	notBacked  = 2
)

func main() {
	if message := C.load(C.CString(os.Args[1])); message != nil {
		fail("%s", C.GoString(message))
	}
	checkOwnFaults()
	if errno := C.call_guard(); errno != 0 {
		fail("no guard: %d", errno)
	}
	var all sync.WaitGroup
	for which := 0; which < goroutines; which++ {
		all.Add(1)
		go func(which int) {
			defer all.Done()
			checkCopies(which)
		}(which)
	}
	all.Wait()
	switch {
	case len(os.Args) < 3:
	case os.Args[2] == "c-fault":
		C.touch(at(truncatedMapping(1), page))
		fail("read a missing page")
	case os.Args[2] == "late":
		C.call_unguard()
		guardedCopy(truncatedMapping(1), 0, make([]byte, 2*page))
		fail("copied a missing page")
	}
	C.call_unguard()
	checkOwnFaults()
	fmt.Println("the host holds")
}

// Copies across the end of the file from many places, while Go code faults, too.
func checkCopies(which int) {
	// Keep an OS thread of its own.
	runtime.LockOSThread()
	for round := 0; round < rounds; round++ {
		there := 1 + (which+round)%(pages-1)
		mapping := truncatedMapping(there)
		before := (which*977 + round*131) % (there * page)
		from := there*page - before
		target := make([]byte, before+page/2)
		done, cause := guardedCopy(mapping, from, target)
		if done != before || cause != notBacked {
			fail("%d bytes and cause %d, but %d bytes were backed", done, cause, before)
		}
		for at, value := range target {
			expected := byte(0)
			if at < before {
				expected = valueAt(from + at)
			}
			if value != expected {
				fail("byte %d of %d is %d", at, before, value)
			}
		}
		if round%10 == 0 {
			checkOwnFaults()
		}
		if err := syscall.Munmap(mapping); err != nil {
			fail("%v", err)
		}
	}
}

// Faults of Go code must become panics that can be recovered.
func checkOwnFaults() {
	var nowhere *int
	if fault := recovered(func() { *nowhere = 1 }); fault == nil {
		fail("nil was written to")
	}
	mapping := truncatedMapping(1)
	place := at(mapping, page)
	fault := recovered(func() { sink(mapping[page]) })
	addressed, hasAddress := fault.(interface{ Addr() uintptr })
	if !hasAddress || addressed.Addr() != uintptr(place) {
		fail("SIGBUS at %p became %v", place, fault)
	}
	if err := syscall.Munmap(mapping); err != nil {
		fail("%v", err)
	}
}

func recovered(work func()) (fault any) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { fault = recover() }()
	work()
	return nil
}

//go:noinline
func sink(byte) {}

func guardedCopy(mapping []byte, from int, target []byte) (done int, cause int) {
	var why C.int
	copied := C.call_copy(at(mapping, from), unsafe.Pointer(&target[0]), C.size_t(len(target)), &why)
	return int(copied), int(why)
}

// A mapping of a truncated file: only its first pages are backed.
func truncatedMapping(there int) []byte {
	fd := int(C.memory_file())
	if err := syscall.Ftruncate(fd, pages*page); err != nil {
		fail("%v", err)
	}
	access := syscall.PROT_READ | syscall.PROT_WRITE
	mapping, err := syscall.Mmap(fd, 0, pages*page, access, syscall.MAP_SHARED)
	if err != nil {
		fail("%v", err)
	}
	for at := range mapping {
		mapping[at] = valueAt(at)
	}
	if err := syscall.Ftruncate(fd, int64(there*page)); err != nil {
		fail("%v", err)
	}
	syscall.Close(fd)
	return mapping
}

func valueAt(offset int) byte { return byte(offset*31 ^ offset>>9) }

func at(mapping []byte, offset int) unsafe.Pointer {
	return unsafe.Pointer(uintptr(unsafe.Pointer(&mapping[0])) + uintptr(offset))
}

func fail(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "host: "+format+"\n", values...)
	os.Exit(1)
}
